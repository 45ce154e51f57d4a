//! A bundle on one device of ONNX Runtime.
//!
//! It has no thread: the work is done inside [`Device::submit`], on the thread that drives it, and the next
//! [`Device::poll`] returns it.
//!
//! A device that takes any batch size has one session with a free batch axis, which costs nothing on a CPU, and no padding,
//! but on the CPU of a single row to two. A device of fixed sizes has one session per size, each compiled for that size
//! alone. All sessions read the one input buffer that the caller fills.

use std::path::PathBuf;

use super::error::SessionError;
use super::library::Library;
use super::plugin::Plugin;
use super::provider::{Provider, providers};
use super::session::{Failure, Model, Session};
use crate::bundle::Bundle;
use crate::device::{Classification, Device, DeviceError, Sizes, is_probability};
use crate::golden::argmax;
use crate::thresholds::Thresholds;

/// The fewest rows the model is run on by the provider `cpu`. MLAS, which multiplies matrices for ONNX Runtime, may give a
/// product of one row (`M == 1` in its `sgemm.cpp`) to a kernel of its own, `SgemmKernelM1` or `MlasGemvFloatKernel`,
/// depending on the processor, while the kernels for more rows treat every row alike. So a row alone could differ in its
/// last bits from the same row in a batch.
const RUN_ROWS_MIN: usize = 2;

/// How a device is asked for.
#[derive(Clone, Debug)]
pub struct DeviceSpec {
    /// Its name in the configuration: "cpu", or the user's own.
    pub name: String,
    /// What computes.
    pub provider: Provider,
    /// Options for the provider, passed as they are.
    pub options: Vec<(String, String)>,
    /// The library of a plug-in provider: for [`Provider::Plugin`], and for [`Provider::Qnn`] where it comes so.
    pub plugin: Option<PathBuf>,
    /// The batch sizes it is to take.
    pub sizes: Sizes,
    /// The least confidence of each class.
    pub thresholds: Thresholds,
}

impl DeviceSpec {
    /// The device `cpu`, with the bundle's thresholds.
    pub fn cpu(bundle: &Bundle, sizes: Sizes) -> Self {
        Self {
            name: Provider::Cpu.name().to_owned(),
            provider: Provider::Cpu,
            options: Vec::new(),
            plugin: None,
            sizes,
            thresholds: Thresholds::of(bundle),
        }
    }

    /// What can be told without a library.
    fn check(&self, bundle: &Bundle) -> Result<(), SessionError> {
        let provider = self.provider.name();
        let fixed = matches!(self.sizes, Sizes::Fixed(_));
        let has_nul = |(key, value): &(String, String)| key.contains('\0') || value.contains('\0');
        let problem = if self.sizes.largest() == 0 {
            "it has no batch size".to_owned()
        } else if self.provider.needs_fixed_sizes() && !fixed {
            format!("provider {provider} takes fixed batch sizes only; name them")
        } else if self.provider == Provider::Plugin && self.plugin.is_none() {
            format!("provider {provider} needs the path of its library")
        } else if self.plugin.is_some()
            && !matches!(self.provider, Provider::Plugin | Provider::Qnn)
        {
            format!(
                "provider {provider} takes no plug-in library; for one, ask for provider plugin"
            )
        } else if self.provider == Provider::Cpu && !self.options.is_empty() {
            format!(
                "provider {provider} has no options, but {} is given",
                self.options[0].0
            )
        } else if self.options.iter().any(has_nul) {
            "an option holds a NUL character".to_owned()
        } else if self.thresholds.classes() != bundle.labels().len() {
            "its thresholds are those of another bundle".to_owned()
        } else {
            return Ok(());
        };
        let device = self.name.clone();
        Err(SessionError::Spec { device, problem })
    }
}

/// A bundle on one device.
pub struct OnnxDevice {
    spec: DeviceSpec,
    effective: String,
    /// One for every size, or one per fixed size, in their order.
    sessions: Vec<Session>,
    row_len: usize,
    rows_min: usize,
    /// Room for the largest batch, and for a single row padded.
    input: Vec<f32>,
    probabilities: Vec<f32>,
    results: Vec<Classification>,
    /// What the next poll returns: whether `results` holds, if anything was submitted.
    outcome: Option<Result<(), DeviceError>>,
}

impl OnnxDevice {
    /// Loads the bundle's model as `spec` says, and runs it once at every fixed size, or at the largest, on the golden
    /// inputs: so that a model that cannot run is refused here and memory is taken now.
    ///
    /// # Errors
    /// When the device cannot be had as asked for, or when the model cannot be loaded, disagrees with the bundle, or fails
    /// its first run.
    pub fn new(library: &Library, bundle: &Bundle, spec: DeviceSpec) -> Result<Self, SessionError> {
        spec.check(bundle)?;
        let model = Model::check(library, bundle)?;
        let plugin = plugin(library, &spec)?;
        let effective = effective(library, &spec, plugin.as_ref())?;
        let rows_min = if spec.provider == Provider::Cpu {
            RUN_ROWS_MIN
        } else {
            1
        };
        let session = |fixed| Session::new(library, &model, &spec, plugin.as_ref(), fixed);
        let sessions = match &spec.sizes {
            Sizes::Any { .. } => vec![session(None)?],
            Sizes::Fixed(sizes) => sizes
                .iter()
                .map(|&size| session(Some(size.max(rows_min))))
                .collect::<Result<_, _>>()?,
        };
        let shape = bundle.shape();
        let room = spec.sizes.largest().max(rows_min);
        let mut device = Self {
            effective,
            sessions,
            row_len: shape.row_len(),
            rows_min,
            input: vec![0.0; room * shape.row_len()],
            probabilities: Vec::with_capacity(room * shape.classes),
            results: Vec::with_capacity(spec.sizes.largest()),
            outcome: None,
            spec,
        };
        device.warm_up(bundle)?;
        Ok(device)
    }

