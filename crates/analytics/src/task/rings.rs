//! A task's rings: what has come is looked up in the cache once, or kept for a batch.

use super::after::{After, Verdict};
use super::labelling::Labelling;
use super::whose::{Models, Whose};
use crate::RingInput;
use crate::cache::{Cache, LookUp};
use crate::ring_input::{Queue, Seen};
use crate::rows::Row;
use cring::{FlowRef, Label, Labels, Series, Source};
use std::time::Duration;

/// At least this many series of a ring are looked at per round, even where batches are smaller,
/// because the cache may answer most.
const LOOK_MAX_LEAST: usize = 64;

/// A producer that sent nothing for this long may be waiting for a label. Much longer than one that
/// does not wait takes to read on.
const STALL: Duration = Duration::from_millis(5);

/// The rings, in the order of the flow managers, and the series that wait in them.
pub(crate) struct Rings {
    pub(super) queues: Vec<Queue>,
    /// What the labels of other tasks must say before this one is asked.
    after: After,
    /// Series whose awaited labels have come; empty between two looks.
    ready: Vec<Seen>,
    /// Labels of the manager's tasks decided before the last look at parked series.
    reconsidered_at: u64,
    /// The ring with which this round began.
    turn: usize,
    /// The most series of one ring that are looked at in one round.
    look_max: usize,
    /// When a series last came, in a replay whose producers may wait for labels; else `None`.
    news_ns: Option<u64>,
}

/// The cache, if there is one, and the clock that its costs are measured by, in ns.
pub(super) struct TimedCache {
    pub cache: Option<Cache>,
    pub clock: Box<dyn Fn() -> u64 + Send>,
}

/// The result of a look at a ring.
#[derive(Default)]
struct Looked {
    /// Series seen for the first time.
    seen: usize,
    /// Series for the devices, seen before or not.
    kept: usize,
}

impl Rings {
    pub fn new(inputs: Vec<RingInput>, after: After) -> Self {
        let parks = !after.is_nothing();
        let slots = inputs.iter().map(|input| input.series.capacity()).max();
        let queues = inputs.into_iter().map(|input| Queue::new(input, parks));
        Self {
            queues: queues.collect(),
            ready: Vec::with_capacity(if parks { slots.unwrap_or(0) } else { 0 }),
            after,
            reconsidered_at: 0,
            turn: 0,
            look_max: LOOK_MAX_LEAST,
            news_ns: None,
        }
    }

    /// Whether the task is asked about a flow, by the labels that others have given by now.
    pub fn is_asked(&self, labels: &dyn Labels, flow: FlowRef) -> bool {
        self.after.is_nothing() || self.after.verdict(labels, flow) == Verdict::Asked
    }

    /// Lets a round look at as many series of a ring as the largest batch holds.
    pub fn set_largest_batch(&mut self, rows: usize) {
        self.look_max = rows.max(LOOK_MAX_LEAST);
    }

    /// Producers may wait for a label before they send more.
    pub fn expect_stalls(&mut self) {
        self.news_ns = Some(0);
    }

    /// Whether producers that may wait for a label have sent nothing for some time.
    pub fn is_stalled(&self, now_ns: u64) -> bool {
        let stall_ns = STALL.as_nanos() as u64;
        self.news_ns.is_some_and(|news_ns| now_ns.saturating_sub(news_ns) >= stall_ns)
    }

    /// Whether a ring is full of series that wait: more will be shed, or a replay waits for room.
    pub fn is_crowded(&self) -> bool {
        self.queues.iter().any(Queue::is_full)
    }

    /// Whether all producers have closed and no series waits, as of the last look.
    pub fn is_done(&self) -> bool {
        self.queues.iter().all(Queue::is_done)
    }

    /// Series that wait for a batch, in all rings.
    pub fn waiting(&self) -> usize {
        self.queues.iter().map(Queue::waiting).sum()
    }

    /// When the series that has waited longest was seen.
    pub fn oldest_seen_ns(&self) -> Option<u64> {
        self.queues.iter().filter_map(Queue::oldest_seen_ns).min()
    }

    /// When the oldest waiting series was emitted.
    pub fn oldest_emitted_ns(&self) -> Option<u64> {
        let queues = self.queues.iter();
        queues.filter_map(Queue::oldest_emitted_ns).min()
    }

