//! Converts the kernel's records and counts.

use rustix::time::{ClockId, clock_gettime};

use super::FlowCounts;
use super::layout::{IS_UDP, KernelCounts, Key, Record, ticks};
use crate::burst::{Frame, Gso};

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
