//! Why a bundle cannot be run on a device.

use std::path::PathBuf;

use thiserror::Error;

use crate::bundle::BundleError;
use crate::device::DeviceError;

/// Why a bundle's model cannot be run on the device asked for. No device is made then: nothing runs elsewhere instead.
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
    /// The device was asked for in a way that it can never have.
    #[error("device {device}: {problem}")]
    Spec {
        /// The device as requested.
        device: String,
        /// What is wrong, and what to write instead.
        problem: String,
    },
    /// The loaded library was built without the provider.
    #[error(
        "device {device}: {} has no provider {provider} (it has {}); load an ONNX Runtime that was built with it",
        library.display(), available.join(", ")
    )]
    NoProvider {
        /// The device as requested.
        device: String,
        /// The provider, by its name in the configuration.
        provider: &'static str,
        /// The library in use.
        library: PathBuf,
        /// The providers that it has, by their names in ONNX Runtime.
        available: Vec<String>,
    },
    /// A plug-in provider library cannot be used.
    #[error("device {device}: {}: {cause}", plugin.display())]
    Plugin {
        /// The device as requested.
        device: String,
        /// The plug-in's file.
        plugin: PathBuf,
        /// Why not.
        cause: String,
    },
    /// The provider is there and does not run the model: an option that it does not know, a toolkit or a device that is
    /// missing, or a part of the model that it would leave to the CPU.
    #[error("device {device}: provider {provider} does not run {model}: {cause}")]
    Provider {
        /// The device as requested.
        device: String,
        /// The provider, by its name in the configuration.
        provider: &'static str,
        /// The model's file.
        model: String,
        /// What the provider said.
        cause: String,
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
