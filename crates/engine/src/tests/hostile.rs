//! Models of attackers: each is refused, or answers; none takes more memory or time than a model of
//! its size may.

use super::*;

const BUNDLES: [&str; 7] = [
    "protocol",
    "protocol-int8",
    "protocol-small",
    "app-id-k10",
    "app-id-k10-int8",
    "fenxi-cnn-k10",
    "iot-family",
];

/// Compiles, and answers with classes that there are.
fn attacked(model: &[u8], ranges: Option<&Ranges>) -> Result<(), crate::Error> {
    let mut network = Network::compile(model, ranges)?;
    let Shape { channels, places, context, classes } = network.shape();
    let numbers = [f32::NAN, -1e30, 0.0, 40.0, -1500.0, 70_000.0, 0.5];
    let series: Vec<f32> = numbers.into_iter().cycle().take(33 * channels * places).collect();
    let context = vec![17.0; 33 * context];
    let mut answers = [Answer::default(); 33];
    let mut scratch = network.scratch();
    for isa in [Isa::available()[0], Isa::SCALAR] {
        network.set_isa(isa);
        network.run(&mut scratch, &series, &context, &mut answers);
        assert!(answers.iter().all(|answer| usize::from(answer.class) < classes));
    }
    Ok(())
}

/// `FENXI_FLIPS` of each file, 16 if it is not set.
#[test]
fn flipped_bits_and_cut_files_are_refused_or_answered() {
    let flips = std::env::var("FENXI_FLIPS").ok().and_then(|it| it.parse().ok()).unwrap_or(16);
    let mut state = 9;
    for name in BUNDLES {
        let whole = model(name);
        let text = std::fs::read(models().join(name).join("ranges.csv")).unwrap_or_default();
        let parsed = |text: &[u8]| Ranges::parse(std::str::from_utf8(text).ok()?).ok();
        let ranges = parsed(&text);
        for i in 0..flips {
            let (mut model, mut text) = (whole.clone(), text.clone());
            // The first hundredth is nodes and their names; the constants follow.
            let len = if i % 2 == 0 { model.len() as u64 } else { 4000 };
            model[random(&mut state, len) as usize] ^= 1 << random(&mut state, 8);
            let _ = attacked(&model, ranges.as_ref());
            if i % 8 == 0 {
                model.truncate(random(&mut state, len) as usize);
                assert!(attacked(&model, ranges.as_ref()).is_err(), "{name}: cut, and taken");
            }
            if i % 4 == 0 && !text.is_empty() {
                let at = random(&mut state, text.len() as u64) as usize;
                text[at] ^= 1 << random(&mut state, 8);
                if let Some(ranges) = parsed(&text) {
                    let _ = attacked(&whole, Some(&ranges));
                }
                text.truncate(at);
                if let Some(ranges) = parsed(&text) {
                    let _ = attacked(&whole, Some(&ranges));
                }
            }
        }
    }
}

/// A field of protobuf that holds bytes.
fn bytes(number: u64, content: &[u8]) -> Vec<u8> {
    [varint(number << 3 | 2), varint(content.len() as u64), content.to_vec()].concat()
}

