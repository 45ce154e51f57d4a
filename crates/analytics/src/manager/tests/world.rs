//! Flow managers, rings and devices as the tests want them, and a clock that the test moves.

use crate::{CacheConfig, Config, Inlet, Manager, Policy, Round};
use accel::{Classification, Device, DeviceError, Sizes};
use cring::{FlowRef, Label, LabelWord, Producer, Series, Slot, ring};
use std::sync::{Arc, Mutex};

pub const K: usize = 3;
pub const TCP: u8 = 6;
/// Flows that one flow manager can have.
const FLOWS_MAX: usize = 10_000;
/// Generation of every flow.
const GENERATION: u32 = 5;

pub type Row = [f32; K];

/// One batch as a device got it.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    pub device: usize,
    pub rows: Vec<Row>,
}

impl Batch {
    /// The rows without the padding at the end.
    pub fn series(&self) -> &[Row] {
        let series = self.rows.iter().take_while(|row| **row != [0.0; K]).count();
        let (series, padding) = self.rows.split_at(series);
        assert!(padding.iter().all(|row| *row == [0.0; K]));
        series
    }
}

/// What a device does with one batch.
#[derive(Clone, Copy, Debug)]
pub enum Deed {
    /// Gives the results at the n-th poll, counted from 0.
    Works(usize),
    /// Fails at the n-th poll.
    FailsAtPoll(usize),
    FailsAtSubmit,
}

/// The "model": a class that depends on every number of the row.
pub fn class_of(row: &[f32]) -> u16 {
    let sum = row.iter().fold(17.0, |sum: f64, x| {
        (sum * 31.0 + f64::from(*x) + 1e5) % 4001.0
    });
    sum as u16
}

pub struct FakeDevice {
    number: usize,
    sizes: Sizes,
    /// One after the other, and again from the start.
    deeds: Vec<Deed>,
    submitted: usize,
    input: Vec<f32>,
    /// Polls still to come and whether it will fail, while a batch is in flight.
    in_flight: Option<(usize, bool)>,
    results: Vec<Classification>,
    log: Arc<Mutex<Vec<Batch>>>,
}

impl FakeDevice {
    pub fn new(number: usize, sizes: Sizes, deeds: Vec<Deed>, log: Arc<Mutex<Vec<Batch>>>) -> Self {
        Self {
            number,
            sizes,
            deeds,
            submitted: 0,
            input: Vec::new(),
            in_flight: None,
            results: Vec::new(),
            log,
        }
    }

    fn error(&self) -> DeviceError {
        DeviceError::Run {
            device: "fake".into(),
            rows: self.results.len(),
            cause: "it was told to".into(),
        }
    }
}

impl Device for FakeDevice {
    fn requested(&self) -> &str {
        "fake"
    }

    fn effective(&self) -> &str {
        "FakeExecutionProvider"
    }

    fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    fn is_idle(&self) -> bool {
        self.in_flight.is_none()
    }

    fn input(&mut self, rows: usize) -> &mut [f32] {
        assert!(self.is_idle());
        // Whatever the manager does not write must show.
        self.input.clear();
        self.input.resize(rows * K, f32::NAN);
        &mut self.input
    }

    fn submit(&mut self, rows: usize) -> Result<(), DeviceError> {
        assert!(self.is_idle() && self.sizes.takes(rows) && self.input.len() == rows * K);
        assert!(self.input.iter().all(|x| x.is_finite()));
        let rows: Vec<Row> = self
            .input
            .chunks_exact(K)
            .map(|row| row.try_into().unwrap())
            .collect();
        self.results = rows
            .iter()
            .map(|row| Classification {
                class: class_of(row),
                confidence: 0.5,
            })
            .collect();
        self.log.lock().unwrap().push(Batch {
            device: self.number,
            rows,
        });
        let deed = self.deeds[self.submitted % self.deeds.len()];
        self.submitted += 1;
        match deed {
            Deed::FailsAtSubmit => return Err(self.error()),
            Deed::Works(polls) => self.in_flight = Some((polls, false)),
            Deed::FailsAtPoll(polls) => self.in_flight = Some((polls, true)),
        }
        Ok(())
    }

    fn poll(&mut self) -> Option<Result<&[Classification], DeviceError>> {
        match self.in_flight? {
            (0, fails) => {
                self.in_flight = None;
                Some(if fails {
                    Err(self.error())
                } else {
                    Ok(&self.results)
                })
            }
            (polls, fails) => {
                self.in_flight = Some((polls - 1, fails));
                None
            }
        }
    }
}

/// A flow manager's end.
pub struct Source {
    producer: Option<Producer<Slot>>,
    pub words: Arc<Vec<LabelWord>>,
    /// Series of the flows emitted so far; a flow's index is its place here.
    pub emitted: Vec<Series>,
}

pub struct World {
    pub manager: Manager,
    pub sources: Vec<Source>,
    pub log: Arc<Mutex<Vec<Batch>>>,
    pub now_ns: u64,
}

