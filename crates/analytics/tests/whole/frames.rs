//! Packets of numbered flows. The number is in the addresses and in every length, so that a series
//! shows which flow it is of.

use std::net::IpAddr;

use flowmgr::wire::{TCP, TCP_ACK, TCP_FIN, TCP_RST, TCP_SYN, UDP};

use crate::events::Kind;

/// Link type of frames that begin with the IP header.
pub const RAW_IP: u16 = 101;
/// Bytes of a frame; lengths in the header are longer, as where only the headers were captured.
pub const FRAME: usize = 40;

const CLIENT_PORT: u16 = 1000;
pub const SERVER_PORT: u16 = 443;
/// Client and server of a flow differ by this bit, so that the paper's hash is the same for all
/// flows.
const SERVER: u8 = 0x80;

/// A packet of a flow.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    pub flow: u8,
    pub kind: Kind,
    /// At the IP layer.
    pub length: u16,
}

impl Packet {
    pub fn is_from_client(self) -> bool {
        !matches!(self.kind, Kind::SynAck | Kind::Answer | Kind::FinOfServer)
    }

    fn tcp_flags(self) -> u8 {
        match self.kind {
            Kind::Syn => TCP_SYN,
            Kind::SynAck => TCP_SYN | TCP_ACK,
            Kind::Data | Kind::Answer => TCP_ACK,
            Kind::Fin | Kind::FinOfServer => TCP_FIN | TCP_ACK,
            Kind::Rst => TCP_RST,
        }
    }

    pub fn frame(self) -> [u8; FRAME] {
        let mut frame = [0; FRAME];
        frame[0] = 0x45;
        frame[2..4].copy_from_slice(&self.length.to_be_bytes());
        frame[8] = 64;
        frame[9] = protocol(self.flow);
        let mut ends = [(self.flow, CLIENT_PORT), (self.flow ^ SERVER, SERVER_PORT)];
        if !self.is_from_client() {
            ends.reverse();
        }
        for (at, (host, port)) in ends.into_iter().enumerate() {
            frame[12 + 4 * at..16 + 4 * at].copy_from_slice(&[10, 0, 0, host]);
            frame[20 + 2 * at..22 + 2 * at].copy_from_slice(&port.to_be_bytes());
        }
        match protocol(self.flow) {
            TCP => (frame[32], frame[33]) = (0x50, self.tcp_flags()),
            _ => frame[25] = 20,
        }
        frame
    }
}

/// Every fourth flow is UDP.
pub fn protocol(flow: u8) -> u8 {
    if flow % 4 == 3 { UDP } else { TCP }
}

/// A length that shows whose it is. Every other flow sends the same lengths each time it begins,
/// which the cache knows again; the others never repeat.
pub fn length(flow: u8, packet: u64, serial: u64) -> u16 {
    let rest = match flow % 2 {
        0 => packet % 100,
        _ => 100 + serial % 400,
    };
    FRAME as u16 + 500 * u16::from(flow) + rest as u16
}

/// The flow that sends packets of this length.
pub fn flow_of_length(length: i32) -> u8 {
    ((length.abs() - FRAME as i32) / 500) as u8
}

/// The flow with these ends, and whether the first of them is its client.
pub fn flow_of_ends(source: (IpAddr, u16), destination: (IpAddr, u16)) -> (u8, bool) {
    let is_client = source.1 == CLIENT_PORT;
    let (client, _) = if is_client { source } else { destination };
    let IpAddr::V4(client) = client else { unreachable!("all are IPv4") };
    (client.octets()[3], is_client)
}

/// A fragment and one of a protocol without flows.
pub fn noise() -> [[u8; FRAME]; 2] {
    let packet = Packet { flow: 0, kind: Kind::Data, length: FRAME as u16 };
    let (mut fragment, mut gre) = (packet.frame(), packet.frame());
    fragment[7] = 9;
    gre[9] = 47;
    [fragment, gre]
}
