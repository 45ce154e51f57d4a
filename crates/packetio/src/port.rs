//! Where bursts come from.

use crate::burst::Burst;
use crate::capture::CaptureError;

/// A source of frames: a capture file, memory, an interface, or something wrapped around one.
pub trait Port: Send {
    /// The next 1 to `max` frames (a `max` of 0 counts as 1), valid until the next call.
    ///
    /// `Ok(None)` means that the source has ended. An error comes after all frames before it
    /// have been handed out; asked again, the port fails again.
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
}
