//! State shared by the ports of one interface, and by the two sides of one port.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::program::{Attached, Program};
use super::settings::XdpMode;
use super::socket::Sending;
use crate::error::OpenError;
use crate::interface::Interface;

/// The program of an interface. Locked only while the interface is opened or closed.
#[derive(Debug)]
pub(super) struct Shared(Mutex<Bound>);

#[derive(Debug)]
pub(super) struct Bound {
    pub program: Program,
    /// The interface it is attached to, and how.
    on: Option<(u32, Attached)>,
}

impl Shared {
    pub fn new(program: Program) -> Shared {
        Shared(Mutex::new(Bound { program, on: None }))
    }

    pub fn lock(&self) -> MutexGuard<'_, Bound> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bound {
    /// Attaches the program, if another port has not.
    pub fn attach(&mut self, interface: &Interface, mode: XdpMode) -> Result<Attached, OpenError> {
        match self.on {
            Some((index, attached)) if index == interface.index => Ok(attached),
            _ => {
                self.on = None;
                let attached = self.program.attach(interface, mode)?;
                self.on = Some((interface.index, attached));
                Ok(attached)
            }
        }
    }

    /// Detaches the program from an interface that is gone or renamed.
    pub fn leave(&mut self, interface: &Interface) {
        if self.on.is_some_and(|(index, _)| index == interface.index) {
            self.on = None;
            self.program.detach();
        }
    }
}

/// Links the two sides of a port, which share a socket. The receiving side opens and closes it.
#[derive(Debug)]
pub(super) struct Partner {
    /// Changes with the socket.
    version: AtomicU32,
    next: Mutex<Option<Sending>>,
    mtu: AtomicU32,
}

impl Partner {
    pub fn new(mtu: u32) -> Partner {
        Partner { version: AtomicU32::new(0), next: Mutex::new(None), mtu: AtomicU32::new(mtu) }
    }

    /// Replaces the socket.
    pub fn hand_over(&self, sending: Option<Sending>) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = sending;
        self.version.fetch_add(1, Ordering::Release);
    }

    /// The new socket, or none; `None` if nothing has changed since version `known`.
    pub fn follow(&self, known: &mut u32) -> Option<Option<Sending>> {
        let version = self.version.load(Ordering::Acquire);
        if version == *known {
            return None;
        }
        *known = version;
        Some(self.next.lock().unwrap_or_else(PoisonError::into_inner).take())
    }

    /// MTU of the interface at the last check.
    pub fn mtu(&self) -> u32 {
        self.mtu.load(Ordering::Relaxed)
    }

    pub fn set_mtu(&self, mtu: u32) {
        self.mtu.store(mtu, Ordering::Relaxed);
    }
}
