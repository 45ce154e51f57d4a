//! Copies of the UDP packets that certain ports send, for a thread off the data path.
//!
//! The kernel's filter drops everything else before it is copied. Packets in both directions are
//! seen, those too that this machine sends. Frames that a port takes away from the kernel are not.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::error::OpenError;
use crate::interface::{Interface, system};
use crate::sys::{self, Program};

/// Bytes of a packet that are copied at most.
const BYTES_MAX: u32 = 4096;

/// A packet socket on an interface.
#[derive(Debug)]
pub struct Overheard {
    socket: OwnedFd,
}

impl Overheard {
    /// Listens to UDP packets from these ports.
    ///
    /// # Errors
    /// The interface does not exist, or `CAP_NET_RAW` is missing.
    pub fn open(interface: &str, ports: &[u16]) -> Result<Overheard, OpenError> {
        let interface = Interface::open(interface)?;
        let name = &interface.name;
        let socket = sys::datagram_packet_socket().map_err(|source| match source.kind() {
            io::ErrorKind::PermissionDenied => OpenError::MissingCapability {
                interface: name.clone(),
                what: "packet sockets",
                capability: "CAP_NET_RAW",
            },
            _ => system(name, "a packet socket is refused")(source),
        })?;
        let refused = system(name, "no filter can be set");
        sys::set_filter(socket.as_fd(), &filter(ports)).map_err(refused)?;
        let refused = system(name, "cannot be listened to");
        sys::bind(socket.as_fd(), interface.index as i32, sys::ALL_PROTOCOLS).map_err(refused)?;
        Ok(Overheard { socket })
    }

    /// The next packet, from its IP header on; `None`: none is there, or the interface is away.
    pub fn next<'a>(&self, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
        loop {
            match recv(&self.socket, &mut *buffer, RecvFlags::empty()) {
                Ok((length, _)) => return buffer.get(..length),
                // The kernel reports once that the interface went down.
                Err(Errno::INTR | Errno::NETDOWN) => {}
                Err(_) => return None,
            }
        }
    }
}

impl AsFd for Overheard {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Instructions of classic BPF, as in `linux/bpf_common.h`.
const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF: u16 = 0x28;
const LOAD_HALF_BEHIND: u16 = 0x48;
const LOAD_IPV4_LENGTH: u16 = 0xb1;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

const UDP: u32 = 17;

/// Keeps packets of UDP from these ports; not later fragments, nor IPv6 with extension headers.
fn filter(ports: &[u16]) -> Program {
    const PORTS_AT: u8 = 14;
    let drop_at = PORTS_AT + ports.len() as u8;
    // How far it is from the instruction at `from` to the one at `to`.
    let to_drop = |from: u8| drop_at - from - 1;
    let mut program = vec![
        (LOAD_BYTE, 0, 0, 0),
        (AND, 0, 0, 0xf0),
        (JUMP_EQUAL, 0, 7, 0x40), // IPv6 at 10
        (LOAD_BYTE, 0, 0, 9),
        (JUMP_EQUAL, 0, to_drop(4), UDP),
        (LOAD_HALF, 0, 0, 6),
        (JUMP_ANY_BIT, to_drop(6), 0, 0x1fff),
        (LOAD_IPV4_LENGTH, 0, 0, 0),
        (LOAD_HALF_BEHIND, 0, 0, 0),
        (JUMP, 0, 0, u32::from(PORTS_AT) - 10),
        (JUMP_EQUAL, 0, to_drop(10), 0x60),
        (LOAD_BYTE, 0, 0, 6),
        (JUMP_EQUAL, 0, to_drop(12), UDP),
        (LOAD_HALF, 0, 0, 40),
    ];
    let of_port = |(port, left)| (JUMP_EQUAL, left, 0, u32::from(port));
    program.extend(ports.iter().copied().zip((1..=ports.len() as u8).rev()).map(of_port));
    program.extend([(RETURN, 0, 0, 0), (RETURN, 0, 0, BYTES_MAX)]);
    let instruction = |(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k };
    program.into_iter().map(instruction).collect()
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::tests::netns::Netns;

    #[test]
    fn only_what_the_ports_send_is_heard() {
        let Some(netns) = Netns::new("only_what_the_ports_send_is_heard") else { return };
        netns.run("echo 0 > /proc/sys/net/ipv6/conf/all/disable_ipv6");
        netns.inside(|| {
            let heard = Overheard::open("lo", &[5301, 5302]).unwrap();
            let listener = ["127.0.0.1:0", "[::1]:0"].map(|to| UdpSocket::bind(to).unwrap());
            for (at, to) in listener.iter().enumerate() {
                for port in [5300, 5301, 5302, 5303] {
                    let from = ["127.0.0.1", "::1"][at];
                    let from = UdpSocket::bind((from, port)).unwrap();
                    from.send_to(&port.to_be_bytes(), to.local_addr().unwrap()).unwrap();
                }
            }
            let (mut buffer, mut ports) = ([0; 4096], Vec::new());
            let began = Instant::now();
            // Each packet goes out on lo, and comes in.
            while ports.len() < 8 && began.elapsed() < Duration::from_secs(20) {
                let Some(packet) = heard.next(&mut buffer) else {
                    std::thread::sleep(Duration::from_millis(2));
                    continue;
                };
                let said = packet.last_chunk().copied().unwrap();
                ports.push((packet[0] >> 4, u16::from_be_bytes(said)));
            }
            ports.sort_unstable();
            ports.dedup();
            assert_eq!(ports, [(4, 5301), (4, 5302), (6, 5301), (6, 5302)]);
        });
    }
}
