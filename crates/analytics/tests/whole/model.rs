//! What should be recorded of the packets that were sent: flows as plain lists, and marks as a
//! plain map.
//!
//! The model does not know when a flow is over. It knows the packets of each pair of ends in order;
//! each record takes the packets that it counts from the front of that list, and must be what they
//! make of a flow.

use std::collections::{HashMap, VecDeque};

use flowmgr::record::{DecidedBy, Decision, EndReason, FlowRecord, LabelRecord, Record};
use flowmgr::wire::TCP;

use crate::Outcome;
use crate::coverage::Coverage;
use crate::device::{BY_PORT, CONTRADICTS, PRECISION, model};
use crate::ensure;
use crate::events::{K, Kind};
use crate::frames::{Packet, SERVER_PORT, flow_of_ends, flow_of_length, protocol};

/// DSCP of a class; there are two ways, and settings say which one holds.
pub fn dscp_of(class: u16, way: u8) -> u8 {
    ((class + 7 * u16::from(way)) % 64) as u8
}

/// A packet that a flow took.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub packet: Packet,
    /// With the DSCP that it left with, and the way by which the DSCP should follow from the class.
    pub labelled: Option<(u8, u8)>,
}

/// What was recorded of a flow so far.
#[derive(Debug, Default)]
struct Told {
    packets: usize,
    /// The series of its first K packets.
    series: Vec<i32>,
    is_midstream: bool,
    fins: [bool; 2],
    was_reset: bool,
    /// Packets in reverse.
    was_answered: bool,
    is_established: bool,
    is_labelled: bool,
    /// The port named it.
    is_named: bool,
    /// A packet had the label that contradicts the port.
    is_contradicted: bool,
}

/// A pair of ends.
#[derive(Default)]
struct Conversation {
    /// Packets that no record has counted yet.
    sent: VecDeque<Sent>,
    /// The flow that is being recorded, since its first record of counts.
    told: Option<(u64, Told)>,
    /// Labels of flows that are not over. Live, a flow's label may be recorded before the flow
    /// before it is.
    labelled: Vec<(u64, Decision)>,
    /// The newest flow with a label.
    marked_by: Option<u64>,
    /// The newest flow that is over.
    over: Option<u64>,
    /// The mark of the kernel's connection.
    mark: Option<u16>,
}

/// Everything that was sent and recorded.
#[derive(Default)]
pub struct Model {
    conversations: HashMap<u8, Conversation>,
    /// Label records, by who decided.
    pub labels: [u64; 4],
    /// Label records that contradict a port.
    pub contradicting: u64,
    /// Final records.
    pub finals: u64,
    /// Packets that are labelled for good, and their bytes.
    pub labelled: (u64, u64),
    /// Established flows that were evicted: allowed only if they were silent for too long.
    pub evicted_established: u64,
}

/// What the model must know of the moment at which a record is written.
#[derive(Clone, Copy)]
pub struct Moment<'a> {
    /// Records of the label name models that were in use from here on; ns of the caller's clock.
    pub now_ns: u64,
    /// When each generation of the model came into use, from the first on.
    pub generations: &'a [u64],
    /// A label counts from the moment when it is there.
    pub is_live: bool,
    /// Flows that begin mid-stream are asked about.
    pub asks_midstream: bool,
    /// The server's port names flows with their first packets.
    pub ports_first: bool,
}

impl Model {
    pub fn sent(&mut self, sent: Sent) {
        let conversation = self.conversations.entry(sent.packet.flow).or_default();
        conversation.sent.push_back(sent);
    }

    /// Packets that no record has counted.
    pub fn unrecorded(&self) -> usize {
        self.conversations.values().map(|it| it.sent.len()).sum()
    }

    pub fn said(
        &mut self,
        record: &Record,
        moment: Moment<'_>,
        coverage: &mut Coverage,
    ) -> Outcome {
        match record {
            Record::Label(label) => self.said_label(label, moment),
            Record::Flow(flow) => self.said_flow(flow, moment, coverage),
            Record::Behaviour(_) | Record::Sample(_) => Ok(()),
        }
        .map_err(|error| format!("{error}\nof {record:?}"))
    }

