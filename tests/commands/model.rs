//! `model info` and `model check`.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::ran;
use crate::common::{
    Finished, SIMULATED, bundle, copy_bundle, demo, fenxi, has_onnxruntime, int8_bundle, labels,
    root, run, skip,
};

#[test]
fn model_info_says_what_the_bundle_says() {
    let told =
        ran(&["model".as_ref(), "info".as_ref(), bundle().as_os_str()]).expect_code(0).stdout;
    let manifest: toml::Table =
        fs::read_to_string(bundle().join("model.toml")).unwrap().parse().unwrap();
    for part in ["name", "version", "sha256"] {
        assert!(told.contains(manifest[part].as_str().unwrap()), "{part}: {told}");
    }
    assert!(told.contains("float32 [N, 1, 10]"), "{told}");
    let named: Vec<_> = told
        .lines()
        .filter_map(|line| line.strip_prefix("label "))
        .map(|line| line.split_whitespace().next().unwrap())
        .collect();
    let mut names = labels(&bundle());
    assert_eq!(names.pop().as_deref(), Some("unknown"));
    assert_eq!(named, names);
    ran(&["model", "info", "/nowhere"]).expect_code(66);

    let dir = bundle();
    let told = ran(&["model".as_ref(), "info".as_ref(), "-j".as_ref(), dir.as_os_str()]);
    let told: Value = serde_json::from_str(&told.expect_code(0).stdout).unwrap();
    for part in ["name", "version", "sha256", "precision"] {
        assert_eq!(told[part].as_str(), manifest[part].as_str(), "{part}");
    }
    let confidence = manifest["min_confidence"].as_float();
    assert_eq!(told["min_confidence"].as_f64(), confidence);
    let named: Vec<_> = told["labels"]
        .as_array()
        .unwrap()
        .iter()
        .map(|label| label["name"].as_str().unwrap())
        .collect();
    let mut names = labels(&bundle());
    assert_eq!(names.pop().as_deref(), Some("unknown"));
    assert_eq!(named, names);
    assert_eq!(told["input"]["shape"], serde_json::json!(["N", 1, 10]));
}

#[test]
fn model_check_compares_with_the_golden_outputs() {
    if !has_onnxruntime() {
        return skip("model_check_compares_with_the_golden_outputs", "ONNX Runtime");
    }
    let told =
        ran(&["model".as_ref(), "check".as_ref(), bundle().as_os_str()]).expect_code(0).stdout;
    assert!(
        told.contains("golden outputs agree: ") && told.contains(" 0 with another class"),
        "{told}"
    );

    assert!(
        told.contains("\non native (") && told.contains("):\n  golden inputs: same class for 64 "),
        "{told}"
    );

    // One probability of one row a thousandth off.
    let dir = copy(&bundle());
    let outputs = dir.path().join("golden/outputs.csv");
    let text = fs::read_to_string(&outputs).unwrap();
    let (first, rest) = text.split_once(',').unwrap();
    fs::write(&outputs, format!("{},{rest}", first.parse::<f64>().unwrap() - 0.001)).unwrap();
    let refused =
        ran(&["model".as_ref(), "check".as_ref(), dir.path().as_os_str()]).expect_code(65);
    assert_eq!((refused.stdout.as_str(), refused.stderr.lines().count()), ("", 1));
    assert!(
        refused.stderr.contains("golden outputs differ by more than 1e-4: "),
        "{}",
        refused.stderr
    );
}

/// The engine needs no library; what it does not know it refuses by the name of a node.
#[test]
fn model_check_without_onnx_runtime_runs_the_engine() {
    let check = |bundle: &Path, more: &[&OsStr]| {
        // The program alone in a folder has no library beside it.
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("fenxi");
        fs::copy(fenxi(["model"]).get_program(), &program).unwrap();
        let mut command = std::process::Command::new(program);
        command.args(["model", "check"]).arg(bundle).args(more);
        command.env_remove("FENXI_ONNXRUNTIME").env_remove("ORT_DYLIB_PATH");
        run(command)
    };
    let report = check(&bundle(), &["--json".as_ref()]).expect_code(0).json();
    assert!(report["golden"]["device"].as_str().unwrap().starts_with("native ("), "{report}");
    assert!(report["refused"][0].as_str().unwrap().contains("libonnxruntime.so"), "{report}");
    let unknown = root().join("tests/bundles/times-k10");
    let refused = check(&unknown, &[]).expect_code(69);
    assert!(refused.stderr.contains("libonnxruntime.so"), "{}", refused.stderr);

    if has_onnxruntime() {
        let told = ran(&["model".as_ref(), "check".as_ref(), unknown.as_os_str()]);
        let told = told.expect_code(0).stdout;
        assert!(told.contains("device native: provider native does not run "), "{told}");
        assert!(told.contains(": node '") && told.contains("; use the device cpu\n"), "{told}");
    }
}

