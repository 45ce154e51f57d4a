use std::path::Path;

use super::*;
use crate::golden::check_golden;
use crate::thresholds::Thresholds;

fn bundle(folder: &str) -> Bundle {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    Bundle::open(&root.join(folder)).unwrap()
}

fn spec(bundle: &Bundle, cap: usize) -> DeviceSpec {
    DeviceSpec {
        name: "mine".to_owned(),
        provider: &NATIVE,
        ..DeviceSpec::cpu(bundle, Sizes::Any { cap })
    }
}

fn device(bundle: &Bundle, cap: usize) -> NativeDevice {
    NativeDevice::new(spec(bundle, cap), bundle).unwrap()
}

/// Fills the input with these rows of series and contexts, and returns the results.
fn answers(
    device: &mut NativeDevice,
    rows: &[(Vec<f32>, Vec<f32>)],
) -> Result<Vec<Classification>, DeviceError> {
    let series: Vec<f32> = rows.iter().flat_map(|(series, _)| series).copied().collect();
    let contexts: Vec<f32> = rows.iter().flat_map(|(_, context)| context).copied().collect();
    device.input(rows.len()).copy_from_slice(&series);
    device.context(rows.len()).copy_from_slice(&contexts);
    device.submit(rows.len())?;
    assert!(!device.is_idle());
    let results = device.poll().unwrap()?.to_vec();
    assert!(device.is_idle() && device.poll().is_none());
    Ok(results)
}

fn golden_rows(bundle: &Bundle) -> Vec<(Vec<f32>, Vec<f32>)> {
    let golden = bundle.golden();
    golden.inputs.iter().cloned().zip(golden.contexts.iter().cloned()).collect()
}

/// Four networks in integers, trees, and a network in floats.
const TAKEN: [&str; 6] = [
    "models/protocol",
    "models/protocol-small",
    "models/app-id-k10",
    "models/fenxi-cnn-k10",
    "models/iot-family",
    "tests/bundles/data-k3",
];

#[test]
fn bundles_agree_with_their_golden_outputs() {
    for folder in TAKEN {
        let bundle = bundle(folder);
        for cap in [1, 5, 256] {
            let mut device = device(&bundle, cap);
            let report = check_golden(&bundle, &mut device).unwrap();
            assert!(report.agrees(), "{folder} at {cap} rows: {report:?}");
            let is_float = ["models/iot-family", "tests/bundles/data-k3"].contains(&folder);
            assert_eq!(device.is_integer(), !is_float, "{folder}");
        }
    }
}

#[test]
fn a_sure_golden_class_is_never_another() {
    for folder in TAKEN {
        let bundle = bundle(folder);
        let mut spec = spec(&bundle, 64);
        spec.thresholds.all(0.0);
        let mut device = NativeDevice::new(spec, &bundle).unwrap();
        let results = answers(&mut device, &golden_rows(&bundle)).unwrap();
        for (result, golden) in results.iter().zip(&bundle.golden().outputs) {
            let class = crate::argmax(golden);
            assert!(golden[class] < 0.85 || usize::from(result.class) == class, "{folder}");
        }
    }
}

#[test]
fn a_model_that_the_engine_does_not_know_is_refused_by_its_node() {
    for folder in ["tests/bundles/context-k5", "tests/bundles/times-k10"] {
        let bundle = bundle(folder);
        let error = NativeDevice::new(spec(&bundle, 8), &bundle).err().unwrap();
        assert!(matches!(error, OpenError::Unavailable(_)));
        let message = error.to_string();
        for part in ["device mine: ", folder, "node '", "; use the device cpu"] {
            assert!(message.contains(part), "no {part:?} in {message:?}");
        }
        assert!(!message.contains('\n'), "{message:?} is one line");
    }
}

#[test]
fn shipped_bundles_in_8_bits_agree() {
    for folder in ["models/protocol-int8", "models/app-id-k10-int8"] {
        let bundle = bundle(folder);
        let report = check_golden(&bundle, &mut device(&bundle, 8)).unwrap();
        assert!(report.agrees(), "{folder}: {report:?}");
    }
}