    /// When the oldest unseen series was emitted.
    pub fn oldest_unseen_ns(&mut self) -> Option<u64> {
        let queues = self.queues.iter_mut();
        queues.filter_map(Queue::oldest_unseen_ns).min()
    }

    /// The ring whose front has waited longest, and when that was seen. Among several seen in the
    /// same round, the first in turn.
    pub fn oldest(&self) -> Option<(usize, u64)> {
        in_turn(self.turn, self.queues.len())
            .filter_map(|i| Some((i, self.queues[i].oldest_seen_ns()?)))
            .min_by_key(|(_, seen_ns)| *seen_ns)
    }

    /// Whether series wait for labels of other tasks.
    pub fn has_parked(&self) -> bool {
        self.queues.iter().any(Queue::has_parked)
    }

    /// Whether series wait for labels of other tasks, some of which were decided since the last
    /// look. `decided` counts the labels of all tasks of the manager.
    pub fn has_arrivals(&self, decided: u64) -> bool {
        decided != self.reconsidered_at && self.has_parked()
    }

    /// The first label words of the tasks whose labels this one waits for.
    pub fn waits_for(&self) -> impl Iterator<Item = u8> {
        self.after.needs.iter().map(|need| need.words.first)
    }

    /// Gives back slots that are done with.
    pub fn release(&mut self) {
        self.queues.iter_mut().for_each(Queue::release);
    }

    /// Gives up all series that wait. Returns how many waited for a label, not for an audit.
    pub fn shed(&mut self) -> u64 {
        let mut shed = 0;
        for queue in &mut self.queues {
            while let Some((audit, slot)) = queue.take() {
                if audit.is_none() {
                    let (task, flow) = (slot.series.task, slot.flow);
                    let _ = queue.decide(task, flow, Label::Unlabelled);
                    shed += 1;
                }
            }
            queue.release();
        }
        shed
    }

    /// From now on series may have to wait for another model than the one in use. Allocates.
    pub fn make_room_to_park(&mut self) {
        for queue in &mut self.queues {
            queue.make_room_to_park();
            self.ready.reserve(queue.slots());
        }
    }

    /// Takes out all series that wait for a batch, with the times when they were seen; those that
    /// wait only for an audit are dropped.
    pub fn hand_over(&mut self, mut to: impl FnMut(Row, &Series, u64)) {
        for (ring_input, queue) in self.queues.iter_mut().enumerate() {
            while let Some(seen_ns) = queue.oldest_seen_ns()
                && let Some((audit, slot)) = queue.take()
            {
                if audit.is_none() {
                    to(Row::new(ring_input, slot), &slot.series, seen_ns);
                }
            }
            queue.release();
        }
    }

    /// Looks at what is new in the rings, in turn. Returns whether there was anything. `decided`
    /// counts the labels of all tasks of the manager.
    pub(super) fn poll(
        &mut self,
        now_ns: u64,
        decided: u64,
        models: &mut Models<'_>,
        cache: &mut TimedCache,
        labelling: &mut Labelling,
    ) -> bool {
        self.turn = (self.turn + 1) % self.queues.len().max(1);
        let (mut seen, mut kept) = (0, 0);
        for i in in_turn(self.turn, self.queues.len()) {
            let looked = self.look_at(i, (now_ns, decided), models, cache, labelling);
            seen += looked.seen;
            kept += looked.kept;
        }
        // Once for all rings, because one batch takes from all of them.
        labelling.measure.arrived(kept);
        if let Some(news_ns) = &mut self.news_ns
            && seen > 0
        {
            *news_ns = now_ns;
        }
        self.reconsidered_at = decided;
        seen > 0
    }

