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
pub(crate) enum Failure {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("device {device} gave {answers} results for a batch of {rows} rows")]
    Answers { device: String, answers: usize, rows: usize },
    #[error(
        "device {device} gave row {row} the class {class}; labels have classes below {CLASSES_MAX}"
    )]
    Class { device: String, row: usize, class: u16 },
    #[error(
        "device {device} gave row {row} the confidence {confidence}, which is not a probability"
    )]
    Confidence { device: String, row: usize, confidence: f32 },
    #[error("device {device} has not answered within its deadline of {deadline:?}")]
    Deadline { device: String, deadline: Duration },
}

impl Failure {
    pub fn deadline(device: &str, deadline: Duration) -> Self {
        Self::Deadline { device: device.to_owned(), deadline }
    }

    pub fn kind(&self) -> FailureKind {
        match self {
            Self::Device(DeviceError::Output { .. })
            | Self::Answers { .. }
            | Self::Class { .. } => FailureKind::WrongShape,
            Self::Device(DeviceError::NotAProbability { .. }) | Self::Confidence { .. } => {
                FailureKind::NotAProbability
            }
            Self::Device(_) => FailureKind::Error,
            Self::Deadline { .. } => FailureKind::Deadline,
        }
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
        return Err(Failure::Answers { device: device.to_owned(), answers: answers.len(), rows });
    }
    let is_class = |answer: &Classification| usize::from(answer.class) < CLASSES_MAX;
    // A softmax may round to a little above 1. NaN is in no range.
    let is_probability = |answer: &Classification| (0.0..=1.001).contains(&answer.confidence);
    let is_good = |answer: &Classification| is_class(answer) & is_probability(answer);
    let Some(row) = answers.iter().position(|answer| !is_good(answer)) else {
        return Ok(answers);
    };
    let (device, Classification { class, confidence }) = (device.to_owned(), answers[row]);
    Err(if is_class(&answers[row]) {
        Failure::Confidence { device, row, confidence }
    } else {
        Failure::Class { device, row, class }
    })
}
