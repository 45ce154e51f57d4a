//! Shares of the thread, as NFVnice (SIGCOMM'17) gives them to network functions: what Batchy is compared with.
//!
//! NFVnice has no place in the manager, so the bench has a small scheduler of its own. Each task is alone in a manager with
//! policy `none`, so its batches are what is there, and has a ring in which nothing waits for another task's label: the
//! bench puts a series there when the labels are, as NFVnice moves packets from one function's ring to the next. The task that has
//! had the least time for its weight goes next, and one that had nothing to do gets no credit for that (Linux's CFS). Weights are
//! equal, as in Batchy's comparison, or follow what there is to do: rate by cost, as NFVnice has them. Unlike NFVnice it
//! holds no source back when a ring further down is full.

use std::sync::Arc;

use analytics::{Counters, Manager, Policy, Round};

use super::device::{Clock, Done};
use super::flows::Flows;
use super::graphs::Case;
use super::measure::{PERIOD_NS, Runs};
use super::world::{config, task};
use fenxi::exit::Failure;

/// Weights that follow what there is to do are set anew so often.
const REWEIGH_NS: u64 = PERIOD_NS / 10;

/// Who gets how much of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    Equal,
    /// In proportion to the time that the series of each take which have come lately.
    ByLoad,
}

/// One task, alone in its manager.
struct Share {
    manager: Manager,
    /// How much time it has had, each time divided by its weight then.
    used_ns: u64,
    /// Relative to the mean of all tasks.
    weight: f64,
    /// How much time it has had in all.
    busy_ns: u64,
    /// Its series, when it was weighed last.
    emitted: u64,
}

impl Share {
    /// A batch, if it has something to do, and its labels: nobody else runs before these are there. Tells whether anything
    /// happened, and how long that took.
    fn run(&mut self, clock: &Clock) -> (bool, u64) {
        let began_ns = clock.now_ns();
        let has_seen = self.manager.round(began_ns) != Round::Idle;
        let ended_ns = clock.now_ns();
        if ended_ns > began_ns {
            let tasks = self.manager.tasks_mut().iter_mut();
            tasks.for_each(|task| {
                task.take_in(ended_ns);
            });
        }
        (has_seen, ended_ns - began_ns)
    }

    /// How long the series take that have come since it was asked last.
    fn take_load(&mut self, emitted: u64) -> f64 {
        let series = emitted - std::mem::replace(&mut self.emitted, emitted);
        let cost_ns = self.busy_ns as f64 / self.manager.labelled().max(1) as f64;
        series as f64 * cost_ns
    }
}

/// The tasks of a case, with shares of the thread.
pub struct Shares {
    weights: Weights,
    reweigh_ns: u64,
    shares: Vec<Share>,
    flows: Flows,
    clock: Arc<Clock>,
    done: Done,
    /// What the task that ran last had had before.
    floor_ns: u64,
    order: Vec<usize>,
}

impl Shares {
    /// # Errors
    /// When a manager refuses its task.
    pub fn new(case: &Case, weights: Weights) -> Result<Shares, Failure> {
        let (clock, done) = (Arc::new(Clock::default()), Done::default());
        let (flows, inputs) = Flows::new(case, true);
        let shares = inputs.into_iter().enumerate().map(|(number, input)| {
            let config = config(case, number, Policy::None, false);
            let task = task(case, number, config, input, &clock, Some(done.clone()))?;
            Ok(Share {
                manager: Manager::new(vec![task]),
                used_ns: 0,
                weight: 1.0,
                busy_ns: 0,
                emitted: 0,
            })
        });
        let shares: Result<Vec<Share>, Failure> = shares.collect();
        Ok(Shares {
            weights,
            reweigh_ns: REWEIGH_NS,
            order: (0..case.nodes.len()).collect(),
            shares: shares?,
            flows,
            clock,
            done,
            floor_ns: 0,
        })
    }

    /// A batch of the task that has had the least time and has something to do. Tells whether anything happened.
    fn turn(&mut self) -> bool {
        let (shares, floor_ns) = (&self.shares, self.floor_ns);
        self.order
            .sort_by_key(|share| shares[*share].used_ns.max(floor_ns));
        let mut has_seen = false;
        for place in 0..self.order.len() {
            let share = &mut self.shares[self.order[place]];
            let (seen, took_ns) = share.run(&self.clock);
            has_seen |= seen;
            if took_ns > 0 {
                self.floor_ns = share.used_ns.max(self.floor_ns);
                share.used_ns = self.floor_ns + (took_ns as f64 / share.weight) as u64;
                share.busy_ns += took_ns;
                break;
            }
        }
        if let Ok(mut done) = self.done.lock() {
            self.flows.go_on(&done);
            done.clear();
        }
        has_seen
    }

    /// Where weights follow what there is to do: those until the next time. Who has nothing to do keeps a little.
    fn reweigh(&mut self) {
        let shares = self.shares.iter_mut().zip(&self.flows.emitted);
        let loads: Vec<f64> = shares
            .map(|(share, emitted)| share.take_load(*emitted).max(1.0))
            .collect();
        let mean = loads.iter().sum::<f64>() / loads.len() as f64;
        for (share, load) in self.shares.iter_mut().zip(&loads) {
            share.weight = load / mean;
        }
    }
}

impl Runs for Shares {
    fn run_until(&mut self, end_ns: u64) {
        while self.clock.now_ns() < end_ns {
            self.flows.arrive(self.clock.now_ns());
            if self.weights == Weights::ByLoad && self.clock.now_ns() >= self.reweigh_ns {
                self.reweigh_ns = self.clock.now_ns() + REWEIGH_NS;
                self.reweigh();
            }
            if !self.turn() {
                self.clock.set(self.flows.next_ns().min(end_ns));
            }
        }
    }

    fn counters(&self) -> impl Iterator<Item = &Counters> {
        let tasks = self.shares.iter().flat_map(|it| it.manager.tasks());
        tasks.map(|task| task.counters())
    }

    fn busy_ns(&self) -> u64 {
        self.clock.busy_ns()
    }

    fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    fn shed_at_rings(&self) -> u64 {
        self.flows.shed
    }
}
