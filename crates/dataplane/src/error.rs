//! Errors of the data plane, by what the user can do about them.

use packetio::{RxError, RxErrorKind};

/// An error; its message is one line for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The configuration does not fit the model or the machine.
    #[error("{0}")]
    Config(String),
    /// A model, a profile or a capture is not what it should be.
    #[error("{0}")]
    Data(String),
    /// An input is not there.
    #[error("{0}")]
    NoInput(String),
    /// A library, device, thread or interface is not available.
    #[error("{0}")]
    Unavailable(String),
    /// An output cannot be created.
    #[error("{0}")]
    CannotCreate(String),
    /// Reading or writing failed.
    #[error("{0}")]
    Io(String),
    /// The process lacks a permission.
    #[error("{0}")]
    NotAllowed(String),
    /// A bug.
    #[error("{0}")]
    Software(String),
}

macro_rules! constructors {
    ($($name:ident $variant:ident),*) => {
        impl Error {
            $(pub(crate) fn $name(message: impl Into<String>) -> Error {
                Error::$variant(message.into())
            })*
        }
    };
}

constructors!(
    config Config,
    data Data,
    no_input NoInput,
    unavailable Unavailable,
    cannot_create CannotCreate,
    io Io,
    software Software
);

impl From<RxError> for Error {
    fn from(error: RxError) -> Error {
        let message = error.to_string();
        match error.kind {
            RxErrorKind::NoInput => Error::NoInput(message),
            RxErrorKind::Damaged => Error::Data(message),
            RxErrorKind::Io => Error::Io(message),
            RxErrorKind::Unavailable => Error::Unavailable(message),
        }
    }
}
