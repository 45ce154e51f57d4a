//! The device where nobody names one: `native` if it takes the model, otherwise `cpu`; and what
//! says so.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use super::ran;
use crate::common::{Finished, bundle, demo, fenxi, has_onnxruntime, root, run, skip};

const TAKEN: &str = "default: native takes this model";
const REFUSED: &str = "default: native does not take this model: node '";

/// A model for two features, which the engine does not know.
fn not_taken() -> PathBuf {
    root().join("tests/bundles/times-k10")
}

fn check(sets: &[&str]) -> String {
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    let args: Vec<&str> = ["check", "--config-only", "--deep"].into_iter().chain(sets).collect();
    ran(&args).expect_code(0).stdout
}

#[test]
fn check_names_the_device_and_why() {
    let model = |path: PathBuf| format!("model.path={}", path.display());
    let page = check(&["pipeline.layout=1:1:1"]);
    assert!(page.contains(&format!("; native ({TAKEN}); ")), "{page}");
    assert!(page.contains("  native: protocol "), "{page}");
    assert!(page.contains("max wait 50ms; cache: off"), "{page}");
    let page = check(&[&model(not_taken())]);
    assert!(page.contains(&format!("; cpu ({REFUSED}")), "{page}");
    assert!(page.contains("  cpu: times-k10 "), "{page}");
    // Devices that are named are not the model's choice.
    let page = check(&[&model(bundle()), "accel.devices=[\"cpu\"]"]);
    assert!(page.contains("; cpu; ") && !page.contains("default:"), "{page}");
    // Each task has its own.
    let page = check(&[
        "task.one.depths=[10]",
        &format!("task.two.model={}", not_taken().display()),
        "task.three.devices=[\"simulated\"]",
        "task.three.depths=[3]",
    ]);
    let of =
        |task: &str| page.lines().find(|line| line.starts_with(&format!("  {task} ("))).unwrap();
    assert!(of("one").contains(TAKEN) && of("two").contains(REFUSED), "{page}");
    assert!(of("three").contains("; simulated; "), "{page}");
}

/// As where ONNX Runtime is not installed: the program alone in a folder has no library beside it.
#[test]
fn nobody_looks_for_a_library_that_no_model_needs() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("fenxi");
    std::fs::copy(fenxi(["model"]).get_program(), &program).unwrap();
    let alone = |args: &[&OsStr]| -> Finished {
        let mut command = Command::new(&program);
        command.args(args).env_remove("FENXI_ONNXRUNTIME").env_remove("ORT_DYLIB_PATH");
        run(command)
    };
    let (taken, not_taken, demo) = (bundle(), not_taken(), demo());
    let replay = |model: &PathBuf| {
        alone(&["replay".as_ref(), demo.as_ref(), "--model".as_ref(), model.as_ref()])
    };
    let summary = replay(&taken).expect_code(0).stderr;
    assert!(summary.contains("\ndevice    native (native ("), "{summary}");
    assert!(summary.contains(&format!("\ndevices   {TAKEN}\n")), "{summary}");
    assert!(!summary.contains("onnxruntime"), "{summary}");
    // Where it is needed, the error says what for.
    let refused = replay(&not_taken).expect_code(69).stderr;
    assert!(refused.contains("libonnxruntime.so") && refused.contains(REFUSED), "{refused}");
}

#[test]
fn what_the_engine_does_not_take_runs_on_onnx_runtime() {
    if !has_onnxruntime() {
        return skip("what_the_engine_does_not_take_runs_on_onnx_runtime", "ONNX Runtime");
    }
    let (model, demo) = (not_taken(), demo());
    let args = ["replay", demo.to_str().unwrap(), "--json", "--model", model.to_str().unwrap()];
    let summary = ran(&args).expect_code(0).json();
    assert_eq!(summary["devices"][0]["requested"], "cpu");
    assert_eq!(summary["devices"][0]["effective"], "CPUExecutionProvider");
    assert!(summary["devices_why"][0].as_str().unwrap().starts_with(REFUSED), "{summary}");
    let labelled = summary["labels"].as_object().unwrap().values();
    assert!(labelled.filter_map(Value::as_u64).sum::<u64>() > 0, "{summary}");
    // Nor is it the user's wish where the user names the engine.
    let engine = [&args[..], &["--set", "accel.devices=[\"native\"]"]].concat();
    let refused = ran(&engine).expect_code(69).stderr;
    assert!(refused.contains("device native: provider native does not run "), "{refused}");
}
