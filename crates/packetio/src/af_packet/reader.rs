//! Reads the frames of a receive ring of an interface.

mod adopt;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

pub use adopt::names;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_error;

use super::block::{Reading, Walk};
use super::counts::RingCounts;
use super::fanout::{Group, keep};
use super::open::{group, ignores_outgoing, set_up, start};
use super::ring::Ring;
use crate::burst::{Burst, Frame};
use crate::error::{InterfaceErrorKind, OpenError};
use crate::interface::{Interface, system};
use crate::rx::WaitHandle;
use crate::settings::PortSettings;
use crate::sys;

/// Empty receive calls after which a reader that never sleeps checks its interface.
const CHECK_AFTER: u32 = 1024;

/// One receive ring of an interface.
#[derive(Debug)]
pub struct RingReader {
    config: PortSettings,
    group: Arc<Group>,
    /// Number of this ring in its group.
    number: u32,
    // Declared, so dropped, before the socket it belongs to.
    ring: Ring,
    socket: OwnedFd,
    /// If it is renamed, frames keep coming until it goes down; then it counts as gone, because the
    /// reader looks for the old name.
    pub(super) interface: Interface,
    state: RingState,
    reading: Reading,
    walk: Walk,
    /// Frames in the current block.
    packets: u32,
    /// Frames of the last burst; kept for its memory.
    frames: Vec<Frame>,
    counts: RingCounts,
    /// Empty receive calls since the interface was last checked.
    idle: u32,
    /// The ring's frames are left to the next process.
    is_left: bool,
}

/// State of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RingState {
    Up,
    /// Reported to the caller.
    Down,
    Gone,
}

impl RingReader {
    /// Opens the rings of an interface. Both directions of a flow arrive in the same ring; the n-th
    /// rings of two interfaces with the same number of rings see the same flows.
    pub fn open_rings(config: &PortSettings, rings: u16) -> Result<Vec<Self>, OpenError> {
        config.check()?;
        let rings = u32::from(rings.max(1));
        let group = Arc::new(group(config, &Interface::open(&config.interface)?, rings));
        let open = |number| {
            let interface = Interface::open(&config.interface)?;
            Self::open_ring(config, interface, group.clone(), number)
        };
        let ports = (0..rings).map(open).collect::<Result<Vec<_>, _>>()?;
        ports.iter().try_for_each(Self::accept)?;
        ports.iter().for_each(Self::keep);
        Ok(ports)
    }

    /// Checks whether an interface could be opened, up to the memory of one ring. Binds nothing and
    /// leaves nothing open.
    pub fn probe(config: &PortSettings) -> Result<(), OpenError> {
        config.check()?;
        let interface = Interface::open(&config.interface)?;
        set_up(config, &interface).map(drop)
    }

    /// Opens one ring. It accepts no frames yet: while rings are missing it would receive theirs.
    fn open_ring(
        config: &PortSettings,
        interface: Interface,
        group: Arc<Group>,
        number: u32,
    ) -> Result<Self, OpenError> {
        let (socket, ring) = set_up(config, &interface)?;
        start(config, &interface, &group, number, socket.as_fd())?;
        Ok(Self::over(config, interface, group, number, socket, ring))
    }

    /// The reader of a ring that was set up.
    fn over(
        config: &PortSettings,
        interface: Interface,
        group: Arc<Group>,
        number: u32,
        socket: OwnedFd,
        ring: Ring,
    ) -> Self {
        let state = if interface.link.is_up { RingState::Up } else { RingState::Down };
        Self {
            config: config.clone(),
            group,
            number,
            ring,
            socket,
            reading: Reading {
                completes_checksums: config.completes_checksums,
                skips_outgoing: ignores_outgoing(config, &interface),
                link: interface.link_type,
                frame_max: Reading::frame_max(interface.link.mtu, interface.link_type),
            },
            interface,
            state,
            walk: Walk::default(),
            packets: 0,
            frames: Vec::new(),
            counts: RingCounts::default(),
            idle: 0,
            is_left: false,
        }
    }

    /// Reopens the ring on the interface that now has its name. `false`: another ring of the
    /// interface must be reopened first. Frames still in the ring are lost. On failure nothing
    /// changes.
    pub fn reopen(&mut self) -> Result<bool, OpenError> {
        let interface = Interface::open(&self.config.interface)?;
        if !self.group.is_turn(self.number) {
            return Ok(false);
        }
        let mut counts = self.counts();
        counts.abandoned += counts.waiting();
        let opened = Self::open_ring(&self.config, interface, self.group.clone(), self.number)?;
        opened.accept()?;
        let frames = std::mem::take(&mut self.frames);
        self.forget();
        *self = Self { counts, frames, ..opened };
        self.keep();
        Ok(true)
    }

    /// Opens the filter.
    fn accept(&self) -> Result<(), OpenError> {
        let refused = system(&self.interface.name, "no filter can be set");
        sys::set_filter(self.socket.as_fd(), &keep(self.config.snap_length)).map_err(refused)
    }

