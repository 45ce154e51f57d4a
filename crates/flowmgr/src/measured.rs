//! Measured features of a flow ([`measure`]): round trips, responses, retransmissions. A part of a
//! flow with its own arrays.
//!
//! The walk hands over each packet with its bytes, which the parser has read already. A merged
//! packet comes once, with all its segments.

use std::io;

use measure::{Feature, Features, Flow, Known, More, Tcp, Told};

use crate::entry::{Counts, Entries};
use crate::manager::Packet;
use crate::memory::{Array, Zeroed};
use crate::part::{First, Part};
use crate::wire::{Headers, Segments, TCP};

/// RFC 1035 §4.2.1.
const DNS: u16 = 53;
/// The pcap link type of a packet that begins with its IP header.
const RAW: u16 = 101;

#[expect(unsafe_code, reason = "a promise about types of integers")]
mod zeroed {
    // SAFETY: integers only, and padding that nobody reads.
    unsafe impl super::Zeroed for super::Flow {}
    // SAFETY: integers only.
    unsafe impl super::Zeroed for super::More {}
}

/// Bytes that a flow takes for these features.
pub(crate) fn bytes_per_flow(features: Features) -> usize {
    match (features == Features::NONE, features.any_of(Features::MORE)) {
        (true, _) => 0,
        (false, false) => measure::FLOW_BYTES,
        (false, true) => measure::FLOW_BYTES + measure::MORE_BYTES,
    }
}

/// What is measured of a table's flows.
pub(crate) struct Measured {
    features: Features,
    flows: Array<Flow>,
    /// Empty unless features need it.
    more: Array<More>,
}

impl Measured {
    /// `None` without features.
    pub fn new(features: Features, entries: usize) -> io::Result<Option<Measured>> {
        if features == Features::NONE {
            return Ok(None);
        }
        let more = if features.any_of(Features::MORE) { entries } else { 0 };
        Ok(Some(Measured { features, flows: Array::new(entries)?, more: Array::new(more)? }))
    }

    /// Asks for the line that the flow's next packet touches.
    #[inline(always)]
    pub fn prefetch_hot(&self, index: u32) {
        crate::prefetch::prefetch(&self.flows, index as usize);
    }

    /// A packet of the flow, or all `segments` of a merged one, whose bytes are in `data`.
    #[inline(always)] // into the walk
    pub fn packet(
        &mut self,
        index: u32,
        direction: usize,
        (headers, segments): (&Headers, Option<&Segments>),
        packet: &Packet,
        data: &[u8],
    ) {
        let Some(flow) = self.flows.get_mut(index as usize) else {
            return;
        };
        let (payload, time_us) = (headers.payload(), packet.time_us);
        match transport(headers, data, packet.at + headers.ip_at as usize) {
            Some(tcp) => {
                let size = segments.map_or(payload, Segments::size);
                flow.segment(direction, tcp, headers.tcp_flags, payload, size, time_us);
            }
            None => flow.datagram(direction, payload, time_us),
        }
        if let Some(more) = self.more.get_mut(index as usize) {
            see_more(self.features, more, direction, (headers, segments), packet, data);
        }
    }

    /// What is told of the flow now.
    pub fn told(&self, entries: &Entries, index: u32, counts: &Counts) -> Told {
        let (hot, cold) = (entries.hot(index), entries.cold(index));
        let key = hot.key();
        let known = Known {
            is_tcp: !key.is_udp(),
            is_dns: key.is_udp() && key.has_port(DNS),
            duration_us: hot.last_us().saturating_sub(cold.first_us).max(0) as u64,
            packets: counts.packets,
            bytes: counts.bytes,
        };
        let more = self.more.get(index as usize);
        Told::of(self.features, &self.flows[index as usize], more, known)
    }
}

/// The header of TCP, and what lies behind it.
#[inline(always)]
fn transport<'a>(headers: &Headers, data: &'a [u8], ip_at: usize) -> Option<Tcp<'a>> {
    let ip = data.get(ip_at..)?;
    // Nearly all headers of IPv4 have no options.
    match ip.len() >= 40 && ip[0] == 0x45 && ip[9] == TCP {
        true => Tcp::new(&ip[20..]),
        false if headers.key.is_udp() => None,
        false => transport_behind(ip),
    }
}

/// The same behind options or extension headers.
#[inline(never)]
fn transport_behind(ip: &[u8]) -> Option<Tcp<'_>> {
    let at = match ip.first()? >> 4 {
        4 => usize::from(ip[0] & 15) * 4,
        _ if ip.get(6) == Some(&TCP) => 40,
        _ => crate::wire::transport_at(RAW, ip).ok()?,
    };
    Tcp::new(ip.get(at..)?)
}

/// Lengths, options and payload.
#[inline(never)]
fn see_more(
    features: Features,
    more: &mut More,
    direction: usize,
    (headers, segments): (&Headers, Option<&Segments>),
    packet: &Packet,
    data: &[u8],
) {
    if features.has(Feature::Sizes) {
        match segments {
            None => more.length(direction, headers.length),
            // All but the last are equally long.
            Some(segments) => [0, segments.count - 1]
                .iter()
                .for_each(|&number| more.length(direction, segments.length(number))),
        }
    }
    let (key, ip_at) = (&headers.key, packet.at + headers.ip_at as usize);
    if !key.is_udp() {
        if features.has(Feature::RttTimestamps)
            && let Some(tcp) = transport(headers, data, ip_at)
        {
            more.segment(direction, tcp, headers.tcp_flags, headers.payload(), packet.time_us);
        }
        return;
    }
    // No more than was captured, because the next packet may follow, and no padding.
    let end = (packet.at + packet.captured as usize).min(ip_at + headers.length as usize);
    if let Some(payload) = data.get(ip_at + headers.header_bytes as usize..end) {
        more.datagram(features, direction, payload, key.has_port(DNS), packet.time_us);
    }
}

impl Part for Measured {
    fn begin(&mut self, index: u32, first: &First<'_>) {
        self.flows[index as usize] = Flow::begin(self.features, !first.midstream);
        if let Some(more) = self.more.get_mut(index as usize) {
            *more = More::default();
        }
    }

    fn report(&mut self, index: u32, counts: &Counts) {
        self.flows[index as usize].reported(counts.packets, counts.bytes);
    }

    fn prefetch(&self, index: u32) {
        crate::prefetch::prefetch(&self.flows, index as usize);
        if !self.more.is_empty() {
            crate::prefetch::prefetch(&self.more, index as usize);
        }
    }
}
