//! Marks on real connections through a router, read back with `conntrack` and seen by nftables and
//! tc. Needs root and the programs; skipped by name without.

#[path = "../../../../../tests/common/lab.rs"]
#[allow(dead_code, reason = "each test uses its own part")]
mod lab;
mod rules;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use super::{ClassMarks, ConnectionWriter, StartError, UpdateCounts, start_writer};
use config::checked::{Mapping, Mark, MarkAs};
use config::origin::Origin;
use flowmgr::TaskId;
use lab::{FOREIGN, Lab};
use netfilter::conntrack::Tuple;
use netfilter::socket::{BATCH, Reply, Socket};
use policy::Label;

const TCP: u8 = 6;
const UDP: u8 = 17;
const MASK: u32 = 0xff00_0000;

fn labels(classes: u16) -> Vec<Label> {
    let label = |class| Label {
        name: format!("class {class}"),
        taxonomy: "none".to_owned(),
        target: String::new(),
    };
    (0..classes).map(label).collect()
}

/// Class n has mark (n + 1) << 24; who comes later overwrites.
fn marks(classes: u16) -> ClassMarks {
    ClassMarks::new(&mark_config(classes, true), &labels(classes)).unwrap()
}

fn mark_config(classes: u16, overwrite: bool) -> Mark {
    let labels = labels(classes);
    let mapping = |(label, class): (&Label, u16)| Mapping {
        label: label.name.clone(),
        value: mark(class),
        required: true,
        origin: Origin::BuiltIn,
    };
    Mark {
        holds: MarkAs::Label,
        mask: MASK,
        overwrite,
        zone: 0,
        class: labels.iter().zip(0..).map(mapping).collect(),
        queue: 64,
        behaviour: Vec::new(),
    }
}

fn mark(class: u16) -> u32 {
    (u32::from(class) + 1) << 24
}

impl Lab {
    fn writer(&self, classes: u16, queue_length: usize) -> ConnectionWriter {
        self.on("router", || start_writer(&marks(classes), queue_length).unwrap())
    }

    /// The mark of the connection that a client's socket opened, as `conntrack` reads it; `None`:
    /// there is none.
    fn mark_of(&self, protocol: u8, from: SocketAddr) -> Option<u32> {
        let family = if from.is_ipv6() { "ipv6" } else { "ipv4" };
        let port = from.port();
        let list = format!("conntrack -L -p {protocol} -f {family} --orig-port-src {port}");
        let listed = self.run("router", &list);
        let line = listed.lines().next()?;
        let mark = line.split(' ').find_map(|word| word.strip_prefix("mark=")).unwrap();
        Some(mark.parse().unwrap())
    }
}

fn change(writer: &ConnectionWriter, marks: &ClassMarks) {
    writer.change(marks.words(), marks.overwrites);
}

fn failed(counts: &UpdateCounts) -> u64 {
    counts.failed()
}