    fn said_label(&mut self, label: &LabelRecord, moment: Moment<'_>) -> Outcome {
        let id = label.flow.flow_id;
        let (flow, _) = flow_of_ends(label.flow.source, label.flow.destination);
        let conversation = self.conversations.entry(flow).or_default();
        let is_new = |other: Option<u64>| other.is_none_or(|other| other < id);
        ensure!(is_new(conversation.over), "a label of a flow that is over");
        let decision = label.decision;
        let before = conversation.labelled.iter().position(|it| it.0 == id);
        if decision.contradicts.is_some() {
            let Some((_, by_port)) = before.map(|at| conversation.labelled.remove(at)) else {
                return Err("it contradicts nothing".to_owned());
            };
            ensure!(by_port.decided_by == DecidedBy::Port, "a third label");
            ensure!(conversation.marked_by >= Some(id), "the port's label made no mark");
            self.contradicting += 1;
        } else {
            ensure!(is_new(conversation.marked_by), "a second label");
        }
        let is_answer = matches!(decision.decided_by, DecidedBy::Model | DecidedBy::Cache);
        let newest = moment.generations.len() - 1;
        ensure!(usize::from(decision.model) <= newest, "a model to come");
        if moment.is_live && is_answer {
            let emitted_ns =
                moment.now_ns - 1000 * u64::from(decision.time_to_label_us.unwrap_or_default());
            let at = moment.generations.iter();
            let oldest = at.filter(|began_ns| **began_ns < emitted_ns).count();
            ensure!(
                usize::from(decision.model) + 1 >= oldest,
                "asked when model {} was in use",
                oldest - 1
            );
        }
        conversation.labelled.push((id, decision));
        // A contradiction may come when the next flow has its label by the port.
        conversation.marked_by = conversation.marked_by.max(Some(id));
        if conversation.marked_by == Some(id) {
            conversation.mark = Some(decision.class);
        }
        self.labels[decision.decided_by as usize] += 1;
        Ok(())
    }

    fn said_flow(
        &mut self,
        record: &FlowRecord,
        moment: Moment<'_>,
        coverage: &mut Coverage,
    ) -> Outcome {
        let id = record.flow.flow_id;
        let (flow, client_began) = flow_of_ends(record.flow.source, record.flow.destination);
        let conversation = self.conversations.entry(flow).or_default();
        let is_over = conversation.over.is_some_and(|over| over >= id);
        ensure!(!is_over, "a record of a flow that is over");
        let of_it = |(labelled, _): &&(u64, Decision)| *labelled == id;
        let labelled = conversation.labelled.iter().find(of_it);
        let labelled = labelled.map(|(_, decision)| *decision);
        if conversation.marked_by == Some(id) {
            let class = labelled.map(|decision| decision.class);
            ensure!(conversation.mark == class, "mark {:?}", conversation.mark);
        }
        if record.is_final() || !moment.is_live {
            ensure!(record.decisions[0] == labelled, "its label was {labelled:?}");
        } else if let (Some(said), Some(labelled)) = (record.decisions[0], labelled) {
            ensure!(said == labelled, "its label was {labelled:?}");
        }
        let took_us = record.decisions[0].map(|decision| decision.time_to_label_us);
        ensure!(took_us != Some(None), "a label without a time");

        let (told_id, mut told) = conversation.told.take().unwrap_or((id, Told::default()));
        ensure!(told_id == id, "flow {told_id} is not over");
        let counts = record.counts;
        let count = (counts.packets[0] + counts.packets[1]) as usize;
        ensure!(count <= conversation.sent.len(), "more packets than were sent");
        let (mut packets, mut bytes) = ([0, 0], [0, 0]);
        for sent in conversation.sent.drain(..count) {
            let direction = usize::from(sent.packet.is_from_client() != client_began);
            packets[direction] += 1;
            bytes[direction] += u64::from(sent.packet.length);
            told.take(sent, direction, record, moment)?;
            if sent.labelled.is_some() && record.decisions[0].is_some() {
                self.labelled.0 += 1;
                self.labelled.1 += u64::from(sent.packet.length);
            }
        }
        ensure!((packets, bytes) == (counts.packets, counts.bytes), "{packets:?} {bytes:?}");
        told.check(record)?;
        told.check_port(record)?;
        let is_wanted = moment.asks_midstream || !record.midstream;
        ensure!(is_wanted || record.decisions[0].is_none(), "nobody asked");
        let was_evicted = record.reason == EndReason::Evicted;
        self.evicted_established += u64::from(was_evicted && told.is_established);
        told.cover(record, coverage);
        if record.is_final() {
            conversation.over = Some(id);
            conversation.labelled.retain(|(labelled, _)| *labelled > id);
            self.finals += 1;
        } else {
            conversation.told = Some((id, told));
        }
        Ok(())
    }
}