    /// Whether the interface was up at the last check.
    pub fn is_up(&self) -> bool {
        self.state == RingState::Up
    }

    /// Counts of received and lost frames. Asks the kernel, and notices a changed MTU.
    pub fn counts(&mut self) -> RingCounts {
        // Reading `tpacket_stats_v3` (frames, dropped ones, times the ring was full) resets it, so
        // this is the only place that does.
        if let Ok([seen, dropped, _]) = sys::option(self.socket.as_fd(), libc::PACKET_STATISTICS) {
            self.counts.seen += u64::from(seen);
            self.counts.dropped += u64::from(dropped);
        }
        if let Ok(link) = self.interface.refresh() {
            self.reading.frame_max = Reading::frame_max(link.mtu, self.reading.link);
        }
        self.counts
    }

    /// Takes the next 0 to `max` frames (a `max` of 0 counts as 1) from the ring, for
    /// [`Self::burst`]. Waits up to [`PortSettings::wait`] for the first.
    ///
    /// # Errors
    /// The interface went down, which is reported once: the reader resumes by itself. Or it is
    /// gone, which is reported on every call until the reader is reopened.
    pub(super) fn fetch(&mut self, max: usize) -> Result<(), InterfaceErrorKind> {
        self.frames.clear();
        let max = max.max(1);
        if !self.fill(max) {
            self.wait()?;
            self.fill(max);
        }
        Ok(())
    }

    /// Whether the last [`Self::fetch`] returned frames.
    pub(super) fn has_frames(&self) -> bool {
        !self.frames.is_empty()
    }

    /// The frames of the last [`Self::fetch`].
    pub(super) fn burst(&mut self) -> Burst<'_> {
        Burst::new(self.ring.held(), &self.frames).with_offload()
    }

    /// The descriptor that announces frames. While the interface is down it would be readable all
    /// the time, so there is none.
    pub(super) fn wait_handle(&self) -> WaitHandle<'_> {
        if self.is_up() { WaitHandle::Fd(self.socket.as_fd()) } else { WaitHandle::Away }
    }

    /// Fills `frames` from the held block or, if none is held, from the next one.
    #[inline]
    fn fill(&mut self, max: usize) -> bool {
        self.settle();
        if self.is_left {
            return false;
        }
        if self.walk.left == 0 {
            let Some(contents) = self.ring.hold() else {
                return false;
            };
            self.walk = Walk::new(contents.first, contents.packets);
            self.walk.skip(self.ring.held(), contents.read);
            self.packets = contents.packets;
        }
        let block = self.ring.held();
        while self.frames.len() < max {
            let Some(frame) = self.walk.next(block, &self.reading, &mut self.counts) else {
                break;
            };
            self.counts.received += 1;
            self.counts.received_bytes += u64::from(frame.wire);
            self.frames.push(frame);
        }
        true
    }

    /// The frames handed out were processed: returns their block, or notes how far it was read.
    #[inline]
    fn settle(&mut self) {
        if self.walk.left == 0 {
            self.ring.release();
        } else {
            debug_assert!(self.walk.left <= self.packets);
            self.ring.note(self.packets - self.walk.left);
        }
    }

    /// Waits for a block or an event of the interface.
    fn wait(&mut self) -> Result<(), InterfaceErrorKind> {
        if self.config.wait.is_zero() {
            self.idle += 1;
            if self.idle < CHECK_AFTER && self.state == RingState::Up {
                return Ok(());
            }
        }
        self.idle = 0;
        let wait = Timespec::try_from(self.config.wait).unwrap_or_default();
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
        let ready = match poll(&mut polled, Some(&wait)) {
            Ok(ready) => ready,
            Err(rustix::io::Errno::INTR) => 0,
            Err(error) => return Err(io::Error::from(error).into()),
        };
        let is_failed = ready > 0 && polled[0].revents().contains(PollFlags::ERR);
        match self.state {
            RingState::Up if is_failed => self.take_error(),
            RingState::Up => Ok(()),
            RingState::Down => {
                let _ = socket_error(&self.socket); // known: the interface is down
                let link =
                    self.interface.refresh().inspect_err(|_| self.state = RingState::Gone)?;
                if link.is_up {
                    self.state = RingState::Up;
                }
                Ok(())
            }
            RingState::Gone => Err(InterfaceErrorKind::Gone),
        }
    }

    /// Reads the socket's error and sets the state.
    fn take_error(&mut self) -> Result<(), InterfaceErrorKind> {
        match socket_error(&self.socket).map_err(io::Error::from)? {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::NETDOWN) => {
                self.state = match self.interface.refresh() {
                    Ok(_) => RingState::Down,
                    Err(_) => RingState::Gone,
                };
                Err(match self.state {
                    RingState::Gone => InterfaceErrorKind::Gone,
                    _ => InterfaceErrorKind::Down,
                })
            }
            Err(error) => Err(io::Error::from(error).into()),
        }
    }
}
