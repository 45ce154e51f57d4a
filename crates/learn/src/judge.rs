//! Whether a candidate is to replace the model in use. Pure: from outputs on the same questions and
//! what came of them to a verdict.
//!
//! Two numbers say how good a model is. *Log loss*: −ln of the probability that it gave the true
//! class, on average; it punishes what is over-confident, permuted or out of scale. *Merit* is what
//! one wants of it. For bands: the share of all that was to come which the 5 % of questions carry
//! that it ranks highest, by Σ p(band) · mean of the band. For other classes, whose truth a
//! teacher has told: the share of questions whose likeliest class is the true one.
//!
//! One model is *better* than another if its log loss is shown to be lower and its merit is not
//! shown to be lower, or if its merit is shown to be higher and its log loss is not higher. Merit
//! of bands hangs on a few large flows and looks better by chance more often than log loss, so log
//! loss has to agree.
//!
//! Shown means: in this share of resamples of the flows (paired bootstrap). Flows are drawn, not
//! questions, because a flow is asked about several times and has one fate.
//!
//! A candidate must be better than the model in use, and than tables that need no model: for bands
//! by the bytes of the flow so far and by what the memory of servers said, for other classes by the
//! model's own table of ports. Tables are learned on half of the flows and scored on the others.
//!
//! Rules act on labels, and mostly on the highest band. Neither log loss nor merit shows a model
//! that never gives it, so a candidate's *lift* must not be shown to be less than a quarter of a
//! rival's: the share of all that was to come which the questions carry that get the highest band,
//! less their share of the questions. So the band does not gain by being given to everything.

mod scored;

use accel::Learned;
use thiserror::Error;

use scored::{Flows, Scored, by_key, by_row, of_model};

/// Fewer flows show nothing.
pub const FLOWS_MIN: usize = 100;

/// How far the probabilities of a row may add up to something else than 1: integers round.
const SUM_TOLERANCE: f32 = 0.05;

/// A candidate may take this many times as long for a series as the model in use.
pub const TIMES_MAX: f64 = 2.0;

/// α of LiteFlow §3.3, with outputs from 0 to 1. The paper wants the *least* difference over the
/// batch above α. Two models that agree on one flow of thousands, which all do that know some flows
/// for certain, would never be exchanged, so the mean decides here, and the least is only shown.
const NEEDED: f64 = 0.05;

/// A tuner's measure has settled once it changes by no more than this share of itself.
const STABILITY_MAX: f64 = 0.05;

/// The share of resamples above which late labels or a mix are shown, as a normal deviate: 99 %.
const DEVIATE: f64 = 2.33;

/// Labels may come late this much more often, whatever is shown.
const LATE_MORE: f64 = 0.01;

/// The share of a canary's labels that may be others than it gives when it is asked again. The
/// cache does not answer for a canary.
const OTHERS_MAX: f64 = 0.05;

/// The share of the lift of others that a candidate has to keep. A better model may be less sure,
/// and rightly give the highest band to fewer.
const LIFT_KEPT: f64 = 0.25;

/// The share of resamples above which a lower lift is shown, in whichever stage.
const LIFT_SHOWN: f64 = 0.99;

/// In this share of resamples the other model may do worse for a table to bring it back.
const PROBABLY: f64 = 0.80;

/// A population stability index above which the mix of labels counts as another one.
const MIX_MAX: f64 = 0.25;

/// A question to the models, and what came of it.
#[derive(Debug, Clone)]
pub struct Question {
    pub flow_id: u64,
    /// The band that it proved to be of, or the class that a teacher told.
    pub truth: usize,
    /// What the bands measure, of what was to come; 1 if the classes are no bands.
    pub worth: f64,
    /// The class that the port stands for in the model in use, or their number where it stands for
    /// none; `None`: the classes are bands.
    pub by_port: Option<usize>,
    /// IP bytes of the flow up to the question.
    pub bytes_so_far: f64,
    /// What the memory of servers said of the volume; `None`: there is none.
    pub server_volume: Option<f64>,
}

/// What a model said to all questions.
#[derive(Debug, Clone, Default)]
pub struct Outputs {
    /// By question, as labels would have them.
    pub classes: Vec<u16>,
    /// Questions × classes.
    pub probabilities: Vec<f32>,
    /// What a row took on its device.
    pub ns_per_row: f64,
}

