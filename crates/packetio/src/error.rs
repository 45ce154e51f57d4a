//! Errors of opening, receiving and sending. Kinds never name a backend, so callers decide by kind
//! alone.

use std::error::Error;
use std::io;

/// Why a port could not be opened. Each message is one line and names the interface or file.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no such interface.
    #[error("{interface}: no such interface; there are: {}", .known.join(", "))]
    NoSuchInterface {
        /// The name as given.
        interface: String,
        /// The existing interfaces.
        known: Vec<String>,
    },
    /// The process lacks a capability.
    #[error("{interface}: permission denied; {what} need {capability}")]
    MissingCapability {
        /// The name as given.
        interface: String,
        /// What is denied.
        what: &'static str,
        /// The capability, or several.
        capability: &'static str,
    },
    /// Something else uses what the port needs.
    #[error("{interface}: {what}; {cure}")]
    InUse {
        /// The name as given.
        interface: String,
        /// What is in use.
        what: String,
        /// How to find and end the other user.
        cure: String,
    },
    /// The interface or its driver does not support what the port needs.
    #[error("{interface}: {why}; {cure}")]
    Unsuitable {
        /// The name as given.
        interface: String,
        /// What is unsuitable.
        why: String,
        /// How to fix it.
        cure: String,
    },
    /// The kernel rejects the XDP program.
    #[error("{interface}: the kernel refuses the program that hands over frames: {log}")]
    ProgramRefused {
        /// The name as given.
        interface: String,
        /// The last lines of the kernel's log, joined to one.
        log: String,
    },
    /// The frames' memory exceeds the limit of locked memory.
    #[error(
        "{interface}: {bytes} bytes for frames are more than may be locked in memory; ask for \
         fewer \
             frames, raise the limit (LimitMEMLOCK=infinity, ulimit -l), or grant CAP_IPC_LOCK"
    )]
    LockedMemory {
        /// The name as given.
        interface: String,
        /// Bytes asked for.
        bytes: u64,
    },
    /// The interface's link type is not supported.
    #[error(
        "{interface}: frames of hardware type {hardware} (ARPHRD) are not read; Ethernet, loopback \
         and IP are"
    )]
    UnsupportedLink {
        /// The name as given.
        interface: String,
        /// The `ARPHRD_` number.
        hardware: u16,
    },
    /// A setting is out of bounds.
    #[error("{interface}: {setting}")]
    BadSetting {
        /// The name as given.
        interface: String,
        /// The setting, its value and its range.
        setting: String,
    },
    /// The kernel refuses memory for the ring.
    #[error(
        "{interface}: no memory for a ring of {blocks} blocks of {block_bytes} bytes; ask for \
         fewer \
         or smaller ones"
    )]
    NoMemory {
        /// The name as given.
        interface: String,
        /// Blocks asked for.
        blocks: u32,
        /// Bytes of each.
        block_bytes: u32,
    },
    /// The kernel cannot hand out only the first packets of flows.
    #[error("{interface}: the kernel cannot send up the first packets only: {why}")]
    FirstPackets {
        /// The name as given.
        interface: String,
        /// The reason, and the cure where there is one.
        why: String,
    },
    /// The system refuses a step for another reason.
    #[error("{interface}: {step}: {source}")]
    System {
        /// The name as given.
        interface: String,
        /// The step that failed.
        step: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The process lacks another permission.
    #[error("{interface}: {why}")]
    NotAllowed {
        /// The name as given.
        interface: String,
        /// What is refused, and how to fix it.
        why: String,
    },
    /// The interface is not available.
    #[error("{interface}: {why}")]
    Unavailable {
        /// The name as given.
        interface: String,
        /// Why, and how to fix it.
        why: String,
    },
    /// There is no such file.
    #[error("{file}: no such file")]
    NotFound {
        /// The path as given.
        file: String,
    },
    /// The path is a directory.
    #[error("{file}: is a directory; name a capture file in it")]
    Directory {
        /// The path as given.
        file: String,
    },
    /// The file is not readable.
    #[error("{file}: permission denied; the file is not readable by this user")]
    Permission {
        /// The path as given.
        file: String,
    },
    /// Another system error.
    #[error("{file}: cannot be opened: {source}")]
    Io {
        /// The path as given.
        file: String,
        /// The system's error.
        source: io::Error,
    },
}

