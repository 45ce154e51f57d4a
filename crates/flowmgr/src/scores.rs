//! How the bands that a task's models said compare with those that the flows proved to be of, see
//! [`crate::Target`].

use cring::{Counter, counters};

use crate::record::Decision;

/// Models whose scores are kept apart: the latest ones.
const LATEST: usize = 4;

counters! {
    /// Scores of a task; empty where its classes are no bands.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct TaskScores {
        /// All models together.
        pub all: Score,
        /// The latest ones, each at its generation modulo their number.
        latest: [ModelScore; LATEST],
    }
}

counters! {
    /// Ended flows that had a band while they went on.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Score {
        /// Flows by the class that was said, `unknown` as the last, and the band that they proved
        /// to be of; see [`Score::flows_of`].
        flows: Vec<u64>,
        /// Their bytes behind the packet that decided, by the class that was said.
        pub bytes: Vec<u64>,
        /// Further flows, which were cut before their band was known.
        pub cut: u64,
        /// Flows with a band by the confidence in it, in ten equal parts.
        tenths: [Tenth; 10],
    }

    /// Flows whose bands had similar confidences.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Tenth {
        flows: u64,
        /// Those for which the band was right.
        hits: u64,
        /// The sum of their confidences, each 0 to 65,535 for 0 to 1.
        confidence: u64,
    }
}

/// The score of one model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelScore {
    /// Its generation.
    pub model: u16,
    /// Of flows that it gave a band.
    pub score: Score,
}

impl TaskScores {
    /// Zeros, for bands and `unknown` together.
    pub(crate) fn new(classes: usize) -> TaskScores {
        let of_model = || ModelScore { model: 0, score: Score::new(classes) };
        TaskScores { all: Score::new(classes), latest: std::array::from_fn(|_| of_model()) }
    }

    /// The latest models that have flows, the newest first.
    pub fn by_model(&self) -> Vec<&ModelScore> {
        let has_flows = |it: &&ModelScore| it.score.judged() + it.score.cut > 0;
        let mut models: Vec<&ModelScore> = self.latest.iter().filter(has_flows).collect();
        let newest = models.iter().map(|it| it.model);
        let newest = newest.reduce(|a, b| if is_newer(b, a) { b } else { a }).unwrap_or(0);
        models.sort_by_key(|it| behind(newest, it.model));
        models
    }

    /// Counts an ended flow. `band`: the one that it proved to be of, if that is known.
    pub(crate) fn count(&mut self, said: &Decision, band: Option<u16>, bytes: u64) {
        self.all.count(said, band, bytes);
        let of_model = &mut self.latest[usize::from(said.model) % LATEST];
        if is_newer(said.model, of_model.model) {
            (of_model.model, of_model.score.cut) = (said.model, 0);
            of_model.score.flows.fill(0);
            of_model.score.bytes.fill(0);
            of_model.score.tenths = Default::default();
        }
        if said.model == of_model.model {
            of_model.score.count(said, band, bytes);
        }
    }
}

/// How many generations, which are modulo [`cring::MODELS_MAX`], a model is behind another one.
fn behind(newest: u16, model: u16) -> usize {
    usize::from(newest.wrapping_sub(model)) % cring::MODELS_MAX
}

fn is_newer(model: u16, than: u16) -> bool {
    (1..cring::MODELS_MAX / 2).contains(&behind(model, than))
}

impl Score {
    fn new(classes: usize) -> Score {
        let flows = vec![0; classes * classes.saturating_sub(1)];
        Score { flows, bytes: vec![0; classes], ..Score::default() }
    }

    fn count(&mut self, said: &Decision, band: Option<u16>, bytes: u64) {
        let (said_class, bands) = (usize::from(said.class), self.bands());
        let Some(band) = band.map(usize::from).filter(|it| *it < bands && said_class <= bands)
        else {
            self.cut += 1;
            return;
        };
        self.flows[said_class * bands + band] += 1;
        self.bytes[said_class] += bytes;
        // The confidence of `unknown` belongs to a band that is not kept.
        if said_class < bands {
            let tenth = usize::from(said.confidence) * 10 / (usize::from(u16::MAX) + 1);
            let tenth = &mut self.tenths[tenth];
            tenth.flows += 1;
            tenth.hits += u64::from(band == said_class);
            tenth.confidence += u64::from(said.confidence);
        }
    }

    /// How many bands there are; `unknown` is the class behind them.
    pub fn bands(&self) -> usize {
        self.bytes.len().saturating_sub(1)
    }

    /// Flows to which a class was given, by the bands that they proved to be of.
    pub fn flows_of(&self, said: usize) -> &[u64] {
        let bands = self.bands();
        &self.flows[said * bands..(said + 1) * bands]
    }

    /// Flows whose band is known by now.
    pub fn judged(&self) -> u64 {
        self.flows.iter().sum()
    }

