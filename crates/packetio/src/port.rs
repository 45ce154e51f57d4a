//! The old interface of ports, kept until nothing outside this crate uses it: see [`crate::rx`].

use crate::burst::Burst;
use crate::capture::{CaptureError, CaptureReader};
use crate::error::{InterfaceError, RxError};
use crate::faults::Faults;
use crate::memory::MemoryTrace;
use crate::rx::{Received, Rx};

/// A source of frames.
pub trait Port: Send {
    /// The next 1 to `max` frames (a `max` of 0 counts as 1), valid until the next call.
    ///
    /// A live port waits for a bounded time, and then hands out an empty burst: nothing now, ask
    /// again. Files and memory never do.
    ///
    /// `Ok(None)` means that the source has ended; a live port does not end. An error comes after
    /// all frames before it have been handed out; asked again, the port fails again. The one
    /// exception is a live port whose interface went down: it says so once, hands out empty
    /// bursts, and goes on by itself when the interface is up.
    fn receive(&mut self, max: usize) -> Result<Option<Burst<'_>>, PortError>;
}

impl<P: Port + ?Sized> Port for Box<P> {
    fn receive(&mut self, max: usize) -> Result<Option<Burst<'_>>, PortError> {
        (**self).receive(max)
    }
}

/// Why a port cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// A capture file is damaged or cannot be read.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// Something happened to an interface.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
}

fn old(received: Result<Received<'_>, RxError>) -> Result<Option<Burst<'_>>, PortError> {
    match received {
        Ok(Received::Burst(burst)) => Ok(Some(burst)),
        Ok(Received::Nothing) => Ok(Some(Burst::new(&mut [], &[]))),
        Ok(Received::End) => Ok(None),
        Err(error) => Err(match error.into_source().downcast() {
            Ok(error) => PortError::Capture(*error),
            Err(other) => PortError::Interface(InterfaceError {
                interface: "a port".to_owned(),
                kind: std::io::Error::other(other).into(),
            }),
        }),
    }
}

impl Port for CaptureReader {
    fn receive(&mut self, max: usize) -> Result<Option<Burst<'_>>, PortError> {
        old(Rx::receive(self, max))
    }
}

impl Port for MemoryTrace {
    fn receive(&mut self, max: usize) -> Result<Option<Burst<'_>>, PortError> {
        old(Rx::receive(self, max))
    }
}

impl<R: Rx> Port for Faults<R> {
    fn receive(&mut self, max: usize) -> Result<Option<Burst<'_>>, PortError> {
        old(Rx::receive(self, max))
    }
}
