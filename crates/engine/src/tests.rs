//! The shipped networks, against their golden outputs and against the reference.

use std::path::{Path, PathBuf};

use proptest::prelude::*;

use crate::compile::compile;
use crate::integers::Integers;
use crate::onnx::Model;
use crate::plan::{Forest, Kind, Layer, Plan, TreeNode};
use crate::reference::Floats;
use crate::tabulated::{Source, Tabulated};
use crate::{Answer, Isa, Network, Ranges, Shape, graph, integer};

mod hostile;

pub(crate) fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models")
}

pub(crate) fn model(name: &str) -> Vec<u8> {
    std::fs::read(models().join(name).join("model.onnx")).unwrap()
}

/// The plan of a shipped network.
fn plan(name: &str) -> Plan {
    match graph::plan(&Model::read(&model(name)).unwrap()).unwrap() {
        Kind::Network(plan) => plan,
        Kind::Forest(_) => panic!("{name} are trees"),
    }
}

fn csv(name: &str, file: &str) -> Vec<Vec<f32>> {
    let text = std::fs::read_to_string(models().join(name).join("golden").join(file)).unwrap();
    let row = |line: &str| line.split(',').map(|field| field.parse().unwrap()).collect();
    text.lines().map(row).collect()
}

/// A repeatable random number below `bound`.
pub(crate) fn random(state: &mut u64, bound: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 11) % bound
}

/// Rows as flows have them, and some as no flow has.
pub(crate) fn rows(plan: &Plan, count: usize) -> Vec<(Vec<f32>, Vec<f32>)> {
    let mut state = 7;
    let mut row = |i: usize| {
        let depth = if i.is_multiple_of(3) { plan.places } else { i % (plan.places + 1) };
        let element = |p: usize| {
            let length = random(&mut state, if i.is_multiple_of(5) { 70_000 } else { 1514 }) as f32;
            let odd = [f32::NAN, f32::INFINITY, -1e30, -0.5, 0.5, 1600.5][i % 6];
            match random(&mut state, 2) {
                _ if p >= depth => 0.0,
                0 if i % 11 == 10 => odd,
                0 => length,
                _ => -length,
            }
        };
        let series = (0..plan.places).map(element).collect();
        let number = |i| match i {
            0 => [6.0, 17.0, f32::NAN, 300.0][random(&mut state, 4) as usize],
            _ => [443.0, 53.0, random(&mut state, 70_000) as f32][random(&mut state, 3) as usize],
        };
        (series, (0..plan.context).map(number).collect())
    };
    (0..count).map(&mut row).collect()
}

fn goldens(name: &str, plan: &Plan) -> Vec<(Vec<f32>, Vec<f32>)> {
    let split = |row: &Vec<f32>| (row[..plan.places].to_vec(), row[plan.places..].to_vec());
    csv(name, "inputs.csv").iter().map(split).collect()
}

fn largest(probabilities: &[f64]) -> usize {
    let max = probabilities.iter().copied().fold(0.0, f64::max);
    probabilities.iter().position(|&p| p == max).unwrap()
}

const NETWORKS: [&str; 4] = ["protocol", "protocol-small", "app-id-k10", "fenxi-cnn-k10"];

fn ranges(name: &str, floats: &Floats<'_>, plan: &Plan) -> Ranges {
    match std::fs::read_to_string(models().join(name).join("ranges.csv")) {
        Ok(text) => Ranges::parse(&text).unwrap(),
        Err(_) => floats.ranges(&rows(plan, 300)),
    }
}

#[test]
fn plans_mean_what_onnx_runtime_computes() {
    for name in NETWORKS {
        let plan = plan(name);
        let floats = Floats::new(&plan);
        for ((series, context), expected) in
            goldens(name, &plan).iter().zip(csv(name, "outputs.csv"))
        {
            let (_, found) = floats.row(series, context);
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - f64::from(expected)).abs() < 2e-6, "{name}: {found} {expected}");
            }
        }
    }
}

#[test]
fn integers_answer_as_floats_do() {
    for name in NETWORKS {
        let plan = plan(name);
        let floats = Floats::new(&plan);
        let integers = compile(&plan, &ranges(name, &floats, &plan)).unwrap();
        for ((series, context), expected) in
            goldens(name, &plan).iter().zip(csv(name, "outputs.csv"))
        {
            let expected: Vec<f64> = expected.into_iter().map(f64::from).collect();
            let (class, confidence, _) = integers.row(series, context);
            // Of two classes that are nearly equal, either will do.
            let best = largest(&expected);
            assert!(expected[best] - expected[class] < 0.02, "{name} {series:?}: {class} {best}");
            let difference = f64::from(confidence) / 32_768.0 - expected[class];
            assert!(difference.abs() < 0.08, "{name}: {difference}");
        }
    }
}

#[test]
fn all_instruction_sets_compute_the_reference() {
    for name in NETWORKS {
        let plan = plan(name);
        let integers = compile(&plan, &ranges(name, &Floats::new(&plan), &plan)).unwrap();
        hold_to_reference(&integers, &rows(&plan, 400));
    }
}

