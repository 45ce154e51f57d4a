//! The end of a live run: waits for the sinks and fills in the summary.

use config::Config;
use dataplane::counters::PortCounters;
use dataplane::flow_worker::FlowOutcome;
use packetio::TxCounts;

use crate::control::{HostStats, NicDrops};
use crate::outcome::{LiveSums, RunOutcome};
use crate::sinks::Sinks;
use crate::supervise::Ended;
use crate::supervise::analytics::AnalyticsOutcome;

/// Adds the outcomes of the threads, and waits for the sinks.
pub fn add(
    outcome: &mut RunOutcome,
    config: &Config,
    ended: Ended,
    sinks: &Sinks,
    host: &HostStats,
) {
    let written = sinks.finish(ended.at);
    outcome.sinks = sinks.reports();
    let AnalyticsOutcome { counters, is_partial, failure } = ended.analytics;
    outcome.tasks = counters;
    outcome.add_failures(failure.into_iter().chain(written.err()));
    let copied = copied(&ended.workers);
    let ports = outcome.add_workers(ended.workers);
    if is_partial {
        let came = outcome.series_by_task();
        outcome.tasks.resize_with(came.len(), analytics::Counters::none);
        let of_tasks = outcome.tasks.iter_mut().zip(came);
        of_tasks.for_each(|(counters, came)| counters.give_up(came));
    }
    let nic_dropped = host.dropped().iter().map(NicDrops::total).sum();
    outcome.live = Some(live_sums(config, &ports, copied, nic_dropped));
}

fn copied(workers: &[FlowOutcome]) -> TxCounts {
    let mut sum = TxCounts::default();
    workers.iter().for_each(|it| sum.merge(&it.copied));
    sum
}

fn live_sums(
    config: &Config,
    ports: &PortCounters,
    copied: TxCounts,
    nic_dropped: u64,
) -> LiveSums {
    let PortCounters { rx, tx, ruled_out } = ports;
    LiveSums {
        mode: config.io.mode.name(),
        offered: rx.offered,
        received: rx.received,
        merged: rx.merged,
        kernel_dropped: rx.dropped,
        unread: rx.waiting,
        nic_dropped,
        sent: tx.sent,
        unsent: tx.unsent(),
        ruled_out: *ruled_out,
        copied: copied.sent,
        copies_lost: copied.unsent(),
    }
}
