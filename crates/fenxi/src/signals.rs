//! SIGINT and SIGTERM, for the control threads of replays and live runs; SIGHUP, for live runs.
//!
//! On the first SIGINT or SIGTERM the control thread shuts down gracefully. The second ends the
//! process from within its handler, whatever the threads are doing, with exit code 130 or 143, as
//! for a process that the signal killed.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_shutdown};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Failure;

/// SIGINT and SIGTERM. While this exists, the first one does not end the process.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Installs the handlers; must be called inside a tokio runtime.
    pub fn new() -> Result<Signals, Failure> {
        end_at_the_second().map_err(no_signals)?;
        Ok(Signals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Installs a handler for SIGHUP, which then no longer ends the process.
pub fn hangups() -> Result<Signal, Failure> {
    listen(SignalKind::hangup())
}

/// Handlers of a signal run in the order of their registration: the first checks whether there was
/// a signal before, the second notes this one.
fn end_at_the_second() -> io::Result<()> {
    let is_second = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        register_conditional_shutdown(signal, 128 + signal, is_second.clone())?;
        register(signal, is_second.clone())?;
    }
    Ok(())
}

fn listen(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(no_signals)
}

fn no_signals(error: io::Error) -> Failure {
    Failure::unavailable(format!("no signals: {error}"))
}