/// Waits until the writer has nothing left of `asked` updates.
fn settled(writer: &ConnectionWriter, asked: u64) -> UpdateCounts {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let counts = writer.words.counts();
        let done =
            counts.written + counts.kept + counts.not_found + failed(&counts) + counts.dropped;
        if done == asked {
            return counts;
        }
        assert!(Instant::now() < deadline, "{done} of {asked} after 20 s");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A connection with one word in each direction, and its ends as each side sees them.
struct Connection {
    protocol: u8,
    /// The client's end, as the client knows it.
    inside: SocketAddr,
    /// The client's end, as the server knows it.
    outside: SocketAddr,
    server: SocketAddr,
    /// The two ends of TCP, which stays open with them.
    streams: Option<(TcpStream, TcpStream)>,
}

impl Connection {
    fn tcp(lab: &Lab, is_v6: bool) -> Connection {
        let listener = lab.on("server", || TcpListener::bind((Lab::server(is_v6), 0)).unwrap());
        let server = listener.local_addr().unwrap();
        let mut near = lab.on("client", || TcpStream::connect(server).unwrap());
        let (mut far, outside) = listener.accept().unwrap();
        near.write_all(b"ask").unwrap();
        far.read_exact(&mut [0; 3]).unwrap();
        far.write_all(b"say").unwrap();
        near.read_exact(&mut [0; 3]).unwrap();
        Connection {
            protocol: TCP,
            inside: near.local_addr().unwrap(),
            outside,
            server,
            streams: Some((near, far)),
        }
    }

    fn udp(lab: &Lab, is_v6: bool) -> Connection {
        Connection::udp_with_socket(lab, is_v6).1
    }

    /// With the client's socket.
    fn udp_with_socket(lab: &Lab, is_v6: bool) -> (UdpSocket, Connection) {
        let any: IpAddr = if is_v6 { "::" } else { "0.0.0.0" }.parse().unwrap();
        let far = lab.on("server", || UdpSocket::bind((Lab::server(is_v6), 0)).unwrap());
        let near = lab.on("client", || UdpSocket::bind((any, 0)).unwrap());
        let server = far.local_addr().unwrap();
        lab.on("client", || near.connect(server).unwrap());
        near.send(b"ask").unwrap();
        let (_, outside) = far.recv_from(&mut [0; 8]).unwrap();
        far.send_to(b"say", outside).unwrap();
        near.recv(&mut [0; 8]).unwrap();
        let connection = Connection {
            protocol: UDP,
            inside: near.local_addr().unwrap(),
            outside,
            server,
            streams: None,
        };
        (near, connection)
    }

    /// The tuples that fenxi may know the connection by: on the inner interface and the outer, from
    /// the client's packets and the server's.
    fn views(&self) -> [Tuple; 4] {
        let end = |address: SocketAddr| (address.ip(), address.port());
        let tuple = |client| Tuple {
            zone: 0,
            protocol: self.protocol,
            source: end(client),
            destination: end(self.server),
        };
        let [inner, outer] = [self.inside, self.outside].map(tuple);
        [inner, inner.reversed(), outer, outer.reversed()]
    }
}

fn connections_are_found_from_every_side(test: &str, masquerades: bool) {
    let Some(lab) = Lab::routed(test, masquerades, &[]) else {
        return;
    };
    let writer = lab.writer(16, 64);
    let mut asked = 0;
    for is_v6 in [false, true] {
        for connection in [Connection::tcp(&lab, is_v6), Connection::udp(&lab, is_v6)] {
            let (protocol, inside) = (connection.protocol, connection.inside);
            assert_eq!(connection.outside != inside, masquerades, "{inside}");
            assert_eq!(lab.mark_of(protocol, inside), Some(FOREIGN), "{inside}");
            for tuple in connection.views() {
                // Another class each time, with bits to be set and others to be cleared.
                let class = (asked * 5 % 16) as u16;
                writer.words.set(tuple, class);
                asked += 1;
                let counts = settled(&writer, asked);
                assert_eq!((counts.written, counts.not_found), (asked, 0), "{tuple:?}");
                let read = lab.mark_of(protocol, inside);
                assert_eq!(read, Some(FOREIGN | mark(class)), "{tuple:?}");
            }
        }
    }
    assert_eq!(asked, 16);
    assert_eq!(writer.words.counts().latency_us.len(), 16);
}

#[test]
fn connections_are_found_from_every_side_of_a_router() {
    connections_are_found_from_every_side("routed", false);
}

#[test]
fn connections_are_found_from_every_side_of_a_nat() {
    connections_are_found_from_every_side("nat", true);
}

#[test]
fn a_forwarded_port_is_found_from_every_side() {
    let Some(lab) = Lab::routed("forwarded", false, &[]) else {
        return;
    };
    let writer = lab.writer(4, 64);
    let listener = lab.on("server", || TcpListener::bind((Lab::server(false), 0)).unwrap());
    let server = listener.local_addr().unwrap();
    let forward = format!(
        "table ip forward {{ chain in {{
            type nat hook prerouting priority dstnat; policy accept;
            ip daddr 10.77.1.1 tcp dport 7777 dnat to {server};
        }}; }}"
    );
    lab.nft("router", &forward);
    let near = lab.on("client", || TcpStream::connect("10.77.1.1:7777").unwrap());
    let inside = near.local_addr().unwrap();
    let (_far, outside) = listener.accept().unwrap();
    let seen_at = |client, server| Connection {
        protocol: TCP,
        inside: client,
        outside: client,
        server,
        streams: None,
    };
    let before = seen_at(inside, near.peer_addr().unwrap()).views();
    let after = seen_at(outside, server).views();
    for (tuple, class) in [before[0], before[1], after[0], after[1]].into_iter().zip(0..) {
        writer.words.set(tuple, class);
        assert_eq!(settled(&writer, u64::from(class) + 1).not_found, 0, "{tuple:?}");
        assert_eq!(lab.mark_of(TCP, inside), Some(FOREIGN | mark(class)), "{tuple:?}");
    }
}

