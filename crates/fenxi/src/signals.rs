//! SIGINT and SIGTERM, for the control threads of replays and live runs; SIGHUP, for the latter.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Failure;

/// Both signals. They no longer end the program by themselves once this is there.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Begins to listen; called inside a tokio runtime.
    ///
    /// # Errors
    /// The system refuses.
    pub fn new() -> Result<Signals, Failure> {
        Ok(Signals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// Waits for the next one.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// SIGHUP. It no longer ends the program by itself once this is there.
///
/// # Errors
/// The system refuses.
pub fn hangups() -> Result<Signal, Failure> {
    listen(SignalKind::hangup())
}

fn listen(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::unavailable(format!("no signals: {error}")))
}
