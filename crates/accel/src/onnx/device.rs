//! A bundle on one device of ONNX Runtime.
//!
//! The device has no thread: [`Device::submit`] runs the batch on the caller's thread, and the next
//! [`Device::poll`] returns the results.
//!
//! A device that takes any batch size has one session with a free batch axis, which costs nothing
//! on a CPU. It pads only a single row, to two, and only on the CPU. A device of fixed sizes has
//! one session per size, each compiled for that size. All sessions read the same buffers of input
//! and context, which the caller fills.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::library::{Library, load};
use super::plugin::Plugin;
use super::provider::{is_compiled_in, providers, runtime_name};
use super::session::{Failure, Model, Session};
use crate::bundle::Bundle;
use crate::device::{Classification, Device, DeviceError, Shape, Sizes};
use crate::provider::{DeviceSpec, OpenError, check};

/// The fewest rows that the provider `cpu` runs. MLAS, which multiplies matrices for ONNX Runtime,
/// may compute a product of one row (`M == 1` in its `sgemm.cpp`) with a special kernel,
/// `SgemmKernelM1` or `MlasGemvFloatKernel` depending on the processor, while its kernels for more
/// rows treat all rows alike. So a row alone could differ in its last bits from the same row in a
/// batch.
const RUN_ROWS_MIN: usize = 2;

/// Opens a device for [`crate::open`].
pub(crate) fn open(spec: &DeviceSpec, bundle: &Bundle) -> Result<Box<dyn Device>, OpenError> {
    let library = load(spec.library.as_deref())?;
    Ok(Box::new(OnnxDevice::new(&library, bundle, spec.clone())?))
}

/// Checks the specification and the model, and that the loaded library has the provider or the
/// plug-in's file exists.
pub(crate) fn probe(spec: &DeviceSpec, bundle: &Bundle) -> Result<(), OpenError> {
    let library = load(spec.library.as_deref())?;
    check(spec, bundle)?;
    Model::check(&library, bundle)?;
    match &spec.plugin {
        Some(path) => {
            Plugin::file(path).map_err(|cause| refused(spec, path, &cause))?;
        }
        None => {
            effective(&library, spec, None)?;
        }
    }
    Ok(())
}

/// A bundle on one device.
pub struct OnnxDevice {
    spec: DeviceSpec,
    effective: String,
    /// One session for all sizes, or one per fixed size, in their order.
    sessions: Vec<Session>,
    shape: Shape,
    rows_min: usize,
    /// Holds the largest batch, and at least one padded row.
    input: Vec<f32>,
    /// As `input`; empty for a model without context.
    context: Vec<f32>,
    probabilities: Vec<f32>,
    results: Vec<Classification>,
    /// What the next poll returns: whether `results` are valid, if a batch was submitted.
    outcome: Option<Result<(), DeviceError>>,
}