#[test]
fn a_connection_that_is_over_is_not_found_and_not_made() {
    let Some(lab) = Lab::routed("over", false, &[]) else {
        return;
    };
    let writer = lab.writer(1, 64);
    let connection = Connection::udp(&lab, false);
    lab.run("router", "conntrack -D -p udp");
    for (tuple, asked) in connection.views().into_iter().zip(1..) {
        writer.words.set(tuple, 0);
        let counts = settled(&writer, asked);
        assert_eq!((counts.written, counts.not_found), (0, asked));
    }
    assert_eq!(lab.mark_of(UDP, connection.inside), None);
}

#[test]
fn a_class_without_a_mark_changes_nothing() {
    let Some(lab) = Lab::routed("unmapped", false, &[]) else {
        return;
    };
    let writer = lab.writer(1, 64);
    let connection = Connection::udp(&lab, false);
    let [tuple, ..] = connection.views();
    writer.words.set(tuple, 1);
    writer.words.set(tuple, u16::MAX);
    // Written after both, so both are through.
    writer.words.set(tuple.reversed(), 0);
    assert_eq!(settled(&writer, 1).written, 1);
    assert_eq!(lab.mark_of(UDP, connection.inside), Some(FOREIGN | mark(0)));
}

#[test]
fn from_a_change_on_labels_get_other_marks_under_another_mask() {
    let Some(lab) = Lab::routed("change", false, &[]) else {
        return;
    };
    let writer = lab.writer(1, 64);
    let connection = Connection::udp(&lab, false);
    let [tuple, ..] = connection.views();
    let mapping = Mapping {
        label: "class 0".to_owned(),
        value: 0x70,
        required: true,
        origin: Origin::BuiltIn,
    };
    let other = Mark {
        holds: MarkAs::Label,
        mask: 0xf0,
        overwrite: true,
        zone: 0,
        class: vec![mapping],
        queue: 64,
        behaviour: Vec::new(),
    };
    writer.words.set(tuple, 0);
    assert_eq!(settled(&writer, 1).written, 1);
    change(&writer, &ClassMarks::new(&other, &labels(1)).unwrap());
    writer.words.set(tuple, 0);
    assert_eq!(settled(&writer, 2).written, 2);
    let expected = (FOREIGN | mark(0)) & !0xf0 | 0x70;
    assert_eq!(lab.mark_of(UDP, connection.inside), Some(expected));
}

/// Bits under the mask stay, even if another program set them, as does the label that came first.
#[test]
fn marks_that_are_set_stay_unless_they_are_to_be_overwritten() {
    let Some(lab) = Lab::routed("stay", true, &[]) else {
        return;
    };
    let config = |overwrite| ClassMarks::new(&mark_config(2, overwrite), &labels(2)).unwrap();
    let writer = lab.on("router", || start_writer(&config(false), 64).unwrap());
    for is_v6 in [false, true] {
        let connection = Connection::tcp(&lab, is_v6);
        let [inner, _, outer, _] = connection.views();
        let before = writer.words.counts();
        // Together in one batch, as who watches both sides has them.
        writer.words.set(inner, 0);
        writer.words.set(outer.reversed(), 1);
        writer.words.set(inner, 0);
        let counts = settled(&writer, before.asked + 3);
        assert_eq!(counts.written - before.written, 1, "{counts:?}");
        assert_eq!(counts.kept - before.kept, 2);
        assert_eq!(lab.mark_of(TCP, connection.inside), Some(FOREIGN | mark(0)));
        // Later, from the other side.
        writer.words.set(outer, 1);
        assert_eq!(settled(&writer, before.asked + 4).kept - before.kept, 3);
        assert_eq!(lab.mark_of(TCP, connection.inside), Some(FOREIGN | mark(0)));
        change(&writer, &config(true));
        writer.words.set(outer, 1);
        let counts = settled(&writer, before.asked + 5);
        assert_eq!(counts.written - before.written, 2);
        assert_eq!(lab.mark_of(TCP, connection.inside), Some(FOREIGN | mark(1)));
        change(&writer, &config(false));
        // One that is over is not found by a question either.
        lab.run("router", "conntrack -D -p tcp");
        writer.words.set(outer, 1);
        assert_eq!(settled(&writer, before.asked + 6).not_found - before.not_found, 1);
        assert_eq!(writer.words.waiting(), 0);
    }
}

