//! What a flow manager counts. Each counter belongs to one thread, the manager's, and only grows.

use cring::{Counter, counters};

use crate::behaviour::Behaviour;
use crate::key::{KIND_UDP, KIND_V6, Key};
use crate::record::EndReason;
use crate::scores::TaskScores;
use crate::servers::ServerCounters;
use crate::task_config::TaskConfig;
use crate::verdict::Verdicts;

counters! {
    /// How much traffic.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Volume {
        /// Packets.
        pub packets: u64,
        /// Their bytes at the IP layer.
        pub bytes: u64,
    }
}

impl Volume {
    pub(crate) fn add(&mut self, packets: u64, bytes: u64) {
        self.packets += packets;
        self.bytes += bytes;
    }
}

counters! {
    /// Packets that GRO, LRO or TSO merged from several. Each of these counts with its own length,
    /// in flows and verdicts.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Merged {
        /// Merged packets whose segments are known.
        pub packets: u64,
        /// Their segments.
        pub segments: u64,
        /// Bytes on the wire that the segments have in addition to the merged packets: the headers
        /// of every segment but one.
        pub header_bytes: u64,
        /// Packets longer than any on the wire, whose segments nobody reported: each counts as one.
        pub unknown: u64,
    }
}

impl Merged {
    /// How many more packets were on the wire than were received.
    pub fn more_packets(&self) -> u64 {
        self.segments - self.packets
    }
}

counters! {
    /// Sums of a manager. They always balance: verdicts to packets and the segments of merged ones,
    /// begun flows to ended and alive ones.
    #[derive(Clone, Debug, Default)]
    pub struct Counters {
        /// Packets by verdict, as they are on the wire.
        pub verdicts: Verdicts,
        /// Packets that were received merged.
        pub merged: Merged,
        /// Bytes at the IP layer of packets of flows.
        pub flow_bytes: u64,
        /// Bytes of labelled packets, part of `flow_bytes`.
        pub labelled_bytes: u64,
        /// Labelled packets by class. By packet time a label may still be on its way, and they
        /// count with the flow's record; else at once.
        pub labelled_by_class: Vec<Volume>,
        /// Flows begun.
        pub flows_begun: FlowsBegun,
        /// TCP flows, part of `flows_begun`, whose first packet seen was not the SYN that opens a
        /// connection.
        pub flows_midstream: u64,
        /// Flow records by reason; all but `active` are ends.
        pub flows_ended: [u64; EndReason::COUNT],
        /// Flows that made room for others.
        pub evictions: Evictions,
        /// Ended flows labelled by their server's port.
        pub flows_by_port: u64,
        /// Ended flows that were named by an answer that was not sure, because they ended before
        /// the next depth.
        pub flows_unsure: u64,
        /// Flows that got their label from a rule.
        pub flows_by_rule: u64,
        /// Ended flows about which a rule asked nothing, so that they gave no series.
        pub flows_unasked: u64,
        /// Ended flows that never reached K packets, though a model would have been asked.
        pub flows_short: u64,
        /// Ended flows whose packets all went the way of the first.
        pub flows_one_way: u64,
        /// Packets stamped more than 60 s before the one before them: steps back of the clock,
        /// which do not change how flows age.
        pub clock_rebased: u64,
        /// How late flows ended that were silent for too long.
        pub expiry_lag: ExpiryLag,
        /// By [`crate::Behaviour`].
        pub behaviours: [BehaviourCounters; Behaviour::COUNT],
        /// By depth, in the order of the tasks.
        pub depths: Vec<DepthCounters>,
        /// By task; empty where no task's classes are bands.
        pub scores: Vec<TaskScores>,
        /// What the memory of servers counts.
        pub servers: ServerCounters,
    }
}

counters! {
    /// Sums of a behaviour.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct BehaviourCounters {
        /// Flows that took it, each as often as it did; no flow begins with one.
        pub flows: u64,
        /// Packets of flows while they had it. An idle flow's packets count for its behaviour
        /// before. They are counted when a flow is sampled, changes its behaviour or ends.
        pub packets: u64,
        /// Their bytes at the IP layer.
        pub bytes: u64,
    }
}

