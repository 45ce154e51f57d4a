//! Series of flows: a part of a flow. They are collected in the store and leave by the rings.

use cring::{FlowRef, LOCAL, Label, Producer, Series, Slot};

use super::SeriesStore;
use crate::config::{Effect, SeriesShare};
use crate::entry::Counts;
use crate::flows::Flows;
use crate::ids::{Awaited, DepthId, TaskId};
use crate::manager::Given;
use crate::part::{First, Part};
use crate::tasks::Tasks;

/// A packet that was found to belong to the flow at an entry.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    pub index: u32,
    pub hash: u64,
    pub time_us: i64,
    /// The caller's clock.
    pub now_ns: u64,
    /// A label that came with the packet.
    pub given: Option<Given>,
}

/// What is collected, and where it goes.
pub(crate) struct SeriesPart {
    pub store: SeriesStore,
    /// Of which flows the records have the series.
    pub share: SeriesShare,
    /// By task; none for a task whose series are answered at once. A flow's index chooses the ring
    /// of its series.
    pub rings: Vec<Vec<Producer<Slot>>>,
    /// The series that is being answered.
    pub slot: Box<Slot>,
}

impl Part for SeriesPart {
    #[inline]
    fn begin(&mut self, index: u32, first: &First<'_>) {
        self.store.begin(index, first.midstream);
    }

    fn report(&mut self, index: u32, counts: &Counts) {
        if counts.packets[1] > 0 {
            self.store.note_both_ways(index);
        }
    }

    fn prefetch(&self, index: u32) {
        self.store.prefetch(index);
    }
}

impl SeriesPart {
    /// Whether there is a slot for each series that `packets` packets may complete.
    pub fn has_room(&mut self, packets: usize, tasks: &Tasks) -> bool {
        // All of them may want the same ring of a task.
        self.rings.iter_mut().zip(tasks.ids()).all(|(rings, task)| {
            let series = packets * tasks.task(task).series_at_once();
            let mut rings = rings.iter_mut();
            rings.all(|ring| ring.free() >= series || ring.is_abandoned())
        })
    }

    /// Makes what was sent visible.
    pub fn publish(&mut self) {
        let rings = self.rings.iter_mut().flatten();
        rings.for_each(Producer::publish);
    }

    /// Writes the series into a ring slot, or sheds it if the ring is full. A half-open flow's
    /// series is shed once half of the ring is taken, so that a flood of such flows leaves half of
    /// it to the others. By packet time nothing is shed.
    pub fn send(
        &mut self,
        flows: &mut Flows,
        arrival: &Arrival,
        depth: DepthId,
        tasks: &Tasks,
        is_named_by_port: bool,
    ) {
        let index = arrival.index;
        let place = flows.place_of(arrival.hash, index);
        let is_half_open = place.is_some_and(|place| flows.table.occupant(place).is_half_open);
        let (store, rings) = (&self.store, &mut self.rings[tasks.of_depth(depth).index()]);
        let asked = Asked::begin(store, flows, index, depth, is_named_by_port);
        let flow = asked.flow;
        let ring = index as usize % rings.len();
        let ring = &mut rings[ring];
        let gives_way =
            is_half_open && flows.effect == Effect::Arrival && ring.free() < ring.capacity() / 2;
        let pushed = !gives_way && ring.push(|slot| asked.write(store, tasks, arrival, slot));
        let word = flows.entries.word(depth, index);
        let counters = &mut flows.counters.depths[depth.index()];
        if pushed {
            flows.outbox.await_label(Awaited { flow, depth });
        } else {
            counters.series_shed += 1;
            counters.series_shed_half_open += u64::from(gives_way);
            // Cannot be post-mortem: nobody else knows of the pending word.
            let _ = word.decide(flow.generation, Label::Unlabelled);
        }
    }

    /// Whether a task's series are answered at once.
    #[inline]
    pub fn is_inline(&self, task: TaskId) -> bool {
        self.rings[task.index()].is_empty()
    }

    /// Has the series answered and gives the flow the label.
    pub fn ask<P: Part>(
        &mut self,
        flows: &mut Flows,
        arrival: &Arrival,
        depth: DepthId,
        tasks: &Tasks,
        (is_named_by_port, by): (bool, &mut P),
    ) {
        let asked = Asked::begin(&self.store, flows, arrival.index, depth, is_named_by_port);
        asked.write(&self.store, tasks, arrival, &mut self.slot);
        let flow = asked.flow;
        let label =
            by.answer(&self.slot, flows.entries.labels_now(), arrival.given.map(|it| it.label));
        // Cannot be post-mortem: nobody else knows of the pending word.
        let _ = flows.entries.word(depth, arrival.index).decide(flow.generation, label);
        flows.outbox.await_label(Awaited { flow, depth });
    }
}

/// A series that a flow's depth asks to be answered.
pub(crate) struct Asked {
    depth: DepthId,
    flow: FlowRef,
    protocol: u8,
    /// 0 where it is not known, or must not be told.
    server_port: u16,
    /// What the memory of servers says.
    local: Option<[f32; LOCAL]>,
}

impl Asked {
    /// From here on the flow waits for the label.
    fn begin(
        store: &SeriesStore,
        flows: &mut Flows,
        index: u32,
        depth: DepthId,
        is_named_by_port: bool,
    ) -> Asked {
        let asked = Asked::of(store, flows, index, depth, is_named_by_port);
        flows.entries.word(depth, index).pend(asked.flow.generation);
        flows.counters.depths[depth.index()].series_emitted += 1;
        asked
    }

    /// What a flow's depth asks, or has asked.
    #[inline]
    pub fn of(
        store: &SeriesStore,
        flows: &Flows,
        index: u32,
        depth: DepthId,
        is_named_by_port: bool,
    ) -> Asked {
        let flow = flows.entries.flow_ref(index);
        let key = flows.entries.hot(index).key();
        let (_, (_, port)) = key.ends(flows.entries.hot(index).is_low_forward());
        // If a flow began mid-stream, nobody knows who began it; and a port is not asked to confirm
        // itself.
        let server_port = match store.is_midstream(index) || is_named_by_port {
            true => 0,
            false => port,
        };
        let local = flows.servers.as_ref().map(|servers| *servers.known(index));
        Asked { depth, flow, protocol: key.protocol(), server_port, local }
    }

    fn write(&self, store: &SeriesStore, tasks: &Tasks, arrival: &Arrival, slot: &mut Slot) {
        slot.flow = self.flow;
        slot.kth_us = arrival.time_us;
        slot.emitted_ns = arrival.now_ns;
        self.read(store, tasks, &mut slot.series);
    }

    /// Writes the series as it is asked about.
    #[inline]
    pub fn read(&self, store: &SeriesStore, tasks: &Tasks, series: &mut Series) {
        let asks = (&tasks.task(tasks.of_depth(self.depth)).config, tasks.k(self.depth));
        let index = self.flow.index;
        debug_assert!(
            store.seen(index, store.number_of(asks.0.unit)) >= asks.1,
            "a series that is not complete"
        );
        (series.task, series.server_port) = (self.depth.0, self.server_port);
        store.read(index, asks, self.protocol, series);
        if let Some(local) = &self.local {
            series.set_local(local);
        }
    }
}
