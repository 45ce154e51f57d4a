//! How sure a model must be of a class before a flow gets it.

use crate::bundle::Bundle;

/// The least confidence of each class, 0 to 1. A row whose likeliest class is below its own threshold is "unknown".
#[derive(Clone, Debug, PartialEq)]
pub struct Thresholds(pub(crate) Vec<f32>);

impl Thresholds {
    /// The bundle's `min_confidence` for every class.
    pub fn of(bundle: &Bundle) -> Self {
        Self(vec![bundle.min_confidence(); bundle.labels().len()])
    }

    /// Sets every class to `least`.
    pub fn all(&mut self, least: f32) {
        self.0.fill(least);
    }

    /// Sets one class, by its index in the bundle's labels.
    ///
    /// # Panics
    /// When there is no such class, which is a fault of the caller.
    pub fn set(&mut self, class: usize, least: f32) {
        self.0[class] = least;
    }

    /// The least confidence of a class, by its index in the bundle's labels.
    ///
    /// # Panics
    /// When there is no such class, which is a fault of the caller.
    pub fn get(&self, class: usize) -> f32 {
        self.0[class]
    }

    /// Number of classes.
    pub(crate) fn classes(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_class_is_set_over_all() {
        let mut thresholds = Thresholds(vec![0.1; 3]);
        thresholds.all(0.5);
        thresholds.set(1, 0.9);
        assert_eq!(
            [0, 1, 2].map(|class| thresholds.get(class)),
            [0.5, 0.9, 0.5]
        );
    }
}