#[test]
fn model_check_says_what_int8_loses() {
    let test = "model_check_says_what_int8_loses";
    if !has_onnxruntime() {
        return skip(test, "ONNX Runtime");
    }
    let int8 = int8_bundle();
    let told = against(&int8, &bundle(), &[]).expect_code(0).stdout;
    assert!(told.contains("app-id-k10-int8 1.0.2 (int8): golden outputs agree: "), "{told}");
    assert!(
        told.contains("against app-id-k10 1.0.2 (fp32):\n  golden inputs: same class for "),
        "{told}"
    );

    // Two flows that the model knows, a label that was guessed, a flow that is too short.
    let dir = tempfile::tempdir().unwrap();
    let table = dir.path().join("flows.csv");
    let tls = "60 -60 52 569 -52 -1452 52 -1452 52 -700";
    fs::write(
        &table,
        format!(
            "lengths,label,confidence\n{tls},TLS.Google,dpi\n{tls},Zabbix,dpi\n\
             {tls},TLS,port\n60 -60,TLS,dpi\n"
        ),
    )
    .unwrap();
    let demo = demo();
    let more = [
        "--series".as_ref(),
        table.as_os_str(),
        "--capture".as_ref(),
        demo.as_os_str(),
        "--json".as_ref(),
    ];
    let report = against(&int8, &bundle(), &more).expect_code(0).json();
    assert_eq!(report["model"]["precision"], "int8");
    assert_eq!(report["against"]["precision"], "fp32");
    let [golden, table, capture] = [0, 1, 2].map(|at| &report["comparisons"][at]);
    assert_eq!((&golden["series"], &golden["labelled"]), (&64.into(), &0.into()));
    assert_eq!((&table["series"], &table["labelled"]), (&3.into(), &2.into()));
    assert_eq!((&table["accuracy"], &table["accuracy_loss"]), (&0.5.into(), &0.0.into()));
    assert_eq!(capture["series"], series_of_demo());
    for comparison in [golden, table, capture] {
        let number = |field: &str| comparison[field].as_f64().unwrap();
        assert!(number("same_class") >= 0.98, "{comparison}");
        let (mean, max) = (number("mean_difference"), number("max_difference"));
        assert!(0.0 < mean && mean < max && mean < 0.002 && max < 0.1, "{comparison}");
    }
}

/// The series of a bundle with `unit = "data"`, from its golden inputs, a table and a capture.
#[test]
fn models_of_another_unit_are_compared_on_series_of_that_unit() {
    let data = root().join("tests/bundles/data-k3");
    let told = ran(&["model".as_ref(), "info".as_ref(), data.as_os_str()]).expect_code(0).stdout;
    for line in [
        "unit            data",
        "features        signed_length",
        "input           series: float32 [N, 1, 3]",
    ] {
        assert!(told.contains(line), "{line}: {told}");
    }
    if !has_onnxruntime() {
        return skip("models_of_another_unit_are_compared_on_series_of_that_unit", "ONNX Runtime");
    }
    let dir = tempfile::tempdir().unwrap();
    let table = dir.path().join("flows.csv");
    fs::write(&table, "data_lengths,label\n569 -1452 -1452 60,TLS\n70 -70,DNS\n,TLS\n").unwrap();
    let demo = demo();
    let more = [
        "--series".as_ref(),
        table.as_os_str(),
        "--capture".as_ref(),
        demo.as_os_str(),
        "--json".as_ref(),
    ];
    let report = against(&data, &data, &more).expect_code(0).json();
    let [golden, table, capture] = [0, 1, 2].map(|at| &report["comparisons"][at]["series"]);
    assert_eq!((golden, table), (&64.into(), &1.into()));
    assert_eq!(*capture, series_of(&demo, &data));

    let shipped = against(&data, &bundle(), &[]).expect_code(65).stderr;
    assert!(shipped.contains("take different input (unit, k, features or context)"), "{shipped}");
    let lengths = dir.path().join("lengths.csv");
    fs::write(&lengths, "lengths\n569 -1452 -1452\n").unwrap();
    let more = ["--series".as_ref(), lengths.as_os_str()];
    let refused = against(&data, &data, &more).expect_code(65).stderr;
    assert!(refused.contains("no column `data_lengths`"), "{refused}");
}

