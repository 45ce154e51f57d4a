//! The system calls of packet sockets that rustix does not have: their options, their address,
//! and what an interface says of itself. Everything takes plain numbers and slices.
#![allow(
    unsafe_code,
    reason = "system calls; each block passes the address and the length of one object"
)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use libc::{c_int, c_ulong};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// `ETH_P_ALL` as an address wants it, in network order.
pub(super) const ALL_PROTOCOLS: u16 = (libc::ETH_P_ALL as u16).to_be();
/// No protocol: a socket that sends and receives nothing.
pub(super) const NO_PROTOCOL: u16 = 0;

/// What an interface says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// `ARPHRD_` number.
    pub hardware: u16,
    /// Bytes of a frame behind its link header.
    pub mtu: u32,
    pub is_up: bool,
}

/// A raw packet socket that receives nothing before it is bound.
pub(super) fn packet_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(
        AddressFamily::PACKET,
        SocketType::RAW,
        flags,
        None,
    )?)
}

/// A socket to ask about interfaces with; needs no capability.
pub(super) fn query_socket() -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::INET, SocketType::DGRAM);
    Ok(socket_with(family, kind, SocketFlags::CLOEXEC, None)?)
}

/// Ties a packet socket to an interface and starts to receive `protocol`.
pub(super) fn bind(socket: BorrowedFd<'_>, index: i32, protocol: u16) -> io::Result<()> {
    // SAFETY: a `sockaddr_ll` is integers and arrays of them, for which zero is a value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol;
    address.sll_ifindex = index;
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes of `address`, which has that many.
    done(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })
}

/// Sets an option of the packet level.
pub(super) fn set_option(socket: BorrowedFd<'_>, option: c_int, words: &[u32]) -> io::Result<()> {
    set(socket, libc::SOL_PACKET, option, words)
}

/// The most bytes that a socket keeps for frames being sent; the system may allow less.
pub(super) fn set_send_buffer(socket: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, &[bytes])
}

fn set(socket: BorrowedFd<'_>, level: c_int, option: c_int, words: &[u32]) -> io::Result<()> {
    let (value, length) = (words.as_ptr().cast(), size_of_val(words) as libc::socklen_t);
    // SAFETY: the kernel reads `length` bytes of `words`, which has that many.
    done(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, length) })
}

/// The words of an option of the packet level; those that the kernel does not write are 0.
pub(super) fn option<const N: usize>(
    socket: BorrowedFd<'_>,
    option: c_int,
) -> io::Result<[u32; N]> {
    let mut words = [0_u32; N];
    let mut length = size_of_val(&words) as libc::socklen_t;
    let (socket, value) = (socket.as_raw_fd(), words.as_mut_ptr().cast());
    // SAFETY: the kernel writes at most `length` bytes to `words`, which has that many, and any
    // bytes make an integer.
    done(unsafe { libc::getsockopt(socket, libc::SOL_PACKET, option, value, &raw mut length) })?;
    Ok(words)
}

/// A program of the classic BPF.
pub(super) type Program = Vec<libc::sock_filter>;

/// Sets the program that says how many bytes of each frame are kept.
pub(super) fn set_filter(socket: BorrowedFd<'_>, program: &Program) -> io::Result<()> {
    set_program(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program)
}

/// Sets the program that deals out frames to the sockets of a fanout group.
pub(super) fn set_fanout_program(socket: BorrowedFd<'_>, program: &Program) -> io::Result<()> {
    set_program(socket, libc::SOL_PACKET, libc::PACKET_FANOUT_DATA, program)
}

fn set_program(
    socket: BorrowedFd<'_>,
    level: c_int,
    option: c_int,
    program: &Program,
) -> io::Result<()> {
    let fprog = libc::sock_fprog {
        len: program
            .len()
            .try_into()
            .map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: program.as_ptr().cast_mut(),
    };
    let (value, length) = (
        (&raw const fprog).cast(),
        size_of_val(&fprog) as libc::socklen_t,
    );
    // SAFETY: the kernel reads `fprog`, and `len` instructions from `filter`, which points to as
    // many; it writes to neither.
    done(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, length) })
}

/// Asks an interface; `NotFound` or `ENODEV` where there is none.
pub(super) fn link(socket: BorrowedFd<'_>, name: &str) -> io::Result<Link> {
    let hardware = ask(socket, libc::SIOCGIFHWADDR, name)?;
    let flags = ask(socket, libc::SIOCGIFFLAGS, name)?;
    let mtu = ask(socket, libc::SIOCGIFMTU, name)?;
    // SAFETY: the kernel has filled the member of the union that belongs to each request, and
    // all of them are integers.
    unsafe {
        Ok(Link {
            hardware: hardware.ifr_ifru.ifru_hwaddr.sa_family,
            mtu: u32::try_from(mtu.ifr_ifru.ifru_mtu).unwrap_or(0),
            is_up: c_int::from(flags.ifr_ifru.ifru_flags) & libc::IFF_UP != 0,
        })
    }
}

/// One of the old one-number requests of `SIOCETHTOOL`.
pub(super) fn ethtool(socket: BorrowedFd<'_>, name: &str, command: u32) -> io::Result<u32> {
    // `struct ethtool_value`: the command and what it yields.
    let mut value = [command, 0_u32];
    let mut request = request(name)?;
    request.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
    // SAFETY: `request` points to `value`, to whose eight bytes the kernel writes back an
    // `ethtool_value` for the commands of that form, which are the only ones used here.
    done(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) })?;
    Ok(value[1])
}

fn ask(socket: BorrowedFd<'_>, what: c_ulong, name: &str) -> io::Result<libc::ifreq> {
    let mut request = request(name)?;
    // SAFETY: the kernel reads the name in `request` and writes into `request` only.
    done(unsafe { libc::ioctl(socket.as_raw_fd(), what as _, &raw mut request) })?;
    Ok(request)
}

fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: an `ifreq` is integers, arrays of them and a pointer, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains('\0') {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

/// The names of all interfaces; none if the system does not tell.
pub(super) fn interfaces() -> Vec<String> {
    let mut names = Vec::new();
    // SAFETY: the list, unless null, ends with an entry of index 0, before which every name is a
    // C string; it is freed once and not used after.
    unsafe {
        let list = libc::if_nameindex();
        let mut at = list;
        while !at.is_null() && (*at).if_index != 0 {
            names.push(CStr::from_ptr((*at).if_name).to_string_lossy().into_owned());
            at = at.add(1);
        }
        if !list.is_null() {
            libc::if_freenameindex(list);
        }
    }
    names
}

/// Result of a call that says -1 where it failed.
fn done(result: c_int) -> io::Result<()> {
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
