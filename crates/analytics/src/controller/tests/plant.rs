//! The plant, simulated in virtual time: flows come, their series wait for earlier labels, and one
//! thread runs batches of all tasks to completion, round by round, as analytics managers with
//! inline devices do.

mod period;

use super::super::*;
use accel::{Profile, Sizes};
pub use period::{Period, mean_load, violated};
use std::collections::VecDeque;

/// A round takes so long without a batch.
const ROUND_US: f64 = 5.0;
/// T₀ is a small part of a batch's time once the rows take this many times as long.
const T0_SMALL: f64 = 8.0;

/// Which tasks a flow asks: those whose interval its random number is in.
#[derive(Clone, Copy, Debug)]
pub struct Share(pub f64, pub f64);

/// A plant's task.
#[derive(Clone, Debug)]
pub struct Load {
    pub task: Task,
    pub share: Share,
    /// So long after the flow's first series this one is emitted.
    pub later_us: f64,
}

/// How flows come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    Even,
    Poisson,
    /// Poisson bursts of this many.
    Bursts(usize),
}

/// One flow: when it came, which tasks have labelled it, which have its series.
#[derive(Clone, Copy)]
struct Flow {
    came_us: f64,
    labelled: u64,
    emitted: u64,
}

#[derive(Default)]
struct Queue {
    /// Flows whose series is yet to be emitted.
    later: VecDeque<usize>,
    /// Flows that have all labels and wait for a batch: number and emission.
    ready: VecDeque<(usize, f64)>,
    unseen: usize,
    // Counted in the period.
    asked: u64,
    waited: u64,
    batches: u64,
    fired: u64,
    looks: u64,
    busy_us: f64,
    delays_us: Vec<f64>,
    /// How many of them have been compared with the goal, and how many were later.
    judged: usize,
    late: u64,
}

pub struct Plant {
    pub loads: Vec<Load>,
    pub controller: Controller,
    pub rate_per_s: f64,
    pub arrivals: Arrivals,
    /// Devices are this many times slower than their profiles.
    pub slower: f64,
    /// How often the thread is held up, and for how long, µs.
    pub hold_up_us: Option<(f64, f64)>,
    pub now_us: f64,
    next_us: f64,
    held_up_us: f64,
    began_us: f64,
    flows: VecDeque<Flow>,
    first_flow: usize,
    queues: Vec<Queue>,
    /// What batches take, by what they are expected to.
    forecast: Vec<f64>,
    turn: usize,
    random: u64,
    /// No more flows wait than this; others are lost.
    pub room: usize,
}

impl Plant {
    pub fn new(loads: Vec<Load>, kind: Kind) -> Self {
        Self {
            controller: controller(&loads, kind),
            queues: loads.iter().map(|_| Queue::default()).collect(),
            forecast: vec![1.0; loads.len()],
            loads,
            rate_per_s: 0.0,
            arrivals: Arrivals::Poisson,
            slower: 1.0,
            hold_up_us: None,
            now_us: 0.0,
            next_us: 0.0,
            held_up_us: 0.0,
            began_us: 0.0,
            flows: VecDeque::new(),
            first_flow: 0,
            turn: 0,
            random: 0x9E37_79B9_7F4A_7C15,
            room: 1 << 16,
        }
    }

