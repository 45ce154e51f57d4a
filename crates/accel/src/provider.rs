//! Providers, the kinds of device, and opening a device of each.

mod check;
mod onnx;

use std::fmt;
use std::path::{Path, PathBuf};

use thiserror::Error;

pub(crate) use self::check::check;
use crate::bundle::{Bundle, BundleError};
use crate::device::{Device, Sizes};
use crate::profile::Profile;
use crate::thresholds::Thresholds;
use crate::{native, simulated};

/// Every provider, in the order in which messages list them. A new kind of device is a file with
/// its [`Provider`], and a line here.
const ALL: [&Provider; 9] = [
    &onnx::CPU,
    &native::NATIVE,
    &onnx::OPENVINO,
    &onnx::CUDA,
    &onnx::TENSORRT,
    &onnx::CANN,
    &onnx::QNN,
    &onnx::PLUGIN,
    &simulated::SIMULATED,
];

/// The names of all providers.
pub const PROVIDERS: [&str; ALL.len()] = {
    let mut names = [""; ALL.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = ALL[i].name;
        i += 1;
    }
    names
};

/// The names of the devices where nobody names any: a model that the first does not take
/// ([`native_takes`](crate::native_takes)) runs on the second.
pub const DEFAULTS: [&str; 2] = [native::NATIVE.name, onnx::CPU.name];

/// A kind of device. All that the rest of fenxi knows of it stands here.
pub struct Provider {
    /// Name in the configuration.
    pub name: &'static str,
    /// Whether it runs the model; otherwise its answers mean nothing.
    pub computes: bool,
    /// Whether it computes on the CPU, on the thread that submits the batch.
    pub is_cpu: bool,
    /// Whether it compiles a model for one batch size at a time.
    pub needs_fixed_sizes: bool,
    /// Whether it needs ONNX Runtime.
    pub needs_library: bool,
    /// Whether a row takes so little time that no batch pays, and is done when it was submitted.
    pub answers_at_once: bool,
    /// Whether it needs [`DeviceSpec::plugin`].
    pub needs_plugin: bool,
    pub(crate) open: Open,
    /// Checks what can be checked without the device; none where opening is cheap.
    pub(crate) probe: Option<Probe>,
}

type Open = fn(&DeviceSpec, &Bundle) -> Result<Box<dyn Device>, OpenError>;
type Probe = fn(&DeviceSpec, &Bundle) -> Result<(), OpenError>;

impl Provider {
    /// Every provider.
    pub fn all() -> impl Iterator<Item = &'static Provider> {
        ALL.into_iter()
    }

    /// The provider with this name in the configuration.
    pub fn parse(name: &str) -> Option<&'static Provider> {
        Self::all().find(|provider| provider.name == name)
    }

    /// The version of ONNX Runtime, such as "1.31.1"; empty if it has none or is not needed.
    ///
    /// # Errors
    /// The library cannot be loaded.
    pub fn library_version(&self, library: Option<&Path>) -> Result<String, OpenError> {
        if !self.needs_library {
            return Ok(String::new());
        }
        let library = crate::onnx::load(library)?;
        Ok(library.version().unwrap_or_default().to_owned())
    }
}

impl PartialEq for Provider {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The specification of a device.
#[derive(Clone, Debug)]
pub struct DeviceSpec {
    /// The device's name in the configuration: "cpu", or one that the user chose.
    pub name: String,
    /// The provider that runs the model.
    pub provider: &'static Provider,
    /// Options for the provider, passed on unchanged.
    pub options: Vec<(String, String)>,
    /// The library of ONNX Runtime; none to search for it.
    pub library: Option<PathBuf>,
    /// The library of a plug-in provider.
    pub plugin: Option<PathBuf>,
    /// The batch sizes that the device takes.
    pub sizes: Sizes,
    /// The minimum confidence of each class.
    pub thresholds: Thresholds,
    /// How long batches take on a device that runs no model.
    pub simulated: Profile,
}

impl DeviceSpec {
    /// The device `cpu`, with the bundle's thresholds.
    pub fn cpu(bundle: &Bundle, sizes: Sizes) -> Self {
        Self {
            name: onnx::CPU.name.to_owned(),
            provider: &onnx::CPU,
            options: Vec::new(),
            library: None,
            plugin: None,
            sizes,
            thresholds: Thresholds::from_bundle(bundle),
            simulated: Profile::default(),
        }
    }
}

/// Why a device cannot be opened, in one line.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The specification contradicts itself or the provider.
    #[error("{0}")]
    Spec(String),
    /// This machine or this build lacks what the device needs.
    #[error("{0}")]
    Unavailable(String),
    /// The model cannot be read, or is not what the bundle says.
    #[error("{0}")]
    Model(String),
}

impl From<BundleError> for OpenError {
    fn from(error: BundleError) -> Self {
        Self::Model(error.to_string())
    }
}

/// Opens a device with the bundle's model, which has run once. It works on the calling thread.
///
/// # Errors
/// The device is not available as specified, or does not run the model.
pub fn open(spec: &DeviceSpec, bundle: &Bundle) -> Result<Box<dyn Device>, OpenError> {
    (spec.provider.open)(spec, bundle)
}

/// Checks what can be checked without the device, which may be in use or take minutes to open. A
/// device that opens at once is opened.
///
/// # Errors
/// The errors of [`open`] that show without the device.
pub fn probe(spec: &DeviceSpec, bundle: &Bundle) -> Result<(), OpenError> {
    match spec.provider.probe {
        Some(probe) => probe(spec, bundle),
        None => open(spec, bundle).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_is_found_by_its_name() {
        for (provider, name) in Provider::all().zip(PROVIDERS) {
            assert_eq!(Provider::parse(name), Some(provider));
        }
        assert_eq!(Provider::parse("gpu"), None);
    }
}
