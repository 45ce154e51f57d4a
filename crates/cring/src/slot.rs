//! What the ring carries: the series of one flow, with the reference by which its label finds the way back.
//!
//! A slot has room for every feature of the longest series, and its fields stand in the order in which they are wanted: 34
//! bytes of header, then the numbers. So a series of up to 15 signed lengths (the usual K is 10) lies in the first cache
//! line, and lines beyond what a series uses are never touched.

use std::mem::{align_of, offset_of, size_of};

use crate::{Series, series::SERIES_WORDS_MAX};

/// Names one flow: an entry of the flow table and which of its owners, one after another, is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct FlowRef {
    /// The entry's place in the table's entry array.
    pub index: u32,
    /// The entry's generation while this flow owned it; see [`LabelWord`](crate::LabelWord).
    pub generation: u32,
}

/// One place in the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Slot {
    /// The flow that asks for a label.
    pub flow: FlowRef,
    /// Capture time of the K-th element, µs since the epoch.
    pub kth_us: i64,
    /// When the slot was pushed, ns on the clock that the caller's threads share; the time to the label starts here.
    pub emitted_ns: u64,
    /// What is to be classified, and for which task.
    pub series: Series,
}

const _: () = {
    // The header of a series is 10 bytes, so its numbers begin at byte 34 of the slot.
    assert!(size_of::<Series>() == (10 + 2 * SERIES_WORDS_MAX).next_multiple_of(4));
    assert!(offset_of!(Slot, series) == 24);
    assert!(size_of::<Slot>() == (34 + 2 * SERIES_WORDS_MAX).next_multiple_of(64));
    assert!(align_of::<Slot>() == 64);
};
