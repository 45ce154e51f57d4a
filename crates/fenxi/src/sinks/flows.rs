//! What records said of flows lately, for those who look: the control plane adds it to what the
//! flow tables hold.
//!
//! The data path offers each record; where the control thread is behind, it is left out. So this is
//! a sample, bounded in memory and in what it costs, and no account; that is the records' and the
//! metrics' matter.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, Sender, bounded};
use dataplane::sink::Sink;
use flowmgr::record::{Decision, EndReason, FlowName, Record, SeriesRecord};
use flowmgr::{Behaviour, Counts, TaskId, Wanted};
use measure::Told;

use super::{Dscps, Interfaces, SinkControl, SinkKind, Start};
use crate::exit::Failure;

/// Records that may wait for the control thread.
const QUEUE: usize = 1024;

const REMEMBERED: usize = 4096;

/// Flows that go on and whose records so far are summed up.
const REPORTED: usize = 65_536;

/// The sink of a run that has a control plane.
pub struct Flows;

impl SinkKind for Flows {
    fn start(&self, start: &Start<'_>) -> Result<Option<Box<dyn SinkControl>>, Failure> {
        let control =
            |recent: &RecentFlows| Box::new(FlowControl(recent.clone())) as Box<dyn SinkControl>;
        Ok(start.recent.map(control))
    }
}

struct FlowControl(RecentFlows);

impl SinkControl for FlowControl {
    fn worker_half(&self) -> Option<Box<dyn Sink>> {
        Some(Box::new(FlowTap(self.0.clone())))
    }

    fn tick(&self) {
        self.0.lock().take_in(&self.0.interfaces);
    }
}

/// The recent flows of a run, shared by the sink and the control plane. Both use them on the
/// control thread only, so nobody ever waits.
#[derive(Clone)]
pub struct RecentFlows {
    sender: Sender<Record>,
    recent: Arc<Mutex<Recent>>,
    /// Only flows that are meant are remembered, and none of them is left out.
    only: Option<Wanted>,
    pub interfaces: Interfaces,
}

impl RecentFlows {
    /// Only these flows, for a replay, which may wait.
    pub fn only(wanted: Wanted) -> RecentFlows {
        RecentFlows { only: Some(wanted), ..RecentFlows::new(Interfaces::default()) }
    }

    pub fn new(interfaces: Interfaces) -> RecentFlows {
        let (sender, records) = bounded(QUEUE);
        let recent = Recent {
            records,
            flows: HashMap::new(),
            order: VecDeque::new(),
            reported: HashMap::new(),
        };
        RecentFlows { sender, recent: Arc::new(Mutex::new(recent)), only: None, interfaces }
    }

    /// To look into, with all that was offered so far.
    pub fn lock(&self) -> MutexGuard<'_, Recent> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.take_in(&self.interfaces);
        recent
    }
}

pub struct Recent {
    records: Receiver<Record>,
    flows: HashMap<u64, Known>,
    /// By when they were first heard of.
    order: VecDeque<u64>,
    /// Packets and bytes in the records so far of flows that go on.
    reported: HashMap<u64, Counts>,
}

#[derive(Debug, Clone)]
pub struct Known {
    pub flow: FlowName,
    pub decision: Option<Decision>,
    /// The labels of the tasks behind the first, by their numbers.
    pub others: BTreeMap<u8, Decision>,
    /// When the label was there, µs.
    pub labelled_us: Option<i64>,
    /// Time of the last packet that a record counts, µs.
    pub last_us: i64,
    pub counts: Counts,
    /// TCP that was not seen from its first SYN on.
    pub midstream: bool,
    /// Only one side has taken part.
    pub is_half_open: bool,
    pub behaviour: Behaviour,
    pub dscps: Dscps,
    /// On the heap, so that it takes no memory while measuring is off.
    pub measured: Option<Box<Told>>,
    /// Why it ended; `None`: it goes on, as far as is known.
    pub ended: Option<EndReason>,
    pub series: Option<Box<SeriesRecord>>,
}

impl Known {
    pub fn class_of(&self, task: usize) -> Option<u16> {
        let decision = match task {
            0 => self.decision,
            other => self.others.get(&(other as u8)).copied(),
        };
        decision.map(|decision| decision.class)
    }
}

struct FlowTap(RecentFlows);

impl Sink for FlowTap {
    /// A live run never waits: where the control thread is behind, the record is left out.
    fn record(&mut self, record: &Record) {
        if let Some(wanted) = self.0.only {
            if record.flow().is_some_and(|flow| wanted.is_of(flow)) {
                self.0.lock().remember(record.clone(), &self.0.interfaces);
            }
            return;
        }
        // The table has the behaviour of a live flow, and the record the behaviour of a flow that
        // has ended.
        if self.0.sender.is_full() || !matches!(record, Record::Label(_) | Record::Flow(_)) {
            return;
        }
        // A series is a copy on the heap, but only where records carry series, which then are on
        // the heap themselves.
        let _ = self.0.sender.try_send(record.clone());
    }
}

impl Recent {
    /// What the records so far say of a flow that goes on, to be added to what the table counts
    /// since.
    pub fn reported(&self, flow_id: u64) -> Counts {
        self.reported.get(&flow_id).copied().unwrap_or_default()
    }

    pub fn get(&self, flow_id: u64) -> Option<&Known> {
        self.flows.get(&flow_id)
    }

    /// Flows that have ended, the latest first.
    pub fn ended(&self) -> impl Iterator<Item = &Known> {
        self.latest().filter(|known| known.ended.is_some())
    }

    /// The flows that are meant, the latest first.
    pub fn find<'a>(&'a self, wanted: &'a Wanted) -> impl Iterator<Item = &'a Known> {
        self.latest().filter(|known| wanted.is_of(&known.flow))
    }

