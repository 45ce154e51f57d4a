//! Opens the devices of analytics managers.

use std::collections::BTreeSet;

use accel::{Bundle, Device, FaultyDevice, ThreadedDevice, check_golden};
use analytics::Accelerator;

use crate::Error;
use crate::opening::inline;
use crate::opening::profiles::{Profiles, profile_of_file};
use crate::opening::session::{executor, not_opened, session, spec};
use crate::placement::{Cores, Role, Thread, pin, rename};
use config::Config;
use config::checked::{self, DeviceThread};

/// Opens sessions.
#[derive(Clone, Copy)]
pub struct Opener<'a> {
    /// The devices and the settings that they share.
    pub config: &'a Config,
    /// The model.
    pub bundle: &'a Bundle,
    /// Where device threads run.
    pub cores: &'a Cores,
    /// Whether each session must give the bundle's golden outputs before it is used. A model that
    /// is swapped in needs this, because nobody has run `fenxi model check` on it.
    pub golden_test: bool,
    /// How long batches take.
    pub profiles: &'a Profiles,
}

impl Opener<'_> {
    /// The sessions of one analytics manager, each with the bundle loaded and run once; the one of
    /// a flow manager that answers at once.
    ///
    /// # Errors
    /// A library, device or model that cannot be used.
    pub fn accelerators(&self, manager: &Thread) -> Result<Vec<Accelerator>, Error> {
        if let Role::Flow(_) = manager.role {
            let devices = self.config.accel.devices.iter().take(1);
            if let Some(device) = devices.clone().find(|it| !inline::answers_at_once(it)) {
                let why = self.config.tasks.first().map_or("", |task| &*task.devices_why);
                return Err(Error::config(format!(
                    "labels are inline (pipeline.layout), and device {} does not answer at once \
                     ({why}); restart with pipeline.layout = \"1:1:1\" for this model",
                    device.name
                )));
            }
            return devices.map(|device| self.accelerator(device, manager)).collect();
        }
        let places = self.config.pipeline.layout.sessions();
        let places = places.into_iter().enumerate();
        let own = places.filter(|(_, it)| manager.role == Role::Analytics(it.analytics_manager));
        own.map(|(i, place)| {
            let role = Role::Session(i);
            self.accelerator(
                &self.config.accel.devices[place.device],
                &Thread { instance: manager.instance, role },
            )
        })
        .collect()
    }

    fn accelerator(&self, device: &checked::Device, thread: &Thread) -> Result<Accelerator, Error> {
        let mut session = session(self.config, self.bundle, device)?;
        if self.golden_test {
            golden_test(self.bundle, device, session.as_mut())?;
        }
        let profile = match thread.role {
            // Nobody plans its batches, so none is measured.
            Role::Flow(_) => profile_of_file(self.bundle, device)?.map(|file| file.profile()),
            _ => self.profiles.of_session(self.config, self.bundle, device, session.as_mut())?,
        };
        if let Some(deadline) = device.deadline {
            session.limit_runs(deadline);
        }
        if let Some(faults) = &device.faults {
            session = Box::new(FaultyDevice::new(session, faults.clone()));
        }
        let is_own = device.thread == DeviceThread::Own;
        if is_own {
            session = Box::new(on_its_thread(session, thread, self.cores)?);
        }
        // A device that works inside the analytics thread has returned before the thread could look
        // at a deadline; the control thread stops such runs where the runtime allows it.
        let can_hang = is_own || !device.provider.computes;
        Ok(Accelerator {
            device: session,
            profile,
            deadline: device.deadline.filter(|_| can_hang),
            executor: match thread.role {
                Role::Session(place) => executor(self.config, device, place),
                _ => 0,
            },
        })
    }
}

/// Compares a session of the device with the golden outputs. They must agree within the tolerance;
/// where the arithmetic is not exactly theirs, it is enough that nine samples of ten have the same
/// class.
///
/// # Errors
/// They differ, or the device fails.
pub fn golden_test(
    bundle: &Bundle,
    device: &checked::Device,
    session: &mut dyn Device,
) -> Result<(), Error> {
    if !device.provider.computes {
        return Ok(());
    }
    let is_exact = device.provider.is_cpu && bundle.precision() == "fp32";
    let report = check_golden(bundle, session).map_err(|error| Error::data(error.to_string()))?;
    if report.agrees() || (!is_exact && report.argmax_differences * 10 <= report.rows) {
        return Ok(());
    }
    Err(Error::data(format!(
        "{}: golden outputs differ on {}: by up to {:.2e}, {} of {} samples with another class",
        bundle.model_path().display(),
        session.requested(),
        report.max_abs_difference,
        report.argmax_differences,
        report.rows
    )))
}

/// The task's configuration with the devices that the model decides on where nobody named any:
/// `native` if it takes the model, otherwise `cpu`. `config` holds one task alone
/// ([`Config::of_task`]).
pub fn for_model(mut config: Config, bundle: &Bundle) -> Config {
    let Some(task) = config.tasks.first_mut() else {
        return config;
    };
    if task.devices.iter().all(|device| device.otherwise.is_none()) {
        return config;
    }
    let [name, _] = accel::DEFAULTS;
    let refusal = accel::native_takes(bundle).err();
    for device in &mut task.devices {
        if let (Some(otherwise), Some(_)) = (device.otherwise.take(), &refusal) {
            *device = *otherwise;
        }
    }
    task.devices_why = match refusal {
        None => format!("default: {name} takes this model"),
        Some(why) => format!("default: {name} does not take this model: {why}"),
    };
    config.accel.devices = task.devices.clone();
    config
}

/// Checks the devices of a configuration. Those on the CPU are opened. Others may take minutes to
/// open or may be in use, so only what can be seen without opening them is checked.
///
/// # Errors
/// A library, device or model that cannot be used.
pub fn look_at_devices(config: &Config, bundle: &Bundle) -> Result<(), Error> {
    let mut looked_at = BTreeSet::new();
    for device in &config.accel.devices {
        if !looked_at.insert(&device.name) {
            continue;
        }
        let probed = accel::probe(&spec(config, bundle, device)?, bundle);
        probed.map_err(|error| not_opened(config, error))?;
        // Whether it is one; a start says whether it is a good one.
        profile_of_file(bundle, device)?;
    }
    Ok(())
}

fn on_its_thread(
    session: Box<dyn Device>,
    thread: &Thread,
    cores: &Cores,
) -> Result<ThreadedDevice, Error> {
    let (core, name) = (cores.of_thread(thread), thread.to_string());
    let start = move |_: &str| {
        pin(core);
        rename(&name);
    };
    ThreadedDevice::new(session, start)
        .map_err(|error| Error::unavailable(format!("no thread {thread}: {error}")))
}
