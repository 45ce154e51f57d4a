//! Which labels metrics name. A model may have thousands of classes, and each would be several time series.

use std::sync::Arc;

/// Most labels that are named.
const NAMED_MAX: usize = 64;

/// What all further ones are called together.
const OTHER: &str = "other";

/// The names of a model's classes as metrics show them. They never change during a run, or counters would jump.
#[derive(Debug, Clone)]
pub struct LabelNames {
    shown: Vec<String>,
    classes: usize,
}

impl LabelNames {
    /// Of classes in the order of the model; the last, `unknown`, is always named.
    pub fn new(classes: &Arc<[String]>) -> LabelNames {
        let mut shown = classes.to_vec();
        if shown.len() > NAMED_MAX {
            let last = shown.pop();
            shown.truncate(NAMED_MAX - 1);
            shown.extend(last);
            shown.push(OTHER.to_owned());
        }
        LabelNames {
            shown,
            classes: classes.len(),
        }
    }

    /// All names.
    pub fn shown(&self) -> &[String] {
        &self.shown
    }

    /// Where among them a class stands.
    pub fn place_of(&self, class: usize) -> usize {
        if self.classes <= NAMED_MAX || class < NAMED_MAX - 1 {
            class
        } else if class + 1 == self.classes {
            NAMED_MAX - 1
        } else {
            NAMED_MAX
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(classes: usize) -> LabelNames {
        let classes: Vec<String> = (0..classes).map(|class| format!("c{class}")).collect();
        LabelNames::new(&classes.into())
    }

    #[test]
    fn few_classes_keep_their_names() {
        for classes in [1, NAMED_MAX] {
            let names = names(classes);
            assert_eq!(names.shown().len(), classes);
            assert!((0..classes).all(|class| names.shown()[names.place_of(class)] == format!("c{class}")));
        }
    }

    #[test]
    fn of_many_the_first_and_the_last_keep_their_names() {
        let names = names(NAMED_MAX + 1);
        let shown = |class| names.shown()[names.place_of(class)].as_str();
        assert_eq!(names.shown().len(), NAMED_MAX + 1);
        assert_eq!((shown(0), shown(62)), ("c0", "c62"));
        assert_eq!((shown(63), shown(64)), ("other", "c64"));
    }
}
