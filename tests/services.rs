//! Services in shared memory, through the real program: a reader sees what goes over a wire, and
//! only a reader who may.

mod more;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use observe::{Kind, Reader, Row, receive};
use rustix::fs::{Gid, Uid};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};
use serde_json::Value;

use crate::common::lab::Lab;
use crate::common::live::Live;
use crate::common::packets::{ethernet, ipv4, whole};
use crate::common::{self};
use crate::run::traffic::send;

const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
const FIN_ACK: u8 = 0x11;
const CLIENT: [u8; 4] = [10, 0, 0, 1];

/// A segment from one socket to another; `tcp` has flags and bytes of payload.
fn segment(from: ([u8; 4], u16), to: ([u8; 4], u16), tcp: (u8, usize)) -> Vec<u8> {
    let mut header = [0; 20];
    header[0..2].copy_from_slice(&from.1.to_be_bytes());
    header[2..4].copy_from_slice(&to.1.to_be_bytes());
    (header[12], header[13]) = (0x50, tcp.0);
    let mut packet = ipv4([0, 0], 6, &[&header[..], &vec![0; tcp.1]].concat());
    packet[12..16].copy_from_slice(&from.0);
    packet[16..20].copy_from_slice(&to.0);
    ethernet(0x0800, &packet)
}

/// A connection with a response of `bytes`, from the SYN to both FINs.
fn connection(client: u16, server: ([u8; 4], u16), bytes: usize) -> Vec<Vec<u8>> {
    let client = (CLIENT, client);
    vec![
        segment(client, server, (SYN, 0)),
        segment(server, client, (SYN | ACK, 0)),
        segment(client, server, (ACK, 100)),
        segment(server, client, (ACK, bytes)),
        segment(server, client, (FIN_ACK, 0)),
        segment(client, server, (FIN_ACK, 0)),
    ]
}

/// fenxi, which watches a wire, and what it is configured by.
struct World {
    lab: Lab,
    live: Live,
    dir: tempfile::TempDir,
}

impl World {
    /// `None`: no root. `config` has the services.
    fn new(test: &str, config: &str, sets: &[&str]) -> Option<World> {
        let lab = Lab::new(test, &["box", "far"], &[])?;
        lab.wire("box", "in", "far", "out");
        let dir = tempfile::tempdir().unwrap();
        // Others come as far as the files.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let file = dir.path().join("fenxi.toml");
        fs::write(&file, config).unwrap();
        let mut args = vec!["--config", file.to_str().unwrap()];
        let folder = format!("observe.folder={}", dir.path().join("services").display());
        let own = ["io.interfaces=[\"in\"]", "io.capture=all", "pipeline.layout=1:1:1", &folder];
        args.extend(own.iter().chain(sets).flat_map(|set| ["--set", set]));
        args.extend(common::SIMULATED);
        let live = Live::start(&lab, "box", &args);
        Some(World { lab, live, dir })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join("services").join(name)
    }

    /// Sends frames to the wire, and waits until they were seen.
    fn send(&self, frames: Vec<Vec<u8>>) {
        let capture = self.dir.path().join("sent.pcap");
        let before = self.live.metric_sum("fenxi_packets_total") as u64;
        let count = frames.len() as u64;
        fs::write(&capture, whole(frames)).unwrap();
        assert_eq!(self.lab.on("far", || send(&capture, "out")), count);
        self.live.wait_for_packets(before + count);
    }

    fn reload(&self, config: &str) {
        fs::write(self.dir.path().join("fenxi.toml"), config).unwrap();
        self.live.ctl(&["reload"]).expect_code(0);
    }

    /// `fenxi ctl services`, which must have this one only.
    fn service(&self, name: &str) -> Value {
        let mut ctl = common::fenxi(["ctl", "--json", "services", name, "--socket"]);
        ctl.arg(self.live.socket());
        common::run(ctl).expect_code(0).json()["services"][0].clone()
    }
}

fn value(reader: &Reader, row: &Row<'_>, name: &str) -> u64 {
    let mut kinds = [Kind::Counter, Kind::Gauge].into_iter();
    let field = kinds.find_map(|kind| reader.field(name, kind));
    row.value(field.unwrap()).unwrap()
}

/// A value of each egress, by the end of its address; of all others together by 0.
fn values(reader: &Reader, name: &str) -> Vec<(u8, u64)> {
    let mut snapshot = reader.snapshot();
    reader.read(&mut snapshot).unwrap();
    let rows = snapshot.egresses();
    rows.map(|row| (row.egress().address[15], value(reader, &row, name))).collect()
}

fn sum(reader: &Reader, name: &str) -> u64 {
    values(reader, name).iter().map(|(_, value)| value).sum()
}

const WEB: &str = "[service.web]\nservers = [\"10.0.1.0/24\"]\nports = [80]\n";

