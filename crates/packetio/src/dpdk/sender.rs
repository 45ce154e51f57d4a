//! A send queue as a destination.

use dpdk::{BURST_MAX, Link, TxQueue};

use crate::burst::Burst;
use crate::error::{InterfaceErrorKind, TxError};
use crate::tx::{Selection, Tx, TxCounts};

/// A send queue of a device.
#[derive(Debug)]
pub(crate) struct Sender {
    queue: TxQueue,
    frame_max: u32,
    /// The frames to send; kept for its memory.
    chosen: Vec<usize>,
    counts: TxCounts,
    /// The link was reported as down.
    is_down: bool,
}

impl Sender {
    pub fn new(queue: TxQueue) -> Sender {
        Sender {
            frame_max: queue.port().frame_max(),
            queue,
            chosen: Vec::with_capacity(BURST_MAX),
            counts: TxCounts::default(),
            is_down: false,
        }
    }

    /// Chooses the frames of a part of the burst; counts those that cannot be sent.
    fn choose(&mut self, burst: &Burst<'_>, part: std::ops::Range<usize>, which: Selection<'_>) {
        self.chosen.clear();
        for i in part.filter(|i| which.has(*i)) {
            let frame = &burst.frames()[i];
            if frame.captured < frame.wire {
                self.counts.cut += 1;
            } else if frame.captured > self.frame_max {
                self.counts.too_long += 1;
            } else {
                self.chosen.push(i);
            }
        }
    }
}

impl Tx for Sender {
    fn send(&mut self, burst: &Burst<'_>, which: Selection<'_>) -> Result<(), TxError> {
        let mut refused = 0;
        for start in (0..burst.len()).step_by(BURST_MAX) {
            let part = start..burst.len().min(start + BURST_MAX);
            self.choose(burst, part, which);
            let chosen = self.chosen.iter().copied();
            let taken = match burst.as_lent() {
                Some(lent) => self.queue.send(lent, chosen),
                None => self.queue.send_copies(chosen.map(|i| burst.bytes(i))),
            };
            let bytes = |i: &usize| u64::from(burst.frames()[*i].captured);
            self.counts.sent += taken as u64;
            self.counts.sent_bytes += self.chosen[..taken].iter().map(bytes).sum::<u64>();
            refused += self.chosen.len() - taken;
        }
        self.counts.refused += refused as u64;
        let was_down = std::mem::replace(&mut self.is_down, false);
        if refused > 0 && self.queue.port().link() != Link::Up {
            self.is_down = true;
            if !was_down {
                let line = format!("{}: the link is down", self.name());
                return Err(TxError { kind: InterfaceErrorKind::Down, line });
            }
        }
        Ok(())
    }

    fn name(&self) -> &str {
        self.queue.port().name()
    }

    fn counts(&self) -> TxCounts {
        self.counts
    }
}
