//! Inline: packets that come in on one interface leave by the other.

use std::sync::Arc;

use flowmgr::verdict::Verdict;
use flowmgr::{Fate, Packet};
use packetio::{Burst, Selection, Tx, TxCounts};

use super::{Egress, Mirror};
use crate::Error;
use crate::opening::inline::FlowManager;
use crate::threads::counters::PortCounters;
use crate::threads::run::{Event, Run};

/// Sends each burst out of the other one of two ports.
pub struct Forward {
    ports: [Box<dyn Tx>; 2],
    /// Where copies go, if rules may ask for some.
    mirror: Option<Mirror>,
    run: Arc<Run>,
    /// Which packets of a burst leave, where not all of them do.
    leaves: Vec<bool>,
    /// Frames that rules have dropped on their way to each port.
    ruled_out: [u64; 2],
    /// Several workers send out of one interface; only the first one reports its errors.
    reports: bool,
}

impl Forward {
    /// Between two ports, in the order of the ports that packets are received from, for the worker
    /// of this number.
    pub fn new(
        ports: [Box<dyn Tx>; 2],
        mirror: Option<Mirror>,
        run: Arc<Run>,
        worker: usize,
    ) -> Forward {
        Forward {
            ports,
            mirror,
            run,
            leaves: Vec::with_capacity(flowmgr::BURST_MAX),
            ruled_out: [0; 2],
            reports: worker == 0,
        }
    }
}

impl Egress for Forward {
    fn send(
        &mut self,
        port: usize,
        burst: &Burst<'_>,
        _packets: &[Packet],
        fates: &[Fate],
        _flows: &FlowManager,
    ) -> Result<(), Error> {
        let is_dropped = |fate: &Fate| fate.verdict == Verdict::Dropped;
        // In one pass, without a branch for each packet: mostly there are none of either.
        let (mut drops, mut copies) = (false, false);
        for fate in fates {
            drops |= is_dropped(fate);
            copies |= fate.by_rule().mirror;
        }
        // First, because frames that are sent on may be given away.
        if copies && let Some(mirror) = &mut self.mirror {
            mirror.copy(burst, fates);
        }
        let which = match drops {
            true => {
                self.leaves.clear();
                self.leaves.extend(fates.iter().map(|fate| !is_dropped(fate)));
                let dropped = self.leaves.iter().filter(|leaves| !**leaves).count();
                self.ruled_out[(port + 1) % 2] += dropped as u64;
                Selection::Marked(&self.leaves)
            }
            false => Selection::All,
        };
        let other = &mut self.ports[(port + 1) % 2];
        // A port that is down drops and counts, and works again by itself; its receiving side
        // reports that it is down.
        if let Err(error) = other.send(burst, which)
            && !error.kind.is_recoverable()
            && self.reports
        {
            self.run.report(Event::Warning(format!("sending: {error}")));
        }
        Ok(())
    }

    fn forwards(&self) -> bool {
        true
    }

    fn advance(&mut self) -> Result<(), Error> {
        for port in &mut self.ports {
            // A port that fails says so when it sends.
            let _ = port.flush();
        }
        if self.reports {
            for event in self.ports.iter_mut().filter_map(|port| port.link_event()) {
                self.run.report(event.into());
            }
        }
        Ok(())
    }

    fn count(&self, ports: &mut [PortCounters]) {
        for ((port, ruled_out), counters) in self.ports.iter().zip(self.ruled_out).zip(ports) {
            (counters.tx, counters.ruled_out) = (port.counts(), ruled_out);
        }
    }

    fn copied(&self) -> TxCounts {
        self.mirror.as_ref().map(Mirror::counts).unwrap_or_default()
    }
}
