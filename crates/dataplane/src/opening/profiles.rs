//! The profiles of a run's devices: how long a batch takes.
//!
//! ```text
//! device.NAME.profile ──────────────────────────────► used; nothing is measured
//! accel.profiles ──── it fits ──────────────────────► used
//!        ▲      └──── none, or it does not fit ──► measured ─┐
//!        ├───────────────────────────────────────────────────┤
//!        └── the profile has drifted (a line of the log) ◄── used, fitted anew with each batch
//! ```
//!
//! Only policies that plan by profiles need one; where one task has such a policy, all are
//! measured. Each task has its own for each of its devices. It is measured once, however many
//! sessions of the device there are, and all measurements of a start together have a limit. The
//! folder is written to by helpers and by the control thread's, never by a thread of the data path.
//! A problem with it is logged once and stops nothing: the start measures instead.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use accel::profile::{
    Conditions, Origin, ProfileError, ProfileFile, ProfileFolder, ProfileKey, R_SQUARED_MIN,
    measure_quickly,
};
use accel::{Bundle, Device, Profile};
use tracing::{debug, warn};

use crate::Error;
use crate::opening::session::refused;
use crate::opening::tasks::OpenTask;
use config::Config;
use config::checked::{self, DeviceThread};

/// Where profiles are in the log: a target of the program's, so that its level holds for them.
const LOG: &str = "fenxi::profiles";

/// What all measurements of a start may take. With the first runs, which do not count, and a batch
/// that is under way at the end, it stays below 10 s.
const MEASURE_ALL: Duration = Duration::from_secs(7);

/// What the measurement of one task on one device may take: more hardly makes it better.
const MEASURE_ONE: Duration = Duration::from_millis(700);

/// Systemd's name for the folder of `CacheDirectory=`, or several with colons between.
const CACHE_VARIABLE: &str = "CACHE_DIRECTORY";

/// Where profiles are in there.
const CACHE_FOLDER: &str = "profiles";

/// The most profiles that are remembered; swaps bring more and more.
const KNOWN_MAX: usize = 256;

/// The profiles of a run.
#[derive(Debug, Clone)]
pub struct Profiles(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    folder: Option<ProfileFolder>,
    /// What one measurement may take.
    limit: Duration,
    /// Whether some task has a goal. Then all others count as well, because they share its devices.
    is_planned: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Profiles in use and of earlier models, the oldest first.
    known: Vec<(ProfileKey, ProfileFile)>,
    /// Warnings, each of which is given once.
    said: BTreeSet<String>,
}

/// What became of a profile that a run has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored {
    /// The next start begins with it, from this file.
    At(PathBuf),
    /// It comes from a file of the user's or from the configuration, which a run does not change;
    /// or no folder is known.
    Nowhere,
    /// The file cannot be written.
    Failed(String),
}

/// The folder of profiles that a configuration names, or systemd's unit.
pub fn folder(config: &Config) -> Option<PathBuf> {
    folder_of(config.accel.profiles.as_deref(), std::env::var_os(CACHE_VARIABLE))
}

/// Makes the folder to which a run of these tasks may write profiles, before its rights are
/// restricted. It is made whatever the policy is, because a reload may bring one that plans. None
/// if it cannot be made; storing a profile then gives the warning.
pub fn make_folder(tasks: &[OpenTask]) -> Option<PathBuf> {
    let folder = folder(&tasks.first()?.config)?;
    std::fs::create_dir_all(&folder).ok().map(|()| folder)
}

fn folder_of(configured: Option<&Path>, cache: Option<OsString>) -> Option<PathBuf> {
    let of_unit = || {
        let cache = cache?;
        let first = std::env::split_paths(&cache).next()?;
        first.is_absolute().then(|| first.join(CACHE_FOLDER))
    };
    configured.map(Path::to_owned).or_else(of_unit)
}

impl Profiles {
    /// The profiles of a run of these tasks.
    pub fn new(tasks: &[OpenTask]) -> Profiles {
        let folder = tasks.first().and_then(|task| folder(&task.config));
        Profiles::with(folder, tasks)
    }

