//! A ring's slot: the series of one flow, with the reference for its label.
//!
//! A slot has room for every feature of the longest series; its fields are in the order of use: 36
//! bytes of header, then the numbers. So a series of up to 14 signed lengths (the usual K is 10) is
//! in the first cache line, and lines beyond a series are touched only for what the memory of
//! servers says, which stands in the last.

use std::mem::{align_of, offset_of, size_of};

use crate::{LOCAL, Series, series::SERIES_WORDS_MAX};

/// A flow: an entry of the flow table, and which of its successive owners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct FlowRef {
    /// Index in the table's entry array.
    pub index: u32,
    /// The entry's generation for this flow; see [`LabelWord`](crate::LabelWord).
    pub generation: u32,
}

/// A slot of the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Slot {
    /// The flow to be labelled.
    pub flow: FlowRef,
    /// Capture time of the K-th element, µs since the epoch.
    pub kth_us: i64,
    /// When the slot was pushed, ns on the threads' common clock; the time to the label starts
    /// here.
    pub emitted_ns: u64,
    /// The series to classify, and its task.
    pub series: Series,
}

const _: () = {
    // The header of a series is 12 bytes, so its numbers begin at byte 36 of the slot.
    assert!(size_of::<Series>() == 12 + 2 * SERIES_WORDS_MAX + 4 * LOCAL);
    assert!(offset_of!(Slot, series) == 24);
    assert!(size_of::<Slot>() == (36 + 2 * SERIES_WORDS_MAX).next_multiple_of(64));
    assert!(align_of::<Slot>() == 64);
};