/// In one batch and in two, whether marks that are there give way or not.
#[test]
fn labels_of_two_tasks_end_with_the_marks_of_both() {
    let Some(lab) = Lab::routed("tasks", false, &[]) else {
        return;
    };
    let sets = ["task.a.name=a", "task.b.mark={ \"class 1\" = 0x100000 }"].map(str::to_owned);
    let tasks = config::Config::load(None, &sets).unwrap().tasks;
    for overwrite in [false, true] {
        let first = ClassMarks::new(&mark_config(2, overwrite), &labels(2)).unwrap();
        let marks = first.and_of(&tasks[1], &labels(2)).unwrap();
        let of = |task| marks.places().of_class(TaskId(task), 1).unwrap();
        let (first, second) = (of(0), of(1));
        let writer = lab.on("router", || start_writer(&marks, 64).unwrap());
        let [together, apart] = [(); 2].map(|()| Connection::udp(&lab, false));
        let [inner, ..] = together.views();
        writer.words.set(inner, first);
        writer.words.set(inner.reversed(), second);
        assert_eq!(settled(&writer, 2).written, 2);
        let [inner, ..] = apart.views();
        writer.words.set(inner, second);
        assert_eq!(settled(&writer, 3).written, 3);
        writer.words.set(inner, first);
        assert_eq!(settled(&writer, 4).written, 4);
        for connection in [together, apart] {
            let read = lab.mark_of(UDP, connection.inside);
            assert_eq!(read, Some(FOREIGN & !0x10_0000 | mark(1) | 0x10_0000));
        }
    }
}

#[test]
fn a_full_queue_drops_and_every_update_is_counted_once() {
    let Some(lab) = Lab::routed("full", false, &[]) else {
        return;
    };
    let writer = lab.writer(1, 64);
    let connection = Connection::udp(&lab, true);
    let nowhere = Tuple { protocol: TCP, ..connection.views()[0] };
    let asked: u64 = 20_000;
    for update in 0..asked {
        // Every other one is not found, so batches need their second send.
        let tuple = if update % 2 == 0 { connection.views()[3] } else { nowhere };
        writer.words.set(tuple, 0);
    }
    let counts = settled(&writer, asked);
    assert!(counts.dropped > 0 && counts.written > 0 && counts.not_found > 0, "{counts:?}");
    assert_eq!((failed(&counts), writer.words.waiting()), (0, 0));
    assert_eq!(lab.mark_of(UDP, connection.inside), Some(FOREIGN | mark(0)));
}

/// What waits when the writer goes is written.
#[test]
fn a_writer_that_is_dropped_writes_what_waits() {
    let Some(lab) = Lab::routed("drop", false, &[]) else {
        return;
    };
    let connections: Vec<_> = (0..40).map(|_| Connection::udp(&lab, false)).collect();
    let writer = lab.writer(1, 64);
    for connection in &connections {
        writer.words.set(connection.views()[1], 0);
    }
    drop(writer);
    for connection in &connections {
        assert_eq!(lab.mark_of(UDP, connection.inside), Some(FOREIGN | mark(0)));
    }
}

fn without_net_admin() {
    let mut capabilities = rustix::thread::capabilities(None).unwrap();
    capabilities.effective.remove(CapabilitySet::NET_ADMIN);
    rustix::thread::set_capabilities(None, capabilities).unwrap();
}

#[test]
fn the_missing_capability_is_named() {
    let Some(lab) = Lab::routed("capability", false, &[]) else {
        return;
    };
    let connection = Connection::udp(&lab, false);
    let error = lab.on("router", || {
        without_net_admin();
        start_writer(&marks(1), 64).err().unwrap()
    });
    assert!(matches!(error, StartError::Capability { .. }), "{error:?}");
    assert!(error.to_string().contains("CAP_NET_ADMIN"));
    // Lost later, it fails every update of a batch, though the kernel answers once.
    let outcomes = lab.on("router", || {
        let mut socket = Socket::open().unwrap();
        without_net_admin();
        let mut outcomes = Vec::new();
        let change = netfilter::conntrack::Change::Mark { bits: mark(0), mask: MASK };
        let requests = [(connection.views()[0], change); BATCH];
        netfilter::conntrack::update(&mut socket, &requests, &mut outcomes);
        outcomes
    });
    assert_eq!(outcomes, [Reply::Refused(Errno::PERM.raw_os_error()); BATCH]);
    assert_eq!(lab.mark_of(UDP, connection.inside), Some(FOREIGN));
}
