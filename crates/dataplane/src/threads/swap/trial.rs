//! Tries a new model in another process before this process opens it.
//!
//! A graph can loop, take all memory or crash the runtime. Another process that does so is simply
//! killed. It opens the model on the CPU and runs the golden inputs. This process checks afterwards
//! whether the outputs are right and whether the configured devices take the model, because its
//! messages are better. The kernel kills the other process first when memory is short. It ends with
//! this one, and by itself some time after the deadline if nobody kills it.

use std::convert::Infallible;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use tracing::warn;

use super::prepared::Refusal;
use crate::Error;
use config::Config;

/// Interval between two checks of the process.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The only one of fenxi's variables that the process needs: it names the library.
const LIBRARY: &str = "FENXI_ONNXRUNTIME";

/// Tries the bundle in `dir` for `limit` at most.
///
/// # Errors
/// The model crashes the process or does not end in time; or the run ends.
pub fn try_bundle(
    config: &Config,
    dir: &Path,
    limit: Duration,
    run_ended: &Receiver<Infallible>,
) -> Result<(), Refusal> {
    let until = Instant::now() + limit;
    let name = dir.display();
    let mut child = match command(config, dir, limit).spawn() {
        Ok(child) => child,
        Err(error) => {
            warn!("{name}: not tried in a process of its own, there is none: {error}");
            return Ok(());
        }
    };
    let ended = wait(&mut child, until, run_ended);
    // Harmless if it has ended already.
    let _ = child.kill();
    let _ = child.wait();
    match ended? {
        // Other failures show again when this process opens the model.
        Some(status) => match status.signal() {
            None => Ok(()),
            Some(_) => Err(Error::data(format!(
                "{name}: the model crashed the process in which it was tried ({status}); it is not \
                 opened"
            ))
            .into()),
        },
        None => Err(Error::data(format!(
            "{name}: the model did not run to its end within {} s in the process in which it was \
             tried; it is not opened. \
             Raise model.open_timeout_s if it needs longer",
            limit.as_secs_f64()
        ))
        .into()),
    }
}

fn command(config: &Config, dir: &Path, limit: Duration) -> Command {
    // This very program, even if its file was replaced.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("fenxi");
    command.args(["model", "try", "--within-s"]);
    command.arg(limit.as_secs_f64().to_string());
    if let Some(library) = &config.accel.library {
        command.arg("--library").arg(library);
    }
    command.arg("--").arg(dir);
    for (name, _) in std::env::vars_os() {
        let is_ours = name.as_encoded_bytes().starts_with(b"FENXI_") && name != LIBRARY;
        let is_of_service =
            name == "NOTIFY_SOCKET" || name.as_encoded_bytes().starts_with(b"LISTEN_");
        if is_ours || is_of_service {
            command.env_remove(name);
        }
    }
    // Messages of libraries do not belong in the log.
    let [stdin, stdout, stderr] = [Stdio::null(), Stdio::null(), Stdio::null()];
    command.stdin(stdin).stdout(stdout).stderr(stderr);
    command
}

/// How the process ended; `None` if it has not.
fn wait(
    child: &mut Child,
    until: Instant,
    run_ended: &Receiver<Infallible>,
) -> Result<Option<ExitStatus>, Refusal> {
    while Instant::now() < until {
        match child.try_wait() {
            Ok(None) => {}
            Ok(status) => return Ok(status),
            Err(error) => return Err(Error::software(format!("waiting: {error}")).into()),
        }
        if run_ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Disconnected) {
            return Err(Refusal::RunEnded);
        }
    }
    Ok(None)
}
