//! The flows of a capture, as templates: headers and lengths of their packets.

use std::collections::HashMap;
use std::path::Path;

use flowmgr::wire::{self, Headers, TCP, TCP_FIN, TCP_RST, TCP_SYN};
use flowmgr::{Key, Packet};
use packetio::{CaptureReader, OpenError, Received, Rx};

use super::rig::K;
use fenxi::exit::Failure;

/// Bytes of a frame that are kept, for its headers; the rest is never looked at.
const HEADERS_MAX: usize = 128;
/// Packets of a flow that are kept; a longer flow repeats them.
const PACKETS_MAX: usize = 32;

/// A packet of a template.
#[derive(Clone, Copy)]
struct Kept {
    /// Where its headers lie.
    at: usize,
    headers: usize,
    captured: u32,
    link: u16,
    ip_at: usize,
}

/// A flow of the capture.
pub struct Template {
    kept: Vec<Kept>,
    pub packets: f64,
    pub first_s: f64,
    pub duration_s: f64,
    /// It was closed by FIN or RST.
    is_closed: bool,
}

/// All flows of a capture.
pub struct Templates {
    data: Vec<u8>,
    pub flows: Vec<Template>,
}

impl Templates {
    /// Reads a capture; packets of no flow are left out.
    pub fn read(path: &Path) -> Result<Templates, Failure> {
        let mut port = CaptureReader::open(path)
            .map_err(|error: OpenError| Failure::no_input(error.to_string()))?;
        let mut templates = Templates { data: Vec::new(), flows: Vec::new() };
        let mut by_key: HashMap<Key, usize> = HashMap::new();
        loop {
            let received = port.receive(flowmgr::BURST_MAX);
            let burst = match received.map_err(|error| Failure::data(error.to_string()))? {
                Received::Burst(burst) => burst,
                Received::Nothing => continue,
                Received::End => break,
            };
            for (i, frame) in burst.frames().iter().enumerate() {
                if let Ok(headers) = wire::parse(frame.link, burst.bytes(i))
                    && !headers.key.is_icmp()
                {
                    let flows = &templates.flows;
                    let flow = *by_key.entry(headers.key).or_insert(flows.len());
                    let time_s = frame.time_us as f64 / 1e6;
                    templates.add(flow, time_s, frame.link, &headers, burst.bytes(i));
                }
            }
        }
        if templates.flows.is_empty() {
            let message = format!("{}: no TCP or UDP flows to draw from", path.display());
            return Err(Failure::data(message));
        }
        Ok(templates)
    }

    fn add(&mut self, flow: usize, time_s: f64, link: u16, headers: &Headers, frame: &[u8]) {
        if flow == self.flows.len() {
            self.flows.push(Template {
                kept: Vec::new(),
                packets: 0.0,
                first_s: time_s,
                duration_s: 0.0,
                is_closed: false,
            });
        }
        let template = &mut self.flows[flow];
        template.packets += 1.0;
        template.duration_s = (time_s - template.first_s).max(template.duration_s);
        template.is_closed |= headers.tcp_flags & (TCP_FIN | TCP_RST) != 0;
        if template.kept.len() < PACKETS_MAX {
            let bytes = frame.len().min(HEADERS_MAX);
            template.kept.push(Kept {
                at: self.data.len(),
                headers: bytes,
                captured: frame.len() as u32,
                link,
                ip_at: headers.ip_at as usize,
            });
            self.data.extend_from_slice(&frame[..bytes]);
        }
    }

    /// Scales flows of at least K packets alike, until the mean flow has `mean` packets: short
    /// flows stay short.
    pub fn lengthen(&mut self, mean: f64) {
        let is_long = |flow: &&mut Template| flow.packets >= K as f64;
        let all: f64 = self.flows.iter().map(|flow| flow.packets).sum();
        let long: f64 = self.flows.iter_mut().filter(is_long).map(|it| it.packets).sum();
        let factor = (mean * self.flows.len() as f64 - (all - long)) / long.max(1.0);
        for flow in self.flows.iter_mut().filter(is_long) {
            flow.packets *= factor.max(1.0);
        }
    }

    /// Writes the frame of a packet into `data`, which grows as needed. Payload is room that
    /// nobody writes.
    pub fn write(&self, packet: Drawn, time_us: i64, data: &mut Vec<u8>, at: usize) -> Packet {
        let template = &self.flows[packet.template as usize];
        let kept = template.kept[packet.number as usize % template.kept.len()];
        let end = at + kept.captured as usize;
        if data.len() < end {
            data.resize(end, 0);
        }
        let frame = &mut data[at..end];
        frame[..kept.headers].copy_from_slice(&self.data[kept.at..kept.at + kept.headers]);
        let ip = &mut frame[kept.ip_at..];
        readdress(ip, packet.copy);
        if let Some(flags) = tcp_flags(ip) {
            let opens = if packet.number == 0 { TCP_SYN } else { 0 };
            let closes = packet.is_last && template.is_closed;
            *flags = *flags & !(TCP_SYN | TCP_FIN | TCP_RST) | *flags & opens;
            *flags |= if closes { TCP_RST } else { 0 };
        }
        Packet {
            at,
            captured: kept.captured,
            wire: u32::MAX,
            link: kept.link,
            time_us,
            rss: None,
            gso: flowmgr::Gso::NONE,
        }
    }
}

/// A packet that the process has drawn.
#[derive(Clone, Copy)]
pub struct Drawn {
    pub template: u32,
    /// Distinguishes copies of a template.
    pub copy: u32,
    /// Its number within its flow, from 0.
    pub number: u32,
    pub is_last: bool,
}

/// Gives both ends other addresses, the same for both directions.
fn readdress(ip: &mut [u8], copy: u32) {
    let ends = if ip[0] >> 4 == 4 { [12, 16] } else { [20, 36] };
    for at in ends {
        for (byte, mask) in ip[at..at + 4].iter_mut().zip(copy.to_be_bytes()) {
            *byte ^= mask;
        }
    }
}

/// The byte of TCP flags, if there is TCP right behind the IP header.
fn tcp_flags(ip: &mut [u8]) -> Option<&mut u8> {
    let (protocol, at) = match ip[0] >> 4 {
        4 => (ip[9], usize::from(ip[0] & 15) * 4),
        _ => (ip[6], 40),
    };
    ip.get_mut(at + 13).filter(|_| protocol == TCP)
}
