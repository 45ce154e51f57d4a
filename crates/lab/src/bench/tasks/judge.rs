//! Which control periods are violated: those in which more than 1 % of the labels of a task were
//! later than its goal.
//!
//! The manager counts the same for the policies that have a goal ([`analytics::SloCounters`]);
//! here all policies are judged, by the histograms of all tasks.

use std::time::Duration;

use analytics::Counters;

/// Minimum labels for a 99th percentile. Fewer are judged together with the next periods' labels,
/// as in the manager.
const LABELS_MIN: u64 = 100;
/// Periods after which fewer labels are judged anyway.
const PERIODS_MAX: u32 = 10;
/// One label in 100 may be late.
const LATE_ONE_IN: u64 = 100;

/// Judges period after period.
pub struct Judge {
    tasks: Vec<Judged>,
}

#[derive(Clone, Copy)]
struct Judged {
    goal_us: u64,
    /// Labels so far, and how many of them were in time.
    before: (u64, u64),
    periods: u32,
    labels: u64,
    late: u64,
}

impl Judge {
    /// From now on, by these goals.
    pub fn new<'a>(goals: &[Duration], tasks: impl Iterator<Item = &'a Counters>) -> Judge {
        let judged = |(goal, counters): (&Duration, &Counters)| {
            let goal_us = goal.as_micros() as u64;
            Judged { goal_us, before: in_time(counters, goal_us), periods: 0, labels: 0, late: 0 }
        };
        Judge { tasks: goals.iter().zip(tasks).map(judged).collect() }
    }

    /// Ends a period: whether a task that is judged now was late.
    pub fn is_violated<'a>(&mut self, tasks: impl Iterator<Item = &'a Counters>) -> bool {
        let mut is_violated = false;
        for (judged, counters) in self.tasks.iter_mut().zip(tasks) {
            let now = in_time(counters, judged.goal_us);
            let labels = now.0 - judged.before.0;
            judged.periods += 1;
            judged.labels += labels;
            judged.late += labels - (now.1 - judged.before.1);
            judged.before = now;
            if judged.labels >= LABELS_MIN || judged.periods >= PERIODS_MAX {
                is_violated |= judged.late * LATE_ONE_IN > judged.labels;
                (judged.periods, judged.labels, judged.late) = (0, 0, 0);
            }
        }
        is_violated
    }
}

/// Labels, and how many of them met the goal.
fn in_time(counters: &Counters, goal_us: u64) -> (u64, u64) {
    let times = &counters.time_to_inferred_label_us;
    (times.len(), times.count_between(0, goal_us))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_labels_are_judged_together_and_one_in_a_hundred_may_be_late() {
        let mut counters = Counters::none();
        let mut judge = Judge::new(&[Duration::from_millis(2)], [&counters].into_iter());
        let mut period = |counters: &mut Counters, in_time: u64, late: u64| {
            let times = &mut counters.time_to_inferred_label_us;
            times.record_n(1000, in_time).unwrap();
            times.record_n(2100, late).unwrap();
            judge.is_violated([&*counters].into_iter())
        };
        assert!(!period(&mut counters, 99, 1));
        assert!(period(&mut counters, 98, 2));
        assert!(!period(&mut counters, 40, 2));
        assert!(period(&mut counters, 60, 0), "2 of 102");
    }
}
