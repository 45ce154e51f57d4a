//! A session of a bundle's model in ONNX Runtime. The model's input and output are checked against the bundle.
//!
//! A session uses one thread and does not spin: parallelism comes from several devices, and an idle device must cost
//! nothing. Runs take their input as a borrowed tensor through `Session::run`, so the runtime reads the memory that the
//! caller filled. (Binding a borrowed tensor through `IoBinding` has been seen to hang forever.) For a fixed batch size
//! the output is allocated once and written in place; for a free one the runtime allocates each run's output from its
//! arena.

use std::sync::Arc;
use std::time::Duration;

use ort::memory::Allocator;
use ort::session::builder::{AutoDevicePolicy, GraphOptimizationLevel, SessionBuilder};
use ort::session::{HasSelectedOutputs, OutputSelector, RunOptions};
use ort::value::{Outlet, Tensor, TensorElementType, TensorRef, ValueType};

use super::error::SessionError;
use super::guard::Guard;
use super::library::Library;
use super::log::{explained, one_line};
use super::plugin::Plugin;
use super::provider::{on_the_cpu, with_provider};
use super::spec::DeviceSpec;
use crate::bundle::Bundle;
use crate::device::Shape;

/// A bundle's model that agrees with the bundle.
pub(super) struct Model<'a> {
    bundle: &'a Bundle,
    bytes: Vec<u8>,
    /// The model's name for its first dimension; may be empty.
    batch_dimension: String,
}

impl<'a> Model<'a> {
    /// Reads the model and checks it in a session on the CPU, whatever the device. This distinguishes a wrong model
    /// from a provider that does not support it.
    pub fn check(library: &Library, bundle: &'a Bundle) -> Result<Self, SessionError> {
        let bytes = bundle.read_model()?;
        let session = explained(|| {
            let builder = builder(library, GraphOptimizationLevel::Disable)?;
            on_the_cpu(builder, library)?.commit_from_memory(&bytes)
        })
        .map_err(|cause| SessionError::Refused {
            model: bundle.model_path().display().to_string(),
            cause,
        })?;
        let shape = bundle.shape();
        let input = (
            "its input",
            bundle.input_name(),
            vec![shape.channels, shape.k],
        );
        check(bundle, session.inputs(), input)?;
        let output = ("its output", bundle.output_name(), vec![shape.classes]);
        check(bundle, session.outputs(), output)?;
        let batch_dimension = match session.inputs().first().map(Outlet::dtype) {
            Some(ValueType::Tensor {
                dimension_symbols, ..
            }) => dimension_symbols.first().cloned().unwrap_or_default(),
            _ => String::new(),
        };
        Ok(Self {
            bundle,
            bytes,
            batch_dimension,
        })
    }
}

/// A model ready to run on one provider.
pub(super) struct Session {
    inner: ort::session::Session,
    shape: Shape,
    input_name: String,
    output_name: String,
    /// Options with preallocated output, if the batch size is fixed. Such runs cannot be stopped, because `ort` shares
    /// only options without memory between threads.
    options: Option<RunOptions<HasSelectedOutputs>>,
    /// Stops runs that take too long, if the batch size is free.
    guard: Arc<Guard>,
}

impl Session {
    /// Makes a session for batches of any size, or of `fixed` rows only.
    pub fn new(
        library: &Library,
        model: &Model<'_>,
        spec: &DeviceSpec,
        plugin: Option<&Plugin>,
        fixed: Option<usize>,
    ) -> Result<Self, SessionError> {
        let bundle = model.bundle;
        if fixed.is_some() && model.batch_dimension.is_empty() {
            let problem = format!(
                "{}: the batch dimension of its input has no name, so that it cannot be fixed; name it when exporting",
                bundle.model_path().display()
            );
            return Err(SessionError::Spec {
                device: spec.name.clone(),
                problem,
            });
        }
        let shape = bundle.shape();
        let output_name = bundle.output_name().to_owned();
        let (inner, options, guard) = explained(|| {
            let mut builder = builder(library, GraphOptimizationLevel::All)?;
            let mut options = None;
            if let Some(rows) = fixed {
                builder = builder.with_dimension_override(&model.batch_dimension, rows as i64)?;
                options = Some(preallocated(&output_name, [rows, shape.classes])?);
            }
            let mut builder = with_provider(builder, library, spec, plugin)?;
            let inner = builder.commit_from_memory(&model.bytes)?;
            Ok((inner, options, Guard::new()?))
        })
        .map_err(|cause| SessionError::Provider {
            device: spec.name.clone(),
            provider: spec.provider.name(),
            model: bundle.model_path().display().to_string(),
            cause,
        })?;
        Ok(Self {
            inner,
            shape,
            input_name: bundle.input_name().to_owned(),
            output_name,
            options,
            guard,
        })
    }

    /// Sets how long a run may take from now on.
    pub fn limit_runs(&self, limit: Duration) {
        self.guard.limit(limit);
    }

