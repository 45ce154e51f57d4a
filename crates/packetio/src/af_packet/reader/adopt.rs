//! A ring that outlives its process: left to the next one, which adopts it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::net::sockopt::socket_error;

use super::super::open::group;
use super::super::ring::Ring;
use super::RingReader;
use crate::error::OpenError;
use crate::interface::{Interface, system};
use crate::kept::{self, AdoptError};
use crate::settings::PortSettings;
use crate::sys;

/// Attempts to read ring and statistics with no frame in between.
const ATTEMPTS: u32 = 1000;

impl RingReader {
    /// Adopts the rings that the previous process opened on an interface with the same settings;
    /// `sockets` by ring number. Waiting frames come first. A burst that was being processed when
    /// the process was killed comes again.
    pub fn adopt_rings(
        config: &PortSettings,
        sockets: Vec<OwnedFd>,
    ) -> Result<Vec<Self>, AdoptError> {
        let interface = Interface::open(&config.interface)?;
        let group = group(config, &interface, sockets.len() as u32);
        for (number, socket) in sockets.iter().enumerate() {
            let foreign =
                |why| AdoptError::Foreign { interface: config.interface.clone(), number, why };
            let refused = system(&config.interface, "the kept receive ring cannot be used");
            let bound = sys::bound(socket.as_fd()).map_err(&refused)?;
            if bound != (sys::ALL_PROTOCOLS, interface.index as i32) {
                return Err(foreign("its interface is gone"));
            }
            if !is_here(socket).map_err(&refused)? {
                return Err(foreign("it is in another network namespace"));
            }
            let is_member = group.adopt(number as u32, socket.as_fd());
            if !is_member.map_err(&refused)? {
                return Err(foreign("it is not one of a group of as many rings"));
            }
        }
        let group = Arc::new(group);
        let adopt = |(number, socket): (usize, OwnedFd)| {
            let refused = system(&config.interface, "the kept receive ring cannot be mapped");
            let (block_bytes, blocks) = (config.block_bytes as usize, config.blocks as usize);
            let mut ring = Ring::map(socket.as_fd(), block_bytes, blocks).map_err(refused)?;
            ring.resume();
            let interface = Interface::open(&config.interface)?;
            let number = number as u32;
            let mut reader = Self::over(config, interface, group.clone(), number, socket, ring);
            reader.take_stock();
            Ok(reader)
        };
        sockets.into_iter().enumerate().map(adopt).collect()
    }

    /// Counts the frames in the ring, and those dropped while no process read it.
    fn take_stock(&mut self) {
        // Clears a past "interface down", which is not news.
        let _ = socket_error(&self.socket);
        for _ in 0..ATTEMPTS {
            let waiting = self.ring.waiting();
            // The previous process read some of the frames seen; reading resets the statistics.
            if let Ok([_, dropped, _]) = sys::option(self.socket.as_fd(), libc::PACKET_STATISTICS) {
                self.counts.dropped += u64::from(dropped);
            }
            self.counts.seen = waiting + self.counts.dropped;
            if self.ring.waiting() == waiting {
                return;
            }
        }
    }

    /// Leaves the frames that were not handed out to the next process. The last burst was
    /// processed.
    pub fn leave(&mut self) {
        self.frames.clear();
        self.settle();
        self.is_left = true;
    }

    /// Whether a keeper keeps the ring.
    pub fn is_kept(&self) -> bool {
        self.config.keeper.is_some()
    }

    /// Hands the ring to the keeper.
    pub(super) fn keep(&self) {
        if let Some(keeper) = &self.config.keeper {
            keeper.keep(&self.description(), self.socket.as_fd());
        }
    }

    /// Tells the keeper to drop the ring.
    pub(super) fn forget(&self) {
        if let Some(keeper) = &self.config.keeper {
            keeper.forget(&self.description());
        }
    }

    fn description(&self) -> String {
        kept::name(&self.config, self.interface.index, self.group.rings, self.number)
    }
}

/// Whether a socket is in the network namespace of this process.
fn is_here(socket: &OwnedFd) -> std::io::Result<bool> {
    let own = sys::query_socket()?;
    // Kernels before 5.14 do not say; then it counts as here.
    Ok(match (sys::namespace(own.as_fd()), sys::namespace(socket.as_fd())) {
        (Ok(own), Ok(its)) => own == its,
        _ => true,
    })
}

/// The names under which the rings of an interface are kept, by number.
pub fn names(settings: &PortSettings, rings: u32) -> Result<Vec<String>, OpenError> {
    let index = Interface::open(&settings.interface)?.index;
    Ok((0..rings).map(|number| kept::name(settings, index, rings, number)).collect())
}