    /// Looks at what is new in one ring, up to the bound.
    fn look_at(
        &mut self,
        ring_input: usize,
        (now_ns, decided): (u64, u64),
        models: &mut Models<'_>,
        cache: &mut TimedCache,
        labelling: &mut Labelling,
    ) -> Looked {
        let queue = &mut self.queues[ring_input];
        let new = queue.unseen().min(self.look_max);
        let has_arrivals = decided != self.reconsidered_at;
        if new == 0 && !(has_arrivals && queue.has_parked()) {
            return Looked::default();
        }
        labelling.counters.series += new as u64;
        let kept = if self.after.is_nothing() && !models.are_several() {
            let series = queue.take_unseen(new, now_ns);
            cache.admit(queue, new, series, now_ns, labelling)
        } else {
            self.sort_out(ring_input, new, now_ns, models, labelling);
            let (queue, ready) = (&mut self.queues[ring_input], &self.ready);
            cache.admit(queue, ready.len(), ready.iter().copied(), now_ns, labelling)
        };
        self.queues[ring_input].release();
        Looked { seen: new, kept }
    }

    /// Checks other labels for the series of one ring: series for the model in use are in `ready`
    /// afterwards, the model before and the canary have those that are for them, series without
    /// their labels yet are parked, and the others are done with.
    fn sort_out(
        &mut self,
        ring_input: usize,
        new: usize,
        now_ns: u64,
        models: &mut Models<'_>,
        labelling: &mut Labelling,
    ) {
        let (after, queue) = (&self.after, &mut self.queues[ring_input]);
        let (ready, counters) = (&mut self.ready, &mut labelling.counters);
        ready.clear();
        let mut waits = |queue: &Queue, seen: Seen| {
            let slot = queue.slot(seen.number);
            match after.verdict(queue.labels(), slot.flow) {
                Verdict::Waits => return true,
                Verdict::Asked => {}
                Verdict::NotAsked => {
                    counters.not_asked += 1;
                    queue.give_none(slot);
                    return false;
                }
            }
            match models.whose(queue.labels(), ring_input, slot) {
                Whose::InUse => ready.push(seen),
                Whose::Kept(kept) => {
                    if !kept.has_room() {
                        return true;
                    }
                    kept.take(Row::new(ring_input, slot), &slot.series);
                    let waited_ns = now_ns.saturating_sub(slot.emitted_ns);
                    counters.phases.ring_waited(waited_ns);
                    counters.phases.batch_waited(0, 1);
                }
                Whose::Gone => {
                    counters.not_asked += 1;
                    queue.give_none(slot);
                }
            }
            false
        };
        queue.reconsider(|queue, seen| !waits(queue, seen));
        for seen in queue.take_unseen(new, now_ns) {
            if waits(queue, seen) {
                labelling.measure.waits();
                queue.park(seen);
            }
        }
    }
}

impl TimedCache {
    /// Looks `new` series up, where the cache is in use; unknown ones wait for a batch. Returns how
    /// many series are for the devices.
    fn admit(
        &mut self,
        queue: &mut Queue,
        new: usize,
        series: impl Iterator<Item = Seen>,
        now_ns: u64,
        labelling: &mut Labelling,
    ) -> usize {
        let Some(cache) = self.cache.as_mut() else {
            series.for_each(|seen| queue.keep(seen, None));
            return new;
        };
        if !cache.governor.is_in_use() {
            cache.governor.passed_by(new as u64);
            labelling.counters.cache.bypassed += new as u64;
            series.for_each(|seen| queue.keep(seen, None));
            return new;
        }
        let began_ns = (self.clock)();
        let mut kept = 0;
        for seen in series {
            let slot = queue.slot(seen.number);
            let LookUp::Hit { answer, audit } = cache.look_up(&slot.series) else {
                queue.keep(seen, None);
                kept += 1;
                continue;
            };
            let asked = (&slot.series, slot.flow, slot.emitted_ns);
            let time_ns = labelling.label(queue, asked, (answer, Source::Cache), now_ns);
            labelling.counters.cache.hits += 1;
            labelling.counters.phases.ring_waited(time_ns);
            if audit.is_some() {
                queue.keep(seen, audit);
                kept += 1;
            }
        }
        let cost_ns = (self.clock)().saturating_sub(began_ns);
        let spared = (new - kept) as u64;
        let turn = cache.governor.looked_up(new as u64, spared, cost_ns);
        labelling.counters.cache.looked_up(new as u64, cost_ns, turn);
        kept
    }
}

/// The numbers below `n`, from `first` on and around.
fn in_turn(first: usize, n: usize) -> impl Iterator<Item = usize> {
    (first..n).chain(0..first)
}