    /// The first runs.
    fn warm_up(&mut self, bundle: &Bundle) -> Result<(), SessionError> {
        let samples = bundle.golden().inputs.iter().cycle();
        for (row, sample) in self.input.chunks_exact_mut(self.row_len).zip(samples) {
            row.copy_from_slice(sample);
        }
        let sizes = match &self.spec.sizes {
            Sizes::Any { cap } => vec![*cap],
            Sizes::Fixed(sizes) => sizes.clone(),
        };
        for rows in sizes {
            self.run(rows).map_err(|cause| SessionError::FirstRun {
                model: bundle.model_path().display().to_string(),
                cause,
            })?;
        }
        Ok(())
    }

    /// From the first rows of `input` to `results`.
    fn run(&mut self, rows: usize) -> Result<(), DeviceError> {
        let run_rows = rows.max(self.rows_min);
        if rows < run_rows {
            // Any row would do; this one is sure to be an input that the model takes.
            self.input.copy_within(..self.row_len, self.row_len);
        }
        let session = match &self.spec.sizes {
            Sizes::Any { .. } => 0,
            Sizes::Fixed(sizes) => sizes.partition_point(|&size| size < rows),
        };
        let classes = self.spec.thresholds.classes();
        let input = &self.input[..run_rows * self.row_len];
        self.sessions[session]
            .run(run_rows, input, &mut self.probabilities)
            .map_err(|failure| {
                let device = self.spec.name.clone();
                let rows = run_rows;
                match failure {
                    Failure::Run(cause) => DeviceError::Run {
                        device,
                        rows,
                        cause,
                    },
                    Failure::Output(found) => DeviceError::Output {
                        device,
                        rows,
                        classes,
                        found,
                    },
                }
            })?;
        self.probabilities.truncate(rows * classes);
        classify(
            &self.probabilities,
            &self.spec.thresholds,
            &mut self.results,
        )
    }
}

/// The plug-in that the device asks for, registered.
fn plugin(library: &Library, spec: &DeviceSpec) -> Result<Option<Plugin>, SessionError> {
    let register = |path: &PathBuf| {
        Plugin::register(library, path).map_err(|cause| SessionError::Plugin {
            device: spec.name.clone(),
            plugin: path.clone(),
            cause,
        })
    };
    spec.plugin.as_ref().map(register).transpose()
}

/// What will do the work, as far as it is known; an error where it is not there at all.
fn effective(
    library: &Library,
    spec: &DeviceSpec,
    plugin: Option<&Plugin>,
) -> Result<String, SessionError> {
    let device = spec.name.clone();
    if let (Some(plugin), Some(path)) = (plugin, &spec.plugin) {
        return plugin.device(library).ok_or_else(|| SessionError::Plugin {
            device,
            plugin: path.clone(),
            cause: "finds no device that it can run on in this machine".to_owned(),
        });
    }
    let Some(name) = spec
        .provider
        .runtime_name()
        .filter(|_| spec.provider.is_compiled_in())
    else {
        return Err(SessionError::NoProvider {
            device,
            provider: spec.provider.name(),
            library: library.path().to_owned(),
            available: providers(library),
        });
    };
    // The options that choose among several, in OpenVINO and in the others.
    let chosen = |(key, _): &&(String, String)| matches!(key.as_str(), "device_type" | "device_id");
    Ok(match spec.options.iter().find(chosen) {
        Some((_, value)) => format!("{name} ({value})"),
        None => name.to_owned(),
    })
}

impl Device for OnnxDevice {
    fn requested(&self) -> &str {
        &self.spec.name
    }

    fn effective(&self) -> &str {
        &self.effective
    }

    fn sizes(&self) -> &Sizes {
        &self.spec.sizes
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
                device: self.spec.name.clone(),
            });
        }
        if !self.spec.sizes.takes(rows) {
            return Err(DeviceError::Rows {
                device: self.spec.name.clone(),
                rows,
                sizes: self.spec.sizes.clone(),
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
    thresholds: &Thresholds,
    results: &mut Vec<Classification>,
) -> Result<(), DeviceError> {
    results.clear();
    let classes = thresholds.classes();
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
        let class = if confidence < thresholds.get(best) {
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
        thresholds: [f32; 3],
    ) -> Result<Vec<(u16, f32)>, DeviceError> {
        let mut results = vec![Classification::default()];
        classify(
            probabilities,
            &Thresholds(thresholds.to_vec()),
            &mut results,
        )?;
        Ok(results
            .iter()
            .map(|result| (result.class, result.confidence))
            .collect())
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
    fn a_rounded_softmax_is_still_a_probability() {
        assert_eq!(
            classified(&[0.0, 1.000_000_1, 0.0], [0.0; 3]).unwrap(),
            [(1, 1.0)]
        );
    }

    #[test]
    fn what_is_no_probability_is_no_label() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.1, 7.5] {
            let error = classified(&[0.0, 1.0, 0.0, 1.0, 0.0, bad], [0.0; 3]).unwrap_err();
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