#[test]
fn counters_equal_what_was_sent() {
    let Some(world) = World::new("services", WEB, &["measure.flows=true"]) else { return };
    let reader = Reader::open(&world.file("web.0")).unwrap();
    let mut frames = Vec::new();
    for at in 0..300 {
        // Server 1 has 100 connections, server 2 has 200; port 81 is not the service's.
        let server = [10, 0, 1, if at % 3 == 0 { 1 } else { 2 }];
        frames.extend(connection(2000 + at, (server, 80), 1000));
        frames.extend(connection(3000 + at, (server, 81), 10));
    }
    // Server 2 refuses one, and server 3 does not answer.
    frames.push(segment((CLIENT, 5000), ([10, 0, 1, 2], 80), (SYN, 0)));
    frames.push(segment(([10, 0, 1, 2], 80), (CLIENT, 5000), (RST | ACK, 0)));
    frames.push(segment((CLIENT, 5001), ([10, 0, 1, 3], 80), (SYN, 0)));
    world.send(frames);
    world.live.wait_for("all ends are published", |_| sum(&reader, "flows_ended") == 301);
    for (name, expected) in [
        ("flows_begun", [100, 201, 1]),
        ("flows_answered", [100, 201, 0]),
        ("flows_ended", [100, 201, 0]),
        ("flows_reset", [0, 1, 0]),
        ("flows_in_flight", [0, 0, 1]),
        ("packets_in", [300, 601, 1]),
        ("packets_out", [300, 601, 0]),
        ("bytes_in", [22_000, 44_040, 40]),
        ("bytes_out", [112_000, 224_040, 0]),
    ] {
        let [one, two, three] = expected;
        assert_eq!(values(&reader, name), [(0, 0), (1, one), (2, two), (3, three)], "{name}");
    }
    let shown = world.service("web");
    let busiest = &shown["egresses"][0];
    assert_eq!(
        (busiest["egress"].as_str(), busiest["packets_in"].as_u64()),
        (Some("10.0.1.2"), Some(601))
    );
    for time in ["/completion_p50_us", "/handshake_us/p99", "/response_us/p50"] {
        assert!(busiest.pointer(time).is_some_and(Value::is_u64), "{time}: {busiest}");
    }
    world.live.wait_for("there are rates", |_| {
        let shown = world.service("web");
        ["flows_per_s", "bytes_per_s"].iter().all(|rate| shown["egresses"][0][rate].is_f64())
    });
    let page = world.live.get("/");
    let card = page.split("<h2>Services</h2>").nth(1).unwrap();
    let servers = ["10.0.1.1<", "10.0.1.2<", "10.0.1.3<", "others<"];
    assert!(servers.iter().all(|server| card.contains(server)), "{card}");
    let of_web = |name: &str, label: &str| world.live.samples_with(name, label).iter().sum::<f64>();
    assert_eq!(of_web("fenxi_service_flows_total", "event=\"begun\""), 302.0);
    assert_eq!(of_web("fenxi_service_bytes_total", "direction=\"out\""), 336_040.0);
    // Histograms are published one by one.
    world.live.wait_for("all histograms are published", |_| {
        of_web("fenxi_service_completion_seconds_count", "service=\"web\"") == 300.0
    });

    world.live.wait_for("nobody answers", |_| sum(&reader, "syns_unanswered") == 1);
    world.live.terminate(0);
    assert!(reader.is_ended());
    assert_eq!(sum(&reader, "flows_in_flight"), 0);
    assert!(!world.dir.path().join("services/web.0").exists());
}

#[test]
fn a_flood_of_ten_thousand_servers_takes_no_more_memory_and_sums_close() {
    const FLOWS: u16 = 20_000;
    let config = "[service.all]\nservers = [\"10.1.0.0/16\"]\n";
    let Some(world) = World::new("services-flood", config, &[]) else { return };
    let file = world.file("all.0");
    let reader = Reader::open(&file).unwrap();
    let size = fs::metadata(&file).unwrap().len();
    assert!(size < 1 << 20, "{size}");
    let syn = |flow: u16| {
        let server = (flow % 10_000).to_be_bytes();
        segment((CLIENT, 1000 + flow), ([10, 1, server[0], server[1]], 443), (SYN, 0))
    };
    let [first, second] = [0..FLOWS / 2, FLOWS / 2..FLOWS].map(|flows| flows.map(syn).collect());
    world.send(first);
    let before = world.live.resident_kib();
    world.send(second);
    world.live.wait_for("all are published", |_| sum(&reader, "packets_in") == u64::from(FLOWS));
    let grown = world.live.resident_kib().saturating_sub(before);
    assert!(grown < 8 << 10, "{grown} KiB");
    let begun = values(&reader, "flows_begun");
    assert_eq!(begun.len(), 65);
    assert_eq!(begun.iter().map(|(_, flows)| flows).sum::<u64>(), u64::from(FLOWS));
    assert_eq!(sum(&reader, "bytes_in"), 40 * u64::from(FLOWS));
    assert_eq!(sum(&reader, "flows_answered"), 0);
    // A snapshot is of one moment.
    let mut snapshot = reader.snapshot();
    reader.read(&mut snapshot).unwrap();
    let sum_of = |name| snapshot.egresses().map(|row| value(&reader, &row, name)).sum::<u64>();
    assert_eq!(sum_of("flows_begun"), sum_of("flows_ended") + sum_of("flows_in_flight"));
    assert_eq!(fs::metadata(&file).unwrap().len(), size);

    // The only one that answers gets a slot.
    let server = ([10, 1, 200, 7], 443);
    world.live.wait_for("a slot for the busiest", |_| {
        world.send(connection(60_000, server, 10));
        values(&reader, "packets_out").iter().any(|(last, packets)| *last == 7 && *packets > 0)
    });
    world.live.terminate(0);
    assert_eq!(sum(&reader, "flows_begun"), sum(&reader, "flows_ended"));
}

