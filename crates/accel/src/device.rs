//! What every accelerator looks like to the code that feeds it.
//!
//! The life of a batch: while the device [is idle](Device::is_idle), fill [`Device::input`], then [`Device::submit`], then
//! [`Device::poll`] until it answers; from then on the device is idle again. The input lies in the device's own buffer, so
//! that a series is copied once, from where it waits into the model's input.

use std::fmt;
use std::time::{Duration, Instant};

use thiserror::Error;

/// The numbers that fix the layout of a model's input and output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Features per element.
    pub channels: usize,
    /// Elements per series.
    pub k: usize,
    /// Output columns, one per label.
    pub classes: usize,
}

impl Shape {
    /// Floats in one row of input: channel after channel, each with K values.
    pub fn row_len(&self) -> usize {
        self.channels * self.k
    }
}

/// The batch sizes that a device takes, in rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// Every size from 1 to the cap.
    Any {
        /// The largest batch.
        cap: usize,
    },
    /// These sizes only, ascending; smaller batches are to be padded by the caller.
    Fixed(Vec<usize>),
}

impl Sizes {
    /// The largest size; 0 when there is none.
    pub fn largest(&self) -> usize {
        match self {
            Sizes::Any { cap } => *cap,
            Sizes::Fixed(sizes) => sizes.last().copied().unwrap_or(0),
        }
    }

    /// The smallest size that holds so many rows; none when they are more than [`Sizes::largest`].
    pub fn fitting(&self, rows: usize) -> Option<usize> {
        match self {
            Sizes::Any { cap } => (rows <= *cap).then_some(rows),
            Sizes::Fixed(sizes) => sizes.iter().copied().find(|&size| rows <= size),
        }
    }

    /// Whether a batch of exactly so many rows can be submitted.
    pub fn takes(&self, rows: usize) -> bool {
        rows > 0 && self.fitting(rows) == Some(rows)
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sizes::Any { cap } => write!(f, "1 to {cap}"),
            Sizes::Fixed(sizes) => write!(f, "{sizes:?}"),
        }
    }
}

/// The answer for one row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Classification {
    /// Index into the bundle's labels; the number of labels means "unknown": the confidence was below the class's
    /// [threshold](crate::Thresholds).
    pub class: u16,
    /// The probability of the likeliest class, 0 to 1, also where the class is "unknown".
    pub confidence: f32,
}

/// Whether a model's output can be one; a softmax may round to a little above 1. NaN is in no range.
pub(crate) fn is_probability(value: f32) -> bool {
    (0.0..=1.001).contains(&value)
}

/// An accelerator that holds a model and takes one batch at a time.
pub trait Device: Send {
    /// What was asked for, as in the configuration: "cpu".
    fn requested(&self) -> &str;

    /// What does the work: "CPUExecutionProvider".
    fn effective(&self) -> &str;

    /// The batch sizes it takes; they never change.
    fn sizes(&self) -> &Sizes;

    /// From now on a batch that takes longer should fail, where the device can be stopped: see
    /// [`crate::onnx::stop_late_runs`].
    fn limit_runs(&mut self, _limit: Duration) {}

    /// False from a successful [`Device::submit`] to the [`Device::poll`] that returned its batch.
    fn is_idle(&self) -> bool;

    /// The input of the next batch, `rows` × channels × K floats, for the caller to fill; row after row, channel after
    /// channel, lengths signed by direction and padded with 0. It holds what earlier batches left there.
    ///
    /// # Panics
    /// When `rows` is above the largest size, which is a fault of the caller.
    fn input(&mut self, rows: usize) -> &mut [f32];

    /// Starts on the first `rows` rows of the input. A device without a thread of its own does the work here.
    ///
    /// # Errors
    /// When the device is busy or does not take this size. A failure of the work itself comes from [`Device::poll`].
    fn submit(&mut self, rows: usize) -> Result<(), DeviceError>;

    /// The results of the batch in flight, one per row submitted and in their order; none while it is not ready or
    /// nothing was submitted. Never blocks.
    fn poll(&mut self) -> Option<Result<&[Classification], DeviceError>>;

    /// When the batch in flight will be ready, where the device knows it: a hint for those who would rather sleep than
    /// poll.
    fn ready_at(&self) -> Option<Instant> {
        None
    }

    /// The outputs behind the results that were polled last, rows × classes; empty for a device that computes none.
    fn probabilities(&self) -> &[f32] {
        &[]
    }
}

/// Why a batch got no results. The device stays usable, unless it is [gone](DeviceError::Gone).
#[derive(Debug, Error)]
pub enum DeviceError {
    /// The caller submitted a second batch.
    #[error("device {device} is busy: poll the batch in flight before submitting another")]
    Busy {
        /// The device as requested.
        device: String,
    },
    /// The caller submitted a size that the device does not take.
    #[error("device {device} takes no batch of {rows} rows (it takes {sizes})")]
    Rows {
        /// The device as requested.
        device: String,
        /// The size submitted.
        rows: usize,
        /// The sizes it takes.
        sizes: Sizes,
    },
    /// The runtime reported a failure.
    #[error("device {device} failed on a batch of {rows} rows: {cause}")]
    Run {
        /// The device as requested.
        device: String,
        /// The size of the batch.
        rows: usize,
        /// What the runtime said.
        cause: String,
    },
    /// The output has another type or shape than the bundle says.
    #[error(
        "device {device} gave {found} for a batch of {rows} rows, instead of float32 [{rows}, {classes}]"
    )]
    Output {
        /// The device as requested.
        device: String,
        /// The size of the batch.
        rows: usize,
        /// Labels in the bundle.
        classes: usize,
        /// Type and shape of what came.
        found: String,
    },
    /// A number in the output is NaN, infinite, or outside 0 to 1.
    #[error("the model gave {value} for row {row}, class {class}, which is not a probability")]
    NotAProbability {
        /// The row in the batch.
        row: usize,
        /// The output column.
        class: usize,
        /// What came.
        value: f32,
    },
    /// The device broke off in the middle of a batch and will not run another.
    #[error("device {device} is gone: {cause}")]
    Gone {
        /// The device as requested.
        device: String,
        /// What is known of its end.
        cause: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_size_up_to_the_cap() {
        let sizes = Sizes::Any { cap: 4 };
        assert_eq!(sizes.largest(), 4);
        assert_eq!(sizes.fitting(3), Some(3));
        assert_eq!(sizes.fitting(5), None);
        assert!(sizes.takes(4) && !sizes.takes(5) && !sizes.takes(0));
    }

    #[test]
    fn fixed_sizes_only() {
        let sizes = Sizes::Fixed(vec![1, 8, 32]);
        assert_eq!(sizes.largest(), 32);
        assert_eq!(sizes.fitting(2), Some(8));
        assert_eq!(sizes.fitting(33), None);
        assert!(sizes.takes(8) && !sizes.takes(7) && !sizes.takes(0));
        assert!(!Sizes::Fixed(Vec::new()).takes(1));
    }
}
