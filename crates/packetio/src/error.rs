//! Errors of opening, receiving and sending. Kinds never name a backend, so callers decide by kind
//! alone.

use std::error::Error;
use std::io;

/// Why a port could not be opened. Each message is one line and names the interface or file.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what variants and fields are")]
pub enum OpenError {
    #[error("{interface}: no such interface; there are: {}", .known.join(", "))]
    NoSuchInterface { interface: String, known: Vec<String> },
    #[error("{interface}: permission denied; {what} need {capability}")]
    MissingCapability { interface: String, what: &'static str, capability: &'static str },
    #[error("{interface}: {what}; {cure}")]
    InUse { interface: String, what: String, cure: String },
    #[error("{interface}: {why}; {cure}")]
    Unsuitable { interface: String, why: String, cure: String },
    #[error("{interface}: the kernel refuses the program that hands over frames: {log}")]
    ProgramRefused { interface: String, log: String },
    #[error(
        "{interface}: {bytes} bytes for frames are more than may be locked in memory; ask for \
         fewer frames, raise the limit (LimitMEMLOCK=infinity, ulimit -l), or grant CAP_IPC_LOCK"
    )]
    LockedMemory { interface: String, bytes: u64 },
    #[error(
        "{interface}: frames of hardware type {hardware} (ARPHRD) are not read; Ethernet, loopback \
         and IP are"
    )]
    UnsupportedLink { interface: String, hardware: u16 },
    #[error("{interface}: {setting}")]
    BadSetting { interface: String, setting: String },
    #[error(
        "{interface}: no memory for a ring of {blocks} blocks of {block_bytes} bytes; ask for \
         fewer or smaller ones"
    )]
    NoMemory { interface: String, blocks: u32, block_bytes: u32 },
    #[error("{interface}: the kernel cannot send up the first packets only: {why}")]
    FirstPackets { interface: String, why: String },
    #[error("{interface}: the kernel cannot label flows: {why}")]
    KernelLabels { interface: String, why: String },
    #[error("{interface}: {step}: {source}")]
    System { interface: String, step: &'static str, source: io::Error },
    #[error("{interface}: {why}")]
    NotAllowed { interface: String, why: String },
    #[error("{interface}: {why}")]
    Unavailable { interface: String, why: String },
    #[error("{file}: {why}")]
    File { file: String, why: String },
}

impl OpenError {
    /// The error of opening `file`.
    pub(crate) fn new(file: String, source: io::Error) -> Self {
        let why = match source.kind() {
            io::ErrorKind::NotFound => "no such file",
            io::ErrorKind::PermissionDenied => {
                "permission denied; the file is not readable by this user"
            }
            io::ErrorKind::IsADirectory => "is a directory; name a capture file in it",
            _ => &format!("cannot be opened: {source}"),
        };
        Self::File { file, why: why.to_owned() }
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
#[error("{line}")]
pub struct TxError {
    /// The kind of error.
    pub kind: InterfaceErrorKind,
    pub(crate) line: String,
}
