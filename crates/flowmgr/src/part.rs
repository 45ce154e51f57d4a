//! Parts of a flow: what is kept of it in addition to its entry.
//!
//! A part has its own array by entry index, its own counters and settings, and is called by the
//! walk when something happens to a flow. It knows the entry's index, the packet and the time, but
//! no other part: what it needs of another, the walk passes to it. Parts are known at compile time,
//! so that one that does nothing costs nothing.

use cring::{Label, Labels, Slot};

use crate::entry::Counts;
use crate::wire::Headers;

/// The first packet of a flow.
#[derive(Clone, Copy, Debug)]
pub struct First<'a> {
    /// Its headers.
    pub headers: &'a Headers,
    /// When it came, µs since the epoch.
    pub time_us: i64,
    /// The second of flow time, wrapping.
    pub second: u16,
    /// TCP, and the packet is not the SYN that opens a connection.
    pub midstream: bool,
    /// Port where it was seen, from 1; 0 where that is not known.
    pub in_port: u8,
}

/// A packet of a flow, including the first.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Its headers.
    pub headers: &'a Headers,
    /// When it came, µs since the epoch.
    pub time_us: i64,
    /// 0 for a forward packet, 1 for one in reverse.
    pub direction: usize,
    /// How many identical packets came at once: 1, or segments of a merged packet.
    pub packets: u32,
}

/// What is kept of flows by the index of their entries, which is below [`crate::Manager::entries`].
pub trait Part {
    /// A flow begins; what is kept of the entry's last owner is void.
    fn begin(&mut self, _index: u32, _first: &First<'_>) {}

    /// A packet of the flow was counted.
    #[inline(always)]
    fn packet(&mut self, _index: u32, _packet: &Seen<'_>) {}

    /// The flow is reported with these counts, which restart from 0.
    fn report(&mut self, _index: u32, _counts: &Counts) {}

    /// Prefetches the memory of a flow whose end comes soon.
    fn prefetch(&self, _index: u32) {}

    /// The flow has ended with these counts since its last report. Its entry is free after this
    /// call.
    fn end(&mut self, _index: u32, _counts: &Counts) {}

    /// Between two bursts.
    fn settle(&mut self) {}

    /// A series of a task without rings: the label for it, at once; `given`, if it came with the
    /// packet. It counts from this packet on. `labels` has the words of all flows, with answers
    /// of earlier tasks.
    fn answer(&mut self, _asked: &Slot, _labels: &dyn Labels, _given: Option<Label>) -> Label {
        Label::Unlabelled
    }
}

impl Part for () {}

impl<T: Part> Part for Option<T> {
    fn begin(&mut self, index: u32, first: &First<'_>) {
        if let Some(part) = self {
            part.begin(index, first);
        }
    }

    #[inline(always)]
    fn packet(&mut self, index: u32, packet: &Seen<'_>) {
        if let Some(part) = self {
            part.packet(index, packet);
        }
    }

    fn report(&mut self, index: u32, counts: &Counts) {
        if let Some(part) = self {
            part.report(index, counts);
        }
    }

    fn prefetch(&self, index: u32) {
        if let Some(part) = self {
            part.prefetch(index);
        }
    }

    fn end(&mut self, index: u32, counts: &Counts) {
        if let Some(part) = self {
            part.end(index, counts);
        }
    }

    fn settle(&mut self) {
        if let Some(part) = self {
            part.settle();
        }
    }

    fn answer(&mut self, asked: &Slot, labels: &dyn Labels, given: Option<Label>) -> Label {
        self.as_mut().map_or(Label::Unlabelled, |part| part.answer(asked, labels, given))
    }
}

/// Two parts, and so any number.
impl<A: Part, B: Part> Part for (A, B) {
    fn begin(&mut self, index: u32, first: &First<'_>) {
        self.0.begin(index, first);
        self.1.begin(index, first);
    }

    #[inline(always)]
    fn packet(&mut self, index: u32, packet: &Seen<'_>) {
        self.0.packet(index, packet);
        self.1.packet(index, packet);
    }

    fn report(&mut self, index: u32, counts: &Counts) {
        self.0.report(index, counts);
        self.1.report(index, counts);
    }

    fn prefetch(&self, index: u32) {
        self.0.prefetch(index);
        self.1.prefetch(index);
    }

    fn end(&mut self, index: u32, counts: &Counts) {
        self.0.end(index, counts);
        self.1.end(index, counts);
    }

    fn settle(&mut self) {
        self.0.settle();
        self.1.settle();
    }
}
