//! Copies of packets to one more interface, as rules ask for them.
//!
//! They leave through a packet socket of the flow worker's own, whatever the backend, and before
//! the burst does, because AF_XDP and DPDK give frames away as they send them.

use std::sync::Arc;

use flowmgr::Fate;
use packetio::{Burst, Selection, Tx, TxCounts};

use crate::threads::run::Run;

/// Sends copies of the packets whose rule says so, also of those that it drops.
pub struct Mirror {
    port: Box<dyn Tx>,
    run: Arc<Run>,
    /// Which packets of a burst are copied.
    copied: Vec<bool>,
}

impl Mirror {
    /// Out of a port that belongs to one flow worker, and that loses what it cannot send at once.
    pub fn new(port: Box<dyn Tx>, run: Arc<Run>) -> Mirror {
        Mirror { port, run, copied: Vec::with_capacity(flowmgr::BURST_MAX) }
    }

    /// Copies what is to be copied of a burst, as it is now.
    pub(super) fn copy(&mut self, burst: &Burst<'_>, fates: &[Fate]) {
        self.copied.clear();
        let is_copied = fates.iter().map(|fate| fate.by_rule().mirror);
        self.copied.extend(is_copied);
        // What is not sent is counted, and a link that is away is an event.
        let _ = self.port.send(burst, Selection::Marked(&self.copied));
        if let Some(event) = self.port.link_event() {
            self.run.report(event.into());
        }
    }

    pub(super) fn counts(&self) -> TxCounts {
        self.port.counts()
    }
}