counters! {
    /// Sums of one depth. A task's first depth also counts its labels and flows.
    #[derive(Clone, Debug, Default)]
    pub struct DepthCounters {
        /// Flows that got a label, by class, from then on; the last is `unknown`.
        pub labels_given: Vec<u64>,
        /// Ended flows by class; the last is `unknown`.
        pub flows_labelled: Vec<u64>,
        /// Flows whose label is the answer at this depth.
        pub flows_decided: u64,
        /// Flows whose label came from their port until an answer contradicted it.
        pub flows_contradicting: u64,
        /// Flows that reached their K-th element and gave no series, because they began mid-stream.
        pub series_withheld: u64,
        /// Flows that reached their K-th element and gave no series, because the task is not asked
        /// about them.
        pub flows_not_asked: u64,
        /// Series put on the ring, or shed.
        pub series_emitted: u64,
        /// Series shed because the ring was full.
        pub series_shed: u64,
        /// Series of half-open flows, part of `series_shed`, shed because half of the ring was
        /// taken.
        pub series_shed_half_open: u64,
    }
}

impl Counters {
    /// Zero counters, for these tasks.
    pub fn new(tasks: &[TaskConfig]) -> Counters {
        let of_depth = |task: &TaskConfig| DepthCounters {
            labels_given: vec![0; task.classes],
            flows_labelled: vec![0; task.classes],
            ..DepthCounters::default()
        };
        let depths = tasks.iter().flat_map(|task| vec![of_depth(task); task.depths.len()]);
        let classes = tasks.first().map_or(0, |task| task.classes);
        let has_target = tasks.iter().any(|task| task.target.is_some());
        let scores = tasks.iter().map(|task| match &task.target {
            Some(_) => TaskScores::new(task.classes),
            None => TaskScores::default(),
        });
        Counters {
            labelled_by_class: vec![Volume::default(); classes],
            depths: depths.collect(),
            scores: scores.filter(|_| has_target).collect(),
            ..Counters::default()
        }
    }

    /// Series put on a ring, or shed, of all tasks.
    pub fn series_emitted(&self) -> u64 {
        self.depths.iter().map(|depth| depth.series_emitted).sum()
    }

    /// Series shed because a ring was full, of all tasks.
    pub fn series_shed(&self) -> u64 {
        self.depths.iter().map(|depth| depth.series_shed).sum()
    }

    /// Series of half-open flows that were shed.
    pub fn series_shed_half_open(&self) -> u64 {
        self.depths.iter().map(|depth| depth.series_shed_half_open).sum()
    }

    /// Series that were complete and withheld, because their flows began mid-stream, of all tasks.
    pub fn series_withheld(&self) -> u64 {
        self.depths.iter().map(|depth| depth.series_withheld).sum()
    }

    /// Flows that got a label of the first task, by class.
    pub fn labels_given(&self) -> &[u64] {
        self.depths.first().map_or(&[], |depth| &depth.labels_given)
    }

    /// Ended flows with a label of the first task, by class.
    pub fn flows_labelled(&self) -> &[u64] {
        self.depths.first().map_or(&[], |depth| &depth.flows_labelled)
    }

    /// Copies what another manager of the same classes has counted; allocates only until there is
    /// room for it.
    pub fn copy_from(&mut self, other: &Counters) {
        Counter::copy_from(self, other);
    }

    /// Adds what another manager of the same classes counted.
    pub fn merge(&mut self, other: &Counters) {
        Counter::merge(self, other);
    }
}

/// Counts one more of a class, or nothing if the task has no such class, which no device that
/// passed its checks gives.
pub(crate) fn count_class(by_class: &mut [u64], class: u16) {
    if let Some(count) = by_class.get_mut(usize::from(class)) {
        *count += 1;
    }
}

counters! {
    /// Flows begun, by the kind bits of their keys, and behind them ICMP by version of IP.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct FlowsBegun {
        kinds: [u64; 6],
    }
}

const _: () = assert!(KIND_UDP | KIND_V6 == 3);
/// Where ICMP begins in [`FlowsBegun`].
const ICMP: u8 = 4;

impl FlowsBegun {
    /// Flows of all kinds.
    pub fn total(&self) -> u64 {
        self.kinds.iter().sum()
    }

