//! `profile`: the table, the object, the file, and what is recommended.

use std::fs;

use super::{assert_on_the_page, ran};
use crate::common::{ONNXRUNTIME, demo, has_onnxruntime, shipped_bundle, skip};

/// Nothing is measured longer than it must be.
const QUICK: [&str; 5] = ["profile", "--seconds", "0", "--sizes", "8,1,64"];

fn quick(args: &[&str]) -> Vec<String> {
    QUICK.iter().chain(args).map(|&arg| arg.to_owned()).collect()
}

#[test]
fn a_device_of_the_configuration_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("npu.toml");
    let found = ran(&quick(&[
        "--device",
        "npu",
        "--set",
        "device.npu.provider=simulated",
        "--set",
        "device.npu.simulated_t0_us=1000",
        "--set",
        "device.npu.simulated_t1_us=0",
        "--latency-goal-ms",
        "200",
        "--json",
        "--out",
        out.to_str().unwrap(),
    ]))
    .expect_code(0)
    .json();
    assert_on_the_page(&found);
    assert_eq!((&found["device"], &found["provider"]), (&"npu".into(), &"simulated".into()));
    let points = found["points"].as_array().unwrap();
    let rows: Vec<u64> = points.iter().map(|point| point["rows"].as_u64().unwrap()).collect();
    assert_eq!(rows, [1, 8, 64]);
    for point in points {
        assert!(point["min_us"].as_f64().unwrap() >= 1000.0, "{point}");
        assert!(point["median_us"].as_f64() >= point["min_us"].as_f64(), "{point}");
    }
    // A batch of 64 takes as long as one of 8.
    assert_eq!(found["knee"]["rows"], 64);
    assert_eq!(found["recommendation"]["largest"], 64);
    assert_eq!(found["latency_goal_ms"], 200.0);

    let file: toml::Table = fs::read_to_string(&out).unwrap().parse().unwrap();
    let manifest: toml::Table =
        fs::read_to_string(shipped_bundle().join("model.toml")).unwrap().parse().unwrap();
    assert_eq!(file["schema_version"].as_integer(), Some(1));
    assert_eq!(file["model_sha256"], manifest["sha256"]);
    assert_eq!(file["points"].as_array().unwrap().len(), 3);
    for key in ["t0_us", "batchiness", "r_squared"] {
        assert_eq!(file[key].as_float(), found[key].as_f64(), "{key}");
    }
    // All batches take 1 ms, so a row in a batch of 64 costs a 64th of a row alone.
    assert!(found["batchiness"].as_f64().unwrap() < 0.1, "{found}");
}

#[test]
fn a_goal_that_cannot_be_met_is_told() {
    let told = ran(&quick(&["--device", "simulated", "--latency-goal-ms", "0.05"])).expect_code(0);
    assert!(told.stderr.contains("cannot meet the latency goal"), "{}", told.stderr);
    assert!(told.stdout.contains("analytics.batch_sizes = [1]"), "{}", told.stdout);
}

#[test]
fn the_engine_is_measured_with_the_shipped_model() {
    let told = ran(&quick(&[])).expect_code(0).stdout;
    for part in [
        " on device native (native (",
        "\nlatency  T0 + T1·b = ",
        "\nfit      R² ",
        ", batchiness ",
        "\nknee     batch of ",
        "\nmemory ",
        "without a latency goal",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let sizes = told.lines().skip(4).take(3).map(|line| line.split_whitespace().next().unwrap());
    assert_eq!(sizes.collect::<Vec<_>>(), ["1", "8", "64"]);
}

#[test]
fn a_second_replay_uses_the_profile_that_the_first_one_measured() {
    if !has_onnxruntime() {
        return skip(
            "a_second_replay_uses_the_profile_that_the_first_one_measured",
            "ONNX Runtime",
        );
    }
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("profiles");
    let (capture, set) = (demo(), format!("accel.profiles={}", folder.display()));
    let replay = |policy: &str| {
        let policy = format!("analytics.policy={policy}");
        let mut args = vec!["replay", capture.to_str().unwrap(), "--set", &policy, "--set", &set];
        args.extend(ONNXRUNTIME);
        ran(&args).expect_code(0);
        let files = fs::read_dir(&folder).into_iter().flatten();
        let files = files.map(|file| {
            let file = file.unwrap();
            (file.path(), file.metadata().unwrap().modified().unwrap())
        });
        files.collect::<Vec<_>>()
    };
    assert_eq!(replay("carry-over"), [], "it plans by no profile");
    let first = replay("slo");
    assert_eq!(first.len(), 1);
    assert_eq!(replay("slo"), first);
    assert_eq!(replay("on-off"), first);
}

#[test]
fn what_cannot_be_measured_or_written_is_refused() {
    for (args, code, part) in [
        (&["--sizes", "0"][..], 64, "--sizes"),
        (&["--latency-goal-ms", "0"], 64, "expected milliseconds"),
        (&["--device", "abacus"], 78, "abacus"),
        (&["--device", "simulated", "--model", "/nowhere"], 66, "/nowhere"),
        (&["--device", "cpu", "--set", "accel.library=/nowhere/ort.so"], 69, "/nowhere/ort.so"),
    ] {
        let refused = ran(&[&["profile"], args].concat()).expect_code(code);
        assert_eq!(refused.stdout, "", "{args:?}");
        assert!(refused.stderr.contains(part), "{args:?}: {}", refused.stderr);
    }
    let refused =
        ran(&quick(&["--device", "simulated", "--out", "/nowhere/p.toml"])).expect_code(73);
    assert!(refused.stderr.contains("/nowhere/p.toml"), "{}", refused.stderr);
}
