//! What a record of a flow is as IPFIX.

use flowmgr::TaskId;
use flowmgr::record::{EndReason, FlowRecord};
use ipfix::{Applications, Flow, Measured};
use measure::Told;
use packetio::interface::index_of;

use crate::sinks::Interfaces;

/// What a run's flows are called.
pub struct Flows {
    /// The task whose label is the application.
    task: TaskId,
    pub applications: Applications,
    interfaces: Interfaces,
    /// Numbers of the interfaces (`ifIndex`) at the start; 0: the system has none of this name.
    indices: Vec<u32>,
}

impl Flows {
    pub fn new(task: TaskId, classes: &[String], interfaces: Interfaces) -> Flows {
        let indices = interfaces.names.iter().map(|name| index_of(name).unwrap_or(0)).collect();
        Flows { task, applications: Applications::new(classes), interfaces, indices }
    }

    pub fn flow(&self, record: &FlowRecord) -> Flow<'_> {
        let class = record.decisions[self.task.index()].map(|it| it.class);
        let headers = &record.headers;
        let dscp = self.interfaces.dscp_set(headers);
        let ecn = headers.tos[0] & 3;
        let index = |at: Option<usize>| at.and_then(|at| self.indices.get(at).copied());
        Flow {
            source: record.flow.source,
            destination: record.flow.destination,
            protocol: record.flow.protocol,
            start_ms: milliseconds(record.flow.first_us),
            end_ms: milliseconds(record.last_us),
            packets: record.counts.packets,
            bytes: record.counts.bytes,
            reason: reason_of(record.reason),
            is_initiator: !record.midstream,
            flow_id: record.flow.flow_id,
            application: self.applications.get(class),
            behaviour: record.behaviour as u8,
            tcp_flags: record.tcp_flags(),
            icmp: record.icmp().unwrap_or_default(),
            tos: headers.tos,
            post_tos: dscp.map_or(headers.tos[0], |dscp| dscp << 2 | ecn),
            interfaces: self.interfaces.of(headers).map(|at| index(at).unwrap_or(0)),
            measured: record.measured.as_ref().map(measured_of).unwrap_or_default(),
        }
    }
}

fn measured_of(told: &Told) -> Measured {
    Measured {
        duration_us: told.duration_us().map_or(0, |us| u32::try_from(us).unwrap_or(u32::MAX)),
        sizes: [0, 1].map(|side| told.side(side).sizes.unwrap_or_default()),
    }
}

fn reason_of(reason: EndReason) -> ipfix::EndReason {
    match reason {
        EndReason::Idle => ipfix::EndReason::IdleTimeout,
        EndReason::Active => ipfix::EndReason::ActiveTimeout,
        EndReason::Fin | EndReason::Rst => ipfix::EndReason::EndOfFlow,
        EndReason::Drain => ipfix::EndReason::ForcedEnd,
        EndReason::Evicted => ipfix::EndReason::LackOfResources,
    }
}

/// Times before the epoch, which only a damaged capture has, become the epoch.
fn milliseconds(time_us: i64) -> u64 {
    time_us.max(0) as u64 / 1000
}
