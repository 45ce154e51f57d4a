//! The devices of one analytics manager, and what must be remembered of a batch while one of them works on it.

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
    pub device: Box<dyn Device>,
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
    pub fn new(devices: Vec<Box<dyn Device>>) -> Self {
        let lanes = devices
            .into_iter()
            .map(|device| Lane {
                rows: Vec::with_capacity(device.sizes().largest()),
                device,
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
            .filter(|(_, lane)| !lane.resting && lane.device.is_idle())
            .map(|(i, lane)| (i, lane.device.as_ref()))
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
