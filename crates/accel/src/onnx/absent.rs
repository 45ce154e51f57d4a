//! ONNX Runtime in a build without the feature `ort`: every call fails with the reason.

use std::path::Path;
use std::time::Duration;

use thiserror::Error;

use crate::bundle::Bundle;
use crate::device::Device;
use crate::provider::{DeviceSpec, OpenError};

/// A loaded ONNX Runtime, of which this build has none.
#[derive(Clone, Copy, Debug)]
pub enum Library {}

impl Library {
    /// Path of the file.
    pub fn path(&self) -> &Path {
        match *self {}
    }

    /// The version.
    pub fn version(&self) -> Option<&str> {
        match *self {}
    }
}

/// Why ONNX Runtime is not available.
#[derive(Debug, Error)]
#[error("this program was built without ONNX Runtime (the Cargo feature ort)")]
pub struct LibraryError;

/// Loads nothing.
///
/// # Errors
/// Always.
pub fn load(_: Option<&Path>) -> Result<Library, LibraryError> {
    Err(LibraryError)
}

/// Does nothing: no session can run.
pub fn stop_late_runs(_: Option<Duration>) {}

pub(crate) fn open(_: &DeviceSpec, _: &Bundle) -> Result<Box<dyn Device>, OpenError> {
    Err(LibraryError.into())
}

pub(crate) fn probe(_: &DeviceSpec, _: &Bundle) -> Result<(), OpenError> {
    Err(LibraryError.into())
}

impl From<LibraryError> for OpenError {
    fn from(error: LibraryError) -> Self {
        Self::Unavailable(error.to_string())
    }
}
