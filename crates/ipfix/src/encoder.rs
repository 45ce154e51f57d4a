//! Encodes messages (RFC 7011 §3): a header, and sets of templates or records.

use std::net::IpAddr;

use crate::application::Applications;
use crate::template::{
    APPLICATION, FLOW_V4, FLOW_V6, OPTIONS_TEMPLATE_SET, TEMPLATE_SET, put_options_template,
    put_templates, record_length_max,
};
use crate::{Flow, Measured, NAME_MAX};

const VERSION: u16 = 10;
/// Bytes of a message's header.
const HEADER: usize = 16;
/// Bytes of a set's header.
const SET_HEADER: usize = 4;
/// Offset of the length in a set's header.
const SET_LENGTH: usize = 2;
/// Minimum room of a message: for all templates, and any record.
pub const MESSAGE_MIN: usize = 512;

/// A complete message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The message.
    pub bytes: Vec<u8>,
    /// Flows in it.
    pub flows: u64,
}

/// Encodes the messages of one observation domain.
#[derive(Debug)]
pub struct Encoder {
    domain: u32,
    /// Records have [`Flow::measured`].
    has_measured: bool,
    /// Maximum bytes of a message.
    room: usize,
    /// Data records of this session before the current message (RFC 7011 §3.1).
    sequence: u32,
    /// The current message; empty, or with a header to be filled in at the end.
    message: Vec<u8>,
    /// Data records in it.
    records: u32,
    /// Flow records in it.
    flows: u64,
    /// Number and offset of its last set.
    set: Option<(u16, usize)>,
}

impl Encoder {
    /// Makes messages of at most `room` bytes, or [`MESSAGE_MIN`] if that is more.
    /// `has_measured`: records have what was measured.
    pub fn new(domain: u32, room: usize, has_measured: bool) -> Encoder {
        let room = room.clamp(MESSAGE_MIN, usize::from(u16::MAX));
        Encoder {
            domain,
            has_measured,
            room,
            sequence: 0,
            message: Vec::with_capacity(room),
            records: 0,
            flows: 0,
            set: None,
        }
    }

    /// Starts a new transport session: sequence numbers restart, and unsent records are dropped.
    pub fn restart(&mut self) {
        self.discard();
        self.sequence = 0;
    }

    /// Flows in the current message.
    pub fn flows(&self) -> u64 {
        self.flows
    }

    /// Encodes the templates and the names of all applications. Appends whole messages to `to`,
    /// first the current one. `at_s` is the export time, seconds since the epoch.
    pub fn templates(&mut self, applications: &Applications, at_s: u32, to: &mut Vec<Message>) {
        to.extend(self.flush(at_s));
        self.open_set(TEMPLATE_SET);
        put_templates(self.has_measured, &mut self.message);
        self.open_set(OPTIONS_TEMPLATE_SET);
        put_options_template(&mut self.message);
        for label in applications.table() {
            to.extend(self.make_room(APPLICATION, 4 + NAME_MAX, at_s));
            self.message.extend(label.id.bytes());
            let end = self.message.len() + NAME_MAX;
            self.message.extend(label.name.as_bytes());
            self.message.resize(end, 0);
            self.records += 1;
        }
        to.extend(self.flush(at_s));
    }

    /// Adds a flow. Returns the previous message if the flow did not fit.
    pub fn flow(&mut self, flow: &Flow<'_>, at_s: u32) -> Option<Message> {
        let template = match flow.source.0 {
            IpAddr::V4(_) => FLOW_V4,
            IpAddr::V6(_) => FLOW_V6,
        };
        let full = self.make_room(template, record_length_max(template), at_s);
        put_flow(flow, &mut self.message);
        if self.has_measured {
            put_measured(&flow.measured, &mut self.message);
        }
        self.records += 1;
        self.flows += 1;
        full
    }

    /// The current message, if not empty.
    pub fn flush(&mut self, at_s: u32) -> Option<Message> {
        self.close_set();
        if self.message.is_empty() {
            return None;
        }
        let mut bytes = std::mem::replace(&mut self.message, Vec::with_capacity(self.room));
        debug_assert!(bytes.len() <= self.room);
        let length = bytes.len() as u16;
        bytes[0..2].copy_from_slice(&VERSION.to_be_bytes());
        bytes[2..4].copy_from_slice(&length.to_be_bytes());
        bytes[4..8].copy_from_slice(&at_s.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.domain.to_be_bytes());
        let flows = self.flows;
        self.sequence = self.sequence.wrapping_add(self.records);
        self.discard();
        Some(Message { bytes, flows })
    }

    fn discard(&mut self) {
        self.message.clear();
        (self.records, self.flows, self.set) = (0, 0, None);
    }

    /// Makes room for a record of `bytes` bytes in a set of this number.
    fn make_room(&mut self, set: u16, bytes: usize, at_s: u32) -> Option<Message> {
        let is_open = self.set.is_some_and(|(number, _)| number == set);
        let needed = if is_open { bytes } else { SET_HEADER + bytes };
        let full = match self.message.len() + needed > self.room {
            true => self.flush(at_s),
            false => None,
        };
        if full.is_some() || !is_open {
            self.open_set(set);
        }
        full
    }

    fn open_set(&mut self, number: u16) {
        self.close_set();
        if self.message.is_empty() {
            self.message.resize(HEADER, 0);
        }
        self.set = Some((number, self.message.len()));
        self.message.extend(number.to_be_bytes());
        self.message.extend([0; SET_LENGTH]);
    }

    fn close_set(&mut self) {
        if let Some((_, start)) = self.set.take() {
            let length = (self.message.len() - start) as u16;
            self.message[start + SET_LENGTH..start + SET_HEADER]
                .copy_from_slice(&length.to_be_bytes());
        }
    }
}

/// Appends a record, in the order of the template.
fn put_flow(flow: &Flow<'_>, to: &mut Vec<u8>) {
    for (address, _) in [flow.source, flow.destination] {
        match address {
            IpAddr::V4(address) => to.extend(address.octets()),
            IpAddr::V6(address) => to.extend(address.octets()),
        }
    }
    to.extend(flow.source.1.to_be_bytes());
    to.extend(flow.destination.1.to_be_bytes());
    to.extend([flow.protocol, flow.reason as u8]);
    // arbitrary or initiator (RFC 5103 §6.3)
    to.push(u8::from(flow.is_initiator));
    to.extend(flow.start_ms.to_be_bytes());
    to.extend(flow.end_ms.to_be_bytes());
    for direction in 0..2 {
        to.extend(flow.packets[direction].to_be_bytes());
        to.extend(flow.bytes[direction].to_be_bytes());
    }
    to.extend(flow.flow_id.to_be_bytes());
    to.extend(flow.application.id.bytes());
    to.push(if flow.source.0.is_ipv4() { 4 } else { 6 });
    to.push(flow.behaviour);
    to.extend([flow.tcp_flags[1], flow.tcp_flags[0]]);
    to.extend([flow.tos[1], flow.tos[0], flow.post_tos]);
    for interface in flow.interfaces {
        to.extend(interface.to_be_bytes());
    }
    to.extend(flow.icmp);
    let name = flow.application.name.as_bytes();
    debug_assert!(name.len() <= NAME_MAX);
    to.push(name.len() as u8);
    to.extend(name);
}

fn put_measured(measured: &Measured, to: &mut Vec<u8>) {
    to.extend(measured.duration_us.to_be_bytes());
    for bytes in measured.sizes.iter().flatten() {
        to.extend(bytes.to_be_bytes());
    }
}

#[cfg(test)]
mod tests;
