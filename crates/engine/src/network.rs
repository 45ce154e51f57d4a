//! A compiled network of any kind, and what it answers.

use std::time::{Duration, Instant};

use crate::compile::compile;
use crate::error::Error;
use crate::integers::Integers;
use crate::onnx::Model;
use crate::ranges::Ranges;
use crate::simd::Isa;
use crate::snapshot::{self, Content};
use crate::trees::{self, Trees};
use crate::{float, graph, integer, plan, quantised};

/// What a network says about one row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Answer {
    /// The class with the largest probability; of equal ones the first.
    pub class: u16,
    /// Its probability. Of an integer network a multiple of 2⁻¹⁵.
    pub confidence: f32,
}

/// What one row of a network's input has, and how many classes it tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Channels of the series.
    pub channels: usize,
    /// Elements of each channel.
    pub places: usize,
    /// Numbers of the context; 0 without one.
    pub context: usize,
    /// Classes.
    pub classes: usize,
}

/// Wall time of a row, ns: the least of a few tries, with the tables in the cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowNs {
    /// In a batch of one.
    pub alone: f64,
    /// In a batch of 32.
    pub batched: f64,
}

/// A compiled network. It does not change, so that threads may share it; each needs a [`Scratch`].
pub struct Network {
    shape: Shape,
    isa: Isa,
    row_ns: Option<RowNs>,
    kind: Kind,
}

enum Kind {
    Integer(Box<integer::Network>),
    Float(Box<float::Network>),
    Quantised(Box<quantised::Network>),
    Trees(Box<Trees>),
}

/// Memory that a network computes in.
pub struct Scratch {
    shape: Shape,
    kind: ScratchKind,
}

enum ScratchKind {
    Integer(Box<integer::Scratch>),
    Float(Box<float::Scratch>),
    Quantised(Box<quantised::Scratch>),
    Trees(Box<trees::Scratch>),
}

impl Shape {
    fn of_trees(forest: &plan::Forest) -> Self {
        let plan::Forest { channels, places, context, classes, .. } = *forest;
        Self { channels, places, context, classes }
    }
}

impl Kind {
    fn of_integers(integers: Integers) -> Self {
        Self::Integer(Box::new(integer::Network::new(integers)))
    }

    fn of_trees(forest: &plan::Forest) -> Result<Self, Error> {
        Ok(Self::Trees(Box::new(Trees::new(forest)?)))
    }
}

impl Network {
    /// Compiles a model for the first of the available instruction sets: a network into integers if
    /// the ranges of its channels are known, else into floats. A network that is quantised, and
    /// trees, need no ranges.
    ///
    /// # Errors
    /// The bytes are no ONNX model, the engine does not know a node, or the ranges do not fit.
    pub fn compile(onnx: &[u8], ranges: Option<&Ranges>) -> Result<Self, Error> {
        let (shape, kind) = match graph::plan(&Model::read(onnx)?)? {
            plan::Kind::Network(plan) => {
                let kind = match (ranges, &plan.values) {
                    (_, Some(values)) => {
                        let network = quantised::Network::new(&plan, values.clone())?;
                        Kind::Quantised(Box::new(network))
                    }
                    (Some(ranges), None) => Kind::of_integers(compile(&plan, ranges)?),
                    (None, None) => Kind::Float(Box::new(float::Network::new(&plan)?)),
                };
                let (places, context, classes) = (plan.places, plan.context, plan.classes());
                (Shape { channels: 1, places, context, classes }, kind)
            }
            plan::Kind::Forest(forest) => (Shape::of_trees(&forest), Kind::of_trees(&forest)?),
        };
        Ok(Self { shape, isa: Isa::available()[0], row_ns: None, kind })
    }

    /// The network that [`snapshot`](crate::snapshot()) has written. It gives the same answers.
    ///
    /// # Errors
    /// The file is damaged, truncated, or of another version.
    pub fn from_snapshot(file: &[u8]) -> Result<Self, Error> {
        let (shape, kind) = match snapshot::read(file)? {
            Content::Network(integers) => {
                let Integers { places, context, .. } = *integers;
                let shape =
                    Shape { channels: 1, places, context, classes: integers.output.classes };
                (shape, Kind::of_integers(*integers))
            }
            Content::Trees(forest) => (Shape::of_trees(&forest), Kind::of_trees(&forest)?),
        };
        Ok(Self { shape, isa: Isa::available()[0], row_ns: None, kind })
    }

    /// What a row of the input has.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Goes on with other instructions. The answers of integer networks stay the same to
    /// the bit, and of floats they do not; trees have no use for vectors.
    pub fn set_isa(&mut self, isa: Isa) {
        self.isa = isa;
    }