#[test]
fn a_reload_adds_services_and_tells_the_readers_of_those_that_go() {
    let config = "[service.old]\nservers = [\"10.0.1.0/24\"]\n[service.stays]\nservers = \
                  [\"10.0.2.0/24\"]\n";
    let Some(world) = World::new("services-reload", config, &[]) else { return };
    let open = |name: &str| Reader::open(&world.file(name)).unwrap();
    let (old, stays) = (open("old.0"), open("stays.0"));
    let both = |from: u16| {
        let server = |net| ([10, 0, net, 1], 80);
        [connection(from, server(1), 10), connection(from, server(2), 10)].concat()
    };
    world.send(both(1000));
    world.live.wait_for("both have begun", |_| sum(&old, "flows_begun") == 1);

    world.reload(&config.replace("old", "new"));
    world.live.wait_for("the reader of the old one is told", |_| old.is_ended());
    assert!(!stays.is_ended());
    assert_eq!(sum(&old, "flows_begun"), 1, "what it said last");
    assert!(!world.file("old.0").exists());
    let new = open("new.0");
    world.send(both(1001));
    world.live.wait_for("both go on", |_| {
        sum(&new, "flows_ended") == 1 && sum(&stays, "flows_ended") == 2
    });
    assert_eq!(sum(&old, "flows_begun"), 1);

    // None, then one again; a change of one is another file of the same name.
    world.reload("");
    world.live.wait_for("readers are told", |_| new.is_ended() && stays.is_ended());
    world.reload(WEB);
    let first = open("web.0");
    world.reload(&WEB.replace("80", "81"));
    assert!(first.is_ended());
    let second = open("web.0");
    world.send(connection(1002, ([10, 0, 1, 1], 81), 10));
    world.live.wait_for("it has the flow", |_| sum(&second, "flows_ended") == 1);
    world.live.terminate(0);
}

/// As another user and group.
fn as_nobody<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let (group, user) = (Gid::from_raw(65_534), Uid::from_raw(65_534));
            set_thread_res_gid(group, group, group).unwrap();
            set_thread_res_uid(user, user, user).unwrap();
            work()
        });
        thread.join().unwrap()
    })
}

/// The memory that the socket hands out, as far as it does.
fn ask(socket: &Path, question: &str) -> Option<Reader> {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(question.as_bytes()).unwrap();
    match receive(&stream) {
        Ok(file) => Some(Reader::from_fd(file).unwrap()),
        Err(_) => {
            assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "closed");
            None
        }
    }
}

#[test]
fn another_user_gets_neither_a_file_nor_memory_from_the_socket() {
    let Some(world) = World::new("services-file", WEB, &["observe.group=3"]) else { return };
    let file = world.file("web.0");
    let mode = fs::metadata(&file).unwrap();
    assert_eq!(mode.permissions().mode() & 0o777, 0o640);
    assert_eq!(std::os::unix::fs::MetadataExt::gid(&mode), 3);
    let refused = as_nobody(|| Reader::open(&file).err());
    assert!(refused.unwrap().to_string().contains("Permission denied"));
    assert!(Reader::open(&file).is_ok());
    // What belongs to others after a reload, too.
    world.reload("[service.next]\nservers = [\"10.0.1.0/24\"]\n");
    let next = fs::metadata(world.file("next.0")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::gid(&next), 3);
    world.live.terminate(0);

    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let socket = dir.path().join("memory");
    let set = format!("observe.socket={}", socket.display());
    let Some(world) = World::new("services-socket", WEB, &[&set]) else { return };
    assert!(!world.dir.path().join("services").exists(), "no files");
    assert!(as_nobody(|| ask(&socket, "web 0\n").is_none()));
    assert!(ask(&socket, "other 0\n").is_none());
    assert!(ask(&socket, "web 1\n").is_none(), "there is one worker");
    assert!(ask(&socket, &"x".repeat(100)).is_none());
    let reader = ask(&socket, "web\n").unwrap();
    world.send(connection(1000, ([10, 0, 1, 1], 80), 10));
    world.live.wait_for("the flow", |_| sum(&reader, "flows_ended") == 1);
    world.live.terminate(0);
    assert!(reader.is_ended());
}