/// Every instruction set gives the reference's answers, whatever the size of the batch.
fn hold_to_reference(integers: &Integers, rows: &[(Vec<f32>, Vec<f32>)]) {
    let network = integer::Network::new(integers.clone());
    let classes = integers.output.classes;
    for isa in Isa::available() {
        let mut scratch = network.scratch();
        let (mut at, mut size) = (0, 1);
        while at < rows.len() {
            let these = &rows[at..rows.len().min(at + size)];
            let series: Vec<f32> = these.iter().flat_map(|(series, _)| series).copied().collect();
            let context: Vec<f32> = these.iter().flat_map(|(_, c)| c).copied().collect();
            let mut answers = vec![Answer::default(); these.len()];
            let mut probabilities = vec![0.0; these.len() * classes];
            let out = &mut probabilities[..];
            network.run(isa, &mut scratch, &series, &context, &mut answers, out);
            let found = answers.iter().zip(probabilities.chunks_exact(classes));
            for ((answer, probabilities), (series, context)) in found.zip(these) {
                let (class, confidence, e) = integers.row(series, context);
                let sum: i32 = e.iter().sum();
                let e: Vec<f32> = e.iter().map(|&e| e as f32 / sum as f32).collect();
                let expected = (class as u16, confidence as f32 / 32_768.0, &e[..]);
                let found = (answer.class, answer.confidence, probabilities);
                assert_eq!(found, expected, "{isa:?}, batch of {size}, {series:?} {context:?}");
            }
            (at, size) = (at + size, size % 70 + 1);
        }
    }
}

#[test]
fn floats_and_quantised_networks_answer_as_onnx_runtime_does() {
    for name in NETWORKS.into_iter().chain(["protocol-int8", "app-id-k10-int8"]) {
        let (plan, expected) = (plan(name), csv(name, "outputs.csv"));
        let rows = goldens(name, &plan);
        let series: Vec<f32> = rows.iter().flat_map(|(series, _)| series).copied().collect();
        let context: Vec<f32> = rows.iter().flat_map(|(_, context)| context).copied().collect();
        for isa in Isa::available() {
            let mut network = Network::compile(&model(name), None).unwrap();
            network.set_isa(isa);
            let (places, numbers, classes) = (plan.places, plan.context, plan.classes());
            let mut scratch = network.scratch();
            let (mut at, mut size) = (0, 1);
            while at < rows.len() {
                let end = rows.len().min(at + size);
                let mut answers = vec![Answer::default(); end - at];
                let mut found = vec![0.0; answers.len() * classes];
                let (series, context) = (&series[at * places..], &context[at * numbers..]);
                network.probabilities(&mut scratch, series, context, &mut answers, &mut found);
                for (found, expected) in found.chunks_exact(classes).zip(&expected[at..]) {
                    for (found, expected) in found.iter().zip(expected) {
                        assert!((found - expected).abs() < 2e-6, "{name}: {found} {expected}");
                    }
                }
                (at, size) = (end, size + 1);
            }
        }
    }
}

#[test]
fn trees_answer_as_onnx_runtime_does() {
    let (inputs, outputs) = (csv("iot-family", "inputs.csv"), csv("iot-family", "outputs.csv"));
    let network = Network::compile(&model("iot-family"), None).unwrap();
    let Shape { channels, places, classes, .. } = network.shape();
    let (mut series, mut context) = (vec![], vec![]);
    for row in &inputs {
        series.extend(&row[..channels * places]);
        context.extend(&row[channels * places..]);
    }
    let mut answers = vec![Answer::default(); inputs.len()];
    let mut probabilities = vec![0.0; inputs.len() * classes];
    let mut scratch = network.scratch();
    network.probabilities(&mut scratch, &series, &context, &mut answers, &mut probabilities);
    for (found, expected) in probabilities.iter().zip(outputs.iter().flatten()) {
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }
    for (answer, row) in answers.iter().zip(probabilities.chunks_exact(classes)) {
        assert_eq!(answer.confidence, row[usize::from(answer.class)]);
        assert!(row.iter().all(|p| *p <= answer.confidence));
    }
}

/// Trees as they are written down, node by node.
fn steps(forest: &Forest, numbers: &[f32]) -> Vec<u16> {
    let mut sums = vec![0; forest.classes];
    for tree in &forest.trees {
        let mut at = 0;
        let leaf = loop {
            match &tree[at] {
                TreeNode::Leaf(leaf) => break leaf,
                TreeNode::Split { feature, threshold, below, above } => {
                    at = if numbers[*feature] <= *threshold { *below } else { *above };
                }
            }
        };
        leaf.iter().for_each(|&(class, steps)| sums[class] += u16::from(steps));
    }
    sums
}