#[test]
fn a_bundle_loses_nothing_against_itself() {
    if !has_onnxruntime() {
        return skip("a_bundle_loses_nothing_against_itself", "ONNX Runtime");
    }
    let report = against(&bundle(), &bundle(), &["--json".as_ref()]).expect_code(0).json();
    let golden = &report["comparisons"][0];
    assert_eq!((&golden["same_class"], &golden["max_difference"]), (&1.0.into(), &0.0.into()));
}

#[test]
fn what_cannot_be_compared_is_refused() {
    if !has_onnxruntime() {
        return skip("what_cannot_be_compared_is_refused", "ONNX Runtime");
    }
    let other = copy(&bundle());
    let manifest = other.path().join("model.toml");
    let text = fs::read_to_string(&manifest).unwrap().replace("Zabbix", "Nagios");
    fs::write(&manifest, text).unwrap();
    let refused = against(&int8_bundle(), other.path(), &[]).expect_code(65);
    assert_eq!((refused.stdout.as_str(), refused.stderr.lines().count()), ("", 1));
    assert!(refused.stderr.contains("different labels"), "{}", refused.stderr);

    let empty = other.path().join("flows.csv");
    fs::write(&empty, "lengths\n52 -52\n").unwrap();
    let refused = against(&int8_bundle(), &bundle(), &["--series".as_ref(), empty.as_os_str()])
        .expect_code(65);
    assert!(refused.stderr.contains("no flow with 10 packets"), "{}", refused.stderr);
    against(&int8_bundle(), &bundle(), &["--capture".as_ref(), "/nowhere.pcap".as_ref()])
        .expect_code(66);
    against(&int8_bundle(), &bundle(), &["--capture".as_ref(), manifest.as_os_str()])
        .expect_code(65);
}

/// `model check` of one bundle against another.
fn against(dir: &Path, other: &Path, more: &[&OsStr]) -> Finished {
    let mut command = fenxi(["model", "check"]);
    command.arg(dir).arg("--against").arg(other).args(more);
    run(command)
}

/// Series of the shipped capture in a replay.
fn series_of_demo() -> Value {
    series_of(&demo(), &bundle())
}

/// Series of a capture in a replay with this bundle.
fn series_of(capture: &Path, bundle: &Path) -> Value {
    let mut replay = fenxi(["replay", "--json", "--model"]);
    replay.arg(bundle).args(SIMULATED).arg(capture);
    run(replay).expect_code(0).json()["series"]["emitted"].clone()
}

/// A copy of a bundle, to be spoilt.
fn copy(bundle: &Path) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    copy_bundle(bundle, dir.path());
    dir
}

#[test]
fn compile_writes_the_network_and_its_manifest() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("x.snapshot");
    let compile = |bundle: &str, out: &Path| {
        let mut command = fenxi(["model", "compile"]);
        command.arg(root().join("models").join(bundle)).arg("--out").arg(out);
        run(command)
    };
    for bundle in ["app-id-k10", "iot-family"] {
        let told = compile(bundle, &out).expect_code(0).stdout;
        let file = fs::read(&out).unwrap();
        assert!(told.contains(&format!("{} bytes, {bundle}", file.len())), "{told}");
        let len = u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&file[8..8 + len]).unwrap();
        let manifest = fs::read_to_string(root().join("models").join(bundle).join("model.toml"));
        let about = &header["__metadata__"];
        assert_eq!(about["manifest"], manifest.unwrap());
        assert_eq!(about["version"], "1");
        assert_eq!(about["model"].as_str().unwrap().len(), 64);
    }
    let told = compile("protocol-int8", &out).expect_code(65);
    assert!(told.stderr.contains("only trees and networks with ranges"), "{}", told.stderr);
    compile("app-id-k10", Path::new("/nowhere/x")).expect_code(73);
}
