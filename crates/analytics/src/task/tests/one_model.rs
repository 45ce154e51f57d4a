//! Swaps back to back under load: every flow is answered by one model, whatever its depths.

use super::device::class_by;
use super::world::{K, NO_CACHE, Row, row_of, series};
use super::*;
use crate::{Config, Manager, RingInput};
use accel::{Classification, Device, DeviceError};
use cring::{LabelWord, Labels, Producer, Slot, ring};
use std::sync::Arc;

const DEPTHS: u8 = 3;
const ENTRIES: usize = 500;
const GENERATIONS: u16 = 250;

/// Label words of tasks with several depths.
struct Words(Vec<LabelWord>);

impl Labels for Words {
    fn word(&self, task: u8, index: u32) -> &LabelWord {
        &self.0[usize::from(DEPTHS) * index as usize + usize::from(task)]
    }
}

/// The same numbers in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % n
    }
}

/// A device that answers after some polls, and fails at one batch in `fails_in`.
struct Model {
    sizes: Sizes,
    generation: u16,
    random: Random,
    polls: u64,
    fails_in: Option<u64>,
    input: Vec<f32>,
    answers: Vec<Classification>,
    in_flight: Option<u64>,
}

impl Device for Model {
    fn requested(&self) -> &'static str {
        "model"
    }

    fn effective(&self) -> &'static str {
        "model"
    }

    fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    fn is_idle(&self) -> bool {
        self.in_flight.is_none()
    }

    fn input(&mut self, rows: usize) -> &mut [f32] {
        assert!(self.is_idle());
        self.input.resize(rows * K, 0.0);
        &mut self.input
    }

    fn submit(&mut self, rows: usize) -> Result<(), DeviceError> {
        assert!(self.is_idle());
        self.answers.clear();
        let rows = self.input.chunks_exact(K).take(rows);
        self.answers.extend(
            rows.map(|row| Classification {
                class: class_by(self.generation, row),
                confidence: 0.5,
            }),
        );
        self.in_flight = Some(self.random.below(self.polls));
        Ok(())
    }

    fn poll(&mut self) -> Option<Result<&[Classification], DeviceError>> {
        match self.in_flight? {
            0 => {
                self.in_flight = None;
                let fails = self.fails_in.is_some_and(|one_in| self.random.below(one_in) == 0);
                Some(match fails {
                    true => Err(DeviceError::Run {
                        device: "model".into(),
                        rows: self.answers.len(),
                        cause: "it was told to".into(),
                    }),
                    false => Ok(&self.answers),
                })
            }
            polls => {
                self.in_flight = Some(polls - 1);
                None
            }
        }
    }
}

fn accelerators(is_inline: bool, generation: u16, fails_in: Option<u64>) -> Vec<Accelerator> {
    let (devices, polls) = if is_inline { (1, 1) } else { (2, 4) };
    let model = |number| {
        let device: Box<dyn Device> = Box::new(Model {
            sizes: Sizes::Any { cap: 16 },
            generation,
            random: Random(u64::from(generation) + number),
            polls,
            fails_in,
            input: Vec::new(),
            answers: Vec::new(),
            in_flight: None,
        });
        Accelerator::from(device)
    };
    (0..devices).map(model).collect()
}

#[derive(Clone, Copy, Default)]
struct Flow {
    asked: u8,
    generation: u32,
    rows: [Row; DEPTHS as usize],
    /// The model that the kernel answers it by, if it does.
    kernel: Option<u16>,
}

#[derive(Default)]
struct Outcome {
    flows: u64,
    /// Flows with answers of two models.
    mixed: u64,
    /// Flows without any answer.
    without: u64,
    /// Flows with an answer at each depth.
    full: u64,
    /// Swaps that have come to their end, by how the model came or went.
    replaced: u64,
    /// How often the model before came back.
    back: u64,
    promoted: u64,
    withdrawn: u64,
    /// Flows that a canary answered.
    by_canaries: u64,
}

struct Load {
    manager: Manager,
    producer: Option<Producer<Slot>>,
    words: Arc<Words>,
    flows: Vec<Flow>,
    random: Random,
    /// The last generation that a model got.
    generation: u16,
    /// Those in use and before.
    in_use: u16,
    before: Option<u16>,
    /// By generation, the one that its devices had first.
    first: Vec<u16>,
    /// The last canary's generation.
    canary: Option<u16>,
    has_canary: bool,
    fails_in: Option<u64>,
    now_ns: u64,
    outcome: Outcome,
}

