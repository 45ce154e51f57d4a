//! The devices of one analytics manager, and what must be remembered of a batch while one of them works on it.

use crate::Accelerator;
use crate::cache::Key;
use accel::Device;
use cring::FlowRef;

/// One row of a batch: who asked, and what for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub inlet: usize,
    pub flow: FlowRef,
    pub emitted_ns: u64,
    pub purpose: Purpose,
}

/// What a row's result is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// To label the flow, and to be remembered by the cache under this key, if there is a cache.
    Label(Option<Key>),
    /// To be compared with this class, which the cache gave to the flow.
    Audit(u16),
}

/// A device and the batch it is working on.
pub(crate) struct Lane {
    pub accelerator: Accelerator,
    /// The batch in flight, without its padding; empty while there is none.
    pub rows: Vec<Row>,
    /// The device refused a batch in this round, and is asked again in the next one: as it is idle all the time, it would
    /// swallow in one round what another could do.
    pub resting: bool,
}

/// All lanes, with the one whose turn it is.
pub(crate) struct Dispatch {
    pub lanes: Vec<Lane>,
    next: usize,
}

impl Dispatch {
    pub fn new(accelerators: Vec<Accelerator>) -> Self {
        let lanes = accelerators
            .into_iter()
            .map(|accelerator| Lane {
                rows: Vec::with_capacity(accelerator.device.sizes().largest()),
                accelerator,
                resting: false,
            })
            .collect();
        Self { lanes, next: 0 }
    }

    /// The lanes that can take a batch, beginning with the one after the lane last used.
    pub fn idle(&self) -> impl Iterator<Item = (usize, &dyn Device)> {
        let (before, from) = self.lanes.split_at(self.next);
        let in_turn = (self.next..).zip(from).chain((0..).zip(before));
        in_turn
            .filter(|(_, lane)| !lane.resting && lane.accelerator.device.is_idle())
            .map(|(i, lane)| (i, lane.accelerator.device.as_ref()))
    }

    /// This lane is used now.
    pub fn turn_after(&mut self, lane: usize) {
        self.next = (lane + 1) % self.lanes.len();
    }

    /// Whether no batch is in flight.
    pub fn is_empty(&self) -> bool {
        self.lanes.iter().all(|lane| lane.rows.is_empty())
    }
}

impl Lane {
    pub fn can_change_over(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn change_over(&mut self, accelerator: Accelerator) -> Accelerator {
        self.rows.reserve(accelerator.device.sizes().largest());
        std::mem::replace(&mut self.accelerator, accelerator)
    }
}