    fn latest(&self) -> impl Iterator<Item = &Known> {
        self.order.iter().rev().filter_map(|flow_id| self.flows.get(flow_id))
    }

    /// Takes in what was offered, at most what the queue holds.
    fn take_in(&mut self, interfaces: &Interfaces) {
        for _ in 0..QUEUE {
            match self.records.try_recv() {
                Ok(record) => self.remember(record, interfaces),
                Err(_) => return,
            }
        }
    }

    fn remember(&mut self, record: Record, interfaces: &Interfaces) {
        let Some(&flow) = record.flow() else { return };
        self.make_room(flow.flow_id);
        let known = self.flows.entry(flow.flow_id).or_insert(Known {
            flow,
            decision: None,
            others: BTreeMap::new(),
            labelled_us: None,
            last_us: flow.first_us,
            counts: Counts::default(),
            midstream: false,
            is_half_open: false,
            behaviour: Behaviour::None,
            dscps: Dscps::default(),
            measured: None,
            ended: None,
            series: None,
        });
        match record {
            Record::Label(label) if label.task == TaskId::FIRST => {
                known.decision = Some(label.decision);
                known.labelled_us = Some(label.time_us);
            }
            Record::Label(label) => {
                known.others.insert(label.task.0, label.decision);
            }
            Record::Flow(flow) => {
                let is_final = flow.is_final();
                let others = (1..).zip(&flow.decisions[1..]);
                let given = others.filter_map(|(task, decision)| Some((task, (*decision)?)));
                known.others.extend(given);
                known.decision = flow.decisions[0].or(known.decision);
                add(&mut known.counts, &flow.counts);
                known.last_us = flow.last_us;
                known.midstream = flow.midstream;
                known.is_half_open = flow.is_half_open;
                known.behaviour = flow.behaviour;
                known.dscps = interfaces.dscps(&flow.headers);
                known.measured = flow.measured.map(Box::new);
                known.ended = is_final.then_some(flow.reason);
                known.series = flow.series.or(known.series.take());
                let (flow_id, has_room) = (flow.flow.flow_id, self.reported.len() < REPORTED);
                if is_final {
                    self.reported.remove(&flow_id);
                } else if has_room || self.reported.contains_key(&flow_id) {
                    add(self.reported.entry(flow_id).or_default(), &flow.counts);
                }
            }
            Record::Behaviour(_) | Record::Sample(_) => {}
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
}

pub fn add(sum: &mut Counts, counts: &Counts) {
    for way in 0..2 {
        sum.packets[way] += counts.packets[way];
        sum.bytes[way] += counts.bytes[way];
    }
}

#[cfg(test)]
mod tests {
    use flowmgr::record::{DecidedBy, FlowRecord, LabelRecord};

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
            contradicts: None,
            class,
            confidence: u16::MAX,
            decided_by: DecidedBy::Model,
            depth: 10,
            model: 0,
            time_to_label_us: Some(0),
            truth: None,
        }
    }

    fn record(flow_id: u64, bytes: u64, reason: EndReason) -> Record {
        Record::Flow(FlowRecord {
            flow: name(flow_id),
            last_us: 7,
            midstream: false,
            counts: Counts { packets: [1, 2], bytes: [0, bytes] },
            reason,
            is_half_open: false,
            decisions: [None; cring::TASKS_MAX],
            series: None,
            rule: None,
            behaviour: flowmgr::Behaviour::None,
            headers: Default::default(),
            measured: None,
        })
    }

    fn sample() -> (FlowTap, RecentFlows) {
        let recent = RecentFlows::new(Interfaces::default());
        (FlowTap(recent.clone()), recent)
    }

    #[test]
    fn records_of_a_flow_add_up_until_it_ends() {
        let (mut tap, recent) = sample();
        tap.record(&Record::Label(LabelRecord {
            flow: name(9),
            task: TaskId::FIRST,
            time_us: 5,
            decision: decision(1),
        }));
        tap.record(&record(9, 30, EndReason::Active));
        tap.record(&record(9, 12, EndReason::Active));
        assert_eq!(recent.lock().reported(9).bytes, [0, 42]);
        assert_eq!(recent.lock().ended().count(), 0);
        tap.record(&record(9, 8, EndReason::Fin));
        let recent = recent.lock();
        assert_eq!(recent.reported(9), Counts::default(), "it goes on no more");
        let known = recent.ended().next().unwrap();
        assert_eq!((known.flow.flow_id, known.counts.bytes), (9, [0, 50]));
        assert_eq!((known.labelled_us, known.last_us), (Some(5), 7));
        assert_eq!(known.decision.map(|it| it.class), Some(1));
        assert_eq!(recent.find(&Wanted::Id(9)).count(), 1);
        assert_eq!(recent.find(&Wanted::Id(8)).count(), 0);
    }

    #[test]
    fn memory_is_bounded_however_many_there_are() {
        let (mut tap, recent) = sample();
        for flow_id in 0..(3 * REMEMBERED as u64) {
            tap.record(&record(flow_id, 1, EndReason::Fin));
            if flow_id % QUEUE as u64 == 0 {
                drop(recent.lock());
            }
        }
        let known = recent.lock();
        assert!(known.flows.len() <= REMEMBERED);
        assert_eq!(known.flows.len(), known.order.len());
        drop(known);
        for flow_id in 0..2 * QUEUE as u64 {
            tap.record(&record(flow_id, 1, EndReason::Active));
        }
        let waiting = recent.sender.len();
        assert_eq!(waiting, QUEUE, "what finds no room is left out");
    }
}
