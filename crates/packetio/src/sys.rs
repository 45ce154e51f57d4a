//! System calls that rustix lacks: options and address of packet sockets, and queries of an
//! interface. `sys/passed.rs` takes over sockets of a previous process.
#![allow(
    unsafe_code,
    reason = "system calls; each block passes the address and the length of one object"
)]

mod passed;

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use libc::{c_int, c_ulong};
pub(crate) use passed::{bound, passed_packet_sockets, unset};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// `ETH_P_ALL` in network order, for an address.
pub(crate) const ALL_PROTOCOLS: u16 = (libc::ETH_P_ALL as u16).to_be();
/// No protocol: the socket receives nothing.
pub(crate) const NO_PROTOCOL: u16 = 0;

/// Properties of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// `ARPHRD_` number.
    pub hardware: u16,
    /// Maximum frame bytes behind the link header.
    pub mtu: u32,
    pub is_up: bool,
    /// Up and with a carrier, as far as the driver can tell.
    pub is_running: bool,
}

/// A raw packet socket that receives nothing before it is bound.
pub(crate) fn packet_socket() -> io::Result<OwnedFd> {
    packet_socket_of(SocketType::RAW)
}

/// The same, but its packets begin behind the link header.
pub(crate) fn datagram_packet_socket() -> io::Result<OwnedFd> {
    packet_socket_of(SocketType::DGRAM)
}

fn packet_socket_of(kind: SocketType) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::PACKET, kind, flags, None)?)
}

/// A socket for queries about interfaces; needs no capability.
pub(crate) fn query_socket() -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::INET, SocketType::DGRAM);
    Ok(socket_with(family, kind, SocketFlags::CLOEXEC, None)?)
}

/// Binds a packet socket to an interface and starts to receive `protocol`.
pub(crate) fn bind(socket: BorrowedFd<'_>, index: i32, protocol: u16) -> io::Result<()> {
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
pub(crate) fn set_option(socket: BorrowedFd<'_>, option: c_int, words: &[u32]) -> io::Result<()> {
    set(socket, libc::SOL_PACKET, option, words)
}

/// Options of `linux/if_xdp.h` and `asm-generic/socket.h` that libc lacks.
const XDP_MAX_TX_SKB_BUDGET: c_int = 9;
const SO_PREFER_BUSY_POLL: c_int = 69;
const SO_BUSY_POLL_BUDGET: c_int = 70;
const SO_NETNS_COOKIE: c_int = 71;

/// Maximum frames that an XDP socket sends per call where the kernel copies them.
pub(crate) fn set_xdp_send_budget(socket: BorrowedFd<'_>, frames: u32) -> io::Result<()> {
    set(socket, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &[frames])
}

/// Receive calls poll the driver for `us` microseconds, and its interrupts are deferred.
pub(crate) fn set_busy_poll(socket: BorrowedFd<'_>, us: u32, budget: u32) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, SO_PREFER_BUSY_POLL, &[1])?;
    set(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, &[us])?;
    set(socket, libc::SOL_SOCKET, SO_BUSY_POLL_BUDGET, &[budget])
}

fn set(socket: BorrowedFd<'_>, level: c_int, option: c_int, words: &[u32]) -> io::Result<()> {
    let (value, length) = (words.as_ptr().cast(), size_of_val(words) as libc::socklen_t);
    // SAFETY: the kernel reads `length` bytes of `words`, which has that many.
    done(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, length) })
}

/// The words of an option of the packet level; 0 where the kernel writes none.
pub(crate) fn option<const N: usize>(
    socket: BorrowedFd<'_>,
    option: c_int,
) -> io::Result<[u32; N]> {
    get(socket, libc::SOL_PACKET, option)
}

/// The cookie of a socket's network namespace.
pub(crate) fn namespace(socket: BorrowedFd<'_>) -> io::Result<[u32; 2]> {
    get(socket, libc::SOL_SOCKET, SO_NETNS_COOKIE)
}

fn get<const N: usize>(
    socket: BorrowedFd<'_>,
    level: c_int,
    option: c_int,
) -> io::Result<[u32; N]> {
    let mut words = [0_u32; N];
    let mut length = size_of_val(&words) as libc::socklen_t;
    let (socket, value) = (socket.as_raw_fd(), words.as_mut_ptr().cast());
    // SAFETY: the kernel writes at most `length` bytes to `words`, which has that many, and any
    // bytes make an integer.
    done(unsafe { libc::getsockopt(socket, level, option, value, &raw mut length) })?;
    Ok(words)
}