#[test]
fn a_row_has_the_same_answer_in_every_batch() {
    for folder in TAKEN {
        let bundle = bundle(folder);
        let rows = golden_rows(&bundle);
        let mut device = device(&bundle, 64);
        let together = answers(&mut device, &rows).unwrap();
        for size in [1, 3, 32, 33] {
            let apart = rows.chunks(size).flat_map(|rows| answers(&mut device, rows).unwrap());
            assert_eq!(apart.collect::<Vec<_>>(), together, "{folder}, {size} rows");
        }
    }
}

#[test]
fn any_float_is_an_input() {
    for folder in TAKEN {
        let bundle = bundle(folder);
        let mut device = device(&bundle, 64);
        let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -0.5, 1e-40, 70_000.0];
        for odd in odd {
            let rows = golden_rows(&bundle).into_iter().enumerate();
            let rows = rows.map(|(at, (mut series, mut context))| {
                let len = series.len();
                series[at % len] = odd;
                context.fill(odd);
                (series, context)
            });
            let results = answers(&mut device, &rows.collect::<Vec<_>>()).unwrap();
            assert!(results.iter().all(|it| is_probability(it.confidence)), "{folder}, {odd}");
        }
    }
}

#[test]
fn an_unsure_answer_is_unknown() {
    let bundle = bundle("models/app-id-k10");
    let mut spec = spec(&bundle, 64);
    spec.thresholds.all(1.0);
    let mut device = NativeDevice::new(spec, &bundle).unwrap();
    let results = answers(&mut device, &golden_rows(&bundle)).unwrap();
    let unknown = |it: &Classification| usize::from(it.class) == bundle.labels().len();
    let mut unsure = results.iter().filter(|it| it.confidence < 1.0).peekable();
    assert!(unsure.peek().is_some() && unsure.all(unknown));
}

#[test]
fn a_busy_device_and_another_size_are_refused() {
    let bundle = bundle("models/app-id-k10");
    let mut device = device(&bundle, 4);
    for rows in [0, 5] {
        assert!(matches!(device.submit(rows), Err(DeviceError::Rows { .. })));
    }
    device.submit(4).unwrap();
    assert!(matches!(device.submit(4), Err(DeviceError::Busy { .. })));
    assert_eq!(device.poll().unwrap().unwrap().len(), 4);
    assert!(device.poll().is_none());

    let mut spec = spec(&bundle, 4);
    spec.sizes = Sizes::Fixed(vec![2, 4]);
    let mut device = NativeDevice::new(spec, &bundle).unwrap();
    assert!(matches!(device.submit(3), Err(DeviceError::Rows { .. })));
    device.submit(2).unwrap();
}

#[test]
fn a_specification_that_does_not_fit_is_refused() {
    let bundle = bundle("models/app-id-k10");
    let other = Thresholds::from_bundle(&self::bundle("models/protocol"));
    let good = spec(&bundle, 4);
    for (spec, part) in [
        (DeviceSpec { sizes: Sizes::Any { cap: 0 }, ..good.clone() }, "batch sizes"),
        (DeviceSpec { options: vec![("a".into(), "b".into())], ..good.clone() }, "no options"),
        (DeviceSpec { plugin: Some("p.so".into()), ..good.clone() }, "no plug-in"),
        (DeviceSpec { thresholds: other, ..good.clone() }, "another bundle"),
    ] {
        let error = NativeDevice::new(spec, &bundle).err().unwrap();
        assert!(matches!(&error, OpenError::Spec(message) if message.contains(part)), "{error}");
    }
}

#[test]
fn devices_of_a_model_share_its_network() {
    let bundle = bundle("models/fenxi-cnn-k10");
    let [one, two] = [8, 64].map(|cap| device(&bundle, cap));
    assert!(Arc::ptr_eq(&one.network, &two.network));
    let isa = one.network.isa();
    drop((one, two));
    assert_eq!(device(&bundle, 8).network.isa(), isa);
    let row_ns = native_row_ns(&bundle).unwrap();
    assert!(row_ns > 0.0 && row_ns < 1e6, "{row_ns}");
}
