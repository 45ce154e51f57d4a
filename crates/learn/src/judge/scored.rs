//! What models and tables said to the same questions, scored, and which is better.

use std::collections::HashMap;

use accel::argmax;
use flowmgr::hash::split_mix;

use super::{LIFT_KEPT, Outputs, Question, Score};

/// The share of questions whose worth is the merit.
const MARKED: f64 = 0.05;

/// A smaller probability counts as this one, which is the least that a label can carry.
const LEAST: f64 = 1.0 / 65_536.0;

/// Rows of a table by a number.
const TABLE_ROWS: usize = 16;

const RESAMPLES: usize = 400;

/// A model's results: its log loss by question, and what makes its merit.
pub struct Scored {
    log_loss: Vec<f64>,
    merit: Merit,
    /// Where the classes are bands, whether it gives the highest one, by question.
    highest: Vec<bool>,
}

/// The questions whose worth is the merit.
enum Merit {
    /// For bands: the first of these, by what the model expects of them, the most first.
    First(Vec<usize>),
    /// For other classes: those for which the likeliest class is the true one.
    Right(Vec<bool>),
}

impl Merit {
    fn first(expected: &[f64]) -> Merit {
        let mut ranked: Vec<usize> = (0..expected.len()).collect();
        ranked.sort_by(|&a, &b| expected[b].total_cmp(&expected[a]));
        Merit::First(ranked)
    }
}

impl Scored {
    pub fn score(&self, questions: &[Question]) -> Score {
        let all = questions.len() as f64;
        let worth: f64 = questions.iter().map(|it| it.worth).sum();
        Score {
            log_loss: self.log_loss.iter().sum::<f64>() / all,
            merit: self.gained(questions, all, |_| 1.0) / worth.max(1.0),
        }
    }

    /// See [`super`].
    pub fn lift(&self, questions: &[Question]) -> f64 {
        let highest = questions.iter().zip(&self.highest).filter(|(_, is_highest)| **is_highest);
        let (count, carried) =
            highest.fold((0.0, 0.0), |(count, carried), (it, _)| (count + 1.0, carried + it.worth));
        let worth: f64 = questions.iter().map(|it| it.worth).sum();
        carried / worth.max(1.0) - count / questions.len() as f64
    }

    /// The worth of the questions that make the merit, among `all`. Each question counts as often
    /// as `weight` says.
    fn gained(&self, questions: &[Question], all: f64, weight: impl Fn(usize) -> f64) -> f64 {
        let worth = |at: usize| weight(at) * questions[at].worth;
        let ranked = match &self.merit {
            Merit::First(ranked) => ranked,
            Merit::Right(right) => {
                let right = right.iter().enumerate().filter(|(_, is_right)| **is_right);
                return right.map(|(at, _)| worth(at)).sum();
            }
        };
        let (mut taken, mut gained) = (0.0, 0.0);
        for &at in ranked {
            if taken >= MARKED * all {
                break;
            }
            taken += weight(at);
            gained += worth(at);
        }
        gained
    }
}

pub fn of_model(questions: &[Question], classes: usize, outputs: &Outputs) -> Scored {
    let rows = outputs.probabilities.chunks_exact(classes).zip(questions);
    let log_loss = log_loss(questions, classes, outputs);
    if questions.iter().all(|it| it.by_port.is_some()) {
        let right = rows.map(|(row, it)| argmax(row) == it.truth).collect();
        return Scored { log_loss, merit: Merit::Right(right), highest: Vec::new() };
    }
    let merit = Merit::first(&expected(questions, classes, outputs));
    let highest = outputs.classes.iter().map(|&it| usize::from(it) + 1 == classes).collect();
    Scored { log_loss, merit, highest }
}

/// −ln of what was given to the truth, by question.
fn log_loss(questions: &[Question], classes: usize, outputs: &Outputs) -> Vec<f64> {
    let rows = outputs.probabilities.chunks_exact(classes).zip(questions);
    rows.map(|(row, it)| -f64::from(row[it.truth]).max(LEAST).ln()).collect()
}

/// What a model of bands expects of each question: Σ p(band) · mean of the band.
fn expected(questions: &[Question], bands: usize, outputs: &Outputs) -> Vec<f64> {
    let (mut worth, mut count) = (vec![0.0; bands], vec![0.0; bands]);
    for question in questions {
        worth[question.truth] += question.worth;
        count[question.truth] += 1.0;
    }
    let means = worth.iter().zip(&count).map(|(worth, count)| worth / f64::max(*count, 1.0));
    let means: Vec<f64> = means.collect();
    let rows = outputs.probabilities.chunks_exact(bands);
    rows.map(|row| row.iter().zip(&means).map(|(p, m)| f64::from(*p) * m).sum()).collect()
}

/// A table by a number that ranks flows of bands: rows are of as many flows with about the same.
pub fn by_key(questions: &[Question], bands: usize, key: &[f64]) -> Scored {
    let mut sorted = key.to_vec();
    sorted.sort_by(f64::total_cmp);
    let bounds: Vec<f64> =
        (1..TABLE_ROWS).map(|row| sorted[row * sorted.len() / TABLE_ROWS]).collect();
    let row = |key: &f64| bounds.partition_point(|bound| bound <= key);
    let rows: Vec<usize> = key.iter().map(row).collect();
    let learned = learned(questions, bands, &rows, 1.0);
    Scored { merit: Merit::first(key), ..of_model(questions, bands, &learned) }
}

