//! Scores of answers against true classes. `fenxi-train compare` computes the same ones.

use serde::Serialize;

/// Bins of the calibration error.
const BINS: usize = 15;
/// The probability at which models are compared.
pub const DECIDED: f32 = 0.8;
/// No class.
pub const NONE: u16 = u16::MAX;

/// An answer of the model to a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answer {
    /// The likeliest class, whatever its probability.
    pub class: u16,
    /// The likeliest class, or the number of labels if that is unknown or below the bundle's minimum confidence.
    pub named: u16,
    /// The probability of the likeliest class.
    pub top: f32,
}

/// Precision, recall and F1 of a class; 0 where there is nothing to divide by.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassScore {
    /// Name of the class.
    pub label: String,
    /// Flows of the class.
    pub flows: usize,
    /// Flows that are given the class.
    pub named: usize,
    /// Share right of the flows that are given the class.
    pub precision: f64,
    /// Share of the flows of the class that are given it.
    pub recall: f64,
    /// The harmonic mean of both.
    pub f1: f64,
}

/// Accuracy, and the mean F1 of the classes that occur.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Plain {
    /// Share right.
    pub accuracy: f64,
    /// The mean F1 of the classes that occur.
    pub macro_f1: f64,
}

/// How many flows reach a level, and how many of those are right.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Decided {
    /// The level.
    pub at: f32,
    /// Share of all flows.
    pub share: f64,
    /// Share right of those.
    pub right: f64,
}

/// Answers whose probability is in one of the bins.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bin {
    /// Answers in the bin.
    pub flows: usize,
    /// Mean probability.
    pub probability: f64,
    /// Share right.
    pub right: f64,
}

/// Part of a whole, 0 if that is nothing.
pub fn share(part: usize, whole: usize) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// Scores by class of guesses; a guess may be [`NONE`].
pub fn by_class(truth: &[u16], guess: &[u16], labels: &[String]) -> Vec<ClassScore> {
    let mut counts = vec![(0, 0, 0); labels.len()];
    for (&class, &guess) in truth.iter().zip(guess) {
        counts[usize::from(class)].0 += 1;
        if let Some(count) = counts.get_mut(usize::from(guess)) {
            count.1 += 1;
            count.2 += usize::from(class == guess);
        }
    }
    let scores = counts.into_iter().zip(labels);
    let score = |((flows, named, right), label): ((usize, usize, usize), &String)| {
        let (precision, recall) = (share(right, named), share(right, flows));
        ClassScore {
            label: label.clone(),
            flows,
            named,
            precision,
            recall,
            f1: if right > 0 {
                2.0 * precision * recall / (precision + recall)
            } else {
                0.0
            },
        }
    };
    scores.map(score).collect()
}

/// Accuracy and macro-F1 of guesses.
pub fn plain(truth: &[u16], guess: &[u16], labels: &[String]) -> Plain {
    let right = truth
        .iter()
        .zip(guess)
        .filter(|(class, guess)| class == guess)
        .count();
    let classes = by_class(truth, guess, labels);
    let occurring: Vec<f64> = classes
        .iter()
        .filter(|it| it.flows > 0)
        .map(|it| it.f1)
        .collect();
    Plain {
        accuracy: share(right, truth.len()),
        macro_f1: occurring.iter().sum::<f64>() / occurring.len().max(1) as f64,
    }
}

/// The share of answers with at least this probability.
pub fn decided(truth: &[u16], answers: &[Answer], at: f32) -> Decided {
    let sure = truth
        .iter()
        .zip(answers)
        .filter(|(_, answer)| answer.top >= at);
    let (count, right) = sure.fold((0, 0), |(count, right), (class, answer)| {
        (count + 1, right + usize::from(*class == answer.class))
    });
    Decided {
        at,
        share: share(count, answers.len()),
        right: share(right, count),
    }
}

/// The bins that have answers, by rising probability.
pub fn reliability(truth: &[u16], answers: &[Answer]) -> Vec<Bin> {
    let mut bins = [(0, 0.0, 0); BINS];
    for (class, answer) in truth.iter().zip(answers) {
        let bin = &mut bins[((answer.top * BINS as f32) as usize).min(BINS - 1)];
        bin.0 += 1;
        bin.1 += f64::from(answer.top);
        bin.2 += usize::from(*class == answer.class);
    }
    let filled = bins.into_iter().filter(|(flows, ..)| *flows > 0);
    let bin = |(flows, sum, right)| Bin {
        flows,
        probability: sum / flows as f64,
        right: share(right, flows),
    };
    filled.map(bin).collect()
}

/// The expected calibration error: the mean difference between probability and share right, weighted by flows.
pub fn calibration_error(bins: &[Bin]) -> f64 {
    let flows: usize = bins.iter().map(|bin| bin.flows).sum();
    let error = |bin: &Bin| bin.flows as f64 * (bin.probability - bin.right).abs();
    bins.iter().map(error).sum::<f64>() / flows.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn scores_are_those_computed_by_hand() {
        // a: 3 flows, 2 of 3 guesses right; b: 2 flows, the only guess right; c: a guess, no flow; one flow without a guess.
        let (truth, guess) = ([0, 0, 0, 1, 1, 1], [0, 0, 2, 0, 1, NONE]);
        let found = by_class(&truth, &guess, &labels(&["a", "b", "c"]));
        let figures: Vec<_> = found
            .iter()
            .map(|it| (it.flows, it.named, it.precision, it.recall))
            .collect();
        let third = 1.0 / 3.0;
        assert_eq!(
            figures,
            [
                (3, 3, 2.0 / 3.0, 2.0 / 3.0),
                (3, 1, 1.0, third),
                (0, 1, 0.0, 0.0)
            ]
        );
        let scores = plain(&truth, &guess, &labels(&["a", "b", "c"]));
        assert_eq!(scores.accuracy, 0.5);
        assert!(
            (scores.macro_f1 - (2.0 / 3.0 + 0.5) / 2.0).abs() < 1e-12,
            "{scores:?}"
        );
    }

    #[test]
    fn calibration_is_weighted_by_flows() {
        let answer = |class, top| Answer {
            class,
            named: class,
            top,
        };
        let truth = [0, 0, 0, 1];
        let answers = [
            answer(0, 0.9),
            answer(1, 0.9),
            answer(0, 0.5),
            answer(1, 1.0),
        ];
        let bins = reliability(&truth, &answers);
        // 0.5 is in bin 7, 0.9 in bin 13, 1.0 in the last.
        let shown: Vec<_> = bins.iter().map(|bin| (bin.flows, bin.right)).collect();
        assert_eq!(shown, [(1, 1.0), (2, 0.5), (1, 1.0)]);
        let expected = (0.5 + 2.0 * (0.9 - 0.5) + 0.0) / 4.0;
        assert!((calibration_error(&bins) - expected).abs() < 1e-7);
        let sure = decided(&truth, &answers, 0.9);
        assert_eq!((sure.share, sure.right), (0.75, 2.0 / 3.0));
        let none = decided(&truth, &answers, 1.5);
        assert_eq!((none.share, none.right), (0.0, 0.0));
    }
}
