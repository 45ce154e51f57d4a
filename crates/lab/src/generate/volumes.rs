//! Flows of a network by their volume, from a table of flows by packets and bytes.
//!
//! The table is CSV. Its rows have the columns `flows`, `packets` and `octets`, sums over the
//! row's flows; rows are sorted by the size of their flows. Further columns except `lo` and `hi`
//! say what a row is about: rows that differ in them from the first one are left out, so that a
//! file may hold several tables.
//!
//! The i-th of N flows stands for the i-th of N equal parts of the table's flows and has their mean
//! packets and bytes. So the sums equal the table's for any N; drawing flows at random would
//! include the largest ones or not by chance. Flows begin as a Poisson process, in random order,
//! and have all their packets one way, a millisecond apart.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs;
use std::path::Path;

use packetio::{Received, Rx, RxCounts, RxError};

use super::ends::Ends;
use super::frames::Frames;
use crate::rng::Rng;
use fenxi::exit::Failure;

/// Headers of Ethernet, IPv4 and TCP, which is all that a frame in memory has.
const HEADERS: usize = 54;
const LINK: u64 = 14;
/// The shortest packet of TCP and the longest of all, at the IP layer.
const LENGTHS: std::ops::RangeInclusive<u64> = 40..=65_535;
const GAP_NS: u64 = 1_000_000;

/// The packets and bytes of a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Volume {
    pub packets: u64,
    pub bytes: u64,
}

/// Reads a table and divides its flows into `flows` parts.
///
/// # Errors
/// The file cannot be read, or is no such table.
pub fn volumes(path: &Path, flows: u64) -> Result<Vec<Volume>, Failure> {
    let shown = path.display();
    let text =
        fs::read_to_string(path).map_err(|error| Failure::no_input(format!("{shown}: {error}")))?;
    let rows =
        rows(&text).map_err(|(line, why)| Failure::data(format!("{shown}:{line}: {why}")))?;
    Ok(parts(&rows, flows))
}

/// Flows, packets and octets of each row.
fn rows(text: &str) -> Result<Vec<[f64; 3]>, (usize, String)> {
    let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
    let header: Vec<&str> = lines.next().map_or(Vec::new(), |(_, line)| line.split(',').collect());
    let place = |name: &str| {
        let found = header.iter().position(|column| *column == name);
        found.ok_or_else(|| (1, format!("no column {name}; a table has flows, packets and octets")))
    };
    let places = [place("flows")?, place("packets")?, place("octets")?];
    let is_of =
        |column: usize| !places.contains(&column) && !["lo", "hi"].contains(&header[column]);
    let mut first: Option<Vec<&str>> = None;
    let mut rows = Vec::new();
    for (line, text) in lines.filter(|(_, text)| !text.is_empty()) {
        let cells: Vec<&str> = text.split(',').collect();
        if cells.len() != header.len() {
            return Err((line, format!("{} cells, and {} columns", cells.len(), header.len())));
        }
        let first = first.get_or_insert_with(|| cells.clone());
        if (0..header.len()).any(|column| is_of(column) && cells[column] != first[column]) {
            continue;
        }
        let mut row = [0.0; 3];
        for (value, place) in row.iter_mut().zip(places) {
            let number: Option<u64> = cells[place].parse().ok();
            let wrong = || {
                (line, format!("{}: expected a number, found {:?}", header[place], cells[place]))
            };
            *value = number.ok_or_else(wrong)? as f64;
        }
        if row[0] < 1.0 || row[1] < row[0] || row[2] < row[1] {
            return Err((
                line,
                "expected a flow at least, a packet for each and a byte for each packet".to_owned(),
            ));
        }
        rows.push(row);
    }
    match rows.is_empty() {
        true => Err((1, "no rows".to_owned())),
        false => Ok(rows),
    }
}

fn parts(rows: &[[f64; 3]], flows: u64) -> Vec<Volume> {
    let all: f64 = rows.iter().map(|row| row[0]).sum();
    let share = all / flows as f64;
    let mut rows = rows.iter().copied();
    let mut row = rows.next().unwrap_or_default();
    let mut parts = Vec::with_capacity(flows as usize);
    for _ in 0..flows {
        let (mut wanted, mut packets, mut bytes) = (share, 0.0, 0.0);
        while wanted > 0.0 {
            let taken = wanted.min(row[0]);
            packets += row[1] / row[0] * taken;
            bytes += row[2] / row[0] * taken;
            let left = (row[0] - taken) / row[0];
            row = row.map(|sum| sum * left);
            wanted -= taken;
            // Rounding may leave a little behind the last row.
            if row[0] < 1e-6 {
                match rows.next() {
                    Some(next) => row = next,
                    None => break,
                }
            }
        }
        let packets = ((packets / share).round() as u64).max(1);
        let bytes = (bytes / share).round() as u64;
        parts.push(Volume {
            packets: packets.max(bytes.div_ceil(*LENGTHS.end())),
            bytes: bytes.max(packets * LENGTHS.start()),
        });
    }
    parts
}

/// A flow that still sends. Ordered by the time of its next packet, then by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Running {
    next_ns: u64,
    flow: usize,
    packets_left: u64,
    bytes_left: u64,
}

/// The flows as a port that ends with the last of them.
#[derive(Debug)]
pub struct Volumes {
    flows: Vec<Volume>,
    seed: u64,
    rng: Rng,
    flows_per_s: f64,
    /// When the next flow begins.
    arrival_s: f64,
    begun: usize,
    running: BinaryHeap<Reverse<Running>>,
    frames: Frames,
}

