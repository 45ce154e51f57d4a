//! What a control period of the plant came to.

use super::super::super::*;
use super::Plant;

/// What became of a period.
#[derive(Clone, Debug)]
pub struct Period {
    /// Per path.
    pub paths: Vec<PathMeasure>,
    /// Per task.
    pub tasks: Vec<TaskMeasure>,
    /// What part of its time the device was busy.
    pub load: f64,
    pub labels: u64,
    pub triggers: Vec<usize>,
}

impl Period {
    /// Whether more than 1 % of a path's labels were late.
    pub fn is_violated(&self) -> bool {
        self.paths.iter().any(|path| path.late * 100 > path.labels)
    }
}

impl Plant {
    /// What was measured in a period of this length, which then is forgotten.
    pub(super) fn measure(&mut self, length_us: f64) -> Period {
        let seconds = length_us / 1e6;
        let busy_us: f64 = self.queues.iter().map(|queue| queue.busy_us).sum();
        let ratio = |a: u64, b: u64| if b == 0 { 0.0 } else { a as f64 / b as f64 };
        let tasks = (0..self.queues.len()).map(|task| {
            let queue = &self.queues[task];
            TaskMeasure {
                rate_per_s: queue.asked as f64 / seconds,
                batches_per_s: queue.batches as f64 / seconds,
                batch: ratio(queue.fired, queue.batches),
                batch_in: ratio(queue.asked, queue.looks),
                profile: self.expected(task),
                waited: ratio(queue.waited, queue.asked),
            }
        });
        let tasks = tasks.collect();
        let lasts: Vec<usize> = self.controller.graph().paths().iter().map(Path::last).collect();
        let paths = lasts.iter().map(|&task| {
            let goal = self.loads[task].task.goal.unwrap();
            judged(&mut self.queues[task].delays_us, goal)
        });
        let paths = paths.collect();
        let labels = self.queues.iter().map(|queue| queue.fired).sum();
        let period = Period {
            paths,
            tasks,
            load: busy_us / length_us,
            labels,
            triggers: (0..self.queues.len()).map(|task| self.controller.trigger(task)).collect(),
        };
        for queue in &mut self.queues {
            (queue.asked, queue.waited, queue.batches, queue.fired) = (0, 0, 0, 0);
            (queue.looks, queue.busy_us) = (0, 0.0);
            (queue.judged, queue.late) = (0, 0);
            queue.delays_us.clear();
        }
        period
    }
}

fn judged(delays_us: &mut [f64], goal: Goal) -> PathMeasure {
    delays_us.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let place = (share * delays_us.len() as f64) as usize;
        delays_us.get(place).copied().unwrap_or(0.0)
    };
    let above = |us: f64| (delays_us.len() - delays_us.partition_point(|d| *d <= us)) as u64;
    let goal_us = goal.latency.as_secs_f64() * 1e6;
    PathMeasure {
        p95_us: at(0.95),
        p99_us: at(0.99),
        labels: delays_us.len() as u64,
        late: above(goal_us),
        near: above(goal_us * (1.0 - goal.delta)),
    }
}

/// In how many periods a path was in violation.
pub fn violated(periods: &[Period]) -> usize {
    periods.iter().filter(|period| period.is_violated()).count()
}

/// What part of its time the device was busy.
pub fn mean_load(periods: &[Period]) -> f64 {
    periods.iter().map(|period| period.load).sum::<f64>() / periods.len() as f64
}
