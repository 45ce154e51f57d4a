//! A socket of one queue: its rings, and how it is bound.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{
    set_socket_send_buffer_size, set_socket_send_buffer_size_force, set_xdp_rx_ring_size,
    set_xdp_tx_ring_size, set_xdp_umem_completion_ring_size, set_xdp_umem_fill_ring_size,
    set_xdp_umem_reg, xdp_mmap_offsets, xdp_options,
};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpOptionsFlags, XdpUmemReg,
    XdpUmemRegFlags,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

use super::area::Area;
use super::program::Attached;
use super::ring::{Consumer, Producer};
use super::settings::ZeroCopy;
use crate::error::OpenError;
use crate::interface::{Interface, system};
use crate::settings::PortSettings;
use crate::sys;

/// Size of the send ring, frames.
pub(super) const SEND_RING: u32 = 1024;
/// Requested buffer for frames not yet sent, bytes, where the kernel copies.
const SEND_BUFFER: usize = 8 * 1024 * 1024;
/// Frames that the kernel sends per call where it copies; fewer before 6.17.
const SEND_AT_ONCE: u32 = 256;
/// How long a closed socket may still occupy its queue, and how often binding is retried.
const CLOSING: Duration = Duration::from_millis(500);
const RETRY_EVERY: Duration = Duration::from_millis(5);
/// Frames per busy poll.
const BUSY_BUDGET: u32 = 64;

/// The receiving half.
#[derive(Debug)]
pub(super) struct Queue {
    pub socket: Arc<OwnedFd>,
    /// Frames for the kernel to receive into.
    pub fill: Producer<u64>,
    /// Received frames.
    pub received: Consumer<XdpDesc>,
}

/// The sending half.
#[derive(Debug)]
pub(super) struct Sending {
    socket: Arc<OwnedFd>,
    /// Frames to send.
    pub send: Producer<XdpDesc>,
    /// Frames that were sent.
    pub sent: Consumer<u64>,
    /// Whether the kernel flags when it needs a wake-up call.
    has_wakeup: bool,
}

/// What a socket is opened for.
pub(super) struct Wanted<'a> {
    pub interface: &'a Interface,
    pub queue: u32,
    pub area: &'a Area,
    pub settings: &'a PortSettings,
    pub attached: Attached,
    pub receives: bool,
    pub sends: bool,
    /// Whether to wait for a socket that is being closed; not on the data path.
    pub waits: bool,
}

/// The requested halves, and whether the card shares the memory.
pub(super) struct Halves {
    pub queue: Option<Queue>,
    pub sending: Option<Sending>,
    pub is_zero_copy: bool,
}

/// Opens the socket of a queue. It gets no frames before the program knows it.
pub(super) fn open(wanted: &Wanted<'_>) -> Result<Halves, OpenError> {
    let name = &wanted.interface.name;
    let socket = Arc::new(new_socket(name)?);
    register(name, &socket, wanted.area, wanted.settings)?;
    let frames = wanted.settings.own.xdp.frames;
    // The kernel hands out a batch of frames before it says that it took them from the fill ring,
    // so that each may be in there twice for a moment.
    let fill = 2 * frames;
    let rings = || -> io::Result<(Option<Queue>, Option<Sending>)> {
        let fd = socket.as_fd();
        set_xdp_umem_fill_ring_size(fd, fill)?;
        set_xdp_umem_completion_ring_size(fd, SEND_RING)?;
        if wanted.receives {
            set_xdp_rx_ring_size(fd, frames)?;
        }
        if wanted.sends {
            set_xdp_tx_ring_size(fd, SEND_RING)?;
        }
        let at = xdp_mmap_offsets(fd)?;
        let queue = || -> io::Result<Queue> {
            Ok(Queue {
                fill: Producer::map(fd, at.fr, fill, XDP_UMEM_PGOFF_FILL_RING)?,
                received: Consumer::map(fd, at.rx, frames, XDP_PGOFF_RX_RING)?,
                socket: socket.clone(),
            })
        };
        let sending = || -> io::Result<Sending> {
            Ok(Sending {
                send: Producer::map(fd, at.tx, SEND_RING, XDP_PGOFF_TX_RING)?,
                sent: Consumer::map(fd, at.cr, SEND_RING, XDP_UMEM_PGOFF_COMPLETION_RING)?,
                socket: socket.clone(),
                has_wakeup: wanted.settings.own.xdp.need_wakeup,
            })
        };
        let queue = wanted.receives.then(queue).transpose()?;
        Ok((queue, wanted.sends.then(sending).transpose()?))
    };
    let (queue, sending) = rings().map_err(system(name, "the rings of a queue are refused"))?;
    set_options(&socket, wanted)?;
    bind_to(&socket, wanted)?;
    let options = xdp_options(&socket).unwrap_or(XdpOptionsFlags::empty());
    Ok(Halves {
        queue,
        sending,
        is_zero_copy: options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY),
    })
}

