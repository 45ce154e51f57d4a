//! Services, told by the walk: what a reader of their memory sees.

use std::net::IpAddr;

use observe::{EgressKind, Kind, Reader, Snapshot, Writer};

use super::*;
use crate::services::{EgressBy, Service, ServiceFlows, Services, ServicesChange};

/// A service in memory of this process, and its reader.
fn service(flows: ServiceFlows, egresses: usize) -> (Box<Service>, Reader) {
    service_of(measure::Features::NONE, flows, egresses)
}

fn service_of(
    measured: measure::Features,
    flows: ServiceFlows,
    egresses: usize,
) -> (Box<Service>, Reader) {
    let fields = Service::fields(measured);
    let memory = observe::Service {
        name: "web",
        egresses,
        fields: &fields,
        epoch_ns: 1,
        writer: (0, 1),
        seed: 1,
    };
    let writer = Writer::in_memory(&memory).unwrap();
    let reader = Reader::of(&writer).unwrap();
    (Box::new(Service::new(flows, writer, egresses).unwrap()), reader)
}

fn change(bench: &mut Bench, places: Vec<(usize, Option<Box<Service>>)>) -> ServicesChange {
    let part = Some(Services::new(config().max_flows).unwrap());
    // Servers have the numbers 128 to 255.
    let networks = (0..2).map(|place| (IpAddr::from([10, 0, 0, 128]), 25, place));
    let mut change = ServicesChange::new(part, places, networks, 5000);
    bench.manager.change_services(&mut change);
    change
}

/// A manager with one service at place 0.
pub(super) fn observed(flows: ServiceFlows, egresses: usize) -> (Bench, Reader) {
    observed_in(Config { effect: Effect::Arrival, ..config() }, flows, egresses)
}

pub(super) fn observed_in(config: Config, flows: ServiceFlows, egresses: usize) -> (Bench, Reader) {
    let (service, reader) = service_of(config.measured, flows, egresses);
    let mut bench = Bench::new(config);
    change(&mut bench, vec![(0, Some(service))]);
    (bench, reader)
}

/// What is published at this time.
pub(super) fn look(bench: &mut Bench, reader: &Reader, at_ms: i64) -> Snapshot {
    bench.settle();
    bench.manager.publish_services(at_ms * 1000, 0, true);
    let mut snapshot = reader.snapshot();
    reader.read(&mut snapshot).unwrap();
    snapshot
}

/// A value of each egress, by the last byte of its address; of all others together by 0.
pub(super) fn values(reader: &Reader, snapshot: &Snapshot, name: &str) -> Vec<(u8, u64)> {
    let fields = reader.fields().iter();
    let field = fields.clone().find(|field| field.name == name).unwrap();
    let rows = snapshot.egresses();
    rows.map(|row| (row.egress().address[15], row.value(field).unwrap())).collect()
}

pub(super) fn sum(reader: &Reader, snapshot: &Snapshot, name: &str) -> u64 {
    values(reader, snapshot, name).iter().map(|(_, value)| value).sum()
}

#[test]
fn a_flow_counts_for_its_server_from_the_first_packet_to_the_one_that_closes_it() {
    let (mut bench, reader) = observed(ServiceFlows::default(), 4);
    bench.burst(&[tcp(0, 1, 200, TCP_SYN), tcp(1000, 200, 1, TCP_SYN | TCP_ACK)]);
    bench.burst(&[tcp(2000, 1, 200, TCP_ACK), tcp(2500, 3, 4, TCP_SYN)]);
    let open = look(&mut bench, &reader, 3);
    for (name, expected) in [
        ("flows_begun", 1),
        ("flows_answered", 1),
        ("flows_ended", 0),
        ("packets_in", 2),
        ("packets_out", 1),
        ("bytes_in", 80),
        ("bytes_out", 40),
        ("flows_in_flight", 1),
    ] {
        assert_eq!(values(&reader, &open, name), [(0, 0), (200, expected)], "{name}");
    }
    bench.burst(&[tcp(5000, 200, 1, TCP_FIN | TCP_ACK), tcp(7000, 1, 200, TCP_FIN | TCP_ACK)]);
    // It counts as ended at once, though it lingers in the table, and its last packet counts too.
    bench.burst(&[tcp(8000, 200, 1, TCP_ACK)]);
    let closed = look(&mut bench, &reader, 9);
    assert_eq!(values(&reader, &closed, "flows_ended")[1], (200, 1));
    assert_eq!(values(&reader, &closed, "flows_in_flight")[1], (200, 0));
    assert_eq!(values(&reader, &closed, "packets_out")[1], (200, 3));
    assert_eq!(bench.manager.flows_alive(), 2, "it is still in the table");
    let egress = closed.egresses().nth(1).unwrap();
    let field = reader.field("completion", Kind::Reservoir).unwrap();
    let samples = reader.samples(egress.slot(), field).unwrap();
    assert_eq!(
        samples.iter().map(|it| (it.time_ns, it.value)).collect::<Vec<_>>(),
        [(7_000_000, 7_000_000)]
    );
    bench.manager.drain();
    let left = look(&mut bench, &reader, 11);
    assert_eq!(sum(&reader, &left, "flows_ended"), 1, "it ended once");
}

