//! The device `cpu`: ONNX Runtime's own CPU kernels, one session, batches of any size up to a cap.
//!
//! It has no thread: the work is done inside [`Device::submit`], on the thread that drives it, and the next
//! [`Device::poll`] returns it. A free batch axis costs nothing against fixed shapes, so there is no padding, but
//! of a single row to two.

use super::library::Library;
use super::session::{Failure, Session, SessionError};
use crate::bundle::Bundle;
use crate::device::{Classification, Device, DeviceError, Sizes, is_probability};
use crate::golden::argmax;

const NAME: &str = "cpu";

/// The fewest rows the model is run on. MLAS, which multiplies matrices for ONNX Runtime, may give a product of one row
/// (`M == 1` in its `sgemm.cpp`) to a kernel of its own, `SgemmKernelM1` or `MlasGemvFloatKernel`, depending on the
/// processor, while the kernels for more rows treat every row alike. So a row alone could differ in its last bits from the
/// same row in a batch.
const RUN_ROWS_MIN: usize = 2;

/// A bundle on the CPU.
pub struct CpuDevice {
    session: Session,
    sizes: Sizes,
    row_len: usize,
    classes: usize,
    min_confidence: f32,
    /// Room for the largest batch, and for a single row padded.
    input: Vec<f32>,
    probabilities: Vec<f32>,
    results: Vec<Classification>,
    /// What the next poll returns: whether `results` holds, if anything was submitted.
    outcome: Option<Result<(), DeviceError>>,
}

impl CpuDevice {
    /// Loads the bundle's model, for batches of `sizes`: any up to a cap, or to stand in for a device of fixed shapes, only
    /// these. Runs it once at the largest size on the golden inputs, so that a model that cannot run is refused here and
    /// memory is taken now.
    ///
    /// # Errors
    /// When the model cannot be loaded, disagrees with the bundle, or fails its first run.
    pub fn new(library: &Library, bundle: &Bundle, sizes: Sizes) -> Result<Self, SessionError> {
        let shape = bundle.shape();
        let cap = sizes.largest();
        let room = cap.max(RUN_ROWS_MIN);
        let mut device = Self {
            session: Session::new(library, bundle)?,
            sizes,
            row_len: shape.row_len(),
            classes: shape.classes,
            min_confidence: bundle.min_confidence(),
            input: vec![0.0; room * shape.row_len()],
            probabilities: Vec::with_capacity(room * shape.classes),
            results: Vec::with_capacity(cap),
            outcome: None,
        };
        let samples = bundle.golden().inputs.iter().cycle();
        for (row, sample) in device.input.chunks_exact_mut(shape.row_len()).zip(samples) {
            row.copy_from_slice(sample);
        }
        let first_run = |cause| SessionError::FirstRun {
            model: bundle.model_path().display().to_string(),
            cause,
        };
        device.run(cap).map_err(first_run)?;
        Ok(device)
    }

    /// From the first rows of `input` to `results`.
    fn run(&mut self, rows: usize) -> Result<(), DeviceError> {
        let run_rows = rows.max(RUN_ROWS_MIN);
        if rows == 1 {
            // Any row would do; this one is sure to be an input that the model takes.
            self.input.copy_within(..self.row_len, self.row_len);
        }
        let input = &self.input[..run_rows * self.row_len];
        let device = NAME.to_owned();
        self.session
            .run(run_rows, input, &mut self.probabilities)
            .map_err(|failure| match failure {
                Failure::Run(cause) => DeviceError::Run {
                    device,
                    rows: run_rows,
                    cause,
                },
                Failure::Output(found) => DeviceError::Output {
                    device,
                    rows: run_rows,
                    classes: self.classes,
                    found,
                },
            })?;
        self.probabilities.truncate(rows * self.classes);
        classify(
            &self.probabilities,
            self.classes,
            self.min_confidence,
            &mut self.results,
        )
    }
}

impl Device for CpuDevice {
    fn requested(&self) -> &str {
        NAME
    }

    fn effective(&self) -> &str {
        // The session registers no other provider, and the runtime always has this one.
        "CPUExecutionProvider"
    }

    fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    fn is_idle(&self) -> bool {
        self.outcome.is_none()
    }

    fn input(&mut self, rows: usize) -> &mut [f32] {
        &mut self.input[..rows * self.row_len]
    }

    fn submit(&mut self, rows: usize) -> Result<(), DeviceError> {
        if !self.is_idle() {
            return Err(DeviceError::Busy {
                device: NAME.to_owned(),
            });
        }
        if !self.sizes.takes(rows) {
            return Err(DeviceError::Rows {
                device: NAME.to_owned(),
                rows,
                sizes: self.sizes.clone(),
            });
        }
        self.outcome = Some(self.run(rows));
        Ok(())
    }

    fn poll(&mut self) -> Option<Result<&[Classification], DeviceError>> {
        let outcome = self.outcome.take()?;
        Some(outcome.map(|()| self.results.as_slice()))
    }

    fn probabilities(&self) -> &[f32] {
        &self.probabilities
    }
}

/// Replaces `results` by one per row of `probabilities`. Of equally likely classes the first is taken.
fn classify(
    probabilities: &[f32],
    classes: usize,
    min_confidence: f32,
    results: &mut Vec<Classification>,
) -> Result<(), DeviceError> {
    results.clear();
    for (row, outputs) in probabilities.chunks_exact(classes).enumerate() {
        if let Some(class) = outputs.iter().position(|value| !is_probability(*value)) {
            return Err(DeviceError::NotAProbability {
                row,
                class,
                value: outputs[class],
            });
        }
        let best = argmax(outputs);
        let confidence = outputs[best].min(1.0);
        let class = if confidence < min_confidence {
            classes
        } else {
            best
        };
        results.push(Classification {
            class: class as u16,
            confidence,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classified(
        probabilities: &[f32],
        min_confidence: f32,
    ) -> Result<Vec<(u16, f32)>, DeviceError> {
        let mut results = vec![Classification::default()];
        classify(probabilities, 3, min_confidence, &mut results)?;
        Ok(results
            .iter()
            .map(|result| (result.class, result.confidence))
            .collect())
    }

    #[test]
    fn the_likeliest_class_with_its_confidence() {
        let results = classified(&[0.25, 0.5, 0.25, 0.4, 0.2, 0.4], 0.0).unwrap();
        assert_eq!(results, [(1, 0.5), (0, 0.4)]);
    }

    #[test]
    fn below_the_threshold_the_class_is_unknown() {
        let results = classified(&[0.25, 0.5, 0.25, 0.1, 0.2, 0.7], 0.7).unwrap();
        assert_eq!(results, [(3, 0.5), (2, 0.7)]);
    }

    #[test]
    fn a_rounded_softmax_is_still_a_probability() {
        assert_eq!(
            classified(&[0.0, 1.000_000_1, 0.0], 0.0).unwrap(),
            [(1, 1.0)]
        );
    }

    #[test]
    fn what_is_no_probability_is_no_label() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.1, 7.5] {
            let error = classified(&[0.0, 1.0, 0.0, 1.0, 0.0, bad], 0.0).unwrap_err();
            assert!(
                matches!(
                    error,
                    DeviceError::NotAProbability {
                        row: 1,
                        class: 2,
                        ..
                    }
                ),
                "{bad}: {error}"
            );
        }
    }
}