/// A classic BPF program.
pub(crate) type Program = Vec<libc::sock_filter>;

/// Sets the program that returns how many bytes of each frame are kept.
pub(crate) fn set_filter(socket: BorrowedFd<'_>, program: &Program) -> io::Result<()> {
    set_program(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program)
}

/// Sets the program that spreads frames over a fanout group.
pub(crate) fn set_fanout_program(socket: BorrowedFd<'_>, program: &Program) -> io::Result<()> {
    set_program(socket, libc::SOL_PACKET, libc::PACKET_FANOUT_DATA, program)
}

fn set_program(
    socket: BorrowedFd<'_>,
    level: c_int,
    option: c_int,
    program: &Program,
) -> io::Result<()> {
    let fprog = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: program.as_ptr().cast_mut(),
    };
    let (value, length) = ((&raw const fprog).cast(), size_of_val(&fprog) as libc::socklen_t);
    // SAFETY: the kernel reads `fprog`, and `len` instructions from `filter`, which points to as
    // many; it writes to neither.
    done(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, length) })
}

/// Keeps an interface promiscuous as long as the packet socket is open.
pub(crate) fn be_promiscuous(socket: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    // `packet_mreq`: index, kind and length as half words, and the unused address.
    let [low, high] = (libc::PACKET_MR_PROMISC as u16).to_ne_bytes();
    let kind = u32::from_ne_bytes([low, high, 0, 0]);
    let request = [index, kind, 0, 0];
    set_option(socket, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// Queries an interface; `NotFound` or `ENODEV` if there is none.
pub(crate) fn link(socket: BorrowedFd<'_>, name: &str) -> io::Result<Link> {
    let hardware = ask(socket, libc::SIOCGIFHWADDR, name)?;
    let flags = ask(socket, libc::SIOCGIFFLAGS, name)?;
    let mtu = ask(socket, libc::SIOCGIFMTU, name)?;
    // SAFETY: the kernel has filled the member of the union that belongs to each request, and
    // all of them are integers.
    unsafe {
        let has = |flag| c_int::from(flags.ifr_ifru.ifru_flags) & flag != 0;
        Ok(Link {
            hardware: hardware.ifr_ifru.ifru_hwaddr.sa_family,
            mtu: u32::try_from(mtu.ifr_ifru.ifru_mtu).unwrap_or(0),
            is_up: has(libc::IFF_UP),
            is_running: has(libc::IFF_UP) && has(libc::IFF_RUNNING),
        })
    }
}

/// The name of the driver of an interface.
pub(crate) fn driver(socket: BorrowedFd<'_>, name: &str) -> io::Result<String> {
    // `struct ethtool_drvinfo`: the command, texts, of which the driver's name is first, five
    // words.
    let mut words = [0; 49];
    words[0] = DRIVER;
    // SAFETY: the structure of this command has 196 bytes.
    unsafe { ethtool(socket, name, &mut words) }?;
    let text = words[1..9].iter().flat_map(|word| word.to_ne_bytes());
    let text: Vec<u8> = text.take_while(|byte| *byte != 0).collect();
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Commands of `SIOCETHTOOL` (`linux/ethtool.h`).
const DRIVER: u32 = 0x03;
const RING_SIZES: u32 = 0x10;
const STRINGS: u32 = 0x1b;
const STRING_COUNTS: u32 = 0x37;
const FEATURES: u32 = 0x3a;
const CHANNELS: u32 = 0x3c;
const RECEIVE_HASH: u32 = 0x46;
/// The string set with the features' names (`ETH_SS_FEATURES`).
const FEATURE_NAMES: u32 = 4;
/// Bytes per string.
const STRING_BYTES: usize = 32;

/// `struct ethtool_ringparam`: the command; maxima of receive, mini, jumbo and send rings; current
/// sizes.
pub(crate) fn ring_sizes(socket: BorrowedFd<'_>, name: &str) -> io::Result<[u32; 9]> {
    let mut words = [RING_SIZES, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: the structure of this command has nine words.
    unsafe { ethtool(socket, name, &mut words) }?;
    Ok(words)
}

/// `struct ethtool_channels`: the command; maxima of receive, send, other and combined queues;
/// current numbers.
pub(crate) fn channels(socket: BorrowedFd<'_>, name: &str) -> io::Result<[u32; 9]> {
    let mut words = [CHANNELS, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: as above.
    unsafe { ethtool(socket, name, &mut words) }?;
    Ok(words)
}

/// `struct ethtool_rxfh`, the table and the key.
pub(crate) fn receive_hash(socket: BorrowedFd<'_>, name: &str) -> io::Result<Vec<u32>> {
    // With sizes of 0 the kernel returns the sizes; it refuses any others.
    let mut head = [RECEIVE_HASH, 0, 0, 0, 0, 0];
    // SAFETY: the structure has six words, and with sizes of 0 nothing comes behind it.
    unsafe { ethtool(socket, name, &mut head) }?;
    let (table, key_bytes) = (head[2] as usize, head[3] as usize);
    let mut words = vec![0; head.len() + table + key_bytes.div_ceil(4)];
    words[..4].copy_from_slice(&[RECEIVE_HASH, 0, head[2], head[3]]);
    // SAFETY: behind the six words there is room for the sizes announced in them.
    unsafe { ethtool(socket, name, &mut words) }?;
    Ok(words)
}

/// The features' names, in the bit order of [`features`].
pub(crate) fn feature_names(socket: BorrowedFd<'_>, name: &str) -> io::Result<Vec<String>> {
    let count = feature_count(socket, name)?;
    let mut words = vec![0; 3 + count * STRING_BYTES / 4];
    words[..3].copy_from_slice(&[STRINGS, FEATURE_NAMES, count as u32]);
    // SAFETY: behind the three words there is room for as many strings as the kernel has features.
    unsafe { ethtool(socket, name, &mut words) }?;
    let bytes: Vec<u8> = words[3..].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let text = |name: &[u8]| {
        let end = name.iter().position(|byte| *byte == 0);
        String::from_utf8_lossy(&name[..end.unwrap_or(name.len())]).into_owned()
    };
    Ok(bytes.chunks(STRING_BYTES).map(text).collect())
}

/// Features in blocks of 32: available, requested, active, never changed.
pub(crate) fn features(socket: BorrowedFd<'_>, name: &str) -> io::Result<Vec<[u32; 4]>> {
    let blocks = feature_count(socket, name)?.div_ceil(32);
    let mut words = vec![0; 2 + blocks * 4];
    words[..2].copy_from_slice(&[FEATURES, blocks as u32]);
    // SAFETY: behind the two words there is room for as many blocks of four words as announced.
    unsafe { ethtool(socket, name, &mut words) }?;
    let (blocks, _) = words[2..].as_chunks();
    Ok(blocks.to_vec())
}

/// Number of features known to the running kernel, whatever the interface.
fn feature_count(socket: BorrowedFd<'_>, name: &str) -> io::Result<usize> {
    // `struct ethtool_sset_info`: the command, an unused word, a mask of 64 bits, a count per bit.
    let mut words = [STRING_COUNTS, 0, 0, 0, 0];
    let mask = (1_u64 << FEATURE_NAMES).to_ne_bytes();
    for (word, half) in words[2..4].iter_mut().zip(mask.as_chunks().0) {
        *word = u32::from_ne_bytes(*half);
    }
    // SAFETY: the structure has four words, and one count follows for the mask's single bit.
    unsafe { ethtool(socket, name, &mut words) }?;
    Ok(words[4] as usize)
}

/// Makes a request of `SIOCETHTOOL`; the kernel answers into `words`.
///
/// # Safety
/// `words` must be as long as what the kernel writes for the command in `words[0]`: its structure
/// and as many elements as the request announces or, where it announces none, as the kernel has.
unsafe fn ethtool(socket: BorrowedFd<'_>, name: &str, words: &mut [u32]) -> io::Result<()> {
    let mut request = request(name)?;
    request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    // SAFETY: `request` points to `words`, which are long enough by this function's contract.
    done(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) })
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

/// The names of all interfaces; empty if the system does not list them.
pub(crate) fn interfaces() -> Vec<String> {
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

/// The result of a call that returns -1 on failure.
fn done(result: c_int) -> io::Result<()> {
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
