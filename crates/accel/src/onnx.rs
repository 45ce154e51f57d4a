//! Devices that run a bundle on ONNX Runtime, through its C API.
//!
//! The library is not linked but loaded at run time by [`load`], once per process. So the program
//! builds and starts without it, and users can bring a newer one or a vendor's build. A [`Library`]
//! proves that the library is loaded; no device can be made without one.
//!
//! A *provider* runs the model. It is either a part of the loaded library ([`providers`] lists
//! those it has) or a plug-in with a library of its own ([`plugin_devices`] lists the devices it
//! finds on this machine). Only a successfully created [`OnnxDevice`] shows that a provider runs a
//! bundle.

mod device;
mod guard;
mod library;
mod log;
mod plugin;
mod provider;
mod session;
mod telemetry;

pub use device::OnnxDevice;
pub(crate) use device::{open, probe};
pub use guard::stop_late_runs;
pub use library::{Library, load};
pub use plugin::plugin_devices;
pub use provider::providers;
