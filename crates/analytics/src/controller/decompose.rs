//! Which tasks leave the first devices of their set to others, because not all goals can hold if
//! all tasks share all devices (Batchy, §4 and Appendix F).
//!
//! A batch cannot be interrupted, so in the worst case a series waits until each task has run its
//! largest one. If that is longer than a goal, tasks are taken by their goals, the strictest first,
//! and packed on the first device while the goals there hold, then on the next one. The last device
//! takes all the rest. A task that was packed on a later device does not use the earlier ones; the
//! strict tasks use any that is free.
//!
//! The paper moves what does not fit to a new core each. Here only the existing devices can be
//! used.

use super::graph::{Graph, turnaround};
use std::time::Duration;

impl Graph {
    /// For each task, how many of the first devices of its set it leaves to others: 0 if all goals
    /// can hold, or if there is one device.
    pub fn homes(&self) -> Vec<usize> {
        let mut homes = vec![0; self.tasks().len()];
        for set in 0..self.devices().len() {
            if self.devices()[set] > 1 && self.is_violated(set) {
                self.pack(set, &mut homes);
            }
        }
        homes
    }

    /// The same graph where tasks with different homes share no device.
    pub fn decomposed(&self, homes: &[usize]) -> Graph {
        let mut graph = self.clone();
        graph.devices.clear();
        for (set, &devices) in self.devices().iter().enumerate() {
            let members =
                || (0..self.tasks().len()).filter(|&it| self.tasks()[it].device_set == set);
            let last = members().map(|task| homes[task]).max().unwrap_or(0);
            for task in members() {
                graph.tasks[task].device_set = graph.devices.len() + homes[task];
            }
            graph.devices.extend(std::iter::repeat_n(1, last));
            graph.devices.push(devices - last);
        }
        graph
    }

    fn is_violated(&self, set: usize) -> bool {
        let turnaround = turnaround(self, set);
        let mut paths = self.paths().iter();
        paths.any(|path| {
            let is_here = path.tasks.iter().any(|&it| self.tasks()[it].device_set == set);
            is_here && turnaround >= path.goal.latency
        })
    }

    fn pack(&self, set: usize, homes: &mut [usize]) {
        let tasks = 0..self.tasks().len();
        let mut members: Vec<(Duration, usize)> = tasks
            .filter(|&task| self.tasks()[task].device_set == set)
            .map(|task| (self.strictest(task), task))
            .collect();
        members.sort_unstable();
        let last = self.devices()[set] - 1;
        let (mut home, mut packed, mut goal) = (0, Duration::ZERO, Duration::MAX);
        for (own_goal, task) in members {
            let of_task = &self.tasks()[task];
            let takes = of_task.profile.latency(of_task.sizes.largest());
            let holds = packed + takes < goal.min(own_goal);
            // A task whose own batches are too long for its goal is no better off elsewhere.
            if !holds && !packed.is_zero() && home < last {
                (home, packed, goal) = (home + 1, Duration::ZERO, Duration::MAX);
            }
            packed += takes;
            goal = goal.min(own_goal);
            homes[task] = home;
        }
    }

    /// The strictest goal of a path that goes through a task.
    fn strictest(&self, task: usize) -> Duration {
        let through = self.paths().iter().filter(|path| path.tasks.contains(&task));
        let goals = through.map(|path| path.goal.latency);
        goals.min().unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Goal, Task, inherent_violations};
    use super::*;
    use accel::{Profile, Sizes};

    /// On one set of `devices` devices. `tasks`: ms for a batch, the goal in ms, the tasks it
    /// follows.
    fn graph(devices: usize, tasks: &[(f64, Option<u64>, &[usize])]) -> Graph {
        let of = |&(ms, goal, follows): &(f64, Option<u64>, &[usize])| Task {
            profile: Profile { t0_us: ms * 1e3, t1_us: 0.0 },
            sizes: Sizes::Any { cap: 32 },
            device_set: 0,
            follows: follows.to_vec(),
            goal: goal.map(|ms| Goal { latency: Duration::from_millis(ms), delta: 0.05 }),
        };
        Graph::new(tasks.iter().map(of).collect(), vec![devices]).unwrap()
    }

    #[test]
    fn where_all_goals_hold_or_there_is_one_device_nothing_moves() {
        let fits: &[(f64, Option<u64>, &[usize])] = &[(1.0, Some(5), &[]), (1.0, None, &[])];
        assert_eq!(graph(2, fits).homes(), [0, 0]);
        let not: &[(f64, Option<u64>, &[usize])] = &[(1.0, Some(5), &[]), (9.0, None, &[])];
        assert_eq!(graph(1, not).homes(), [0, 0]);
        assert_eq!(inherent_violations(&graph(1, not)).len(), 1);
    }

    #[test]
    fn bulk_leaves_the_first_device_to_the_strict() {
        let tasks: &[(f64, Option<u64>, &[usize])] =
            &[(9.0, None, &[]), (1.0, Some(5), &[]), (2.0, Some(6), &[]), (8.0, Some(50), &[])];
        let graph = graph(2, tasks);
        assert_eq!(graph.homes(), [1, 0, 0, 1]);
        let decomposed = graph.decomposed(&graph.homes());
        assert_eq!(decomposed.devices(), [1, 1]);
        assert_eq!(inherent_violations(&graph).len(), 2);
        assert_eq!(inherent_violations(&decomposed), []);
    }

    #[test]
    fn a_cascade_is_packed_by_the_goal_of_its_end() {
        let tasks: &[(f64, Option<u64>, &[usize])] =
            &[(1.0, None, &[]), (2.0, Some(5), &[0]), (9.0, Some(40), &[])];
        assert_eq!(graph(3, tasks).homes(), [0, 0, 1]);
        // Nothing helps the task whose own batch is longer than its goal; it is reported.
        let hopeless: &[(f64, Option<u64>, &[usize])] =
            &[(9.0, Some(5), &[]), (9.0, Some(20), &[])];
        let graph = graph(2, hopeless);
        let decomposed = graph.decomposed(&graph.homes());
        assert_eq!(graph.homes(), [0, 1]);
        assert_eq!(inherent_violations(&decomposed)[0].task, 0);
    }
}