    /// Times rows with each of these instruction sets, for this long in all or five rounds, and
    /// goes on with the fastest.
    pub fn measure(&mut self, isas: &[Isa], time: Duration) {
        const ROWS: usize = 32;
        // The first one finds cold tables, and one may be preempted for all of the time.
        const ROUNDS: usize = 5;
        /// Times the time: what the rounds of a slow network may take.
        const MOST: u32 = 50;
        let start = Instant::now();
        let mut scratch = self.scratch();
        let Shape { channels, places, context: numbers, .. } = self.shape;
        let row_len = channels * places;
        let lengths = (0..ROWS * row_len).map(|i| (i * 7919 % 1500) as f32 - 500.0);
        let (series, context) = (lengths.collect::<Vec<_>>(), vec![17.0; ROWS * numbers]);
        let mut answers = [Answer::default(); ROWS];
        // By set: alone, batched.
        let mut times = vec![[f64::MAX; 2]; isas.len()];
        let (mut best, mut rounds) = (0, 0);
        while start.elapsed() < if rounds < ROUNDS { MOST * time } else { time } {
            for (i, isa) in isas.iter().enumerate() {
                // After two rounds, what is far behind is not tried again.
                if rounds > 1 && times[i][1] > 2.0 * times[best][1] {
                    continue;
                }
                self.isa = *isa;
                for (size, least) in [1, ROWS].into_iter().zip(&mut times[i]) {
                    let start = Instant::now();
                    for (i, answers) in answers.chunks_mut(size).enumerate() {
                        let (series, context) =
                            (&series[i * size * row_len..], &context[i * size * numbers..]);
                        self.run(&mut scratch, series, context, answers);
                    }
                    *least = least.min(start.elapsed().as_nanos() as f64 / ROWS as f64);
                }
                best = if times[i][1] < times[best][1] { i } else { best };
            }
            rounds += 1;
        }
        if let (Some(&isa), Some(&[alone, batched])) = (isas.get(best), times.get(best)) {
            (self.isa, self.row_ns) = (isa, Some(RowNs { alone, batched }));
        }
    }

    /// What a row takes, if it has been measured.
    pub fn row_ns(&self) -> Option<RowNs> {
        self.row_ns
    }

    /// Memory for [`run`](Self::run).
    pub fn scratch(&self) -> Scratch {
        let kind = match &self.kind {
            Kind::Integer(network) => ScratchKind::Integer(Box::new(network.scratch())),
            Kind::Float(network) => ScratchKind::Float(Box::new(network.scratch())),
            Kind::Quantised(network) => ScratchKind::Quantised(Box::new(network.scratch())),
            Kind::Trees(trees) => ScratchKind::Trees(Box::new(trees.scratch())),
        };
        Scratch { shape: self.shape, kind }
    }

    /// Answers as many rows as there are answers. `series` are `[rows][channels][places]`,
    /// `context` `[rows][numbers]`. It takes any floats, allocates nothing, and does not fail.
    ///
    /// # Panics
    /// If the inputs have too few rows, or the scratch is another network's.
    pub fn run(
        &self,
        scratch: &mut Scratch,
        series: &[f32],
        context: &[f32],
        answers: &mut [Answer],
    ) {
        self.run_into(scratch, series, context, answers, &mut []);
    }

    /// The same with the probabilities of all classes, `[rows][classes]`.
    ///
    /// # Panics
    /// If the inputs have too few rows, or the scratch is another network's.
    pub fn probabilities(
        &self,
        scratch: &mut Scratch,
        series: &[f32],
        context: &[f32],
        answers: &mut [Answer],
        probabilities: &mut [f32],
    ) {
        assert!(probabilities.len() == answers.len() * self.shape.classes);
        self.run_into(scratch, series, context, answers, probabilities);
    }

    fn run_into(
        &self,
        scratch: &mut Scratch,
        series: &[f32],
        context: &[f32],
        answers: &mut [Answer],
        probabilities: &mut [f32],
    ) {
        let Shape { channels, places, context: numbers, .. } = self.shape;
        assert!(scratch.shape == self.shape);
        assert!(answers.len() * channels * places <= series.len());
        assert!(answers.len() * numbers <= context.len());
        match (&self.kind, &mut scratch.kind) {
            (Kind::Integer(network), ScratchKind::Integer(scratch)) => {
                network.run(self.isa, scratch, series, context, answers, probabilities);
            }
            (Kind::Float(network), ScratchKind::Float(scratch)) => {
                network.run(self.isa, scratch, series, context, answers, probabilities);
            }
            (Kind::Quantised(network), ScratchKind::Quantised(scratch)) => {
                network.run(self.isa, scratch, series, context, answers, probabilities);
            }
            (Kind::Trees(trees), ScratchKind::Trees(scratch)) => {
                trees.run(scratch, series, context, answers, probabilities);
            }
            _ => unreachable!("a scratch of the same shape, but of another kind"),
        }
    }
}