impl Load {
    /// Through a ring to two devices, with a cache, or at once.
    fn new(is_inline: bool, fails_in: Option<u64>) -> Load {
        let words = (0..ENTRIES * usize::from(DEPTHS)).map(|_| LabelWord::new()).collect();
        let words = Arc::new(Words(words));
        let (producer, consumer) = ring(256);
        let inputs = vec![RingInput { series: consumer, labels: words.clone() }];
        let config = Config {
            context: Vec::new(),
            k: K,
            features: vec![Feature::SignedLength],
            policy: Policy::Timeout { timeout: Duration::from_micros(20) },
            cache: if is_inline { NO_CACHE } else { exact_cache(0.1) },
            probe: Vec::new(),
            word: 0,
            priority: 0,
            after: crate::After::default(),
        };
        let inputs = if is_inline { Vec::new() } else { inputs };
        let mut task = Task::new(config, inputs, accelerators(is_inline, 0, fails_in)).unwrap();
        task.set_cost_clock(|| 0);
        Load {
            manager: Manager::new(vec![task]),
            producer: (!is_inline).then_some(producer),
            words,
            flows: vec![Flow::default(); ENTRIES],
            random: Random(7),
            generation: 0,
            in_use: 0,
            before: None,
            first: (0..GENERATIONS).collect(),
            canary: None,
            has_canary: false,
            fails_in,
            now_ns: 0,
            outcome: Outcome::default(),
        }
    }

    /// The next question about a flow, or another flow in its place if it has its answers.
    fn step(&mut self) {
        if self.producer.as_mut().is_some_and(|producer| producer.free() == 0) {
            return;
        }
        let index = self.random.below(ENTRIES as u64) as usize;
        let mut flow = self.flows[index];
        if flow.asked == DEPTHS && !self.judge(index) {
            return;
        }
        if flow.asked == DEPTHS || flow.asked == 0 {
            let words = (0..DEPTHS).map(|depth| self.words.word(depth, index as u32));
            let generation = words.fold(0, |_, word| word.retire());
            let kernel = self.producer.is_none() && self.random.below(4) == 0;
            let kernel =
                kernel.then(|| self.generation.saturating_sub(self.random.below(3) as u16));
            flow = Flow { generation, kernel, ..Flow::default() };
        }
        let depth = flow.asked;
        // Few enough for the cache to know them.
        let row = [f32::from(depth) + 1.0, self.random.below(30) as f32, index as f32 % 7.0];
        let mut series = series(row);
        series.task = depth;
        let asked = FlowRef { index: index as u32, generation: flow.generation };
        let slot = Slot { flow: asked, emitted_ns: self.now_ns, series, ..Slot::default() };
        let word = self.words.word(depth, index as u32);
        match &mut self.producer {
            Some(producer) => {
                word.pend(flow.generation);
                producer.push(|to| *to = slot);
                producer.publish();
            }
            None => {
                word.pend(flow.generation);
                // The kernel does not know every answer.
                let given = flow.kernel.filter(|_| self.random.below(8) > 0);
                let given = given.map(|model| Label::Class {
                    class: class_by(self.first[usize::from(model)], &row),
                    confidence: 1,
                    source: Source::Model,
                    model,
                });
                let now_ns = self.now_ns;
                let task = &mut self.manager.tasks_mut()[0];
                let label = task.answer(&slot, self.words.as_ref(), given, || now_ns);
                word.decide(flow.generation, label).unwrap();
            }
        }
        flow.rows[usize::from(depth)] = row_of(&series);
        flow.asked += 1;
        self.flows[index] = flow;
    }

    /// Whether a flow has all its answers; counts it if so.
    fn judge(&mut self, index: usize) -> bool {
        let labels: [Label; DEPTHS as usize] =
            std::array::from_fn(|depth| self.words.word(depth as u8, index as u32).read().1);
        if labels.contains(&Label::Pending) {
            return false;
        }
        let mut models = Vec::new();
        for (label, row) in labels.iter().zip(&self.flows[index].rows) {
            if let Label::Class { class, model, .. } = *label {
                let first = self.first[usize::from(model)];
                assert_eq!(class, class_by(first, row), "what the model says that is named");
                models.push(model);
            }
        }
        let outcome = &mut self.outcome;
        outcome.flows += 1;
        outcome.full += u64::from(models.len() == labels.len());
        outcome.without += u64::from(models.is_empty());
        outcome.mixed += u64::from(models.windows(2).any(|two| two[0] != two[1]));
        outcome.by_canaries += u64::from(self.has_canary && models.first() == self.canary.as_ref());
        true
    }

