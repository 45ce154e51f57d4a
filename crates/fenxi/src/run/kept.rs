//! Mode inline: the receive rings outlive the process, in the descriptor store of the service manager (`FileDescriptorStoreMax=`
//! of systemd.service(5)). While no process runs, the kernel goes on filling them, and the next process forwards what waits.
//!
//! The rings of all interfaces must have been kept with the same settings, which their names say; else they are given up, and
//! opened anew. Nobody says whether the service manager keeps them: without `FileDescriptorStoreMax=` it closes what it is sent.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use config::checked::{Io, IoMode};
use packetio::{AdoptError, Inherited, Keeper, Opened, PortSettings};
use tracing::{info, warn};

use crate::supervise::notify::Notifier;

/// The rings of the process before, and the service manager that keeps those of this one.
pub struct Kept {
    store: Option<Arc<Store>>,
    inherited: Vec<Inherited>,
}

impl Kept {
    /// Takes over what the service manager has passed to this process. For the start, before ports are opened and threads run.
    pub fn take(io: &Io) -> Kept {
        let inherited = packetio::inherited();
        let manager = Notifier::from_environment();
        let keeps = io.mode == IoMode::Inline && io.backend.has_lasting_rings();
        let store = manager.is_heard().then(|| Arc::new(Store { manager }));
        if !keeps {
            // Another mode or backend was configured since.
            store.iter().for_each(|store| store.forget_all(&inherited));
            return Kept {
                store: None,
                inherited: Vec::new(),
            };
        }
        Kept { store, inherited }
    }

    /// Who keeps the rings that this process opens.
    pub fn keeper(&self) -> Option<Arc<dyn Keeper>> {
        let store = self.store.clone()?;
        Some(store)
    }

    /// The ports of all interfaces over the rings of the process before; `None` if there are none that fit.
    pub fn adopt(self, interfaces: &[PortSettings], rings: u16) -> Option<Vec<Vec<Opened>>> {
        let Kept {
            store: Some(store),
            inherited,
        } = self
        else {
            return None;
        };
        if inherited.is_empty() {
            return None;
        }
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
                refused(&why);
                None
            }
        }
    }
}

fn refused(why: &AdoptError) {
    warn!(
        "the receive rings of the process before cannot be used, so the frames in them are lost, \
        and new ones are opened: {why}"
    );
}

/// The descriptor store.
#[derive(Debug)]
struct Store {
    manager: Notifier,
}

impl Store {
    fn forget_all(&self, inherited: &[Inherited]) {
        inherited.iter().for_each(|it| self.forget(&it.name));
    }
}

impl Keeper for Store {
    fn keep(&self, name: &str, socket: BorrowedFd<'_>) {
        // Not polled: that its interface is down is no reason to close it.
        let state = format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}");
        self.manager.pass(&state, socket);
    }

    fn forget(&self, name: &str) {
        self.manager.say(&format!("FDSTOREREMOVE=1\nFDNAME={name}"));
    }
}
