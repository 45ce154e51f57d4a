//! Flow managers, rings and devices for the tests, and a clock that the test moves.

use super::device::{Batch, Deed, FakeDevice, PROBE};
use crate::ring_input::Queue;
use crate::{Accelerator, CacheConfig, Config, Policy, RingInput, Round, Task};
use accel::{Profile, Sizes};
use cring::{Feature, Features, FlowRef, Label, LabelWord, Producer, Series, Slot, ring};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const K: usize = 3;
pub const TCP: u8 = 6;
/// Flows that one flow task can have.
const FLOWS_MAX: usize = 10_000;
/// Generation of every flow.
const GENERATION: u32 = 5;

pub type Row = [f32; K];

/// The flow manager's end of a task.
pub struct Source {
    producer: Option<Producer<Slot>>,
    pub words: Arc<Vec<LabelWord>>,
    /// Series of the flows emitted so far; a flow's index is its place here.
    pub emitted: Vec<Series>,
    /// How many were emitted by [`World::emit_again`].
    again: usize,
}

pub struct World {
    pub task: OneTask,
    pub sources: Vec<Source>,
    pub log: Arc<Mutex<Vec<Batch>>>,
    pub now_ns: u64,
}

/// How a world is made: rings of 64 slots; one ring input; one device of sizes 4, 8, 16 that
/// answers at the next round, without profile and deadline; no cache.
pub struct Plan {
    pub policy: Policy,
    pub cache: CacheConfig,
    pub inputs: usize,
    pub ring_slots: usize,
    pub devices: Vec<(Sizes, Vec<Deed>)>,
    /// Of every device.
    pub profile: Option<Profile>,
    /// Of every device.
    pub deadline: Option<Duration>,
}

pub const NO_CACHE: CacheConfig = CacheConfig { prefix: 0, entries: 0, audit: 0.0 };

impl Plan {
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            cache: NO_CACHE,
            inputs: 1,
            ring_slots: 64,
            devices: vec![(Sizes::Fixed(vec![4, 8, 16]), vec![Deed::Works(0)])],
            profile: None,
            deadline: None,
        }
    }

    pub fn start(self) -> World {
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut sources = Vec::new();
        let mut inputs = Vec::new();
        for _ in 0..self.inputs {
            let (producer, consumer) = ring(self.ring_slots);
            let words: Arc<Vec<_>> = Arc::new((0..FLOWS_MAX).map(|_| LabelWord::new()).collect());
            inputs.push(RingInput { series: consumer, labels: Arc::clone(&words) as _ });
            sources.push(Source { producer: Some(producer), words, emitted: Vec::new(), again: 0 });
        }
        let devices = self.devices.into_iter().enumerate();
        let accelerators = devices.map(|(number, (sizes, deeds))| Accelerator {
            device: Box::new(FakeDevice::new(number, sizes, deeds, Arc::clone(&log))),
            profile: self.profile,
            deadline: self.deadline,
            executor: 0,
        });
        let config = Config {
            context: Vec::new(),
            k: K,
            features: vec![Feature::SignedLength],
            policy: self.policy,
            cache: self.cache,
            probe: PROBE.to_vec(),
            word: 0,
            priority: 0,
            after: crate::After::default(),
        };
        let mut task = Task::new(config, inputs, accelerators.collect()).unwrap();
        task.set_cost_clock(|| 0);
        World { task: OneTask(crate::Manager::new(vec![task])), sources, log, now_ns: 0 }
    }
}

/// The only task of a manager.
pub struct OneTask(crate::Manager);

impl OneTask {
    pub fn round(&mut self, now_ns: u64) -> Round {
        self.0.round(now_ns)
    }
}

impl std::ops::Deref for OneTask {
    type Target = Task;

    fn deref(&self) -> &Task {
        &self.0.tasks()[0]
    }
}

impl std::ops::DerefMut for OneTask {
    fn deref_mut(&mut self) -> &mut Task {
        &mut self.0.tasks_mut()[0]
    }
}

/// A TCP series of these signed lengths.
pub fn series(signed: Row) -> Series {
    let mut series = Series::new(TCP, K, Features::LENGTHS);
    for (i, length) in signed.into_iter().enumerate() {
        series.set_signed(i, length as i32);
    }
    series
}

/// The model's input for a series.
pub fn row_of(series: &Series) -> Row {
    std::array::from_fn(|i| series.signed(i) as f32)
}

