//! Plug-in providers: libraries of their own, which ONNX Runtime 1.22 and later loads at run time.
//!
//! A plug-in searches for its hardware when it is registered, and lists what it found. An empty
//! list is an error here, because a session made for it would silently run on the CPU.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ort::AsPointer;
use ort::device::Device;
use ort::memory::DeviceType;
use ort::session::builder::SessionBuilder;

use super::library::{LOAD_S_MAX, Library, check_regular, within};
use super::log::explained;

/// The plug-ins registered so far, with the names of their providers. A plug-in cannot be
/// registered twice.
static REGISTERED: Mutex<BTreeMap<PathBuf, Vec<String>>> = Mutex::new(BTreeMap::new());

/// The longest name that a plug-in gets. The crate `ort` keeps a provider's name and a dot in 128
/// bytes, and panics beyond that.
const NAME_CHARS_MAX: usize = 31;

/// A registered plug-in.
pub(super) struct Plugin {
    providers: Vec<String>,
}

impl Plugin {
    /// The plug-in's file, absolute and with links resolved.
    pub fn file(path: &Path) -> Result<PathBuf, String> {
        let file = fs::canonicalize(path).map_err(|error| format!("cannot be read: {error}"))?;
        check_regular(&file)?;
        Ok(file)
    }

    /// Registers the library at `path`, if it is not registered yet.
    pub fn register(library: &Library, path: &Path) -> Result<Self, String> {
        let file = Self::file(path)?;
        let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(providers) = registered.get(&file) {
            return Ok(Self { providers: providers.clone() });
        }
        let environment = &library.environment;
        let before: Vec<_> = environment.devices().map(|device| device.ptr()).collect();
        let (shared, own) = (environment.clone(), file.clone());
        within(Duration::from_secs(LOAD_S_MAX), move || {
            explained(|| shared.register_ep_library(name(&own), &own))
        })
        .map_err(|_| format!("was given up: registering it took longer than {LOAD_S_MAX} s"))?
        .map_err(|cause| format!("cannot be registered: {cause}"))?;
        let mut providers: Vec<String> = environment
            .devices()
            .filter(|device| !before.contains(&device.ptr()))
            .filter_map(|device| device.ep().ok().map(str::to_owned))
            .collect();
        providers.dedup();
        registered.insert(file, providers.clone());
        Ok(Self { providers })
    }

    /// The plug-in's devices, NPUs first, then GPUs.
    fn devices<'a>(&self, library: &'a Library) -> Vec<Device<'a>> {
        let mut devices: Vec<_> = library
            .environment
            .devices()
            .filter(|device| {
                device.ep().is_ok_and(|name| self.providers.iter().any(|own| own == name))
            })
            .collect();
        devices.sort_by_key(|device| match device.hardware_device().ty() {
            DeviceType::NPU => 0,
            DeviceType::GPU => 1,
            _ => 2,
        });
        devices
    }

    /// Describes the device that sessions use; none if the plug-in found none.
    pub fn device(&self, library: &Library) -> Option<String> {
        self.devices(library).first().map(describe)
    }

    /// Adds the plug-in's first device to a session.
    pub fn append(
        &self,
        builder: SessionBuilder,
        library: &Library,
        options: &[(String, String)],
    ) -> ort::Result<SessionBuilder> {
        let devices = self.devices(library);
        let Some(provider) = devices.first().and_then(|device| device.ep().ok()) else {
            return Err(ort::Error::new("the plug-in lists no device"));
        };
        let options: Vec<_> = options
            .iter()
            .map(|(key, value)| (format!("{provider}.{key}"), value.clone()))
            .collect();
        Ok(builder.with_devices(devices.into_iter().take(1), Some(&options))?)
    }
}

/// The name by which a plug-in is registered, such as "qnn" for `libonnxruntime_providers_qnn.so`.
/// Some plug-ins use it as the name of their provider.
fn name(file: &Path) -> String {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let stem = stem.strip_prefix("lib").unwrap_or(&stem);
    let name = stem.strip_prefix("onnxruntime_providers_").unwrap_or(stem);
    name.chars().take(NAME_CHARS_MAX).collect()
}

/// Lists the devices that a plug-in library finds on this machine, such as "qnn (NPU, Qualcomm)". A
/// session uses the first.
///
/// # Errors
/// The file does not exist or is not a plug-in that this ONNX Runtime takes.
pub fn plugin_devices(library: &Library, plugin: &Path) -> Result<Vec<String>, String> {
    let registered = Plugin::register(library, plugin)
        .map_err(|cause| format!("{}: {cause}", plugin.display()))?;
    Ok(registered.devices(library).iter().map(describe).collect())
}

fn describe(device: &Device<'_>) -> String {
    let hardware = device.hardware_device();
    let kind = match hardware.ty() {
        DeviceType::CPU => "CPU",
        DeviceType::GPU => "GPU",
        DeviceType::NPU => "NPU",
        _ => "other",
    };
    format!(
        "{} ({kind}, {})",
        device.ep().unwrap_or("unnamed"),
        hardware.vendor().unwrap_or("unknown vendor")
    )
}
