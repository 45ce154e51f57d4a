//! Records of a flow: its label when it is decided, its counts when it ends or is reported.

use std::net::{IpAddr, Ipv4Addr};

use cring::{LOCAL, Series, Source, TASKS_MAX, Unit};
use measure::Told;

use crate::behaviour::Behaviour;
use crate::entry::Counts;
use crate::headers::HeadersSeen;
use crate::ids::TaskId;
use crate::target::Came;
use crate::wire::{ICMP, ICMPV6, TCP};

/// Why a flow record was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EndReason {
    /// Both sides sent FIN.
    Fin,
    /// One side sent RST.
    Rst,
    /// Silent for longer than the idle timeout.
    Idle,
    /// Active timeout: the flow goes on.
    Active,
    /// Made room for another flow in a full table.
    Evicted,
    /// The input ended, or the program was stopped.
    Drain,
}

impl EndReason {
    /// How many reasons there are.
    pub const COUNT: usize = 6;

    /// All reasons, in the order of their counters.
    pub const ALL: [EndReason; EndReason::COUNT] = [
        EndReason::Fin,
        EndReason::Rst,
        EndReason::Idle,
        EndReason::Active,
        EndReason::Evicted,
        EndReason::Drain,
    ];

    /// The name in records, summaries and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            EndReason::Fin => "fin",
            EndReason::Rst => "rst",
            EndReason::Idle => "idle",
            EndReason::Active => "active",
            EndReason::Evicted => "evicted",
            EndReason::Drain => "drain",
        }
    }
}

/// Identifies a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowName {
    /// Number of the flow in this run, in order of first packets.
    pub flow_id: u64,
    /// IP protocol number.
    pub protocol: u8,
    /// Sender of the first packet.
    pub source: (IpAddr, u16),
    /// Receiver of the first packet.
    pub destination: (IpAddr, u16),
    /// Time of the first packet, µs since the epoch.
    pub first_us: i64,
}

impl FlowName {
    /// A name to be overwritten.
    pub(crate) fn blank() -> FlowName {
        let nobody = (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        FlowName { flow_id: 0, protocol: 0, source: nobody, destination: nobody, first_us: 0 }
    }

    /// ICMP, of either version of IP: it has no ports, which are 0 then.
    pub fn is_icmp(&self) -> bool {
        matches!(self.protocol, ICMP | ICMPV6)
    }
}

/// What decided a flow's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DecidedBy {
    /// The model ran on this flow's series.
    Model,
    /// The model's answer to an earlier flow that began in the same way.
    Cache,
    /// The port of the flow's server: with the first packet, or at the end because no answer was
    /// sure.
    Port,
    /// A rule.
    Rule,
}

impl DecidedBy {
    /// The name in records.
    pub const fn name(self) -> &'static str {
        match self {
            DecidedBy::Model => "model",
            DecidedBy::Cache => "cache",
            DecidedBy::Port => "port",
            DecidedBy::Rule => "rule",
        }
    }
}

impl From<Source> for DecidedBy {
    fn from(source: Source) -> DecidedBy {
        match source {
            Source::Model => DecidedBy::Model,
            Source::Cache => DecidedBy::Cache,
            Source::Port => DecidedBy::Port,
            Source::Rule => DecidedBy::Rule,
        }
    }
}

/// A flow's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Number of the class in the model.
    pub class: u16,
    /// 0 to 65,535 for 0 to 1.
    pub confidence: u16,
    /// Model, cache, port or rule.
    pub decided_by: DecidedBy,
    /// Elements of the series that was asked about; 0 where the port or a rule decided.
    pub depth: u8,
    /// Generation of the model.
    pub model: u16,
    /// The flow had a label of this class by its port before.
    pub contradicts: Option<u16>,
    /// From the K-th packet to the label, µs; in packet time if that decides. `None` if the label
    /// came only with the flow's end.
    pub time_to_label_us: Option<u32>,
    /// In the last record of a flow, for a task with a target: the band that the flow proved to be
    /// of, where that is known.
    pub truth: Option<u16>,
}

impl Decision {
    /// Whether the port named the flow with its first packet, even if the model contradicted it.
    pub fn is_ports_first(&self) -> bool {
        let by_port = self.decided_by == DecidedBy::Port && self.time_to_label_us.is_some();
        by_port || self.contradicts.is_some()
    }
}

/// A flow got its label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelRecord {
    /// The flow.
    pub flow: FlowName,
    /// The task that asked for it.
    pub task: TaskId,
    /// When the label counted, µs since the epoch.
    pub time_us: i64,
    /// The label.
    pub decision: Decision,
}

/// A flow ended, or goes on after an active timeout.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowRecord {
    /// The flow.
    pub flow: FlowName,
    /// Time of the last packet, µs since the epoch.
    pub last_us: i64,
    /// TCP that was not seen from its first SYN on.
    pub midstream: bool,
    /// Packets and bytes since the flow's previous record.
    pub counts: Counts,
    /// Why the record was written.
    pub reason: EndReason,
    /// It ended before the other side was seen to take part, as all flows of a flood from forged
    /// addresses do: if there is no room for all records, these can go first.
    pub is_half_open: bool,
    /// The flow's labels, by task.
    pub decisions: [Option<Decision>; TASKS_MAX],
    /// The series, if records carry it.
    pub series: Option<Box<SeriesRecord>>,
    /// Number of the flow's rule, by its last answer.
    pub rule: Option<u32>,
    /// What the flow does, or if it has ended, what it did before it fell silent.
    pub behaviour: Behaviour,
    /// What headers of its packets said, and where it came in.
    pub headers: HeadersSeen,
    /// What was measured of it since it began, where that is on.
    pub measured: Option<Told>,
}