    /// The expected calibration error, 0 to 1: how far confidences are from the shares of flows for
    /// which the band was right, on average over flows with a band. `None`: there are no such
    /// flows.
    pub fn calibration_error(&self) -> Option<f64> {
        let flows: u64 = self.tenths.iter().map(|tenth| tenth.flows).sum();
        let off = |tenth: &Tenth| {
            (tenth.confidence as f64 / f64::from(u16::MAX) - tenth.hits as f64).abs()
        };
        let off: f64 = self.tenths.iter().map(off).sum();
        (flows > 0).then(|| off / flows as f64)
    }
}

impl Counter for ModelScore {
    /// Managers may be at different models: a later one's score takes the place of an earlier
    /// one's.
    fn merge(&mut self, other: &ModelScore) {
        if is_newer(other.model, self.model) || self.score.bytes.is_empty() {
            self.copy_from(other);
        } else if other.model == self.model {
            self.score.merge(&other.score);
        }
    }

    fn copy_from(&mut self, other: &ModelScore) {
        self.model = other.model;
        self.score.copy_from(&other.score);
    }

    fn list(&self, name: &str, each: &mut dyn FnMut(&str, u64)) {
        each(&format!("{name}.model"), u64::from(self.model));
        self.score.list(name, each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::DecidedBy;

    fn said(class: u16, confidence: f32, model: u16) -> Decision {
        Decision {
            class,
            confidence: cring::in_words(confidence),
            decided_by: DecidedBy::Model,
            depth: 3,
            model,
            contradicts: None,
            time_to_label_us: Some(0),
            truth: None,
        }
    }

    #[test]
    fn flows_count_by_what_was_said_and_what_they_were() {
        let mut scores = TaskScores::new(3);
        scores.count(&said(0, 0.8, 0), Some(0), 10);
        scores.count(&said(0, 0.8, 0), Some(1), 500);
        scores.count(&said(1, 1.0, 0), Some(1), 700);
        scores.count(&said(2, 0.3, 0), Some(1), 90);
        scores.count(&said(1, 0.9, 0), None, 90);
        let score = &scores.all;
        assert_eq!((score.flows_of(0), score.flows_of(1)), (&[1, 1][..], &[0, 1][..]));
        assert_eq!((score.flows_of(2), &score.bytes[..]), (&[0, 1][..], &[510, 700, 90][..]));
        assert_eq!((score.judged(), score.cut), (4, 1));
        // Two flows at 0.8 of which one is right, one at 1.0 that is: (0.6 + 0) / 3.
        let error = score.calibration_error().unwrap();
        assert!((error - 0.2).abs() < 1e-4, "{error}");
        assert_eq!(TaskScores::new(3).all.calibration_error(), None);
        assert_eq!(&scores.latest[0].score, score);
    }

    #[test]
    fn the_latest_models_have_scores_of_their_own() {
        let mut scores = TaskScores::new(3);
        for model in [0, 1, 5, 1, 255] {
            scores.count(&said(0, 0.8, model), Some(0), 10);
        }
        assert_eq!(scores.all.judged(), 5);
        let latest = [0, 1, 3].map(|at: usize| &scores.latest[at]);
        assert_eq!(latest.map(|it| (it.model, it.score.judged())), [(0, 1), (5, 1), (0, 0)]);
        // Generations begin again behind 255.
        let mut scores = TaskScores::new(3);
        for model in [126, 250, 254, 255, 0, 2, 254] {
            scores.count(&said(0, 0.8, model), Some(0), 10);
        }
        let latest = scores.latest.iter().map(|it| (it.model, it.score.judged()));
        assert_eq!(latest.collect::<Vec<_>>(), [(0, 1), (0, 0), (2, 1), (0, 0)]);
        scores.count(&said(0, 0.8, 3), None, 10);
        let newest_first = scores.by_model().into_iter().map(|it| it.model);
        assert_eq!(newest_first.collect::<Vec<_>>(), [3, 2, 0]);
    }

    #[test]
    fn managers_that_are_at_different_models_are_not_mixed() {
        let (mut one, mut other) = (TaskScores::new(3), TaskScores::new(3));
        one.count(&said(0, 0.8, 1), Some(0), 10);
        for _ in 0..2 {
            other.count(&said(0, 0.8, 5), Some(1), 10);
        }
        for (mut sum, more) in [(one.clone(), &other), (other.clone(), &one)] {
            sum.merge(more);
            assert_eq!((sum.all.judged(), sum.latest[1].model), (3, 5));
            assert_eq!(sum.latest[1].score.flows_of(0), [0, 2]);
        }
        let mut sum = TaskScores::default();
        sum.merge(&one);
        sum.merge(&one);
        assert_eq!(sum.latest[1].score.flows_of(0), [2, 0]);
    }
}
