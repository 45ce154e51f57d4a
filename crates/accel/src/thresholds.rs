//! The confidence that a model must have in a class before a flow gets that class.

use engine::from_q15;

use crate::bundle::Bundle;
use crate::device::{Classification, DeviceError, is_probability};
use crate::golden::argmax;

/// The minimum confidence of each class, 0 to 1. A row whose most likely class is below its
/// threshold is "unknown".
#[derive(Clone, Debug, PartialEq)]
pub struct Thresholds {
    /// One per output column: the labels' thresholds, and 0 for the column "unknown" if the model
    /// has it.
    least: Vec<f32>,
    labels: usize,
}

impl Thresholds {
    /// Uses the bundle's `min_confidence` for every class.
    pub fn from_bundle(bundle: &Bundle) -> Self {
        let (labels, columns) = (bundle.labels().len(), bundle.shape().classes);
        Self::new(bundle.min_confidence(), labels, columns)
    }

    fn new(least: f32, labels: usize, columns: usize) -> Self {
        let mut thresholds = Self { least: vec![0.0; columns], labels };
        thresholds.all(least);
        thresholds
    }

    /// Sets the threshold of every class.
    pub fn all(&mut self, least: f32) {
        self.least[..self.labels].fill(least);
    }

    /// Sets the threshold of one class, by its index in the bundle's labels.
    ///
    /// # Panics
    /// There is no such class, which is a bug in the caller.
    pub fn set(&mut self, class: usize, least: f32) {
        self.least[..self.labels][class] = least;
    }

    /// The threshold of a class, by its index in the bundle's labels.
    ///
    /// # Panics
    /// There is no such class, which is a bug in the caller.
    pub fn get(&self, class: usize) -> f32 {
        self.least[..self.labels][class]
    }

    /// For each output column, the least confidence in Q15 that keeps it from being "unknown".
    pub fn least_q15(&self) -> Vec<u16> {
        let is_kept = |column, q15| self.result(column, from_q15(q15)).class == column as u16;
        let least = |column| (0..=1 << 15).find(|&q15| is_kept(column, q15));
        // 1 passes any threshold.
        (0..self.least.len()).map(|column| least(column).unwrap_or(1 << 15) as u16).collect()
    }

    /// Whether there is a threshold for each label and output column of `bundle`.
    pub fn fit(&self, bundle: &Bundle) -> bool {
        (self.labels, self.least.len()) == (bundle.labels().len(), bundle.shape().classes)
    }

    /// Replaces `results` by one result per row of `probabilities`. Of equally likely classes the
    /// first is taken.
    pub fn classify(
        &self,
        probabilities: &[f32],
        results: &mut Vec<Classification>,
    ) -> Result<(), DeviceError> {
        results.clear();
        for (row, outputs) in probabilities.chunks_exact(self.least.len()).enumerate() {
            if let Some(class) = outputs.iter().position(|value| !is_probability(*value)) {
                return Err(DeviceError::NotAProbability { row, class, value: outputs[class] });
            }
            let best = argmax(outputs);
            let confidence = outputs[best].min(1.0);
            results.push(self.result(best, confidence));
        }
        Ok(())
    }

    /// The result for a row whose likeliest output column is this one.
    pub(crate) fn result(&self, column: usize, confidence: f32) -> Classification {
        // The column "unknown" is the one after the labels, so that its index is that class
        // already.
        let class = if confidence < self.least[column] { self.labels } else { column };
        Classification { class: class as u16, confidence }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classified(
        probabilities: &[f32],
        thresholds: [f32; 3],
    ) -> Result<Vec<(u16, f32)>, DeviceError> {
        let thresholds = Thresholds { least: thresholds.to_vec(), labels: 3 };
        classified_by(&thresholds, probabilities)
    }

    fn classified_by(
        thresholds: &Thresholds,
        probabilities: &[f32],
    ) -> Result<Vec<(u16, f32)>, DeviceError> {
        let mut results = vec![Classification::default()];
        thresholds.classify(probabilities, &mut results)?;
        Ok(results.iter().map(|result| (result.class, result.confidence)).collect())
    }

    #[test]
    fn one_class_is_set_over_all() {
        let mut thresholds = Thresholds::new(0.1, 3, 3);
        thresholds.all(0.5);
        thresholds.set(1, 0.9);
        assert_eq!([0, 1, 2].map(|class| thresholds.get(class)), [0.5, 0.9, 0.5]);
    }

    #[test]
    fn the_likeliest_class_with_its_confidence() {
        let results = classified(&[0.25, 0.5, 0.25, 0.4, 0.2, 0.4], [0.0; 3]).unwrap();
        assert_eq!(results, [(1, 0.5), (0, 0.4)]);
    }

    #[test]
    fn below_the_threshold_the_class_is_unknown() {
        let results = classified(&[0.25, 0.5, 0.25, 0.1, 0.2, 0.7], [0.7; 3]).unwrap();
        assert_eq!(results, [(3, 0.5), (2, 0.7)]);
    }

    #[test]
    fn a_column_for_unknown_needs_no_confidence() {
        let mut thresholds = Thresholds::new(0.1, 2, 3);
        thresholds.all(0.7);
        // The likeliest is unknown; a label that is sure; a label that is not.
        let outputs = [0.3, 0.3, 0.4, 0.0, 0.8, 0.2, 0.5, 0.2, 0.3];
        let results = classified_by(&thresholds, &outputs).unwrap();
        assert_eq!(results, [(2, 0.4), (1, 0.8), (2, 0.5)]);
    }

    #[test]
    fn a_rounded_softmax_is_still_a_probability() {
        assert_eq!(classified(&[0.0, 1.000_000_1, 0.0], [0.0; 3]).unwrap(), [(1, 1.0)]);
    }

    #[test]
    fn what_is_no_probability_is_no_label() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.1, 7.5] {
            let error = classified(&[0.0, 1.0, 0.0, 1.0, 0.0, bad], [0.0; 3]).unwrap_err();
            assert!(
                matches!(error, DeviceError::NotAProbability { row: 1, class: 2, .. }),
                "{bad}: {error}"
            );
        }
    }
}
