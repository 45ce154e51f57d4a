//! The shipped networks, against their golden outputs and against the reference.

use std::path::{Path, PathBuf};

use crate::compile::compile;
use crate::integer;
use crate::onnx::Model;
use crate::plan::Plan;
use crate::reference::Floats;
use crate::{Answer, Isa, Network, Ranges, graph};

pub(crate) fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models")
}

pub(crate) fn model(name: &str) -> Vec<u8> {
    std::fs::read(models().join(name).join("model.onnx")).unwrap()
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
            let length = random(&mut state, if i % 5 == 0 { 70_000 } else { 1514 }) as f32;
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

const NETWORKS: [&str; 3] = ["protocol", "app-id-k10", "fenxi-cnn-k10"];

fn ranges(name: &str, floats: &Floats<'_>, plan: &Plan) -> Ranges {
    match std::fs::read_to_string(models().join(name).join("ranges.csv")) {
        Ok(text) => Ranges::parse(&text).unwrap(),
        Err(_) => floats.ranges(&rows(plan, 300)),
    }
}

#[test]
fn plans_mean_what_onnx_runtime_computes() {
    for name in NETWORKS {
        let bytes = model(name);
        let plan = graph::plan(&Model::read(&bytes).unwrap()).unwrap();
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
        let bytes = model(name);
        let plan = graph::plan(&Model::read(&bytes).unwrap()).unwrap();
        let floats = Floats::new(&plan);
        let integers = compile(&plan, &ranges(name, &floats, &plan)).unwrap();
        for ((series, context), expected) in
            goldens(name, &plan).iter().zip(csv(name, "outputs.csv"))
        {
            let expected: Vec<f64> = expected.into_iter().map(f64::from).collect();
            let (class, confidence, _) = integers.row(series, context);
            assert_eq!(class, largest(&expected), "{name} {series:?}");
            let difference = f64::from(confidence) / 32_768.0 - expected[class];
            assert!(difference.abs() < 0.08, "{name}: {difference}");
        }
    }
}

#[test]
fn all_instruction_sets_compute_the_reference() {
    for name in NETWORKS {
        let bytes = model(name);
        let plan = graph::plan(&Model::read(&bytes).unwrap()).unwrap();
        let integers = compile(&plan, &ranges(name, &Floats::new(&plan), &plan)).unwrap();
        let network = integer::Network::new(&integers);
        let rows = rows(&plan, 400);
        for isa in Isa::available() {
            let mut scratch = network.scratch();
            let (mut at, mut size) = (0, 1);
            while at + size <= rows.len() {
                let these = &rows[at..at + size];
                let series: Vec<f32> = these.iter().flat_map(|(series, _)| series).copied().collect();
                let context: Vec<f32> = these.iter().flat_map(|(_, c)| c).copied().collect();
                let mut answers = vec![Answer::default(); size];
                network.run(isa, &mut scratch, &series, &context, &mut answers, &mut []);
                for (answer, (series, context)) in answers.iter().zip(these) {
                    let (class, confidence, _) = integers.row(series, context);
                    let expected = (class as u16, confidence as f32 / 32_768.0);
                    let found = (answer.class, answer.confidence);
                    assert_eq!(found, expected, "{name} {isa:?} batch of {size}: {series:?}");
                }
                (at, size) = (at + size, size % 70 + 1);
            }
        }
    }
}

#[test]
#[ignore = "a timing"]
fn times() {
    for name in NETWORKS {
        let bytes = model(name);
        let plan = graph::plan(&Model::read(&bytes).unwrap()).unwrap();
        let start = std::time::Instant::now();
        let network =
            Network::compile(&bytes, &ranges(name, &Floats::new(&plan), &plan)).unwrap();
        println!("{name}: compiled in {:?}", start.elapsed());
        let rows = rows(&plan, 8192);
        let series: Vec<f32> = rows.iter().flat_map(|(series, _)| series).copied().collect();
        let context: Vec<f32> = rows.iter().flat_map(|(_, context)| context).copied().collect();
        let mut answers = vec![Answer::default(); rows.len()];
        for isa in Isa::available() {
            let network = Network::compile(&bytes, &ranges(name, &Floats::new(&plan), &plan)).unwrap().with_isa(isa);
            let mut scratch = network.scratch();
            print!("  {:10}", isa.name());
            for batch in [1, 8, 32, 256] {
                let mut best = f64::MAX;
                for _ in 0..15 {
                    let start = std::time::Instant::now();
                    for at in (0..rows.len()).step_by(batch) {
                        network.run(&mut scratch, &series[at * plan.places..][..batch*plan.places], &context[at * plan.context..][..batch*plan.context], &mut answers[at..at + batch]);
                    }
                    best = best.min(start.elapsed().as_nanos() as f64 / rows.len() as f64);
                }
                print!(" {batch}: {best:.0} ns");
            }
            println!();
        }
    }
}
