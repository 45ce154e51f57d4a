//! What headers of a flow's packets say in addition to its key: flags of TCP, type and code of
//! ICMP, type of service, ports of this machine. A part of a flow.

use std::io;

use crate::action::Action;
use crate::memory::{Array, Zeroed};
use crate::part::{First, Part};
use crate::wire::{self, Headers, ICMP_HEADER};

/// What headers said since the flow began, where it came in and leaves, and what is done to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(8))] // an index is scaled for nothing
pub struct HeadersSeen {
    /// Of TCP, the flags of all packets that were walked, forward and in reverse. Of ICMP, type and
    /// code of the first packet.
    pub(crate) of_l4: [u8; 2],
    /// Type of service of IPv4, or traffic class of IPv6, of the first packet forward and in
    /// reverse, as it came.
    pub tos: [u8; 2],
    /// Port where the first packet was seen, from 1; 0 where that is not known.
    pub in_port: u8,
    /// Another port where a forward packet was seen, from 1; 0: none.
    pub out_port: u8,
    /// Number of the flow's action, when this was read.
    pub(crate) action: u8,
    /// Whether `tos` is known: bit 0 forward, bit 1 in reverse.
    tos_known: u8,
}

/// Bytes that a flow takes here.
pub(crate) const FLOW_BYTES: usize = size_of::<HeadersSeen>();
const _: () = assert!(FLOW_BYTES == 8);

impl HeadersSeen {
    /// The DSCP of the first packet, as it came.
    pub fn dscp_seen(&self) -> u8 {
        self.tos[0] >> 2
    }

    /// The DSCP that packets of the flow get, by the flow's action.
    pub fn dscp_set(&self) -> Option<u8> {
        Action::of_number(self.action).dscp
    }
}

#[expect(unsafe_code, reason = "a promise about a type of integers")]
mod zeroed {
    // SAFETY: integers only.
    unsafe impl super::Zeroed for super::HeadersSeen {}
}

/// What headers said of each flow.
pub(crate) struct HeadersPart(Array<HeadersSeen>);

impl HeadersPart {
    pub fn new(entries: usize) -> io::Result<HeadersPart> {
        Array::new(entries).map(HeadersPart)
    }

    /// What is known of a flow with an action of this number.
    pub fn read(&self, index: u32, action: u8) -> HeadersSeen {
        HeadersSeen { action, ..self.0[index as usize] }
    }

    /// The port where the flow's first packet was seen.
    pub fn in_port(&self, index: u32) -> u8 {
        self.0[index as usize].in_port
    }

    /// Adds the TCP flags of a packet.
    pub fn add_flags(&mut self, index: u32, direction: usize, tcp_flags: u8) {
        self.0[index as usize].of_l4[direction & 1] |= tcp_flags;
    }

    /// Notes the type of service of a packet, if it is the first of its direction; of the flow's
    /// first, the type and code of ICMP. `ip` begins with its IP header.
    pub fn note_first(&mut self, index: u32, direction: usize, headers: &Headers, ip: &[u8]) {
        let (seen, bit) = (&mut self.0[index as usize], 1 << (direction & 1));
        if seen.tos_known & bit == 0
            && let Some(tos) = wire::type_of_service(ip)
        {
            seen.tos[direction & 1] = tos;
            seen.tos_known |= bit;
            let icmp = ip.get((headers.header_bytes as usize).saturating_sub(ICMP_HEADER)..);
            if direction == 0
                && headers.key.is_icmp()
                && let Some(&type_and_code) = icmp.and_then(<[u8]>::first_chunk)
            {
                seen.of_l4 = type_and_code;
            }
        }
    }

    /// The DSCP of the flow's first packet, as it came.
    pub fn dscp(&self, index: u32) -> u8 {
        self.0[index as usize].dscp_seen()
    }

    /// A packet that goes forward was seen at this port as well.
    pub fn note_out_port(&mut self, index: u32, port: u8) {
        self.0[index as usize].out_port = port;
    }
}

impl Part for HeadersPart {
    fn begin(&mut self, index: u32, first: &First<'_>) {
        let seen = HeadersSeen { in_port: first.in_port, ..HeadersSeen::default() };
        self.0[index as usize] = seen;
    }

    fn prefetch(&self, index: u32) {
        crate::prefetch::prefetch(&self.0, index as usize);
    }
}
