//! Opens one session of a device: the bundle loaded, and run once.

use accel::{Bundle, Device, SimulatedDevice, Sizes, onnx};
use config::Config;
use config::checked::{self, DeviceThread, Provider};

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
    Ok(match device.provider {
        Provider::Simulated => {
            let simulated = SimulatedDevice::new(device.simulated, sizes(device), bundle.shape());
            Box::new(simulated.with_name(&device.name))
        }
        Provider::Onnx(provider) => {
            let spec = spec(config, bundle, device, provider)?;
            Box::new(onnx_device(config, bundle, spec)?)
        }
    })
}

pub(crate) fn spec(
    config: &Config,
    bundle: &Bundle,
    device: &checked::Device,
    provider: onnx::Provider,
) -> Result<onnx::DeviceSpec, Error> {
    Ok(onnx::DeviceSpec {
        name: device.name.clone(),
        provider,
        options: device.options.clone(),
        plugin: device.plugin.clone(),
        sizes: sizes(device),
        thresholds: thresholds(config, bundle)?,
    })
}

/// The device `cpu` for a bundle, as `model check` uses it.
///
/// # Errors
/// The library or the model cannot be used.
pub fn cpu_device(
    config: &Config,
    bundle: &Bundle,
    sizes: Sizes,
) -> Result<onnx::OnnxDevice, Error> {
    onnx_device(config, bundle, onnx::DeviceSpec::cpu(bundle, sizes))
}

fn onnx_device(
    config: &Config,
    bundle: &Bundle,
    spec: onnx::DeviceSpec,
) -> Result<onnx::OnnxDevice, Error> {
    onnx::OnnxDevice::new(&library(config)?, bundle, spec).map_err(refused)
}

pub(crate) fn library(config: &Config) -> Result<onnx::Library, Error> {
    let library = onnx::load(config.accel.library.as_deref());
    library.map_err(|error| Error::unavailable(error.to_string()))
}

pub(crate) fn refused(error: onnx::SessionError) -> Error {
    let message = error.to_string();
    match error {
        onnx::SessionError::Spec { .. } => Error::config(message),
        onnx::SessionError::NoProvider { .. }
        | onnx::SessionError::Plugin { .. }
        | onnx::SessionError::Provider { .. } => Error::unavailable(message),
        _ => Error::data(message),
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

/// The lane of a device at one of the layout's places. Devices that work on the analytics thread
/// share lane 0. Another device has one of its own in each of its places, which it shares with
/// sessions of the same device for other tasks.
pub fn lane(config: &Config, device: &checked::Device, place: usize) -> u8 {
    if device.thread != DeviceThread::Own {
        return 0;
    }
    let places = config.pipeline.layout.sessions().len();
    let lane = 1 + usize::from(device.number) * places + place;
    u8::try_from(lane).unwrap_or(u8::MAX)
}
