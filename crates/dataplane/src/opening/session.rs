//! Opens one session of a device: the bundle loaded, and run once.

use accel::{Bundle, Device, DeviceSpec, OpenError, Provider, Sizes};
use config::Config;
use config::checked::{self, DeviceThread};

use crate::Error;
use crate::opening::bundle::thresholds;

/// A device with the bundle loaded and run once; it works on the calling thread.
///
/// # Errors
/// A library, device or model that cannot be used.
pub fn session(
    config: &Config,
    bundle: &Bundle,
    device: &checked::Device,
) -> Result<Box<dyn Device>, Error> {
    let opened = accel::open(&spec(config, bundle, device)?, bundle);
    opened.map_err(|error| not_opened(config, error))
}

/// Why a device of the only task of `config` is not opened; if the model decided on the device,
/// also why it did.
pub(crate) fn not_opened(config: &Config, error: OpenError) -> Error {
    let why = config.tasks.first().map_or("", |task| &*task.devices_why);
    match error {
        OpenError::Unavailable(message) if !why.is_empty() => {
            Error::unavailable(format!("{message} ({why})"))
        }
        error => refused(error),
    }
}

pub(crate) fn spec(
    config: &Config,
    bundle: &Bundle,
    device: &checked::Device,
) -> Result<DeviceSpec, Error> {
    Ok(DeviceSpec {
        name: device.name.clone(),
        provider: device.provider,
        options: device.options.clone(),
        library: config.accel.library.clone(),
        plugin: device.plugin.clone(),
        sizes: sizes(device),
        thresholds: thresholds(config, bundle)?,
        simulated: device.simulated,
    })
}

/// The device `cpu` for a bundle.
///
/// # Errors
/// The library or the model cannot be used.
pub fn cpu_device(
    config: &Config,
    bundle: &Bundle,
    sizes: Sizes,
) -> Result<Box<dyn Device>, Error> {
    let cpu = DeviceSpec::cpu(bundle, sizes.clone()).provider;
    plain_device(config, cpu, bundle, sizes)
}

/// A device of a provider that needs no `[device.NAME]`, as `model check` uses it.
///
/// # Errors
/// The library or the model cannot be used.
pub fn plain_device(
    config: &Config,
    provider: &'static Provider,
    bundle: &Bundle,
    sizes: Sizes,
) -> Result<Box<dyn Device>, Error> {
    let library = config.accel.library.clone();
    let name = provider.name.to_owned();
    let spec = DeviceSpec { name, provider, library, ..DeviceSpec::cpu(bundle, sizes) };
    accel::open(&spec, bundle).map_err(refused)
}

pub(crate) fn refused(error: OpenError) -> Error {
    let message = error.to_string();
    match error {
        OpenError::Spec(_) => Error::config(message),
        OpenError::Unavailable(_) => Error::unavailable(message),
        OpenError::Model(_) => Error::data(message),
    }
}

/// Batch sizes that a device takes: the configured ones only, or any up to the largest of them.
pub fn sizes(device: &checked::Device) -> Sizes {
    let batch_sizes = &device.batch_sizes;
    if device.fixed_sizes {
        Sizes::Fixed(batch_sizes.clone())
    } else {
        let cap = batch_sizes.last().copied().unwrap_or(1);
        Sizes::Any { cap }
    }
}

/// The executor of a device at one of the layout's places. Devices that work on the analytics
/// thread share executor 0. Another device has one of its own in each of its places, which it
/// shares with sessions of the same device for other tasks.
pub fn executor(config: &Config, device: &checked::Device, place: usize) -> u8 {
    if device.thread != DeviceThread::Own {
        return 0;
    }
    let places = config.pipeline.layout.sessions().len();
    let executor = 1 + usize::from(device.number) * places + place;
    u8::try_from(executor).unwrap_or(u8::MAX)
}
