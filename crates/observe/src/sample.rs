//! One sample of a reservoir: a sequence, a time and a value, written in place.
//!
//! The sequence is twice the sample's number, counted per reservoir from 1, and odd while the other
//! two words change. Numbers never start again, so two equal even sequences around a copy mean one
//! sample.

use crate::sync::{AtomicU64, Ordering, fence};

/// Words of a sample: sequence, time, value.
pub(crate) const SAMPLE_WORDS: usize = 3;

/// Copies of a sample that a reader begins before it leaves the sample out.
const TRIES: usize = if cfg!(loom) { 1 } else { 4 };

/// A measured value and when it was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Position in the sequence of all samples of this reservoir, from 1.
    pub number: u64,
    /// ns since the epoch.
    pub time_ns: u64,
    /// In the field's unit.
    pub value: u64,
}

#[inline]
pub(crate) fn write(slot: &[AtomicU64], sample: Sample) {
    slot[0].store(sample.number.wrapping_mul(2).wrapping_sub(1), Ordering::Relaxed);
    // Release: a reader that sees a word below sees the odd sequence.
    fence(Ordering::Release);
    slot[1].store(sample.time_ns, Ordering::Relaxed);
    slot[2].store(sample.value, Ordering::Relaxed);
    // Release: both words are written before the even sequence is seen.
    slot[0].store(sample.number.wrapping_mul(2), Ordering::Release);
}

/// The sample in a slot; `None` where there is none, or it is being overwritten.
#[inline]
pub(crate) fn read(slot: &[AtomicU64]) -> Option<Sample> {
    (0..TRIES).find_map(|_| read_once(slot))
}

#[inline]
fn read_once(slot: &[AtomicU64]) -> Option<Sample> {
    let before = slot[0].load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    let time_ns = slot[1].load(Ordering::Relaxed);
    let value = slot[2].load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    let after = slot[0].load(Ordering::Relaxed);
    let is_whole = before == after && before != 0 && before.is_multiple_of(2);
    is_whole.then_some(Sample { number: before / 2, time_ns, value })
}

/// Empties a slot. Readers then see no sample there.
pub(crate) fn clear(slot: &[AtomicU64]) {
    slot[0].store(0, Ordering::Relaxed);
}
