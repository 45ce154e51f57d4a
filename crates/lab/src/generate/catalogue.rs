//! The flows of real captures, to be copied: the frame of each packet and its time.
//!
//! A flow is cut where the flow manager would end it, by silence or by a SYN after its close, and
//! never later, so that each copy is one flow again. Packets that belong to no flow are left out.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use flowmgr::Key;
use flowmgr::wire::{self, Headers, TCP_ACK, TCP_FIN, TCP_RST, TCP_SYN};
use packetio::{Frame, Received, Rx};

use super::frame::{Model, Original};
use super::{BURST, open};
use fenxi::exit::Failure;

/// Silence that ends a flow, µs; the default of `flow.idle_timeout_s`.
const IDLE_US: i64 = 30_000_000;
/// Silence that ends a closed flow, µs; the default of `flow.closed_timeout_s`.
const CLOSED_US: i64 = 5_000_000;
/// The most memory that a catalogue may take.
const BYTES_MAX: usize = 4 << 30;

/// What to put into payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Payload {
    /// Zeros, as many bytes as the original
    Zero,
    /// The original's bytes, as far as they were captured
    Copy,
}

/// A packet of a flow.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Time after the last whole µs before the flow's first packet, ns. Counted from there, all
    /// distances in whole µs, the unit of a series, equal the original's.
    pub after_ns: u64,
    /// Where its bytes begin in the catalogue.
    at: usize,
    /// From which its frame is made.
    pub model: Model,
}

/// A flow to copy; it has at least one packet.
#[derive(Clone, Debug)]
pub struct Flow {
    /// In order of time.
    pub packets: Vec<Packet>,
    /// The lower one of its two ports, which copies keep.
    pub server_port: u16,
    first_us: i64,
}

/// Flows to copy.
#[derive(Debug)]
pub struct Catalogue {
    payload: Payload,
    data: Vec<u8>,
    packets: u64,
    /// In the order in which they began.
    pub flows: Vec<Flow>,
    /// Time of the first packet of all, µs since the epoch.
    pub start_us: i64,
}

impl Catalogue {
    /// The flows of all captures.
    ///
    /// # Errors
    /// A capture cannot be opened or is damaged, there are no flows, or too many.
    pub fn read(captures: &[PathBuf], payload: Payload) -> Result<Catalogue, Failure> {
        let mut catalogue =
            Catalogue { payload, data: Vec::new(), packets: 0, flows: Vec::new(), start_us: 0 };
        for path in captures {
            catalogue.add_capture(path)?;
        }
        match catalogue.flows.first() {
            Some(first) => catalogue.start_us = first.first_us,
            None => {
                let names = captures.iter().map(|path| path.display().to_string());
                let names = names.collect::<Vec<_>>().join(", ");
                let message = format!("{names}: no TCP or UDP flows to copy");
                return Err(Failure::data(message));
            }
        }
        Ok(catalogue)
    }

    /// Packets of all flows.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// The kept bytes of a packet's frame.
    pub fn bytes(&self, packet: &Packet) -> &[u8] {
        &self.data[packet.at..packet.at + packet.model.kept]
    }

    fn add_capture(&mut self, path: &Path) -> Result<(), Failure> {
        let mut port = open(path)?;
        // Flows of two captures are never the same.
        let mut latest = HashMap::new();
        loop {
            let burst = match port.receive(BURST)? {
                Received::Burst(burst) => burst,
                Received::Nothing => continue,
                Received::End => return Ok(()),
            };
            for (i, frame) in burst.frames().iter().enumerate() {
                let bytes = burst.bytes(i);
                let Ok(headers) = wire::parse(frame.link, bytes) else {
                    continue;
                };
                if headers.key.is_icmp() {
                    continue;
                }
                self.add_packet(&mut latest, frame, &headers, bytes);
            }
            if self.data.len() + self.packets as usize * size_of::<Packet>() > BYTES_MAX {
                return Err(Failure::data(format!(
                    "{}: its flows take more than {} GiB of memory; take a shorter capture, or \
                     --payload zero",
                    path.display(),
                    BYTES_MAX >> 30
                )));
            }
        }
    }

    fn add_packet(
        &mut self,
        latest: &mut HashMap<Key, Latest>,
        frame: &Frame,
        headers: &Headers,
        bytes: &[u8],
    ) {
        let Ok(transport_at) = wire::transport_at(frame.link, bytes) else {
            return;
        };
        let mut begin = || {
            self.flows.push(Flow::new(frame.time_us, headers));
            Latest::new(self.flows.len() - 1, headers)
        };
        let known = latest.entry(headers.key).or_insert_with(&mut begin);
        if known.is_over(frame.time_us, headers) {
            *known = begin();
        }
        known.note(frame.time_us, headers);

        let original = Original {
            link: frame.link,
            bytes,
            headers,
            transport_at,
            from_client: headers.from_low == known.client_is_low,
        };
        let at = self.data.len();
        let model = Model::from_original(&original, self.payload == Payload::Copy, &mut self.data);
        self.packets += 1;
        self.flows[known.flow].add(frame, at, model);
    }
}

impl Flow {
    fn new(first_us: i64, headers: &Headers) -> Flow {
        let ((_, one), (_, other)) = headers.key.ends(true);
        Flow { packets: Vec::new(), server_port: one.min(other), first_us }
    }

