//! Why shared memory cannot be created or read.

use std::{fmt, io};

/// Why shared memory cannot be created or read.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused.
    Io(io::Error),
    /// Not a file of this kind.
    Foreign,
    /// A version of the layout that this program does not know.
    Version(u64),
    /// The file contradicts itself; what does.
    Malformed(&'static str),
    /// A file cannot be created like this; why.
    Schema(&'static str),
    /// The writer was faster in every try.
    Busy,
    /// The slot has another egress than the one that was asked for.
    Changed,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Foreign => f.write_str("not shared memory of a service"),
            Self::Version(version) => write!(f, "version {version} of the layout is unknown"),
            Self::Malformed(what) => write!(f, "malformed: {what}"),
            Self::Schema(why) => f.write_str(why),
            Self::Busy => f.write_str("the writer was faster in every try"),
            Self::Changed => f.write_str("the slot has another egress by now"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<rustix::io::Errno> for Error {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Io(error.into())
    }
}
