//! One flow, one model: a flow is answered at all its depths by the model that answered it first.
//!
//! After a swap the task keeps the model before until the next swap. It answers
//!
//! * series that waited at the commit, because it may have answered their flows at another depth;
//! * series of flows that it has answered, or is about to answer, at a lesser depth.
//!
//! They are the retries of a [`Dispatch`] of its own: fired as soon as one of its devices is free,
//! whatever the policy, and without the cache. All other series are for the model in use.
//!
//! A flow whose model has gone, two swaps ago, gets no further answer: those that it has decide.

use super::rings::Rings;
use crate::DeviceState;
use crate::counters::Phases;
use crate::device_slot::DeviceSlot;
use crate::dispatch::Dispatch;
use crate::rows::{Retry, Row};
use cring::{FlowRef, Series};

/// The least number of series that a kept model has room for.
const ROOM_LEAST: usize = 256;

/// The devices of a model that is not in use any more, and the series that are for it.
pub(super) struct Kept {
    pub generation: u16,
    pub dispatch: Dispatch,
    /// The devices' places in the task.
    numbers: Vec<usize>,
    /// How many series may wait for it.
    room: usize,
}

impl Kept {
    /// Without devices and series yet.
    pub fn new(generation: u16) -> Kept {
        Kept { generation, dispatch: Dispatch::new(Vec::new()), numbers: Vec::new(), room: 0 }
    }

    /// Takes over all series that wait for the devices in use, and makes room for those to come.
    /// Allocates.
    pub fn take_over(
        &mut self,
        in_use: &mut Dispatch,
        rings: &mut Rings,
        now_ns: u64,
        phases: &mut Phases,
    ) {
        let series = rings.waiting() + in_use.retries.len();
        self.room = series.max(ROOM_LEAST);
        // A batch that fails comes back.
        self.dispatch.retries.reserve(self.room + in_use.capacity());
        self.dispatch.retries.append(&mut in_use.retries);
        let retries = &mut self.dispatch.retries;
        rings.hand_over(|row, series, seen_ns| {
            phases.ring_waited(seen_ns.saturating_sub(row.emitted_ns));
            phases.batch_waited(now_ns.saturating_sub(seen_ns), 1);
            retries.push_back(Retry { row, series: *series });
        });
    }

    /// A series of a flow that began with this model.
    pub fn take(&mut self, row: Row, series: &Series) {
        self.dispatch.retries.push_back(Retry { row, series: *series });
    }

    /// Takes the device with this number, which was in use until now.
    pub fn add(&mut self, number: usize, device: DeviceSlot) {
        let at = self.numbers.partition_point(|it| *it < number);
        self.numbers.insert(at, number);
        self.dispatch.device_slots.insert(at, device);
    }

    /// Whether another series may be taken.
    pub fn has_room(&self) -> bool {
        self.dispatch.retries.len() < self.room
    }

    /// Whether a series of this flow is under way here.
    pub fn has(&self, ring_input: usize, flow: FlowRef) -> bool {
        let retries = self.dispatch.retries.iter().map(|retry| &retry.row);
        let mut rows = retries.chain(self.dispatch.in_flight().map(|(_, row)| row));
        rows.any(|row| row.is_of(ring_input, flow))
    }

    /// Whether none of its devices hangs, so that it can be brought back into use.
    pub fn can_come_back(&self) -> bool {
        self.dispatch.device_slots.iter().all(|slot| slot.state() != DeviceState::Hung)
    }
}