#[test]
fn trees_are_walked_as_they_are_written_whatever_the_batch() {
    let bytes = model("iot-family");
    let Ok(Kind::Forest(forest)) = graph::plan(&Model::read(&bytes).unwrap()) else { panic!() };
    let network = Network::compile(&bytes, None).unwrap();
    let mut state = 3;
    let mut number = |scale: u64| match random(&mut state, 12) {
        0 => [0.0, -0.0, f32::NAN, f32::INFINITY, -1e30][random(&mut state, 5) as usize],
        _ => random(&mut state, scale) as f32 - 1500.0,
    };
    let rows = 200;
    let series: Vec<f32> = (0..rows * 20).map(|i| number(3000 + i as u64 % 20 * 5000)).collect();
    let context: Vec<f32> = (0..rows * 2).map(|_| number(9000)).collect();
    let mut scratch = network.scratch();
    let mut answers = vec![Answer::default(); rows];
    let (mut at, mut size) = (0, 1);
    while at < rows {
        let end = rows.min(at + size);
        let (series, context) = (&series[at * 20..], &context[at * 2..]);
        network.run(&mut scratch, series, context, &mut answers[at..end]);
        (at, size) = (end, size % 21 + 1);
    }
    for (i, answer) in answers.iter().enumerate() {
        let numbers = [&series[i * 20..][..20], &context[i * 2..][..2]].concat();
        let steps = steps(&forest, &numbers);
        let score = |class: usize| forest.scores[usize::from(steps[class])];
        let best = (0..forest.classes).map(score).fold(f32::MIN, f32::max);
        assert_eq!(score(answer.class.into()), best, "{numbers:?}");
    }
}

/// A network with any widths: convolutions and dense layers before the last, and weights by chance.
fn some_plan(widths: &[usize], convolutions: usize, places: usize, seed: u64) -> Plan {
    let mut state = seed.wrapping_mul(2) + 1;
    let mut numbers = |count: usize, scale: f32| -> Vec<f32> {
        (0..count).map(|_| (random(&mut state, 2001) as f32 / 1000.0 - 1.0) * scale).collect()
    };
    let elements = Tabulated::identity(Source::Channel(0)).map(|x| x.clamp(-40.0, 60.0) + 40.0);
    let codes = elements.gather(numbers(101 * 3, 1.0), 3).unwrap();
    let number = Tabulated::identity(Source::Context(1)).map(|x| x.min(9.0));
    let (mut parts, mut inputs) = (vec![], codes.width);
    if convolutions == 0 {
        inputs = 3 + codes.width * places;
        let protocol = Tabulated::identity(Source::Context(0));
        parts.push((protocol.map(|x| (x / 17.0).clamp(0.0, 1.0)), 0));
        parts.push((number.gather(numbers(20, 1.0), 2).unwrap(), inputs - 2));
    }
    let mut layers: Vec<Layer> = vec![];
    for (i, &outputs) in widths.iter().enumerate() {
        if i == convolutions && i > 0 {
            inputs *= places;
        }
        let taps = if i < convolutions { 3 } else { 1 };
        let scale = 3.0 / ((taps * inputs) as f32).sqrt();
        let (weights, bias) = (numbers(taps * inputs * outputs, scale), numbers(outputs, 0.3));
        layers.push(Layer { name: i.to_string(), taps, outputs, weights, bias, bytes: None });
        inputs = outputs;
    }
    let scores = number.gather(numbers(inputs * 10, 1.0), inputs);
    let inverse_temperatures = numbers(places + 1, 0.9).iter().map(|x| x + 1.0).collect();
    let codes_at = parts.len() / 2;
    Plan {
        places,
        context: 2,
        codes,
        codes_at,
        parts,
        layers,
        scores,
        inverse_temperatures,
        values: None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn networks_of_any_shape_are_equal_on_all_instruction_sets(
        widths in prop::collection::vec(1usize..70, 2..5),
        convolutions in 0usize..3,
        places in 1usize..13,
        seed: u64,
    ) {
        let plan = some_plan(&widths, convolutions.min(widths.len() - 1), places, seed);
        let rows = rows(&plan, 90);
        let ranges = Floats::new(&plan).ranges(&rows[..20]);
        hold_to_reference(&compile(&plan, &ranges).unwrap(), &rows);
    }

    /// Bits that have changed make another model or none, but nothing worse.
    #[test]
    fn damaged_models_are_refused_or_run(
        name in prop::sample::select(&NETWORKS[..]),
        damage in prop::collection::vec((0.0f64..1.0, 1u8..), 1..4),
        at_nodes: bool,
    ) {
        let mut bytes = model(name);
        // The first hundredth is nodes and their names; the constants follow.
        let reach = if at_nodes { 4000.0 } else { bytes.len() as f64 };
        for (at, bits) in damage {
            bytes[(at * reach) as usize] ^= bits;
        }
        let Ok(model) = Model::read(&bytes) else { return Ok(()) };
        let Ok(Kind::Network(plan)) = graph::plan(&model) else { return Ok(()) };
        let rows = rows(&plan, 3);
        let ranges: Vec<_> = plan.hidden().iter().map(|layer| {
            (layer.name.clone(), vec![1.5; layer.outputs])
        }).collect();
        if let (Ok(integers), None) = (compile(&plan, &ranges.into()), plan.values) {
            hold_to_reference(&integers, &rows);
        }
    }
}
