//! Bundles for tests: small models written here, node by node, in ONNX's protobuf form.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::fs;

/// A chain of operators from input `x` to output `y`, declared as float32 of the given dimensions:
/// a name for a free one, a number for a fixed one.
pub fn chain(operators: &[&str], input: &[&str], output: &[&str]) -> Vec<u8> {
    let value = |at: usize| match at {
        0 => "x".to_owned(),
        at if at == operators.len() => "y".to_owned(),
        at => format!("v{at}"),
    };
    let mut graph = text(2, "chain");
    for (at, operator) in operators.iter().enumerate() {
        let node = [text(1, &value(at)), text(2, &value(at + 1)), text(4, operator)].concat();
        graph.extend(bytes(1, &node));
    }
    graph.extend(bytes(11, &value_info("x", input)));
    graph.extend(bytes(12, &value_info("y", output)));
    of_graph(&graph)
}

fn of_graph(graph: &[u8]) -> Vec<u8> {
    let opset = [text(1, ""), number(2, 17)].concat();
    [number(1, 8), bytes(8, &opset), bytes(7, graph)].concat()
}

/// One number of a row of `series` or `context`, times these weights, for each of three outputs.
pub type Weights = [f32; 3];

/// A model of two inputs, `series` of one channel and K elements and `context`. Its output
/// `probabilities` is the softmax of the absolute numbers of `series` and `context`, times
/// `weights`. The first dimensions are called as `batch` says; "" for no name.
pub fn with_context(k: usize, weights: &[Weights], batch: [&str; 2]) -> Vec<u8> {
    const INT: u64 = 2;
    let axis = [text(1, "axis"), number(3, 1), number(20, INT)].concat();
    let nodes: [(&str, &[&str], &str, &[u8]); 5] = [
        ("Flatten", &["series"], "flat", &[]),
        ("Abs", &["flat"], "lengths", &[]),
        ("Concat", &["lengths", "context"], "row", &bytes(5, &axis)),
        ("MatMul", &["row", "weights"], "scores", &[]),
        ("Softmax", &["scores"], "probabilities", &[]),
    ];
    let mut graph = text(2, "context");
    for (operator, inputs, output, attributes) in nodes {
        let mut node: Vec<u8> = inputs.iter().flat_map(|name| text(1, name)).collect();
        node.extend([text(2, output), text(4, operator)].concat());
        node.extend(attributes);
        graph.extend(bytes(1, &node));
    }
    let values: Vec<u8> = weights.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
    let tensor = [
        number(1, weights.len() as u64),
        number(1, 3),
        number(2, FLOAT),
        text(8, "weights"),
        bytes(9, &values),
    ];
    graph.extend(bytes(5, &tensor.concat()));
    let numbers = (weights.len() - k).to_string();
    for (field, name, dimensions) in [
        (11, "series", &[batch[0], "1", &k.to_string()][..]),
        (11, "context", &[batch[1], &numbers]),
        (12, "probabilities", &[batch[0], "3"]),
    ] {
        graph.extend(bytes(field, &value_info(name, dimensions)));
    }
    of_graph(&graph)
}

/// float32, as ONNX numbers types.
const FLOAT: u64 = 1;

fn value_info(name: &str, dimensions: &[&str]) -> Vec<u8> {
    let dimension =
        |d: &&str| bytes(1, &d.parse().map_or_else(|_| text(2, d), |fixed| number(1, fixed)));
    let shape: Vec<u8> = dimensions.iter().flat_map(dimension).collect();
    let tensor = [number(1, FLOAT), bytes(2, &shape)].concat();
    [text(1, name), bytes(2, &bytes(1, &tensor))].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

fn bytes(field: u64, content: &[u8]) -> Vec<u8> {
    [varint(field << 3 | 2), varint(content.len() as u64), content.to_vec()].concat()
}

fn text(field: u64, content: &str) -> Vec<u8> {
    bytes(field, content.as_bytes())
}

/// SHA-256 in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A bundle in a temporary folder around `model`, for K = 3 and as many labels as `outputs` has
/// columns.
pub fn bundle_of(model: &[u8], inputs: &str, outputs: &str) -> tempfile::TempDir {
    let sha256 = sha256(model);
    let mut manifest = format!(
        "schema_version = 1\nname = \"test\"\nversion = \"1\"\nfile = \"model.onnx\"\nsha256 = \
         \"{sha256}\"\nk = 3\n\
         features = [\"signed_length\"]\nprecision = \"fp32\"\nmin_confidence = 0.0\n\
         [input]\nname = \"x\"\n[output]\nname = \"y\"\n"
    );
    for column in 0..outputs.lines().next().unwrap().split(',').count() {
        manifest += &format!("[[labels]]\nname = \"c{column}\"\ntaxonomy = \"t\"\n");
    }
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("golden")).unwrap();
    fs::write(dir.path().join("model.onnx"), model).unwrap();
    fs::write(dir.path().join("model.toml"), manifest).unwrap();
    fs::write(dir.path().join("golden/inputs.csv"), inputs).unwrap();
    fs::write(dir.path().join("golden/outputs.csv"), outputs).unwrap();
    dir
}
