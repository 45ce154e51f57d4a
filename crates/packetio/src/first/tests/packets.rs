//! Packets to send.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const ACK: u8 = 16;

/// An address and a port.
pub type End = (IpAddr, u16);

pub fn v4(host: u8, port: u16) -> End {
    (Ipv4Addr::new(10, 0, 0, host).into(), port)
}

/// Hosts differ in the last bits of their address, and in bits of the second word.
pub fn v6(host: u8, port: u16) -> End {
    let (middle, last) = (u16::from(host) << 8, u16::from(host));
    (Ipv6Addr::new(0xfd00, 0, 7, middle, 0, 0, 0, last).into(), port)
}

/// A packet of TCP or UDP in an Ethernet frame.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    pub from: End,
    pub to: End,
    pub protocol: u8,
    /// Of TCP.
    pub flags: u8,
    pub payload: usize,
    /// Protocol and value of each VLAN tag, the outermost first.
    pub tags: &'static [(u16, u16)],
}

pub fn udp(from: End, to: End, payload: usize) -> Packet {
    Packet { from, to, protocol: UDP, flags: 0, payload, tags: &[] }
}

pub fn tcp(from: End, to: End, flags: u8, payload: usize) -> Packet {
    Packet { protocol: TCP, flags, ..udp(from, to, payload) }
}

/// Protocol and ends of a packet's flow, as counts name them.
pub fn flow(packet: &Packet) -> (u8, [End; 2]) {
    let mut ends = [packet.from, packet.to];
    ends.sort_unstable();
    (packet.protocol, ends)
}

impl Packet {
    /// The answer to it, of the same length.
    pub fn back(self) -> Packet {
        Packet { from: self.to, to: self.from, ..self }
    }

    /// Bytes at the IP layer.
    pub fn ip_bytes(&self) -> usize {
        let ip = if self.from.0.is_ipv4() { 20 } else { 40 };
        let transport = if self.protocol == TCP { 20 } else { 8 };
        ip + transport + self.payload
    }

    /// The frame.
    pub fn bytes(&self) -> Vec<u8> {
        let mut transport = self.from.1.to_be_bytes().to_vec();
        transport.extend(self.to.1.to_be_bytes());
        if self.protocol == TCP {
            transport.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, self.flags, 1, 0, 0, 0, 0, 0]);
        } else {
            transport.extend((self.payload as u16 + 8).to_be_bytes());
            transport.extend([0, 0]);
        }
        transport.extend((0..self.payload).map(|at| at as u8));
        let (kind, ip) = match (self.from.0, self.to.0) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let ends = [from.octets(), to.octets()];
                (0x0800, v4_header(ends, self.protocol, 0, transport.len()))
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let ends = [from.octets(), to.octets()];
                (0x86dd, v6_header(ends, self.protocol, transport.len()))
            }
            _ => panic!("two families"),
        };
        [ethernet(self.tags, kind), ip, transport].concat()
    }
}

/// An Ethernet header.
pub fn ethernet(tags: &[(u16, u16)], kind: u16) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    for (protocol, tag) in tags {
        bytes.extend(protocol.to_be_bytes());
        bytes.extend(tag.to_be_bytes());
    }
    bytes.extend(kind.to_be_bytes());
    bytes
}

/// An IPv4 header before `payload` bytes; `fragment` holds flags and offset.
pub fn v4_header(ends: [[u8; 4]; 2], protocol: u8, fragment: u16, payload: usize) -> Vec<u8> {
    let mut bytes = vec![0x45, 0];
    bytes.extend((20 + payload as u16).to_be_bytes());
    bytes.extend([0, 9]);
    bytes.extend(fragment.to_be_bytes());
    bytes.extend([64, protocol, 0, 0]);
    bytes.extend(ends.concat());
    let (words, []) = bytes.as_chunks() else { unreachable!() };
    let sum: u32 = words.iter().map(|it| u32::from(u16::from_be_bytes(*it))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// An IPv6 header before `payload` bytes.
pub fn v6_header(ends: [[u8; 16]; 2], next: u8, payload: usize) -> Vec<u8> {
    let mut bytes = vec![0x60, 0, 0, 0];
    bytes.extend((payload as u16).to_be_bytes());
    bytes.extend([next, 64]);
    bytes.extend(ends.concat());
    bytes
}