impl Told {
    /// Another packet of it.
    fn take(
        &mut self,
        sent: Sent,
        direction: usize,
        record: &FlowRecord,
        moment: Moment<'_>,
    ) -> Outcome {
        let (Sent { packet, labelled }, decision) = (sent, record.decisions[0]);
        let is_tcp = protocol(packet.flow) == TCP;
        if self.packets == 0 {
            self.is_midstream = is_tcp && packet.kind != Kind::Syn;
            let (_, port) = record.flow.destination;
            self.is_named = moment.ports_first && port == SERVER_PORT && !self.is_midstream;
        }
        if self.packets < K {
            let length = i32::from(packet.length);
            self.series.push(if direction == 1 { -length } else { length });
            let is_right = labelled.is_some() == self.is_named;
            ensure!(is_right, "packet {}: {labelled:?}", self.packets);
        }
        self.packets += 1;
        self.fins[0] |= packet.kind == Kind::Fin;
        self.fins[1] |= packet.kind == Kind::FinOfServer;
        self.was_reset |= packet.kind == Kind::Rst;
        // TCP takes an answer, and one more packet of the side that began.
        let opens = matches!(packet.kind, Kind::Syn | Kind::SynAck | Kind::Rst);
        self.is_established |= match is_tcp {
            true => direction == 0 && self.was_answered && !opens,
            false => direction == 1,
        };
        self.was_answered |= direction == 1;
        match (labelled, decision) {
            (Some((dscp, way)), Some(_)) if self.is_named && dscp == dscp_of(BY_PORT, way) => {
                ensure!(!self.is_contradicted, "DSCP of the port again");
            }
            (Some((dscp, way)), Some(decision)) => {
                self.is_contradicted |= self.is_named && way != u8::MAX;
                let right = dscp_of(decision.class, way);
                ensure!(dscp == right || way == u8::MAX, "DSCP {dscp}, not {right}");
            }
            // By packet time a promise, which is taken back; else nobody could have known.
            (Some((_, way)), None) => ensure!(way == u8::MAX, "labelled, without a label"),
            (None, _) => ensure!(!self.is_labelled, "packet {} is not labelled", self.packets),
        }
        self.is_labelled |= labelled.is_some();
        Ok(())
    }

    /// Whether the record says what its packets were.
    fn check(&self, record: &FlowRecord) -> Outcome {
        let series = record.series.as_ref().map(|series| &series.lengths[..]);
        ensure!(series == Some(&self.series[..]), "its series was {:?}", self.series);
        let (flow, _) = flow_of_ends(record.flow.source, record.flow.destination);
        let is_own = |length: &i32| flow_of_length(*length) == flow;
        ensure!(self.series.iter().all(is_own), "of another flow");
        ensure!(record.midstream == self.is_midstream, "midstream");
        let is_closed = self.fins == [true; 2];
        let is_right = match record.reason {
            EndReason::Rst => self.was_reset,
            EndReason::Fin => is_closed,
            _ => {
                protocol(flow) != TCP
                    || record.reason == EndReason::Active
                    || !self.was_reset && !is_closed
            }
        };
        ensure!(is_right, "ended by {:?}", record.reason);
        let by_model = |it: &Decision| it.decided_by != DecidedBy::Port;
        let Some(decision) = record.decisions[0].filter(by_model) else {
            return Ok(());
        };
        // A contradiction may have come after the moment of the record; the last one has all its
        // elements.
        if record.reason == EndReason::Active && decision.contradicts.is_some() {
            return Ok(());
        }
        ensure!(self.series.len() == K, "a label without a series");
        let right = model(decision.model, [self.series[0], self.series[1]]);
        ensure!(right.class == decision.class, "class {} was right", right.class);
        let confidence = (right.confidence * f32::from(u16::MAX)).round();
        ensure!(f32::from(decision.confidence) == confidence, "confidence {confidence}");
        Ok(())
    }

    /// Whether the label is the port's, or contradicts it, where the port has named the flow.
    fn check_port(&self, record: &FlowRecord) -> Outcome {
        let Some(decision) = record.decisions[0] else {
            ensure!(!self.is_named, "no label, in spite of the port");
            return Ok(());
        };
        if decision.decided_by == DecidedBy::Port {
            ensure!(self.is_named, "a port that does not name it");
            let label = (decision.class, decision.confidence, decision.contradicts);
            ensure!(label == (BY_PORT, PRECISION, None), "{label:?} by port");
            ensure!(!self.is_contradicted, "the port was contradicted");
            return Ok(());
        }
        let port = self.is_named.then_some(BY_PORT);
        ensure!(decision.contradicts == port, "contradicts");
        let is_sure = decision.class != BY_PORT && decision.confidence >= CONTRADICTS;
        ensure!(!self.is_named || is_sure, "it does not contradict the port");
        Ok(())
    }

    fn cover(&self, record: &FlowRecord, coverage: &mut Coverage) {
        let of_model = |by| record.decisions[0].is_some_and(|it| it.decided_by == by);
        coverage.saw(match record.reason {
            EndReason::Fin => "ended by FIN",
            EndReason::Rst => "ended by RST",
            EndReason::Idle => "ended by silence",
            EndReason::Active => "reported by the active timeout",
            EndReason::Evicted => "evicted",
            EndReason::Drain => "ended by the stop",
        });
        coverage.saw_if(of_model(DecidedBy::Model), "labelled by the model");
        coverage.saw_if(of_model(DecidedBy::Cache), "labelled by the cache");
        coverage.saw_if(of_model(DecidedBy::Port), "named by the port");
        let contradicts = record.decisions[0].is_some_and(|it| it.contradicts.is_some());
        coverage.saw_if(contradicts, "contradicted");
        coverage.saw_if(record.midstream, "midstream");
        coverage.saw_if(record.is_final() && record.is_one_way(), "one way");
        coverage.saw_if(self.is_labelled, "labelled");
        let later = record.decisions[0].is_some_and(|decision| decision.model > 0);
        coverage.saw_if(later, "labelled by a later model");
    }
}
