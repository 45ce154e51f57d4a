//! The latest snapshots, summed by pipeline and task, and whether the sums close.

use std::collections::BTreeMap;
use std::time::Duration;

use analytics::Counters;
use cring::Counter as _;
use flowmgr::DepthCounters;

use super::Facts;
use super::collector::{Collector, Life, Watched};
use super::health::Health;
use crate::protocol::HostRate;
use dataplane::counters::{AnalyticsSnapshot, FlowSnapshot, TaskSnapshot};
use dataplane::rules::RuleTotals;
use dataplane::state::RuntimeState;
use dataplane::tasks::TaskNames;

/// A run at one moment.
pub struct View<'a> {
    /// Properties that do not change.
    pub facts: &'a Facts,
    /// The models, the configuration and the rules.
    pub run_state: RuntimeState,
    pub health: Health,
    pub collector: &'a Collector,
    pub pipelines: Vec<PipelineSums>,
    /// Counters of rules in the last picture of the tables, with live flows; empty if not needed.
    pub rules_in_tables: RuleTotals,
    /// The hosts that have metrics of their own.
    pub busiest: Vec<HostRate>,
    /// CPU time by thread, s.
    pub threads: BTreeMap<String, f64>,
    /// Time since the run began.
    pub uptime: Duration,
}

pub struct PipelineSums {
    /// Its number, as a label.
    pub name: String,
    pub flows: FlowSnapshot,
    /// Sums of its analytics managers, over all tasks.
    pub analytics: Counters,
    pub tasks: Vec<TaskSums>,
    pub balance: Balance,
}

pub struct TaskSums {
    /// Sums of its flow managers, over all depths.
    pub flows: DepthCounters,
    pub decided: Vec<u64>,
    pub analytics: Counters,
    pub in_rings: u64,
    pub on_devices: u64,
    /// Series emitted, less those with an outcome and those that wait.
    pub missing: i64,
}

/// Difference of each sum: above 0 if something is missing, below 0 if something counted twice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Balance {
    /// Packets that went into receive rings, less those that came out.
    pub ports: i64,
    /// Packets received, less those that have a verdict.
    pub packets: i64,
    /// Packets received that must be forwarded, less those sent and those counted as unsent.
    pub sent: i64,
    /// [`TaskSums::missing`] of the task that is furthest from 0.
    pub series: i64,
    /// Flows begun, less those recorded, alive, or waiting for their record.
    pub flows: i64,
}

impl Balance {
    pub fn is_closed(&self) -> bool {
        *self == Balance::default()
    }
}

/// Series shed or failed, by reason. Flow managers shed `shed`, `of_half_open` among them.
pub fn series_lost(
    [shed, of_half_open]: [u64; 2],
    analytics: &Counters,
) -> [(&'static str, u64); 5] {
    [
        ("ring_full", shed - of_half_open),
        ("half_open", of_half_open),
        ("no_device", analytics.shed_no_device),
        ("no_other_device", analytics.failed_no_other_device),
        ("after_retry", analytics.failed_after_retry),
    ]
}

pub fn pipelines(collector: &Collector, tasks: &[TaskNames]) -> Vec<PipelineSums> {
    let of_flows = collector.flows.iter().map(|watched| watched.thread.instance);
    let instances = of_flows.max().map_or(0, |last| last + 1);
    let sums = (0..instances).map(|instance| {
        let flows = of_instance(&collector.flows, instance);
        let analytics = of_instance(&collector.analytics, instance);
        PipelineSums::new(instance, tasks, &flows, &analytics)
    });
    sums.collect()
}

fn of_instance<T>(watched: &[Watched<T>], instance: usize) -> Vec<&Watched<T>> {
    watched.iter().filter(|watched| watched.thread.instance == instance).collect()
}

impl PipelineSums {
    fn new(
        instance: usize,
        tasks: &[TaskNames],
        flow_threads: &[&Watched<FlowSnapshot>],
        analytics_threads: &[&Watched<AnalyticsSnapshot>],
    ) -> PipelineSums {
        let mut flows = FlowSnapshot::default();
        for watched in flow_threads {
            flows.merge(&watched.latest);
        }
        // At the end no series waits, so a missing one is lost.
        let has_ended = !analytics_threads.is_empty()
            && flow_threads.iter().all(|it| it.life == Life::Ended)
            && analytics_threads.iter().all(|it| it.life == Life::Ended);
        let mut depths = flows.counters.depths.as_slice();
        let mut of_task = |(number, names): (usize, &TaskNames)| {
            let (own, others) = depths.split_at(names.depths.len().min(depths.len()));
            depths = others;
            let threads = analytics_threads.iter();
            let snapshots = threads.filter_map(|it| it.latest.tasks.get(number));
            TaskSums::new(own, snapshots, has_ended)
        };
        let tasks: Vec<TaskSums> = tasks.iter().enumerate().map(&mut of_task).collect();
        let mut analytics = Counters::none();
        tasks.iter().for_each(|task| analytics.merge(&task.analytics));
        PipelineSums {
            name: instance.to_string(),
            balance: balance(&flows, &tasks),
            flows,
            analytics,
            tasks,
        }
    }
}

impl TaskSums {
    /// Sums of a task with these depths. There are no snapshots until the first model is open.
    fn new<'a>(
        depths: &[DepthCounters],
        snapshots: impl Iterator<Item = &'a TaskSnapshot>,
        has_ended: bool,
    ) -> TaskSums {
        let mut sums = TaskSums {
            flows: depths.first().cloned().unwrap_or_default(),
            decided: depths.iter().map(|depth| depth.flows_decided).collect(),
            analytics: Counters::none(),
            in_rings: 0,
            on_devices: 0,
            missing: 0,
        };
        let deeper = depths.iter().skip(1);
        deeper.for_each(|depth| sums.flows.merge(depth));
        for snapshot in snapshots {
            sums.analytics.merge(&snapshot.counters);
            sums.on_devices += snapshot.on_devices;
        }
        let DepthCounters { series_emitted, series_shed, .. } = sums.flows;
        if !has_ended {
            let pushed = series_emitted - series_shed;
            sums.in_rings = pushed.saturating_sub(sums.analytics.series);
        }
        let waiting = sums.in_rings + sums.analytics.undecided();
        let accounted = sums.analytics.decided() + waiting + series_shed;
        sums.missing = series_emitted as i64 - accounted as i64;
        sums
    }
}

fn balance(flows: &FlowSnapshot, tasks: &[TaskSums]) -> Balance {
    let counters = &flows.counters;
    let recorded = flows_recorded(counters);
    let ports = flows.port_counters();
    let to_send = if flows.forwards { ports.rx.received } else { 0 };
    let missing = tasks.iter().map(|task| task.missing);
    Balance {
        ports: ports.rx.missing,
        sent: to_send as i64 - (ports.tx.sent + ports.tx.unsent() + ports.ruled_out) as i64,
        packets: (ports.rx.received + ports.rx.counted + counters.merged.more_packets()) as i64
            - counters.verdicts.total() as i64,
        series: missing.max_by_key(|it| it.unsigned_abs()).unwrap_or(0),
        flows: counters.flows_begun.total() as i64
            - (recorded + flows.alive + flows.unrecorded) as i64,
    }
}

fn flows_recorded(counters: &flowmgr::Counters) -> u64 {
    use flowmgr::record::EndReason;
    let ends = EndReason::ALL.into_iter();
    ends.filter(|reason| *reason != EndReason::Active)
        .map(|reason| counters.flows_ended[reason as usize])
        .sum()
}
