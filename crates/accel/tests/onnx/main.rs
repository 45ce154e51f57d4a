//! The device `cpu` on the real ONNX Runtime, with the shipped bundle, with bundles of other units
//! and features, and with models that must be refused; and devices that the plain library does not
//! have.
//!
//! The tests need the library at `target/onnxruntime/` (`make onnxruntime`). Without it each test
//! says on stderr that it was skipped, or fails where `FENXI_REQUIRE_ALL=1`.

#![cfg(feature = "ort")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the helpers of tests may panic as the tests do"
)]

mod common;
mod context;
mod model;
mod specs;

use std::fs;
use std::path::Path;

use accel::onnx::{Library, OnnxDevice, load};
use accel::{Bundle, Classification, Device, DeviceError, DeviceSpec, check_golden};
use common::{any, assert_has, library, refused, root, run, shipped};

/// The shipped bundle in a temporary folder, its manifest and golden files changed by `change`.
fn shipped_but(change: impl Fn(&str, String) -> String) -> tempfile::TempDir {
    changed("models/app-id-k10", change)
}

/// As [`shipped_but`], for the bundle in this folder of the repository.
fn changed(folder: &str, change: impl Fn(&str, String) -> String) -> tempfile::TempDir {
    let from = root().join(folder);
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("golden")).unwrap();
    for file in ["model.onnx", "ranges.csv"] {
        if from.join(file).exists() {
            fs::copy(from.join(file), dir.path().join(file)).unwrap();
        }
    }
    for file in ["model.toml", "golden/inputs.csv", "golden/outputs.csv"] {
        let text = fs::read_to_string(from.join(file)).unwrap();
        fs::write(dir.path().join(file), change(file, text)).unwrap();
    }
    dir
}

/// The message with which a device refuses the bundle in `dir`.
fn refusal(library: &Library, dir: &Path) -> String {
    let bundle = Bundle::open(dir).unwrap();
    let message = refused(library, &bundle, DeviceSpec::cpu(&bundle, any(8)));
    assert_has(&message, &["model.onnx"]);
    message
}

#[test]
fn the_shipped_bundle_agrees_with_its_golden_outputs() {
    let Some(library) = library("the_shipped_bundle_agrees_with_its_golden_outputs") else {
        return;
    };
    let bundle = shipped();
    for cap in [1, 5, 256] {
        let mut device =
            OnnxDevice::new(&library, &bundle, DeviceSpec::cpu(&bundle, any(cap))).unwrap();
        let report = check_golden(&bundle, &mut device).unwrap();
        assert!(report.agrees() && report.argmax_differences == 0, "at {cap} rows: {report:?}");
        assert_eq!(report.rows, bundle.golden().inputs.len());
    }
}

#[test]
fn bundles_of_other_units_and_features_agree_with_their_golden_outputs() {
    let test = "bundles_of_other_units_and_features_agree_with_their_golden_outputs";
    let Some(library) = library(test) else {
        return;
    };
    for (name, unit, shape) in [("data-k3", "data", [1, 3]), ("times-k10", "packet", [2, 10])] {
        let bundle = Bundle::open(&root().join("tests/bundles").join(name)).unwrap();
        assert_eq!(bundle.unit(), unit);
        assert_eq!([bundle.shape().channels, bundle.k()], shape);
        for cap in [1, 7, 256] {
            let spec = DeviceSpec::cpu(&bundle, any(cap));
            let mut device = OnnxDevice::new(&library, &bundle, spec).unwrap();
            let report = check_golden(&bundle, &mut device).unwrap();
            assert!(
                report.agrees() && report.argmax_differences == 0,
                "{name} at {cap} rows: {report:?}"
            );
        }
    }
}

#[test]
fn golden_outputs_of_another_model_do_not_agree() {
    let Some(library) = library("golden_outputs_of_another_model_do_not_agree") else {
        return;
    };
    // The rows of the outputs in another order.
    let dir = shipped_but(|file, text| match file {
        "golden/outputs.csv" => text.lines().rev().map(|line| format!("{line}\n")).collect(),
        _ => text,
    });
    let bundle = Bundle::open(dir.path()).unwrap();
    let mut device = OnnxDevice::new(&library, &bundle, DeviceSpec::cpu(&bundle, any(16))).unwrap();
    let report = check_golden(&bundle, &mut device).unwrap();
    assert!(!report.agrees() && report.argmax_differences > 0, "{report:?}");
}