impl OpenError {
    /// The error of opening `file`.
    pub(crate) fn new(file: String, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::NotFound => Self::NotFound { file },
            io::ErrorKind::PermissionDenied => Self::Permission { file },
            io::ErrorKind::IsADirectory => Self::Directory { file },
            _ => Self::Io { file, source },
        }
    }
}

/// Message for an interface that was renamed. The port does not follow it, since the settings name
/// an interface and the next start looks for that name.
pub(crate) fn renamed(interface: &str, name: &str) -> String {
    format!(
        "{interface}: the interface is now called {name}; give it its name back, or put the new \
         one into io.interfaces and restart"
    )
}

/// An error of the interface of an open port.
#[derive(Debug, thiserror::Error)]
#[error("{interface}: {kind}")]
pub struct InterfaceError {
    /// The interface's name as given.
    pub interface: String,
    /// The kind of error.
    pub kind: InterfaceErrorKind,
}

/// The kinds of errors of an interface.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceErrorKind {
    /// It was set down. The port resumes by itself once it is up.
    #[error("the interface is down; work on it goes on when it is up")]
    Down,
    /// It was deleted or moved to another network namespace. Reopen the port once an interface of
    /// that name exists.
    #[error("the interface is gone: deleted, or moved to another network namespace")]
    Gone,
    /// Another system error.
    #[error("cannot go on: {0}")]
    System(#[from] io::Error),
}

impl InterfaceErrorKind {
    /// Whether the port may work again: by itself after [`Self::Down`], by reopening after
    /// [`Self::Gone`].
    pub fn is_recoverable(&self) -> bool {
        !matches!(self, Self::System(_))
    }
}

/// Why a port cannot go on receiving. The message is one line and names the port.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct RxError {
    /// The kind of error.
    pub kind: RxErrorKind,
    source: Box<dyn Error + Send + Sync>,
}

/// Kinds of receive errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxErrorKind {
    /// An input that the port needs next cannot be opened.
    NoInput,
    /// The input is damaged: a truncated capture, a bad record.
    Damaged,
    /// The system could not read on.
    Io,
    /// Something the port needs is not available: an interface, a thread.
    Unavailable,
}

impl RxError {
    /// An error with the message of `source`.
    pub fn new(kind: RxErrorKind, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let source = source.into();
        Self { kind, source }
    }

    /// The original error; for captures a [`CaptureError`](crate::CaptureError).
    pub fn into_source(self) -> Box<dyn Error + Send + Sync> {
        self.source
    }
}

/// Why sending fails. The message is one line and names the port.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct TxError {
    /// The kind of error.
    pub kind: TxErrorKind,
    source: Box<dyn Error + Send + Sync>,
}

/// Kinds of send errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxErrorKind {
    /// The link is down. The port resumes by itself once it is up.
    Down,
    /// The link is gone. The port resumes if its receiving side finds the link again.
    Gone,
    /// Another system error.
    Failed,
}

impl TxError {
    /// An error with the message of `source`.
    pub fn new(kind: TxErrorKind, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let source = source.into();
        Self { kind, source }
    }

    /// Whether the port may work again.
    pub fn is_recoverable(&self) -> bool {
        matches!(self.kind, TxErrorKind::Down | TxErrorKind::Gone)
    }
}

impl From<InterfaceError> for TxError {
    fn from(error: InterfaceError) -> Self {
        let kind = match error.kind {
            InterfaceErrorKind::Down => TxErrorKind::Down,
            InterfaceErrorKind::Gone => TxErrorKind::Gone,
            InterfaceErrorKind::System(_) => TxErrorKind::Failed,
        };
        Self::new(kind, error)
    }
}
