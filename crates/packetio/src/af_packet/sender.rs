//! An interface as a destination: follows its receiving side when the interface is reopened, and
//! reports send errors.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::receiver::{Receiver, Shared};
use super::transmit::Transmit;
use crate::burst::Burst;
use crate::error::{OpenError, TxError};
use crate::rx::{LinkEvent, Rx};
use crate::tx::{Selection, Tx, TxCounts};

/// Several times what a ring holds, because more arrives meanwhile.
const CATCH_UP: Duration = Duration::from_secs(2);

/// An interface to send on.
#[derive(Debug)]
pub(crate) struct Sender {
    transmit: Transmit,
    /// The receiving side, if there is one.
    partner: Option<Partner>,
    /// The last failure, until it is taken.
    event: Option<LinkEvent>,
}

/// State of the receiving side.
#[derive(Debug)]
struct Partner {
    reopened: Arc<AtomicU32>,
    /// Value of `reopened` when this side was last opened.
    known: u32,
    /// Whether this port reports for the interface.
    reports: bool,
    shared: Arc<Shared>,
}

impl Sender {
    /// An interface for sending only. Merged packets are refused as too long.
    pub fn open(interface: &str) -> Result<Self, OpenError> {
        Self::new(interface, false, None)
    }

    /// The sending side of a ring's interface.
    pub fn for_receiver(
        receiver: &Receiver,
        number: usize,
        sends_merged: bool,
    ) -> Result<Self, OpenError> {
        let partner = Partner {
            reopened: receiver.reopened.clone(),
            known: 0,
            reports: number == 0,
            shared: receiver.shared.clone(),
        };
        Self::new(receiver.name(), sends_merged, Some(partner))
    }

    /// Sends what waited in receive rings while no process ran: for a while, waits for a full
    /// interface instead of dropping.
    pub fn catch_up(&mut self) {
        self.transmit.be_patient(CATCH_UP);
    }

    /// Checks whether [`Self::for_receiver`] could open an interface.
    pub fn probe(interface: &str, sends_merged: bool) -> Result<(), OpenError> {
        Self::new(interface, sends_merged, None).map(drop)
    }

    fn new(
        interface: &str,
        sends_merged: bool,
        partner: Option<Partner>,
    ) -> Result<Self, OpenError> {
        Ok(Self { transmit: Transmit::open(interface, sends_merged)?, partner, event: None })
    }

    /// Reopens the interface if the receiving side has done so.
    fn follow(&mut self) {
        let Some(partner) = &mut self.partner else {
            return;
        };
        let reopened = partner.reopened.load(Ordering::Relaxed);
        if reopened != partner.known {
            partner.known = reopened;
            // On failure sending fails, which is counted and reported.
            let _ = self.transmit.reopen();
        }
    }

    /// A warning that merged packets are lost; once per interface.
    fn loss_event(&self) -> Option<LinkEvent> {
        let partner = self.partner.as_ref()?;
        let is_news = self.transmit.counts.unsplit > 0
            && !partner.shared.is_loss_known.swap(true, Ordering::Relaxed);
        is_news.then(|| {
            let line = "merged packets that cannot be split again, such as in tunnels, are not \
                        sent on; keep both interfaces from merging: ethtool -K INTERFACE gro off \
                        lro off";
            LinkEvent::Warning(line.to_owned())
        })
    }
}

impl Tx for Sender {
    fn send(&mut self, burst: &Burst<'_>, which: Selection<'_>) -> Result<(), TxError> {
        self.follow();
        self.transmit.send(burst, which).inspect_err(|error| {
            // The receiving side reports an interface that is down or gone.
            let reports = self.partner.as_ref().is_none_or(|it| it.reports);
            if reports && !error.kind.is_recoverable() {
                self.event = Some(LinkEvent::Warning(format!("sending: {error}")));
            }
        })
    }

    fn name(&self) -> &str {
        &self.transmit.interface.name
    }

    fn counts(&self) -> TxCounts {
        self.transmit.counts
    }

    fn link_event(&mut self) -> Option<LinkEvent> {
        self.event.take().or_else(|| self.loss_event())
    }
}
