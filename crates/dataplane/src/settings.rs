//! How a running flow worker gets other settings: between two bursts it takes a box, swaps its contents with the settings in
//! use and sends the box back, so that the sender drops the old settings. The worker neither waits nor allocates.

use std::convert::Infallible;

use crossbeam_channel::{Receiver, Sender, bounded, select};
use flowmgr::Settings;
use recording::Walker;

/// The worker's end.
pub struct SettingsPort {
    incoming: Receiver<Box<Settings>>,
    back: Sender<Box<Settings>>,
}

/// The sender's end.
pub struct SettingsSender {
    outgoing: Sender<Box<Settings>>,
    back: Receiver<Box<Settings>>,
}

/// The worker has ended before it took the settings, or the run ends.
#[derive(Debug)]
pub struct WorkerEnded;

/// Both ends.
pub fn settings() -> (SettingsSender, SettingsPort) {
    let (outgoing, incoming) = bounded(1);
    let (returned, back) = bounded(1);
    let sender = SettingsSender { outgoing, back };
    let port = SettingsPort {
        incoming,
        back: returned,
    };
    (sender, port)
}

impl SettingsPort {
    /// Takes new settings between two bursts. Costs one load if there are none.
    pub fn take(&self, manager: &mut Walker) {
        if self.incoming.is_empty() {
            return;
        }
        if let Ok(mut settings) = self.incoming.try_recv() {
            manager.configure(&mut settings);
            // There is room, since the sender waits for it.
            let _ = self.back.try_send(settings);
        }
    }
}

impl SettingsSender {
    /// Sends settings on their way.
    ///
    /// # Errors
    /// The worker has ended.
    pub fn send(&self, settings: Settings) -> Result<(), WorkerEnded> {
        let sent = self.outgoing.send(Box::new(settings));
        sent.map_err(|_| WorkerEnded)
    }

    /// Waits until the worker uses them, and drops the old ones.
    ///
    /// # Errors
    /// The worker has ended before it took them, or the run ends.
    pub fn taken(&self, run_ended: &Receiver<Infallible>) -> Result<(), WorkerEnded> {
        select! {
            recv(self.back) -> taken => taken.map(drop).map_err(|_| WorkerEnded),
            recv(run_ended) -> _ => Err(WorkerEnded),
        }
    }
}
