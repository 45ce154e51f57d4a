//! Devices that run a bundle by ONNX Runtime, through its C API.
//!
//! The library is not linked but loaded at run time by [`load`], once per process, so that the program builds and starts
//! without it and a user can bring a newer or a vendor's own. A [`Library`] is the proof that one is there: no device can be
//! made without it.

mod cpu;
mod library;
mod session;

pub use cpu::CpuDevice;
pub use library::{Library, LibraryError, load};
pub use session::SessionError;
