//! Frames held in memory and replayed: for tests, and to measure the data path without a port.
//!
//! Bursts are slices of the held frames, so a replay copies nothing, and changes made by a receiver
//! persist into the next round.

use crate::batch::FrameBatch;
use crate::burst::Frame;
use crate::error::RxError;
use crate::rx::{Received, Rx, RxCounts};

/// A sequence of frames, replayed once or several times.
#[derive(Clone, Debug)]
pub struct MemoryTrace {
    held: FrameBatch,
    /// Index of the next frame to hand out.
    next: usize,
    rounds_left: u64,
    period_us: i64,
    counts: RxCounts,
}

impl Default for MemoryTrace {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryTrace {
    /// A trace without frames, to be replayed once.
    pub fn new() -> Self {
        Self {
            held: FrameBatch::new(),
            next: 0,
            rounds_left: 1,
            period_us: 0,
            counts: RxCounts::default(),
        }
    }

    /// Loads all frames of a port.
    ///
    /// # Errors
    /// The port fails.
    pub fn load(port: &mut dyn Rx) -> Result<Self, RxError> {
        const BURST: usize = 256;
        let mut trace = Self::new();
        loop {
            match port.receive(BURST)? {
                Received::Burst(burst) => {
                    for (i, frame) in burst.frames().iter().enumerate() {
                        trace.push(frame, burst.bytes(i));
                    }
                }
                Received::Nothing => {}
                Received::End => return Ok(trace),
            }
        }
    }

    /// Appends a frame with these bytes; `frame.at` and `frame.captured` are ignored.
    pub fn push(&mut self, frame: &Frame, bytes: &[u8]) {
        self.held.push(frame, bytes);
    }

    /// Replays `rounds` times from the first frame, each round `period_us` later. With a period
    /// longer than [`Self::span_us`], time never steps back between rounds.
    pub fn repeat(mut self, rounds: u64, period_us: i64) -> Self {
        self.next = 0;
        self.rounds_left = rounds;
        self.period_us = period_us;
        self
    }

    /// Number of frames held.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether there are no frames.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Microseconds from the earliest to the latest frame.
    pub fn span_us(&self) -> i64 {
        let times = self.held.frames.iter().map(|frame| frame.time_us);
        let (first, last) = (times.clone().min(), times.max());
        last.unwrap_or(0).saturating_sub(first.unwrap_or(0))
    }

    fn start_next_round(&mut self) {
        self.next = 0;
        self.rounds_left -= 1;
        for frame in &mut self.held.frames {
            frame.time_us = frame.time_us.saturating_add(self.period_us);
        }
    }
}

impl Rx for MemoryTrace {
    fn receive(&mut self, max: usize) -> Result<Received<'_>, RxError> {
        if self.next == self.held.len() && self.rounds_left > 1 {
            self.start_next_round();
        }
        if self.next == self.held.len() || self.rounds_left == 0 {
            return Ok(Received::End);
        }
        let burst = self.held.part(self.next, max.max(1));
        self.next += burst.len();
        self.counts.count(burst.frames());
        Ok(Received::Burst(burst))
    }

    fn name(&self) -> &str {
        "memory"
    }

    fn counts(&mut self) -> RxCounts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `count` frames, the i-th with i bytes of value i and time 10 i.
    fn trace(count: u8) -> MemoryTrace {
        let mut trace = MemoryTrace::new();
        for i in 0..count {
            let frame = Frame { time_us: 10 * i64::from(i), wire: 99, ..Frame::default() };
            trace.push(&frame, &vec![i; usize::from(i)]);
        }
        trace
    }

    /// The frames handed out: bytes and times, and the burst sizes.
    fn drain(port: &mut dyn Rx, max: usize) -> (Vec<(Vec<u8>, i64)>, Vec<usize>) {
        let (mut frames, mut sizes) = (Vec::new(), Vec::new());
        while let Received::Burst(burst) = port.receive(max).unwrap() {
            sizes.push(burst.len());
            for (i, frame) in burst.frames().iter().enumerate() {
                frames.push((burst.bytes(i).to_vec(), frame.time_us));
            }
        }
        (frames, sizes)
    }

    #[test]
    fn frames_come_in_order_and_in_bursts() {
        let (frames, sizes) = drain(&mut trace(5), 2);
        assert_eq!(sizes, [2, 2, 1]);
        let expected: Vec<_> =
            (0..5_u8).map(|i| (vec![i; usize::from(i)], 10 * i64::from(i))).collect();
        assert_eq!(frames, expected);
    }

    #[test]
    fn rounds_move_on_by_the_period() {
        let once = trace(3);
        assert_eq!(once.span_us(), 20);
        let times = |rounds| {
            let (frames, _) = drain(&mut once.clone().repeat(rounds, 100), 2);
            frames.into_iter().map(|(_, us)| us).collect::<Vec<_>>()
        };
        assert_eq!(times(0), [0; 0]);
        assert_eq!(times(1), [0, 10, 20]);
        assert_eq!(times(3), [0, 10, 20, 100, 110, 120, 200, 210, 220]);
    }

    #[test]
    fn a_trace_without_frames_ends_at_once() {
        let mut empty = MemoryTrace::new().repeat(u64::MAX, 1);
        assert!(empty.is_empty());
        assert_eq!(drain(&mut empty, 8).1, [0; 0]);
    }

    #[test]
    fn a_loaded_trace_equals_its_source() {
        let mut loaded = MemoryTrace::load(&mut trace(9)).unwrap();
        assert_eq!(loaded.len(), 9);
        assert_eq!(drain(&mut loaded, 4).0, drain(&mut trace(9), 9).0);
    }

    #[test]
    fn what_a_receiver_writes_stays() {
        let mut trace = trace(2).repeat(2, 0);
        let mut burst = trace.receive(8).unwrap().burst().unwrap();
        burst.bytes_mut(1)[0] = 77;
        let again = trace.receive(8).unwrap().burst().unwrap();
        assert_eq!(again.bytes(1), [77]);
    }
}
