//! What has come down a task's rings: looked up in the cache once, or kept for a batch.

use super::Task;
use crate::cache::LookUp;
use crate::ring_input::Seen;
use cring::Source;

/// What a look at a ring came to.
#[derive(Default)]
struct Looked {
    /// Series that nobody had seen.
    seen: usize,
    /// Those that are for the devices by now, seen before or not.
    kept: usize,
}

impl Task {
    /// Looks at what is new in the rings, in turn. Returns whether there was anything.
    pub(super) fn look(&mut self, now_ns: u64) -> bool {
        self.turn = (self.turn + 1) % self.queues.len();
        let nothing_waited = self.waiting() == 0;
        let (mut seen, mut kept) = (0, 0);
        for i in in_turn(self.turn, self.queues.len()) {
            let looked = self.look_at(i, now_ns);
            seen += looked.seen;
            kept += looked.kept;
        }
        // Once for all rings, because one batch takes from all of them.
        self.measure.arrived(kept);
        if let Some(news_ns) = &mut self.news_ns
            && seen > 0
        {
            *news_ns = now_ns;
        }
        self.reconsidered_at = self.decided_elsewhere;
        if nothing_waited && self.waiting() > 0 {
            self.timer_ns = now_ns;
        }
        seen > 0
    }

    /// Looks at what is new in one ring, up to the bound.
    fn look_at(&mut self, ring_input: usize, now_ns: u64) -> Looked {
        let queue = &mut self.queues[ring_input];
        let new = queue.unseen().min(self.look_max);
        let has_news = self.decided_elsewhere != self.reconsidered_at;
        if new == 0 && !(has_news && queue.has_parked()) {
            return Looked::default();
        }
        self.counters.series += new as u64;
        if !self.after.is_nothing() {
            let kept = self.look_after_others(ring_input, new, now_ns);
            return Looked { seen: new, kept };
        }
        let series = self.queues[ring_input].take_unseen(new, now_ns);
        let kept = self.admit(ring_input, new, series, now_ns);
        self.queues[ring_input].release();
        Looked { seen: new, kept }
    }

    /// Looks so many series up in the cache, where it is in use; what it does not know waits for a batch. Returns how many
    /// series that are.
    pub(super) fn admit(
        &mut self,
        ring_input: usize,
        new: usize,
        series: impl Iterator<Item = Seen>,
        now_ns: u64,
    ) -> usize {
        match &mut self.cache {
            Some(cache) if cache.governor.is_in_use() => {
                self.look_up(ring_input, new, series, now_ns)
            }
            cache => {
                if let Some(cache) = cache {
                    cache.governor.passed_by(new as u64);
                    self.counters.cache.bypassed += new as u64;
                }
                let queue = &mut self.queues[ring_input];
                series.for_each(|seen| queue.keep(seen, None));
                new
            }
        }
    }

    /// Looks so many series up in the cache. Returns how many of them are for the devices.
    fn look_up(
        &mut self,
        ring_input: usize,
        new: usize,
        series: impl Iterator<Item = Seen>,
        now_ns: u64,
    ) -> usize {
        let (Some(cache), queue) = (&mut self.cache, &mut self.queues[ring_input]) else {
            return 0;
        };
        let counters = &mut self.counters;
        let began_ns = (self.cost_clock)();
        let mut kept = 0;
        for seen in series {
            let slot = queue.slot(seen.number);
            let LookUp::Hit { answer, audit } = cache.look_up(&slot.series) else {
                queue.keep(seen, None);
                kept += 1;
                continue;
            };
            let time_ns = now_ns.saturating_sub(slot.emitted_ns);
            let taken = queue.decide(slot.series.task, slot.flow, answer.label(Source::Cache));
            counters.cache.hits += 1;
            counters.labelled(Source::Cache, taken, time_ns);
            counters.phases.ring_waited(time_ns);
            self.measure.labelled(slot.emitted_ns, time_ns);
            if audit.is_some() {
                queue.keep(seen, audit);
                kept += 1;
            }
        }
        let cost_ns = (self.cost_clock)().saturating_sub(began_ns);
        let turn = cache
            .governor
            .looked_up(new as u64, (new - kept) as u64, cost_ns);
        counters.cache.looked_up(new as u64, cost_ns, turn);
        kept
    }
}

/// The numbers below `n`, beginning with `first` and around.
pub(super) fn in_turn(first: usize, n: usize) -> impl Iterator<Item = usize> {
    (first..n).chain(0..first)
}
