//! ICMP: one flow of two hosts, with type and code of its first packet, and without a series.

use super::services::{look, observed_in, sum};
use super::*;
use crate::look::{CHAIN_FLOWS_MAX, Standing};
use crate::services::ServiceFlows;
use crate::wire::{ICMP, ICMPV6, UDP};

const REQUEST: [u8; 2] = [8, 0];
const REPLY: [u8; 2] = [0, 0];
const UNREACHABLE: [u8; 2] = [3, 1];

/// A packet of 60 bytes between two numbered hosts.
fn v4(time_us: i64, from: u8, to: u8, what: [u8; 2]) -> (i64, Vec<u8>) {
    let mut ip = vec![0x45, 0, 0, 60, 0, 0, 0, 0, 64, ICMP, 0, 0];
    ip.extend([10, 0, 0, from, 10, 0, 0, to]);
    ip.extend(what);
    ip.resize(60, 0);
    (time_us, ip)
}

/// A ping, from whichever host.
pub(super) fn echo(time_us: i64, from: u8, to: u8) -> (i64, Vec<u8>) {
    v4(time_us, from, to, REQUEST)
}

fn v6(time_us: i64, from: u8, to: u8, what: [u8; 2]) -> (i64, Vec<u8>) {
    let mut ip = vec![0x60, 0, 0, 0, 0, 20, ICMPV6, 64];
    [from, to].into_iter().for_each(|host| ip.extend([&[0xfd; 15][..], &[host]].concat()));
    ip.extend(what);
    ip.resize(60, 0);
    (time_us, ip)
}

/// Asks about each flow from its first packet on, knows servers, and reports every second.
fn asking() -> Config {
    let mut config = Config {
        effect: Effect::Arrival,
        tasks: vec![task(&[1], 0)],
        servers: Some(64),
        ..config()
    };
    config.settings.active_timeout_s = 1;
    config
}

#[test]
fn two_hosts_have_one_flow_with_type_and_code_of_its_first_packet() {
    let mut bench = Bench::new(asking());
    bench.frames(&[v4(0, 1, 2, REQUEST), v4(1, 2, 1, REPLY), v4(2, 1, 2, UNREACHABLE)]);
    bench.frames(&[v6(3, 9, 8, [129, 7]), v6(4, 8, 9, [128, 0]), v4(5, 7, 7, REQUEST)]);
    // What stands in a later report is still the first packet's.
    bench.frames(&[v4(3 * SECOND_US, 2, 1, REPLY), v4(3 * SECOND_US, 1, 2, UNREACHABLE)]);
    bench.settle();
    let records = bench.finish();
    let told: Vec<_> = records
        .iter()
        .map(|it| (it.flow.source, it.flow.protocol, it.icmp(), it.counts.packets))
        .collect();
    let host = |text: &str| (text.parse().unwrap(), 0);
    let six = "fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fd09";
    assert_eq!(
        told,
        [
            (host("10.0.0.1"), ICMP, Some(REQUEST), [2, 1]),
            (host("10.0.0.1"), ICMP, Some(REQUEST), [1, 1]),
            (host(six), ICMPV6, Some([129, 7]), [1, 1]),
            (host("10.0.0.7"), ICMP, Some(REQUEST), [1, 0]),
        ]
    );
    assert!(records.iter().all(|it| it.tcp_flags() == [0; 2] && it.decisions == [None; 8]));
    let begun = bench.manager.counters().flows_begun;
    assert_eq!((begun.by_kind()[2], begun.by_kind()[5]), (("4", "icmp", 2), ("6", "icmp", 1)));
}

#[test]
fn it_gives_no_series_and_has_no_server_and_no_service() {
    let (mut bench, reader) = observed_in(asking(), ServiceFlows::default(), 4);
    bench.frames(&[v4(0, 1, 200, REQUEST), v4(1, 200, 1, REPLY)]);
    let mut rows = Vec::with_capacity(CHAIN_FLOWS_MAX);
    bench.manager.read_flows(0, usize::MAX, &mut rows);
    assert_eq!(rows[0].standing, Standing::NotAsked);
    let seen = look(&mut bench, &reader, 5);
    assert_eq!(sum(&reader, &seen, "flows_begun"), 0);
    assert_eq!(bench.ring.waiting(), 0);
    bench.finish();
    let counters = bench.manager.counters();
    assert_eq!((counters.series_emitted(), counters.flows_short), (0, 0));
    assert_eq!((counters.servers.cells, counters.servers.unknown), (0, 0));
    assert_eq!(counters.verdicts.get(Verdict::Unlabelled), 2);
}

#[test]
fn datagrams_between_ports_0_are_another_flow() {
    let mut bench = Bench::new(asking());
    let datagram = |time_us| {
        let (_, mut ip) = v4(time_us, 1, 2, [0, 0]);
        ip[9] = UDP;
        ip[25] = 40;
        (time_us, ip)
    };
    bench.frames(&[datagram(0), v4(1, 1, 2, REQUEST), datagram(2), v4(3, 2, 1, REPLY)]);
    let protocols = bench.finish().into_iter().map(|it| (it.flow.protocol, it.counts.packets));
    assert_eq!(protocols.collect::<Vec<_>>(), [(UDP, [2, 0]), (ICMP, [1, 1])]);
}
