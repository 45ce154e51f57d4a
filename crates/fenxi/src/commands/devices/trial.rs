//! Tries one device, in this process or in a process of its own.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use accel::profile::{self, Measured};
use accel::{Bundle, check_golden};
use serde::{Deserialize, Serialize};

use crate::exit::Failure;
use config::Config;
use dataplane::session::session;

/// Batch size of the trial: large enough to show an accelerator's speed, and supported by all
/// devices.
const ROWS: usize = 64;

/// Batch sizes for the line, where the device takes any size. Others would have to be opened for
/// each size, which may take minutes.
const SIZES: [usize; 4] = [1, 8, ROWS, 256];

/// How long the device is timed.
const BUDGET: Duration = Duration::from_millis(200);

#[derive(Debug, Serialize, Deserialize)]
pub struct Outcome {
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
    fn of(measured: &Measured) -> Line {
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
    /// Samples whose likeliest class differs.
    pub argmax_differences: usize,
    /// Whether the difference is within the tolerance.
    pub agrees: bool,
}

impl Outcome {
    fn fails(device: &str, reason: &str) -> Outcome {
        let name = format!("device {device}: ");
        Outcome {
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
pub fn here(config: &Config, bundle: &Bundle) -> Outcome {
    let name = config.accel.devices.first().map_or("", |device| &device.name);
    run(config, bundle).unwrap_or_else(|reason| Outcome::fails(name, &reason.to_string()))
}

fn run(config: &Config, bundle: &Bundle) -> Result<Outcome, Failure> {
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
    Ok(Outcome {
        device: asked.name,
        runs: true,
        reason: String::new(),
        effective: Some(device.effective().to_owned()),
        rows: ROWS,
        median_us: of_rows.map(|point| point.median_us),
        line: (sizes.len() > 1).then(|| Line::of(&measured)),
        golden: golden.map(|report| Golden {
            rows: report.rows,
            max_abs_difference: Some(report.max_abs_difference),
            argmax_differences: report.argmax_differences,
            agrees: report.agrees(),
        }),
    })
}

/// Tries a device by running this program with `arguments`, until `deadline`.
pub fn in_a_process(device: &str, arguments: &[OsString], deadline: Duration) -> Outcome {
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
        Err(error) => Outcome::fails(device, &format!("cannot start a process to try it: {error}")),
    }
}

/// The outcome that the process prints; libraries may print before it.
fn answer(device: &str, child: &mut Child, deadline: Duration) -> Outcome {
    let Some(stdout) = child.stdout.take() else {
        return Outcome::fails(device, "its process has no output");
    };
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let lines = BufReader::new(stdout).lines().map_while(Result::ok);
        let mut outcomes = lines.filter_map(|line| serde_json::from_str::<Outcome>(&line).ok());
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
            Outcome::fails(device, &format!("its process ended early: {end}"))
        }
        Err(RecvTimeoutError::Timeout) => {
            let waited_s = deadline.as_secs_f64();
            Outcome::fails(device, &format!("hangs: no answer within {waited_s} s"))
        }
    }
}
