//! What can be wrong with an interface: at the start, and later.

use std::io;

/// A port could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum AfPacketError {
    /// There is no such interface.
    #[error("{interface}: no such interface; there are: {}", .known.join(", "))]
    NoSuchInterface {
        /// The name as given.
        interface: String,
        /// The interfaces that there are.
        known: Vec<String>,
    },
    /// The process may not open packet sockets.
    #[error("{interface}: permission denied; packet sockets need {capability}")]
    MissingCapability {
        /// The name as given.
        interface: String,
        /// The capability by name.
        capability: &'static str,
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
        /// Which setting, what it is and what it may be.
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
    /// The system refuses a step for another reason.
    #[error("{interface}: {step}: {source}")]
    System {
        /// The name as given.
        interface: String,
        /// What was tried.
        step: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// Something happened to the interface of an open port.
#[derive(Debug, thiserror::Error)]
#[error("{interface}: {kind}")]
pub struct InterfaceError {
    /// The interface's name as given.
    pub interface: String,
    /// What happened.
    pub kind: InterfaceErrorKind,
}

/// What happened to an interface.
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
