//! Mode inline: the receive rings outlive the process in the descriptor store of the service
//! manager (`FileDescriptorStoreMax=` of systemd.service(5)). Without a process the kernel goes on
//! filling them, and the next process forwards these frames.
//!
//! The rings of all interfaces must have been kept with the same settings, which their names
//! contain; otherwise new ones are opened. Whether the service manager keeps them is unknown:
//! without `FileDescriptorStoreMax=` it closes them.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use config::checked::{Io, IoMode};
use packetio::{Inherited, Keeper, Opened, PortSettings};
use tracing::{info, warn};

use crate::supervise::notify::Notifier;

/// The rings of the process before, and the service manager that keeps the rings of this one.
pub struct Kept {
    store: Option<Arc<Notifier>>,
    inherited: Vec<Inherited>,
}

impl Kept {
    /// Takes over the descriptors from the service manager, before ports are opened and threads
    /// run.
    pub fn take(io: &Io) -> Kept {
        let inherited = packetio::inherited();
        let manager = Notifier::from_environment();
        let keeps = io.mode == IoMode::Inline && io.backend.has_lasting_rings;
        let store = manager.is_heard().then(|| Arc::new(manager));
        if !keeps {
            // The mode or backend has changed.
            if let Some(store) = &store {
                inherited.iter().for_each(|it| store.forget(&it.name));
            }
            return Kept { store: None, inherited: Vec::new() };
        }
        Kept { store, inherited }
    }

    /// The keeper of the rings that this process opens.
    pub fn keeper(&self) -> Option<Arc<dyn Keeper>> {
        let store = self.store.clone()?;
        Some(store)
    }

    /// The ports of all interfaces over the rings of the process before, if there are any that fit.
    pub fn adopt(self, interfaces: &[PortSettings], rings: u16) -> Option<Vec<Vec<Opened>>> {
        let Kept { store, inherited } = self;
        let store = store.filter(|_| !inherited.is_empty())?;
        let names: Vec<String> = inherited.iter().map(|it| it.name.clone()).collect();
        match packetio::adopt(interfaces, rings, inherited) {
            Ok(mut ports) => {
                let all = ports.iter_mut().flatten();
                let (mut waiting, mut dropped) = (0, 0);
                for counts in all.map(|port| port.rx.counts()) {
                    (waiting, dropped) = (waiting + counts.waiting, dropped + counts.dropped);
                }
                info!(
                    "going on with the receive rings of the process before: {waiting} frames wait, \
                    {dropped} found them full"
                );
                Some(ports)
            }
            Err(why) => {
                names.iter().for_each(|name| store.forget(name));
                warn!(
                    "the receive rings of the process before cannot be used, so the frames in them \
                    are lost, and new ones are opened: {why}"
                );
                None
            }
        }
    }
}

/// The service manager has a store of descriptors.
impl Keeper for Notifier {
    fn keep(&self, name: &str, socket: BorrowedFd<'_>) {
        // Not polled: polling would close it when its interface is down.
        let state = format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}");
        self.pass(&state, socket);
    }

    fn forget(&self, name: &str) {
        self.say(&format!("FDSTOREREMOVE=1\nFDNAME={name}"));
    }
}
