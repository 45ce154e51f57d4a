//! How long it takes to get the figures of servers (Aquarius, Fig. 13): from the shared memory of a
//! service, or by probes.
//!
//! The memory has the daemon's fields and is written once a millisecond. A probe asks each server
//! by HTTP for as many figures as text: all are asked before the first answer is read, over
//! connections that stay open, or that are opened each time. The servers are idle threads behind
//! loopback ports, so what a network, a hypervisor or a busy server would add is missing. All ways
//! take turns.

use std::hint::black_box;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use fenxi::exit::Failure;
use fenxi::machine::Machine;
use flowmgr::{Pages, Service as Schema};
use hdrhistogram::Histogram;
use measure::Features;
use observe::{Egress, Field, Kind, Reader, Service, Snapshot, Writer};

use super::report::{Figure, Report};
use super::rounds::try_interleave;
use crate::cli::BenchArgs;

/// Servers that are asked.
const SERVERS: [usize; 3] = [1, 8, 64];
/// Between two publications, and before each asking.
const PAUSE: Duration = Duration::from_millis(1);
/// Askings of a turn.
const TURN: usize = 16;
/// Longest time that is told from longer ones, ns.
const LONGEST_NS: u64 = 10_000_000_000;
const QUESTION: &[u8] = b"GET /figures HTTP/1.1\r\nHost: server\r\n\r\n";

/// A way to get the figures.
#[derive(Clone, Copy)]
enum Way {
    Memory,
    Probes,
    NewConnections,
}

const WAYS: [(Way, &str); 3] = [
    (Way::Memory, "shared memory"),
    (Way::Probes, "probes"),
    (Way::NewConnections, "probes over new connections"),
];

pub fn run(args: &BenchArgs) -> Result<Report, Failure> {
    let most = SERVERS[SERVERS.len() - 1];
    let mut memory = Memory::new(most).map_err(|error| Failure::software(error.to_string()))?;
    let figures_of_server = memory.fields.len();
    let addresses = || (0..most).map(|_| serve(figures_of_server)).collect::<io::Result<Vec<_>>>();
    // Each thread serves one connection at a time.
    let (kept, fresh) = (addresses().map_err(failed)?, addresses().map_err(failed)?);
    let mut open = kept.iter().map(Probe::new).collect::<io::Result<Vec<_>>>().map_err(failed)?;

    let points = SERVERS.map(|servers| WAYS.map(|(way, name)| (servers, way, name)));
    let points = points.as_flattened();
    let mut times = Vec::new();
    for _ in points {
        let histogram = Histogram::<u64>::new_with_max(LONGEST_NS, 3);
        times.push(histogram.map_err(|error| Failure::software(error.to_string()))?);
    }
    try_interleave(args.seconds, points.len(), |point| {
        let (servers, way, _) = points[point];
        for _ in 0..TURN {
            thread::sleep(PAUSE);
            let begun = Instant::now();
            let sum = match way {
                Way::Memory => memory.read(servers)?,
                Way::Probes => ask(&mut open[..servers]).map_err(failed)?,
                Way::NewConnections => ask_anew(&fresh[..servers]).map_err(failed)?,
            };
            black_box(sum);
            times[point].saturating_record(begun.elapsed().as_nanos() as u64);
        }
        // The histograms keep the results.
        Ok::<f64, Failure>(0.0)
    })?;
    let figures = points.iter().zip(&times).flat_map(|(&(servers, _, name), times)| {
        let us = |quantile| times.value_at_quantile(quantile) as f64 / 1e3;
        let median = Figure { best: us(0.0), ..Figure::one(name, "µs", us(0.5)) };
        [median, Figure::one(format!("{name}, p99"), "µs", us(0.99))]
            .map(|figure| figure.at(servers as f64))
    });
    Ok(Report {
        bench: "probes",
        title: "Time to get the figures of all servers",
        x: "servers",
        machine: Machine::here(Pages::Plain),
        figures: figures.collect(),
        skipped: Vec::new(),
    })
}

fn failed(error: io::Error) -> Failure {
    Failure::unavailable(format!("probes over loopback ports: {error}"))
}

/// The memory of a service, which another thread writes.
struct Memory {
    reader: Reader,
    snapshot: Snapshot,
    /// Counters and gauges.
    fields: Vec<Field>,
}