#[test]
fn how_flows_end_is_told_apart() {
    let (mut bench, reader) = observed(ServiceFlows::default(), 4);
    // Nobody answers; the server refuses; the client gives up; seen from the middle.
    bench.burst(&[tcp(0, 1, 200, TCP_SYN)]);
    bench.burst(&[tcp(0, 2, 200, TCP_SYN), tcp(1, 200, 2, TCP_RST | TCP_ACK)]);
    bench.burst(&[tcp(0, 3, 200, TCP_SYN), tcp(2, 3, 200, TCP_RST)]);
    bench.burst(&[tcp(0, 200, 4, TCP_ACK), tcp(3, 4, 200, TCP_ACK), tcp(3, 4, 200, TCP_ACK)]);
    bench.manager.drain();
    let seen = look(&mut bench, &reader, 5);
    for (name, expected) in [
        ("flows_begun", 4),
        ("flows_answered", 2),
        ("flows_ended", 4),
        ("flows_reset", 2),
        ("syns_unanswered", 2),
        ("packets_in", 6),
        ("packets_out", 2),
        ("flows_in_flight", 0),
    ] {
        assert_eq!(values(&reader, &seen, name)[1], (200, expected), "{name}");
    }
}

#[test]
fn ports_protocol_and_egress_are_as_configured() {
    let only = |ports: &[u16], protocol| ServiceFlows {
        ports: ports.to_vec(),
        protocol,
        egress: EgressBy::Socket,
        ..ServiceFlows::default()
    };
    for (flows, takes) in [
        (only(&[443, 80], None), true),
        (only(&[443], None), false),
        (only(&[], Some(wire::TCP)), true),
        (only(&[80], Some(wire::UDP)), false),
    ] {
        let (mut bench, reader) = observed(flows, 4);
        bench.burst(&[tcp(0, 1, 200, TCP_SYN)]);
        let seen = look(&mut bench, &reader, 5);
        let egresses: Vec<_> = seen.egresses().map(|row| row.egress().port).collect();
        assert_eq!(egresses, if takes { &[0, 80][..] } else { &[0][..] });
    }
}