    fn with(folder: Option<PathBuf>, tasks: &[OpenTask]) -> Profiles {
        let measured = tasks.iter().map(|task| {
            let devices = task.config.accel.devices.iter();
            let names: BTreeSet<&str> = devices.map(|device| &*device.name).collect();
            names.len() as u32
        });
        let limit = MEASURE_ALL / measured.sum::<u32>().max(1);
        Profiles(Arc::new(Inner {
            folder: folder.map(ProfileFolder::new),
            limit: limit.min(MEASURE_ONE),
            is_planned: tasks.iter().any(|task| task.config.analytics.name.has_goal()),
            state: Mutex::default(),
        }))
    }

    /// The profile of a session that was just opened: from the device's file, from the folder, or,
    /// if the policy needs one, from a measurement.
    ///
    /// # Errors
    /// A file of the user's that cannot be used, or a device that fails.
    pub fn of_session(
        &self,
        config: &Config,
        bundle: &Bundle,
        device: &checked::Device,
        session: &mut dyn Device,
    ) -> Result<Option<Profile>, Error> {
        if let Some(file) = profile_of_file(bundle, device)? {
            self.judge(&file, bundle, device);
            return Ok(Some(file.profile()));
        }
        if !device.provider.computes {
            return Ok(Some(device.simulated));
        }
        if !self.0.is_planned && !config.analytics.name.has_goal() {
            return Ok(None);
        }
        let library = config.accel.library.as_deref();
        let version = device.provider.library_version(library).map_err(refused)?;
        let file = self.known_or_measured(key(bundle, device, version), bundle, session)?;
        self.judge(&file, bundle, device);
        Ok(Some(file.profile()))
    }

    fn known_or_measured(
        &self,
        key: ProfileKey,
        bundle: &Bundle,
        session: &mut dyn Device,
    ) -> Result<ProfileFile, Error> {
        if let Some(file) = self.known(&key) {
            return Ok(file);
        }
        let file = match self.load(&key, bundle) {
            Some(file) => file,
            None => self.measure(&key, bundle, session)?,
        };
        self.remember(key, file.clone());
        Ok(file)
    }

    /// The profile that is known of a device, by its name and the model's hash, has drifted:
    /// remembers the new one, and stores it for the next start. This writes a file.
    pub fn drifted(&self, device: &str, model_sha256: &str, now: Profile) -> Stored {
        let Some((key, file)) = ({
            let mut state = self.state();
            let mut known = state.known.iter_mut().rev();
            known.find(|(key, _)| key.device == device && key.model_sha256 == model_sha256).map(
                |(key, file)| {
                    *file = file.found_by_run(now);
                    (key.clone(), file.clone())
                },
            )
        }) else {
            return Stored::Nowhere;
        };
        match self.0.folder.as_ref().map(|folder| folder.store(&key, &file)) {
            None => Stored::Nowhere,
            Some(Ok(path)) => Stored::At(path),
            Some(Err(error)) => Stored::Failed(error.to_string()),
        }
    }

    fn load(&self, key: &ProfileKey, bundle: &Bundle) -> Option<ProfileFile> {
        let folder = self.0.folder.as_ref()?;
        match folder.load(key) {
            Ok(Some(file)) => {
                let from = match file.origin {
                    Origin::Measured => "an earlier start measured it",
                    Origin::Run => "an earlier run found it",
                };
                debug!(
                    target: LOG,
                    "{}: {}; {from}: {}",
                    name(key, bundle),
                    figures(&file),
                    folder.path().join(key.file_name()).display()
                );
                Some(file)
            }
            Ok(None) => None,
            Err(error) => {
                self.warn(format!("{error}; it is ignored, and this start measures"));
                None
            }
        }
    }

    fn measure(
        &self,
        key: &ProfileKey,
        bundle: &Bundle,
        session: &mut dyn Device,
    ) -> Result<ProfileFile, Error> {
        let began = Instant::now();
        let measured = measure_quickly(session, &bundle.golden().inputs, self.0.limit)
            .map_err(|error| Error::unavailable(error.to_string()))?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let machine = format!("{}, {cores} cores", key.conditions.cpu);
        let file = ProfileFile::for_folder(bundle, &measured, key, session.effective(), &machine);
        debug!(
            target: LOG,
            "{}: {}; measured in {:.2} s",
            name(key, bundle),
            figures(&file),
            began.elapsed().as_secs_f64()
        );
        if let Some(folder) = &self.0.folder
            // A poor one is not kept: the next start may find the machine quieter.
            && file.r_squared >= R_SQUARED_MIN
            && let Err(error) = folder.store(key, &file)
        {
            self.warn(format!(
                "{}: profiles cannot be stored: {error}; each start measures again until \
                 accel.profiles names a folder that \
                 fenxi may write to",
                folder.path().display()
            ));
        }
        Ok(file)
    }