impl Memory {
    fn new(servers: usize) -> Result<Memory, observe::Error> {
        let fields = Schema::fields(Features::NONE);
        let service = Service {
            name: "bench",
            egresses: servers,
            fields: &fields,
            epoch_ns: 1,
            writer: (0, 1),
            seed: 1,
        };
        let writer = Writer::in_memfd(&service)?;
        let reader = Reader::of(&writer)?;
        let is_value = |it: &&Field| matches!(it.kind, Kind::Counter | Kind::Gauge);
        let fields = reader.fields().iter().filter(is_value).cloned().collect();
        let memory = Memory { snapshot: reader.snapshot(), reader, fields };
        let names: Vec<String> = memory.fields.iter().map(|field| field.name.clone()).collect();
        thread::spawn(move || write(writer, servers, &names));
        Ok(memory)
    }

    /// The sum of all figures of the first servers.
    fn read(&mut self, servers: usize) -> Result<u64, Failure> {
        let read = self.reader.read(&mut self.snapshot);
        read.map_err(|error| Failure::software(error.to_string()))?;
        let rows = self.snapshot.egresses().take(servers);
        let values = rows.flat_map(|row| self.fields.iter().filter_map(move |it| row.value(it)));
        Ok(values.fold(0, u64::wrapping_add))
    }
}

/// Counts up all figures of all servers, until the program ends.
fn write(mut writer: Writer, servers: usize, names: &[String]) {
    let address = |server: usize| IpAddr::from(Ipv4Addr::from(0x0a00_0000 + server as u32));
    let egresses = (0..servers).map(|server| Egress::server(address(server), 80));
    let slots: Vec<_> = egresses.filter_map(|egress| writer.insert(&egress)).collect();
    let values: Vec<_> = names.iter().filter_map(|name| writer.value(name)).collect();
    let begun = Instant::now();
    loop {
        for slot in &slots {
            values.iter().for_each(|value| writer.add(*slot, *value, 1));
        }
        writer.publish(begun.elapsed().as_nanos() as u64);
        thread::sleep(PAUSE);
    }
}

/// A server on a thread of its own, until the program ends.
fn serve(figures: usize) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for (stream, number) in listener.incoming().flatten().zip(1..) {
            // The prober says what went wrong.
            let _ = answer(stream, figures, number);
        }
    });
    Ok(address)
}

/// Answers all questions of a connection.
fn answer(stream: TcpStream, figures: usize, mut number: u64) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    loop {
        line.clear();
        if stream.read_line(&mut line)? == 0 {
            return Ok(());
        }
        if line != "\r\n" {
            continue;
        }
        number += 1;
        let body: String = (0..figures).map(|it| format!("figure{it} {number}\n")).collect();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.get_mut().write_all((head + &body).as_bytes())?;
    }
}

/// A connection to a server.
struct Probe {
    stream: BufReader<TcpStream>,
    text: String,
}

impl Probe {
    fn new(address: &SocketAddr) -> io::Result<Probe> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Probe { stream: BufReader::new(stream), text: String::new() })
    }

    fn ask(&mut self) -> io::Result<()> {
        self.stream.get_mut().write_all(QUESTION)
    }

    /// The sum of the figures of an answer.
    fn read(&mut self) -> io::Result<u64> {
        let mut length = 0;
        loop {
            self.text.clear();
            if self.stream.read_line(&mut self.text)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let line = self.text.trim_end();
            if let Some(bytes) = line.strip_prefix("Content-Length: ") {
                length = bytes.parse().unwrap_or(0);
            }
            if line.is_empty() {
                break;
            }
        }
        self.text.clear();
        self.stream.by_ref().take(length).read_to_string(&mut self.text)?;
        let values = self.text.lines().filter_map(|line| line.rsplit(' ').next()?.parse().ok());
        Ok(values.fold(0, u64::wrapping_add))
    }
}

fn ask(probes: &mut [Probe]) -> io::Result<u64> {
    probes.iter_mut().try_for_each(Probe::ask)?;
    probes.iter_mut().try_fold(0, |sum: u64, probe| Ok(sum.wrapping_add(probe.read()?)))
}

fn ask_anew(servers: &[SocketAddr]) -> io::Result<u64> {
    ask(&mut servers.iter().map(Probe::new).collect::<io::Result<Vec<_>>>()?)
}