    /// What a swap changes, by chance: a canary is promoted as often as it is withdrawn.
    fn change(&mut self) -> NewModel {
        let coming = match (self.has_canary, self.random.below(2)) {
            (false, 0) => Coming::Replaces,
            (false, _) => Coming::Canary,
            (true, 0) => Coming::Promoted,
            (true, _) => Coming::Withdrawn,
        };
        self.has_canary = coming == Coming::Canary;
        let mut model = NewModel { accelerators: Vec::new(), generation: self.generation, coming };
        match coming {
            Coming::Withdrawn => return model,
            Coming::Promoted => {
                self.before = Some(std::mem::replace(&mut self.in_use, self.generation));
                return model;
            }
            Coming::Canary | Coming::Replaces => {}
        }
        self.generation = (self.generation + 1) % GENERATIONS;
        model.generation = self.generation;
        let mut first = self.generation;
        match coming {
            Coming::Canary => self.canary = Some(self.generation),
            _ => {
                let before = self.before.replace(self.in_use);
                self.in_use = self.generation;
                if let Some(before) = before.filter(|_| self.random.below(4) == 0) {
                    first = self.first[usize::from(before)];
                    self.outcome.back += 1;
                }
            }
        }
        self.first[usize::from(self.generation)] = first;
        if first == self.generation {
            let is_inline = self.producer.is_none();
            model.accelerators = accelerators(is_inline, self.generation, self.fails_in);
        }
        model
    }

    /// Swaps whenever the last swap is over, after `every` steps at least.
    fn run(mut self, flows: u64, every: u64) -> Outcome {
        let mut steps = 0_u64;
        let mut swapping = None;
        while self.outcome.flows < flows {
            self.step();
            steps += 1;
            if self.random.below(8) == 0 {
                self.now_ns += 10_000;
                self.manager.round(self.now_ns);
            }
            if self.manager.tasks_mut()[0].take_retired().is_some() {
                match swapping.take() {
                    Some(Coming::Replaces) => self.outcome.replaced += 1,
                    Some(Coming::Promoted) => self.outcome.promoted += 1,
                    Some(Coming::Withdrawn) => self.outcome.withdrawn += 1,
                    _ => {}
                }
            }
            if swapping.is_none() && steps.is_multiple_of(every) {
                let were = (self.in_use, self.before);
                let model = self.change();
                swapping = Some(model.coming);
                let task = &mut self.manager.tasks_mut()[0];
                match task.prepare(Standby { model: Some(model), settings: None }) {
                    Ok(()) => task.commit(),
                    // Its devices have failed.
                    Err(refused) => {
                        assert!(matches!(refused.error, SwapError::Canary(_)), "{refused}");
                        (self.in_use, self.before) = were;
                        (self.has_canary, swapping) = (true, None);
                    }
                }
            }
        }
        let Outcome { replaced, promoted, .. } = self.outcome;
        let counters = self.manager.tasks()[0].counters();
        assert_eq!(counters.swaps, replaced + promoted);
        self.outcome
    }
}

#[test]
fn no_flow_has_answers_of_two_models_and_none_is_without() {
    for is_inline in [false, true] {
        let outcome = Load::new(is_inline, None).run(1_500_000, 2_000);
        let Outcome { flows, mixed, without, full, .. } = outcome;
        let Outcome { replaced, back, promoted, withdrawn, by_canaries, .. } = outcome;
        println!(
            "{flows} flows, {full} with all answers, {replaced} models replaced, {back} by the \
             one before, {promoted} \
             canaries promoted, {withdrawn} withdrawn, {by_canaries} flows of theirs, inline: \
             {is_inline}"
        );
        assert_eq!((mixed, without), (0, 0), "inline: {is_inline}");
        let least = replaced.min(promoted).min(withdrawn).min(back);
        assert!(least >= 100, "{replaced} {back} {promoted} {withdrawn}");
        assert!(replaced + promoted >= 1000, "{replaced} and {promoted}");
        assert!(by_canaries > flows / 50, "{by_canaries} of {flows}");
        assert!(full > flows / 10, "{full} of {flows}");
    }
}

#[test]
fn flows_of_the_model_before_have_all_answers_where_swaps_are_rare() {
    let outcome = Load::new(false, None).run(20_000, 30_000);
    assert!(outcome.full * 100 > outcome.flows * 99, "{} of {}", outcome.full, outcome.flows);
    assert_eq!(outcome.mixed, 0);
}

#[test]
fn a_device_that_fails_amid_swaps_mixes_no_answers() {
    let outcome = Load::new(false, Some(20)).run(50_000, 300);
    assert_eq!(outcome.mixed, 0);
    assert!(outcome.without > 0 && outcome.full > 0, "failures happened");
}