pub struct Trial<'a> {
    pub questions: &'a [Question],
    pub classes: usize,
    pub candidate: &'a Outputs,
    pub in_use: &'a Outputs,
}

/// What a candidate is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rival {
    InUse,
    Counter,
    Servers,
    Ports,
    /// The model that the operator chose, of one that was promoted.
    Chosen,
}

impl Rival {
    pub const fn name(self) -> &'static str {
        match self {
            Rival::InUse => "the model in use",
            Rival::Counter => "a table of the bytes so far",
            Rival::Servers => "a table of what the memory of servers says",
            Rival::Ports => "its table of ports",
            Rival::Chosen => "the model that it was promoted over",
        }
    }
}

/// Log loss and merit of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Score {
    pub log_loss: f64,
    pub merit: f64,
}

/// What the verdict rests on.
#[derive(Debug, Clone, PartialEq)]
pub struct Figures {
    pub questions: usize,
    pub flows: usize,
    pub candidate: Score,
    pub rivals: Vec<(Rival, Score)>,
    /// Difference from the outputs in use, mean and least.
    pub differs: [f64; 2],
}

/// Why a candidate is refused, or a promoted one rolled back.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Refused {
    #[error("its training has not settled: stability is {0}, and {STABILITY_MAX} at most will do")]
    Unstable(f64),
    #[error("it has learned from older samples than the model in use")]
    Stale,
    #[error(
        "{0} flows with a known truth are too few to judge by, at least {FLOWS_MIN} are needed"
    )]
    FewFlows(usize),
    #[error("its output for question {0} is not a probability distribution")]
    NotProbabilities(usize),
    #[error("it takes {0:.1} times as long as the model in use, and {TIMES_MAX} is the most")]
    Slow(f64),
    #[error(
        "it differs by {:.3} on average from the model in use, by {:.3} at least, and {NEEDED} on \
         average is what a swap is worth", .0[0], .0[1]
    )]
    Unneeded([f64; 2]),
    #[error(
        "it is not shown to be better than {}: log loss {:.3} against {:.3}, merit {:.3} against \
         {:.3}", .0.name(), .1.log_loss, .2.log_loss, .1.merit, .2.merit
    )]
    NotBetter(Rival, Score, Score),
    #[error(
        "it rarely gives the highest band: flows with it carry {:.3} of the total beyond their \
         share of the flows, against {:.3} with {}", .1, .2, .0.name()
    )]
    LowLift(Rival, f64, f64),
    #[error(
        "the model beside it is better: log loss {:.3} against {:.3}, merit {:.3} against {:.3}",
        .1.log_loss, .0.log_loss, .1.merit, .0.merit
    )]
    Worse(Score, Score),
    #[error(
        "{} is better by now: log loss {:.3} against {:.3}, merit {:.3} against {:.3}",
        .0.name(), .2.log_loss, .1.log_loss, .2.merit, .1.merit
    )]
    Outdone(Rival, Score, Score),
    #[error(
        "{:.1} % of questions get no answer in time, {:.1} % got none before", .0 * 100.0,
        .1 * 100.0
    )]
    Late(f64, f64),
    #[error(
        "{:.1} % of its labels are others than it gives when it is asked again, and {:.1} % at \
         most will do", .0 * 100.0, OTHERS_MAX * 100.0
    )]
    Others(f64),
    #[error("it has answered only {0} flows of its share, and {1} are needed")]
    FewAnswers(usize, usize),
    #[error("the mix of labels has jumped: its stability index is {0:.2}, and {MIX_MAX} the most")]
    Mix(f64),
}

impl Refused {
    /// The name in metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Refused::Unstable(_) => "unstable",
            Refused::Stale => "stale",
            Refused::FewFlows(_) => "few_flows",
            Refused::NotProbabilities(_) => "not_probabilities",
            Refused::Slow(_) => "slow",
            Refused::Unneeded(_) => "unneeded",
            Refused::NotBetter(Rival::Counter, ..) => "counter",
            Refused::NotBetter(Rival::Servers, ..) => "servers",
            Refused::NotBetter(Rival::Ports, ..) => "ports",
            Refused::NotBetter(..) => "not_better",
            Refused::LowLift(..) => "low_lift",
            Refused::Outdone(..) => "outdone",
            Refused::Worse(..) => "worse",
            Refused::Late(..) => "late",
            Refused::Others(_) => "others",
            Refused::FewAnswers(..) => "few_answers",
            Refused::Mix(_) => "mix",
        }
    }
}

