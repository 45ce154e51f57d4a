//! Why a bundle cannot run on a device.

use std::path::PathBuf;

use thiserror::Error;

use crate::bundle::BundleError;
use crate::device::DeviceError;
use crate::provider::OpenError;

/// Why a bundle's model cannot run on the requested device. No device is made then: the model never
/// runs elsewhere instead.
#[derive(Debug, Error)]
pub enum SessionError {
    /// The model's file has changed since the bundle was opened, or is gone.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// ONNX Runtime refuses the model.
    #[error("{model}: refused by ONNX Runtime: {cause}")]
    Refused {
        /// The model's file.
        model: String,
        /// Message of the runtime.
        cause: String,
    },
    /// The model's inputs or outputs differ from the manifest.
    #[error(
        "{model}: {what} {found}, but model.toml asks for {expected}; the two do not belong \
         together"
    )]
    Disagrees {
        /// The model's file.
        model: String,
        /// Input or output.
        what: &'static str,
        /// What the model has.
        found: String,
        /// What the manifest says.
        expected: String,
    },
    /// The request contradicts itself or the kind of device.
    #[error("device {device}: {problem}")]
    Spec {
        /// The device as requested.
        device: String,
        /// What is wrong and how to correct it.
        problem: String,
    },
    /// The loaded library was built without the provider.
    #[error(
        "device {device}: {} has no provider {provider} (it has {}); load an ONNX Runtime that was \
         built with it",
        library.display(), available.join(", ")
    )]
    NoProvider {
        /// The device as requested.
        device: String,
        /// The provider's name in the configuration.
        provider: &'static str,
        /// The library in use.
        library: PathBuf,
        /// The providers that the library has, by their names in ONNX Runtime.
        available: Vec<String>,
    },
    /// A plug-in provider library cannot be used.
    #[error("device {device}: {}: {cause}", plugin.display())]
    Plugin {
        /// The device as requested.
        device: String,
        /// The plug-in's file.
        plugin: PathBuf,
        /// Why it cannot be used.
        cause: String,
    },
    /// The provider exists but does not run the model: it does not know an option, a toolkit or a
    /// device is missing, or it would leave a part of the model to the CPU.
    #[error("device {device}: provider {provider} does not run {model}: {cause}")]
    Provider {
        /// The device as requested.
        device: String,
        /// The provider's name in the configuration.
        provider: &'static str,
        /// The model's file.
        model: String,
        /// Message of the provider.
        cause: String,
    },
    /// The model was loaded, but its first run failed.
    #[error("{model}: a first run failed: {cause}")]
    FirstRun {
        /// The model's file.
        model: String,
        /// What went wrong.
        cause: DeviceError,
    },
}

impl From<SessionError> for OpenError {
    fn from(error: SessionError) -> Self {
        let message = error.to_string();
        match error {
            SessionError::Spec { .. } => Self::Spec(message),
            SessionError::NoProvider { .. }
            | SessionError::Plugin { .. }
            | SessionError::Provider { .. } => Self::Unavailable(message),
            SessionError::Bundle(_)
            | SessionError::Refused { .. }
            | SessionError::Disagrees { .. }
            | SessionError::FirstRun { .. } => Self::Model(message),
        }
    }
}