    fn add(&mut self, frame: &Frame, at: usize, model: Model) {
        let after_us = frame.time_us.saturating_sub(self.first_us).max(0) as u64;
        let after_ns = after_us.saturating_mul(1000) + u64::from(frame.time_sub_ns);
        // A capture's clock may step back; the clock of a copy does not.
        let before_ns = self.packets.last().map_or(0, |packet| packet.after_ns);
        self.packets.push(Packet { after_ns: after_ns.max(before_ns), at, model });
    }
}

/// The latest flow of a 5-tuple.
struct Latest {
    flow: usize,
    last_us: i64,
    /// Whether FIN came from the low end, and from the high one.
    fins: [bool; 2],
    is_reset: bool,
    client_is_low: bool,
}

impl Latest {
    /// A flow that begins with a packet of these headers, which is yet to be noted.
    fn new(flow: usize, headers: &Headers) -> Latest {
        let ((_, low_port), (_, high_port)) = headers.key.ends(true);
        let client_is_low = match low_port == high_port {
            true => headers.from_low,
            false => low_port > high_port,
        };
        Latest { flow, last_us: i64::MAX, fins: [false; 2], is_reset: false, client_is_low }
    }

    fn is_over(&self, time_us: i64, headers: &Headers) -> bool {
        let silent_us = time_us.saturating_sub(self.last_us);
        let is_closed = self.is_reset || self.fins == [true; 2];
        let opens = headers.tcp_flags & (TCP_SYN | TCP_ACK) == TCP_SYN;
        silent_us >= IDLE_US || (is_closed && (opens || silent_us >= CLOSED_US))
    }

    fn note(&mut self, time_us: i64, headers: &Headers) {
        self.last_us = time_us;
        self.fins[usize::from(!headers.from_low)] |= headers.tcp_flags & TCP_FIN != 0;
        self.is_reset |= headers.tcp_flags & TCP_RST != 0;
    }
}

#[cfg(test)]
mod tests {
    use packetio::{CaptureFormat, CaptureWriter};

    use super::*;

    /// TCP from port 5000 to port 80, or back, at these times, with these flags.
    fn flows_of(packets: &[(i64, bool, u8)]) -> Vec<Flow> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let format = CaptureFormat::Pcap { nanosecond: true };
        let mut writer = CaptureWriter::create(format, &mut file).unwrap();
        for &(time_us, is_back, flags) in packets {
            let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0];
            let (ends, ports) = match is_back {
                false => ([10, 0, 0, 1, 10, 0, 0, 2], [0x13, 0x88, 0, 80]),
                true => ([10, 0, 0, 2, 10, 0, 0, 1], [0, 80, 0x13, 0x88]),
            };
            packet.extend(ends);
            packet.extend(ports);
            packet.extend([0, 0, 0, 0, 0, 0, 0, 0, 5 << 4, flags, 0, 0, 0, 0, 0, 0]);
            let frame = Frame {
                captured: 40,
                wire: 40,
                time_us,
                time_sub_ns: 250,
                link: 101,
                ..Frame::default()
            };
            writer.write(&frame, &packet).unwrap();
        }
        writer.finish().unwrap();
        let captures = [file.path().to_owned()];
        Catalogue::read(&captures, Payload::Zero).unwrap().flows
    }

    fn lengths(flows: &[Flow]) -> Vec<usize> {
        flows.iter().map(|flow| flow.packets.len()).collect()
    }

    const ACK: u8 = TCP_ACK;

    #[test]
    fn silence_ends_a_flow() {
        let flows = flows_of(&[(7, false, ACK), (30_000_006, true, ACK), (60_000_006, false, ACK)]);
        assert_eq!(lengths(&flows), [2, 1]);
        assert_eq!(flows[0].packets[1].after_ns, 29_999_999_250);
        assert_eq!(flows[1].packets[0].after_ns, 250);
        assert_eq!(flows[0].server_port, 80);
    }

    #[test]
    fn a_closed_flow_ends_with_a_syn_or_soon() {
        let fin = TCP_FIN | ACK;
        let half = [(0, false, fin), (1, false, TCP_SYN), (6_000_000, true, ACK)];
        assert_eq!(lengths(&flows_of(&half)), [3]);
        let both = [(0, false, fin), (1, true, fin), (2, false, ACK)];
        let opened = [&both[..], &[(3, false, TCP_SYN), (9_000_000, true, ACK)]].concat();
        assert_eq!(lengths(&flows_of(&opened)), [3, 2]);
        let silent = [&both[..], &[(5_000_002, true, ACK)]].concat();
        assert_eq!(lengths(&flows_of(&silent)), [3, 1]);
        let reset = [(0, false, TCP_RST), (1, false, TCP_SYN)];
        assert_eq!(lengths(&flows_of(&reset)), [1, 1]);
    }

    #[test]
    fn a_clock_that_steps_back_stands_still() {
        let flows = flows_of(&[(50, false, ACK), (90, true, ACK), (20, false, ACK)]);
        let times = flows[0].packets.iter().map(|packet| packet.after_ns);
        assert_eq!(times.collect::<Vec<_>>(), [250, 40_250, 40_250]);
    }
}
