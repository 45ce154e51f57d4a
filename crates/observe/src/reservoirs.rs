//! The reservoirs of one egress: an incarnation, seven words of nothing, then samples.
//!
//! A slot's next egress finds the samples of the last one and empties them. Meanwhile the
//! incarnation is 0, so a reader that sees its egress's number before and after its copy has
//! samples of that egress only.

use std::ops::Range;

use crate::sample::{self, SAMPLE_WORDS, Sample};
use crate::sync::{AtomicU64, Ordering, fence};

/// Words in front of the first sample.
pub(crate) const RESERVOIRS_HEADER: usize = 8;

/// Empties all reservoirs for a new egress.
pub(crate) fn begin(region: &[AtomicU64], incarnation: u64) {
    region[0].store(0, Ordering::Relaxed);
    // Release: a reader that sees an emptied sample sees the 0.
    fence(Ordering::Release);
    for slot in region[RESERVOIRS_HEADER..].chunks_exact(SAMPLE_WORDS) {
        sample::clear(slot);
    }
    // Release: the samples are gone before a reader finds the new egress.
    region[0].store(incarnation, Ordering::Release);
}

/// Gives `each` the samples in `reservoir`; false if the slot has another egress, or another one by
/// the end.
pub(crate) fn read(
    region: &[AtomicU64],
    incarnation: u64,
    reservoir: Range<usize>,
    each: impl FnMut(Sample),
) -> bool {
    let before = region[0].load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    if before != incarnation {
        return false;
    }
    region[reservoir].chunks_exact(SAMPLE_WORDS).filter_map(sample::read).for_each(each);
    fence(Ordering::Acquire);
    region[0].load(Ordering::Relaxed) == incarnation
}