/// How a world is made: rings of 64 slots; one inlet; one device of sizes 4, 8, 16 that answers at the next round; no
/// cache.
pub struct Plan {
    pub policy: Policy,
    pub cache: CacheConfig,
    pub inlets: usize,
    pub ring_slots: usize,
    pub devices: Vec<(Sizes, Vec<Deed>)>,
}

pub const NO_CACHE: CacheConfig = CacheConfig {
    prefix: 0,
    entries: 0,
    audit: 0.0,
};

impl Plan {
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            cache: NO_CACHE,
            inlets: 1,
            ring_slots: 64,
            devices: vec![(Sizes::Fixed(vec![4, 8, 16]), vec![Deed::Works(0)])],
        }
    }

    pub fn start(self) -> World {
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut sources = Vec::new();
        let mut inlets = Vec::new();
        for _ in 0..self.inlets {
            let (producer, consumer) = ring(self.ring_slots);
            let words: Arc<Vec<_>> = Arc::new((0..FLOWS_MAX).map(|_| LabelWord::new()).collect());
            inlets.push(Inlet {
                series: consumer,
                labels: Arc::clone(&words) as _,
            });
            sources.push(Source {
                producer: Some(producer),
                words,
                emitted: Vec::new(),
            });
        }
        let devices = self.devices.into_iter().enumerate();
        let devices = devices.map(|(number, (sizes, deeds))| {
            let log = Arc::clone(&log);
            Box::new(FakeDevice::new(number, sizes, deeds, log)) as Box<dyn Device>
        });
        let config = Config {
            k: K,
            policy: self.policy,
            cache: self.cache,
        };
        World {
            manager: Manager::new(config, inlets, devices.collect()).unwrap(),
            sources,
            log,
            now_ns: 0,
        }
    }
}

/// A TCP series of these signed lengths.
pub fn series(signed: Row) -> Series {
    let mut series = Series {
        protocol: TCP,
        k: K as u8,
        ..Series::default()
    };
    for (i, length) in signed.into_iter().enumerate() {
        series.lengths[i] = length.abs() as u16;
        series.directions |= u32::from(length < 0.0) << i;
    }
    series
}

/// The model's input for a series.
pub fn row_of(series: &Series) -> Row {
    std::array::from_fn(|i| series.signed(i) as f32)
}

impl World {
    /// A new flow asks for its label. False when the ring is full.
    pub fn emit(&mut self, inlet: usize, series: Series) -> bool {
        let source = &mut self.sources[inlet];
        let index = source.emitted.len();
        let producer = source.producer.as_mut().unwrap();
        let now_ns = self.now_ns;
        if producer.free() == 0 {
            return false;
        }
        source.words[index].begin(GENERATION);
        source.words[index].pend(GENERATION);
        let flow = FlowRef {
            index: index as u32,
            generation: GENERATION,
        };
        assert!(producer.push(|slot| {
            *slot = Slot {
                flow,
                emitted_ns: now_ns,
                series,
                ..Slot::default()
            }
        }));
        producer.publish();
        source.emitted.push(series);
        true
    }

    /// New flows with a series of their own each, which tells inlet and number. Returns how many found room.
    pub fn emit_new(&mut self, inlet: usize, count: usize) -> usize {
        (0..count)
            .take_while(|_| {
                let number = self.sources[inlet].emitted.len();
                self.emit(inlet, series([(inlet + 1) as f32, -(number as f32), 40.0]))
            })
            .count()
    }

    /// Inlet and number of a flow of [`World::emit_new`].
    pub fn flow_of(row: &Row) -> (usize, usize) {
        (row[0] as usize - 1, -row[1] as usize)
    }

    pub fn round_at_ms(&mut self, now_ms: u64) -> bool {
        self.now_ns = now_ms * 1_000_000;
        self.manager.round(self.now_ns) != Round::Idle
    }

    pub fn label(&self, inlet: usize, flow: usize) -> Option<Label> {
        self.sources[inlet].words[flow].label(GENERATION)
    }

    pub fn class(&self, inlet: usize, flow: usize) -> Option<u16> {
        match self.label(inlet, flow)? {
            Label::Class { class, .. } => Some(class),
            _ => None,
        }
    }

    /// Ends a flow, and returns the label it had; none where it had ended before.
    pub fn retire(&mut self, inlet: usize, flow: usize) -> Option<Label> {
        let label = self.label(inlet, flow);
        if label.is_some() {
            self.sources[inlet].words[flow].retire();
        }
        label
    }

    /// Ends the flow managers, and goes on until the manager is done.
    pub fn finish(&mut self) {
        self.sources.iter_mut().for_each(|s| s.producer = None);
        self.manager.drain();
        for _ in 0..10_000 {
            self.manager.round(self.now_ns);
            if self.manager.is_done() {
                return;
            }
        }
        panic!("never done: {:?}", self.manager.counters());
    }

    pub fn batches(&self) -> Vec<Batch> {
        self.log.lock().unwrap().clone()
    }

    /// Sizes of the batches so far: series and rows.
    pub fn batch_sizes(&self) -> Vec<(usize, usize)> {
        let batches = self.batches();
        batches
            .iter()
            .map(|b| (b.series().len(), b.rows.len()))
            .collect()
    }
}
