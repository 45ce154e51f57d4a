//! What a flow manager's thread says between two bursts: records, marks, and how it stands.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use flowmgr::Manager;
use flowmgr::record::Record;
use packetio::Transmit;

use super::{Lane, LaneOutcome};
use crate::control::collector::FlowSnapshot;
use crate::control::sums::PortSums;
use crate::exit::Failure;
use crate::mark;
use crate::pipeline::worker::REST;
use crate::run::ports::Receiver;

/// Events of flows settled between two looks up at the end of a run: some milliseconds' worth of records.
const PORTION: usize = 1024;

/// How long the end of a run waits for the last labels.
const LABELS_WITHIN: Duration = Duration::from_secs(1);

impl Lane {
    /// Ends all flows, and settles what is left.
    pub(super) fn finish(mut self, walked: Result<(), Failure>) -> LaneOutcome {
        self.await_labels();
        self.manager.drain();
        self.records.drain();
        let settled = self.settle_all();
        look(&mut self.receivers, &self.senders, &mut self.sums.ports);
        let counters = self.manager.counters().clone();
        let records_dropped = self.records.dropped();
        let (publisher, manager) = (self.end.publisher, &self.manager);
        let (ports, forwards) = (self.sums.ports, !self.senders.is_empty());
        let clock_steps = self.clock.steps();
        publisher.finish(|snapshot| {
            describe(snapshot, manager, &ports, records_dropped);
            snapshot.forwards = forwards;
            snapshot.clock_steps += clock_steps;
        });
        LaneOutcome {
            number: self.number,
            counters,
            ports,
            records_dropped,
            clock_steps,
            failure: walked.and(settled).err(),
        }
    }

    /// Says what is ready to be said.
    pub(super) fn settle(&mut self) {
        self.settle_some(usize::MAX);
    }

    /// The same for so many events of flows at most; how many there were.
    fn settle_some(&mut self, most: usize) -> usize {
        let now_ns = self.shared.run.now_ns();
        let (records, marks, tap) = (&mut self.records, &self.marks, &self.end.tap);
        // Flows have their own time, people that of the wall clock.
        let ahead_us = self.clock.ahead_us();
        let settled = self.manager.settle_some(most, now_ns, &mut |mut record| {
            record.shift(ahead_us);
            if let (Some(marks), Record::Label(label)) = (marks, &record) {
                marks.set(mark::Tuple::from(&label.flow), label.decision.class);
            }
            tap.offer(&record);
            records.send(record);
        });
        let (manager, ports, dropped) =
            (&self.manager, &mut self.sums.ports, self.records.dropped());
        let (receivers, senders) = (&mut self.receivers, &self.senders);
        let clock_steps = self.clock.steps();
        self.end.publisher.publish(|snapshot| {
            look(receivers, senders, ports);
            describe(snapshot, manager, ports, dropped);
            snapshot.forwards = !senders.is_empty();
            snapshot.clock_steps += clock_steps;
        });
        settled
    }

    /// Gives the labels that are on their way the time to come: flows that end without them are recorded without.
    fn await_labels(&mut self) {
        let until = Instant::now() + LABELS_WITHIN;
        self.settle();
        while self.manager.labels_awaited() > 0
            && Instant::now() < until
            && !self.shared.run.analytics_died.load(Ordering::Acquire)
        {
            self.shared.rounds[self.number].fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(REST);
            self.settle();
        }
    }

    /// Says what is left to be said. Records may wait for room now, so it looks up between two portions: at those who watch,
    /// and for the service manager.
    fn settle_all(&mut self) -> Result<(), Failure> {
        loop {
            let settled = self.settle_some(PORTION);
            self.shared.rounds[self.number].fetch_add(1, Ordering::Relaxed);
            if self.manager.is_settled() {
                return Ok(());
            }
            if settled > 0 {
                continue;
            }
            if self.shared.run.analytics_died.load(Ordering::Acquire) {
                return Err(Failure::software(
                    "the analytics thread died; its series have no labels",
                ));
            }
            std::thread::sleep(REST);
        }
    }
}

/// Asks kernel and ports what became of packets: only when somebody wants to know, so that all figures are of one moment.
fn look(receivers: &mut [Receiver], senders: &[Transmit], ports: &mut [PortSums]) {
    for (receiver, port) in receivers.iter_mut().zip(&mut *ports) {
        receiver.look(port);
    }
    for (sender, port) in senders.iter().zip(ports) {
        let counts = sender.counts();
        port.sent = counts.sent;
        (port.refused, port.cut) = (counts.dropped, counts.cut);
        port.too_long = counts.too_long + counts.unsplit;
    }
}

/// How the thread stands between two bursts.
fn describe(
    snapshot: &mut FlowSnapshot,
    manager: &Manager,
    ports: &[PortSums],
    records_dropped: u64,
) {
    snapshot.counters.copy_from(manager.counters());
    snapshot.ports.clear();
    snapshot.ports.extend_from_slice(ports);
    snapshot.alive = manager.flows_alive() as u64;
    snapshot.half_open = manager.flows_half_open() as u64;
    snapshot.unrecorded = manager.flows_unrecorded() as u64;
    snapshot.records_dropped = records_dropped;
    snapshot.clock_steps = manager.counters().clock_rebased;
}
