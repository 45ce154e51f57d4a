//! A session of a bundle's model in ONNX Runtime. The model's inputs and output are checked against
//! the bundle.
//!
//! A session uses one thread and does not spin: parallelism comes from several devices, and an idle
//! device must cost nothing. Runs take their input as a borrowed tensor through `Session::run`, so
//! the runtime reads the memory that the caller filled. (Binding a borrowed tensor through
//! `IoBinding` has been seen to hang forever.) For a fixed batch size the output is allocated once
//! and written in place; for a free one the runtime allocates each run's output from its arena.

use std::sync::Arc;
use std::time::Duration;

use ort::memory::Allocator;
use ort::session::builder::{AutoDevicePolicy, GraphOptimizationLevel, SessionBuilder};
use ort::session::{HasSelectedOutputs, OutputSelector, RunOptions};
use ort::value::{Outlet, Tensor, TensorElementType, TensorRef, ValueType};

use super::guard::Guard;
use super::library::Library;
use super::log::{explained, one_line};
use super::plugin::Plugin;
use super::provider::{on_the_cpu, with_provider};
use crate::bundle::Bundle;
use crate::device::Shape;
use crate::provider::{DeviceSpec, OpenError};

/// A bundle's model that agrees with the bundle.
pub(super) struct Model<'a> {
    bundle: &'a Bundle,
    bytes: Vec<u8>,
    /// The model's names for the first dimensions of its inputs; may be empty.
    batch_dimensions: Vec<(&'a str, String)>,
}

impl<'a> Model<'a> {
    /// Reads the model and checks it in a session on the CPU, whatever the device. This
    /// distinguishes a wrong model from a provider that does not support it.
    pub fn check(library: &Library, bundle: &'a Bundle) -> Result<Self, OpenError> {
        let bytes = bundle.read_model()?;
        let session = explained(|| {
            let builder = builder(library, GraphOptimizationLevel::Disable)?;
            on_the_cpu(builder, library)?.commit_from_memory(&bytes)
        })
        .map_err(|cause| {
            let model = bundle.model_path();
            OpenError::Model(format!("{}: refused by ONNX Runtime: {cause}", model.display()))
        })?;
        let shape = bundle.shape();
        let output = ("its output", bundle.output_name(), vec![shape.classes]);
        let mut inputs = vec![("its input", bundle.input_name(), vec![shape.channels, shape.k])];
        if let Some(name) = bundle.context_input_name() {
            inputs[0].0 = "its input of series";
            inputs.push(("its input of context", name, vec![shape.context]));
        }
        check(bundle, session.inputs(), &inputs)?;
        check(bundle, session.outputs(), &[output])?;
        let batch_dimensions = inputs
            .iter()
            .map(|&(_, name, _)| (name, batch_dimension(session.inputs(), name)))
            .collect();
        Ok(Self { bundle, bytes, batch_dimensions })
    }
}

