//! A model of two inputs, series and context, with an output column for "unknown": the bundle
//! `tests/bundles/context-k5`, whose model is written here.

use std::fs;
use std::time::Duration;

use accel::DeviceSpec;
use accel::onnx::{Library, OnnxDevice};
use accel::{
    Bundle, Classification, Device, FaultyDevice, Sizes, ThreadedDevice, check_golden, profile,
};

use crate::common::{WITH_CONTEXT, any, assert_has, library, mine, refused, root, with_context};
use crate::model::{self, Weights};
use crate::{changed, refusal};

/// For DNS, TLS and unknown: five lengths, the protocol, the port of the server.
const WEIGHTS: [Weights; 7] = {
    let length = [0.0, 0.002, 0.0005];
    [length, length, length, length, length, [0.3, 0.0, 0.1], [0.0, 0.0, 0.0001]]
};

fn cpu(library: &Library, bundle: &Bundle, sizes: Sizes) -> OnnxDevice {
    OnnxDevice::new(library, bundle, DeviceSpec::cpu(bundle, sizes)).unwrap()
}

/// Results and probabilities, the latter as bits, of one batch.
fn run(
    device: &mut OnnxDevice,
    series: &[Vec<f32>],
    contexts: &[Vec<f32>],
) -> (Vec<Classification>, Vec<u32>) {
    let rows = series.len();
    device.input(rows).copy_from_slice(&series.concat());
    device.context(rows).copy_from_slice(&contexts.concat());
    device.submit(rows).unwrap();
    let results = device.poll().unwrap().unwrap().to_vec();
    let bits = device.probabilities().iter().map(|p| p.to_bits());
    (results, bits.collect())
}

#[test]
fn the_bundle_holds_the_model_that_is_written_here() {
    let model = model::with_context(5, &WEIGHTS, ["N", "N"]);
    let committed = fs::read(root().join(WITH_CONTEXT).join("model.onnx")).unwrap();
    assert!(
        committed == model,
        "{WITH_CONTEXT}/model.onnx differs; write it again with its hash and golden outputs"
    );
}

#[test]
fn golden_outputs_agree_at_every_size() {
    let Some(library) = library("golden_outputs_agree_at_every_size") else {
        return;
    };
    let bundle = with_context();
    for sizes in [any(1), any(7), any(256), Sizes::Fixed(vec![1, 8])] {
        let report = check_golden(&bundle, &mut cpu(&library, &bundle, sizes.clone())).unwrap();
        assert!(report.agrees() && report.argmax_differences == 0, "at {sizes}: {report:?}");
    }
}

#[test]
fn a_wrapped_device_gets_the_context_too() {
    let Some(library) = library("a_wrapped_device_gets_the_context_too") else {
        return;
    };
    let bundle = with_context();
    let device = Box::new(cpu(&library, &bundle, any(4)));
    let device = Box::new(FaultyDevice::new(device, "error=9999".parse().unwrap()));
    let mut device = ThreadedDevice::new(device, |_| {}).unwrap();
    let report = check_golden(&bundle, &mut device).unwrap();
    assert!(report.agrees(), "{report:?}");
    let rows = &bundle.golden().inputs;
    assert!(profile::measure(&mut device, &[1, 4], rows, Duration::ZERO).is_ok());
    assert!(device.context(4).iter().all(|number| *number == 0.0));
}

#[test]
fn a_row_has_its_own_context_bit_for_bit_in_every_batch() {
    let Some(library) = library("a_row_has_its_own_context_bit_for_bit_in_every_batch") else {
        return;
    };
    let bundle = with_context();
    // One series with many contexts, so that nothing else can make a difference.
    let contexts: Vec<Vec<f32>> = (0..20u8).map(|at| vec![6.0, 100.0 * f32::from(at)]).collect();
    let series = vec![bundle.golden().inputs[2].clone(); contexts.len()];
    let mut device = cpu(&library, &bundle, any(contexts.len()));
    let (results, bits) = run(&mut device, &series, &contexts);
    let columns = bundle.shape().classes;
    assert!(bits.chunks(columns).is_sorted_by(|a, b| a[0] > b[0]));
    for size in [1, 2, 3] {
        let (mut sized, mut sized_bits) = (Vec::new(), Vec::new());
        for (series, contexts) in series.chunks(size).zip(contexts.chunks(size)) {
            let (results, bits) = run(&mut device, series, contexts);
            sized.extend(results);
            sized_bits.extend(bits);
        }
        assert_eq!((sized, sized_bits), (results.clone(), bits.clone()));
    }
}

