//! How a running flow worker gets other settings, rules and services: between two bursts it takes
//! a box, swaps its contents with what is in use and sends the box back, so that the sender drops
//! what is old. The worker neither waits nor allocates.

use std::convert::Infallible;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded, select};
use flowmgr::Settings;

use crate::threads::rules::RulesUpdate;

/// What a flow worker is told; what is `None` stays.
#[derive(Default)]
pub struct Update {
    /// Settings of its flow manager.
    pub settings: Option<Settings>,
    /// Rules in force.
    pub rules: Option<RulesUpdate>,
}

/// The worker's end.
pub struct SettingsPort<T = Update> {
    incoming: Receiver<Box<T>>,
    back: Sender<Box<T>>,
}

/// The sender's end.
pub struct SettingsSender<T = Update> {
    outgoing: Sender<Box<T>>,
    back: Receiver<Box<T>>,
}

/// The worker has ended before it took the update, or the run ends.
#[derive(Debug)]
pub struct WorkerEnded;

/// Both ends.
pub fn settings<T>() -> (SettingsSender<T>, SettingsPort<T>) {
    let (outgoing, incoming) = bounded(1);
    let (returned, back) = bounded(1);
    let sender = SettingsSender { outgoing, back };
    let port = SettingsPort { incoming, back: returned };
    (sender, port)
}

impl<T> SettingsPort<T> {
    /// Takes an update between two bursts; `apply` leaves in it what was in use. Costs one load if
    /// there is none.
    pub fn take(&self, apply: impl FnOnce(&mut T)) {
        if self.incoming.is_empty() {
            return;
        }
        if let Ok(mut update) = self.incoming.try_recv() {
            apply(&mut update);
            // There is room, since the sender waits for it.
            let _ = self.back.try_send(update);
        }
    }
}

impl<T> SettingsSender<T> {
    /// Sends an update on its way.
    ///
    /// # Errors
    /// The worker has ended.
    pub fn send(&self, update: T) -> Result<(), WorkerEnded> {
        let sent = self.outgoing.send(Box::new(update));
        sent.map_err(|_| WorkerEnded)
    }

    /// Waits until the worker uses it, and drops what was in use.
    ///
    /// # Errors
    /// The worker has ended before it took it, or the run ends.
    pub fn taken(&self, run_ended: &Receiver<Infallible>) -> Result<(), WorkerEnded> {
        select! {
            recv(self.back) -> taken => taken.map(drop).map_err(|_| WorkerEnded),
            recv(run_ended) -> _ => Err(WorkerEnded),
        }
    }

    /// Sends an update without waiting. `false`: the worker has not taken the one before.
    ///
    /// # Errors
    /// The worker has ended.
    pub fn send_now(&self, update: T) -> Result<bool, WorkerEnded> {
        self.drop_late();
        match self.outgoing.try_send(Box::new(update)) {
            Ok(()) => Ok(true),
            Err(TrySendError::Full(_)) => Ok(false),
            Err(TrySendError::Disconnected(_)) => Err(WorkerEnded),
        }
    }

    /// Drops what was in use where the worker took an update later than anybody waited for it.
    pub fn drop_late(&self) {
        while self.back.try_recv().is_ok() {}
    }

    /// As [`SettingsSender::taken`], but waits no longer than `within` for a worker that hangs.
    ///
    /// # Errors
    /// It has not taken it.
    pub fn taken_within(&self, within: Duration) -> Result<(), WorkerEnded> {
        self.back.recv_timeout(within).map(drop).map_err(|_| WorkerEnded)
    }
}