impl OnnxDevice {
    /// Loads the bundle's model as `spec` says and runs it once on the golden inputs, at every
    /// fixed size or at the largest. So a model that cannot run is refused here, and memory is
    /// allocated now.
    ///
    /// # Errors
    /// The device is not available as requested, or the model cannot be loaded, disagrees with the
    /// bundle, or fails its first run.
    pub fn new(library: &Library, bundle: &Bundle, spec: DeviceSpec) -> Result<Self, OpenError> {
        check(&spec, bundle)?;
        let model = Model::check(library, bundle)?;
        let plugin = plugin(library, &spec)?;
        let effective = effective(library, &spec, plugin.as_ref())?;
        let rows_min = if spec.provider.is_cpu { RUN_ROWS_MIN } else { 1 };
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
            shape,
            rows_min,
            input: vec![0.0; room * shape.row_len()],
            context: vec![0.0; room * shape.context],
            probabilities: Vec::with_capacity(room * shape.classes),
            results: Vec::with_capacity(spec.sizes.largest()),
            outcome: None,
            spec,
        };
        device.warm_up(bundle)?;
        Ok(device)
    }

    /// Runs each session once.
    fn warm_up(&mut self, bundle: &Bundle) -> Result<(), OpenError> {
        bundle.golden().fill(&mut self.input, &mut self.context);
        let sizes = match &self.spec.sizes {
            Sizes::Any { cap } => vec![*cap],
            Sizes::Fixed(sizes) => sizes.clone(),
        };
        for rows in sizes {
            self.run(rows).map_err(|cause| {
                let model = bundle.model_path();
                OpenError::Model(format!("{}: a first run failed: {cause}", model.display()))
            })?;
        }
        Ok(())
    }

    /// Runs the first rows of `input` into `results`.
    fn run(&mut self, rows: usize) -> Result<(), DeviceError> {
        let run_rows = rows.max(self.rows_min);
        if rows < run_rows {
            // Any row would do; a copy of the first is certainly an input that the model takes.
            let (row_len, context) = (self.shape.row_len(), self.shape.context);
            self.input.copy_within(..row_len, row_len);
            self.context.copy_within(..context, context);
        }
        let session = match &self.spec.sizes {
            Sizes::Any { .. } => 0,
            Sizes::Fixed(sizes) => sizes.partition_point(|&size| size < rows),
        };
        let classes = self.shape.classes;
        let input = &self.input[..run_rows * self.shape.row_len()];
        let context = &self.context[..run_rows * self.shape.context];
        self.sessions[session].run(run_rows, input, context, &mut self.probabilities).map_err(
            |failure| {
                let device = self.spec.name.clone();
                let rows = run_rows;
                match failure {
                    Failure::Run(cause) => DeviceError::Run { device, rows, cause },
                    Failure::Output(found) => DeviceError::Output { device, rows, classes, found },
                }
            },
        )?;
        self.probabilities.truncate(rows * classes);
        self.spec.thresholds.classify(&self.probabilities, &mut self.results)
    }
}

/// Registers the plug-in that the spec names.
fn plugin(library: &Library, spec: &DeviceSpec) -> Result<Option<Plugin>, OpenError> {
    let register = |path: &PathBuf| {
        Plugin::register(library, path).map_err(|cause| refused(spec, path, &cause))
    };
    spec.plugin.as_ref().map(register).transpose()
}

/// A plug-in provider library that cannot be used.
fn refused(spec: &DeviceSpec, plugin: &Path, cause: &str) -> OpenError {
    OpenError::Unavailable(format!("device {}: {}: {cause}", spec.name, plugin.display()))
}

/// What will run the model, as far as it is known. An error if it does not exist.
fn effective(
    library: &Library,
    spec: &DeviceSpec,
    plugin: Option<&Plugin>,
) -> Result<String, OpenError> {
    if let (Some(plugin), Some(path)) = (plugin, &spec.plugin) {
        let none = "finds no device that it can run on in this machine";
        return plugin.device(library).ok_or_else(|| refused(spec, path, none));
    }
    let name = runtime_name(spec.provider).filter(|_| is_compiled_in(spec.provider));
    let Some(name) = name else {
        return Err(OpenError::Unavailable(format!(
            "device {}: {} has no provider {} (it has {}); load an ONNX Runtime that was built \
             with it",
            spec.name,
            library.path().display(),
            spec.provider.name,
            providers(library).join(", ")
        )));
    };
    // The options that choose one of several devices, in OpenVINO and in the others.
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
        &mut self.input[..rows * self.shape.row_len()]
    }

    fn context(&mut self, rows: usize) -> &mut [f32] {
        &mut self.context[..rows * self.shape.context]
    }

    fn submit(&mut self, rows: usize) -> Result<(), DeviceError> {
        self.accepts(rows)?;
        self.outcome = Some(self.run(rows));
        Ok(())
    }

    fn poll(&mut self) -> Option<Result<&[Classification], DeviceError>> {
        let outcome = self.outcome.take()?;
        Some(outcome.map(|()| self.results.as_slice()))
    }

    fn probabilities(&mut self) -> &[f32] {
        &self.probabilities
    }
}
