//! A wrapper that loses, truncates and corrupts frames of a port, to test receivers.
//!
//! A seed gives the same faults for the same frames however they are grouped in bursts: every frame
//! draws in turn for loss, truncation, corruption.

use crate::burst::Frame;
use crate::error::RxError;
use crate::rx::{LinkEvent, Notice, Received, Rx, RxCounts, WaitHandle};

/// Probabilities of each fault, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FaultRates {
    /// Frames that disappear.
    pub loss: f64,
    /// Remaining frames cut to a random shorter captured length, maybe 0.
    pub truncation: f64,
    /// Remaining frames with one random bit flipped.
    pub corruption: f64,
}

/// Counts of injected faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Frames received from the inner port, lost ones included.
    pub received: u64,
    /// Frames lost.
    pub lost: u64,
    /// Frames cut.
    pub truncated: u64,
    /// Frames with a flipped bit.
    pub corrupted: u64,
}

/// The port that injects faults.
#[derive(Debug)]
pub struct Faults<P> {
    inner: P,
    rates: FaultRates,
    random: SplitMix64,
    counts: FaultCounts,
    handed_on: RxCounts,
    /// Drawn losses whose frames have not arrived yet.
    owed: usize,
    /// Whether the frame after these is drawn to stay.
    is_drawn: bool,
    /// Frames of the last burst; kept for its memory.
    frames: Vec<Frame>,
}

impl<P: Rx> Faults<P> {
    /// Wraps `inner`.
    pub fn new(inner: P, rates: FaultRates, seed: u64) -> Self {
        Self {
            inner,
            rates,
            random: SplitMix64(seed),
            counts: FaultCounts::default(),
            handed_on: RxCounts::default(),
            owed: 0,
            is_drawn: false,
            frames: Vec::new(),
        }
    }

    /// Faults injected so far.
    pub fn faults(&self) -> FaultCounts {
        self.counts
    }

    /// The inner port.
    pub fn inner(&self) -> &P {
        &self.inner
    }

    /// Drops the lost frames in front of the next frame that stays. A burst cannot be given back,
    /// so this comes before receiving the burst to hand out. What a live port does not have yet
    /// stays owed. Returns what the inner port says where not all drawn losses have arrived.
    fn lose(&mut self, max: usize) -> Result<Option<Received<'static>>, RxError> {
        while !self.is_drawn || self.owed > 0 {
            if self.owed == 0 {
                let drawn = (0..max).take_while(|_| self.random.strikes(self.rates.loss));
                self.owed = drawn.count();
                self.is_drawn = self.owed < max;
                continue;
            }
            let burst = match self.inner.receive(self.owed)? {
                Received::Burst(burst) => burst,
                Received::Nothing => return Ok(Some(Received::Nothing)),
                Received::End => return Ok(Some(Received::End)),
            };
            self.owed -= burst.len();
            self.counts.received += burst.len() as u64;
            self.counts.lost += burst.len() as u64;
        }
        Ok(None)
    }
}

impl<P: Rx> Rx for Faults<P> {
    fn receive(&mut self, max: usize) -> Result<Received<'_>, RxError> {
        if self.rates == FaultRates::default() {
            let received = self.inner.receive(max)?;
            if let Received::Burst(burst) = &received {
                self.counts.received += burst.len() as u64;
                self.handed_on.count(burst.frames());
            }
            return Ok(received);
        }
        if let Some(none) = self.lose(max.max(1))? {
            return Ok(none);
        }
        let Self { inner, rates, random, counts, frames: kept, .. } = self;
        let mut burst = match inner.receive(max)? {
            Received::Burst(burst) => burst,
            other => return Ok(other),
        };
        self.is_drawn = false;
        let (data, frames) = burst.parts();
        counts.received += frames.len() as u64;
        kept.clear();
        for (i, &frame) in frames.iter().enumerate() {
            // `lose` has drawn for the first frame.
            if i > 0 && random.strikes(rates.loss) {
                counts.lost += 1;
                continue;
            }
            let mut frame = frame;
            if random.strikes(rates.truncation) && frame.captured > 0 {
                frame.captured = random.below(u64::from(frame.captured)) as u32;
                counts.truncated += 1;
            }
            let bytes = &mut data[frame.range()];
            if random.strikes(rates.corruption) && !bytes.is_empty() {
                let bit = random.below(8 * bytes.len() as u64) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
                counts.corrupted += 1;
            }
            kept.push(frame);
        }
        self.handed_on.count(kept);
        burst.keep(kept);
        Ok(Received::Burst(burst))
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn notify(&mut self, notice: Notice<'_>) -> bool {
        // Frames cannot be left to another process: some were drawn to be lost.
        !matches!(notice, Notice::Leave) && self.inner.notify(notice)
    }

    /// The inner port's counts, with frames and bytes as handed out.
    fn counts(&mut self) -> RxCounts {
        RxCounts {
            received: self.handed_on.received,
            bytes: self.handed_on.bytes,
            ..self.inner.counts()
        }
    }

    fn is_live(&self) -> bool {
        self.inner.is_live()
    }

    fn link_event(&mut self) -> Option<LinkEvent> {
        self.inner.link_event()
    }

    fn is_lost(&self) -> bool {
        self.inner.is_lost()
    }

