//! The result of a run: the counters that the summary is made from.

use std::sync::Arc;
use std::time::Duration;

use config::Config;
use config::layout::Layout;
use dataplane::counters::PortCounters;
use dataplane::flow_worker::FlowOutcome;
use dataplane::inline::FlowManager;
use dataplane::placement::{Cores, Thread};
use dataplane::state::Swaps;
use dataplane::tasks::{OpenTask, TaskNames};
use flowmgr::{Bounds, Pages, table_bytes};

use crate::exit::Failure;
use crate::protocol::ServiceRow;
use crate::sinks::{self, RecentFlows, Report};

/// The result of a replay or a live run.
pub struct RunOutcome {
    pub flows: flowmgr::Counters,
    /// Sums of all analytics managers, by task; empty if none has started.
    pub tasks: Vec<analytics::Counters>,
    /// Layout `F:A:D` of each pipeline.
    pub layout: Layout,
    pub instances: usize,
    pub cores: Cores,
    pub swaps: Swaps,
    pub names: Arc<[TaskNames]>,
    /// Why each task's model ran on its devices, at the start; empty where they were named.
    pub devices_why: Vec<String>,
    pub table: Table,
    /// Bytes of the packets on the wire.
    pub bytes: u64,
    /// Packets that each flow worker received, in the workers' order.
    pub packets_by_worker: Vec<u64>,
    pub sinks: Vec<Report>,
    /// Sums per service of a replay.
    pub services: Vec<ServiceRow>,
    /// Steps of the clock that stamps packets. Replay: steps back, summed over the flow workers.
    /// Live: each step once.
    pub clock_steps: u64,
    pub live: Option<LiveSums>,
    /// Wall time from the start until the last flow was finished.
    pub wall: Duration,
    /// Whether a signal or `fenxi ctl drain` ended it.
    pub interrupted: bool,
    /// A replay's latest flows.
    pub recent: Option<RecentFlows>,
    pub failure: Option<Failure>,
}

#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct LiveSums {
    pub mode: &'static str,
    /// Packets for the receive rings: received, dropped or unread.
    pub offered: u64,
    /// Packets taken from the rings; a merged one counts once.
    pub received: u64,
    /// Packets received that the kernel or the card had merged from several.
    pub merged: u64,
    /// Packets dropped because a ring was full, or because its interface went away.
    pub kernel_dropped: u64,
    /// Packets left in the rings at the end.
    pub unread: u64,
    /// Packets that the network cards dropped before they reached the rings.
    pub nic_dropped: u64,
    pub sent: u64,
    /// Packets that should have been forwarded and were not.
    pub unsent: u64,
    /// Packets that rules dropped instead.
    pub ruled_out: u64,
    pub copied: u64,
    pub copies_lost: u64,
}

/// Size of all flow tables together.
pub struct Table {
    /// Maximum number of flows.
    pub max_flows: usize,
    /// Maximum size, bytes.
    pub bytes: usize,
    /// The kind of memory pages; if they differ, the smallest.
    pub pages: Pages,
}

impl Table {
    /// `bounds`: of behaviours, where flows have one.
    pub fn new(
        config: &Config,
        bounds: Option<Bounds>,
        tasks: &[OpenTask],
        managers: &[(Thread, FlowManager)],
    ) -> Table {
        let flow = &config.flow;
        let series = OpenTask::series(tasks);
        let servers = OpenTask::servers(config, tasks);
        let (max_flows, samples) = (flow.max_flows, config.learn.samples());
        let (buckets, measured) = (flow.buckets, config.measure.in_use());
        let bytes = table_bytes(max_flows, buckets, &series, bounds, servers, samples, measured);
        let pages = managers.iter().map(|(_, manager)| manager.pages());
        Table {
            max_flows: max_flows * managers.len(),
            bytes: bytes * managers.len(),
            pages: pages.min().unwrap_or(Pages::Plain),
        }
    }
}

impl RunOutcome {
    /// The outcome of a run with this configuration that has done nothing yet.
    pub fn nothing(config: &Config, cores: Cores, tasks: &[OpenTask], table: Table) -> RunOutcome {
        RunOutcome {
            flows: flowmgr::Counters::default(),
            tasks: Vec::new(),
            layout: config.pipeline.layout,
            instances: config.pipeline.instances,
            cores,
            swaps: Swaps::default(),
            names: tasks.iter().map(OpenTask::names).collect(),
            devices_why: tasks.iter().map(|task| task.devices_why().to_owned()).collect(),
            table,
            bytes: 0,
            packets_by_worker: Vec::new(),
            sinks: sinks::empty_reports(),
            services: Vec::new(),
            clock_steps: 0,
            live: None,
            wall: Duration::ZERO,
            interrupted: false,
            recent: None,
            failure: None,
        }
    }

    /// Series that went to the analytics managers, by task.
    pub fn series_by_task(&self) -> Vec<u64> {
        let mut by_task = Vec::new();
        let mut depths = self.flows.depths.iter();
        for names in self.names.iter() {
            let own = depths.by_ref().take(names.depths.len());
            by_task.push(own.map(|it| it.series_emitted - it.series_shed).sum());
        }
        by_task
    }

    /// Sums of all tasks; their devices follow each other.
    pub fn series(&self) -> analytics::Counters {
        let mut sum = analytics::Counters::none();
        self.tasks.iter().for_each(|task| sum.merge(task));
        sum
    }

    /// Adds the outcomes of the flow workers; returns the sums of their ports.
    pub fn add_workers(&mut self, mut workers: Vec<FlowOutcome>) -> PortCounters {
        workers.sort_by_key(|worker| worker.number);
        let mut ports = PortCounters::default();
        for worker in workers {
            let own = PortCounters::sum(&worker.ports);
            self.flows.merge(&worker.counters);
            self.add_tasks(&worker.tasks);
            self.packets_by_worker.push(own.rx.received);
            self.bytes += own.rx.bytes_seen();
            // All workers see the same steps of the wall clock, but each sees only its own
            // captured packets.
            let steps = worker.counters.clock_rebased;
            self.clock_steps = match worker.is_live {
                true => self.clock_steps.max(worker.clock_steps + steps),
                false => self.clock_steps + steps,
            };
            ports.merge(&own);
            self.add_failures(worker.failures.into_iter().map(Failure::from));
        }
        ports
    }

    /// Adds what each task counted in a thread.
    pub fn add_tasks(&mut self, tasks: &[analytics::Counters]) {
        let most = self.tasks.len().max(tasks.len());
        self.tasks.resize_with(most, analytics::Counters::none);
        self.tasks.iter_mut().zip(tasks).for_each(|(sum, task)| sum.merge(task));
    }

    /// A counter of the sinks by its name in the summary; 0 if no sink has it.
    pub fn sink_sum(&self, name: &str) -> u64 {
        let sums = self.sinks.iter().flat_map(|report| &report.summary);
        sums.filter(|(own, _)| *own == name).map(|(_, sum)| sum).sum()
    }

    /// Adds reasons why the run ended early.
    pub fn add_failures(&mut self, failures: impl IntoIterator<Item = Failure>) {
        let failures = self.failure.take().into_iter().chain(failures);
        self.failure = failures.reduce(Failure::and);
    }
}
