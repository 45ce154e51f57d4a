//! What a task measures of itself in a control period, for [`crate::controller`].

use crate::SloCounters;
use crate::controller::{Goal, PathMeasure, TaskMeasure};
use accel::Profile;

/// Bins of times to label up to the goal; a bin is 1.6 % of it. As many again reach up to twice the
/// goal; longer times are in the last.
const BINS_TO_GOAL: u64 = 64;
const BINS: usize = 2 * BINS_TO_GOAL as usize;
/// Fewer labels have no 99th percentile: their period is judged together with the next ones.
const LABELS_MIN: u64 = 100;
/// Control periods after which it is judged in any case.
const PERIODS_MAX: u32 = 10;
/// One label in this many may be late.
const LATE_ONE_IN: u64 = 100;

/// The counts of this period.
#[derive(Default)]
pub(crate) struct Measure {
    /// Series that want a device.
    arrived: u64,
    /// Looks at all rings that brought some.
    looks: u64,
    /// Series that had to wait for the label of another task.
    waited: u64,
    batches: u64,
    /// Rows of these, without padding.
    fired: u64,
    /// Times to label; `None` without a goal.
    labels: Option<Box<Labels>>,
}

/// Times to label, as parts of the goal.
struct Labels {
    goal: Goal,
    goal_ns: u64,
    aim_ns: u64,
    seen: Group,
    /// Labels of series that were on their way while the thread was held up; all above leave them
    /// out.
    held_up: Group,
    /// Series emitted before this time were held up.
    held_up_until_ns: u64,
    /// Counts since periods were last judged.
    unjudged: Unjudged,
}

/// Labels that are counted together: all in all, and by what part of the goal they took.
struct Group {
    counts: Counts,
    bins: [u32; BINS],
}

/// Labels: all, later than the goal, and later than the aim.
#[derive(Clone, Copy, Default)]
struct Counts {
    labels: u64,
    late: u64,
    near: u64,
}

#[derive(Default)]
struct Unjudged {
    periods: u32,
    count: u64,
    late: u64,
}

impl Measure {
    /// For a task with this goal, or with none.
    pub fn new(goal: Option<Goal>) -> Self {
        let labels = goal.map(|goal| {
            let goal_ns = goal.latency.as_nanos() as u64;
            Box::new(Labels {
                goal,
                goal_ns,
                aim_ns: (goal_ns as f64 * (1.0 - goal.delta)) as u64,
                seen: Group::EMPTY,
                held_up: Group::EMPTY,
                held_up_until_ns: 0,
                unjudged: Unjudged::default(),
            })
        });
        Self { labels, ..Self::default() }
    }

    /// The goal by which labels are late.
    pub fn goal(&self) -> Option<Goal> {
        self.labels.as_ref().map(|labels| labels.goal)
    }

    /// One look at all rings brought `series` that want a device.
    pub fn arrived(&mut self, series: usize) {
        self.arrived += series as u64;
        self.looks += u64::from(series > 0);
    }

    /// A series has to wait for the label of another task.
    pub fn waits(&mut self) {
        self.waited += 1;
    }

    /// A batch of `series` went to a device.
    pub fn fired(&mut self, series: usize) {
        self.batches += 1;
        self.fired += series as u64;
    }

    /// The thread was held up for `length_ns` until now. Only a hold-up longer than the goal
    /// counts, because batches cannot make room for it.
    pub fn note_hold_up(&mut self, now_ns: u64, length_ns: u64) {
        if let Some(labels) = &mut self.labels
            && length_ns > labels.goal_ns
        {
            labels.held_up_until_ns = now_ns;
        }
    }

    /// A series was labelled `time_ns` after its emission.
    pub fn labelled(&mut self, emitted_ns: u64, time_ns: u64) {
        let Some(labels) = &mut self.labels else {
            return;
        };
        let group = match emitted_ns < labels.held_up_until_ns {
            true => &mut labels.held_up,
            false => &mut labels.seen,
        };
        group.counts.labels += 1;
        group.counts.late += u64::from(time_ns > labels.goal_ns);
        group.counts.near += u64::from(time_ns > labels.aim_ns);
        let bin = time_ns.saturating_mul(BINS_TO_GOAL) / labels.goal_ns.max(1);
        group.bins[(bin as usize).min(BINS - 1)] += 1;
    }

    /// Labels of this period that were late, and all of its labels, without series that were held
    /// up.
    pub fn late(&self) -> (u64, u64) {
        let labels = self.labels.as_ref();
        labels.map_or((0, 0), |it| (it.seen.counts.late, it.seen.counts.labels))
    }

    /// Ends a period of `seconds`, and begins the next.
    pub fn take(
        &mut self,
        seconds: f64,
        profile: Profile,
        slo: &mut SloCounters,
    ) -> (TaskMeasure, PathMeasure) {
        let share = |part: u64, whole: u64| match whole {
            0 => 0.0,
            _ => part as f64 / whole as f64,
        };
        let task = TaskMeasure {
            rate_per_s: self.arrived as f64 / seconds,
            batches_per_s: self.batches as f64 / seconds,
            batch: share(self.fired, self.batches),
            batch_in: share(self.arrived, self.looks),
            profile,
            waited: share(self.waited, self.arrived).min(1.0),
        };
        let path = match &mut self.labels {
            Some(labels) => labels.take(slo),
            None => PathMeasure::default(),
        };
        *self = Self { labels: self.labels.take(), ..Self::default() };
        (task, path)
    }
}

impl Counts {
    fn and(self, other: Counts) -> Counts {
        Counts {
            labels: self.labels + other.labels,
            late: self.late + other.late,
            near: self.near + other.near,
        }
    }
}

