//! Some of the flows seen last, for `fenxi ctl flows`: what the records said of them, as far as they could be taken in.
//!
//! The data path offers each record; where the control thread is behind, it is left out. So this is a sample, bounded in
//! memory and in what it costs, and no account; that is the records' and the metrics' matter.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::{Receiver, Sender, bounded};
use dataplane::sink::Sink;
use flowmgr::Counts;
use flowmgr::record::{Decision, EndReason, FlowName, FlowRecord, Record};

use super::{SinkControl, SinkKind, Start};
use crate::exit::Failure;
use crate::protocol::{Body, Code, FLOWS_MAX, FlowRow, Reply, Request};

/// Records that may wait for the control thread.
const QUEUE: usize = 1024;

/// Flows that are remembered.
const REMEMBERED: usize = 4096;

/// The view of recent flows, where a run has a control plane.
pub struct Flows;

impl SinkKind for Flows {
    fn start(&self, start: &Start<'_>) -> Result<Option<Box<dyn SinkControl>>, Failure> {
        Ok(start.is_served.then(|| {
            let (tap, view) = flow_view(start.classes.clone());
            let view = Mutex::new(view);
            Box::new(FlowControl { tap, view }) as Box<dyn SinkControl>
        }))
    }
}

struct FlowControl {
    tap: FlowTap,
    /// Used by the control thread only, so nobody ever waits.
    view: Mutex<FlowView>,
}

impl SinkControl for FlowControl {
    fn worker_half(&self) -> Option<Box<dyn Sink>> {
        Some(Box::new(self.tap.clone()))
    }

    fn tick(&self) {
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        view.take_in();
    }

    fn answer(&self, request: &Request) -> Option<Reply> {
        let Request::Flows { label, top } = request else {
            return None;
        };
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        Some(view.largest(label.as_deref(), *top))
    }
}

/// The data path's end.
#[derive(Clone)]
struct FlowTap {
    records: Sender<Record>,
}

/// The control thread's end.
struct FlowView {
    records: Receiver<Record>,
    classes: Arc<[String]>,
    flows: HashMap<u64, Known>,
    /// By when they were first heard of.
    order: VecDeque<u64>,
}

/// What is known of a flow. Its row is written where one is asked for.
struct Known {
    flow: FlowName,
    decision: Option<Decision>,
    /// Of its flow records so far; none before the first.
    counts: Option<Counts>,
    ended: Option<EndReason>,
}

/// Both ends.
fn flow_view(classes: Arc<[String]>) -> (FlowTap, FlowView) {
    let (sender, records) = bounded(QUEUE);
    let sample = FlowView {
        records,
        classes,
        flows: HashMap::with_capacity(REMEMBERED),
        order: VecDeque::with_capacity(REMEMBERED),
    };
    (FlowTap { records: sender }, sample)
}

impl Sink for FlowTap {
    /// Never waits: where the control thread is behind, the record is left out.
    fn record(&mut self, record: &Record) {
        if self.records.is_full() {
            return;
        }
        let record = match record {
            Record::Label(_) => record.clone(),
            Record::Flow(flow) => Record::Flow(FlowRecord {
                flow: flow.flow,
                last_us: flow.last_us,
                midstream: flow.midstream,
                counts: flow.counts,
                reason: flow.reason,
                is_half_open: flow.is_half_open,
                decision: flow.decision,
                others: Box::default(),
                series: None, // would be a copy on the heap, as those of other tasks would
            }),
        };
        let _ = self.records.try_send(record);
    }
}

impl FlowView {
    /// Takes in what was offered, at most what the queue holds.
    fn take_in(&mut self) {
        for _ in 0..QUEUE {
            match self.records.try_recv() {
                Ok(record) => self.remember(&record),
                Err(_) => return,
            }
        }
    }

    /// The largest of them, at most `top`, with this label where one is named.
    fn largest(&mut self, label: Option<&str>, top: usize) -> Reply {
        self.take_in();
        if let Some(label) = label
            && !self.classes.iter().any(|class| class == label)
        {
            let why = format!(
                "no label \"{label}\"; there are {}",
                self.classes.join(", ")
            );
            return Reply::refused(Code::NotFound, why);
        }
        let mut found: Vec<&Known> = self
            .flows
            .values()
            .filter(|known| label.is_none() || self.label(known).as_deref() == label)
            .collect();
        found.sort_unstable_by_key(|known| (Reverse(known.bytes()), known.flow.flow_id));
        found.truncate(top.min(FLOWS_MAX));
        Reply::ok(Body::Flows(
            found.into_iter().map(|known| self.row(known)).collect(),
        ))
    }

    fn remember(&mut self, record: &Record) {
        let (&flow, decision) = match record {
            Record::Label(label) => (&label.flow, Some(label.decision)),
            Record::Flow(flow) => (&flow.flow, flow.decision),
        };
        self.make_room(flow.flow_id);
        let known = self.flows.entry(flow.flow_id).or_insert(Known {
            flow,
            decision: None,
            counts: None,
            ended: None,
        });
        known.decision = decision.or(known.decision);
        if let Record::Flow(flow) = record {
            let counts = known.counts.get_or_insert_default();
            for way in 0..2 {
                counts.packets[way] += flow.counts.packets[way];
                counts.bytes[way] += flow.counts.bytes[way];
            }
            known.ended = flow.is_final().then_some(flow.reason);
        }
    }

