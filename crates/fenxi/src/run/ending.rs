//! The end of a live run: who is waited for, and what stands in the summary.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use analytics::Counters;

use super::lane::LaneOutcome;
use super::reload;
use crate::config::Config;
use crate::config::checked::IoMode;
use crate::control::beside::{Beside, NicDrops};
use crate::control::in_use::Swaps;
use crate::control::sums::PortSums;
use crate::exit::Failure;
use crate::mark;
use crate::pipeline::threads::Cores;
use crate::pipeline::worker;
use crate::replay::{LiveSums, Outcome, Table};

/// How long the end of a run waits for marks that are still to be written.
const MARKS_WITHIN: Duration = Duration::from_secs(1);

/// What all parts but the lanes leave behind.
pub struct Ending {
    /// Of the series' walk, over all analytics managers.
    pub series: Counters,
    pub swaps: Swaps,
    pub cores: Cores,
    pub classes: Arc<[String]>,
    pub table: Table,
    /// Records that could not be written.
    pub records_failed: u64,
    /// Mode mark: what writes them.
    pub marks: Option<Arc<mark::Writer>>,
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
            flush(marks);
        }
        let mut outcome = Outcome {
            flows: flowmgr::Counters::default(),
            series: self.series,
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
            failure: self.failure,
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
        outcome.bytes = sums.bytes;
        let dropped = self.beside.dropped().iter().map(NicDrops::total).sum();
        let marks = self.marks.as_deref();
        outcome.live = Some(live_sums(config.io.mode, &sums, dropped, marks));
        outcome
    }
}

/// Waits for the series' side, once the flow managers have ended.
pub fn join(
    threads: Vec<JoinHandle<Counters>>,
    reloads: reload::Running,
) -> Result<(Counters, Swaps), Failure> {
    let died = || Failure::software("an analytics thread died");
    let mut sum: Option<Counters> = None;
    for thread in threads {
        let counters = thread.join().map_err(|_| died())?;
        match &mut sum {
            Some(sum) => sum.merge(&counters),
            None => sum = Some(counters),
        }
    }
    Ok((sum.ok_or_else(died)?, reloads.finish()?))
}

/// Waits a moment until the last marks are written.
fn flush(marks: &mark::Writer) {
    let began = Instant::now();
    while marks.waiting() > 0 && began.elapsed() < MARKS_WITHIN {
        std::thread::sleep(worker::REST);
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