/// Compares what the bundle of a candidate says of its training with what the one in use says.
pub fn check_claims(candidate: Learned, in_use: Learned) -> Result<(), Refused> {
    if let Some(stability) = candidate.stability
        && !(0.0..=STABILITY_MAX).contains(&stability)
    {
        return Err(Refused::Unstable(stability));
    }
    match (candidate.until_us, in_use.until_us) {
        (Some(candidate), Some(in_use)) if candidate < in_use => Err(Refused::Stale),
        _ => Ok(()),
    }
}

/// Whether the candidate is better than each of its rivals, shown with this `confidence`.
pub fn judge(trial: &Trial<'_>, confidence: f64) -> Result<Figures, Refused> {
    let Trial { questions, classes, candidate, in_use } = *trial;
    let flows = Flows::new(questions);
    if flows.count < FLOWS_MIN {
        return Err(Refused::FewFlows(flows.count));
    }
    check_outputs(questions.len(), classes, candidate)?;
    let times = candidate.ns_per_row / in_use.ns_per_row;
    if times > TIMES_MAX {
        return Err(Refused::Slow(times));
    }
    let differs = differences(classes, candidate, in_use);
    if differs[0] <= NEEDED {
        return Err(Refused::Unneeded(differs));
    }
    let scored = of_model(questions, classes, candidate);
    let mut rivals = vec![(Rival::InUse, of_model(questions, classes, in_use))];
    rivals.extend(tables(questions, classes));
    let own = scored.score(questions);
    let mut scores = Vec::new();
    for (rival, theirs) in &rivals {
        let score = theirs.score(questions);
        let compared = flows.compare(questions, &scored, theirs);
        if !compared.is_better(confidence) {
            return Err(Refused::NotBetter(*rival, own, score));
        }
        if compared.has_lower_lift(LIFT_SHOWN) {
            let [own, theirs] = [&scored, theirs].map(|it| it.lift(questions));
            return Err(Refused::LowLift(*rival, own, theirs));
        }
        scores.push((*rival, score));
    }
    let (questions, flows) = (questions.len(), flows.count);
    Ok(Figures { questions, flows, candidate: own, rivals: scores, differs })
}

/// What needs no model.
fn tables(questions: &[Question], classes: usize) -> Vec<(Rival, Scored)> {
    if let Some(ports) = questions.iter().map(|it| it.by_port).collect::<Option<Vec<usize>>>() {
        return vec![(Rival::Ports, by_row(questions, classes, &ports))];
    }
    let so_far: Vec<f64> = questions.iter().map(|it| it.bytes_so_far).collect();
    let servers: Option<Vec<f64>> = questions.iter().map(|it| it.server_volume).collect();
    let mut tables = vec![(Rival::Counter, by_key(questions, classes, &so_far))];
    tables.extend(servers.map(|it| (Rival::Servers, by_key(questions, classes, &it))));
    tables
}

/// Whether a promoted model, the candidate, is to make way for the one that the operator chose,
/// `in_use` before: that one or a table is shown with this `confidence` to be better. Because of a
/// table only where the chosen model is not worse itself: no table can come into use.
pub fn check_promoted(trial: &Trial<'_>, confidence: f64) -> Result<(), Refused> {
    let Trial { questions, classes, candidate, in_use: chosen } = *trial;
    let flows = Flows::new(questions);
    if flows.count < FLOWS_MIN {
        return Ok(());
    }
    check_outputs(questions.len(), classes, candidate)?;
    let [own, chosen] = [candidate, chosen].map(|outputs| of_model(questions, classes, outputs));
    if flows.compare(questions, &own, &chosen).is_better(PROBABLY) {
        return Ok(());
    }
    let mut rivals = std::iter::once((Rival::Chosen, chosen)).chain(tables(questions, classes));
    let better = rivals.find(|(_, it)| flows.compare(questions, it, &own).is_better(confidence));
    match better {
        Some((rival, theirs)) => {
            Err(Refused::Outdone(rival, own.score(questions), theirs.score(questions)))
        }
        None => Ok(()),
    }
}