    fn is_failed(&self) -> bool {
        self.inner.is_failed()
    }

    fn wait_handle(&self) -> WaitHandle<'_> {
        self.inner.wait_handle()
    }
}

/// Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014.
#[derive(Debug)]
pub(crate) struct SplitMix64(pub u64);

impl SplitMix64 {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Draws: true with the given probability.
    fn strikes(&mut self, probability: f64) -> bool {
        // 53 random bits: every multiple of 2^-53 in [0, 1).
        ((self.next() >> 11) as f64) * (-53.0_f64).exp2() < probability
    }

    /// A number below `bound`, which must not be 0.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::FrameBatch;

    const FRAMES: u64 = 4000;

    fn trace() -> FrameBatch {
        let mut trace = FrameBatch::new();
        for i in 0..FRAMES {
            let frame = Frame { wire: 100, time_us: i as i64, ..Frame::default() };
            trace.push(&frame, &[0; 100]);
        }
        trace
    }

    fn rates(loss: f64, truncation: f64, corruption: f64) -> FaultRates {
        FaultRates { loss, truncation, corruption }
    }

    /// What comes out: time and bytes of each frame, and the counts.
    fn run(rates: FaultRates, seed: u64, max: usize) -> (Vec<(i64, Vec<u8>)>, FaultCounts) {
        let mut faults = Faults::new(trace(), rates, seed);
        let mut out = Vec::new();
        while let Received::Burst(burst) = faults.receive(max).unwrap() {
            assert!(!burst.is_empty() && burst.len() <= max);
            for (i, frame) in burst.frames().iter().enumerate() {
                assert_eq!(frame.wire, 100);
                out.push((frame.time_us, burst.bytes(i).to_vec()));
            }
        }
        (out, faults.faults())
    }

    /// A port that has nothing every other time, as live ones may.
    struct Hesitant(FrameBatch, bool);

    impl Rx for Hesitant {
        fn receive(&mut self, max: usize) -> Result<Received<'_>, RxError> {
            self.1 = !self.1;
            if self.1 {
                return Ok(Received::Nothing);
            }
            self.0.receive(max)
        }

        fn name(&self) -> &str {
            "hesitant"
        }

        fn counts(&mut self) -> RxCounts {
            self.0.counts()
        }
    }

    #[test]
    fn an_idle_port_is_passed_on_and_changes_nothing() {
        let rates = rates(0.5, 0.25, 0.125);
        let mut faults = Faults::new(Hesitant(trace(), false), rates, 7);
        let (mut out, mut empty) = (Vec::new(), 0);
        loop {
            let burst = match faults.receive(32).unwrap() {
                Received::Burst(burst) => burst,
                Received::Nothing => {
                    empty += 1;
                    continue;
                }
                Received::End => break,
            };
            for (i, frame) in burst.frames().iter().enumerate() {
                out.push((frame.time_us, burst.bytes(i).to_vec()));
            }
        }
        assert_eq!((out, faults.faults()), run(rates, 7, 32));
        assert!(empty > 0);
    }

    #[test]
    fn without_rates_nothing_happens() {
        let (out, counts) = run(rates(0.0, 0.0, 0.0), 1, 32);
        assert!(
            out.iter().enumerate().all(|(i, (us, bytes))| *us == i as i64 && *bytes == [0; 100])
        );
        let expected = FaultCounts { received: FRAMES, ..FaultCounts::default() };
        assert_eq!((out.len() as u64, counts), (FRAMES, expected));
    }

    #[test]
    fn counts_tell_what_was_done_and_match_the_rates() {
        let (out, counts) = run(rates(0.5, 0.25, 0.125), 7, 32);
        let left = out.len() as u64;
        assert_eq!((counts.received, counts.lost), (FRAMES, FRAMES - left));
        let cut = out.iter().filter(|(_, bytes)| bytes.len() < 100).count() as u64;
        assert_eq!(counts.truncated, cut);
        let flipped = |bytes: &Vec<u8>| bytes.iter().map(|byte| byte.count_ones()).sum::<u32>();
        let bits: u32 = out.iter().map(|(_, bytes)| flipped(bytes)).sum();
        assert_eq!(counts.corrupted, u64::from(bits));
        // Five standard deviations around what the rates ask for.
        for (count, of, rate) in [
            (counts.lost, FRAMES, 0.5),
            (counts.truncated, left, 0.25),
            (counts.corrupted, left, 0.125),
        ] {
            let of = of as f64;
            let deviation = (of * rate * (1.0 - rate)).sqrt();
            assert!((count as f64 - of * rate).abs() < 5.0 * deviation, "{count} of {of}");
        }
    }

    #[test]
    fn a_seed_tells_all_whatever_the_bursts() {
        let rates = rates(0.3, 0.3, 0.3);
        let reference = run(rates, 42, 1);
        for max in [2, 3, 32, 10_000] {
            assert_eq!(run(rates, 42, max), reference);
        }
        assert_ne!(run(rates, 43, 32), reference);
    }

    #[test]
    fn certain_loss_leaves_nothing() {
        let (out, counts) = run(rates(1.0, 1.0, 1.0), 3, 32);
        let expected = FaultCounts { received: FRAMES, lost: FRAMES, ..FaultCounts::default() };
        assert_eq!((out.len(), counts), (0, expected));
    }
}
