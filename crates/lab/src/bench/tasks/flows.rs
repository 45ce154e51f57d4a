//! Flows that come as a Poisson process, their series in the rings of the tasks, and their label
//! words.

use std::sync::Arc;

use analytics::RingInput;
use cring::{Features, FlowRef, Label, LabelWord, Labels, Producer, Series, Slot};

use super::device::K;
use super::graphs::Case;
use crate::rng::Rng;

/// Slots of each task's ring; the default of the configuration.
const SLOTS: usize = 4096;
/// Flows that the table holds for each slot of the rings, so that none makes room for another
/// while it waits for a label.
const FLOWS_PER_SLOT: usize = 4;

/// The label words of all flows; a flow's words for all tasks are adjacent.
pub struct Words {
    words: Vec<LabelWord>,
    tasks: usize,
}

impl Labels for Words {
    fn word(&self, task: u8, index: u32) -> &LabelWord {
        &self.words[index as usize * self.tasks + usize::from(task)]
    }
}

/// What is known of a flow.
#[derive(Clone, Copy, Default)]
struct Flow {
    came_ns: u64,
    class: u16,
    generation: u32,
}

/// The flow manager's side.
pub struct Flows {
    pub rate: f64,
    case: Case,
    rings: Vec<Producer<Slot>>,
    words: Arc<Words>,
    flows: Vec<Flow>,
    rng: Rng,
    next_ns: u64,
    count: usize,
    /// Series that found their ring full.
    pub shed: u64,
}

impl Flows {
    /// The flows of a case, and a ring for each of its tasks.
    pub fn new(case: &Case) -> (Flows, Vec<RingInput>) {
        let tasks = case.nodes.len();
        let table = FLOWS_PER_SLOT * SLOTS * tasks;
        let words = (0..tasks * table).map(|_| LabelWord::new()).collect();
        let words = Arc::new(Words { words, tasks });
        let (rings, inputs) = (0..tasks)
            .map(|_| {
                let (ring, series) = cring::ring(SLOTS);
                let labels = words.clone();
                (ring, RingInput { series, labels })
            })
            .unzip();
        let flows = Flows {
            rate: case.rate,
            case: case.clone(),
            rings,
            words,
            flows: vec![Flow::default(); table],
            rng: Rng::new(case.seed),
            next_ns: 0,
            count: 0,
            shed: 0,
        };
        (flows, inputs)
    }

    /// When the next flow comes.
    pub fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// All that have come until now.
    pub fn arrive(&mut self, now_ns: u64) {
        if self.next_ns > now_ns {
            return;
        }
        while self.next_ns <= now_ns {
            self.begin(self.next_ns);
            self.next_ns += (self.rng.gap(self.rate) * 1e9) as u64;
        }
        self.rings.iter_mut().for_each(Producer::publish);
    }

    fn begin(&mut self, came_ns: u64) {
        let index = self.count % self.flows.len();
        self.count += 1;
        let mut generation = 0;
        for task in 0..self.rings.len() {
            generation = self.words.word(task as u8, index as u32).retire();
        }
        let class = self.class();
        self.flows[index] = Flow { came_ns, class, generation };
        for task in 0..self.rings.len() {
            if self.case.nodes[task].emitted[usize::from(class)] {
                self.words.word(task as u8, index as u32).pend(generation);
                self.emit(task, index);
            }
        }
    }

    fn class(&mut self) -> u16 {
        let mut left = self.rng.share();
        for (class, share) in (0..).zip(&self.case.shares) {
            if left < *share {
                return class;
            }
            left -= share;
        }
        self.case.shares.len() as u16 - 1
    }

    fn emit(&mut self, task: usize, index: usize) {
        let flow = self.flows[index];
        let pushed = self.rings[task].push(|slot| {
            slot.flow = FlowRef { index: index as u32, generation: flow.generation };
            slot.emitted_ns = flow.came_ns;
            slot.series = Series::new(6, K, Features::LENGTHS);
            slot.series.set_signed(0, i32::from(flow.class));
            slot.series.task = task as u8;
        });
        if !pushed {
            self.shed += 1;
            let word = self.words.word(task as u8, index as u32);
            // It cannot be post-mortem, because the ring does not have the series.
            let _ = word.decide(flow.generation, Label::Unlabelled);
        }
    }
}
