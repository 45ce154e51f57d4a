//! How devices fail.

use accel::{Classification, DeviceError};
use cring::CLASSES_MAX;
use std::time::Duration;
use thiserror::Error;

/// The kind of a failure, for counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// The device reported an error.
    Error,
    /// Its output had a shape or a class that the model cannot have.
    WrongShape,
    /// Its output held a number that is not a probability, such as NaN.
    NotAProbability,
    /// It did not answer within its deadline.
    Deadline,
}

impl FailureKind {
    /// All of them, in the order of their discriminants.
    pub const ALL: [Self; 4] =
        [Self::Error, Self::WrongShape, Self::NotAProbability, Self::Deadline];

    /// The name under which it is counted.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::WrongShape => "wrong_shape",
            Self::NotAProbability => "not_a_probability",
            Self::Deadline => "deadline",
        }
    }
}

/// Why a batch failed.
#[derive(Debug, Error)]
#[error("{message}")]
pub(crate) struct Failure {
    pub kind: FailureKind,
    message: String,
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        let kind = match error {
            DeviceError::Output { .. } => FailureKind::WrongShape,
            DeviceError::NotAProbability { .. } => FailureKind::NotAProbability,
            _ => FailureKind::Error,
        };
        Self { kind, message: error.to_string() }
    }
}

impl Failure {
    pub fn deadline(device: &str, deadline: Duration) -> Self {
        let message =
            format!("device {device} has not answered within its deadline of {deadline:?}");
        Self { kind: FailureKind::Deadline, message }
    }
}

/// Checks a batch: one answer per row, each a class that a label can have and a probability.
/// Devices promise this; the check protects the label words from one that breaks the promise.
pub(crate) fn check_answers<'a>(
    answers: &'a [Classification],
    rows: usize,
    device: &str,
) -> Result<&'a [Classification], Failure> {
    if answers.len() != rows {
        let found = answers.len();
        let message = format!("device {device} gave {found} results for a batch of {rows} rows");
        return Err(Failure { kind: FailureKind::WrongShape, message });
    }
    let is_class = |answer: &Classification| usize::from(answer.class) < CLASSES_MAX;
    // A softmax may round to a little above 1. NaN is in no range.
    let is_probability = |answer: &Classification| (0.0..=1.001).contains(&answer.confidence);
    let is_good = |answer: &Classification| is_class(answer) & is_probability(answer);
    let Some(row) = answers.iter().position(|answer| !is_good(answer)) else {
        return Ok(answers);
    };
    let Classification { class, confidence } = answers[row];
    let (kind, why) = match is_class(&answers[row]) {
        true => (
            FailureKind::NotAProbability,
            format!("the confidence {confidence}, which is not a probability"),
        ),
        false => (
            FailureKind::WrongShape,
            format!("the class {class}; labels have classes below {CLASSES_MAX}"),
        ),
    };
    Err(Failure { kind, message: format!("device {device} gave row {row} {why}") })
}