fn new_socket(name: &str) -> Result<OwnedFd, OpenError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::XDP, SocketType::RAW, flags, None).map_err(|error| match error {
        Errno::PERM | Errno::ACCESS => OpenError::MissingCapability {
            interface: name.to_owned(),
            what: "XDP sockets",
            capability: "CAP_NET_RAW",
        },
        Errno::AFNOSUPPORT => OpenError::Unsuitable {
            interface: name.to_owned(),
            why: "this kernel has no XDP sockets".to_owned(),
            cure: "set io.backend = \"af_packet\"".to_owned(),
        },
        error => system(name, "cannot open an XDP socket")(error.into()),
    })
}

/// Checks that a socket can be opened and the memory is allowed.
pub(super) fn probe(name: &str, area: &Area, settings: &PortSettings) -> Result<(), OpenError> {
    register(name, &new_socket(name)?, area, settings)
}

/// Registers the memory with the kernel.
fn register(
    name: &str,
    socket: &OwnedFd,
    area: &Area,
    settings: &PortSettings,
) -> Result<(), OpenError> {
    let (addr, len) = area.place();
    let memory = XdpUmemReg {
        addr,
        len,
        chunk_size: settings.own.xdp.frame_bytes,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    set_xdp_umem_reg(socket, memory).map_err(|error| match error {
        Errno::NOBUFS | Errno::NOMEM => {
            OpenError::LockedMemory { interface: name.to_owned(), bytes: len }
        }
        error => system(name, "the memory of the frames is refused")(error.into()),
    })
}

fn set_options(socket: &OwnedFd, wanted: &Wanted<'_>) -> Result<(), OpenError> {
    let fd = socket.as_fd();
    // Where the system allows less, frames are dropped sooner or take more calls.
    let _ = set_socket_send_buffer_size_force(fd, SEND_BUFFER)
        .or_else(|_| set_socket_send_buffer_size(fd, SEND_BUFFER));
    let _ = sys::set_xdp_send_budget(fd, SEND_AT_ONCE);
    let busy_us = wanted.settings.own.xdp.busy_poll_us;
    if busy_us == 0 {
        return Ok(());
    }
    sys::set_busy_poll(fd, busy_us, BUSY_BUDGET).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM) => OpenError::MissingCapability {
            interface: wanted.interface.name.clone(),
            what: "busy polls",
            capability: "CAP_NET_ADMIN",
        },
        _ => system(&wanted.interface.name, "xdp.busy_poll_us is refused")(error),
    })
}

fn bind_to(socket: &OwnedFd, wanted: &Wanted<'_>) -> Result<(), OpenError> {
    let xdp = &wanted.settings.own.xdp;
    let mut flags = match (xdp.zero_copy, wanted.attached) {
        (ZeroCopy::On, _) => SocketAddrXdpFlags::XDP_ZEROCOPY,
        // Generic mode can only copy; a kernel that is not told might try otherwise.
        (ZeroCopy::Off, _) | (_, Attached::Generic) => SocketAddrXdpFlags::XDP_COPY,
        (ZeroCopy::Auto, Attached::Native) => SocketAddrXdpFlags::empty(),
    };
    if xdp.need_wakeup {
        flags |= SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
    }
    let (interface, queue) = (wanted.interface.name.clone(), wanted.queue);
    let address = SocketAddrXdp::new(flags, wanted.interface.index, queue);
    let began = Instant::now();
    let mut bound = bind(socket, &address);
    while wanted.waits && bound == Err(Errno::BUSY) && began.elapsed() < CLOSING {
        std::thread::sleep(RETRY_EVERY);
        bound = bind(socket, &address);
    }
    bound.map_err(|error| match error {
        Errno::BUSY => OpenError::InUse {
            what: format!("another socket has its queue {queue}"),
            cure: "end the program that has it; `ss --xdp -p` shows it".to_owned(),
            interface,
        },
        Errno::OPNOTSUPP if xdp.zero_copy == ZeroCopy::On => OpenError::Unsuitable {
            interface,
            why: "its driver does not share memory in this mode".to_owned(),
            cure: "set xdp.zero_copy = \"auto\"".to_owned(),
        },
        error => system(&interface, "an XDP socket cannot be bound to it")(error.into()),
    })
}

impl Queue {
    /// Makes the kernel take frames from the fill ring, or poll the driver.
    pub fn kick(&self) {
        // A failure shows in the rings or in the state of the interface.
        let _ = recv(&self.socket, &mut [0_u8; 0], RecvFlags::DONTWAIT);
    }
}

impl Sending {
    /// Makes the kernel send the ring's frames, if it waits for a call. Frames that a card does not
    /// take at once stay in the ring.
    pub fn kick(&mut self) -> Result<(), Errno> {
        if self.has_wakeup && !self.send.needs_wakeup() {
            return Ok(());
        }
        match send(&self.socket, &[], SendFlags::DONTWAIT) {
            Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