    /// Flows by kind, with IP version and transport as metrics name them.
    pub fn by_kind(&self) -> [(&'static str, &'static str, u64); 6] {
        [
            ("4", "tcp", 0),
            ("4", "udp", KIND_UDP),
            ("4", "icmp", ICMP),
            ("6", "tcp", KIND_V6),
            ("6", "udp", KIND_V6 | KIND_UDP),
            ("6", "icmp", ICMP + 1),
        ]
        .map(|(ip, proto, kind)| (ip, proto, self.kinds[usize::from(kind)]))
    }

    pub(crate) fn count(&mut self, key: &Key) {
        let kind = match key.is_icmp() {
            true => ICMP + key.kind / KIND_V6,
            false => key.kind,
        };
        self.kinds[usize::from(kind)] += 1;
    }
}

counters! {
    /// Flows that made room for others, by what they were.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Evictions {
        /// Nobody had answered them.
        pub half_open: u64,
        /// Ended by FIN or RST; they only lingered.
        pub closed: u64,
        /// Silent for longer than the idle timeout.
        pub idle: u64,
    }
}

impl Evictions {
    /// All of them, with the kind as metrics name it.
    pub fn by_kind(&self) -> [(&'static str, u64); 3] {
        [("half_open", self.half_open), ("closed", self.closed), ("idle", self.idle)]
    }
}

counters! {
    /// How late flows ended, after their silence had lasted for the timeout. Timeouts are kept in
    /// whole seconds, so up to one second is no delay; beyond that the sweep was on its way.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ExpiryLag {
        /// Flows whose lag was at most the bound, and above the bound before; the last have none.
        flows: [u64; ExpiryLag::BOUNDS_S.len() + 1],
        /// Sum of all lags, µs.
        sum_us: u64 = saturating,
    }
}

impl ExpiryLag {
    /// Upper bounds, s. A round of the sweep takes 60 s at most.
    pub const BOUNDS_S: [u32; 9] = [1, 2, 5, 10, 20, 30, 60, 120, 300];

    /// Flows by lag: at most each bound, and with a larger one.
    pub fn flows(&self) -> &[u64] {
        &self.flows
    }

    /// All lags together, s.
    pub fn sum_s(&self) -> f64 {
        self.sum_us as f64 / 1e6
    }

    #[inline]
    pub(crate) fn count(&mut self, lag_us: u64) {
        let lag_s = (lag_us.saturating_add(999_999) / 1_000_000).min(u32::MAX.into()) as u32;
        self.flows[Self::BOUNDS_S.partition_point(|&bound| lag_s > bound)] += 1;
        self.sum_us = self.sum_us.saturating_add(lag_us);
    }
}

/// A sum that stops at the largest number.
mod saturating {
    use cring::Counter;

    pub fn merge(sum: &mut u64, other: &u64) {
        *sum = sum.saturating_add(*other);
    }

    pub fn copy_from(copy: &mut u64, from: &u64) {
        *copy = *from;
    }

    pub fn list(counter: &u64, name: &str, each: &mut dyn FnMut(&str, u64)) {
        counter.list(name, each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{self, ICMPV6, TCP, UDP};

    #[test]
    fn a_lag_counts_at_the_first_bound_that_it_does_not_exceed() {
        let mut lag = ExpiryLag::default();
        for lag_us in [0, 1_000_000, 1_000_001, 300_000_000, 300_000_001, u64::MAX] {
            lag.count(lag_us);
        }
        assert_eq!(lag.flows(), [2, 1, 0, 0, 0, 0, 0, 0, 1, 2]);
        let mut sum = ExpiryLag::default();
        sum.merge(&lag);
        sum.merge(&lag);
        assert_eq!(sum.flows()[0], 4);
    }

    #[test]
    fn kinds_have_a_counter_each() {
        let mut begun = FlowsBegun::default();
        let kinds = [("0.0.0.1", [TCP, UDP, wire::ICMP]), ("::1", [TCP, UDP, ICMPV6])];
        let kinds = kinds.map(|(ip, protocols)| protocols.map(|protocol| (ip, protocol)));
        for (times, &(ip, protocol)) in kinds.as_flattened().iter().enumerate() {
            let end = (ip.parse().unwrap(), 1);
            (0..=times).for_each(|_| begun.count(&Key::from_ends(protocol, end, end)));
        }
        assert_eq!(begun.by_kind().map(|(.., flows)| flows), [1, 2, 3, 4, 5, 6]);
        assert_eq!(begun.total(), 21);
    }
}
