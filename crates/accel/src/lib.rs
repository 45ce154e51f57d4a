//! Model bundles, and the devices that run them: a batch of series in, a class and a confidence for each out.
//!
//! A [`Bundle`] is a folder with a model and everything needed to trust it: its shape, its labels, its hash, and golden
//! inputs with the outputs they must give. Whatever disagrees is refused by name when the bundle is opened or when a
//! device takes it, that is, before the first packet.
//!
//! A [`Device`] takes batches of the sizes it names, one at a time. What each device promises:
//!
//! - a row's result depends on that row alone, not on the batch it came in nor on the padding beside it: bit for bit on the
//!   CPU, up to rounding elsewhere;
//! - results come in the order of the rows, one per row, or the whole batch fails with a [`DeviceError`];
//! - a number that is not a probability is a failure, never a label;
//! - a failed batch leaves the device usable, unless the error says that it is gone.
//!
//! Two devices exist: [`onnx::OnnxDevice`] runs the bundle by ONNX Runtime, a library that is loaded at run time;
//! [`SimulatedDevice`] takes the time a profile says and runs no model. [`check_golden`] compares a device with its
//! bundle. Two more stand around another device: [`ThreadedDevice`] runs it on a thread of its own, [`FaultyDevice`] makes
//! it fail on purpose. [`profile`] measures how long a device takes.
//!
//! This crate knows nothing of packets, flows, batching policies or configuration files, and none of the other crates.

#![forbid(unsafe_code)]

mod bundle;
mod device;
mod faults;
mod faulty;
mod file;
mod golden;
pub mod onnx;
pub mod profile;
mod simulated;
mod threaded;
mod thresholds;

pub use bundle::{Bundle, BundleError, FEATURES, Golden, LABELS_MAX, LabelInfo, UNITS};
pub use device::{Classification, Device, DeviceError, Shape, Sizes};
pub use faults::{Faults, FaultsError};
pub use faulty::FaultyDevice;
pub use file::{ReadError, read_regular};
pub use golden::{GoldenReport, check_golden, golden_tolerance};
pub use profile::Profile;
pub use simulated::SimulatedDevice;
pub use threaded::ThreadedDevice;
pub use thresholds::Thresholds;
