//! Devices that run the model.

use std::path::PathBuf;
use std::time::Duration;

use accel::{Faults, Profile, Provider};

use crate::words::words;

/// Devices that run the model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Accel {
    /// One per device of the layout, in its order.
    pub devices: Vec<Device>,
    /// The ONNX Runtime library; `None`: search.
    pub library: Option<PathBuf>,
    /// Folder of profiles that a start measured; `None`: that of systemd's unit, if there is one.
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
    /// How long a batch may take before it counts as failed; `None`: for ever.
    pub deadline: Option<Duration>,
    /// File of a measured profile; `None`: measured at the start where the policy needs one.
    pub profile: Option<PathBuf>,
    /// Latency of a device that runs no model.
    pub simulated: Profile,
    /// Faults to inject.
    pub faults: Option<Faults>,
    /// The same for devices of one name, whichever tasks name them: they are one device, which works for one task at a time.
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
