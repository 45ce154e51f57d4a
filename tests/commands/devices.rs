//! `devices`: each device tried in a process of its own, whatever that process does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::{assert_on_the_page, ran};
use crate::common::{bundle, copy_bundle, has_onnxruntime, root, skip};

/// The device of that name.
fn device<'a>(found: &'a Value, name: &str) -> &'a Value {
    let devices = found["devices"].as_array().unwrap();
    devices.iter().find(|device| device["device"] == name).unwrap()
}

#[test]
fn every_device_is_tried() {
    if !has_onnxruntime() {
        return skip("every_device_is_tried", "ONNX Runtime");
    }
    let found = ran(&["devices", "--json"]).expect_code(0).json();
    assert_on_the_page(&found);
    let names: Vec<&str> = found["devices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|device| device["device"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        ["cpu", "native", "openvino", "cuda", "tensorrt", "cann", "qnn", "simulated"]
    );
    let cpu = device(&found, "cpu");
    assert_eq!(cpu["runs"], true);
    assert_eq!(cpu["effective"], "CPUExecutionProvider");
    assert_eq!(cpu["golden"]["agrees"], true);
    let native = device(&found, "native");
    assert!(native["effective"].as_str().unwrap().starts_with("native ("), "{native}");
    assert_eq!(native["golden"]["agrees"], true);
    assert!(cpu["median_us"].as_f64().unwrap() > 0.0);
    let simulated = device(&found, "simulated");
    assert_eq!((&simulated["runs"], &simulated["golden"]), (&true.into(), &Value::Null));
    for tried in found["devices"].as_array().unwrap() {
        let has_reason = tried["reason"] != "";
        assert_eq!(tried["runs"], !has_reason, "{tried}");
    }
}

#[test]
fn what_is_asked_for_is_tried_and_a_simulation_does_not_count() {
    if !has_onnxruntime() {
        return skip("what_is_asked_for_is_tried_and_a_simulation_does_not_count", "ONNX Runtime");
    }
    let told = ran(&["devices", "--device", "simulated,cann"]).expect_code(69);
    let lines: Vec<&str> = told.stdout.lines().skip(3).collect();
    assert!(lines[0].starts_with("simulated  runs on simulated: "), "{lines:?}");
    assert!(lines[1].starts_with("cann       does not run: "), "{lines:?}");
    assert!(told.stderr.contains("no device runs the model"), "{}", told.stderr);

    let unknown = ran(&["devices", "--device", "abacus"]).expect_code(78);
    assert!(unknown.stderr.contains("abacus"), "{}", unknown.stderr);
}

#[test]
fn a_model_that_is_named_is_tried_whatever_depths_a_task_asks_its_own_at() {
    if !has_onnxruntime() {
        return skip(
            "a_model_that_is_named_is_tried_whatever_depths_a_task_asks_its_own_at",
            "ONNX Runtime",
        );
    }
    let [own, other] = ["protocol", "app-id-k10"].map(|name| root().join("models").join(name));
    let (own, other) = (own.to_str().unwrap(), other.to_str().unwrap());
    let sets = [
        "--set".to_owned(),
        format!("task.first.model={own}"),
        "--set".to_owned(),
        "task.first.depths=[3]".to_owned(),
    ];
    let mut line = vec!["devices", "--device", "cpu", "--model", other];
    line.extend(sets.iter().map(String::as_str));
    let found = ran(&line).expect_code(0);
    assert!(found.stdout.contains("golden outputs agree"), "{}", found.stdout);
}

#[test]
fn without_a_library_or_a_model_nothing_is_tried() {
    let refused = ran(&["devices", "--library", "/nowhere/libonnxruntime.so"]).expect_code(69);
    assert_eq!(refused.stdout, "");
    assert!(refused.stderr.contains("/nowhere/libonnxruntime.so"), "{}", refused.stderr);
    ran(&["devices", "--model", "/nowhere"]).expect_code(66);
    let told = ran(&["devices", "--device", "native", "--library", "/nowhere"]).expect_code(0);
    assert!(told.stdout.starts_with("library  none needed\n"), "{}", told.stdout);
}

