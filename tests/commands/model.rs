//! `model info` and `model check`.

use std::fs;

use super::ran;
use crate::common::{bundle, has_onnxruntime, labels, skip};

#[test]
fn model_info_says_what_the_bundle_says() {
    let told = ran(&["model".as_ref(), "info".as_ref(), bundle().as_os_str()])
        .expect_code(0)
        .stdout;
    let manifest: toml::Table = fs::read_to_string(bundle().join("model.toml"))
        .unwrap()
        .parse()
        .unwrap();
    for part in ["name", "version", "sha256"] {
        assert!(
            told.contains(manifest[part].as_str().unwrap()),
            "{part}: {told}"
        );
    }
    assert!(told.contains("float32 [N, 1, 10]"), "{told}");
    let named: Vec<_> = told
        .lines()
        .filter_map(|line| line.strip_prefix("label "))
        .map(|line| line.split_whitespace().next().unwrap())
        .collect();
    assert_eq!(named, labels());
    ran(&["model", "info", "/nowhere"]).expect_code(66);
}

#[test]
fn model_check_compares_with_the_golden_outputs() {
    if !has_onnxruntime() {
        return skip(
            "model_check_compares_with_the_golden_outputs",
            "ONNX Runtime",
        );
    }
    let told = ran(&["model".as_ref(), "check".as_ref(), bundle().as_os_str()])
        .expect_code(0)
        .stdout;
    assert!(
        told.contains("golden outputs agree: ") && told.contains(" 0 with another class"),
        "{told}"
    );

    // One probability of one row a thousandth off.
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("golden")).unwrap();
    for file in [
        "model.toml",
        "model.onnx",
        "golden/inputs.csv",
        "golden/outputs.csv",
    ] {
        fs::copy(bundle().join(file), dir.path().join(file)).unwrap();
    }
    let outputs = dir.path().join("golden/outputs.csv");
    let text = fs::read_to_string(&outputs).unwrap();
    let (first, rest) = text.split_once(',').unwrap();
    fs::write(
        &outputs,
        format!("{},{rest}", first.parse::<f64>().unwrap() - 0.001),
    )
    .unwrap();
    let refused =
        ran(&["model".as_ref(), "check".as_ref(), dir.path().as_os_str()]).expect_code(65);
    assert_eq!(
        (refused.stdout.as_str(), refused.stderr.lines().count()),
        ("", 1)
    );
    assert!(
        refused
            .stderr
            .contains("golden outputs differ by more than 1e-4: "),
        "{}",
        refused.stderr
    );
}