    /// Warns of a profile that explains too little.
    fn judge(&self, file: &ProfileFile, bundle: &Bundle, device: &checked::Device) {
        let r_squared = file.r_squared;
        if r_squared >= R_SQUARED_MIN {
            return;
        }
        let device = &device.name;
        self.warn(format!(
            "device {device}, model {} {}: R² is {r_squared:.2}, below {R_SQUARED_MIN}: batches do \
             not take T0 + T1·b, and a policy \
             that plans by it does so poorly; run `fenxi profile --device {device} --out FILE` on \
             a quieter machine, and name the \
             file in device.{device}.profile",
            bundle.name(),
            bundle.version()
        ));
    }

    fn warn(&self, what: String) {
        let mut state = self.state();
        if !state.said.contains(&what) {
            warn!(target: LOG, "{what}");
            state.said.insert(what);
        }
    }

    fn known(&self, key: &ProfileKey) -> Option<ProfileFile> {
        let state = self.state();
        let mut known = state.known.iter();
        known.find(|(of, _)| of == key).map(|(_, file)| file.clone())
    }

    fn remember(&self, key: ProfileKey, file: ProfileFile) {
        let mut state = self.state();
        if state.known.len() == KNOWN_MAX {
            state.known.remove(0);
        }
        state.known.push((key, file));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every field is valid between any two statements.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The profile in the device's file, if it has one.
///
/// # Errors
/// The file cannot be read, or is not a profile of this model and provider.
pub fn profile_of_file(
    bundle: &Bundle,
    device: &checked::Device,
) -> Result<Option<ProfileFile>, Error> {
    let Some(path) = &device.profile else {
        return Ok(None);
    };
    match ProfileFile::read(path, bundle, device.provider.name) {
        Ok(file) => Ok(Some(file)),
        Err(error @ ProfileError::Read { .. }) => Err(Error::no_input(error.to_string())),
        Err(error) => Err(Error::data(error.to_string())),
    }
}

fn key(bundle: &Bundle, device: &checked::Device, library: String) -> ProfileKey {
    let plugin = device.plugin.as_deref().unwrap_or(Path::new(""));
    ProfileKey {
        device: device.name.clone(),
        provider: device.provider.name.to_owned(),
        model_sha256: bundle.sha256().to_owned(),
        library,
        conditions: Conditions {
            cpu: cpu_model(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
            options: device.options.clone(),
            plugin: plugin.display().to_string(),
            batch_sizes: device.batch_sizes.clone(),
            fixed_sizes: device.fixed_sizes,
            own_thread: device.thread == DeviceThread::Own,
        },
    }
}

/// The CPU as the kernel describes the first one. On ARM it gives numbers instead of a name.
fn cpu_model(cpuinfo: &str) -> String {
    let field = |name: &str| {
        cpuinfo.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            (found.trim() == name).then(|| value.trim().to_owned())
        })
    };
    let numbers = ["CPU implementer", "CPU part", "CPU variant", "CPU revision"];
    let numbers = || numbers.into_iter().filter_map(field).collect::<Vec<_>>();
    field("model name").unwrap_or_else(|| numbers().join(" "))
}

fn name(key: &ProfileKey, bundle: &Bundle) -> String {
    let (model, version) = (bundle.name(), bundle.version());
    format!("device {}, model {model} {version}", key.device)
}

/// A profile in one line.
fn figures(file: &ProfileFile) -> String {
    let line = file.profile();
    format!(
        "a batch takes {:.1} µs + {:.2} µs per series, batchiness {:.2}, R² {:.3}",
        line.t0_us, line.t1_us, file.batchiness, file.r_squared
    )
}

#[cfg(test)]
mod tests;
