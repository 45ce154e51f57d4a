//! Compares two models on the same series: how often they agree on the class, how far apart their
//! probabilities are and, if the true class is known, their accuracies.
//!
//! The class is the likeliest one, regardless of `min_confidence`: this compares models, not
//! thresholds.

use accel::{Bundle, Device, argmax, run_batch};
use serde_json::{Value, json};

use super::series::Samples;
use crate::exit::Failure;

/// Rows per batch.
pub const BATCH: usize = 256;

pub struct Model {
    pub bundle: Bundle,
    pub device: Box<dyn Device>,
}

impl Model {
    /// The probabilities of all rows, one after the other.
    fn probabilities(&mut self, samples: &Samples) -> Result<Vec<f32>, Failure> {
        let rows = &samples.rows;
        let mut probabilities = Vec::with_capacity(rows.len() * self.bundle.shape().classes);
        for (batch, context) in rows.chunks(BATCH).zip(samples.contexts.chunks(BATCH)) {
            run_batch(self.device.as_mut(), batch, context)
                .map_err(|error| Failure::data(format!("{}: {error}", self.bundle.name())))?;
            probabilities.extend_from_slice(self.device.probabilities());
        }
        Ok(probabilities)
    }
}

#[derive(Debug, Default, PartialEq)]
pub struct Comparison {
    /// Name of the source of the series.
    pub source: String,
    /// Series compared.
    pub rows: usize,
    /// Series that get the same class from both models.
    pub same_class: usize,
    pub max_difference: f32,
    /// The mean difference over all probabilities of all rows.
    pub mean_difference: f64,
    /// Series whose class is known.
    pub labelled: usize,
    /// Labelled series that the model gets right.
    pub right: usize,
    /// Labelled series that the other model gets right.
    pub right_against: usize,
}

impl Comparison {
    /// Runs both models on the samples. Both must have the same labels and take the same series.
    pub fn of(
        source: String,
        samples: &Samples,
        model: &mut Model,
        against: &mut Model,
    ) -> Result<Comparison, Failure> {
        if samples.rows.is_empty() {
            let k = model.bundle.k();
            let elements = match model.bundle.unit() {
                "data" => "packets with payload",
                _ => "packets",
            };
            return Err(Failure::data(format!(
                "{source}: no flow with {k} {elements} to compare on"
            )));
        }
        let classes = model.bundle.shape().classes;
        let ours = model.probabilities(samples)?;
        let theirs = against.probabilities(samples)?;
        let mut comparison = Comparison::between(&ours, &theirs, classes, &samples.classes);
        comparison.source = source;
        Ok(comparison)
    }

    fn between(
        ours: &[f32],
        theirs: &[f32],
        classes: usize,
        truth: &[Option<usize>],
    ) -> Comparison {
        let mut comparison = Comparison::default();
        for (our, their) in ours.iter().zip(theirs) {
            let difference = (our - their).abs();
            comparison.max_difference = comparison.max_difference.max(difference);
            comparison.mean_difference += f64::from(difference) / ours.len() as f64;
        }
        let rows = ours.chunks_exact(classes).zip(theirs.chunks_exact(classes));
        let truth = truth.iter().copied().chain(std::iter::repeat(None));
        for ((our, their), class) in rows.zip(truth) {
            let (our, their) = (argmax(our), argmax(their));
            comparison.rows += 1;
            comparison.same_class += usize::from(our == their);
            if let Some(class) = class {
                comparison.labelled += 1;
                comparison.right += usize::from(our == class);
                comparison.right_against += usize::from(their == class);
            }
        }
        comparison
    }

    /// Share of the series that get the same class from both, 0 to 1.
    fn share(&self) -> f64 {
        self.same_class as f64 / self.rows as f64
    }

    /// Accuracy of the model and of the other, 0 to 1, where labels are known.
    fn accuracies(&self) -> Option<(f64, f64)> {
        let all = self.labelled as f64;
        (self.labelled > 0).then(|| (self.right as f64 / all, self.right_against as f64 / all))
    }

    pub fn as_text(&self) -> String {
        let mut text = format!(
            "  {}: same class for {} of {} series ({:.2} %); probabilities differ by {:.4} on \
             average, {:.4} at most\n",
            self.source,
            self.same_class,
            self.rows,
            100.0 * self.share(),
            self.mean_difference,
            self.max_difference,
        );
        if let Some((accuracy, against)) = self.accuracies() {
            text += &format!(
                "  {}: of {} with a known class {:.2} % right, against {:.2} %: a loss of {:.2} \
                 points\n",
                self.source,
                self.labelled,
                100.0 * accuracy,
                100.0 * against,
                100.0 * (against - accuracy),
            );
        }
        text
    }

    /// The comparison as JSON; shares and accuracies are 0 to 1.
    pub fn as_json(&self) -> Value {
        let accuracies = self.accuracies();
        json!({
            "source": self.source,
            "series": self.rows,
            "same_class": self.share(),
            "mean_difference": self.mean_difference,
            "max_difference": self.max_difference,
            "labelled": self.labelled,
            "accuracy": accuracies.map(|(accuracy, _)| accuracy),
            "accuracy_against": accuracies.map(|(_, against)| against),
            "accuracy_loss": accuracies.map(|(accuracy, against)| against - accuracy),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_differences_and_accuracies_are_counted() {
        let ours = [0.5, 0.25, 0.25, 0.25, 0.5, 0.25, 0.25, 0.25, 0.5];
        let theirs = [0.5, 0.25, 0.25, 0.5, 0.25, 0.25, 0.25, 0.25, 0.5];
        let comparison = Comparison::between(&ours, &theirs, 3, &[Some(0), Some(0), None]);
        let expected = Comparison {
            source: String::new(),
            rows: 3,
            same_class: 2,
            max_difference: 0.25,
            mean_difference: 0.5 / 9.0,
            labelled: 2,
            right: 1,
            right_against: 2,
        };
        assert!((comparison.mean_difference - expected.mean_difference).abs() < 1e-12);
        let mean_difference = expected.mean_difference;
        assert_eq!(Comparison { mean_difference, ..comparison }, expected);
        assert_eq!(expected.as_json()["accuracy_loss"], 0.5);
    }

    #[test]
    fn without_known_classes_there_is_no_accuracy() {
        let comparison = Comparison::between(&[0.5, 0.5], &[0.5, 0.5], 2, &[]);
        assert_eq!((comparison.rows, comparison.same_class), (1, 1));
        assert!(comparison.as_json()["accuracy"].is_null());
        assert!(!comparison.as_text().contains("loss"));
    }
}
