//! Rows of `fenxi ctl threads` and `fenxi ctl devices`.

use dataplane::counters::AnalyticsSnapshot;
use dataplane::tasks::TaskNames;

use super::collector::{Life, STALLED_AFTER, Watched};
use crate::protocol::{DeviceRow, ThreadRow};

/// The row of a thread, without its CPU time and its work.
pub fn thread<T>(watched: &Watched<T>) -> ThreadRow {
    let state = match watched.life {
        Life::Running if watched.owes() > STALLED_AFTER => "stalled",
        Life::Running => "running",
        Life::Ended => "ended",
        Life::Died => "died",
    };
    ThreadRow {
        name: watched.thread.to_string(),
        core: watched.core,
        state: state.to_owned(),
        cpu_s: None,
        stalls: watched.stalls,
        packets: None,
        series: None,
    }
}

/// The rows of an analytics manager's devices.
pub fn devices(watched: &Watched<AnalyticsSnapshot>, names: &[TaskNames]) -> Vec<DeviceRow> {
    let tasks = watched.latest.tasks.iter().zip(names);
    let devices = tasks.flat_map(|(task, names)| task.devices().map(move |it| (names, it)));
    let rows = devices.map(|(task, (state, device))| DeviceRow {
        thread: watched.thread.to_string(),
        task: (names.len() > 1).then(|| task.name.to_string()),
        device: device.requested.clone(),
        effective: device.effective.clone(),
        state: state.name().to_owned(),
        batches: device.batches,
        series: device.series,
        failures: device.failures_total(),
        last_error: device.last_error.clone(),
    });
    rows.collect()
}
