//! ONNX Runtime in a build without the feature `ort`: every call fails with the reason.

use std::path::Path;
use std::time::Duration;

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

fn unavailable() -> OpenError {
    let why = "this program was built without ONNX Runtime; set accel.devices = [\"native\"]";
    OpenError::Unavailable(why.to_owned())
}

/// Loads nothing.
///
/// # Errors
/// Always.
pub fn load(_: Option<&Path>) -> Result<Library, OpenError> {
    Err(unavailable())
}

/// Does nothing: no session can run.
pub fn stop_late_runs(_: Option<Duration>) {}

pub(crate) fn open(_: &DeviceSpec, _: &Bundle) -> Result<Box<dyn Device>, OpenError> {
    Err(unavailable())
}

pub(crate) fn probe(_: &DeviceSpec, _: &Bundle) -> Result<(), OpenError> {
    Err(unavailable())
}