/// A model ready to run on one provider.
pub(super) struct Session {
    inner: ort::session::Session,
    shape: Shape,
    input_name: String,
    /// The name of the second input, if the model has one.
    context_name: Option<String>,
    output_name: String,
    /// Options with preallocated output, if the batch size is fixed. Such runs cannot be stopped,
    /// because `ort` shares only options without memory between threads.
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
    ) -> Result<Self, OpenError> {
        let bundle = model.bundle;
        let nameless = |(_, dimension): &&(&str, String)| dimension.is_empty();
        let nameless = model.batch_dimensions.iter().find(nameless);
        if let (Some(_), Some((input, _))) = (fixed, nameless) {
            return Err(OpenError::Spec(format!(
                "device {}: {}: the batch dimension of its input \"{input}\" has no name, so that \
                 it cannot be fixed; name it when exporting",
                spec.name,
                bundle.model_path().display()
            )));
        }
        let shape = bundle.shape();
        let output_name = bundle.output_name().to_owned();
        let (inner, options, guard) = explained(|| {
            let mut builder = builder(library, GraphOptimizationLevel::All)?;
            let mut options = None;
            if let Some(rows) = fixed {
                for (_, dimension) in &model.batch_dimensions {
                    builder = builder.with_dimension_override(dimension, rows as i64)?;
                }
                options = Some(preallocated(&output_name, [rows, shape.classes])?);
            }
            let mut builder = with_provider(builder, library, spec, plugin)?;
            let inner = builder.commit_from_memory(&model.bytes)?;
            Ok((inner, options, Guard::new()?))
        })
        .map_err(|cause| {
            OpenError::Unavailable(format!(
                "device {}: provider {} does not run {}: {cause}",
                spec.name,
                spec.provider.name,
                bundle.model_path().display()
            ))
        })?;
        Ok(Self {
            inner,
            shape,
            input_name: bundle.input_name().to_owned(),
            context_name: bundle.context_input_name().map(str::to_owned),
            output_name,
            options,
            guard,
        })
    }

    /// Sets how long a run may take from now on.
    pub fn limit_runs(&self, limit: Duration) {
        self.guard.limit(limit);
    }

    /// Runs `rows` rows of input and context and replaces `probabilities` by the outputs.
    pub fn run(
        &mut self,
        rows: usize,
        input: &[f32],
        context: &[f32],
        probabilities: &mut Vec<f32>,
    ) -> Result<(), Failure> {
        let Shape { channels, k, context: numbers, classes } = self.shape;
        let series = TensorRef::from_array_view(([rows, channels, k], input))?;
        let inputs = match &self.context_name {
            None => ort::inputs![self.input_name.as_str() => series],
            Some(name) => {
                let context = TensorRef::from_array_view(([rows, numbers], context))?;
                ort::inputs![self.input_name.as_str() => series, name.as_str() => context]
            }
        };
        let outputs = match &self.options {
            Some(options) => self.inner.run_with_options(inputs, options)?,
            None => {
                let outputs = self.inner.run_with_options(inputs, self.guard.begin()?);
                self.guard.end();
                outputs?
            }
        };
        let Some(output) = outputs.get(&self.output_name) else {
            return Err(Failure::Output(format!("no output \"{}\"", self.output_name)));
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

/// An input or output as the bundle declares it: what it is, its name, and its dimensions after the
/// first.
type Declared<'a> = (&'static str, &'a str, Vec<usize>);

/// Checks that `outlets` are exactly those `declared`, in any order: tensors with these names,
/// float32, with a free first dimension followed by the declared ones.
fn check(bundle: &Bundle, outlets: &[Outlet], declared: &[Declared<'_>]) -> Result<(), OpenError> {
    let disagrees = |what: &str, found: String, expected: String| {
        Err(OpenError::Model(format!(
            "{}: {what} {found}, but model.toml asks for {expected}; the two do not belong \
             together",
            bundle.model_path().display()
        )))
    };
    let names = || outlets.iter().map(Outlet::name).collect::<Vec<_>>();
    for tensor @ (what, name, dimensions) in declared {
        let found = match outlets.iter().find(|outlet| outlet.name() == *name) {
            Some(outlet) if fits(outlet.dtype(), dimensions) => continue,
            Some(outlet) => outlet_is(outlet),
            None => match outlets {
                [] => "is missing".to_owned(),
                [outlet] if declared.len() == 1 => outlet_is(outlet),
                _ => format!("is not among {:?}", names()),
            },
        };
        return disagrees(what, found, expected(tensor));
    }
    if outlets.len() > declared.len() {
        let found = format!("is one of {:?}", names());
        let all: Vec<_> = declared.iter().map(expected).collect();
        return disagrees(declared[0].0, found, format!("only {}", all.join(" and ")));
    }
    Ok(())
}

fn outlet_is(outlet: &Outlet) -> String {
    format!("is \"{}\", {}", outlet.name(), describe(outlet.dtype()))
}

fn expected((_, name, dimensions): &Declared<'_>) -> String {
    let dimensions: String = dimensions.iter().map(|dimension| format!(", {dimension}")).collect();
    format!("\"{name}\", float32 [N{dimensions}] with N free")
}

/// The model's name for the first dimension of this input; may be empty.
fn batch_dimension(inputs: &[Outlet], name: &str) -> String {
    let input = inputs.iter().find(|input| input.name() == name);
    match input.map(Outlet::dtype) {
        Some(ValueType::Tensor { dimension_symbols, .. }) => {
            dimension_symbols.first().cloned().unwrap_or_default()
        }
        _ => String::new(),
    }
}

/// A dimension that the model leaves open (-1) fits any size. The first run shows whether that is
/// true.
fn fits(dtype: &ValueType, dimensions: &[usize]) -> bool {
    let ValueType::Tensor { ty: TensorElementType::Float32, shape, .. } = dtype else {
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
    format!("{ty} [{}]", shape.iter().map(dimension).collect::<Vec<_>>().join(", "))
}
