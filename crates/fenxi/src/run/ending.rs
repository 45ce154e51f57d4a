//! The end of a live run: who is waited for, and what stands in the summary.

use std::sync::Arc;
use std::time::{Duration, Instant};

use analytics::Counters;

use super::lane::LaneOutcome;
use super::series::Left;
use crate::config::Config;
use crate::config::checked::IoMode;
use crate::control::beside::{Beside, NicDrops};
use crate::control::in_use::Swaps;
use crate::control::sums::PortSums;
use crate::exit::{self, Failure};
use crate::mark;
use crate::pipeline::threads::Cores;
use crate::pipeline::worker;
use crate::replay::{LiveSums, Outcome, Table};

/// How long after the last label the end of a run waits for marks that are still to be written.
pub const MARKS_WITHIN: Duration = Duration::from_secs(1);

/// What all parts but the lanes leave behind.
pub struct Ending {
    pub series: Left,
    pub swaps: Swaps,
    pub cores: Cores,
    pub classes: Arc<[String]>,
    pub table: Table,
    /// Records that could not be written.
    pub records_failed: u64,
    /// Mode mark: what writes them.
    pub marks: Option<Arc<mark::Writer>>,
    /// How long they may take.
    pub marks_until: Instant,
    pub beside: Arc<Beside>,
    /// From the first packet to the last record.
    pub wall: Duration,
    /// Why it ended before its time, as far as it is known.
    pub failure: Option<Failure>,
}

impl Ending {
    /// With what the lanes have left, all sums.
    pub fn outcome(self, config: &Config, mut lanes: Vec<LaneOutcome>) -> Outcome {
        if let Some(marks) = &self.marks {
            flush(marks, self.marks_until);
        }
        let Left {
            mut counters,
            is_partial,
            failure: of_series,
        } = self.series;
        let failures = [of_series, self.failure].into_iter().flatten();
        let mut outcome = Outcome {
            flows: flowmgr::Counters::default(),
            series: Counters::none(),
            layout: config.pipeline.layout,
            instances: config.pipeline.instances,
            cores: self.cores,
            swaps: self.swaps,
            classes: self.classes,
            table: self.table,
            bytes: 0,
            packets_by_lane: Vec::new(),
            records_dropped: self.records_failed,
            clock_steps: 0,
            live: None,
            wall: self.wall,
            interrupted: false,
            failure: failures.reduce(Failure::and),
        };
        let mut sums = PortSums::default();
        lanes.sort_by_key(|lane| lane.number);
        for lane in lanes {
            outcome.flows.merge(&lane.counters);
            outcome.records_dropped += lane.records_dropped;
            // Each lane saw the same clock.
            let steps = lane.clock_steps + lane.counters.clock_rebased;
            outcome.clock_steps = outcome.clock_steps.max(steps);
            let ports = PortSums::sum(&lane.ports);
            outcome.packets_by_lane.push(ports.received);
            sums.merge(&ports);
            let failures = [outcome.failure.take(), lane.failure];
            outcome.failure = failures.into_iter().flatten().reduce(Failure::and);
        }
        if is_partial {
            counters.give_up(outcome.flows.series_emitted() - outcome.flows.series_shed());
        }
        outcome.series = counters;
        outcome.bytes = sums.bytes;
        let dropped = self.beside.dropped().iter().map(NicDrops::total).sum();
        let marks = self.marks.as_deref();
        outcome.live = Some(live_sums(config.io.mode, &sums, dropped, marks));
        outcome
    }
}

/// Waits a moment until the last marks are written.
fn flush(marks: &Arc<mark::Writer>, until: Instant) {
    while marks.waiting() > 0 && Instant::now() < until {
        std::thread::sleep(worker::REST);
    }
    if marks.waiting() > 0 {
        // The last who lets go of it would wait for all that is in its queue.
        std::mem::forget(marks.clone());
        exit::leave_threads_behind();
    }
}

fn live_sums(
    mode: IoMode,
    sums: &PortSums,
    nic_dropped: u64,
    marks: Option<&mark::Writer>,
) -> LiveSums {
    let marks = marks.map_or_else(mark::Counts::none, mark::Writer::counts);
    LiveSums {
        mode: mode.name(),
        offered: sums.offered,
        received: sums.received,
        merged: sums.merged,
        kernel_dropped: sums.dropped,
        unread: sums.waiting,
        nic_dropped,
        sent: sums.sent,
        unsent: sums.unsent(),
        marks_asked: marks.asked,
        marks_written: marks.written,
        marks_kept: marks.kept,
        marks_not_found: marks.not_found,
        marks_failed: marks.failed(),
        marks_dropped: marks.dropped,
    }
}
