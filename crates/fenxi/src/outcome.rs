//! What a run did: the sums that the summary is made of.

use std::sync::Arc;
use std::time::Duration;

use accel::Bundle;
use config::Config;
use config::layout::Layout;
use dataplane::bundle::series_task;
use dataplane::counters::PortCounters;
use dataplane::flow_worker::FlowOutcome;
use dataplane::placement::{Cores, Thread};
use dataplane::state::Swaps;
use flowmgr::Pages;

use crate::exit::Failure;

/// What a replay or a live run did.
pub struct Outcome {
    /// Sums of all flow managers.
    pub flows: flowmgr::Counters,
    /// Sums of all analytics managers.
    pub series: analytics::Counters,
    /// The parts of each pipeline.
    pub layout: Layout,
    /// Pipelines side by side.
    pub instances: usize,
    /// On which core each thread ran.
    pub cores: Cores,
    /// Swaps of the model.
    pub swaps: Swaps,
    /// Names of the classes.
    pub classes: Arc<[String]>,
    /// The memory of the flow tables.
    pub table: Table,
    /// Bytes that the packets had on the wire.
    pub bytes: u64,
    /// Packets that each flow worker received, in the workers' order.
    pub packets_by_worker: Vec<u64>,
    /// Records that found no room in their queue, or could not be written.
    pub records_dropped: u64,
    /// Steps of the clock that stamps packets: of a capture those back, as each flow worker saw them; live each once.
    pub clock_steps: u64,
    /// Sums that only live traffic has.
    pub live: Option<LiveSums>,
    /// From the first packet to the last flow settled.
    pub wall: Duration,
    /// A signal ended it.
    pub interrupted: bool,
    /// Why it ended early.
    pub failure: Option<Failure>,
}

/// Sums that only live traffic has.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct LiveSums {
    /// `io.mode`.
    pub mode: &'static str,
    /// Packets that the kernel had for the receive rings: received, dropped there or unread.
    pub offered: u64,
    /// Packets taken from the rings.
    pub received: u64,
    /// Of these, packets that are several merged into one.
    pub merged: u64,
    /// Packets that found a ring full, or were in it when its interface went away.
    pub kernel_dropped: u64,
    /// Packets that were in a ring at the end.
    pub unread: u64,
    /// Packets that the interfaces had dropped before, of all that the machine was to have.
    pub nic_dropped: u64,
    /// Packets sent on.
    pub sent: u64,
    /// Packets to be sent on that were not.
    pub unsent: u64,
    /// Marks that were to be written: all that are in the next five, unless the run ended before.
    pub marks_asked: u64,
    /// Marks written to connections.
    pub marks_written: u64,
    /// Marks not written because the connection had one already.
    pub marks_kept: u64,
    /// Marks for which there was no connection.
    pub marks_not_found: u64,
    /// Marks that the kernel refused.
    pub marks_failed: u64,
    /// Marks that found no room in their queue.
    pub marks_dropped: u64,
}

/// The memory of all flow tables together.
pub struct Table {
    /// Flows that they have room for.
    pub max_flows: usize,
    /// Bytes that they may take.
    pub bytes: usize,
    /// The kind of pages that they lie on; where they differ, the smallest.
    pub pages: Pages,
}

impl Table {
    /// Of these managers.
    pub fn of(config: &Config, bundle: &Bundle, managers: &[(Thread, flowmgr::Manager)]) -> Table {
        let flow = &config.flow;
        let bytes = flowmgr::table_bytes(flow.max_flows, flow.buckets, &[series_task(bundle)]);
        let pages = managers.iter().map(|(_, manager)| manager.pages());
        Table {
            max_flows: flow.max_flows * managers.len(),
            bytes: bytes * managers.len(),
            pages: pages.min().unwrap_or(Pages::Plain),
        }
    }
}

impl Outcome {
    /// Of a run with this configuration in which nothing has happened.
    pub fn nothing(config: &Config, cores: Cores, classes: Arc<[String]>, table: Table) -> Outcome {
        Outcome {
            flows: flowmgr::Counters::default(),
            series: analytics::Counters::none(),
            layout: config.pipeline.layout,
            instances: config.pipeline.instances,
            cores,
            swaps: Swaps::default(),
            classes,
            table,
            bytes: 0,
            packets_by_worker: Vec::new(),
            records_dropped: 0,
            clock_steps: 0,
            live: None,
            wall: Duration::ZERO,
            interrupted: false,
            failure: None,
        }
    }

    /// Adds what the flow workers left behind; returns the sums of their ports.
    pub fn add_workers(&mut self, mut workers: Vec<FlowOutcome>) -> PortCounters {
        workers.sort_by_key(|worker| worker.number);
        let mut ports = PortCounters::default();
        for worker in workers {
            let own = PortCounters::sum(&worker.ports);
            self.flows.merge(&worker.counters);
            self.packets_by_worker.push(own.rx.received);
            self.bytes += own.rx.bytes;
            self.records_dropped += worker.records_dropped;
            // Steps of the wall clock are the same for all workers; those in captures are each worker's own.
            self.clock_steps = match worker.is_live {
                true => self
                    .clock_steps
                    .max(worker.clock_steps + worker.counters.clock_rebased),
                false => self.clock_steps + worker.counters.clock_rebased,
            };
            ports.merge(&own);
            self.add_failures(worker.failures.into_iter().map(Failure::from));
        }
        ports
    }

    /// Adds reasons why the run ended early.
    pub fn add_failures(&mut self, failures: impl IntoIterator<Item = Failure>) {
        let failures = self.failure.take().into_iter().chain(failures);
        self.failure = failures.reduce(Failure::and);
    }
}
