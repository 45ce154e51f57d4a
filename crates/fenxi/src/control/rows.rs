//! Rows of `fenxi ctl threads` and `fenxi ctl devices`.

use std::collections::BTreeMap;

use dataplane::tasks::TaskNames;

use super::collector::{Collector, Life, STALLED_AFTER, Watched};
use super::cpu;
use crate::protocol::{DeviceRow, ThreadRow};

pub fn threads(collector: &Collector) -> Vec<ThreadRow> {
    let times = cpu::thread_times();
    let flows = collector.flows.iter().map(|it| ThreadRow {
        packets: Some(it.latest.port_counters().rx.received),
        ..thread(it, &times)
    });
    let analytics = collector
        .analytics_threads()
        .map(|it| ThreadRow { series: Some(it.latest.counters().series), ..thread(it, &times) });
    flows.chain(analytics).collect()
}

/// The row of a thread, without its work.
fn thread<T>(watched: &Watched<T>, times: &BTreeMap<String, f64>) -> ThreadRow {
    let state = match watched.life {
        Life::Running if watched.owes() > STALLED_AFTER => "stalled",
        Life::Running => "running",
        Life::Ended => "ended",
        Life::Died => "died",
    };
    let name = watched.thread.to_string();
    ThreadRow {
        core: watched.core,
        state: state.to_owned(),
        cpu_s: times.get(&name).copied(),
        stalls: watched.stalls,
        packets: None,
        series: None,
        name,
    }
}

/// The devices of all analytics managers.
pub fn devices(collector: &Collector, names: &[TaskNames]) -> Vec<DeviceRow> {
    let mut rows = Vec::new();
    for watched in &collector.analytics {
        for (task, names_of) in watched.latest.tasks.iter().zip(names) {
            rows.extend(task.devices().map(|(state, device)| DeviceRow {
                thread: watched.thread.to_string(),
                task: (names.len() > 1).then(|| names_of.name.to_string()),
                device: device.requested.clone(),
                effective: device.effective.clone(),
                state: state.name().to_owned(),
                batches: device.batches,
                series: device.series,
                failures: device.failures_total(),
                last_error: device.last_error.clone(),
            }));
        }
    }
    rows
}
