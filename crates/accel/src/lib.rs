//! Model bundles, and the devices that run them: a batch of series goes in, a class and a
//! confidence per series come out.
//!
//! A [`Bundle`] is a folder with a model and everything needed to trust it: its shape, labels and
//! hash, and golden inputs with the outputs they must give. Whatever disagrees is refused with a
//! message that names it, either when the bundle is opened or when a device takes it; both happen
//! before the first packet.
//!
//! A [`Device`] takes batches of the sizes it names, one at a time. Every device promises:
//!
//! - A row's result depends on that row alone, not on the other rows or the padding of its batch:
//!   bit for bit on the CPU, up to rounding on other devices.
//! - Results come in the order of the rows, one per row, or the whole batch fails with a
//!   [`DeviceError`].
//! - A number that is not a probability is a failure, never a label.
//! - A failed batch leaves the device usable, unless the error says that the device is gone.
//!
//! [`open`] makes a device of any [`Provider`]: ONNX Runtime's providers ([`onnx`], with the Cargo
//! feature `ort`) run the bundle, the device `native` runs it on the crate `engine`, and
//! [`SimulatedDevice`] takes the time that a profile says and runs no model. Two more devices wrap
//! another one: [`ThreadedDevice`] runs it on its own thread, [`FaultyDevice`] injects faults.
//! [`check_golden`] compares a device's outputs with the outputs in its bundle, and [`profile`]
//! measures how long a device takes.
//!
//! This crate knows nothing of packets, flows, batching policies or configuration files, and of
//! the other crates only `engine`. It knows features by name only.

#![deny(unsafe_code)] // but for onnx::telemetry

mod bundle;
mod device;
mod faults;
mod faulty;
mod file;
mod golden;
mod native;
#[cfg(feature = "ort")]
pub mod onnx;
#[cfg(not(feature = "ort"))]
#[path = "onnx/absent.rs"]
pub mod onnx;
pub mod profile;
mod provider;
mod simulated;
mod threaded;
mod thresholds;

pub use bundle::{
    Bundle, BundleError, CONTEXT, Confusion, Depth, FEATURES, Golden, HostLabels, LABELS_MAX,
    LabelInfo, Learned, NoSuchDepths, PortLabel, TARGETS, Target, UNITS,
};
pub use device::{Classification, Device, DeviceError, Shape, Sizes};
pub use faults::{Faults, FaultsError};
pub use faulty::FaultyDevice;
pub use file::{ReadError, read_regular};
pub use golden::{GoldenReport, argmax, check_golden, golden_tolerance, run_batch};
pub use native::{kernel_net, native_row_ns, native_takes};
pub use profile::Profile;
pub use provider::{DEFAULTS, DeviceSpec, OpenError, PROVIDERS, Provider, open, probe};
pub use simulated::SimulatedDevice;
pub use threaded::ThreadedDevice;
pub use thresholds::Thresholds;
