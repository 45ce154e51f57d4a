//! Shares of the thread, as NFVnice (SIGCOMM'17) gives them to network functions: what Batchy is compared with.
//!
//! NFVnice has no place in the manager, so the bench has a small scheduler of its own. Each task is alone in a manager with
//! policy `none`, so its batches are what is there, and has a ring in which nothing waits for another task's label: the
//! bench puts a series there when the labels are, as NFVnice moves packets from one function's ring to the next. The task that has
//! had the least time goes next, where all have the same weight, and one that had nothing to do gets no credit for that
//! (Linux's CFS). Unlike NFVnice it does not move weights to where there is most to do, and holds no source back when a ring
//! further down is full.

use std::sync::Arc;

use analytics::{Counters, Manager, Policy, Round};

use super::device::{Clock, Done};
use super::flows::Flows;
use super::graphs::Case;
use super::measure::Runs;
use super::world::{config, task};
use fenxi::exit::Failure;

/// One task, alone in its manager.
struct Share {
    manager: Manager,
    /// How much time it has had.
    used_ns: u64,
}

/// The tasks of a case, with equal shares.
pub struct Shares {
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
    pub fn new(case: &Case) -> Result<Shares, Failure> {
        let (clock, done) = (Arc::new(Clock::default()), Done::default());
        let (flows, inputs) = Flows::new(case, true);
        let shares = inputs.into_iter().enumerate().map(|(number, input)| {
            let config = config(case, number, Policy::None, false);
            let task = task(case, number, config, input, &clock, Some(done.clone()))?;
            Ok(Share {
                manager: Manager::new(vec![task]),
                used_ns: 0,
            })
        });
        let shares: Result<Vec<Share>, Failure> = shares.collect();
        Ok(Shares {
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
            let now_ns = self.clock.now_ns();
            has_seen |= share.manager.round(now_ns) != Round::Idle;
            let took_ns = self.clock.now_ns() - now_ns;
            if took_ns > 0 {
                self.floor_ns = share.used_ns.max(self.floor_ns);
                share.used_ns = self.floor_ns + took_ns;
                break;
            }
        }
        if let Ok(mut done) = self.done.lock() {
            self.flows.go_on(&done);
            done.clear();
        }
        has_seen
    }
}

impl Runs for Shares {
    fn run_until(&mut self, end_ns: u64) {
        while self.clock.now_ns() < end_ns {
            self.flows.arrive(self.clock.now_ns());
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
