//! Converts the kernel's records and counts.

use std::net::IpAddr;

use rustix::time::{ClockId, clock_gettime};

use super::FlowCounts;
use super::layout::{Element, IS_UDP, KernelCounts, Key, Record, ticks};
use crate::burst::{Frame, Gso};
use crate::interface::ETHERNET;

const TCP: u8 = 6;
/// Flag of TCP.
const ACK: u8 = 16;

/// Bytes of a VLAN tag.
pub const TAG: usize = 4;
/// Bytes of an Ethernet header's two addresses.
const ADDRESSES: usize = 12;

/// Copies a frame into `room`, with the stripped tag put back. Returns its length there.
pub fn put(room: &mut [u8], frame: &[u8], (protocol, tag): (u16, u16), is_ethernet: bool) -> usize {
    if protocol == 0 || !is_ethernet || frame.len() < ADDRESSES {
        room[..frame.len()].copy_from_slice(frame);
        return frame.len();
    }
    let (addresses, rest) = frame.split_at(ADDRESSES);
    room[..ADDRESSES].copy_from_slice(addresses);
    room[ADDRESSES..ADDRESSES + 2].copy_from_slice(&protocol.to_be_bytes());
    room[ADDRESSES + 2..ADDRESSES + TAG].copy_from_slice(&tag.to_be_bytes());
    room[ADDRESSES + TAG..frame.len() + TAG].copy_from_slice(rest);
    frame.len() + TAG
}

pub fn describe(record: &Record, at: usize, captured: usize, link: u16, clocks: Clocks) -> Frame {
    let wall_ns = record.time_ns as i64 + clocks.wall_ahead_ns;
    let tag = captured as u32 - record.captured;
    Frame {
        at,
        captured: captured as u32,
        wire: record.wire + tag,
        time_us: wall_ns.div_euclid(1000),
        time_sub_ns: wall_ns.rem_euclid(1000) as u16,
        link,
        gso: match record.gso_size {
            0 => Gso::NONE,
            size => Gso::new(size, record.flags & IS_UDP != 0),
        },
        ..Frame::default()
    }
}

/// Bytes of the frame that stands for an element, at most.
pub const ELEMENT_BYTES: usize = 74;

/// Writes the headers of an element's packet into `room`, and describes it, as if it had come up
/// without its payload. `us`: time since boot, near the element's.
pub fn element(
    room: &mut [u8],
    at: usize,
    (key, element): (&Key, Element),
    us: u64,
    (link, clocks): (u16, Clocks),
) -> Frame {
    let length = element.length();
    let (from, to) = match (key.ends(), element.is_from_high()) {
        ([low, high], false) => (low, high),
        ([low, high], true) => (high, low),
    };
    let mut header = Header { room, len: 0 };
    let ethernet = u32::from(link == ETHERNET) * 14;
    if ethernet != 0 {
        header.put(&[0; ADDRESSES]);
        header.put(&(if key.is_v6 == 0 { 0x0800_u16 } else { 0x86dd }).to_be_bytes());
    }
    let payload = match (from.0, to.0) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            header.put(&[0x45, 0]);
            header.put(&length.to_be_bytes());
            header.put(&[0, 0, 0, 0, 64, key.protocol, 0, 0]);
            header.put(&from.octets());
            header.put(&to.octets());
            length.saturating_sub(20)
        }
        (from, to) => {
            let payload = length.saturating_sub(40);
            header.put(&[0x60, 0, 0, 0]);
            header.put(&payload.to_be_bytes());
            header.put(&[key.protocol, 64]);
            for address in [from, to] {
                if let IpAddr::V6(address) = address {
                    header.put(&address.octets());
                }
            }
            payload
        }
    };
    header.put(&from.1.to_be_bytes());
    header.put(&to.1.to_be_bytes());
    if key.protocol == TCP {
        let flags = ACK | u8::from(element.has_fin()) | u8::from(element.has_rst()) << 2;
        header.put(&[0, 0, 0, 0, 0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]);
    } else {
        header.put(&payload.to_be_bytes());
        header.put(&[0, 0]);
    }
    let ago_us = (us as u32).wrapping_sub(element.us());
    // This CPU's clock may lag behind.
    let ago_us = if ago_us > u32::MAX / 2 { 0 } else { ago_us };
    let wall_ns = (us as i64 - i64::from(ago_us)) * 1000 + clocks.wall_ahead_ns;
    Frame {
        at,
        captured: header.len as u32,
        wire: u32::from(length) + ethernet,
        time_us: wall_ns.div_euclid(1000),
        link,
        ..Frame::default()
    }
}

/// Bytes that are written one after the other.
struct Header<'a> {
    room: &'a mut [u8],
    len: usize,
}

impl Header<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.room[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

pub fn flow_counts(key: &Key, counts: &KernelCounts, clocks: Clocks) -> FlowCounts {
    let silent = clocks.ticks.wrapping_sub(counts.last);
    // This thread's clock may lag behind the kernel's at the last packet.
    let silent = if silent > u32::MAX / 2 { 0 } else { silent };
    FlowCounts {
        protocol: key.protocol,
        ends: key.ends(),
        packets: counts.packets,
        bytes: counts.bytes,
        generation: counts.version,
        last_us: (clocks.wall_ns - (i64::from(silent) << 20)).div_euclid(1000),
    }
}

/// The clocks of the kernel, the program and the wall at one moment.
#[derive(Clone, Copy)]
pub struct Clocks {
    wall_ns: i64,
    /// Wall time minus time since boot, ns.
    wall_ahead_ns: i64,
    pub ticks: u32,
}

impl Clocks {
    /// Time since boot, µs.
    pub fn boot_us(self) -> u64 {
        ((self.wall_ns - self.wall_ahead_ns) / 1000) as u64
    }

    pub fn read() -> Clocks {
        let wall_ns = nanoseconds(ClockId::Realtime);
        Clocks {
            wall_ns,
            wall_ahead_ns: wall_ns - nanoseconds(ClockId::Boottime),
            ticks: now_ticks(),
        }
    }
}

pub fn now_ticks() -> u32 {
    ticks(nanoseconds(ClockId::MonotonicCoarse) as u64)
}

fn nanoseconds(clock: ClockId) -> i64 {
    let now = clock_gettime(clock);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}