#[test]
fn a_row_gets_the_same_result_bit_for_bit_in_every_batch() {
    let Some(library) = library("a_row_gets_the_same_result_bit_for_bit_in_every_batch") else {
        return;
    };
    let bundle = shipped();
    let mut device =
        OnnxDevice::new(&library, &bundle, DeviceSpec::cpu(&bundle, any(300))).unwrap();
    // Golden rows, and rows made of them with every length changed a little.
    let golden = bundle.golden().inputs.iter().cycle();
    let rows: Vec<Vec<f32>> = golden
        .take(300)
        .enumerate()
        .map(|(at, row)| row.iter().map(|x| x + (at as f32) * x.signum()).collect())
        .collect();
    let (results, probabilities) = run(&mut device, &rows).unwrap();
    let bits: Vec<u32> = probabilities.iter().map(|p| p.to_bits()).collect();
    for size in [1, 2, 3, 7, 16, 64, 255] {
        let (mut sized, mut sized_bits) = (Vec::new(), Vec::new());
        for batch in rows.chunks(size) {
            let (results, probabilities) = run(&mut device, batch).unwrap();
            sized.extend(results);
            sized_bits.extend(probabilities.iter().map(|p| p.to_bits()));
        }
        assert_eq!(sized, results, "batches of {size}");
        let differ = sized_bits.iter().zip(&bits).filter(|(a, b)| a != b).count();
        assert_eq!(differ, 0, "of {} probabilities, in batches of {size}", bits.len());
    }
}

#[test]
fn a_bundle_of_another_k_is_refused() {
    let Some(library) = library("a_bundle_of_another_k_is_refused") else {
        return;
    };
    let shorter = |line: &str| format!("{}\n", line.rsplit_once(',').unwrap().0);
    let dir = shipped_but(|file, text| match file {
        "model.toml" => text.replace("k = 10", "k = 9"),
        "golden/inputs.csv" => text.lines().map(shorter).collect(),
        _ => text,
    });
    let message = refusal(&library, dir.path());
    assert_has(
        &message,
        &[
            "its input is \"series\", float32 [N, 1, 10]",
            "model.toml asks for \"series\", float32 [N, 1, 9]",
        ],
    );
}

#[test]
fn labels_that_are_not_the_output_columns_are_refused() {
    let Some(library) = library("labels_that_are_not_the_output_columns_are_refused") else {
        return;
    };
    let dir = shipped_but(|file, text| match file {
        "model.toml" => {
            let first = "[[labels]]\n";
            let one_more = format!("{first}name = \"one more\"\ntaxonomy = \"none\"\n\n{first}");
            text.replacen(first, &one_more, 1)
        }
        "golden/outputs.csv" => text.lines().map(|line| format!("{line},0\n")).collect(),
        _ => text,
    });
    // The last column is "unknown".
    let columns = shipped().labels().len() + 1;
    let message = refusal(&library, dir.path());
    assert_has(&message, &[&format!("its output is \"probabilities\", float32 [N, {columns}]")]);
    assert_has(&message, &[&format!("float32 [N, {}]", columns + 1)]);
}

#[test]
fn other_names_are_refused() {
    let Some(library) = library("other_names_are_refused") else {
        return;
    };
    for (from, to, what) in
        [("series", "packets", "its input"), ("probabilities", "scores", "its output")]
    {
        let dir = shipped_but(|file, text| match file {
            "model.toml" => {
                text.replace(&format!("name = \"{from}\""), &format!("name = \"{to}\""))
            }
            _ => text,
        });
        assert_has(
            &refusal(&library, dir.path()),
            &[what, &format!("\"{from}\""), &format!("asks for \"{to}\"")],
        );
    }
}

#[test]
fn a_file_that_is_no_model_is_refused() {
    let Some(library) = library("a_file_that_is_no_model_is_refused") else {
        return;
    };
    // An empty ModelProto.
    let dir = model::bundle_of(b"", "1,2,3\n", "0.5,0.5\n");
    assert_has(&refusal(&library, dir.path()), &["refused by ONNX Runtime"]);
    let dir = model::bundle_of(b"this is no ONNX graph", "1,2,3\n", "0.5,0.5\n");
    let message = Bundle::open(dir.path()).unwrap_err().to_string();
    assert_has(&message, &["model.onnx: is not an ONNX model"]);
}

#[test]
fn a_fixed_batch_axis_is_refused() {
    let Some(library) = library("a_fixed_batch_axis_is_refused") else {
        return;
    };
    let model = model::chain(&["Flatten", "Softmax"], &["N", "1", "3"], &["1", "3"]);
    assert_has(
        &refusal(&library, model::bundle_of(&model, "1,2,3\n", "0,0,1\n").path()),
        &["float32 [1, 3]", "N free"],
    );
}

