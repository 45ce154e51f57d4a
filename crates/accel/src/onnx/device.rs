//! A bundle on one device of ONNX Runtime.
//!
//! It has no thread: the work is done inside [`Device::submit`], on the thread that drives it, and the next
//! [`Device::poll`] returns it.
//!
//! A device that takes any batch size has one session with a free batch axis, which costs nothing on a CPU, and no padding,
//! but on the CPU of a single row to two. A device of fixed sizes has one session per size, each compiled for that size
//! alone. All sessions read the one input buffer that the caller fills.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::SessionError;
use super::library::Library;
use super::plugin::Plugin;
use super::provider::{Provider, providers};
use super::session::{Failure, Model, Session};
use super::spec::DeviceSpec;
use crate::bundle::Bundle;
use crate::device::{Classification, Device, DeviceError, Sizes};

/// The fewest rows the model is run on by the provider `cpu`. MLAS, which multiplies matrices for ONNX Runtime, may give a
/// product of one row (`M == 1` in its `sgemm.cpp`) to a kernel of its own, `SgemmKernelM1` or `MlasGemvFloatKernel`,
/// depending on the processor, while the kernels for more rows treat every row alike. So a row alone could differ in its
/// last bits from the same row in a batch.
const RUN_ROWS_MIN: usize = 2;

/// A bundle on one device.
pub struct OnnxDevice {
    spec: DeviceSpec,
    effective: String,
    /// One for every size, or one per fixed size, in their order.
    sessions: Vec<Session>,
    row_len: usize,
    classes: usize,
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
            classes: shape.classes,
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

    /// Checks what can be checked without the device itself: the spec, the model, and that the loaded library has the
    /// provider or that the plug-in's file is there.
    ///
    /// # Errors
    /// Those of [`OnnxDevice::new`], as far as they show.
    pub fn look(library: &Library, bundle: &Bundle, spec: &DeviceSpec) -> Result<(), SessionError> {
        spec.check(bundle)?;
        Model::check(library, bundle)?;
        match &spec.plugin {
            Some(path) => Plugin::file(path)
                .map(drop)
                .map_err(|cause| refused(spec, path, cause)),
            None => effective(library, spec, None).map(drop),
        }
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
        let classes = self.classes;
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
        self.spec
            .thresholds
            .classify(&self.probabilities, &mut self.results)
    }
}

/// The plug-in that the device asks for, registered.
fn plugin(library: &Library, spec: &DeviceSpec) -> Result<Option<Plugin>, SessionError> {
    let register = |path: &PathBuf| {
        Plugin::register(library, path).map_err(|cause| refused(spec, path, cause))
    };
    spec.plugin.as_ref().map(register).transpose()
}

fn refused(spec: &DeviceSpec, plugin: &Path, cause: String) -> SessionError {
    SessionError::Plugin {
        device: spec.name.clone(),
        plugin: plugin.to_owned(),
        cause,
    }
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

    fn limit_runs(&mut self, limit: Duration) {
        self.sessions.iter().for_each(|it| it.limit_runs(limit));
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
