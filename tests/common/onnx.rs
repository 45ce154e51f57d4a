//! ONNX models written by hand, byte by byte, for graphs that no tool at hand would make: those
//! that do not end.
//!
//! Source: onnx.proto of ONNX 1.17 for the numbers of the fields, and the operators of opset 13.
#![allow(clippy::unwrap_used, reason = "the helpers of tests may panic as the tests do")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Element types, as in `TensorProto.DataType`.
const FLOAT: u64 = 1;
const INT64: u64 = 7;
const BOOL: u64 = 9;

/// When the loop of the model does not end.
#[derive(Clone, Copy)]
pub enum Endless {
    /// Whatever it is given.
    Always,
    /// Where a batch has a packet longer than this.
    Above(f32),
}

/// A message of protocol buffers.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(mut self, field: u64, value: u64) -> Message {
        self.varint(field << 3);
        self.varint(value);
        self
    }

    fn bytes(mut self, field: u64, value: &[u8]) -> Message {
        self.varint(field << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    fn text(self, field: u64, value: &str) -> Message {
        self.bytes(field, value.as_bytes())
    }

    fn message(self, field: u64, value: Message) -> Message {
        self.bytes(field, &value.0)
    }
}

fn message() -> Message {
    Message::default()
}

/// A value's name, type and shape; a dimension that is free has the name `N`.
fn value(name: &str, element: u64, shape: &[u64]) -> Message {
    let dimension = |&dimension: &u64| match dimension {
        0 => message().text(2, "N"),
        fixed => message().number(1, fixed),
    };
    let dimensions = shape.iter().map(dimension);
    let shape = dimensions.fold(message(), |shape, it| shape.message(1, it));
    let tensor = message().number(1, element).message(2, shape);
    let kind = message().message(1, tensor);
    message().text(1, name).message(2, kind)
}

fn constant(name: &str, element: u64, shape: &[u64], raw: &[u8]) -> Message {
    let tensor = shape.iter().fold(message(), |it, &size| it.number(1, size));
    tensor.number(2, element).text(8, name).bytes(9, raw)
}

fn node(operator: &str, inputs: &[&str], outputs: &[&str]) -> Message {
    let node = inputs.iter().fold(message(), |it, name| it.text(1, name));
    let node = outputs.iter().fold(node, |it, name| it.text(2, name));
    node.text(4, operator)
}

/// An attribute that is an integer.
fn integer(name: &str, value: u64) -> Message {
    message().text(1, name).number(3, value).number(20, 2)
}

/// The body of the loop: all goes through as it is, the condition to go on as well.
fn body(classes: u64) -> Message {
    let graph = message()
        .message(1, node("Identity", &["go_on_in"], &["go_on_out"]))
        .message(1, node("Identity", &["rows_in"], &["rows_out"]))
        .text(2, "body");
    let graph = graph
        .message(11, value("turn", INT64, &[]))
        .message(11, value("go_on_in", BOOL, &[]))
        .message(11, value("rows_in", FLOAT, &[0, classes]));
    let graph = graph
        .message(12, value("go_on_out", BOOL, &[]))
        .message(12, value("rows_out", FLOAT, &[0, classes]));
    message().text(1, "body").message(6, graph).number(20, 5)
}

/// A model for series of `k` packets that finds all classes equally likely, once its loop has
/// ended.
fn model(endless: Endless, k: u64, classes: u64) -> Vec<u8> {
    let zeros = vec![0; (4 * k * classes) as usize];
    let limit = match endless {
        Endless::Always => f32::MIN,
        Endless::Above(length) => length,
    };
    let softmax = node("Softmax", &["scores"], &["rows"]).message(5, integer("axis", 1));
    let longest = node("ReduceMax", &["series"], &["longest"]).message(5, integer("keepdims", 0));
    let repeat = node("Loop", &["", "go_on", "rows"], &["probabilities"]).message(5, body(classes));
    let graph = message()
        .message(1, node("Flatten", &["series"], &["flat"]))
        .message(1, node("MatMul", &["flat", "weights"], &["scores"]))
        .message(1, softmax)
        .message(1, longest)
        .message(1, node("Greater", &["longest", "limit"], &["go_on"]))
        .message(1, repeat)
        .text(2, "endless")
        .message(5, constant("weights", FLOAT, &[k, classes], &zeros))
        .message(5, constant("limit", FLOAT, &[], &limit.to_le_bytes()))
        .message(11, value("series", FLOAT, &[0, 1, k]))
        .message(12, value("probabilities", FLOAT, &[0, classes]));
    let opset = message().text(1, "").number(2, 13);
    message().number(1, 8).message(8, opset).message(7, graph).0
}

/// A bundle in `dir` with such a model, else like the shipped one. Its golden input has packets of
/// 100 bytes.
pub fn endless_bundle(dir: &Path, endless: Endless) -> PathBuf {
    let (k, classes) = (10, super::labels(&super::bundle()).len());
    let path = dir.join("endless");
    fs::create_dir_all(path.join("golden")).unwrap();
    fs::write(path.join("model.onnx"), model(endless, k, classes as u64)).unwrap();
    let row = |value: String, count: usize| vec![value; count].join(",") + "\n";
    fs::write(path.join("golden/inputs.csv"), row("100".to_owned(), k as usize)).unwrap();
    let likely = (1.0 / classes as f64).to_string();
    fs::write(path.join("golden/outputs.csv"), row(likely, classes)).unwrap();

    let sum = Command::new("sha256sum").arg(path.join("model.onnx")).output();
    let sum = String::from_utf8(sum.unwrap().stdout).unwrap();
    let manifest = fs::read_to_string(super::bundle().join("model.toml")).unwrap();
    let line = |line: &str| match line.split(' ').next() {
        Some("sha256") => format!("sha256 = \"{}\"\n", sum.split(' ').next().unwrap()),
        Some("name") if line.contains("app-id-k10") => "name = \"endless\"\n".to_owned(),
        // Another model's.
        Some("ranges" | "ranges_sha256") => String::new(),
        _ => format!("{line}\n"),
    };
    let manifest: String = manifest.lines().map(line).collect();
    fs::write(path.join("model.toml"), manifest).unwrap();
    path
}
