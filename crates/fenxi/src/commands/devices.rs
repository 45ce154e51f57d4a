//! `fenxi devices`: which devices really work on this machine.
//!
//! A library that was built with a provider may still lack its toolkit or hardware, or compute
//! wrong results. So every device is tried with a real model, in a process of its own (this program
//! with `--try`): a provider that hangs is abandoned, one that crashes does no further harm, and
//! the libraries of one do not affect the next.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use accel::profile::{self, Measured};
use accel::{Bundle, Provider, check_golden, onnx};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cli::{ConfigArgs, DevicesArgs};
use crate::exit::{Failure, print};
use crate::sinks;
use config::{Config, Sources};
use dataplane::bundle::{find_bundle, open_named_bundle};
use dataplane::session::session;

/// Tries the devices and prints the results.
///
/// # Errors
/// The configuration, the model or the library cannot be used, or no device runs the model. The
/// simulated one does not count.
pub fn devices(args: &DevicesArgs) -> Result<(), Failure> {
    let sets = sets(args);
    let config = loaded(&args.config, &sets)?;
    let dir = find_bundle(&config, args.model.as_deref())?;
    let bundle = open_named_bundle(&config, args.model.as_deref())?;
    if let Some(name) = &args.trial {
        let config = config_for(&args.config, &sets, Some(name))?;
        return print(&to_json(&here(&config, &bundle))?);
    }
    let names = if args.devices.is_empty() {
        every_name(&config, args.plugin.is_some())
    } else {
        args.devices.clone()
    };
    let mut needs_library = false;
    for name in &names {
        let asked = config_for(&args.config, &sets, Some(name))?.accel.devices;
        needs_library |= asked.iter().any(|device| device.provider.needs_library);
    }
    let library = match needs_library {
        true => onnx::load(config.accel.library.as_deref()).map(Some),
        false => Ok(None),
    };
    let library = library.map_err(|error| Failure::unavailable(error.to_string()))?;
    let version = library.as_ref().and_then(onnx::Library::version).unwrap_or_default();
    let deadline = Duration::from_secs_f64(args.deadline_s);
    let outcomes = names.iter().map(|name| {
        let arguments = trial_arguments(&args.config, &sets, name, &dir);
        in_a_process(name, &arguments, deadline)
    });
    let outcomes: Vec<TrialOutcome> = outcomes.collect();
    let model = format!("{} {}", bundle.name(), bundle.version());
    let path = library.as_ref().map(|library| library.path());
    if args.json {
        print(&to_json(&json!({
            "library": path,
            "library_version": version,
            "model": model,
            "devices": outcomes,
        }))?)?;
    } else {
        let library = match path {
            Some(path) => format!("{} (ONNX Runtime {version})", path.display()),
            None => "none needed".to_owned(),
        };
        let mut page = format!("library  {library}\nmodel    {model}\n\n");
        let width = outcomes.iter().map(|it| it.device.len()).max().unwrap_or(0);
        for outcome in &outcomes {
            page += &format!("{:width$}  {}\n", outcome.device, outcome.line());
        }
        print(&page)?;
    }
    if outcomes.iter().any(|it| it.runs && it.golden.is_some()) {
        return Ok(());
    }
    Err(Failure::unavailable("no device runs the model on this machine"))
}

/// The command line with which this program tries the device `name`.
pub(super) fn trial_arguments(
    config: &ConfigArgs,
    sets: &[String],
    name: &str,
    dir: &Path,
) -> Vec<OsString> {
    let mut line: Vec<OsString> = vec!["devices".into(), "--try".into(), name.into()];
    line.extend(["--model".into(), dir.into()]);
    if let Some(file) = &config.config {
        line.extend(["--config".into(), file.into()]);
    }
    line.extend(sets.iter().flat_map(|set| ["--set".into(), set.into()]));
    line
}

/// The `--set` arguments, with `--library` and `--plugin` among them.
fn sets(args: &DevicesArgs) -> Vec<String> {
    let mut sets = args.config.sets.clone();
    if let Some(path) = &args.library {
        sets.push(format!("accel.library={}", quoted(&path.display().to_string())));
    }
    if let Some(path) = &args.plugin {
        sets.push(format!("device.plugin.plugin={}", quoted(&path.display().to_string())));
    }
    sets
}