/// A table for classes that are no bands, with the row of each question.
pub fn by_row(questions: &[Question], classes: usize, rows: &[usize]) -> Scored {
    // One flow in all, or many classes would blunt the table.
    of_model(questions, classes, &learned(questions, classes, rows, 1.0 / classes as f32))
}

/// Takes the classes' shares among the other flows of a row for probabilities; of each there are
/// `first` to begin with.
fn learned(questions: &[Question], classes: usize, rows: &[usize], first: f32) -> Outputs {
    let half = |question: &Question| {
        let mut flow_id = question.flow_id;
        (split_mix(&mut flow_id) & 1) as usize
    };
    let row_count = rows.iter().max().map_or(0, |last| last + 1);
    let mut counts = vec![vec![vec![first; classes]; row_count]; 2];
    for (question, &row) in questions.iter().zip(rows) {
        counts[half(question)][row][question.truth] += 1.0;
    }
    let shares = questions.iter().zip(rows).flat_map(|(question, &row)| {
        let others = &counts[1 - half(question)][row];
        let all: f32 = others.iter().sum();
        others.iter().map(move |count| count / all)
    });
    let probabilities: Vec<f32> = shares.collect();
    let classes = probabilities.chunks_exact(classes).map(|row| argmax(row) as u16).collect();
    Outputs { classes, probabilities, ns_per_row: 0.0 }
}

/// The flows of the questions, which are what is drawn.
pub struct Flows {
    pub count: usize,
    /// The number of each question's flow.
    numbers: Vec<usize>,
}

/// Over the questions of a flow, or of a resample.
#[derive(Clone, Default)]
struct Sums {
    questions: f64,
    worth: f64,
    more_loss: f64,
    /// Questions that get the highest band, less [`LIFT_KEPT`] times the other's; and their worth.
    more_highest: f64,
    more_carried: f64,
}

impl Sums {
    fn add(&mut self, times: f64, more: &Sums) {
        self.questions += times * more.questions;
        self.worth += times * more.worth;
        self.more_loss += times * more.more_loss;
        self.more_highest += times * more.more_highest;
        self.more_carried += times * more.more_carried;
    }

    fn more_lift(&self) -> f64 {
        self.more_carried / self.worth.max(1.0) - self.more_highest / self.questions.max(1.0)
    }
}

/// In which share of resamples the first of two models did better or worse.
pub struct Compared {
    log_loss_lower: f64,
    merit_higher: f64,
    merit_lower: f64,
    lift_lower: f64,
}

impl Compared {
    /// Less than [`LIFT_KEPT`] of the other's.
    pub fn has_lower_lift(&self, confidence: f64) -> bool {
        self.lift_lower >= confidence
    }

    pub fn is_better(&self, confidence: f64) -> bool {
        let is_shown = |share: f64| share >= confidence;
        (is_shown(self.log_loss_lower) && !is_shown(self.merit_lower))
            || (is_shown(self.merit_higher) && self.log_loss_lower >= 0.5)
    }
}

impl Flows {
    pub fn new(questions: &[Question]) -> Flows {
        let mut known = HashMap::new();
        let numbers = questions.iter().map(|question| {
            let next = known.len();
            *known.entry(question.flow_id).or_insert(next)
        });
        let numbers: Vec<usize> = numbers.collect();
        Flows { count: known.len(), numbers }
    }

    /// Draws flows with replacement: each as often as a Poisson number says, which comes to the
    /// same for many. The same draws every time, so that a verdict can be repeated.
    pub fn compare(&self, questions: &[Question], a: &Scored, b: &Scored) -> Compared {
        let mut of_flows = vec![Sums::default(); self.count];
        for (at, (flow, Question { worth, .. })) in self.numbers.iter().zip(questions).enumerate() {
            let is_highest = |of: &Scored| f64::from(u8::from(of.highest.get(at) == Some(&true)));
            let more_highest = is_highest(a) - LIFT_KEPT * is_highest(b);
            let (worth, more_carried) = (*worth, more_highest * worth);
            let more_loss = a.log_loss[at] - b.log_loss[at];
            let of_question = Sums { questions: 1.0, worth, more_loss, more_highest, more_carried };
            of_flows[*flow].add(1.0, &of_question);
        }
        let mut drawn = vec![0.0; self.count];
        let (mut random, mut counts) = (0, [0_u32; 4]);
        for _ in 0..RESAMPLES {
            drawn.fill_with(|| poisson(&mut random));
            let mut sum = Sums::default();
            drawn.iter().zip(&of_flows).for_each(|(times, of_flow)| sum.add(*times, of_flow));
            let weight = |at: usize| drawn[self.numbers[at]];
            let gained = |of: &Scored| of.gained(questions, sum.questions, weight);
            let more_merit = gained(a) - gained(b);
            let is_lower = sum.more_lift() < 0.0;
            let happened = [sum.more_loss < 0.0, more_merit > 0.0, more_merit < 0.0, is_lower];
            for (count, happened) in counts.iter_mut().zip(happened) {
                *count += u32::from(happened);
            }
        }
        let [log_loss_lower, merit_higher, merit_lower, lift_lower] =
            counts.map(|count| f64::from(count) / RESAMPLES as f64);
        Compared { log_loss_lower, merit_higher, merit_lower, lift_lower }
    }
}

/// A Poisson number with mean 1.
fn poisson(random: &mut u64) -> f64 {
    const BELOW: [f64; 7] = [0.367_88, 0.735_76, 0.919_70, 0.981_01, 0.996_34, 0.999_41, 0.999_92];
    let uniform = (split_mix(random) >> 11) as f64 / (1_u64 << 53) as f64;
    BELOW.iter().take_while(|below| uniform >= **below).count() as f64
}
