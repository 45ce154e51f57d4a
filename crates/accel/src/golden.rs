//! Compares a device's outputs with the golden outputs of its bundle.

use std::thread;
use std::time::{Duration, Instant};

use crate::bundle::Bundle;
use crate::device::{Classification, Device, DeviceError};

/// The largest difference between a probability and its golden value that counts as agreement, for
/// a bundle of this precision. Runtimes and processors differ by about 1e-6 at fp32; a wrong
/// weight, feature order or normalisation shows at 1e-2 and above. With int8 each provider rounds
/// in different places: measured against the golden outputs of ONNX Runtime's CPU kernels, OpenVINO
/// differs by 3e-4 and the x86 stand-in for Qualcomm's NPU by 0.026.
pub fn golden_tolerance(precision: &str) -> f32 {
    match precision {
        "int8" => 0.05,
        "fp16" => 5e-3,
        _ => 1e-4,
    }
}

/// The same for a device of integers that runs a model of floats. The shipped networks differ by up
/// to 0.020 on their golden rows. On 6,000 flows of other captures `protocol` differs by up to
/// 0.023, `app-id-k10` by 0.083 and `fenxi-cnn-k10` by 0.103, on average by 0.001; a network
/// trained on 400 flows differs by 0.102 on its golden rows. A class with a golden probability of
/// 0.85 or more is still the likeliest, with 0.65 against 0.35.
const INTEGER_TOLERANCE: f32 = 0.2;

/// The longest time that a batch of golden samples may take, in seconds.
const BATCH_S_MAX: u64 = 60;

/// How a device's outputs compare with the golden ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GoldenReport {
    /// Samples compared.
    pub rows: usize,
    /// The largest difference of a probability from its golden value.
    pub max_abs_difference: f32,
    /// Samples whose most likely class differs.
    pub argmax_differences: usize,
    /// The largest difference that counts as agreement: the [`golden_tolerance`] of the bundle's
    /// precision, or the one for a device of integers.
    pub tolerance: f32,
}

impl GoldenReport {
    /// Whether all outputs are within the tolerance. A sample may still have another most likely
    /// class, but only if the golden outputs of the two classes differ by less than twice the
    /// tolerance.
    pub fn agrees(&self) -> bool {
        self.max_abs_difference <= self.tolerance
    }
}

/// Runs the golden inputs on `device` and compares the outputs. The device must be idle and have
/// been made for this bundle.
///
/// # Errors
/// The device fails, takes too long, or computes no probabilities.
pub fn check_golden(bundle: &Bundle, device: &mut dyn Device) -> Result<GoldenReport, DeviceError> {
    let golden = bundle.golden();
    let shape = bundle.shape();
    let mut report = GoldenReport {
        rows: golden.inputs.len(),
        max_abs_difference: 0.0,
        argmax_differences: 0,
        tolerance: match device.is_integer() {
            true => INTEGER_TOLERANCE,
            false => golden_tolerance(bundle.precision()),
        },
    };
    let step = device.sizes().largest().max(1);
    let inputs = golden.inputs.chunks(step).zip(golden.contexts.chunks(step));
    for ((inputs, contexts), outputs) in inputs.zip(golden.outputs.chunks(step)) {
        let rows = run_batch(device, inputs, contexts)?.len();
        let given = device.probabilities();
        if given.len() != rows * shape.classes {
            let cause = "it computes no probabilities that could be compared".to_owned();
            return Err(DeviceError::Run { device: device.requested().to_owned(), rows, cause });
        }
        for (given, expected) in given.chunks_exact(shape.classes).zip(outputs) {
            for difference in given.iter().zip(expected).map(|(a, b)| (a - b).abs()) {
                // A NaN is kept; f32::max would drop it.
                if difference.is_nan() || difference > report.max_abs_difference {
                    report.max_abs_difference = difference;
                }
            }
            report.argmax_differences += usize::from(argmax(given) != argmax(expected));
        }
    }
    Ok(report)
}

/// Runs a batch to its end: series, with their contexts if the model has some. A device that takes
/// a few sizes only gets zeros for the rest of a batch, and answers those as well.
///
/// # Errors
/// The device fails or takes too long.
pub fn run_batch(
    device: &mut dyn Device,
    series: &[impl AsRef<[f32]>],
    contexts: &[impl AsRef<[f32]>],
) -> Result<Vec<Classification>, DeviceError> {
    let rows = device.sizes().fitting(series.len()).unwrap_or(series.len());
    fill(device.input(rows), rows, series);
    fill(device.context(rows), rows, contexts);
    device.submit(rows)?;
    wait(device, rows, <[Classification]>::to_vec)
}

fn fill(buffer: &mut [f32], rows: usize, from: &[impl AsRef<[f32]>]) {
    buffer.fill(0.0);
    let length = (buffer.len() / rows.max(1)).max(1);
    for (to, from) in buffer.chunks_exact_mut(length).zip(from) {
        to.copy_from_slice(from.as_ref());
    }
}

/// Polls until the batch in flight is done; what `take` makes of its results.
pub(crate) fn wait<T>(
    device: &mut dyn Device,
    rows: usize,
    take: impl Fn(&[Classification]) -> T,
) -> Result<T, DeviceError> {
    let end = Instant::now() + Duration::from_secs(BATCH_S_MAX);
    while Instant::now() < end {
        if let Some(results) = device.poll() {
            return results.map(take);
        }
        thread::yield_now();
    }
    let cause = format!("no result within {BATCH_S_MAX} s");
    Err(DeviceError::Run { device: device.requested().to_owned(), rows, cause })
}

/// The column of the largest value; the first of several equal ones.
pub fn argmax(row: &[f32]) -> usize {
    let mut best = 0;
    for (at, value) in row.iter().enumerate() {
        if *value > row[best] {
            best = at;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_equal_maxima_the_first_wins() {
        assert_eq!(argmax(&[0.1, 0.4, 0.4, 0.1]), 1);
        assert_eq!(argmax(&[0.25; 4]), 0);
        assert_eq!(argmax(&[0.0, 0.0, 1.0]), 2);
    }

    #[test]
    fn agreement_is_within_the_tolerance() {
        let report = |max_abs_difference| GoldenReport {
            rows: 1,
            max_abs_difference,
            argmax_differences: 0,
            tolerance: golden_tolerance("int8"),
        };
        assert!(report(0.05).agrees());
        assert!(!report(0.06).agrees());
        assert!(!report(f32::NAN).agrees());
    }
}
