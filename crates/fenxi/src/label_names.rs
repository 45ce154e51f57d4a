//! Labels that metrics name: a model may have thousands of classes, each with several time series.

use std::sync::Arc;

/// Maximum number of named labels.
const NAMED_MAX: usize = 64;

/// Name of all further labels.
const OTHER: &str = "other";

/// Names of a model's classes in metrics. They never change during a run, or counters would jump.
#[derive(Debug, Clone)]
pub struct LabelNames {
    shown: Vec<String>,
    /// Index into `shown`, by class.
    places: Vec<usize>,
}

impl LabelNames {
    /// Names for classes in the order of the model; the last, `unknown`, always has its own.
    pub fn new(classes: &Arc<[String]>) -> LabelNames {
        let mut shown = classes.to_vec();
        if shown.len() > NAMED_MAX {
            let last = shown.pop();
            shown.truncate(NAMED_MAX - 1);
            shown.extend(last);
            if !shown.iter().any(|name| name == OTHER) {
                shown.push(OTHER.to_owned());
            }
        }
        let place = |name: &str| shown.iter().position(|shown| shown == name);
        let other = place(OTHER).unwrap_or_default();
        let places = classes.iter();
        let places = places.map(|class| place(class).unwrap_or(other)).collect();
        LabelNames { shown, places }
    }

    /// All names, each once.
    pub fn shown(&self) -> &[String] {
        &self.shown
    }

    /// Index of a class's name in [`LabelNames::shown`].
    pub fn place_of(&self, class: usize) -> usize {
        self.places[class]
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
            assert!(
                (0..classes)
                    .all(|class| names.shown()[names.place_of(class)] == format!("c{class}"))
            );
        }
    }

    #[test]
    fn of_many_the_first_and_the_last_keep_their_names() {
        let names = names(NAMED_MAX + 1);
        let mut once = names.shown().to_vec();
        once.dedup();
        assert_eq!(once, names.shown());
        let shown = |class| names.shown()[names.place_of(class)].as_str();
        assert_eq!(names.shown().len(), NAMED_MAX + 1);
        assert_eq!((shown(0), shown(62)), ("c0", "c62"));
        assert_eq!((shown(63), shown(64)), ("other", "c64"));
    }

    #[test]
    fn a_class_called_other_takes_the_rest() {
        let mut classes: Vec<String> = (0..100).map(|class| format!("c{class}")).collect();
        classes[7] = OTHER.to_owned();
        let names = LabelNames::new(&classes.into());
        assert_eq!(names.shown().len(), NAMED_MAX);
        assert_eq!(names.place_of(80), names.place_of(7));
        assert_eq!(names.shown()[names.place_of(99)], "c99");
    }
}