fn integer(number: u64, value: u64) -> Vec<u8> {
    [varint(number << 3), varint(value)].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = vec![];
    while value >= 128 {
        bytes.push(value as u8 | 128);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn node(operator: &str, inputs: &[&str], output: &str) -> Vec<u8> {
    let inputs: Vec<u8> = inputs.iter().flat_map(|name| bytes(1, name.as_bytes())).collect();
    let rest = [bytes(2, output.as_bytes()), bytes(3, output.as_bytes())].concat();
    bytes(1, &[inputs, rest, bytes(4, operator.as_bytes())].concat())
}

/// A constant of floats (1) or integers (7) with these bytes.
fn constant(name: &str, kind: u64, shape: &[u64], raw: &[u8]) -> Vec<u8> {
    let shape: Vec<u8> = shape.iter().flat_map(|&len| integer(1, len)).collect();
    bytes(5, &[shape, integer(2, kind), bytes(8, name.as_bytes()), bytes(9, raw)].concat())
}

/// An input (11) or output (12) of floats; the first axis is the batch.
fn tensor(number: u64, name: &str, shape: &[u64]) -> Vec<u8> {
    let batch = bytes(1, &bytes(2, b"N"));
    let axes: Vec<u8> = shape.iter().flat_map(|&len| bytes(1, &integer(1, len))).collect();
    let shape = bytes(2, &[batch, axes].concat());
    let kind = bytes(2, &bytes(1, &[integer(1, 1), shape].concat()));
    bytes(number, &[bytes(1, name.as_bytes()), kind].concat())
}

fn file(graph: &[Vec<u8>]) -> Vec<u8> {
    let opset = bytes(8, &integer(2, 17));
    [integer(1, 8), opset, bytes(7, &graph.concat())].concat()
}

#[test]
fn hostile_graphs_are_refused_by_name() {
    let ends = || [tensor(11, "x", &[1, 10]), tensor(12, "y", &[4])].concat();
    let nested = (0..20_000).fold(vec![], |inner, _| bytes(6, &inner));
    let nested = [bytes(1, b"body"), nested].concat();
    let nested = [bytes(1, b"x"), bytes(2, b"y"), bytes(4, b"If"), bytes(5, &nested)].concat();
    // The series as a list, from which tables begin; then each value from the one before.
    let chain = |count: usize, operator: &str, more: &[&str]| {
        let mut nodes = node("Flatten", &["x"], "v0");
        for i in 0..count {
            let from = format!("v{i}");
            let inputs = [&[from.as_str()][..], more].concat();
            nodes.extend(node(operator, &inputs, &format!("v{}", i + 1)));
        }
        nodes
    };
    let look_up =
        |constant| vec![chain(1, "Abs", &[]), constant, node("Gather", &["t", "v1"], "y")];
    let long = tensor(11, "x", &[1, 1 << 40]);
    let huge = tensor(11, "x", &[u64::MAX, u64::MAX]);
    let many = constant("t", 1, &[1 << 32, 1 << 32], &[]);
    let negative = constant("t", 1, &[u64::MAX], &[0; 4]);
    let short = constant("t", 1, &[2, 4], &[0; 32]);
    let wide = constant("t", 1, &[65_536, 64], &vec![0; 65_536 * 64 * 4]);
    let one = constant("t", 1, &[], &1_f32.to_le_bytes());
    let hostile = [
        ("a circle", vec![node("Abs", &["b"], "a"), node("Abs", &["a"], "b")]),
        ("a node of itself", vec![node("Relu", &["y"], "y")]),
        ("no nodes", vec![]),
        ("very many nodes", vec![chain(20_000, "Abs", &[])]),
        ("a table after the other", vec![chain(4_000, "Abs", &[])]),
        ("a sum after the other", vec![one, chain(4_000, "Add", &["t"])]),
        ("a graph in a graph", vec![bytes(1, &nested)]),
        ("no layers", vec![node("Softmax", &["x"], "y")]),
        ("a constant without its bytes", look_up(many)),
        ("a constant with a negative axis", look_up(negative)),
        ("an index beyond the table", look_up(short)),
        ("a wide table and no layer", look_up(wide)),
        ("many inputs", vec![long]),
        ("a huge input", vec![huge]),
    ];
    for (what, graph) in hostile {
        let start = std::time::Instant::now();
        let error =
            attacked(&file(&[graph, vec![ends()]].concat()), None).expect_err(what).to_string();
        assert!(!error.contains('\n') && error.len() < 300, "{what}: {error}");
        assert!(start.elapsed().as_secs() < 5, "{what}: {:?}", start.elapsed());
        eprintln!("{what}: {error}");
    }
}
