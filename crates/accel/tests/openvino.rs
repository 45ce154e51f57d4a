//! The provider `openvino` on a CPU, for which its wheel has kernels. A process can load only one
//! ONNX Runtime, so each library has a test binary of its own.

#![cfg(feature = "ort")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the helpers of tests may panic as the tests do"
)]

#[path = "onnx/common.rs"]
mod common;

use accel::onnx::{OnnxDevice, providers};
use accel::{Device, DeviceSpec, Sizes, check_golden};
use common::{any, assert_has, library_with, mine, refused, shipped, with_context};

#[test]
fn the_shipped_bundle_agrees_with_its_golden_outputs() {
    let test = "openvino: the_shipped_bundle_agrees_with_its_golden_outputs";
    let Some(library) = library_with(test, "openvino") else {
        return;
    };
    let bundle = shipped();
    assert_has(&providers(&library).concat(), &["OpenVINOExecutionProvider"]);
    for sizes in [any(1), any(100), Sizes::Fixed(vec![1, 8, 64])] {
        let spec = DeviceSpec {
            options: vec![("device_type".to_owned(), "CPU".to_owned())],
            ..mine(&bundle, "openvino", sizes.clone())
        };
        let mut device = OnnxDevice::new(&library, &bundle, spec).unwrap();
        assert_eq!(device.requested(), "mine");
        assert_eq!(device.effective(), "OpenVINOExecutionProvider (CPU)");
        let report = check_golden(&bundle, &mut device).unwrap();
        assert!(report.agrees() && report.argmax_differences == 0, "{sizes}: {report:?}");
    }
}

#[test]
fn a_model_with_context_agrees_with_its_golden_outputs() {
    let test = "openvino: a_model_with_context_agrees_with_its_golden_outputs";
    let Some(library) = library_with(test, "openvino") else {
        return;
    };
    let bundle = with_context();
    for sizes in [any(100), Sizes::Fixed(vec![1, 8])] {
        let spec = DeviceSpec {
            options: vec![("device_type".to_owned(), "CPU".to_owned())],
            ..mine(&bundle, "openvino", sizes.clone())
        };
        let mut device = OnnxDevice::new(&library, &bundle, spec).unwrap();
        let report = check_golden(&bundle, &mut device).unwrap();
        assert!(report.agrees(), "{sizes}: {report:?}");
    }
}

#[test]
fn the_reason_why_it_does_not_run_is_told() {
    let test = "openvino: the_reason_why_it_does_not_run_is_told";
    let Some(library) = library_with(test, "openvino") else {
        return;
    };
    let bundle = shipped();
    for (key, value, reason) in [
        ("device_type", "GPU.7", "GPU.7"),
        ("nonsense", "1", "Invalid provider_option key: nonsense"),
        ("num_of_threads", "many", "Number of threads should be a number"),
    ] {
        let spec = DeviceSpec {
            options: vec![(key.to_owned(), value.to_owned())],
            ..mine(&bundle, "openvino", any(8))
        };
        assert_has(
            &refused(&library, &bundle, spec),
            &["device mine", "provider openvino", "model.onnx", reason],
        );
    }
}
