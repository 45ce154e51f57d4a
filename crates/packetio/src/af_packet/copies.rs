//! An interface that gets copies of what others send: its troubles must not hold up those.
//!
//! A frame that the kernel takes for an interface without a carrier counts as sent and is thrown away, so the link is looked at,
//! now and then, and only while there are copies to send.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::transmit::{Transmit, TransmitConfig};
use crate::burst::Burst;
use crate::error::{InterfaceErrorKind, OpenError, TxError};
use crate::interface::ETHERNET;
use crate::rx::LinkEvent;
use crate::tx::{Selection, Tx, TxCounts};

/// Between two looks at the link. So long, at most, copies for a link that has lost its carrier count as sent, and copies are lost
/// once it is back.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// One of several senders of copies to an interface.
#[derive(Debug)]
pub(crate) struct Copies {
    transmit: Transmit,
    /// When the link is to be looked at again.
    look_at: Instant,
    /// Whether copies are lost because of the link.
    is_away: bool,
    /// Whether people were told so, by any of the senders.
    is_told: Arc<AtomicBool>,
    event: Option<LinkEvent>,
}

impl Copies {
    /// So many senders to an interface.
    ///
    /// # Errors
    /// There is no such interface, its frames are not Ethernet, a capability is missing, …
    pub fn open(interface: &str, senders: usize) -> Result<Vec<Copies>, OpenError> {
        let config = TransmitConfig {
            interface: interface.to_owned(),
            bypasses_qdisc: false,
            sends_merged: true,
        };
        let is_told = Arc::new(AtomicBool::new(false));
        let one = |_| {
            let transmit = Transmit::open(&config)?;
            if transmit.link_type() != ETHERNET {
                return Err(OpenError::Unsuitable {
                    interface: interface.to_owned(),
                    why: "copies have Ethernet headers, and its frames do not".to_owned(),
                    cure: "name an Ethernet interface".to_owned(),
                });
            }
            Ok(Copies {
                transmit,
                look_at: Instant::now(),
                is_away: false,
                is_told: is_told.clone(),
                event: None,
            })
        };
        (0..senders).map(one).collect()
    }

    fn look(&mut self, now: Instant) {
        self.look_at = now + LOOK_EVERY;
        match self.transmit.look() {
            Ok(()) => {
                self.is_away = false;
                // Whoever is first tells; the others notice with their next copies.
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
    /// Reports nothing as an error, since what is copied goes its own way: see [`Tx::link_event`].
    fn send(&mut self, burst: &Burst<'_>, which: Selection<'_>) -> Result<(), TxError> {
        let now = Instant::now();
        if now >= self.look_at {
            self.look(now);
        }
        if self.is_away {
            self.transmit.refuse(burst, which);
        } else if let Err(error) = self.transmit.send(burst, which)
            && error.kind.is_recoverable()
        {
            // A frame that the kernel refuses for what it is says nothing of the link.
            self.be_away(&error.kind);
        }
        Ok(())
    }

    fn name(&self) -> &str {
        self.transmit.interface()
    }

    fn counts(&self) -> TxCounts {
        self.transmit.counts()
    }

    fn link_event(&mut self) -> Option<LinkEvent> {
        self.event.take()
    }
}