/// Whether the other model is shown with this `confidence` to be better than the candidate, which
/// answers flows.
pub fn check_answering(trial: &Trial<'_>, confidence: f64) -> Result<(), Refused> {
    let Trial { questions, classes, candidate, in_use: before } = *trial;
    let flows = Flows::new(questions);
    if flows.count < FLOWS_MIN {
        return Ok(());
    }
    check_outputs(questions.len(), classes, candidate)?;
    let [now, before] = [candidate, before].map(|outputs| of_model(questions, classes, outputs));
    match flows.compare(questions, &before, &now).is_better(confidence) {
        true => Err(Refused::Worse(now.score(questions), before.score(questions))),
        false => Ok(()),
    }
}

/// Whether more questions stay without an answer than before; each is a count, and of how many.
/// Failing devices and late ones both show here.
pub fn check_late(now: (usize, usize), before: (usize, usize)) -> Result<(), Refused> {
    let share = |(late, all): (usize, usize)| late as f64 / all.max(1) as f64;
    let pooled = share((now.0 + before.0, now.1 + before.1));
    let samples = 1.0 / now.1.max(1) as f64 + 1.0 / before.1.max(1) as f64;
    let deviation = (pooled * (1.0 - pooled) * samples).sqrt();
    let more = share(now) - share(before);
    match more > LATE_MORE && more > DEVIATE * deviation {
        true => Err(Refused::Late(share(now), share(before))),
        false => Ok(()),
    }
}

/// Whether a canary's labels are those that it gives when it is asked again: how many are not, of
/// how many.
pub fn check_others((others, all): (usize, usize)) -> Result<(), Refused> {
    let share = others as f64 / all.max(1) as f64;
    match share > OTHERS_MAX {
        true => Err(Refused::Others(share)),
        false => Ok(()),
    }
}

/// Whether labels are given in another mix than expected; both are counts by class.
pub fn check_mix(given: &[usize], expected: &[usize]) -> Result<(), Refused> {
    let [all_given, all_expected] = [given, expected].map(|it| it.iter().sum::<usize>());
    if all_given.min(all_expected) < FLOWS_MIN {
        return Ok(());
    }
    // One more each, so that a class that nobody got has a share.
    let share = |count: usize, all: usize| (count + 1) as f64 / (all + given.len()) as f64;
    let index = given.iter().zip(expected).map(|(&given, &expected)| {
        let (given, expected) = (share(given, all_given), share(expected, all_expected));
        (given - expected) * (given / expected).ln()
    });
    match index.sum() {
        index if index > MIX_MAX => Err(Refused::Mix(index)),
        _ => Ok(()),
    }
}

fn check_outputs(questions: usize, classes: usize, outputs: &Outputs) -> Result<(), Refused> {
    let rows = outputs.probabilities.chunks_exact(classes);
    if outputs.probabilities.len() != questions * classes {
        return Err(Refused::NotProbabilities(rows.len().min(questions)));
    }
    // NaN is in no range.
    let are_probabilities = |row: &[f32]| {
        row.iter().all(|it| (0.0..=1.0 + SUM_TOLERANCE).contains(it))
            && (row.iter().sum::<f32>() - 1.0).abs() <= SUM_TOLERANCE
    };
    match rows.into_iter().position(|row| !are_probabilities(row)) {
        Some(row) => Err(Refused::NotProbabilities(row)),
        None => Ok(()),
    }
}

/// Mean and least of LiteFlow's fidelity loss: by how much the class's probability differs that
/// differs most.
fn differences(classes: usize, a: &Outputs, b: &Outputs) -> [f64; 2] {
    let rows = a.probabilities.chunks_exact(classes).zip(b.probabilities.chunks_exact(classes));
    let losses = rows.map(|(a, b)| {
        let losses = a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs()));
        losses.fold(0.0, f64::max)
    });
    let (count, sum, least) = losses.fold((0, 0.0, f64::INFINITY), |(count, sum, least), loss| {
        (count + 1, sum + loss, f64::min(least, loss))
    });
    [sum / f64::from(count.max(1)), least]
}

#[cfg(test)]
mod tests;
