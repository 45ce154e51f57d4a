//! The end of a live run: who is waited for, and what stands in the summary.

use std::sync::Arc;
use std::time::{Duration, Instant};

use config::Config;
use dataplane::counters::PortCounters;
use dataplane::run::PAUSE;

use super::series::Left;
use crate::control::{HostStats, NicDrops};
use crate::mark;
use crate::outcome::{LiveSums, Outcome};
use crate::sinks::Sinks;
use crate::supervise::Ended;

/// How long after the last label the end of a run waits for marks that are still to be written.
const MARKS_WITHIN: Duration = Duration::from_secs(1);

/// Adds what the threads left behind, and waits for the sinks.
pub fn add(outcome: &mut Outcome, config: &Config, ended: Ended, sinks: Sinks, host: &HostStats) {
    let marks = sinks.marks.clone();
    let counts = sinks.record_counts();
    let recorded = sinks.finish();
    if let Some(marks) = &marks {
        flush(marks, ended.at + MARKS_WITHIN);
    }
    let Left {
        mut counters,
        is_partial,
        failure,
    } = ended.series;
    outcome.add_failures(failure.into_iter().chain(recorded.err()));
    let ports = outcome.add_workers(ended.workers);
    outcome.records_dropped += counts.failed();
    if is_partial {
        counters.give_up(outcome.flows.series_emitted() - outcome.flows.series_shed());
    }
    outcome.series = counters;
    let nic_dropped = host.dropped().iter().map(NicDrops::total).sum();
    outcome.live = Some(live_sums(config, &ports, nic_dropped, marks.as_deref()));
}

/// Waits a moment until the last marks are written.
fn flush(marks: &Arc<mark::Writer>, until: Instant) {
    while marks.waiting() > 0 && Instant::now() < until {
        std::thread::sleep(PAUSE);
    }
    if marks.waiting() > 0 {
        // The last one to let go of it would wait for all that is in its queue.
        std::mem::forget(marks.clone());
        dataplane::leave_threads_behind();
    }
}

fn live_sums(
    config: &Config,
    ports: &PortCounters,
    nic_dropped: u64,
    marks: Option<&mark::Writer>,
) -> LiveSums {
    let marks = marks.map_or_else(mark::Counts::none, mark::Writer::counts);
    let PortCounters { rx, tx } = ports;
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
        marks_asked: marks.asked,
        marks_written: marks.written,
        marks_kept: marks.kept,
        marks_not_found: marks.not_found,
        marks_failed: marks.failed(),
        marks_dropped: marks.dropped,
    }
}