/// All providers (`plugin` only if a library is given), and the devices that the configuration
/// names.
fn every_name(config: &Config, has_plugin: bool) -> Vec<String> {
    let known = Provider::all().filter(|provider| has_plugin || !provider.needs_plugin);
    let mut names: Vec<String> = known.map(|provider| provider.name.to_owned()).collect();
    for device in &config.accel.devices {
        if !names.contains(&device.name) {
            names.push(device.name.clone());
        }
    }
    names
}

/// The configuration with `name` as its one device, so that a `[device.NAME]` table counts here as
/// in a pipeline; without a name, the model decides.
pub(super) fn config_for(
    args: &ConfigArgs,
    sets: &[String],
    name: Option<&str>,
) -> Result<Config, Failure> {
    let mut sets = sets.to_vec();
    sets.push(format!("accel.devices=[{}]", name.map(quoted).unwrap_or_default()));
    sets.push("pipeline.layout=1:1:1".to_owned());
    loaded(args, &sets)
}

fn loaded(args: &ConfigArgs, sets: &[String]) -> Result<Config, Failure> {
    Ok(sinks::known(Sources::of_service(args.config.as_deref(), sets)).load()?.config)
}

/// `text` as a TOML string.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

pub(super) fn to_json(object: &impl Serialize) -> Result<String, Failure> {
    let text =
        serde_json::to_string(object).map_err(|error| Failure::software(error.to_string()))?;
    Ok(text + "\n")
}

/// Batch size of the trial: large enough to show an accelerator's speed, and supported by all
/// devices.
const ROWS: usize = 64;

/// Batch sizes for the line, where the device takes any size. Others would have to be opened for
/// each size, which may take minutes.
const SIZES: [usize; 4] = [1, 8, ROWS, 256];

/// How long the device is timed.
const BUDGET: Duration = Duration::from_millis(200);

#[derive(Debug, Serialize, Deserialize)]
pub struct TrialOutcome {
    pub device: String,
    pub runs: bool,
    /// Why not; empty if it ran.
    pub reason: String,
    /// The hardware or library that did the work.
    pub effective: Option<String>,
    /// Batch size of the latency.
    pub rows: usize,
    /// Median time of a batch, µs.
    pub median_us: Option<f64>,
    /// Time of a batch of any size; `None` for a device of fixed sizes, where one size was tried.
    pub line: Option<Line>,
    /// Comparison with the bundle's golden outputs; `None` for a device that computes no outputs.
    pub golden: Option<Golden>,
}

/// The line T₀ + T₁·b of a device.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Line {
    /// µs per batch.
    pub t0_us: f64,
    /// µs per row.
    pub t1_us: f64,
    /// The batchiness β at the largest size.
    pub batchiness: f64,
    /// How much of the times the line explains.
    pub r_squared: f64,
}

