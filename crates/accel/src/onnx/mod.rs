//! Devices that run a bundle by ONNX Runtime, through its C API.
//!
//! The library is not linked but loaded at run time by [`load`], once per process, so that the program builds and starts
//! without it and a user can bring a newer or a vendor's own. A [`Library`] is the proof that one is there: no device can be
//! made without it.
//!
//! Who does the work is a *provider*: a part of the loaded library ([`providers`] tells which it has) or a plug-in, a
//! library of its own ([`plugin_devices`] tells what it finds on this machine). Whether a provider really runs a bundle is
//! known when an [`OnnxDevice`] could be made, not before.

mod device;
mod error;
mod guard;
mod library;
mod log;
mod plugin;
mod provider;
mod session;
mod spec;

pub use device::OnnxDevice;
pub use error::SessionError;
pub use guard::stop_late_runs;
pub use library::{Library, LibraryError, load};
pub use plugin::plugin_devices;
pub use provider::{Provider, providers};
pub use spec::DeviceSpec;
