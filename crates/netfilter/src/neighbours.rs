//! The kernel's table of neighbours: which MAC address an IP address has on its link (`ip neigh`).
//!
//! Reading it needs no capability.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::netlink::{DUMP, Header, REQUEST, answers, attributes, push_message};

/// Numbers of `linux/rtnetlink.h` and `linux/neighbour.h`.
const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
/// States in which an entry has no valid MAC address: incomplete, failed, and links without any.
const STATES_WITHOUT: u16 = 0x01 | 0x20 | 0x40;
/// Bytes of `ndmsg` behind the four that any family of netlink has: index of the interface, state,
/// flags and type.
const REST_BYTES: usize = 8;
/// Entries of a table at most; further ones are left out.
const ENTRIES_MAX: usize = 16_384;

/// A socket to ask the kernel of the calling thread's network namespace.
pub struct Neighbours {
    fd: OwnedFd,
    sequence: u32,
    received: Box<[u8]>,
}

impl Neighbours {
    /// # Errors
    /// The kernel gives no such socket.
    pub fn open() -> io::Result<Neighbours> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Routing is netlink's protocol 0.
        let fd = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        rustix::net::connect(&fd, &SocketAddrNetlink::new(0, 0))?;
        Ok(Neighbours { fd, sequence: 0, received: vec![0; 32_768].into() })
    }

    /// The table as it is now, of both families.
    ///
    /// # Errors
    /// The kernel refuses, or the answer was lost.
    pub fn read(&mut self) -> io::Result<Vec<(IpAddr, [u8; 6])>> {
        self.sequence = self.sequence.wrapping_add(1);
        let header = Header {
            kind: RTM_GETNEIGH,
            flags: REQUEST | DUMP,
            sequence: self.sequence,
            family: 0,
            resource: 0,
        };
        let mut request = Vec::new();
        push_message(&mut request, &header, |out| out.extend([0; REST_BYTES]));
        rustix::net::send(&self.fd, &request, SendFlags::empty())?;
        let mut entries = Vec::new();
        loop {
            // The kernel goes on with the table as its answers are read.
            let received = &mut self.received[..];
            let length = match rustix::net::recv(&self.fd, received, RecvFlags::empty()) {
                Ok((length, _)) => length,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(entries),
                Err(error) => return Err(error.into()),
            };
            for answer in answers(&self.received[..length]) {
                if answer.errno != 0 {
                    return Err(io::Error::from_raw_os_error(answer.errno));
                }
                let is_ours = answer.sequence == self.sequence && answer.kind == RTM_NEWNEIGH;
                let entry = if is_ours { entry(answer.attributes) } else { None };
                entries.extend(entry.filter(|_| entries.len() < ENTRIES_MAX));
            }
        }
    }
}

/// The addresses of an entry, from what follows the family.
fn entry(bytes: &[u8]) -> Option<(IpAddr, [u8; 6])> {
    let (rest, tail) = bytes.split_at_checked(REST_BYTES)?;
    let state = u16::from_ne_bytes([rest[4], rest[5]]);
    if state & STATES_WITHOUT != 0 {
        return None;
    }
    let value = |kind| attributes(tail).find(|(it, _)| *it == kind).map(|(_, value)| value);
    let address = value(NDA_DST)?;
    let v4 = <[u8; 4]>::try_from(address).map(IpAddr::from);
    let v6 = || <[u8; 16]>::try_from(address).map(IpAddr::from);
    Some((v4.or_else(|_| v6()).ok()?, value(NDA_LLADDR)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::attribute;

    fn bytes(state: u16, address: &[u8], mac: &[u8]) -> Vec<u8> {
        let mut out = vec![3, 0, 0, 0];
        out.extend(state.to_ne_bytes());
        out.extend([0, 1]);
        attribute(&mut out, NDA_DST, address);
        attribute(&mut out, NDA_LLADDR, mac);
        out
    }

    #[test]
    fn entries_with_a_mac_address_are_read() {
        let mac = [0, 22, 62, 0, 0, 5];
        let stale = entry(&bytes(0x04, &[10, 0, 0, 5], &mac));
        assert_eq!(stale, Some((IpAddr::from([10, 0, 0, 5]), mac)));
        let v6 = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5];
        assert_eq!(entry(&bytes(0x02, &v6, &mac)), Some((IpAddr::from(v6), mac)));
        for state in [0x01, 0x20, 0x40] {
            assert_eq!(entry(&bytes(state, &v6, &mac)), None);
        }
        assert_eq!(entry(&bytes(0x02, &[10, 0, 0], &mac)), None);
        assert_eq!(entry(&bytes(0x02, &v6, &[1, 2])), None);
        assert_eq!(entry(&[0; 7]), None);
    }

    /// Any machine has the table, and may read it.
    #[test]
    fn the_kernel_answers() {
        let mut neighbours = Neighbours::open().unwrap();
        for _ in 0..2 {
            neighbours.read().unwrap();
        }
    }
}
