//! The end of a flow worker: last packets, last labels, last records.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_utils::Backoff;
use packetio::{Notice, TxCounts};

use super::{FlowWorker, Processor, Round, count_ports};
use crate::Error;
use crate::threads::clock::Clock;
use crate::threads::counters::PortCounters;
use crate::threads::recorder::FlowStep;
use crate::threads::run::PAUSE;

/// Live: how long the worker goes on with packets that were received before it was told to end;
/// under overload the rings are never empty.
const LAST_PACKETS_WITHIN: Duration = Duration::from_millis(500);

/// Live: how long it waits for the last labels.
const LABELS_WITHIN: Duration = Duration::from_secs(1);

/// Flows settled between two looks at those who ask for counters: some milliseconds' worth of
/// records.
const PORTION: usize = 1024;

/// What a flow worker leaves behind.
pub struct FlowOutcome {
    /// Which one it was, from 0.
    pub number: usize,
    /// What its flow manager counted.
    pub counters: flowmgr::Counters,
    /// What its ports counted.
    pub ports: Vec<PortCounters>,
    /// What each task counted whose series were answered at once; none if all go through rings.
    pub tasks: Vec<analytics::Counters>,
    /// Copies of packets.
    pub copied: TxCounts,
    /// How often the wall clock was set.
    pub clock_steps: u64,
    /// Its packets were live.
    pub is_live: bool,
    /// Why it ended early.
    pub failures: Vec<Error>,
}

impl FlowWorker {
    /// Live: packets that were received before the worker was told to end. Those that wait for the
    /// next process stay where they are.
    pub(super) fn process_last(&mut self) -> Result<(), Error> {
        let Clock::Live(_) = self.processor.clock else {
            return Ok(());
        };
        let left = self.ports.iter_mut().map(|port| port.notify(Notice::Leave));
        if left.filter(|is_left| *is_left).count() == self.ports.len() {
            return Ok(());
        }
        let (told, handover) = (Instant::now(), self.limits.handover);
        let mut has_drained = false;
        while told.elapsed() < handover + LAST_PACKETS_WITHIN {
            if self.round()? != Round::Busy {
                if told.elapsed() >= handover {
                    if has_drained {
                        break;
                    }
                    has_drained = true;
                    self.ports.iter_mut().for_each(|port| {
                        port.notify(Notice::Drain);
                    });
                    continue;
                }
                self.sleep()?;
            }
            self.settle()?;
        }
        Ok(())
    }

    /// Ends all flows and settles what is left.
    pub(super) fn finish(mut self, worked: Result<(), Error>) -> FlowOutcome {
        let is_live = matches!(self.processor.clock, Clock::Live(_));
        if !is_live {
            count_ports(&mut self.ports, &self.processor, &mut self.counters);
            // A thread that reads captures for several workers would wait for this one.
            self.ports.clear();
        }
        let run = self.processor.run.clone();
        run.ended_us.fetch_max(self.processor.manager.packet_us(), Ordering::Relaxed);
        run.inputs_open.fetch_sub(1, Ordering::AcqRel);
        let awaited = match is_live {
            true => self.await_labels(),
            false => self.await_others(),
        };
        self.processor.step(FlowStep::Drain);
        self.processor.sinks.iter_mut().for_each(|it| it.drain());
        let settled = self.settle_all();
        self.leave([worked, awaited, settled])
    }

    /// Gives labels that are on their way time to come: flows that end before are recorded without.
    fn await_labels(&mut self) -> Result<(), Error> {
        let until = Instant::now() + LABELS_WITHIN;
        self.settle()?;
        while self.processor.manager.labels_awaited() > 0
            && Instant::now() < until
            && !self.processor.is_analytics_dead()
        {
            self.processor.run.count_round(self.processor.number, 0);
            std::thread::sleep(PAUSE);
            self.settle()?;
        }
        Ok(())
    }

    /// By packet time: lets time pass up to the last packet of all flow workers, because whether a
    /// flow is over at the end must not depend on the worker that has it.
    fn await_others(&mut self) -> Result<(), Error> {
        let run = self.processor.run.clone();
        while run.inputs_open.load(Ordering::Acquire) > 0 {
            if run.is_stopped() || self.processor.is_analytics_dead() {
                return Ok(());
            }
            run.count_round(self.processor.number, 0);
            std::thread::sleep(PAUSE);
            self.settle()?;
        }
        let ended_us = run.ended_us.load(Ordering::Relaxed);
        if ended_us > self.processor.manager.packet_us() {
            self.processor.step(FlowStep::Pass(ended_us));
        }
        Ok(())
    }

    /// Settles all flows. By packet time each may have to wait for its label; live a sink may wait
    /// for room.
    fn settle_all(&mut self) -> Result<(), Error> {
        let backoff = Backoff::new();
        let mut failed = Ok(());
        loop {
            let settled = self.processor.settle(PORTION);
            self.publish();
            self.processor.run.count_round(self.processor.number, 0);
            if self.processor.manager.is_settled() {
                return failed.and(settled.map(drop));
            }
            match settled {
                Ok(0) => self.processor.wait_for_labels(&backoff)?,
                Ok(_) => {}
                Err(error) => failed = failed.and(Err(error)),
            }
        }
    }

    fn leave(self, results: [Result<(), Error>; 3]) -> FlowOutcome {
        let FlowWorker { mut ports, mut processor, hooks, mut counters, inline, .. } = self;
        if !ports.is_empty() {
            count_ports(&mut ports, &processor, &mut counters);
        }
        if let Some(telemetry) = hooks.telemetry {
            telemetry.finish(|snapshot| processor.describe(snapshot, &counters));
        }
        if let Some(servers) = hooks.servers {
            servers.finish(|portion| portion.fill_with(&processor.manager, usize::MAX));
        }
        if let Some(recorder) = &mut processor.recorder {
            recorder.leave(&processor.manager);
        }
        let tasks =
            processor.manager.parts_mut().as_mut().map(|answering| inline.finish(answering));
        let mut flows = processor.manager.counters().clone();
        let counted = counters.iter().map(|port| port.rx.counted).sum();
        flows.verdicts.set_counted(counted);
        let copied = processor.copied();
        let egress = processor.egress.take();
        let finished = egress.map_or(Ok(()), |it| it.finish());
        let results = results.into_iter().chain([finished]);
        FlowOutcome {
            number: processor.number,
            counters: flows,
            ports: counters,
            tasks: tasks.unwrap_or_default(),
            copied,
            clock_steps: processor.clock.steps(),
            is_live: matches!(processor.clock, Clock::Live(_)),
            failures: results.filter_map(Result::err).collect(),
        }
    }
}

impl Processor {
    /// Whether labels that are awaited will never come.
    pub(super) fn is_analytics_dead(&self) -> bool {
        self.run.analytics_died.load(Ordering::Acquire)
    }
}
