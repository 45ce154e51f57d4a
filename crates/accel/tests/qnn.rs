//! The provider `qnn`, a plug-in, with the library for x86_64 that simulates the NPU: same results,
//! slowly.

#![cfg(feature = "ort")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the helpers of tests may panic as the tests do"
)]

#[path = "onnx/common.rs"]
mod common;
#[path = "onnx/model.rs"]
mod model;

use std::path::PathBuf;

use accel::onnx::{Library, OnnxDevice, plugin_devices};
use accel::{Bundle, Device, DeviceSpec, Sizes, check_golden};
use common::{assert_has, fetched, library, mine, refused, shipped};

/// The plain library, and the folder of the plug-in.
fn found(test: &str) -> Option<(Library, PathBuf)> {
    let file = "onnxruntime-qnn/libonnxruntime_providers_qnn.so";
    let plugin = fetched(test, file, "scripts/onnxruntime/fetch --provider qnn")?;
    Some((library(test)?, plugin))
}

/// A device for batches of eight on the plug-in, with a back end.
fn spec(bundle: &Bundle, plugin: PathBuf, backend: PathBuf) -> DeviceSpec {
    DeviceSpec {
        options: vec![("backend_path".to_owned(), backend.display().to_string())],
        plugin: Some(plugin),
        ..mine(bundle, "qnn", Sizes::Fixed(vec![8]))
    }
}

#[test]
fn the_shipped_bundle_agrees_with_its_golden_outputs() {
    let test = "qnn: the_shipped_bundle_agrees_with_its_golden_outputs";
    let Some((library, plugin)) = found(test) else {
        return;
    };
    let bundle = shipped();
    let devices = plugin_devices(&library, &plugin).unwrap();
    assert_has(&devices[0], &["qnn (CPU, "]);
    let backend = plugin.with_file_name("libQnnHtp.so");
    let mut device = OnnxDevice::new(&library, &bundle, spec(&bundle, plugin, backend)).unwrap();
    assert_eq!(device.effective(), devices[0]);
    let report = check_golden(&bundle, &mut device).unwrap();
    assert!(report.agrees() && report.argmax_differences == 0, "{report:?}");
}

#[test]
fn a_back_end_that_is_missing_is_named_and_the_cpu_does_not_step_in() {
    let test = "qnn: a_back_end_that_is_missing_is_named_and_the_cpu_does_not_step_in";
    let Some((library, plugin)) = found(test) else {
        return;
    };
    let bundle = shipped();
    let spec = spec(&bundle, plugin, "/nowhere/libQnnHtp.so".into());
    assert_has(
        &refused(&library, &bundle, spec),
        &["device mine", "left to the CPU", "/nowhere/libQnnHtp.so"],
    );
}

#[test]
fn a_model_that_it_takes_in_part_is_refused() {
    let test = "qnn: a_model_that_it_takes_in_part_is_refused";
    let Some((library, plugin)) = found(test) else {
        return;
    };
    let chain = ["Flatten", "Acosh", "Softmax"];
    let model = model::chain(&chain, &["N", "1", "3"], &["N", "3"]);
    let dir = model::bundle_of(&model, "1,2,3\n", "0.1,0.2,0.7\n");
    let bundle = Bundle::open(dir.path()).unwrap();
    let backend = plugin.with_file_name("libQnnHtp.so");
    let spec = spec(&bundle, plugin, backend);
    assert_has(
        &refused(&library, &bundle, spec),
        &["device mine", "provider qnn", "left to the CPU"],
    );
}