/// A flow has changed its behaviour. Live only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BehaviourRecord {
    /// The flow.
    pub flow: FlowName,
    /// When it was noticed, µs since the epoch.
    pub time_us: i64,
    /// What it does now.
    pub behaviour: Behaviour,
}

impl FlowRecord {
    /// A record to be overwritten.
    pub(crate) fn blank() -> FlowRecord {
        FlowRecord {
            flow: FlowName::blank(),
            last_us: 0,
            midstream: false,
            counts: Counts::default(),
            reason: EndReason::Drain,
            is_half_open: false,
            decisions: Default::default(),
            series: None,
            rule: None,
            behaviour: Behaviour::None,
            headers: HeadersSeen::default(),
            measured: None,
        }
    }

    /// The same without the series, and so without anything on the heap.
    pub fn without_series(&self) -> FlowRecord {
        FlowRecord {
            flow: self.flow,
            last_us: self.last_us,
            midstream: self.midstream,
            counts: self.counts,
            reason: self.reason,
            is_half_open: self.is_half_open,
            decisions: self.decisions,
            series: None,
            rule: self.rule,
            behaviour: self.behaviour,
            headers: self.headers,
            measured: self.measured,
        }
    }

    /// TCP flags of all packets that were walked, forward and in reverse; otherwise 0.
    pub fn tcp_flags(&self) -> [u8; 2] {
        if self.flow.protocol == TCP { self.headers.of_l4 } else { [0; 2] }
    }

    /// Of ICMP, type and code of the first packet.
    pub fn icmp(&self) -> Option<[u8; 2]> {
        self.flow.is_icmp().then_some(self.headers.of_l4)
    }

    /// Whether this is the flow's last record.
    pub fn is_final(&self) -> bool {
        self.reason != EndReason::Active
    }

    /// Whether no packet came in reverse since the previous record.
    pub fn is_one_way(&self) -> bool {
        self.counts.packets[1] == 0
    }
}

/// The series of a flow, as far as it was collected: elements of the first task's unit, with all
/// features that a task of that unit asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SeriesRecord {
    /// What its elements are.
    pub unit: Unit,
    /// Signed lengths, bytes; negative in reverse.
    pub lengths: Vec<i32>,
    /// Times after the flow's first packet, µs.
    pub offsets_us: Vec<i64>,
    /// Layer-4 payload, bytes, if collected.
    pub payloads: Option<Vec<u16>>,
    /// Times since the element before, µs, if collected.
    pub inter_arrivals_us: Option<Vec<u32>>,
    /// TCP flags, if collected.
    pub tcp_flags: Option<Vec<u16>>,
    /// What the memory of servers said when the flow began, if there is one.
    pub local: Option<[f32; LOCAL]>,
}

impl SeriesRecord {
    /// Keeps only the first elements.
    pub(crate) fn truncate(&mut self, elements: usize) {
        self.lengths.truncate(elements);
        self.offsets_us.truncate(elements);
        for values in [&mut self.payloads, &mut self.tcp_flags].into_iter().flatten() {
            values.truncate(elements);
        }
        if let Some(times) = &mut self.inter_arrivals_us {
            times.truncate(elements);
        }
    }
}

/// A question to a task's model about a flow, what was answered, and what came behind it.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Number of the flow in this run.
    pub flow_id: u64,
    /// The task that asked.
    pub task: TaskId,
    /// Elements of the series.
    pub depth: u8,
    /// Ports of the first packet, of its sender and its receiver. With the time they tell flows
    /// apart, without addresses.
    pub ports: [u16; 2],
    /// Time of the flow's first packet, µs since the epoch.
    pub began_us: i64,
    /// From there to the packet that completed the series, µs.
    pub asked_after_us: u64,
    /// Bytes at the IP layer, of both directions, up to that packet and with it.
    pub bytes_so_far: u64,
    /// As it was asked about.
    pub series: Series,
    /// `None`: no answer came while the flow went on.
    pub answer: Option<SampleAnswer>,
    /// What came behind that packet.
    pub came: Came,
    /// The flow may have gone on.
    pub is_cut: bool,
}

/// What a model answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleAnswer {
    /// Number of the class in the model.
    pub class: u16,
    /// 0 to 65,535 for 0 to 1.
    pub confidence: u16,
    /// Generation of the model.
    pub model: u16,
}

/// Any record of a flow.
#[expect(clippy::large_enum_variant, reason = "most records are of flows")]
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// It got its label.
    Label(LabelRecord),
    /// It ended or goes on.
    Flow(FlowRecord),
    /// Its behaviour changed.
    Behaviour(BehaviourRecord),
    /// It has ended, and a model may learn from it.
    Sample(Box<Sample>),
}

impl Record {
    /// The flow; a sample does not say who it is.
    pub fn flow(&self) -> Option<&FlowName> {
        match self {
            Record::Label(label) => Some(&label.flow),
            Record::Flow(flow) => Some(&flow.flow),
            Record::Behaviour(change) => Some(&change.flow),
            Record::Sample(_) => None,
        }
    }

    /// Moves all times by `by_us` µs, for a caller whose flow time is not the time of day.
    pub fn shift(&mut self, by_us: i64) {
        let times = match self {
            Record::Label(label) => [&mut label.flow.first_us, &mut label.time_us],
            Record::Flow(flow) => [&mut flow.flow.first_us, &mut flow.last_us],
            Record::Behaviour(change) => [&mut change.flow.first_us, &mut change.time_us],
            Record::Sample(sample) => {
                sample.began_us = sample.began_us.saturating_add(by_us);
                return;
            }
        };
        for time_us in times {
            *time_us = time_us.saturating_add(by_us);
        }
    }
}