    /// Runs `rows` rows of input and replaces `probabilities` by the outputs.
    pub fn run(
        &mut self,
        rows: usize,
        input: &[f32],
        probabilities: &mut Vec<f32>,
    ) -> Result<(), Failure> {
        let Shape {
            channels,
            k,
            classes,
        } = self.shape;
        let tensor = TensorRef::from_array_view(([rows, channels, k], input))?;
        let inputs = ort::inputs![self.input_name.as_str() => tensor];
        let outputs = match &self.options {
            Some(options) => self.inner.run_with_options(inputs, options)?,
            None => {
                let outputs = self.inner.run_with_options(inputs, self.guard.begin()?);
                self.guard.end();
                outputs?
            }
        };
        let Some(output) = outputs.get(&self.output_name) else {
            return Err(Failure::Output(format!(
                "no output \"{}\"",
                self.output_name
            )));
        };
        let (shape, values) = output
            .try_extract_tensor::<f32>()
            .map_err(|_| Failure::Output(describe(output.dtype())))?;
        if **shape != [rows as i64, classes as i64] {
            return Err(Failure::Output(describe(output.dtype())));
        }
        probabilities.clear();
        probabilities.extend_from_slice(values);
        Ok(())
    }
}

/// Why a run failed; the caller adds the device.
pub(super) enum Failure {
    /// The runtime failed with this message.
    Run(String),
    /// The output has a wrong type or shape, described here.
    Output(String),
}

impl From<ort::Error> for Failure {
    fn from(error: ort::Error) -> Self {
        Self::Run(one_line(error.message()))
    }
}

fn builder(library: &Library, level: GraphOptimizationLevel) -> ort::Result<SessionBuilder> {
    Ok(ort::session::Session::builder(&library.environment)?
        // By default `ort` lets the runtime choose among the devices of all registered plug-ins.
        .with_auto_device(AutoDevicePolicy::PreferCPU)?
        .with_optimization_level(level)?
        .with_intra_threads(1)?
        .with_inter_threads(1)?
        .with_intra_op_spinning(false)?
        .with_inter_op_spinning(false)?
        // The bundle was checked as ONNX, so the runtime must not read it as its own format.
        .with_config_entry("session.load_model_format", "ONNX")?)
}

/// Options of a run that always writes its output, of this name and shape, to the same memory.
fn preallocated(name: &str, shape: [usize; 2]) -> ort::Result<RunOptions<HasSelectedOutputs>> {
    let output = Tensor::<f32>::new(&Allocator::default(), shape)?;
    Ok(RunOptions::new()?.with_outputs(OutputSelector::default().preallocate(name, output)))
}

/// Checks that `outlets` is exactly one tensor with this name, float32, with a free first dimension followed by
/// `dimensions`.
fn check(
    bundle: &Bundle,
    outlets: &[Outlet],
    (what, name, dimensions): (&'static str, &str, Vec<usize>),
) -> Result<(), SessionError> {
    let found = match outlets {
        [outlet] if outlet.name() == name && fits(outlet.dtype(), &dimensions) => return Ok(()),
        [] => "is missing".to_owned(),
        [outlet] => format!("is \"{}\", {}", outlet.name(), describe(outlet.dtype())),
        several => {
            let names: Vec<_> = several.iter().map(Outlet::name).collect();
            format!("is not one but {names:?}")
        }
    };
    let dimensions: String = dimensions
        .iter()
        .map(|dimension| format!(", {dimension}"))
        .collect();
    let expected = format!("\"{name}\", float32 [N{dimensions}] with N free");
    Err(SessionError::Disagrees {
        model: bundle.model_path().display().to_string(),
        what,
        found,
        expected,
    })
}

/// A dimension that the model leaves open (-1) fits any size. The first run shows whether that is true.
fn fits(dtype: &ValueType, dimensions: &[usize]) -> bool {
    let ValueType::Tensor {
        ty: TensorElementType::Float32,
        shape,
        ..
    } = dtype
    else {
        return false;
    };
    let [batch, rest @ ..] = &shape[..] else {
        return false;
    };
    let fit =
        |(&found, &expected): (&i64, &usize)| found == -1 || usize::try_from(found) == Ok(expected);
    *batch == -1 && rest.len() == dimensions.len() && rest.iter().zip(dimensions).all(fit)
}

/// A type as errors show it: `float32 [N, 1, 10]`.
fn describe(dtype: &ValueType) -> String {
    let ValueType::Tensor { ty, shape, .. } = dtype else {
        return format!("{dtype}");
    };
    let ty = match ty {
        TensorElementType::Float32 => "float32".to_owned(),
        other => other.to_string(),
    };
    let dimension = |&d: &i64| if d < 0 { "N".to_owned() } else { d.to_string() };
    format!(
        "{ty} [{}]",
        shape.iter().map(dimension).collect::<Vec<_>>().join(", ")
    )
}