impl Line {
    fn from_measured(measured: &Measured) -> Line {
        let line = measured.fit();
        Line {
            t0_us: line.t0_us,
            t1_us: line.t1_us,
            batchiness: measured.batchiness(line),
            r_squared: measured.r_squared(line),
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Golden {
    pub rows: usize,
    /// The largest difference of a probability; `None` if it is not a number.
    pub max_abs_difference: Option<f32>,
    pub argmax_differences: usize,
    pub agrees: bool,
}

impl TrialOutcome {
    fn fails(device: &str, reason: &str) -> TrialOutcome {
        let name = format!("device {device}: ");
        TrialOutcome {
            device: device.to_owned(),
            runs: false,
            // The line already begins with the name.
            reason: reason.strip_prefix(&name).unwrap_or(reason).to_owned(),
            effective: None,
            rows: ROWS,
            median_us: None,
            line: None,
            golden: None,
        }
    }

    pub fn line(&self) -> String {
        let (Some(effective), Some(median_us)) = (&self.effective, self.median_us) else {
            return format!("does not run: {}", self.reason);
        };
        let golden = match &self.golden {
            None => "does not output probabilities".to_owned(),
            Some(golden) => format!(
                "golden outputs {} (largest difference {:.1e}, {} of {} with another class)",
                if golden.agrees { "agree" } else { "DIFFER" },
                golden.max_abs_difference.unwrap_or(f32::NAN),
                golden.argmax_differences,
                golden.rows,
            ),
        };
        let line = self.line.map_or(String::new(), |line| {
            format!(
                ", T0 + T1·b = {:.1} µs + {:.2} µs · b (batchiness {:.2}, R² {:.3})",
                line.t0_us, line.t1_us, line.batchiness, line.r_squared
            )
        });
        format!("runs on {effective}: {median_us:.0} µs per batch of {}{line}, {golden}", self.rows)
    }
}

/// Tries the only device of `config` in this process.
pub fn here(config: &Config, bundle: &Bundle) -> TrialOutcome {
    let name = config.accel.devices.first().map_or("", |device| &device.name);
    run(config, bundle).unwrap_or_else(|reason| TrialOutcome::fails(name, &reason.to_string()))
}

fn run(config: &Config, bundle: &Bundle) -> Result<TrialOutcome, Failure> {
    let [asked] = config.accel.devices.as_slice() else {
        return Err(Failure::software("this process tries one device at a time"));
    };
    let mut asked = asked.clone();
    let sizes = if asked.fixed_sizes { &[ROWS][..] } else { &SIZES[..] };
    asked.batch_sizes = sizes.to_vec();
    let mut device = session(config, bundle, &asked)?;
    let failed = |error: accel::DeviceError| Failure::unavailable(error.to_string());
    let golden = asked
        .provider
        .computes
        .then(|| check_golden(bundle, device.as_mut()))
        .transpose()
        .map_err(failed)?;
    let measured = profile::measure(device.as_mut(), sizes, &bundle.golden().inputs, BUDGET)
        .map_err(failed)?;
    let mut points = measured.points().iter();
    let of_rows = points.find(|point| point.rows == ROWS);
    Ok(TrialOutcome {
        device: asked.name,
        runs: true,
        reason: String::new(),
        effective: Some(device.effective().to_owned()),
        rows: ROWS,
        median_us: of_rows.map(|point| point.median_us),
        line: (sizes.len() > 1).then(|| Line::from_measured(&measured)),
        golden: golden.map(|report| Golden {
            rows: report.rows,
            max_abs_difference: Some(report.max_abs_difference),
            argmax_differences: report.argmax_differences,
            agrees: report.agrees(),
        }),
    })
}

/// Tries a device by running this program with `arguments`, until `deadline`.
pub fn in_a_process(device: &str, arguments: &[OsString], deadline: Duration) -> TrialOutcome {
    let started = std::env::current_exe().and_then(|program| {
        let mut command = Command::new(program);
        // Libraries print noise while they load; the reason of a failure is in the outcome.
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        command.spawn()
    });
    match started {
        Ok(mut child) => {
            let outcome = answer(device, &mut child, deadline);
            // After its outcome a process may hang in the clean-up of a library.
            let _ = child.kill();
            let _ = child.wait();
            outcome
        }
        Err(error) => {
            TrialOutcome::fails(device, &format!("cannot start a process to try it: {error}"))
        }
    }
}

/// The outcome that the process prints; libraries may print before it.
fn answer(device: &str, child: &mut Child, deadline: Duration) -> TrialOutcome {
    let Some(stdout) = child.stdout.take() else {
        return TrialOutcome::fails(device, "its process has no output");
    };
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let lines = BufReader::new(stdout).lines().map_while(Result::ok);
        let mut outcomes =
            lines.filter_map(|line| serde_json::from_str::<TrialOutcome>(&line).ok());
        // After the deadline the receiver is gone.
        let _ = tell.send(outcomes.next());
    });
    match told.recv_timeout(deadline) {
        Ok(Some(outcome)) => outcome,
        Ok(None) | Err(RecvTimeoutError::Disconnected) => {
            // This has no effect on a process that has ended; one that lives on without output
            // would never be done.
            let _ = child.kill();
            let end =
                child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
            TrialOutcome::fails(device, &format!("its process ended early: {end}"))
        }
        Err(RecvTimeoutError::Timeout) => {
            let waited_s = deadline.as_secs_f64();
            TrialOutcome::fails(device, &format!("hangs: no answer within {waited_s} s"))
        }
    }
}
