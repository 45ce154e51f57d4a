//! From devices as the configuration asks for them to sessions that run the bundle.

use accel::{
    Bundle, Device, FaultyDevice, Profile, SimulatedDevice, Sizes, ThreadedDevice, Thresholds, onnx,
};
use analytics::Accelerator;

use super::threads::{Cores, Role, Thread, pin};
use crate::config::Config;
use crate::config::checked::{self, DeviceThread, Provider};
use crate::exit::Failure;

/// The sessions of one analytics manager, each with the bundle loaded and run once.
///
/// # Errors
/// A library, device or model that cannot be used.
pub fn accelerators(
    config: &Config,
    bundle: &Bundle,
    cores: &Cores,
    instance: usize,
    analytics_manager: usize,
) -> Result<Vec<Accelerator>, Failure> {
    let places = config.pipeline.layout.sessions().into_iter().enumerate();
    let own = places.filter(|(_, place)| place.analytics_manager == analytics_manager);
    own.map(|(i, place)| {
        let role = Role::Session(i);
        let thread = Thread { instance, role };
        let device = &config.accel.devices[place.device];
        accelerator(config, bundle, device, &thread, cores)
    })
    .collect()
}

fn accelerator(
    config: &Config,
    bundle: &Bundle,
    device: &checked::Device,
    thread: &Thread,
    cores: &Cores,
) -> Result<Accelerator, Failure> {
    let mut session: Box<dyn Device> = match device.provider {
        Provider::Simulated => Box::new(SimulatedDevice::new(
            device.simulated,
            sizes(device),
            bundle.shape(),
        )),
        Provider::Onnx(provider) => {
            let spec = onnx::DeviceSpec {
                name: device.name.clone(),
                provider,
                options: device.options.clone(),
                plugin: device.plugin.clone(),
                sizes: sizes(device),
                thresholds: thresholds(config, bundle)?,
            };
            Box::new(onnx_device(config, bundle, spec)?)
        }
    };
    if let Some(faults) = &device.faults {
        session = Box::new(FaultyDevice::new(session, faults.clone()));
    }
    let profile = profile(device);
    let is_own = device.thread == DeviceThread::Own;
    if is_own {
        session = Box::new(on_its_thread(session, thread, cores)?);
    }
    Ok(Accelerator {
        device: session,
        profile,
        // What works inside the analytics thread is back before anybody could give it up.
        deadline: device
            .deadline
            .filter(|_| is_own || device.provider == Provider::Simulated),
    })
}

/// How long batches take, as far as that is known.
fn profile(device: &checked::Device) -> Option<Profile> {
    (device.provider == Provider::Simulated).then_some(device.simulated)
}

fn on_its_thread(
    session: Box<dyn Device>,
    thread: &Thread,
    cores: &Cores,
) -> Result<ThreadedDevice, Failure> {
    let core = cores.of_thread(thread);
    ThreadedDevice::new(session, move |_| pin(core))
        .map_err(|error| Failure::unavailable(format!("no thread {thread}: {error}")))
}

/// The device `cpu` for a bundle, as `model check` uses it.
///
/// # Errors
/// The library or the model cannot be used.
pub fn cpu_device(
    config: &Config,
    bundle: &Bundle,
    sizes: Sizes,
) -> Result<onnx::OnnxDevice, Failure> {
    onnx_device(config, bundle, onnx::DeviceSpec::cpu(bundle, sizes))
}

fn onnx_device(
    config: &Config,
    bundle: &Bundle,
    spec: onnx::DeviceSpec,
) -> Result<onnx::OnnxDevice, Failure> {
    let library = onnx::load(config.accel.library.as_deref())
        .map_err(|error| Failure::unavailable(error.to_string()))?;
    onnx::OnnxDevice::new(&library, bundle, spec).map_err(|error| {
        let message = error.to_string();
        match error {
            onnx::SessionError::Spec { .. } => Failure::config(message),
            onnx::SessionError::NoProvider { .. }
            | onnx::SessionError::Plugin { .. }
            | onnx::SessionError::Provider { .. } => Failure::unavailable(message),
            _ => Failure::data(message),
        }
    })
}

/// Batch sizes that a device takes: the configured ones only, or any up to the largest of them.
fn sizes(device: &checked::Device) -> Sizes {
    let batch_sizes = &device.batch_sizes;
    if device.fixed_sizes {
        Sizes::Fixed(batch_sizes.clone())
    } else {
        let cap = batch_sizes.last().copied().unwrap_or(1);
        Sizes::Any { cap }
    }
}

/// The bundle's least confidences, with the configuration's over them.
///
/// # Errors
/// The configuration names a label that the model does not have.
pub fn thresholds(config: &Config, bundle: &Bundle) -> Result<Thresholds, Failure> {
    let mut thresholds = Thresholds::of(bundle);
    if let Some(least) = config.model.min_confidence {
        thresholds.all(least);
    }
    for entry in &config.model.class_confidence {
        let mut labels = bundle.labels().iter();
        let Some(class) = labels.position(|label| label.name == entry.label) else {
            let labels: Vec<&str> = bundle.labels().iter().map(|l| l.name.as_str()).collect();
            return Err(Failure::config(format!(
                "{}: model.class_confidence: the model {} has no label \"{}\"; it has {}",
                entry.origin,
                bundle.name(),
                entry.label,
                labels.join(", ")
            )));
        };
        thresholds.set(class, entry.confidence);
    }
    Ok(thresholds)
}
