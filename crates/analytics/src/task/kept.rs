//! One flow, one model: a flow is answered at all its depths by the model that answered it first.
//!
//! A [canary](super::canary) answers the flows that began with it. After a swap the task keeps the
//! model before until the next swap. That one answers
//!
//! * series that waited at the commit, because it may have answered their flows at another depth;
//! * series of flows that it has answered, or is about to answer, at a lesser depth.
//!
//! What is for such a model are the retries of a [`Dispatch`] of its own: fired as soon as one of
//! its devices is free, whatever the policy, and without the cache. All other series are for the
//! model in use.
//!
//! A flow whose model has gone, two swaps ago or with its canary, gets no further answer: those
//! that it has decide.

use super::rings::Rings;
use crate::counters::{DeviceCounters, Phases};
use crate::device_slot::{DeviceSlot, Model};
use crate::dispatch::Dispatch;
use crate::rows::{Retry, Row};
use crate::{Accelerator, DeviceState};
use cring::{FlowRef, Series};

/// The least number of series that a kept model has room for.
const ROOM_LEAST: usize = 256;

/// The devices of a model beside the one in use, and the series that are for it.
pub(super) struct Kept {
    pub model: Model,
    pub dispatch: Dispatch,
    /// The devices' places in the task.
    pub numbers: Vec<usize>,
    /// How many series may wait for it.
    room: usize,
    /// The last failure of a device. None of them is probed, so it stays down.
    pub failure: Option<String>,
}

impl Kept {
    /// Without devices and series yet.
    pub fn new(model: Model) -> Kept {
        let dispatch = Dispatch::new(Vec::new(), model);
        Kept { model, dispatch, numbers: Vec::new(), room: 0, failure: None }
    }

    /// A canary.
    pub fn canary(accelerators: Vec<Accelerator>, model: Model) -> Kept {
        let mut dispatch = Dispatch::new(accelerators, model);
        dispatch.retries.reserve(ROOM_LEAST + dispatch.capacity());
        let numbers = (0..dispatch.device_slots.len()).collect();
        Kept { model, dispatch, numbers, room: ROOM_LEAST, failure: None }
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
        rings.make_room_to_park();
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

    /// Takes all devices in use, with the batches that they work on; a canary's come in their
    /// place. It has taken over the series that waited. Returns whether plans change.
    pub fn give_way(
        &mut self,
        in_use: &mut Dispatch,
        canary: Kept,
        counters: &mut [DeviceCounters],
    ) -> bool {
        let Dispatch { device_slots, retries, .. } = canary.dispatch;
        let mut plans_change = false;
        for ((old, new), counters) in in_use.device_slots.iter().zip(&device_slots).zip(counters) {
            counters.replaced_by(&new.accelerator, old.is_up());
            plans_change |= !old.plans_as(&new.accelerator);
        }
        self.numbers = canary.numbers;
        self.dispatch.device_slots = std::mem::replace(&mut in_use.device_slots, device_slots);
        in_use.retries = retries;
        plans_change
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

    /// Whether a series of this flow is under way here. A scan, because only flows that wait for an
    /// answer at a lesser depth ask: measured, 0.15 µs for 256 retries, which is the room of a
    /// canary, and 23 µs for the 4,096 that may wait at a commit, for the ms until they are
    /// answered.
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
