//! Writes a service's file of 64 egresses until it is killed, or times snapshots of one.
//!
//! usage: observe write FILE | observe time FILE

use std::net::IpAddr;
use std::path::Path;
use std::process::exit;
use std::thread::sleep;
use std::time::{Duration, Instant};

use observe::{Access, Egress, Error, Field, Kind, Reader, Service, Slot, Writer};

const COUNTERS: [&str; 16] = [
    "flows_begun",
    "flows_ended",
    "packets_in",
    "packets_out",
    "bytes_in",
    "bytes_out",
    "retransmits_in",
    "retransmits_out",
    "out_of_order_in",
    "out_of_order_out",
    "duplicate_acks_in",
    "duplicate_acks_out",
    "zero_windows_in",
    "zero_windows_out",
    "resets",
    "flows_in_flight",
];

const MEASURES: [&str; 10] = [
    "server_handshake",
    "client_handshake",
    "response",
    "rtt_server",
    "rtt_client",
    "duration",
    "gap",
    "packet_bytes",
    "window",
    "flow_bytes",
];

fn write(path: &Path) -> Result<(), Error> {
    let mut fields: Vec<Field> =
        COUNTERS.map(|name| Field::new(name, "packets", Kind::Counter)).into();
    for name in MEASURES {
        fields.push(Field::new(name, "ns", Kind::Reservoir));
        fields.push(Field::new(name, "ns", Kind::Histogram));
    }
    let service = Service {
        name: "example",
        egresses: 64,
        fields: &fields,
        epoch_ns: 1,
        writer: (0, 1),
        seed: 1,
    };
    let access = Access { owner: None, group: None, mode: 0o644 };
    let mut writer = Writer::in_file(&service, path, access)?;
    let all = (1..=64).map(|last| Egress::server(IpAddr::from([10, 0, 0, last]), 80));
    let slots: Vec<Slot> = all.filter_map(|egress| writer.insert(&egress)).collect();
    let begun = Instant::now();
    let (mut rounds, mut publishing) = (0u32, Duration::ZERO);
    loop {
        let now_ns = begun.elapsed().as_nanos() as u64;
        for slot in &slots {
            for name in ["packets_in", "bytes_in"] {
                if let Some(value) = writer.value(name) {
                    writer.add(*slot, value, 1);
                }
            }
            if let Some(measure) = writer.measure("response") {
                writer.sample(*slot, measure, now_ns, now_ns);
            }
        }
        let before = Instant::now();
        writer.publish(now_ns);
        publishing += before.elapsed();
        rounds += 1;
        if rounds.is_multiple_of(5000) {
            println!("a publication takes {:?}", publishing / rounds);
        }
        sleep(Duration::from_millis(1));
    }
}

fn time(path: &Path) -> Result<(), Error> {
    let reader = Reader::open(path)?;
    let mut snapshot = reader.snapshot();
    let mut took: Vec<Duration> = Vec::new();
    for _ in 0..20_000 {
        let begun = Instant::now();
        reader.read(&mut snapshot)?;
        took.push(begun.elapsed());
        // So that the writer publishes between two.
        sleep(Duration::from_micros(50));
    }
    took.sort_unstable();
    let (half, most) = (took[took.len() / 2], took[took.len() * 99 / 100]);
    println!("Rust: {} slots, p50 {half:?}, p99 {most:?}", snapshot.egresses().count());
    Ok(())
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["write", path] => write(Path::new(path)),
        ["time", path] => time(Path::new(path)),
        _ => {
            eprintln!("usage: observe write FILE | observe time FILE");
            exit(64);
        }
    };
    if let Err(error) = done {
        eprintln!("observe: {error}");
        exit(1);
    }
}
