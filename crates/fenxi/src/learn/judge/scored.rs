//! What models and tables said to the same questions, scored, and which is better.

use std::collections::HashMap;

use flowmgr::hash::split_mix;

use super::{Outputs, Question, Score};

/// The share of questions whose worth is the merit.
const MARKED: f64 = 0.05;

/// A smaller probability counts as this one, which is the least that a label can carry.
const LEAST: f64 = 1.0 / 65_536.0;

/// Rows of a table of bytes so far or of servers: each has as many flows.
const TABLE_ROWS: usize = 16;

const RESAMPLES: usize = 400;

/// A model's results: its log loss by question, and the questions by what it expects of them, the
/// most first.
pub struct Scored {
    log_loss: Vec<f64>,
    ranked: Vec<usize>,
}

impl Scored {
    fn new(log_loss: Vec<f64>, rank: &[f64]) -> Scored {
        let mut ranked: Vec<usize> = (0..rank.len()).collect();
        ranked.sort_by(|&a, &b| rank[b].total_cmp(&rank[a]));
        Scored { log_loss, ranked }
    }

    pub fn score(&self, questions: &[Question]) -> Score {
        let all = questions.len() as f64;
        let worth: f64 = questions.iter().map(|it| it.worth).sum();
        Score {
            log_loss: self.log_loss.iter().sum::<f64>() / all,
            merit: self.marked(questions, all, |_| 1.0) / worth.max(1.0),
        }
    }

    /// The worth of the questions that are marked, the first of `all`. Each question counts as
    /// often as `weight` says.
    fn marked(&self, questions: &[Question], all: f64, weight: impl Fn(usize) -> f64) -> f64 {
        let (mut taken, mut marked) = (0.0, 0.0);
        for &at in &self.ranked {
            if taken >= MARKED * all {
                break;
            }
            taken += weight(at);
            marked += weight(at) * questions[at].worth;
        }
        marked
    }
}

fn loss(probability: f64) -> f64 {
    -probability.max(LEAST).ln()
}

pub fn of_model(questions: &[Question], bands: usize, outputs: &Outputs) -> Scored {
    let (mut worth, mut count) = (vec![0.0; bands], vec![0.0; bands]);
    for question in questions {
        worth[question.truth] += question.worth;
        count[question.truth] += 1.0;
    }
    let means = worth.iter().zip(&count).map(|(worth, count)| worth / f64::max(*count, 1.0));
    let means: Vec<f64> = means.collect();
    let rows = outputs.probabilities.chunks_exact(bands);
    let rank = rows.clone().map(|row| row.iter().zip(&means).map(|(p, m)| f64::from(*p) * m).sum());
    let losses = rows.zip(questions).map(|(row, it)| loss(f64::from(row[it.truth])));
    Scored::new(losses.collect(), &rank.collect::<Vec<f64>>())
}

/// Ranks by `key`, and takes the bands' shares among other flows with about the same key for
/// probabilities.
pub fn of_table(questions: &[Question], bands: usize, key: &[f64]) -> Scored {
    let mut sorted = key.to_vec();
    sorted.sort_by(f64::total_cmp);
    let bounds: Vec<f64> =
        (1..TABLE_ROWS).map(|row| sorted[row * sorted.len() / TABLE_ROWS]).collect();
    let cell = |at: usize| {
        let mut flow_id = questions[at].flow_id;
        let half = (split_mix(&mut flow_id) & 1) as usize;
        (half, bounds.partition_point(|bound| *bound <= key[at]))
    };
    // One of each band to begin with.
    let mut counts = vec![vec![vec![1.0; bands]; TABLE_ROWS]; 2];
    for (at, question) in questions.iter().enumerate() {
        let (half, row) = cell(at);
        counts[half][row][question.truth] += 1.0;
    }
    let losses = questions.iter().enumerate().map(|(at, question)| {
        let (half, row) = cell(at);
        let learned: &[f64] = &counts[1 - half][row];
        loss(learned[question.truth] / learned.iter().sum::<f64>())
    });
    Scored::new(losses.collect(), key)
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
    more_loss: f64,
}

/// In which share of resamples the first of two models did better or worse.
pub struct Compared {
    log_loss_lower: f64,
    merit_higher: f64,
    merit_lower: f64,
}

impl Compared {
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
        let losses = a.log_loss.iter().zip(&b.log_loss);
        for (flow, (a, b)) in self.numbers.iter().zip(losses) {
            let of_flow = &mut of_flows[*flow];
            of_flow.questions += 1.0;
            of_flow.more_loss += a - b;
        }
        let mut drawn = vec![0.0; self.count];
        let (mut random, mut counts) = (0, [0_u32; 3]);
        for _ in 0..RESAMPLES {
            drawn.fill_with(|| poisson(&mut random));
            let mut sum = Sums::default();
            for (times, of_flow) in drawn.iter().zip(&of_flows) {
                sum.questions += times * of_flow.questions;
                sum.more_loss += times * of_flow.more_loss;
            }
            let weight = |at: usize| drawn[self.numbers[at]];
            let marked = |of: &Scored| of.marked(questions, sum.questions, weight);
            let more_merit = marked(a) - marked(b);
            let happened = [sum.more_loss < 0.0, more_merit > 0.0, more_merit < 0.0];
            for (count, happened) in counts.iter_mut().zip(happened) {
                *count += u32::from(happened);
            }
        }
        let [log_loss_lower, merit_higher, merit_lower] =
            counts.map(|count| f64::from(count) / RESAMPLES as f64);
        Compared { log_loss_lower, merit_higher, merit_lower }
    }
}

/// A Poisson number with mean 1.
fn poisson(random: &mut u64) -> f64 {
    const BELOW: [f64; 7] = [0.367_88, 0.735_76, 0.919_70, 0.981_01, 0.996_34, 0.999_41, 0.999_92];
    let uniform = (split_mix(random) >> 11) as f64 / (1_u64 << 53) as f64;
    BELOW.iter().take_while(|below| uniform >= **below).count() as f64
}
