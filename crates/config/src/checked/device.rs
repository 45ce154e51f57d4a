//! Devices that run the model.

use std::path::PathBuf;
use std::time::Duration;

use accel::{Faults, PROVIDERS, Profile, Provider};

use crate::kind::{BATCH_SIZES, DEVICES, Kind, SIMULATED_US, float};
use crate::section;
use crate::setting::Setting;
use crate::words::words;

section! {
    /// Devices, for tasks and devices that say nothing else.
    pub struct AccelKeys = One "accel";

    /// where the model runs, one name per device of the layout or one for all: a provider, or the
    /// NAME in [device.NAME]; []: native where it takes the model, otherwise cpu
    devices: Vec<String> = live "devices", DEVICES, "[]", "";
    /// the ONNX Runtime library; empty: searched for next to the program and in the usual places
    library: Option<PathBuf> = restart "library", Kind::Text, "\"\"", "path" => Setting::file;
    /// folder of profiles that a start measured, for policies slo and on-off: the next start uses
    /// them while model, provider, options, batch sizes, library and CPU are the same; empty:
    /// profiles in the CACHE_DIRECTORY of systemd's unit, and none is stored without it
    profiles: Option<PathBuf> = restart "profiles", Kind::Text, "\"\"", "path" => Setting::file;
    /// device simulated: the fixed part of a batch's latency
    simulated_t0_us: f64 = live "simulated_t0_us", SIMULATED_US, "100.0", "microseconds per batch";
    /// device simulated: what each series of a batch adds to its latency
    simulated_t1_us: f64 = live "simulated_t1_us", SIMULATED_US, "2.0", "microseconds per series";
    /// whether devices take only the sizes of analytics.batch_sizes, so that batches are padded,
    /// as NPUs need; for experiments
    fixed_sizes: bool = live "fixed_sizes", Kind::Bool, "false", "";
}

section! {
    /// A `[device.NAME]` table; `None` where it leaves a key out whose default depends on others.
    pub struct DeviceKeys = Named "device";

    /// what runs the model; optional if NAME is a provider
    provider: Option<&'static Provider> = live "provider", Kind::OneOf(&PROVIDERS), "\"cpu\"", "";
    /// library of a plug-in provider; for plugin, and for qnn where it is installed as a plug-in
    plugin: Option<PathBuf> = live "plugin", Kind::Text, "\"\"", "path" => Setting::file;
    /// options of the provider, passed on unchanged
    options: Vec<(String, String)> = live "options", Kind::Map(&Kind::Text), "{}",
        "" => Setting::texts;
    /// batch sizes of this device; the default is analytics.batch_sizes
    batch_sizes: Option<Vec<usize>> = live "batch_sizes", BATCH_SIZES, "[8, 16, 32, 64, 128, 256]",
        "series";
    /// whether the device takes only its batch_sizes; the default is accel.fixed_sizes, but true
    /// for qnn and tensorrt
    fixed_sizes: Option<bool> = live "fixed_sizes", Kind::Bool, "false", "";
    /// own: a thread of its own, the default except for simulated, and for cpu and native where
    /// their analytics manager has no other device; shared: inside the analytics thread, where the
    /// deadline can end a loop of the model but not every hang
    thread: Option<DeviceThread> = live "thread", Kind::OneOf(DeviceThread::NAMES), "\"shared\"",
        "";
    /// a batch that takes longer has failed, and the device gets no more until it answers again
    deadline: Option<Duration> = live "deadline_ms", float(0.0, 3_600_000.0), "1000.0",
        "milliseconds, 0 = none" => deadline;
    /// file of `fenxi profile`, for policies slo and on-off; empty: the one in accel.profiles, or
    /// a short one is measured at the start
    profile: Option<PathBuf> = live "profile", Kind::Text, "\"\"", "path" => Setting::file;
    /// the fixed part of a batch's latency; the default is accel.simulated_t0_us
    simulated_t0_us: Option<f64> = live "simulated_t0_us", SIMULATED_US, "100.0",
        "microseconds per batch";
    /// what each series of a batch adds to its latency; the default is accel.simulated_t1_us
    simulated_t1_us: Option<f64> = live "simulated_t1_us", SIMULATED_US, "2.0",
        "microseconds per series";
    /// faults to inject, for experiments, such as error=3,hang=5:200
    faults: Option<Faults> = live "faults", Kind::Text, "\"\"", "" => faults;
}

fn deadline(setting: &Setting) -> Result<Option<Duration>, String> {
    Ok(Some(setting.milliseconds()?).filter(|deadline| !deadline.is_zero()))
}

fn faults(setting: &Setting) -> Result<Option<Faults>, String> {
    let text = setting.word()?;
    let faults = text.map(|text| text.parse().map_err(|error| format!("{error}")));
    faults.transpose()
}

/// Devices that run the model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Accel {
    /// One per device of the layout, in its order.
    pub devices: Vec<Device>,
    /// The ONNX Runtime library; `None`: search.
    pub library: Option<PathBuf>,
    /// Folder of profiles that a start measured; `None`: the systemd unit's, if there is one.
    pub profiles: Option<PathBuf>,
}

/// A device as it is configured.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// As `accel.devices` names it.
    pub name: String,
    /// What runs the model.
    pub provider: &'static Provider,
    /// Library of a plug-in provider.
    pub plugin: Option<PathBuf>,
    /// Options of the provider, by name, passed on unchanged.
    pub options: Vec<(String, String)>,
    /// The set of batch sizes, ascending, none twice.
    pub batch_sizes: Vec<usize>,
    /// Whether the device takes only these sizes; otherwise it takes any up to the largest.
    pub fixed_sizes: bool,
    /// The thread that runs its batches.
    pub thread: DeviceThread,
    /// How long a batch may take before it counts as failed; `None`: no limit.
    pub deadline: Option<Duration>,
    /// File of a measured profile; `None`: measured at the start where the policy needs one.
    pub profile: Option<PathBuf>,
    /// Latency of a device that runs no model.
    pub simulated: Profile,
    /// Faults to inject.
    pub faults: Option<Faults>,
    /// What runs a model that this device does not take; only where nobody named devices.
    pub otherwise: Option<Box<Device>>,
    /// The same for devices of one name, whichever tasks name them: they are one device, which
    /// works for one task at a time.
    pub number: u8,
}

words! {
    /// The thread that runs a device's batches.
    pub enum DeviceThread {
        /// On a thread of its own.
        #[default]
        Own = "own",
        /// The thread of its analytics manager.
        Shared = "shared",
    }
}
