//! An interface for copies of packets. Its failures must not delay the originals.
//!
//! The kernel counts a frame for an interface without a carrier as sent and drops it, so the link
//! is checked periodically while there are copies to send.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::transmit::Transmit;
use crate::burst::Burst;
use crate::error::{InterfaceErrorKind, OpenError, TxError};
use crate::interface::ETHERNET;
use crate::rx::LinkEvent;
use crate::tx::{Selection, Tx, TxCounts};

/// Interval of link checks: how long copies may count as sent after the carrier is lost, and be
/// dropped after it is back.
const CHECK_EVERY: Duration = Duration::from_millis(250);

/// One of several senders of copies to an interface.
#[derive(Debug)]
pub(crate) struct Copies {
    transmit: Transmit,
    /// When to check the link next.
    check_at: Instant,
    /// Whether copies are lost because of the link.
    is_away: bool,
    /// Whether any sender has reported the loss.
    is_told: Arc<AtomicBool>,
    event: Option<LinkEvent>,
}

impl Copies {
    /// Opens `senders` senders to an interface.
    pub fn open(interface: &str, senders: usize) -> Result<Vec<Copies>, OpenError> {
        let is_told = Arc::new(AtomicBool::new(false));
        let one = |_| {
            let transmit = Transmit::open(interface, true)?;
            if transmit.interface.link_type != ETHERNET {
                return Err(OpenError::Unsuitable {
                    interface: interface.to_owned(),
                    why: "copies have Ethernet headers, and its frames do not".to_owned(),
                    cure: "name an Ethernet interface".to_owned(),
                });
            }
            Ok(Copies {
                transmit,
                check_at: Instant::now(),
                is_away: false,
                is_told: is_told.clone(),
                event: None,
            })
        };
        (0..senders).map(one).collect()
    }

    fn check_link(&mut self, now: Instant) {
        self.check_at = now + CHECK_EVERY;
        match self.transmit.check_link() {
            Ok(()) => {
                self.is_away = false;
                // The first sender reports; the others notice with their next copies.
                if self.is_told.load(Ordering::Relaxed)
                    && self.is_told.swap(false, Ordering::Relaxed)
                {
                    let line = format!("{}: copies of packets are sent again", self.name());
                    self.event = Some(LinkEvent::Up(line));
                }
            }
            Err(kind) => self.be_away(&kind),
        }
    }

    fn be_away(&mut self, kind: &InterfaceErrorKind) {
        self.is_away = true;
        let why = match kind {
            InterfaceErrorKind::Gone => "the interface is gone",
            _ => "the interface is down, or has no carrier",
        };
        if !self.is_told.swap(true, Ordering::Relaxed) {
            let line = format!("{}: {why}: copies of packets are lost", self.name());
            self.event = Some(LinkEvent::Down(line));
        }
    }
}

impl Tx for Copies {
    /// Never fails, so that the originals go on; failures come by [`Tx::link_event`].
    fn send(&mut self, burst: &Burst<'_>, which: Selection<'_>) -> Result<(), TxError> {
        let now = Instant::now();
        if now >= self.check_at {
            self.check_link(now);
        }
        if self.is_away {
            self.transmit.refuse(burst, which);
        } else if let Err(error) = self.transmit.send(burst, which)
            && error.kind.is_recoverable()
        {
            // An error of one frame says nothing about the link.
            self.be_away(&error.kind);
        }
        Ok(())
    }

    fn name(&self) -> &str {
        &self.transmit.interface.name
    }

    fn counts(&self) -> TxCounts {
        self.transmit.counts
    }

    fn link_event(&mut self) -> Option<LinkEvent> {
        self.event.take()
    }
}
