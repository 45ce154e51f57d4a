//! The model on its devices: the library loads, every device runs the bundle and gives its golden
//! outputs. Each device is tried in a process of its own, as `fenxi devices` does it.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use accel::{Profile, onnx};

use super::finding::Finding;
use crate::cli::CheckConfigArgs;
use crate::commands::devices::{TrialOutcome, in_a_process, trial_arguments};
use config::Config;
use config::checked::Device;

const CHECK: &str = "model";

/// Time limit for a device to load the model and answer.
const DEADLINE: Duration = Duration::from_secs(60);

/// What was found, and what batches take on the devices where that could be measured.
pub fn findings(
    args: &CheckConfigArgs,
    config: &Config,
    dir: &Path,
) -> (Vec<Finding>, Vec<(String, Profile)>) {
    let devices = &config.accel.devices;
    let (mut findings, mut profiles) = (Vec::new(), Vec::new());
    if devices.iter().any(|device| device.provider.needs_library) {
        let library = library(config);
        let is_there = library.remedy.is_none();
        findings.push(library);
        if !is_there {
            return (findings, profiles);
        }
    }
    let mut tried = BTreeSet::new();
    for device in devices.iter().filter(|device| tried.insert(&device.name)) {
        if !device.provider.computes {
            let cause = "simulated: its labels are made up";
            findings.push(Finding::warning(CHECK, &device.name, cause).cure("fenxi devices"));
            continue;
        }
        // A path that is not text was refused when the configuration was read.
        let sets = args.live.sets().unwrap_or_default();
        let arguments = trial_arguments(&args.live.config, &sets, &device.name, dir);
        let outcome = in_a_process(&device.name, &arguments, DEADLINE);
        if let Some(line) = &outcome.line {
            let (t0_us, t1_us) = (line.t0_us, line.t1_us);
            profiles.push((device.name.clone(), Profile { t0_us, t1_us }));
        }
        findings.push(judge(device, &outcome, dir));
    }
    (findings, profiles)
}

fn library(config: &Config) -> Finding {
    match onnx::load(config.accel.library.as_deref()) {
        Ok(library) => {
            let version = library.version().unwrap_or("(version unknown)");
            Finding::ok(
                "library",
                "",
                format!("ONNX Runtime {version}, {}", library.path().display()),
            )
        }
        Err(error) => {
            let program = std::env::current_exe().unwrap_or_default();
            let line = match program == Path::new("/usr/bin/fenxi") {
                true => "apt install ./fenxi-onnxruntime_*.deb",
                false => "make onnxruntime",
            };
            Finding::problem("library", "", error.to_string()).cure(line)
        }
    }
}

fn judge(device: &Device, outcome: &TrialOutcome, dir: &Path) -> Finding {
    let name = &device.name;
    let line = outcome.line();
    let problem = |cause: String| Finding::problem(CHECK, name, cause);
    match &outcome.golden {
        Some(golden) if golden.agrees => Finding::ok(CHECK, name, line),
        // A device with other arithmetic than the golden outputs may put one of ten samples into
        // another class, as in a run.
        Some(golden)
            if !device.provider.is_cpu && golden.argmax_differences * 10 <= golden.rows =>
        {
            Finding::warning(CHECK, name, line)
                .cure(format!("fenxi devices --device {name} --model {}", dir.display()))
        }
        Some(_) => problem(line).cure(format!("fenxi model check {}", dir.display())),
        None => problem(line).cure(format!("fenxi devices --model {}", dir.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;
    use crate::commands::devices::Golden;

    fn outcome(golden: Option<(bool, usize)>) -> TrialOutcome {
        TrialOutcome {
            device: "d".to_owned(),
            runs: golden.is_some(),
            reason: "no such provider".to_owned(),
            effective: golden.map(|_| "CPUExecutionProvider".to_owned()),
            rows: 64,
            median_us: golden.map(|_| 100.0),
            line: None,
            golden: golden.map(|(agrees, argmax_differences)| Golden {
                rows: 64,
                max_abs_difference: Some(0.1),
                argmax_differences,
                agrees,
            }),
        }
    }

    #[test]
    fn what_came_of_the_trials() {
        let config = Config::load(None, &[]).unwrap();
        let cpu = config.accel.devices[0].clone();
        let provider = accel::Provider::parse("openvino").unwrap();
        let other = Device { provider, ..cpu.clone() };
        let level = |device, golden| judge(device, &outcome(golden), Path::new("m")).level;
        assert_eq!(level(&cpu, Some((true, 0))), Level::Ok);
        assert_eq!(level(&cpu, Some((false, 0))), Level::Problem);
        assert_eq!(level(&other, Some((false, 6))), Level::Warning);
        assert_eq!(level(&other, Some((false, 7))), Level::Problem);
        assert_eq!(level(&cpu, None), Level::Problem);
        assert!(judge(&cpu, &outcome(None), Path::new("m")).cause.contains("no such provider"));
    }
}