#[test]
fn a_busier_server_takes_the_slot_of_an_idle_one_and_no_sum_shrinks() {
    let (mut bench, reader) = observed(ServiceFlows::default(), 3);
    let flow = |at_us, server| {
        [tcp(at_us, 1, server, TCP_SYN), tcp(at_us + 1, server, 1, TCP_SYN | TCP_ACK)]
    };
    bench.burst(&[flow(0, 200), flow(0, 201)].concat());
    look(&mut bench, &reader, 1);
    let busy: Vec<Tcp> = (0..9).flat_map(|at| flow(10 + at, 202)).collect();
    bench.burst(&busy);
    // A flood that nobody answers.
    bench.burst(&(0..20).map(|client| tcp(30, client, 203, TCP_SYN)).collect::<Vec<_>>());
    let before = look(&mut bench, &reader, 2);
    assert_eq!(values(&reader, &before, "packets_out"), [(0, 9), (200, 1), (201, 1)]);
    bench.burst(&[tcp(2_000_000, 200, 1, TCP_ACK), tcp(2_000_000, 202, 1, TCP_ACK)]);
    let after = look(&mut bench, &reader, 2000);
    let egresses = values(&reader, &after, "flows_begun");
    // The flow that began before stays where it was.
    assert_eq!(egresses.iter().map(|(server, _)| *server).collect::<Vec<_>>(), [0, 200, 202]);
    let snapshots = [&before, &after];
    for name in ["flows_begun", "flows_answered", "flows_in_flight"] {
        let [before, after] = snapshots.map(|it| sum(&reader, it, name));
        assert_eq!(before, after, "{name}");
    }
    assert_eq!(sum(&reader, &after, "flows_begun"), 23);
    // The one that lost its slot ends among the others; the next flow of the other one has a slot.
    bench.burst(&[tcp(2_000_001, 201, 1, TCP_RST), tcp(2_000_002, 9, 202, TCP_SYN)]);
    let last = look(&mut bench, &reader, 2002);
    assert_eq!(values(&reader, &last, "flows_ended"), [(0, 1), (200, 0), (202, 0)]);
    assert_eq!(values(&reader, &last, "flows_begun")[2], (202, 1));
    assert_eq!(sum(&reader, &last, "flows_in_flight"), 23);
    assert!(last.egresses().any(|row| row.egress().kind == EgressKind::OTHERS));
}

#[test]
fn a_service_that_goes_tells_its_readers_and_takes_no_flow_along() {
    let (mut bench, old) = observed(ServiceFlows::default(), 4);
    bench.burst(&[tcp(0, 1, 200, TCP_SYN)]);
    let (next, new) = service(ServiceFlows::default(), 4);
    let left = change(&mut bench, vec![(0, Some(next))]);
    assert!(!old.is_ended(), "the walk drops nothing itself");
    drop(left);
    assert!(old.is_ended());
    bench.burst(&[tcp(1, 200, 1, TCP_SYN | TCP_ACK), tcp(2, 2, 200, TCP_SYN)]);
    let seen = look(&mut bench, &new, 5);
    assert_eq!(values(&new, &seen, "flows_begun"), [(0, 0), (200, 1)]);
    assert_eq!(sum(&new, &seen, "packets_out"), 0);
    // The last one takes the part along.
    let left = change(&mut bench, vec![(0, None)]);
    assert!(left.part.is_some());
    drop(left);
    assert!(new.is_ended());
    bench.burst(&[tcp(3, 3, 200, TCP_SYN)]);
    let mut last = new.snapshot();
    new.read(&mut last).unwrap();
    assert_eq!(sum(&new, &last, "flows_begun"), 1);
}

/// By packet time, ranking goes by flow time, which no capture's time stops or breaks.
#[test]
fn the_busiest_servers_are_found_whatever_times_a_capture_has() {
    let (service, reader) = service(ServiceFlows::default(), 2);
    let mut bench = Bench::new(config());
    let part = Some(Services::new(config().max_flows).unwrap());
    let networks = [(IpAddr::from([10, 0, 0, 128]), 25, 0)].into_iter();
    let mut change = ServicesChange::new(part, vec![(0, Some(service))], networks, 5000);
    change.by_packets = true;
    bench.manager.change_services(&mut change);
    bench.burst(&[tcp(5 * SECOND_US, 1, 200, TCP_SYN), tcp(Packet::TIME_MAX_US, 3, 200, TCP_SYN)]);
    bench.burst(&[tcp(6 * SECOND_US, 2, 201, TCP_SYN)]);
    bench.burst(&[tcp(6 * SECOND_US, 201, 2, TCP_ACK); 3]);
    bench.burst(&[tcp(8 * SECOND_US, 4, 5, TCP_SYN), tcp(8 * SECOND_US, 5, 201, TCP_SYN)]);
    bench.burst(&[tcp(-Packet::TIME_MAX_US, 6, 7, TCP_SYN)]);
    let seen = look(&mut bench, &reader, 9000);
    assert!(values(&reader, &seen, "packets_in").contains(&(201, 1)));
}