impl World {
    /// A new flow asks for its label. Returns false if the ring is full.
    pub fn emit(&mut self, ring_input: usize, series: Series) -> bool {
        let source = &mut self.sources[ring_input];
        let index = source.emitted.len();
        let producer = source.producer.as_mut().unwrap();
        let now_ns = self.now_ns;
        if producer.free() == 0 {
            return false;
        }
        source.words[index].begin(GENERATION);
        source.words[index].pend(GENERATION);
        let flow = FlowRef { index: index as u32, generation: GENERATION };
        assert!(
            producer.push(|slot| {
                *slot = Slot { flow, emitted_ns: now_ns, series, ..Slot::default() }
            })
        );
        producer.publish();
        source.emitted.push(series);
        true
    }

    /// Like [`World::emit`] on an entry that may have had flows before, for tests with more flows
    /// than entries. An entry whose flow still waits is left alone, and then this fails.
    pub fn emit_again(&mut self, ring_input: usize, series: Series) -> bool {
        let source = &mut self.sources[ring_input];
        let index = source.again % FLOWS_MAX;
        let producer = source.producer.as_mut().unwrap();
        let now_ns = self.now_ns;
        if source.words[index].read().1 == Label::Pending || producer.free() == 0 {
            return false;
        }
        source.again += 1;
        let generation = source.words[index].retire();
        source.words[index].pend(generation);
        let flow = FlowRef { index: index as u32, generation };
        producer.push(|slot| *slot = Slot { flow, emitted_ns: now_ns, series, ..Slot::default() });
        producer.publish();
        true
    }

    /// New flows, each with its own series, which tells ring input and number. Returns how many
    /// found room.
    pub fn emit_new(&mut self, ring_input: usize, count: usize) -> usize {
        (0..count)
            .take_while(|_| {
                let number = self.sources[ring_input].emitted.len();
                self.emit(ring_input, series([(ring_input + 1) as f32, -(number as f32), 40.0]))
            })
            .count()
    }

    /// RingInput and number of a flow of [`World::emit_new`].
    pub fn flow_of(row: &Row) -> (usize, usize) {
        (row[0] as usize - 1, -row[1] as usize)
    }

    pub fn round_at_ms(&mut self, now_ms: u64) -> bool {
        self.round_at_us(now_ms * 1000)
    }

    /// One round, after which everything adds up.
    pub fn round_at_us(&mut self, now_us: u64) -> bool {
        self.now_ns = now_us * 1000;
        let round = self.task.round(self.now_ns);
        self.check_sum();
        round != Round::Idle
    }

    /// Every series that was seen is decided, or is where it can be found.
    pub fn check_sum(&self) {
        let in_flight = self.task.on_devices() as usize;
        let retries: usize = self.task.dispatches().map(|it| it.retries.len()).sum();
        let waiting: usize = self.task.rings.queues.iter().map(Queue::waiting_for_label).sum();
        assert_eq!(
            self.task.counters().undecided(),
            (waiting + in_flight + retries) as u64,
            "series = fates + waiting + in flight + to be retried"
        );
    }

    pub fn label(&self, ring_input: usize, flow: usize) -> Option<Label> {
        self.sources[ring_input].words[flow].label(GENERATION)
    }

    pub fn class(&self, ring_input: usize, flow: usize) -> Option<u16> {
        match self.label(ring_input, flow)? {
            Label::Class { class, .. } => Some(class),
            _ => None,
        }
    }

    /// Ends a flow, and returns the label it had; `None` if it had ended before.
    pub fn retire(&mut self, ring_input: usize, flow: usize) -> Option<Label> {
        let label = self.label(ring_input, flow);
        if label.is_some() {
            self.sources[ring_input].words[flow].retire();
        }
        label
    }

    /// Ends the flow managers, and goes on until the task is done.
    pub fn finish(&mut self) {
        self.sources.iter_mut().for_each(|s| s.producer = None);
        self.task.drain();
        for _ in 0..10_000 {
            self.task.round(self.now_ns);
            self.check_sum();
            if self.task.is_done() {
                return;
            }
        }
        panic!("never done: {:?}", self.task.counters());
    }

    pub fn batches(&self) -> Vec<Batch> {
        self.log.lock().unwrap().clone()
    }

    /// Sizes of the batches so far: series and rows.
    pub fn batch_sizes(&self) -> Vec<(usize, usize)> {
        let batches = self.batches();
        batches.iter().map(|b| (b.series().len(), b.rows.len())).collect()
    }
}
