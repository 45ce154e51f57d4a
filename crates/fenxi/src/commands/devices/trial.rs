//! One device tried: in this process, or from outside in one of its own.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use accel::{Bundle, check_golden, profile};
use serde::{Deserialize, Serialize};

use crate::exit::Failure;
use config::Config;
use config::checked::Provider;
use dataplane::devices::session;

/// The batch that is tried: large enough for an accelerator to show itself, and taken by all.
const ROWS: usize = 64;

/// How long it is timed.
const BUDGET: Duration = Duration::from_millis(200);

/// What came of trying a device.
#[derive(Debug, Serialize, Deserialize)]
pub struct Outcome {
    pub device: String,
    /// Whether it ran.
    pub runs: bool,
    /// Why it does not; empty where it runs.
    pub reason: String,
    /// What did the work.
    pub effective: Option<String>,
    /// Batch size of the latency.
    pub rows: usize,
    /// The median time of a batch.
    pub median_us: Option<f64>,
    /// How the outputs compare with the bundle's golden ones; none for a device that computes none.
    pub golden: Option<Golden>,
}

/// How outputs compare with the golden ones.
#[derive(Debug, Serialize, Deserialize)]
pub struct Golden {
    pub rows: usize,
    /// The largest difference of a probability; none where it is no number.
    pub max_abs_difference: Option<f32>,
    /// Samples with another likeliest class.
    pub argmax_differences: usize,
    /// Whether the difference is within the tolerance.
    pub agrees: bool,
}

impl Outcome {
    /// A device that does not run.
    fn fails(device: &str, reason: &str) -> Outcome {
        let name = format!("device {device}: ");
        Outcome {
            device: device.to_owned(),
            runs: false,
            // The name stands in front already.
            reason: reason.strip_prefix(&name).unwrap_or(reason).to_owned(),
            effective: None,
            rows: ROWS,
            median_us: None,
            golden: None,
        }
    }

    /// Whether it runs and what it computes is the model's answer.
    pub fn classifies(&self) -> bool {
        self.runs && self.golden.is_some()
    }

    /// For people, in one line.
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
        format!(
            "runs on {effective}: {median_us:.0} µs per batch of {}, {golden}",
            self.rows
        )
    }
}

/// Tries the only device of `config` in this process.
pub fn here(config: &Config, bundle: &Bundle) -> Outcome {
    let name = config
        .accel
        .devices
        .first()
        .map_or("", |device| &device.name);
    run(config, bundle).unwrap_or_else(|reason| Outcome::fails(name, &reason.to_string()))
}

fn run(config: &Config, bundle: &Bundle) -> Result<Outcome, Failure> {
    let [asked] = config.accel.devices.as_slice() else {
        return Err(Failure::software("this process tries one device at a time"));
    };
    let mut asked = asked.clone();
    (asked.batch_sizes, asked.fixed_sizes) = (vec![ROWS], true);
    let mut device = session(config, bundle, &asked)?;
    let failed = |error: accel::DeviceError| Failure::unavailable(error.to_string());
    let golden = (asked.provider != Provider::Simulated)
        .then(|| check_golden(bundle, device.as_mut()))
        .transpose()
        .map_err(failed)?;
    let measured = profile::measure(device.as_mut(), &[ROWS], &bundle.golden().inputs, BUDGET)
        .map_err(failed)?;
    Ok(Outcome {
        device: asked.name,
        runs: true,
        reason: String::new(),
        effective: Some(device.effective().to_owned()),
        rows: ROWS,
        median_us: Some(measured.points()[0].median_us),
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
        // What libraries say while they load is not for the user: the reason is in the outcome.
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        command.spawn()
    });
    match started {
        Ok(mut child) => {
            let outcome = answer(device, &mut child, deadline);
            // After its answer a process may hang in the clean-up of a library.
            let _ = child.kill();
            let _ = child.wait();
            outcome
        }
        Err(error) => Outcome::fails(
            device,
            &format!("cannot start a process to try it: {error}"),
        ),
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
        // Nobody listens any more once the deadline is over.
        let _ = tell.send(outcomes.next());
    });
    match told.recv_timeout(deadline) {
        Ok(Some(outcome)) => outcome,
        Ok(None) | Err(RecvTimeoutError::Disconnected) => {
            // One that has ended is not changed by this, and one that lives on without output is waited for in vain.
            let _ = child.kill();
            let end = child
                .wait()
                .map_or_else(|error| error.to_string(), |status| status.to_string());
            Outcome::fails(device, &format!("its process ended early: {end}"))
        }
        Err(RecvTimeoutError::Timeout) => {
            let waited_s = deadline.as_secs_f64();
            Outcome::fails(device, &format!("hangs: no answer within {waited_s} s"))
        }
    }
}
