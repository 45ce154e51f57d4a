//! Specifications of devices: fixed sizes, thresholds, and what is refused.

use accel::onnx::{OnnxDevice, plugin_devices, providers};
use accel::{Bundle, Device, DeviceSpec, Sizes, Thresholds, check_golden};

use crate::common::{any, assert_has, compiled, library, mine, refused, run, shipped};
use crate::model;

#[test]
fn fixed_sizes_give_what_any_size_gives_bit_for_bit() {
    let Some(library) = library("fixed_sizes_give_what_any_size_gives_bit_for_bit") else {
        return;
    };
    let bundle = shipped();
    let sizes = Sizes::Fixed(vec![1, 2, 8, 64]);
    let mut fixed = OnnxDevice::new(&library, &bundle, DeviceSpec::cpu(&bundle, sizes)).unwrap();
    let mut free = OnnxDevice::new(&library, &bundle, DeviceSpec::cpu(&bundle, any(64))).unwrap();
    let rows = &bundle.golden().inputs[..64];
    for size in [64, 8, 1, 2, 8] {
        for batch in rows.chunks(size) {
            assert_eq!(run(&mut fixed, batch).unwrap(), run(&mut free, batch).unwrap());
        }
    }
    assert!(fixed.submit(3).is_err());
    let report = check_golden(&bundle, &mut fixed).unwrap();
    assert!(report.agrees(), "{report:?}");
}

#[test]
fn a_batch_dimension_without_a_name_cannot_be_fixed() {
    let Some(library) = library("a_batch_dimension_without_a_name_cannot_be_fixed") else {
        return;
    };
    let model = model::chain(&["Flatten", "Softmax"], &["", "1", "3"], &["", "3"]);
    let dir = model::bundle_of(&model, "1,2,3\n", "0.1,0.2,0.7\n");
    let bundle = Bundle::open(dir.path()).unwrap();
    assert!(OnnxDevice::new(&library, &bundle, DeviceSpec::cpu(&bundle, any(8))).is_ok());
    let spec = mine(&bundle, "cpu", Sizes::Fixed(vec![8]));
    assert_has(&refused(&library, &bundle, spec), &["device mine", "model.onnx", "has no name"]);
}

#[test]
fn a_class_has_a_threshold_of_its_own() {
    let Some(library) = library("a_class_has_a_threshold_of_its_own") else {
        return;
    };
    let bundle = shipped();
    let rows = &bundle.golden().inputs[..];
    let classes = |thresholds: Thresholds| -> Vec<u16> {
        let spec = DeviceSpec { thresholds, ..DeviceSpec::cpu(&bundle, any(rows.len())) };
        let mut device = OnnxDevice::new(&library, &bundle, spec).unwrap();
        let (results, _) = run(&mut device, rows).unwrap();
        results.iter().map(|result| result.class).collect()
    };
    let mut thresholds = Thresholds::from_bundle(&bundle);
    assert_eq!(thresholds.get(0), bundle.min_confidence());
    thresholds.all(0.0);
    let before = classes(thresholds.clone());
    let strict = before[0];
    thresholds.set(usize::from(strict), 1.1);
    let unknown = bundle.labels().len() as u16;
    let expected: Vec<u16> =
        before.iter().map(|&class| if class == strict { unknown } else { class }).collect();
    assert_ne!(before, expected);
    assert_eq!(classes(thresholds), expected);
}

#[test]
fn a_provider_that_the_library_lacks_is_named() {
    let Some(library) = library("a_provider_that_the_library_lacks_is_named") else {
        return;
    };
    assert_eq!(providers(&library), ["CPUExecutionProvider"]);
    let bundle = shipped();
    let path = library.path().display().to_string();
    for provider in ["openvino", "cuda", "tensorrt", "cann", "qnn"] {
        let spec = mine(&bundle, provider, Sizes::Fixed(vec![8]));
        let lacks = format!("has no provider {provider} (it has CPUExecutionProvider)");
        assert_has(&refused(&library, &bundle, spec), &["device mine", &path, &lacks]);
    }
}

#[test]
fn what_no_device_can_have_is_refused() {
    let Some(library) = library("what_no_device_can_have_is_refused") else {
        return;
    };
    let bundle = shipped();
    let cpu = || mine(&bundle, "cpu", any(8));
    let mut option = cpu();
    option.options = vec![("nonsense".to_owned(), "1".to_owned())];
    let mut plugin = cpu();
    plugin.plugin = Some("/nowhere.so".into());
    let mut nul = mine(&bundle, "openvino", any(8));
    nul.options = vec![("device_type\0".to_owned(), "CPU".to_owned())];
    for (spec, problem) in [
        (option, "provider cpu has no options, but nonsense is given"),
        (plugin, "provider cpu takes no plug-in library"),
        (nul, "NUL"),
        (mine(&bundle, "qnn", any(8)), "fixed batch sizes only"),
        (mine(&bundle, "tensorrt", any(8)), "fixed batch sizes only"),
        (mine(&bundle, "plugin", any(8)), "needs the path of its library"),
        (mine(&bundle, "cpu", any(0)), "batch sizes"),
        (mine(&bundle, "cpu", Sizes::Fixed(vec![])), "batch sizes"),
        (mine(&bundle, "cpu", Sizes::Fixed(vec![8, 8])), "[8, 8]"),
    ] {
        assert_has(&refused(&library, &bundle, spec), &["device mine", problem]);
    }
}

#[test]
fn a_file_that_is_no_plug_in_is_refused() {
    let Some(library) = library("a_file_that_is_no_plug_in_is_refused") else {
        return;
    };
    let bundle = shipped();
    let missing = plugin_devices(&library, "/nowhere.so".as_ref()).unwrap_err();
    assert_has(&missing, &["/nowhere.so", "No such file"]);
    // A library, and no plug-in.
    let spec =
        DeviceSpec { plugin: Some(library.path().to_owned()), ..mine(&bundle, "plugin", any(8)) };
    assert_has(
        &refused(&library, &bundle, spec),
        &["device mine", "libonnxruntime.so", "CreateEpFactories"],
    );
}

#[test]
fn a_plug_in_that_finds_no_device_is_refused() {
    let test = "a_plug_in_that_finds_no_device_is_refused";
    let Some(library) = library(test) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    // The two functions of a plug-in; both return "no error".
    let source = "
        void *CreateEpFactories(const char *name, const void *api, const void *logger,
                                void **factories, unsigned long room, unsigned long *made) \
                                { *made = 0; return 0; }
        void *ReleaseEpFactory(void *factory) { return 0; }";
    let Some(file) = compiled(test, dir.path().join("libidle.so"), source) else {
        return;
    };
    let bundle = shipped();
    assert!(plugin_devices(&library, &file).unwrap().is_empty());
    let spec = DeviceSpec { plugin: Some(file), ..mine(&bundle, "plugin", any(8)) };
    assert_has(
        &refused(&library, &bundle, spec),
        &["device mine", "libidle.so", "finds no device"],
    );
}
