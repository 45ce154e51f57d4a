//! Where bursts come from.

use crate::af_packet::InterfaceError;
use crate::burst::Burst;
use crate::capture::CaptureError;

/// A source of frames: a capture file, memory, an interface, or something wrapped around one.
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
