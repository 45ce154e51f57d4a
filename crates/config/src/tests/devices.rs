//! `accel.devices`, `[device.NAME]` tables, confidences and layouts in their checked form.

use std::time::Duration;

use super::{Config, load, origin};
use analytics::Policy;

use crate::checked::{Device, DeviceThread};

fn config(file: &str, sets: &[&str]) -> Config {
    load(file, &[], sets).unwrap().0
}

fn only_device(file: &str, sets: &[&str]) -> Device {
    config(file, sets).accel.devices.remove(0)
}

const NPU: &str = r#"
[pipeline]
layout = "1:1:2"
[accel]
devices = ["npu", "cpu"]
simulated_t0_us = 7
[device.npu]
provider = "qnn"
plugin = "/lib/qnn.so"
batch_sizes = [1, 64]
deadline_ms = 0
profile = "npu.toml"
faults = "error=2"
[device.npu.options]
backend_path = "libQnnHtp.so"
"a b" = "c"
"#;

#[test]
fn a_table_becomes_a_device() {
    let config = config(NPU, &[]);
    let [npu, cpu] = config.accel.devices.as_slice() else {
        panic!("{:?}", config.accel.devices);
    };
    assert_eq!(npu.provider.name, "qnn");
    assert_eq!(npu.plugin, Some("/lib/qnn.so".into()));
    let options = [("a b", "c"), ("backend_path", "libQnnHtp.so")];
    assert_eq!(npu.options, options.map(|(name, value)| (name.to_owned(), value.to_owned())));
    assert_eq!(npu.batch_sizes, [1, 64]);
    assert!(npu.fixed_sizes, "an NPU wants fixed sizes");
    assert_eq!((npu.thread, npu.deadline), (DeviceThread::Own, None));
    assert_eq!(npu.profile, Some("npu.toml".into()));
    assert_eq!((npu.simulated.t0_us, npu.simulated.t1_us), (7.0, 2.0));
    assert_eq!(npu.faults, Some("error=2".parse().unwrap()));
    // Beside another device even the CPU works on a thread of its own.
    assert_eq!((cpu.name.as_str(), cpu.thread), ("cpu", DeviceThread::Own));
    assert!(!cpu.fixed_sizes && cpu.deadline == Some(Duration::from_secs(1)));
}

#[test]
fn a_providers_name_needs_no_table_and_may_have_one() {
    let plain = only_device("[accel]\ndevices = [\"cuda\"]", &[]);
    assert_eq!(plain.provider.name, "cuda");
    let file = "[device.simulated]\nthread = \"own\"\n[accel]\ndevices = [\"simulated\"]";
    let tabled = only_device(file, &[]);
    assert_eq!((tabled.provider.name, tabled.thread), ("simulated", DeviceThread::Own));
    assert!(
        !only_device("[device.qnn]\nfixed_sizes = false", &["accel.devices=[\"qnn\"]"]).fixed_sizes
    );
}

#[test]
fn one_device_stands_for_all_of_the_layout() {
    let names = |set: &str| {
        let devices = config("", &[set]).accel.devices.into_iter();
        devices.map(|device| device.thread).collect::<Vec<_>>()
    };
    assert_eq!(names("pipeline.layout=1:1:3"), [DeviceThread::Own; 3]);
    // Two managers with a device each have none to wait for but their own.
    assert_eq!(names("pipeline.layout=2:2:2"), [DeviceThread::Shared; 2]);
    assert_eq!(names("pipeline.layout=1:4:1"), [DeviceThread::Shared]);
}

#[test]
fn a_device_can_be_set_on_the_command_line() {
    let sets = [
        "accel.devices=[\"npu\"]",
        "device.npu.provider=plugin",
        "device.npu.plugin=12",
        "device.npu.options.num=4",
        "device.npu.batch_sizes=[2]",
    ];
    let device = only_device("[device.npu]\nprovider = \"qnn\"\nbatch_sizes = [1]", &sets);
    assert_eq!(device.provider.name, "plugin");
    assert_eq!(device.plugin, Some("12".into()));
    assert_eq!(device.options, [("num".to_owned(), "4".to_owned())]);
    assert_eq!(device.batch_sizes, [2]);
}

#[test]
fn what_is_shown_of_a_device_has_origins_and_can_be_read_back() {
    let (config, effective) = load(NPU, &[], &["device.npu.thread=shared"]).unwrap();
    assert_eq!(origin(&effective, "device.npu.provider"), "c.toml:8");
    assert_eq!(origin(&effective, "device.npu.thread"), "--set");
    assert_eq!(origin(&effective, "device.npu.options.\"a b\""), "c.toml:16");
    let (again, _) = load(&effective.to_toml(true), &[], &[]).unwrap();
    assert_eq!(again.accel, config.accel);
}

#[test]
fn confidences_and_the_latency_goal() {
    let file = "[model]\nmin_confidence = 0\n[model.class_confidence]\nTLS = \
        1\n[analytics]\npolicy = \"slo\"";
    let config = config(file, &["model.class_confidence.DNS=0.25"]);
    assert_eq!(config.model.min_confidence, Some(0.0));
    let entries = config.model.class_confidence.iter();
    let entries: Vec<_> = entries
        .map(|entry| (entry.label.as_str(), entry.value, entry.origin.to_string()))
        .collect();
    let expected = [("DNS", 0.25, "--set".to_owned()), ("TLS", 1.0, "c.toml:4".to_owned())];
    assert_eq!(entries, expected);
    assert_eq!(
        config.analytics.policy(),
        Policy::Slo { latency_goal: Duration::from_millis(2), delta: 0.05 }
    );
}
