//! Sockets opened by another process.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::AddressFamily;
use rustix::net::sockopt::socket_domain;

use super::done;

/// The first descriptor that a service manager passes (`SD_LISTEN_FDS_START`).
const FIRST: RawFd = 3;
/// More than any service manager passes.
const MOST: u32 = 4096;

/// Takes over the packet sockets among the `count` descriptors passed to this process, in order;
/// `None` for other descriptors. Child processes inherit none of them. A second call returns none.
pub(crate) fn passed_packet_sockets(count: u32) -> Vec<Option<OwnedFd>> {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    if IS_DONE.swap(true, Ordering::Relaxed) {
        return Vec::new();
    }
    let numbers = (FIRST..).take(count.min(MOST) as usize);
    let take = |number| {
        // SAFETY: if it is no descriptor, the calls fail. Nothing closes it meanwhile: it was
        // passed to this process to be taken over, which happens here, once.
        let socket = unsafe { BorrowedFd::borrow_raw(number) };
        fcntl_setfd(socket, FdFlags::CLOEXEC).ok()?;
        let is_packet_socket = socket_domain(socket) == Ok(AddressFamily::PACKET);
        // SAFETY: as above: it is open, and has no other owner.
        is_packet_socket.then(|| unsafe { OwnedFd::from_raw_fd(number) })
    };
    numbers.map(take).collect()
}

/// Removes variables from the environment, unless another thread may be reading it.
pub(crate) fn unset(names: &[&str]) {
    let threads = std::fs::read_dir("/proc/self/task").map_or(2, Iterator::count);
    if threads > 1 {
        return;
    }
    for name in names {
        // SAFETY: this thread is the only one, so none reads the environment.
        unsafe { std::env::remove_var(name) };
    }
}

/// The protocol and interface index that a packet socket is bound to.
pub(crate) fn bound(socket: BorrowedFd<'_>) -> io::Result<(u16, i32)> {
    // SAFETY: a `sockaddr_ll` is integers and arrays of them, for which zero is a value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&address) as libc::socklen_t;
    let (number, to) = (socket.as_raw_fd(), (&raw mut address).cast());
    // SAFETY: the kernel writes at most `length` bytes to `address`, which has that many.
    done(unsafe { libc::getsockname(number, to, &raw mut length) })?;
    Ok((address.sll_protocol, address.sll_ifindex))
}
