//! What the catalogue reads: the latest snapshots, pipeline by pipeline, and whether they add up.

use std::time::Duration;

use analytics::Counters;

use super::collector::{Collector, Life, Watched};
use super::cpu::ThreadTime;
use super::{Facts, State};
use dataplane::counters::{AnalyticsSnapshot, FlowSnapshot};
use dataplane::state::RuntimeState;

/// Everything at one moment, for those who write it down.
pub struct View<'a> {
    /// What does not change.
    pub facts: &'a Facts,
    /// The model and the configuration.
    pub run_state: RuntimeState,
    /// What it all comes to.
    pub state: State,
    /// The single threads.
    pub collector: &'a Collector,
    /// Their sums, by pipeline.
    pub pipelines: Vec<PipelineSums>,
    /// CPU time of all threads.
    pub threads: Vec<ThreadTime>,
    /// Since the run began.
    pub uptime: Duration,
}

/// The sums of one pipeline.
pub struct PipelineSums {
    /// Its number, as a label.
    pub name: String,
    /// Of its flow managers.
    pub flows: FlowSnapshot,
    /// Of its analytics managers.
    pub analytics: Counters,
    /// Series that wait in the rings.
    pub in_rings: u64,
    /// Series on their way through a device.
    pub on_devices: u64,
    /// Whether the sums add up.
    pub balance: Balance,
}

/// What is missing from each sum (above 0) or too much in it (below 0); all 0 where nothing was lost or counted twice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Balance {
    /// Packets that went into receive rings, less those that came out.
    pub ports: i64,
    /// Packets received, less those that have a verdict.
    pub packets: i64,
    /// Packets received that must leave again, less those sent and those counted as unsent.
    pub sent: i64,
    /// Series emitted, less those that met their fate or wait.
    pub series: i64,
    /// Flows begun, less those recorded, alive, or waiting for their record.
    pub flows: i64,
}

impl Balance {
    /// Whether all add up.
    pub fn is_closed(&self) -> bool {
        *self == Balance::default()
    }
}

/// The sums of each pipeline, in order.
pub fn pipelines(collector: &Collector) -> Vec<PipelineSums> {
    let of_flows = collector
        .flows
        .iter()
        .map(|watched| watched.thread.instance);
    let instances = of_flows.max().map_or(0, |last| last + 1);
    let sums = (0..instances).map(|instance| {
        let flows = of(&collector.flows, instance);
        let analytics = of(&collector.analytics, instance);
        PipelineSums::of(instance, &flows, &analytics)
    });
    sums.collect()
}

fn of<T>(watched: &[Watched<T>], instance: usize) -> Vec<&Watched<T>> {
    let all = watched.iter();
    all.filter(|watched| watched.thread.instance == instance)
        .collect()
}

impl PipelineSums {
    fn of(
        instance: usize,
        flow_threads: &[&Watched<FlowSnapshot>],
        analytics_threads: &[&Watched<AnalyticsSnapshot>],
    ) -> PipelineSums {
        let mut flows = FlowSnapshot::default();
        for watched in flow_threads {
            flows.merge(&watched.latest);
        }
        // There are none until the first model is open.
        let mut analytics = Counters::none();
        for watched in analytics_threads {
            analytics.merge(&watched.latest.counters());
        }
        // At the end nothing waits any more: what is missing then is lost.
        let has_ended = !analytics_threads.is_empty()
            && flow_threads.iter().all(|it| it.life == Life::Ended)
            && analytics_threads.iter().all(|it| it.life == Life::Ended);
        let pushed = flows.counters.series_emitted() - flows.counters.series_shed();
        let in_rings = match has_ended {
            true => 0,
            false => pushed.saturating_sub(analytics.series),
        };
        let on_devices = analytics_threads.iter().map(|it| it.latest.on_devices());
        let balance = balance(&flows, &analytics, in_rings);
        PipelineSums {
            name: instance.to_string(),
            flows,
            analytics,
            in_rings,
            on_devices: on_devices.sum(),
            balance,
        }
    }
}

fn balance(flows: &FlowSnapshot, analytics: &Counters, in_rings: u64) -> Balance {
    let counters = &flows.counters;
    let waiting = in_rings + analytics.undecided();
    let accounted = analytics.decided() + waiting + counters.series_shed();
    let recorded = flows_recorded(counters);
    let ports = flows.port_counters();
    let to_send = if flows.forwards { ports.rx.received } else { 0 };
    Balance {
        ports: ports.rx.missing,
        sent: to_send as i64 - (ports.tx.sent + ports.tx.unsent() + ports.ruled_out) as i64,
        packets: (ports.rx.received + ports.rx.counted + counters.merged.more_packets()) as i64
            - counters.verdicts.total() as i64,
        series: counters.series_emitted() as i64 - accounted as i64,
        flows: counters.flows_begun.total() as i64
            - (recorded + flows.alive + flows.unrecorded) as i64,
    }
}

/// Flows whose last record was made.
fn flows_recorded(counters: &flowmgr::Counters) -> u64 {
    use flowmgr::record::EndReason;
    let ends = EndReason::ALL.into_iter();
    ends.filter(|reason| *reason != EndReason::Active)
        .map(|reason| counters.flows_ended[reason as usize])
        .sum()
}
