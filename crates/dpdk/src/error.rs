//! Errors by kind. Each message is one line, without the name of the device, which the caller
//! knows.

use crate::log;
use crate::sys;

/// Why DPDK refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}")]
pub struct Error {
    /// The kind of error.
    pub kind: ErrorKind,
    line: String,
}

/// Kinds of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// An argument or a setting is wrong.
    Setting,
    /// The process lacks a permission.
    Permission,
    /// There are no huge pages, or not enough memory.
    Memory,
    /// There is no device of this name.
    NoDevice,
    /// The device or the environment refuses for another reason.
    Refused,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, line: impl Into<String>) -> Error {
        let line = line.into();
        Error { kind, line }
    }

    /// The error of a call that returned `-errno`, with the first error that DPDK has logged since
    /// the last one.
    pub(crate) fn from_code(step: &str, code: i32) -> Error {
        let kind = match -code {
            EPERM | EACCES => ErrorKind::Permission,
            ENOMEM => ErrorKind::Memory,
            ENODEV => ErrorKind::NoDevice,
            EINVAL => ErrorKind::Setting,
            _ => ErrorKind::Refused,
        };
        let system = std::io::Error::from_raw_os_error(-code);
        let said = log::first_error().map(|line| format!("; DPDK says: {line}"));
        let said = said.unwrap_or_default();
        Error::new(kind, format!("{step}: {system}{said}"))
    }

    /// The error of a call that left its number in `rte_errno`.
    pub(crate) fn last(step: &str) -> Error {
        // SAFETY: reads a thread-local variable.
        let number = unsafe { sys::fenxi_errno() };
        Error::from_code(step, -number)
    }
}

/// The result of a call, or an error if it is negative.
pub(crate) fn check(step: &str, code: i32) -> Result<i32, Error> {
    match code {
        0.. => Ok(code),
        _ => Err(Error::from_code(step, code)),
    }
}

// Linux error numbers, the same on all architectures of DPDK.
const EPERM: i32 = 1;
const ENOMEM: i32 = 12;
const EACCES: i32 = 13;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;
/// The driver lacks the operation.
pub(crate) const ENOTSUP: i32 = 95;