#[test]
fn a_model_changed_after_it_was_opened_is_refused() {
    let Some(library) = library("a_model_changed_after_it_was_opened_is_refused") else {
        return;
    };
    let dir = model::bundle_of(
        &model::chain(&["Flatten", "Softmax"], &["N", "1", "3"], &["N", "3"]),
        "1,2,3\n",
        "0.1,0.2,0.7\n",
    );
    let bundle = Bundle::open(dir.path()).unwrap();
    assert!(OnnxDevice::new(&library, &bundle, DeviceSpec::cpu(&bundle, any(8))).is_ok());
    fs::write(
        bundle.model_path(),
        model::chain(&["Flatten", "Sqrt"], &["N", "1", "3"], &["N", "3"]),
    )
    .unwrap();
    let changed = OnnxDevice::new(&library, &bundle, DeviceSpec::cpu(&bundle, any(8)));
    let error = changed.err().unwrap().to_string();
    assert!(error.contains("its SHA-256 is"), "{error}");
}

#[test]
fn a_width_that_shows_only_in_a_run_is_refused_by_the_first() {
    let Some(library) = library("a_width_that_shows_only_in_a_run_is_refused_by_the_first") else {
        return;
    };
    let model = model::chain(&["Flatten", "Softmax"], &["N", "1", "L"], &["N", "M"]);
    let dir = model::bundle_of(&model, "1,2,3\n", "0.5,0.5\n");
    assert_has(
        &refusal(&library, dir.path()),
        &["first run", "float32 [8, 3]", "instead of float32 [8, 2]"],
    );
}

#[test]
fn a_model_that_gives_no_probabilities_is_refused_by_the_first_run() {
    let Some(library) = library("a_model_that_gives_no_probabilities_is_refused_by_the_first_run")
    else {
        return;
    };
    let dir = model::bundle_of(
        &model::chain(&["Flatten"], &["N", "1", "3"], &["N", "3"]),
        "0,1,40\n",
        "0,0,1\n",
    );
    assert_has(
        &refusal(&library, dir.path()),
        &["first run", "40 for row 0, class 2", "not a probability"],
    );
}

#[test]
fn a_nan_fails_its_batch_and_the_device_goes_on() {
    let Some(library) = library("a_nan_fails_its_batch_and_the_device_goes_on") else {
        return;
    };
    // The square root of a negative length is NaN.
    let dir = model::bundle_of(
        &model::chain(&["Flatten", "Sqrt"], &["N", "1", "3"], &["N", "3"]),
        "0,0.25,1\n",
        "0,0.5,1\n",
    );
    let bundle = Bundle::open(dir.path()).unwrap();
    let mut device = OnnxDevice::new(&library, &bundle, DeviceSpec::cpu(&bundle, any(4))).unwrap();
    let error = run(&mut device, &[vec![0.0, 0.25, 1.0], vec![-1.0, 0.0, 0.0]]).unwrap_err();
    assert!(
        matches!(error, DeviceError::NotAProbability { row: 1, class: 0, value } if value.is_nan()),
        "{error}"
    );
    let (results, _) = run(&mut device, &[vec![0.0, 0.25, 0.0]]).unwrap();
    assert_eq!(results, [Classification { class: 1, confidence: 0.5 }]);
}

#[test]
fn sizes_it_does_not_take_are_refused() {
    let Some(library) = library("sizes_it_does_not_take_are_refused") else {
        return;
    };
    let mut device =
        OnnxDevice::new(&library, &shipped(), DeviceSpec::cpu(&shipped(), any(4))).unwrap();
    assert!(matches!(device.submit(5), Err(DeviceError::Rows { rows: 5, .. })));
    assert!(matches!(device.submit(0), Err(DeviceError::Rows { rows: 0, .. })));
    assert!(device.is_idle());
    device.submit(4).unwrap();
    assert!(matches!(device.submit(1), Err(DeviceError::Busy { .. })));
}

#[test]
fn a_process_has_one_library() {
    let Some(library) = library("a_process_has_one_library") else {
        return;
    };
    assert_eq!(load(Some(library.path())).unwrap().path(), library.path());
    let other = tempfile::NamedTempFile::new().unwrap();
    let error = load(Some(other.path())).unwrap_err().to_string();
    assert!(error.contains("because this process already uses"), "{error}");
}

#[test]
fn the_library_tells_its_version() {
    let Some(library) = library("the_library_tells_its_version") else {
        return;
    };
    let pinned = fs::read_to_string(root().join("scripts/onnxruntime/onnxruntime.txt")).unwrap();
    let version = library.version().expect("official builds carry their version");
    assert!(
        pinned.contains(&format!("onnxruntime=={version} ")),
        "{version} is not the pinned one"
    );
}
