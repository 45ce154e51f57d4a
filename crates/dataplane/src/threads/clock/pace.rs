//! Pacing a replay by its timestamps: a port in front of a port, which hands packets out when they
//! are due.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use packetio::{FrameBatch, Received, Rx, RxCounts, RxError};

/// The longest wait in one call, so that the worker looks at labels and at the end of the run in
/// between.
const WAIT_MAX: Duration = Duration::from_millis(1);

/// Says when packets are due. Clones share one clock, so that several workers keep step.
#[derive(Clone)]
pub struct Pace {
    /// Seconds of packet time per second of wall time.
    factor: f64,
    start: Arc<OnceLock<Start>>,
}

/// The start of the clock: the wall time at which a packet of `time_us` was due.
struct Start {
    at: Instant,
    time_us: i64,
}

impl Pace {
    /// Packets are due `factor` times as fast as their timestamps say.
    pub fn new(factor: f64) -> Pace {
        Pace { factor, start: Arc::default() }
    }

    /// How long until a packet of this time is due, `WAIT_MAX` at most; `None` if it is due. The
    /// first packet asked about is due at once and starts the clock.
    pub fn wait(&self, time_us: i64) -> Option<Duration> {
        let start = self.start.get_or_init(|| Start { at: Instant::now(), time_us });
        let after_us = time_us.saturating_sub(start.time_us).max(0);
        let due = Duration::try_from_secs_f64(after_us as f64 / 1e6 / self.factor);
        let wait = due.unwrap_or(Duration::MAX).checked_sub(start.at.elapsed())?;
        (!wait.is_zero()).then(|| wait.min(WAIT_MAX))
    }
}

/// A port whose packets come when they are due. It copies the packets of the port behind it.
pub struct PacedRx<R> {
    inner: R,
    pace: Pace,
    batch: FrameBatch,
    counts: RxCounts,
}

impl<R: Rx> PacedRx<R> {
    /// In front of `inner`.
    pub fn new(inner: R, pace: Pace) -> PacedRx<R> {
        PacedRx { inner, pace, batch: FrameBatch::new(), counts: RxCounts::default() }
    }

    /// How many frames of the batch are due, at most `max`; at least the next one.
    fn due(&self, max: usize) -> usize {
        let frames = self.batch.left().iter().take(max.max(1));
        let due = frames.take_while(|frame| self.pace.wait(frame.time_us).is_none());
        due.count().max(1)
    }
}

impl<R: Rx> Rx for PacedRx<R> {
    fn receive(&mut self, max: usize) -> Result<Received<'_>, RxError> {
        if self.batch.left().is_empty() {
            self.batch.clear();
            match self.inner.receive(max)? {
                Received::Burst(burst) => {
                    for (i, frame) in burst.frames().iter().enumerate() {
                        self.batch.push(frame, burst.bytes(i));
                    }
                }
                Received::Nothing => return Ok(Received::Nothing),
                Received::End => return Ok(Received::End),
            }
        }
        if let Some(wait) = self.pace.wait(self.batch.left()[0].time_us) {
            std::thread::sleep(wait);
            return Ok(Received::Nothing);
        }
        let burst = self.batch.take(self.due(max));
        self.counts.received += burst.len() as u64;
        let bytes = burst.frames().iter().map(|frame| u64::from(frame.wire));
        self.counts.bytes += bytes.sum::<u64>();
        Ok(Received::Burst(burst))
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn counts(&mut self) -> RxCounts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use packetio::{Frame, FrameBatch};

    use super::*;

    #[test]
    fn the_first_packet_and_earlier_ones_are_due_at_once() {
        let pace = Pace::new(1.0);
        assert_eq!(pace.wait(5_000_000), None);
        assert_eq!(pace.wait(4_000_000), None);
        assert_eq!(pace.wait(5_000_000 + 3_600_000_000), Some(WAIT_MAX));
        assert_eq!(pace.wait(i64::MAX), Some(WAIT_MAX));
    }

    #[test]
    fn clones_keep_step() {
        let pace = Pace::new(1.0);
        let other = pace.clone();
        assert_eq!(pace.wait(5_000_000), None);
        assert_eq!(other.wait(3_600_000_000), Some(WAIT_MAX));
    }

    #[test]
    fn a_high_factor_makes_an_hour_due_within_moments() {
        let pace = Pace::new(1e12);
        assert_eq!(pace.wait(0), None);
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(pace.wait(3_600_000_000), None);
    }

    #[test]
    fn a_burst_is_cut_where_the_next_packet_is_not_due() {
        let mut trace = FrameBatch::new();
        for (time_us, byte) in [(0, 1), (0, 2), (3_600_000_000, 3)] {
            let frame = Frame { time_us, wire: 10, ..Frame::default() };
            trace.push(&frame, &[byte]);
        }
        let mut paced = PacedRx::new(trace, Pace::new(1.0));
        let burst = paced.receive(8).unwrap().burst().expect("two are due");
        assert_eq!((burst.len(), burst.bytes(1)), (2, &[2][..]));
        assert!(matches!(paced.receive(8).unwrap(), Received::Nothing));
        let counts = paced.counts();
        assert_eq!((counts.received, counts.bytes), (2, 20), "only what was handed out");
    }
}