/// A shared library whose start-up code is `body`; none, said aloud, where there is no C compiler.
fn plugin(test: &str, dir: &Path, body: &str) -> Option<PathBuf> {
    let (from, to) = (dir.join("plugin.c"), dir.join("plugin.so"));
    let source = format!(
        "#include <stdlib.h>\n#include <unistd.h>\n__attribute__((constructor)) static void \
         start(void) {{ {body} }}\n"
    );
    fs::write(&from, source).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&to, &from]).status();
    if built.is_ok_and(|status| status.success()) {
        return Some(to);
    }
    skip(test, "a C compiler (cc)");
    None
}

#[test]
fn a_plugin_that_crashes_or_hangs_is_told() {
    let test = "a_plugin_that_crashes_or_hangs_is_told";
    if !has_onnxruntime() {
        return skip(test, "ONNX Runtime");
    }
    let dir = tempfile::tempdir().unwrap();
    for (body, reason) in [
        ("abort();", "its process ended early: signal: 6"),
        ("for (;;) pause();", "hangs: no answer within 1 s"),
        ("", "plugin.so: cannot be registered"),
    ] {
        let Some(plugin) = plugin(test, dir.path(), body) else {
            return;
        };
        let mut line = vec!["devices", "--json", "--device", "plugin", "--plugin"];
        line.push(plugin.to_str().unwrap());
        if body.contains("pause") {
            line.extend(["--deadline-s", "1"]);
        }
        let found = ran(&line).expect_code(69).json();
        let told = device(&found, "plugin");
        assert_eq!(told["runs"], false);
        assert!(told["reason"].as_str().unwrap().contains(reason), "{told}");
    }
}

#[test]
fn a_model_that_computes_something_else_is_told() {
    if !has_onnxruntime() {
        return skip("a_model_that_computes_something_else_is_told", "ONNX Runtime");
    }
    let dir = tempfile::tempdir().unwrap();
    copy_bundle(&bundle(), dir.path());
    // Each row has the probabilities of the row before.
    let text = fs::read_to_string(bundle().join("golden/outputs.csv")).unwrap();
    let mut rows: Vec<&str> = text.lines().collect();
    rows.rotate_right(1);
    fs::write(dir.path().join("golden/outputs.csv"), rows.join("\n")).unwrap();
    let model = dir.path().to_str().unwrap();
    let told = ran(&["devices", "--device", "cpu", "--model", model]).expect_code(0);
    assert!(told.stdout.contains("golden outputs DIFFER"), "{}", told.stdout);
}

/// A file that `make providers` fetches; none, said aloud, where it was not.
fn fetched(test: &str, file: &str) -> Option<String> {
    let path = root().join("target").join(file);
    if !path.exists() {
        skip(test, "other providers (make providers)");
        return None;
    }
    Some(path.to_str().unwrap().to_owned())
}

#[test]
fn openvino_runs_the_shipped_model() {
    let test = "openvino_runs_the_shipped_model";
    let Some(library) = fetched(test, "onnxruntime-openvino/libonnxruntime.so") else {
        return;
    };
    let found = ran(&["devices", "--json", "--device", "openvino", "--library", &library])
        .expect_code(0)
        .json();
    let openvino = device(&found, "openvino");
    assert_eq!(openvino["effective"], "OpenVINOExecutionProvider");
    assert_eq!(openvino["golden"]["agrees"], true, "{openvino}");
}

/// QNN comes as a plug-in and needs an option: a device as the configuration describes it.
#[test]
fn a_plugin_with_options_runs_a_model() {
    let test = "a_plugin_with_options_runs_a_model";
    if !has_onnxruntime() {
        return skip(test, "ONNX Runtime");
    }
    let (Some(plugin), Some(backend)) = (
        fetched(test, "onnxruntime-qnn/libonnxruntime_providers_qnn.so"),
        fetched(test, "onnxruntime-qnn/libQnnHtp.so"),
    ) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("npu.toml");
    let text = format!(
        "accel.devices = [\"npu\"]\n[device.npu]\nprovider = \"qnn\"\nplugin = \"{plugin}\"\n\
         options = {{ backend_path = \"{backend}\" }}\n"
    );
    fs::write(&config, text).unwrap();
    // Its simulator has no memory for the tables of the shipped model (docs/devices.md).
    let model = bundle();
    let line = ["devices", "--json", "--config", config.to_str().unwrap()];
    let asked = ["--device", "npu", "--model", model.to_str().unwrap()];
    let found = ran(&[&line[..], &asked].concat()).expect_code(0).json();
    assert_eq!(device(&found, "npu")["golden"]["argmax_differences"], 0);
}