    fn uniform(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Plays `periods` periods, each ended by a step of the controller.
    pub fn play(&mut self, periods: usize) -> Vec<Period> {
        (0..periods).map(|_| self.period()).collect()
    }

    fn period(&mut self) -> Period {
        let length_us = PERIOD.as_secs_f64() * 1e6;
        let end_us = self.began_us + length_us;
        while self.now_us < end_us {
            self.round();
        }
        let period = self.measure(self.now_us - self.began_us);
        self.began_us = end_us;
        self.controller.step(&period.tasks, &period.paths);
        period
    }

    fn round(&mut self) {
        self.arrive();
        for task in 0..self.queues.len() {
            let queue = &mut self.queues[task];
            queue.looks += u64::from(queue.unseen > 0);
            queue.unseen = 0;
        }
        let tasks = self.queues.len();
        self.turn = (self.turn + 1) % tasks;
        let mut has_fired = false;
        for i in 0..tasks {
            let task = (self.turn + i) % tasks;
            if let Some((take, size)) = self.decide(task) {
                self.fire(task, take, size);
                has_fired = true;
            }
        }
        if !has_fired {
            self.now_us += ROUND_US;
        }
        if let Some((every_us, hold_us)) = self.hold_up_us
            && self.now_us - self.held_up_us >= every_us
        {
            self.held_up_us = self.now_us;
            self.now_us += hold_us;
        }
    }

    /// Flows that have come since, and series that come later.
    fn arrive(&mut self) {
        while self.next_us <= self.now_us {
            let many = match self.arrivals {
                Arrivals::Bursts(many) => many,
                _ => 1,
            };
            for _ in 0..many {
                self.flow();
            }
            let mean_us = many as f64 * 1e6 / self.rate_per_s;
            self.next_us += match self.arrivals {
                Arrivals::Even => mean_us,
                _ => -(1.0 - self.uniform()).ln() * mean_us,
            };
        }
        for task in 0..self.queues.len() {
            let later_us = self.loads[task].later_us;
            while let Some(&flow) = self.queues[task].later.front() {
                let came_us = self.flows[flow - self.first_flow].came_us;
                if came_us + later_us > self.now_us {
                    break;
                }
                self.queues[task].later.pop_front();
                self.emit(task, flow, came_us + later_us);
            }
        }
        while self.flows.len() > 4 * self.room {
            self.flows.pop_front();
            self.first_flow += 1;
        }
    }

    fn flow(&mut self) {
        let number = self.first_flow + self.flows.len();
        let random = self.uniform();
        self.flows.push_back(Flow { came_us: self.next_us, labelled: 0, emitted: 0 });
        for task in 0..self.queues.len() {
            let Load { share, later_us, .. } = self.loads[task];
            if !(share.0..share.1).contains(&random) {
                continue;
            }
            if later_us > 0.0 {
                self.queues[task].later.push_back(number);
            } else {
                self.emit(task, number, self.next_us);
            }
        }
    }

    /// A series is there, and waits for labels or for a batch.
    fn emit(&mut self, task: usize, number: usize, emitted_us: f64) {
        let Some(place) = number.checked_sub(self.first_flow) else {
            return;
        };
        self.queues[task].asked += 1;
        self.flows[place].emitted |= 1 << task;
        if self.has_labels(task, place) {
            self.push(task, number, emitted_us);
        } else {
            self.queues[task].waited += 1;
        }
    }

    fn has_labels(&self, task: usize, place: usize) -> bool {
        let flow = self.flows[place];
        let follows = &self.loads[task].task.follows;
        follows.iter().all(|before| flow.labelled >> before & 1 == 1)
    }

    fn push(&mut self, task: usize, number: usize, emitted_us: f64) {
        let room = self.room;
        let queue = &mut self.queues[task];
        if queue.ready.len() < room {
            queue.ready.push_back((number, emitted_us));
            queue.unseen += 1;
        }
    }

    /// As the policy `slo` decides: how many to take, and the size of the batch.
    fn decide(&self, task: usize) -> Option<(usize, usize)> {
        let queue = &self.queues[task];
        let waiting = queue.ready.len();
        let (_, emitted_us) = *queue.ready.front()?;
        let Task { sizes, goal, .. } = &self.loads[task].task;
        let profile = self.expected(task);
        let trigger = if goal.is_none() { 1 } else { self.controller.trigger(task) };
        let budget_us = self.controller.budget(task).as_secs_f64() * 1e6;
        let left_us = budget_us - (self.now_us - emitted_us);
        if waiting >= trigger {
            let fitting = ((left_us - profile.t0_us) / profile.t1_us) as usize;
            let efficient = (T0_SMALL * profile.t0_us / profile.t1_us).ceil() as usize;
            let most = fitting.max(efficient).max(trigger).min(waiting);
            let size = match sizes {
                Sizes::Any { cap } => most.min(*cap),
                Sizes::Fixed(sizes) => {
                    sizes.iter().copied().filter(|size| *size <= most).max().unwrap_or(0)
                }
            };
            return Some(if size > 0 { (size, size) } else { (waiting, sizes.fitting(waiting)?) });
        }
        let take = waiting.min(sizes.largest());
        let size = sizes.fitting(take)?;
        let service_us = profile.latency(size).as_secs_f64() * 1e6;
        (left_us <= service_us).then_some((take, size))
    }

    fn expected(&self, task: usize) -> Profile {
        let Profile { t0_us, t1_us } = self.loads[task].task.profile;
        Profile { t0_us: t0_us * self.forecast[task], t1_us: t1_us * self.forecast[task] }
    }

    /// Runs a batch to completion.
    fn fire(&mut self, task: usize, take: usize, size: usize) {
        let service_us = self.loads[task].task.profile.latency(size).as_secs_f64() * 1e6;
        self.forecast[task] += (self.slower - self.forecast[task]) / 8.0;
        self.now_us += service_us * self.slower;
        let queue = &mut self.queues[task];
        queue.batches += 1;
        queue.fired += take as u64;
        queue.busy_us += service_us * self.slower;
        for _ in 0..take {
            let Some((number, emitted_us)) = self.queues[task].ready.pop_front() else {
                break;
            };
            self.queues[task].delays_us.push(self.now_us - emitted_us);
            if let Some(place) = number.checked_sub(self.first_flow) {
                self.flows[place].labelled |= 1 << task;
                self.follow(task, number, place);
            }
        }
        self.cut_where_late(task);
    }

    /// Series that waited for this label go on.
    fn follow(&mut self, task: usize, number: usize, place: usize) {
        for next in 0..self.queues.len() {
            let is_emitted = self.flows[place].emitted >> next & 1 == 1;
            if is_emitted
                && self.loads[next].task.follows.contains(&task)
                && self.has_labels(next, place)
            {
                let emitted_us = self.flows[place].came_us + self.loads[next].later_us;
                self.push(next, number, emitted_us);
            }
        }
    }

    fn cut_where_late(&mut self, task: usize) {
        let Some(goal) = self.loads[task].task.goal else {
            return;
        };
        let queue = &mut self.queues[task];
        let goal_us = goal.latency.as_secs_f64() * 1e6;
        let new = &queue.delays_us[queue.judged..];
        queue.late += new.iter().filter(|us| **us > goal_us).count() as u64;
        queue.judged = queue.delays_us.len();
        let (late, labels) = (queue.late, queue.judged as u64);
        for path in 0..self.controller.graph().paths().len() {
            if self.controller.graph().paths()[path].last() == task {
                self.controller.cut(path, late, labels);
            }
        }
    }

    /// From now on this is a task's goal.
    pub fn set_goal(&mut self, task: usize, goal: Goal) {
        self.loads[task].task.goal = Some(goal);
        let mut controller = controller(&self.loads, self.controller.kind());
        controller.go_on_from(&self.controller);
        self.controller = controller;
    }
}

fn controller(loads: &[Load], kind: Kind) -> Controller {
    let tasks = loads.iter().map(|load| load.task.clone()).collect();
    let mut controller = Controller::new(Graph::new(tasks, vec![1]).unwrap(), kind);
    // Those without a goal fire whatever waits.
    let eager = loads.iter().enumerate();
    let eager = eager.filter(|(_, load)| load.task.goal.is_none());
    eager.for_each(|(number, _)| controller.set_eager(number));
    controller
}

/// A task that all flows ask.
pub fn load(
    t0_us: f64,
    t1_us: f64,
    cap: usize,
    goal_us: u64,
    delta: f64,
    follows: &[usize],
) -> Load {
    Load {
        task: Task {
            profile: Profile { t0_us, t1_us },
            sizes: Sizes::Any { cap },
            device_set: 0,
            follows: follows.to_vec(),
            goal: Some(Goal { latency: Duration::from_micros(goal_us), delta }),
        },
        share: Share(0.0, 1.0),
        later_us: 0.0,
    }
}
