//! What is measured in a control period.

use accel::Profile;

/// One task's part of a control period.
#[derive(Clone, Copy, Debug)]
pub struct TaskMeasure {
    /// r̃: series for the devices, after the cache, per second.
    pub rate_per_s: f64,
    /// x̃: batches per second.
    pub batches_per_s: f64,
    /// b̃: mean series per batch, without padding; 0 without a batch.
    pub batch: f64,
    /// b̃in: mean number of series per round that brought any; 0 where none came.
    pub batch_in: f64,
    /// What the next batches are expected to take.
    pub profile: Profile,
    /// For a task that follows others: the share of its series, 0 to 1, that had to wait for their
    /// labels.
    pub waited: f64,
}

/// One path's part of a control period: the labels of its last task.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathMeasure {
    /// t̃₉₅: 95th percentile of the time from emission to label, in µs.
    pub p95_us: f64,
    /// Its 99th percentile, in µs.
    pub p99_us: f64,
    /// Labels.
    pub labels: u64,
    /// Labels later than D.
    pub late: u64,
    /// Labels later than D(1 − δ).
    pub near: u64,
}
