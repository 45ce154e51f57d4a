//! Series of flows: a part of a flow. They are collected in the store and leave by the rings.

use cring::{Label, Producer, Slot};

use super::SeriesStore;
use crate::config::{Effect, SeriesShare};
use crate::entry::Counts;
use crate::flows::Flows;
use crate::ids::Awaited;
use crate::ids::DepthId;
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
}

/// What is collected, and where it goes.
pub(crate) struct SeriesPart {
    pub store: SeriesStore,
    /// Of which flows the records have the series.
    pub share: SeriesShare,
    /// By task, at least one each. A flow's index chooses the ring of its series.
    pub rings: Vec<Vec<Producer<Slot>>>,
}

impl Part for SeriesPart {
    fn begin(&mut self, index: u32, first: &First<'_>) {
        self.store.begin(index, first.midstream, first.in_port);
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
        let flow = flows.entries.flow_ref(index);
        let word = flows.entries.word(depth, index);
        word.pend(flow.generation);
        let counters = &mut flows.counters.depths[depth.index()];
        counters.series_emitted += 1;
        let store = &self.store;
        let key = flows.entries.hot(index).key();
        let (_, (_, port)) = key.ends(flows.entries.hot(index).is_low_forward());
        // If a flow began mid-stream, nobody knows who began it; and a port is not asked to confirm
        // itself.
        let server_port = match store.is_midstream(index) || is_named_by_port {
            true => 0,
            false => port,
        };
        let rings = &mut self.rings[tasks.of_depth(depth).index()];
        let ring = index as usize % rings.len();
        let ring = &mut rings[ring];
        let gives_way =
            is_half_open && flows.effect == Effect::Arrival && ring.free() < ring.capacity() / 2;
        let asks = (&tasks.task(tasks.of_depth(depth)).config, tasks.k(depth));
        debug_assert!(
            store.seen(index, store.number_of(asks.0.unit)) >= asks.1,
            "a series that is not complete"
        );
        let pushed = !gives_way
            && ring.push(|slot| {
                slot.flow = flow;
                slot.kth_us = arrival.time_us;
                slot.emitted_ns = arrival.now_ns;
                (slot.series.task, slot.series.server_port) = (depth.0, server_port);
                store.read(index, asks, key.protocol(), &mut slot.series);
            });
        if pushed {
            flows.outbox.await_label(Awaited { flow, depth });
        } else {
            counters.series_shed += 1;
            counters.series_shed_half_open += u64::from(gives_way);
            // Cannot be post-mortem: nobody else knows of the pending word.
            let _ = word.decide(flow.generation, Label::Unlabelled);
        }
    }
}