    fn make_room(&mut self, flow_id: u64) {
        if self.flows.contains_key(&flow_id) {
            return;
        }
        if self.order.len() == REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.flows.remove(&oldest);
        }
        self.order.push_back(flow_id);
    }

    fn label(&self, known: &Known) -> Option<String> {
        let class = usize::from(known.decision?.class);
        self.classes.get(class).cloned()
    }

    fn row(&self, known: &Known) -> FlowRow {
        let end = |(address, port)| SocketAddr::new(address, port).to_string();
        let confidence = known.decision.map(|it| it.confidence);
        FlowRow {
            flow_id: known.flow.flow_id,
            src: end(known.flow.source),
            dst: end(known.flow.destination),
            proto: known.flow.protocol,
            label: self.label(known),
            confidence: confidence.map(|it| f64::from(it) / f64::from(u16::MAX)),
            packets: known.counts.map(|counts| counts.packets.iter().sum()),
            bytes: known.counts.map(|counts| counts.bytes.iter().sum()),
            end_reason: known.ended.map(|reason| reason.name().to_owned()),
        }
    }
}

impl Known {
    fn bytes(&self) -> u64 {
        self.counts.map_or(0, |counts| counts.bytes.iter().sum())
    }
}

#[cfg(test)]
mod tests {
    use flowmgr::record::{DecidedBy, LabelRecord};

    use super::*;

    fn name(flow_id: u64) -> FlowName {
        FlowName {
            flow_id,
            protocol: 6,
            source: ([10, 0, 0, 1].into(), 1),
            destination: ([10, 0, 0, 2].into(), 443),
            first_us: 0,
        }
    }

    fn decision(class: u16) -> Decision {
        Decision {
            class,
            confidence: u16::MAX,
            decided_by: DecidedBy::Model,
            depth: 10,
            model: 0,
            time_to_label_us: Some(0),
        }
    }

    fn ended(flow_id: u64, class: u16, bytes: u64) -> Record {
        Record::Flow(FlowRecord {
            flow: name(flow_id),
            last_us: 0,
            midstream: false,
            counts: Counts {
                packets: [1, 2],
                bytes: [0, bytes],
            },
            reason: EndReason::Fin,
            is_half_open: false,
            decision: Some(decision(class)),
            others: Box::default(),
            series: None,
        })
    }

    fn ids(reply: Reply) -> Vec<u64> {
        match reply.body {
            Some(Body::Flows(rows)) => rows.iter().map(|row| row.flow_id).collect(),
            other => panic!("{other:?}"),
        }
    }

    fn sample() -> (FlowTap, FlowView) {
        flow_view(["A".to_owned(), "B".to_owned()].into())
    }

    #[test]
    fn the_largest_come_first_and_labels_are_told_apart() {
        let (mut tap, mut sample) = sample();
        tap.record(&Record::Label(LabelRecord {
            flow: name(9),
            task: 0,
            time_us: 0,
            decision: decision(0),
        }));
        for (flow_id, class, bytes) in [(1, 0, 10), (2, 1, 30), (3, 0, 20)] {
            tap.record(&ended(flow_id, class, bytes));
        }
        assert_eq!(ids(sample.largest(None, 10)), [2, 3, 1, 9]);
        assert_eq!(ids(sample.largest(Some("A"), 2)), [3, 1]);
        let Some(Body::Flows(rows)) = sample.largest(None, 10).body else {
            panic!("no flows");
        };
        assert_eq!(rows[0].bytes, Some(30));
        assert_eq!(rows[3].bytes, None, "no record has said so yet");
        assert_eq!(sample.largest(Some("C"), 2).code, Code::NotFound as u16);
        // The flow that was alive has ended.
        tap.record(&ended(9, 0, 40));
        let Some(Body::Flows(rows)) = sample.largest(None, 1).body else {
            panic!("no flows");
        };
        assert_eq!((rows[0].flow_id, rows[0].packets), (9, Some(3)));
        assert_eq!(rows[0].end_reason.as_deref(), Some("fin"));
    }

    #[test]
    fn memory_is_bounded_however_many_there_are() {
        let (mut tap, mut sample) = sample();
        for flow_id in 0..(3 * REMEMBERED as u64) {
            tap.record(&ended(flow_id, 0, 1));
            if flow_id % QUEUE as u64 == 0 {
                sample.take_in();
            }
        }
        sample.take_in();
        assert!(sample.flows.len() <= REMEMBERED);
        assert_eq!(sample.flows.len(), sample.order.len());
        for flow_id in 0..2 * QUEUE as u64 {
            tap.record(&ended(flow_id, 0, 1));
        }
        assert_eq!(
            sample.records.len(),
            QUEUE,
            "what finds no room is left out"
        );
    }
}
