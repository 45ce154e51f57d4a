//! The devices of one analytics manager in turn, and the series that wait for a second one because their first failed.
//!
//! A series is retried once, on whichever device that is up is free next: that is another one, unless a probe has
//! brought the first back in the meantime. Retries go before anything new. So the series in flight for the first time
//! and those that wait for their retry are together never more than all devices hold, and the queue of retries needs no
//! more room.

use crate::Accelerator;
use crate::cache::Audit;
use crate::lane::Lane;
use cring::{FlowRef, Series};
use std::collections::VecDeque;

/// One row of a batch: who asked, what, and what for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub inlet: usize,
    pub flow: FlowRef,
    pub emitted_ns: u64,
    /// Kept for the cache's key and for a retry, because the ring slot is given back when the batch goes.
    pub series: Series,
    /// The flow has its label from the cache, and the result is to be compared with it.
    pub audit: Option<Audit>,
    /// A device has failed on it.
    pub is_retry: bool,
}

/// All lanes, with the one whose turn it is.
pub(crate) struct Dispatch {
    pub lanes: Vec<Lane>,
    /// Series that wait for their second device, in the order in which they failed.
    pub retries: VecDeque<Row>,
    next: usize,
}

impl Dispatch {
    pub fn new(accelerators: Vec<Accelerator>) -> Self {
        let lanes: Vec<Lane> = accelerators.into_iter().map(Lane::new).collect();
        let mut dispatch = Self {
            lanes,
            retries: VecDeque::new(),
            next: 0,
        };
        dispatch.reserve();
        dispatch
    }

    /// Makes room for every retry there can be with these devices.
    pub fn reserve(&mut self) {
        let rows: usize = self.lanes.iter().map(|l| l.sizes().largest()).sum();
        let more = rows.saturating_sub(self.retries.len());
        self.retries.reserve(more);
    }

    /// The lanes that can take a batch, beginning with the one after the lane last used.
    pub fn free(&self) -> impl Iterator<Item = (usize, &Lane)> {
        let (before, from) = self.lanes.split_at(self.next);
        let in_turn = (self.next..).zip(from).chain((0..).zip(before));
        in_turn.filter(|(_, lane)| lane.is_free())
    }

    /// How many devices are up, busy or not.
    pub fn up(&self) -> usize {
        self.lanes.iter().filter(|lane| lane.is_up()).count()
    }

    /// This lane is used now.
    pub fn turn_after(&mut self, lane: usize) {
        self.next = (lane + 1) % self.lanes.len();
    }

    /// Whether no series is on its way through a device, or waits for another.
    pub fn is_empty(&self) -> bool {
        self.retries.is_empty() && self.lanes.iter().all(|lane| lane.rows.is_empty())
    }

    /// The largest batch that any device takes.
    pub fn largest(&self) -> usize {
        let sizes = self.lanes.iter().map(|lane| lane.sizes().largest());
        sizes.max().unwrap_or(0)
    }
}