impl Labels {
    fn take(&mut self, slo: &mut SloCounters) -> PathMeasure {
        self.judge(slo);
        // If most labels were held up, that is the normal state, not an exception.
        if self.held_up.counts.labels > self.seen.counts.labels {
            self.seen.add(&self.held_up);
        }
        let goal_us = self.goal_ns as f64 / 1e3;
        let Group { counts, .. } = self.seen;
        let measure = PathMeasure {
            p95_us: self.seen.quantile(0.95) * goal_us,
            p99_us: self.seen.quantile(0.99) * goal_us,
            labels: counts.labels,
            late: counts.late,
            near: counts.near,
        };
        (self.seen, self.held_up) = (Group::EMPTY, Group::EMPTY);
        measure
    }

    /// Counts a period as kept or violated, once there are enough labels. A period without labels
    /// counts neither way.
    fn judge(&mut self, slo: &mut SloCounters) {
        let seen = &mut self.unjudged;
        seen.periods += 1;
        let all = self.seen.counts.and(self.held_up.counts);
        (seen.count, seen.late) = (seen.count + all.labels, seen.late + all.late);
        if seen.count < LABELS_MIN && seen.periods < PERIODS_MAX {
            return;
        }
        let seen = std::mem::take(seen);
        slo.periods += u64::from(seen.count > 0);
        slo.violations += u64::from(seen.late * LATE_ONE_IN > seen.count);
    }
}

impl Group {
    const EMPTY: Group = Group { counts: Counts { labels: 0, late: 0, near: 0 }, bins: [0; BINS] };

    fn add(&mut self, other: &Group) {
        self.counts = self.counts.and(other.counts);
        for (bin, more) in self.bins.iter_mut().zip(&other.bins) {
            *bin += more;
        }
    }

    /// The upper end of the quantile's bin, as a part of the goal.
    fn quantile(&self, quantile: f64) -> f64 {
        let rank = (self.counts.labels as f64 * quantile).ceil() as u64;
        let mut below = 0;
        for (bin, &count) in (1..).zip(&self.bins) {
            below += u64::from(count);
            if below >= rank && count > 0 {
                return f64::from(bin) / BINS_TO_GOAL as f64;
            }
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const PROFILE: Profile = Profile { t0_us: 20.0, t1_us: 2.0 };

    fn measure() -> Measure {
        Measure::new(Some(Goal { latency: Duration::from_millis(2), delta: 0.05 }))
    }

    #[test]
    fn a_period_is_rates_means_and_percentiles() {
        let mut measure = measure();
        for _ in 0..10 {
            measure.arrived(30);
            measure.arrived(0);
        }
        (0..4).for_each(|_| measure.fired(75));
        (0..60).for_each(|_| measure.waits());
        for label in 0..300_u64 {
            measure.labelled(0, label * 10_000);
        }
        let mut slo = SloCounters::default();
        let (task, path) = measure.take(0.1, PROFILE, &mut slo);
        assert_eq!((task.rate_per_s, task.batches_per_s), (3000.0, 40.0));
        assert_eq!((task.batch, task.batch_in, task.waited), (75.0, 30.0, 0.2));
        assert_eq!((path.labels, path.late, path.near), (300, 99, 109));
        assert!((2840.0..2920.0).contains(&path.p95_us), "{}", path.p95_us);
        assert_eq!((slo.periods, slo.violations), (1, 1));
        let (task, path) = measure.take(0.1, PROFILE, &mut slo);
        assert_eq!((task.rate_per_s, path.labels, path.p95_us), (0.0, 0, 0.0));
    }

    #[test]
    fn what_was_held_up_violates_the_goal_but_says_nothing_of_the_plan() {
        let mut measure = measure();
        let mut slo = SloCounters::default();
        (0..200).for_each(|_| measure.labelled(10, 1_000_000));
        measure.note_hold_up(5_000_000, 3_000_000);
        measure.note_hold_up(9_000_000, 2_000_000); // batches can make room for this one
        (0..100).for_each(|_| measure.labelled(4_000_000, 3_000_000));
        (0..100).for_each(|_| measure.labelled(5_000_000, 1_000_000));
        assert_eq!(measure.late(), (0, 300));
        let (_, path) = measure.take(0.1, PROFILE, &mut slo);
        assert_eq!((path.labels, path.late, path.near), (300, 0, 0));
        assert!(path.p99_us < 1_100.0, "{}", path.p99_us);
        assert_eq!((slo.periods, slo.violations), (1, 1));
        // Most of a period's.
        measure.note_hold_up(90_000_000, 70_000_000);
        (0..200).for_each(|_| measure.labelled(80_000_000, 3_000_000));
        (0..100).for_each(|_| measure.labelled(95_000_000, 1_000_000));
        let (_, path) = measure.take(0.1, PROFILE, &mut slo);
        assert_eq!((path.labels, path.late), (300, 200));
        assert!(path.p95_us > 2_900.0, "{}", path.p95_us);
    }

    #[test]
    fn few_labels_are_judged_together() {
        let mut measure = measure();
        let mut slo = SloCounters::default();
        for period in 0..10 {
            (0..20).for_each(|_| measure.labelled(0, 1_000_000));
            measure.take(0.1, PROFILE, &mut slo);
            assert_eq!(slo.periods, (period + 1) / 5);
        }
        (0..20).for_each(|_| {
            measure.take(0.1, PROFILE, &mut slo);
        });
        assert_eq!((slo.periods, slo.violations), (2, 0));
    }
}