impl Volumes {
    /// These flows, in random order, `flows_per_s` per second.
    pub fn new(mut flows: Vec<Volume>, flows_per_s: f64, seed: u64) -> Volumes {
        let mut rng = Rng::new(seed);
        for at in (1..flows.len()).rev() {
            flows.swap(at, rng.below(at as u32 + 1) as usize);
        }
        Volumes {
            flows,
            seed,
            rng,
            flows_per_s,
            arrival_s: 0.0,
            begun: 0,
            running: BinaryHeap::new(),
            frames: Frames::default(),
        }
    }

    /// The share of the flows that have begun, 0 to 1.
    pub fn share(&self) -> f64 {
        self.begun as f64 / self.flows.len() as f64
    }

    /// Begins the flows that are due before the next packet of the running ones.
    fn begin_due(&mut self) {
        while let Some(volume) = self.flows.get(self.begun) {
            let begin_ns = (self.arrival_s * 1e9) as u64;
            let first_ns = self.running.peek().map(|Reverse(first)| first.next_ns);
            if first_ns.is_some_and(|first_ns| first_ns < begin_ns) {
                return;
            }
            self.running.push(Reverse(Running {
                next_ns: begin_ns,
                flow: self.begun,
                packets_left: volume.packets,
                bytes_left: volume.bytes,
            }));
            self.begun += 1;
            self.arrival_s += self.rng.gap(self.flows_per_s);
        }
    }

    /// Appends the next frame of a flow; how many bytes it has at the IP layer.
    fn write(&mut self, running: &Running) -> u64 {
        // All packets of a flow are of one length, the last ones a byte shorter.
        let length = running.bytes_left.div_ceil(running.packets_left);
        let Ends { client, server } = Ends::new(self.seed, running.flow as u64, false, 443);
        let frame = self.frames.push(
            HEADERS,
            (length + LINK) as u32,
            (running.next_ns / 1000) as i64,
            (running.next_ns % 1000) as u16,
        );
        frame.fill(0);
        frame[12] = 8;
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&(length as u16).to_be_bytes());
        (frame[22], frame[23]) = (64, 6);
        frame[26..30].copy_from_slice(client.address());
        frame[30..34].copy_from_slice(server.address());
        frame[34..36].copy_from_slice(&client.port.to_be_bytes());
        frame[36..38].copy_from_slice(&server.port.to_be_bytes());
        let is_first = running.packets_left == self.flows[running.flow].packets;
        // SYN, then ACK.
        (frame[46], frame[47]) = (0x50, if is_first { 2 } else { 16 });
        length
    }
}

impl Rx for Volumes {
    fn receive(&mut self, max: usize) -> Result<Received<'_>, RxError> {
        self.frames.clear();
        while self.frames.len() < max.max(1) {
            self.begin_due();
            let Some(Reverse(running)) = self.running.pop() else {
                break;
            };
            let length = self.write(&running);
            if running.packets_left > 1 {
                self.running.push(Reverse(Running {
                    next_ns: running.next_ns + GAP_NS,
                    packets_left: running.packets_left - 1,
                    bytes_left: running.bytes_left - length,
                    ..running
                }));
            }
        }
        Ok(self.frames.burst())
    }

    fn name(&self) -> &str {
        "volumes"
    }

    fn counts(&mut self) -> RxCounts {
        self.frames.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "of,lo,hi,flows,packets,octets\n\
                         all,40,100,6,6,360\n\
                         all,100,10000,3,30,6000\n\
                         all,10000,,1,700,1000000\n\
                         tcp,40,100,5,5,300\n";

    #[test]
    fn parts_have_the_sums_of_the_table_whatever_their_number() {
        let rows = rows(TABLE).unwrap();
        assert_eq!(rows.len(), 3, "rows of another table are left out");
        let ten = parts(&rows, 10);
        let volume = |packets, bytes| Volume { packets, bytes };
        assert_eq!(ten[..6], [volume(1, 60); 6]);
        assert_eq!(ten[6..9], [volume(10, 2000); 3]);
        assert_eq!(ten[9], volume(700, 1_000_000));
        for flows in [1, 3, 7, 1000] {
            let bytes: u64 = parts(&rows, flows).iter().map(|it| it.bytes).sum();
            let mean = bytes as f64 / flows as f64;
            assert!((mean - 100_636.0).abs() < 1.0, "{flows}: {mean}");
        }
    }

    #[test]
    fn a_wrong_table_is_named_with_line_and_cure() {
        for (text, expected) in [
            ("", (1, "no column flows")),
            ("flows,packets\n", (1, "no column octets")),
            ("flows,packets,octets\n", (1, "no rows")),
            ("flows,packets,octets\n1,2\n", (2, "2 cells, and 3 columns")),
            ("flows,packets,octets\n1,1,40\n1,x,40\n", (3, "packets: expected a number")),
            ("flows,packets,octets\n2,1,40\n", (2, "expected a flow at least")),
        ] {
            let (line, why) = rows(text).unwrap_err();
            assert_eq!(line, expected.0, "{why}");
            assert!(why.starts_with(expected.1), "{why}");
        }
    }

    #[test]
    fn flows_send_all_that_they_have() {
        let flows = parts(&rows(TABLE).unwrap(), 10);
        let packets: u64 = flows.iter().map(|it| it.packets).sum();
        let bytes: u64 = flows.iter().map(|it| it.bytes).sum();
        let mut port = Volumes::new(flows, 100.0, 1);
        while let Received::Burst(_) = port.receive(7).unwrap() {}
        let counts = port.counts();
        assert_eq!(counts.received, packets);
        assert_eq!(counts.bytes, bytes + packets * LINK);
    }
}
