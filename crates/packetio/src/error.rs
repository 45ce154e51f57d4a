//! Errors of opening a port, of receiving and of sending. They name kinds of trouble, never the
//! backend, so that callers decide by kind alone.

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
        /// The interfaces that there are.
        known: Vec<String>,
    },
    /// The process may not open what the port needs.
    #[error("{interface}: permission denied; {what} need {capability}")]
    MissingCapability {
        /// The name as given.
        interface: String,
        /// What may not be opened.
        what: &'static str,
        /// The capability by name, or several.
        capability: &'static str,
    },
    /// Somebody else has what the port needs of the interface.
    #[error("{interface}: {what}; {cure}")]
    InUse {
        /// The name as given.
        interface: String,
        /// What is in use.
        what: String,
        /// How to find and end that.
        cure: String,
    },
    /// The interface, or its driver, is not as the port needs it.
    #[error("{interface}: {why}; {cure}")]
    Unsuitable {
        /// The name as given.
        interface: String,
        /// What about it does not suit.
        why: String,
        /// What helps.
        cure: String,
    },
    /// The kernel refuses the program that hands over frames.
    #[error("{interface}: the kernel refuses the program that hands over frames: {log}")]
    ProgramRefused {
        /// The name as given.
        interface: String,
        /// The last lines that the kernel says about it, on one line.
        log: String,
    },
    /// The memory of the frames must not be paged out, and the process may not keep so much.
    #[error(
        "{interface}: {bytes} bytes for frames are more than may be locked in memory; ask for fewer frames, raise the limit \
         (LimitMEMLOCK=infinity, ulimit -l), or grant CAP_IPC_LOCK"
    )]
    LockedMemory {
        /// The name as given.
        interface: String,
        /// Bytes asked for.
        bytes: u64,
    },
    /// Frames of the interface have no form that is known here.
    #[error(
        "{interface}: frames of hardware type {hardware} (ARPHRD) are not read; Ethernet, loopback and IP are"
    )]
    UnsupportedLink {
        /// The name as given.
        interface: String,
        /// The `ARPHRD_` number.
        hardware: u16,
    },
    /// A setting is out of its bounds.
    #[error("{interface}: {setting}")]
    BadSetting {
        /// The name as given.
        interface: String,
        /// The setting, its value and its range.
        setting: String,
    },
    /// The kernel does not give the memory of the ring.
    #[error(
        "{interface}: no memory for a ring of {blocks} blocks of {block_bytes} bytes; ask for fewer or smaller ones"
    )]
    NoMemory {
        /// The name as given.
        interface: String,
        /// Blocks asked for.
        blocks: u32,
        /// Bytes of each.
        block_bytes: u32,
    },
    /// The kernel does not hand out the first packets of flows only.
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
    /// The process lacks another right.
    #[error("{interface}: {why}")]
    NotAllowed {
        /// The name as given.
        interface: String,
        /// What is refused, and the cure.
        why: String,
    },
    /// The interface is not to be had.
    #[error("{interface}: {why}")]
    Unavailable {
        /// The name as given.
        interface: String,
        /// Why, and the cure.
        why: String,
    },
    /// There is no such file.
    #[error("{file}: no such file")]
    NotFound {
        /// The path as given.
        file: String,
    },
    /// The path is a folder.
    #[error("{file}: is a directory; name a capture file in it")]
    Directory {
        /// The path as given.
        file: String,
    },
    /// The file may not be read.
    #[error("{file}: permission denied; the file is not readable by this user")]
    Permission {
        /// The path as given.
        file: String,
    },
    /// The system gave another reason.
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

/// What people are told of an interface that has another name now. It is not followed: the settings name an interface, and the
/// next start looks for that name.
pub(crate) fn renamed(interface: &str, name: &str) -> String {
    format!(
        "{interface}: the interface is now called {name}; give it its name back, or put the new one into io.interfaces and \
         restart"
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
    /// It was set down. The port goes on by itself once it is up.
    #[error("the interface is down; work on it goes on when it is up")]
    Down,
    /// It was deleted or moved to another network namespace. The port has to be reopened, once an
    /// interface of that name is there.
    #[error("the interface is gone: deleted, or moved to another network namespace")]
    Gone,
    /// The system fails otherwise.
    #[error("cannot go on: {0}")]
    System(#[from] io::Error),
}

impl InterfaceErrorKind {
    /// Whether the port may serve again: by itself after [`Self::Down`], by reopening it after
    /// [`Self::Gone`].
    pub fn is_recoverable(&self) -> bool {
        !matches!(self, Self::System(_))
    }
}

/// Why a port cannot go on receiving. The message is one line and names the port.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct RxError {
    /// What kind of trouble it is.
    pub kind: RxErrorKind,
    source: Box<dyn Error + Send + Sync>,
}

/// The kinds of trouble in receiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxErrorKind {
    /// An input that the port needs next cannot be opened.
    NoInput,
    /// The input is damaged: a truncated capture, a bad record.
    Damaged,
    /// The system could not read on.
    Io,
    /// Something that the port needs is not available: an interface, a thread.
    Unavailable,
}

impl RxError {
    /// An error of this kind, with the message of `source`.
    pub fn new(kind: RxErrorKind, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let source = source.into();
        Self { kind, source }
    }

    /// The error itself, for code that knows what the port is: of a capture, a
    /// [`CaptureError`](crate::CaptureError).
    pub fn into_source(self) -> Box<dyn Error + Send + Sync> {
        self.source
    }
}

/// Why sending fails. The message is one line and names the port.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct TxError {
    /// What kind of trouble it is.
    pub kind: TxErrorKind,
    source: Box<dyn Error + Send + Sync>,
}

/// The kinds of trouble in sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxErrorKind {
    /// The link is down. The port sends again by itself once it is up.
    Down,
    /// The link is gone. The port sends again if its receiving side finds the link again.
    Gone,
    /// The system refuses for another reason.
    Failed,
}

impl TxError {
    /// An error of this kind, with the message of `source`.
    pub fn new(kind: TxErrorKind, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let source = source.into();
        Self { kind, source }
    }

    /// Whether the port may send again later.
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
