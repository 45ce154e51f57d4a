//! How a flow manager's thread gets other settings: a box comes in between two bursts, its contents are exchanged for those
//! in use, and it goes back with the old ones, to be dropped by who sent it. The thread neither waits nor allocates.

use std::convert::Infallible;

use crossbeam_channel::{Receiver, Sender, bounded, select};
use flowmgr::Settings;

use crate::recording::Walker;

/// The thread's end.
pub struct SettingsPort {
    incoming: Receiver<Box<Settings>>,
    back: Sender<Box<Settings>>,
}

/// The end of who changes settings.
pub struct SettingsSender {
    outgoing: Sender<Box<Settings>>,
    back: Receiver<Box<Settings>>,
}

/// The thread has come to its end.
#[derive(Debug)]
pub struct LaneEnded;

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
    /// Between two bursts: takes what has come. One load where nothing has.
    pub fn take(&self, manager: &mut Walker) {
        if self.incoming.is_empty() {
            return;
        }
        if let Ok(mut settings) = self.incoming.try_recv() {
            manager.configure(&mut settings);
            // There is room, for the other side waits for it.
            let _ = self.back.try_send(settings);
        }
    }
}

impl SettingsSender {
    /// Sends settings on their way.
    ///
    /// # Errors
    /// Nobody takes them any more.
    pub fn send(&self, settings: Settings) -> Result<(), LaneEnded> {
        let sent = self.outgoing.send(Box::new(settings));
        sent.map_err(|_| LaneEnded)
    }

    /// Waits until they hold; drops the old ones.
    ///
    /// # Errors
    /// The thread has ended before it took them, or the run ends.
    pub fn taken(&self, run_ends: &Receiver<Infallible>) -> Result<(), LaneEnded> {
        select! {
            recv(self.back) -> taken => taken.map(drop).map_err(|_| LaneEnded),
            recv(run_ends) -> _ => Err(LaneEnded),
        }
    }
}
