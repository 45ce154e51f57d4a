//! A bundle's model in ONNX Runtime, with its input and output checked against the bundle.
//!
//! One thread, no spinning: parallelism comes from several devices, and an idle one must cost nothing. Runs take their
//! input as a borrowed tensor by `Session::run`; binding a borrowed tensor by `IoBinding` has been seen to hang for ever.
//! The runtime allocates each run's output itself.

use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use ort::value::{Outlet, TensorElementType, TensorRef, ValueType};
use thiserror::Error;

use super::library::{Library, one_line};
use crate::bundle::{Bundle, BundleError};
use crate::device::{DeviceError, Shape};

/// Why a bundle's model cannot be run.
#[derive(Debug, Error)]
pub enum SessionError {
    /// The model's file is not the one that was opened, or is gone.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// ONNX Runtime does not take the model.
    #[error("{model}: refused by ONNX Runtime: {cause}")]
    Refused {
        /// The model's file.
        model: String,
        /// What the runtime said.
        cause: String,
    },
    /// The model's inputs or outputs are not those of the manifest.
    #[error(
        "{model}: {what} {found}, but model.toml asks for {expected}; the two do not belong together"
    )]
    Disagrees {
        /// The model's file.
        model: String,
        /// Which part.
        what: &'static str,
        /// As in the model.
        found: String,
        /// As in the manifest.
        expected: String,
    },
    /// The model loads but a first run failed.
    #[error("{model}: a first run failed: {cause}")]
    FirstRun {
        /// The model's file.
        model: String,
        /// What went wrong.
        cause: DeviceError,
    },
}

/// A model ready to run, known to agree with its bundle.
pub(super) struct Session {
    inner: ort::session::Session,
    shape: Shape,
    input_name: String,
    output_name: String,
}

impl Session {
    pub fn new(library: &Library, bundle: &Bundle) -> Result<Self, SessionError> {
        let model = bundle.read_model()?;
        let refused = |error: ort::Error| SessionError::Refused {
            model: bundle.model_path().display().to_string(),
            cause: one_line(error.message()),
        };
        let inner = builder(library)
            .and_then(|mut builder| builder.commit_from_memory(&model))
            .map_err(refused)?;
        let shape = bundle.shape();
        let input = (
            "its input",
            bundle.input_name(),
            vec![shape.channels, shape.k],
        );
        check(bundle, inner.inputs(), input)?;
        let output = ("its output", bundle.output_name(), vec![shape.classes]);
        check(bundle, inner.outputs(), output)?;
        let (input_name, output_name) = (
            bundle.input_name().to_owned(),
            bundle.output_name().to_owned(),
        );
        Ok(Self {
            inner,
            shape,
            input_name,
            output_name,
        })
    }

    /// Replaces `probabilities` by the outputs for `rows` rows of input.
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
        let outputs = self
            .inner
            .run(ort::inputs![self.input_name.as_str() => tensor])?;
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

/// Why a run gave nothing, before the device that it ran on is known.
pub(super) enum Failure {
    /// The runtime failed, with its message.
    Run(String),
    /// The output has the wrong type or shape, with a description.
    Output(String),
}

impl From<ort::Error> for Failure {
    fn from(error: ort::Error) -> Self {
        Self::Run(one_line(error.message()))
    }
}

fn builder(library: &Library) -> ort::Result<SessionBuilder> {
    Ok(ort::session::Session::builder(&library.environment)?
        .with_optimization_level(GraphOptimizationLevel::All)?
        .with_intra_threads(1)?
        .with_inter_threads(1)?
        .with_intra_op_spinning(false)?
        .with_inter_op_spinning(false)?)
}

/// Checks that `outlets` is exactly one of the given name, float32, with a free first dimension and then `dimensions`.
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

/// A dimension that the model leaves open (-1) fits everything; the first run shows whether it is true.
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

/// A type in the notation of the messages: `float32 [N, 1, 10]`.
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