#[test]
fn the_column_for_unknown_is_the_class_after_the_labels() {
    let Some(library) = library("the_column_for_unknown_is_the_class_after_the_labels") else {
        return;
    };
    let bundle = with_context();
    assert_eq!((bundle.labels().len(), bundle.shape().classes), (2, 3));
    let mut device = cpu(&library, &bundle, any(3));
    let series = [[0.0; 5], [1400.0; 5], [20.0, 0.0, 0.0, 0.0, 0.0]].map(Vec::from);
    let contexts = [[17.0, 53.0], [6.0, 443.0], [6.0, 60_000.0]].map(Vec::from);
    let (results, _) = run(&mut device, &series, &contexts);
    assert_eq!(results.iter().map(|it| it.class).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn a_context_that_model_and_manifest_do_not_share_is_refused() {
    let Some(library) = library("a_context_that_model_and_manifest_do_not_share_is_refused") else {
        return;
    };
    let fewer = |line: &str, numbers: usize| {
        let fields: Vec<_> = line.split(',').collect();
        fields[..fields.len() - numbers].join(",") + "\n"
    };
    let context = "context = [\"protocol\", \"server_port\"]\n";
    let section = "[context_input]\nname = \"context\"\n";
    for (numbers, edits, parts) in [
        (
            2,
            vec![(context, ""), (section, "")],
            vec![
                "its input is one of [\"series\", \"context\"]",
                "asks for only \"series\", float32 [N, 1, 5]",
            ],
        ),
        (
            1,
            vec![(context, "context = [\"protocol\"]\n")],
            vec![
                "its input of context is \"context\", float32 [N, 2]",
                "asks for \"context\", float32 [N, 1]",
            ],
        ),
        (
            0,
            vec![("name = \"context\"", "name = \"flow\"")],
            vec![
                "its input of context is not among [\"series\", \"context\"]",
                "asks for \"flow\", float32 [N, 2]",
            ],
        ),
        (
            0,
            vec![("name = \"series\"", "name = \"packets\"")],
            vec!["its input of series is not among", "asks for \"packets\", float32 [N, 1, 5]"],
        ),
    ] {
        let dir = changed(WITH_CONTEXT, |file, text| match file {
            "model.toml" => edits.iter().fold(text, |text, (from, to)| {
                assert!(text.contains(from), "{from:?} is in model.toml");
                text.replace(from, to)
            }),
            "golden/inputs.csv" => text.lines().map(|line| fewer(line, numbers)).collect(),
            _ => text,
        });
        assert_has(&refusal(&library, dir.path()), &parts);
    }
}

#[test]
fn a_bundle_with_context_for_a_model_of_one_input_is_refused() {
    let Some(library) = library("a_bundle_with_context_for_a_model_of_one_input_is_refused") else {
        return;
    };
    let dir = changed("models/app-id-k10", |file, text| match file {
        "model.toml" => text
            .replace("\n[input]", "\ncontext = [\"protocol\"]\n[input]")
            .replace("[output]", "[context_input]\nname = \"context\"\n[output]"),
        "golden/inputs.csv" => text.lines().map(|line| format!("{line},6\n")).collect(),
        _ => text,
    });
    assert_has(
        &refusal(&library, dir.path()),
        &["its input of context is not among [\"series\"]", "float32 [N, 1]"],
    );
}

#[test]
fn both_batch_dimensions_are_fixed() {
    let Some(library) = library("both_batch_dimensions_are_fixed") else {
        return;
    };
    for (batch, problem) in [
        (["N", "M"], None),
        (["N", ""], Some("its input \"context\" has no name")),
        (["", "N"], Some("its input \"series\" has no name")),
    ] {
        let model = model::with_context(5, &WEIGHTS, batch);
        let hash = model::sha256(&model);
        let dir = changed(WITH_CONTEXT, |file, text| match file {
            "model.toml" => text
                .lines()
                .map(|line| match line.starts_with("sha256") {
                    true => format!("sha256 = \"{hash}\"\n"),
                    false => format!("{line}\n"),
                })
                .collect(),
            _ => text,
        });
        fs::write(dir.path().join("model.onnx"), &model).unwrap();
        let bundle = Bundle::open(dir.path()).unwrap();
        let spec = mine(&bundle, "cpu", Sizes::Fixed(vec![8]));
        match problem {
            None => {
                let mut device = OnnxDevice::new(&library, &bundle, spec).unwrap();
                assert!(check_golden(&bundle, &mut device).unwrap().agrees());
            }
            Some(problem) => assert_has(&refused(&library, &bundle, spec), &[problem]),
        }
    }
}
