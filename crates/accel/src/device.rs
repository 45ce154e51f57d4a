//! The interface of an accelerator.
//!
//! A batch goes through these steps: while the device [is idle](Device::is_idle), the caller fills
//! [`Device::input`], and [`Device::context`] if the model has one, and calls [`Device::submit`],
//! then [`Device::poll`] until it returns the results, after which the device is idle again. The
//! input buffer belongs to the device, so a series is copied only once, from its ring slot into the
//! model's input.

use std::fmt;
use std::time::{Duration, Instant};

use thiserror::Error;

/// The dimensions of a model's input and output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Features per element.
    pub channels: usize,
    /// Elements per series.
    pub k: usize,
    /// Numbers of a flow as a whole, the second input; 0 for a model without one.
    pub context: usize,
    /// Output columns: one per label, and a last one if the model has a column "unknown".
    pub classes: usize,
}

impl Shape {
    /// Floats in one row of series, the first input: K values of each channel, channel by channel.
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
    /// Only these sizes, ascending. The caller pads smaller batches.
    Fixed(Vec<usize>),
}

impl Sizes {
    /// The largest size, or 0 if there is none.
    pub fn largest(&self) -> usize {
        match self {
            Sizes::Any { cap } => *cap,
            Sizes::Fixed(sizes) => sizes.last().copied().unwrap_or(0),
        }
    }

    /// The smallest size that holds `rows` rows, or none if `rows` is above [`Sizes::largest`].
    pub fn fitting(&self, rows: usize) -> Option<usize> {
        match self {
            Sizes::Any { cap } => (rows <= *cap).then_some(rows),
            Sizes::Fixed(sizes) => sizes.iter().copied().find(|&size| rows <= size),
        }
    }

    /// Whether a batch of exactly `rows` rows can be submitted.
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

/// The result for one row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Classification {
    /// Index into the bundle's labels. The number of labels means "unknown": the confidence was
    /// below the [threshold](crate::Thresholds) of the class, or the model's own column "unknown"
    /// was the likeliest.
    pub class: u16,
    /// Probability of the most likely class, 0 to 1, also for "unknown".
    pub confidence: f32,
}

/// Whether a model's output is a probability. A softmax may round to slightly above 1. NaN is in no
/// range.
pub(crate) fn is_probability(value: f32) -> bool {
    (0.0..=1.001).contains(&value)
}

/// An accelerator that holds a model and takes one batch at a time.
pub trait Device: Send {
    /// The device as requested in the configuration, such as "cpu".
    fn requested(&self) -> &str;

    /// The provider that runs the model, such as "CPUExecutionProvider".
    fn effective(&self) -> &str;

    /// The batch sizes that the device takes. They never change.
    fn sizes(&self) -> &Sizes;

    /// Sets the longest time a batch may take from now on. It takes effect where the device can be
    /// stopped: see [`crate::onnx::stop_late_runs`].
    fn limit_runs(&mut self, _limit: Duration) {}

    /// False between a successful [`Device::submit`] and the [`Device::poll`] that returns its
    /// results.
    fn is_idle(&self) -> bool;

    /// The input of the next batch, `rows` × channels × K floats, to be filled by the caller: row
    /// after row, and within a row channel after channel. It still holds the values of earlier
    /// batches, so the caller writes every element and pads with 0.
    ///
    /// # Panics
    /// `rows` is above the largest size, which is a bug in the caller.
    fn input(&mut self, rows: usize) -> &mut [f32];

    /// The context of the next batch, `rows` × [`Shape::context`] floats, to be filled by the
    /// caller, row after row, as [`Device::input`] is. Empty for a model without context.
    ///
    /// # Panics
    /// As [`Device::input`].
    fn context(&mut self, _rows: usize) -> &mut [f32] {
        &mut []
    }

    /// Checks that a batch of `rows` rows can be submitted now.
    ///
    /// # Errors
    /// The device is busy or does not take this size.
    fn accepts(&self, rows: usize) -> Result<(), DeviceError> {
        let device = || self.requested().to_owned();
        if !self.is_idle() {
            return Err(DeviceError::Busy { device: device() });
        }
        match self.sizes().takes(rows) {
            true => Ok(()),
            false => Err(DeviceError::Rows { device: device(), rows, sizes: self.sizes().clone() }),
        }
    }

    /// Starts the first `rows` rows of the input. A device without a thread of its own runs the
    /// batch inside this call.
    ///
    /// # Errors
    /// As [`Device::accepts`]. If the run itself fails, [`Device::poll`] returns the error.
    fn submit(&mut self, rows: usize) -> Result<(), DeviceError>;

    /// The results of the batch in flight, one per submitted row and in their order, or none while
    /// it is not ready or nothing was submitted. Never blocks.
    fn poll(&mut self) -> Option<Result<&[Classification], DeviceError>>;

    /// When the batch in flight will be ready, if the device knows. Callers may sleep until then
    /// instead of polling.
    fn ready_at(&self) -> Option<Instant> {
        None
    }

    /// The model's outputs for the results that were polled last, rows × classes; empty for a
    /// device that computes none. To be called before the input is filled again, because a device
    /// may compute them only now.
    fn probabilities(&mut self) -> &[f32] {
        &[]
    }

    /// Whether it computes with integers what the bundle's model computes with floats, so that its
    /// outputs differ a little from the golden ones.
    fn is_integer(&self) -> bool {
        false
    }
}

/// Why a batch has no results. The device stays usable unless it is [gone](DeviceError::Gone).
#[derive(Clone, Debug, Error)]
pub enum DeviceError {
    /// The caller submitted a batch while another was in flight.
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
        /// The submitted size.
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
        /// Message of the runtime.
        cause: String,
    },
    /// The output has another type or shape than the bundle declares.
    #[error(
        "device {device} gave {found} for a batch of {rows} rows, instead of float32 [{rows}, \
         {classes}]"
    )]
    Output {
        /// The device as requested.
        device: String,
        /// The size of the batch.
        rows: usize,
        /// Output columns that the bundle declares.
        classes: usize,
        /// Type and shape of the output.
        found: String,
    },
    /// A number in the output is NaN, infinite, or outside 0 to 1.
    #[error("the model gave {value} for row {row}, class {class}, which is not a probability")]
    NotAProbability {
        /// The row in the batch.
        row: usize,
        /// The output column.
        class: usize,
        /// The number.
        value: f32,
    },
    /// The device failed in the middle of a batch and will not run another.
    #[error("device {device} is gone: {cause}")]
    Gone {
        /// The device as requested.
        device: String,
        /// Why, as far as it is known.
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
