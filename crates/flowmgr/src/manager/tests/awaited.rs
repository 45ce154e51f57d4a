//! Services that ask for more than addresses and ports, and what they divide their traffic by.

use std::sync::Arc;

use observe::{Egress, Kind, Reader};

use super::services::{look, observed, observed_in, sum, values};
use super::*;
use crate::rules::{RuleAnswer, RuleMemory, RulesChange};
use crate::services::{EgressBy, LabelTerm, RuleTerm, ServiceFlows, name_hash};

fn by_label() -> ServiceFlows {
    let term = LabelTerm { task: TaskId::FIRST, is_wanted: vec![true, false, false] };
    ServiceFlows { labels: vec![term], ..ServiceFlows::default() }
}

const CLASS_1: Label =
    Label::Class { class: 1, confidence: 60_000, source: Source::Model, model: 0 };

/// A handshake, with which the series is complete.
fn opened(at_us: i64, client: u8) -> [Tcp; 3] {
    [
        tcp(at_us, client, 200, TCP_SYN),
        tcp(at_us + 1, 200, client, TCP_SYN | TCP_ACK),
        tcp(at_us + 2, client, 200, TCP_ACK),
    ]
}

#[test]
fn a_service_by_label_counts_a_flow_from_when_the_label_is_there() {
    let (mut bench, reader) = observed(by_label(), 4);
    bench.burst(&opened(0, 1));
    bench.answer(CLASS_0);
    bench.burst(&opened(10, 2));
    bench.answer(CLASS_1);
    // It has ended before its label came.
    bench.burst(&[&opened(20, 3)[..], &[tcp(23, 3, 200, TCP_RST)]].concat());
    bench.answer(CLASS_0);
    let open = look(&mut bench, &reader, 1);
    assert_eq!(sum(&reader, &open, "flows_begun"), 0);
    bench.burst(&[tcp(30, 1, 200, TCP_ACK), tcp(31, 2, 200, TCP_ACK), tcp(32, 3, 200, TCP_ACK)]);
    bench.burst(&[tcp(40, 200, 1, TCP_ACK)]);
    // Nothing comes behind the label of this one, which counts at its end.
    bench.burst(&opened(50, 4));
    bench.answer(CLASS_0);
    bench.burst(&[tcp(60, 1, 200, TCP_RST), tcp(61, 200, 2, TCP_RST)]);
    bench.manager.drain();
    let ended = look(&mut bench, &reader, 2);
    for (name, expected) in [
        ("flows_begun", 2),
        ("flows_answered", 2),
        ("flows_ended", 2),
        ("flows_reset", 1),
        ("syns_unanswered", 0),
        ("packets_in", 2),
        ("packets_out", 1),
        ("flows_in_flight", 0),
    ] {
        assert_eq!(values(&reader, &ended, name)[1], (200, expected), "{name}");
    }
}

#[test]
fn by_packet_time_a_label_counts_after_its_delay() {
    let delayed = Config { effect: Effect::PacketTime { delay_us: 10 }, ..config() };
    let (mut bench, reader) = observed_in(delayed, by_label(), 4);
    bench.burst(&opened(0, 1));
    bench.answer(CLASS_0);
    bench.burst(&[tcp(11, 1, 200, TCP_ACK), tcp(12, 1, 200, TCP_ACK), tcp(13, 1, 200, TCP_ACK)]);
    let seen = look(&mut bench, &reader, 1);
    assert_eq!(values(&reader, &seen, "packets_in"), [(0, 0), (200, 2)]);
}

#[test]
fn a_service_by_rule_counts_a_flow_from_its_first_packet() {
    let term = |is_one| RuleTerm { names: vec![name_hash("voice")], is_one };
    let of = |is_one| ServiceFlows { rules: vec![term(is_one)], ..ServiceFlows::default() };
    for (is_one, begun) in [(true, 1), (false, 2)] {
        let (mut bench, reader) = observed(of(is_one), 4);
        bench.manager.change_rules(&mut RulesChange {
            is_renumbered: true,
            named: Arc::new([(3, name_hash("video")), (7, name_hash("voice"))]),
            memory: Some(RuleMemory::new(config().max_flows).unwrap()),
            ..RulesChange::default()
        });
        let rule = |question: &crate::RuleQuestion| RuleAnswer {
            rule: match question.source.0.to_string().as_str() {
                "10.0.0.1" => Some(7),
                "10.0.0.2" => Some(3),
                _ => None,
            },
            ..RuleAnswer::default()
        };
        bench.ruled(&[1, 2, 3].map(|client| tcp(0, client, 200, TCP_SYN)), rule);
        bench.ruled(&[tcp(1, 200, 1, TCP_SYN | TCP_ACK), tcp(1, 2, 200, TCP_SYN)], rule);
        let seen = look(&mut bench, &reader, 1);
        let packets = [values(&reader, &seen, "packets_in"), values(&reader, &seen, "packets_out")];
        let expected = if is_one { [1, 1] } else { [2, 0] };
        assert_eq!(packets.map(|it| it.last().unwrap().1), expected);
        // One has had no packet since its rule is known.
        bench.manager.drain();
        let ended = look(&mut bench, &reader, 2);
        assert_eq!(sum(&reader, &ended, "flows_begun"), begun);
        assert_eq!(sum(&reader, &ended, "syns_unanswered"), if is_one { 0 } else { 2 });
        assert_eq!(sum(&reader, &ended, "flows_in_flight"), 0);
    }
}

/// A service by the rule "voice", which has the number 7.
fn by_rule(config: Config, is_one: bool, has_bounds: bool) -> (Bench, Reader) {
    let term = RuleTerm { names: vec![name_hash("voice")], is_one };
    let flows = ServiceFlows { rules: vec![term], ..ServiceFlows::default() };
    let (mut bench, reader) = observed_in(config, flows, 4);
    bench.manager.change_rules(&mut RulesChange {
        has_bounds,
        is_renumbered: true,
        named: Arc::new([(7, name_hash("voice"))]),
        memory: Some(RuleMemory::new(bench.manager.max_flows()).unwrap()),
        ..RulesChange::default()
    });
    (bench, reader)
}

fn live() -> Config {
    Config { effect: Effect::Arrival, ..config() }
}

fn voice(_: &crate::RuleQuestion) -> RuleAnswer {
    RuleAnswer { rule: Some(7), ..RuleAnswer::default() }
}

#[test]
fn a_flow_that_is_closed_while_its_rule_is_asked_for_counts_when_it_leaves() {
    let (mut bench, reader) = by_rule(live(), true, true);
    bench.ruled(&[tcp(0, 1, 200, TCP_SYN), tcp(1, 200, 1, TCP_RST)], voice);
    bench.ruled(&[tcp(2, 2, 200, TCP_SYN)], voice);
    // The first packet of a direction asks again.
    bench.ruled(&[tcp(3, 200, 2, TCP_RST)], voice);
    for second in 20..22 {
        bench.ruled(&[tcp(second * SECOND_US, 3, 4, TCP_SYN)], voice);
    }
    let seen = look(&mut bench, &reader, 30_000);
    for (name, expected) in [
        ("flows_begun", 2),
        ("flows_ended", 2),
        ("flows_reset", 2),
        ("packets_in", 2),
        ("packets_out", 2),
        ("flows_in_flight", 0),
    ] {
        assert_eq!(sum(&reader, &seen, name), expected, "{name}");
    }
}

#[test]
fn what_was_reported_of_a_flow_that_waits_counts_for_its_service() {
    let mut config = live();
    config.settings.active_timeout_s = 1;
    let (mut bench, reader) = by_rule(config, true, false);
    bench.ruled(&[tcp(0, 1, 200, TCP_SYN)], voice);
    bench.ruled(&[tcp(3 * SECOND_US, 1, 200, TCP_ACK)], voice);
    let seen = look(&mut bench, &reader, 4000);
    assert_eq!(sum(&reader, &seen, "packets_in"), 2);
    assert_eq!(sum(&reader, &seen, "flows_begun"), 1);
}

#[test]
fn a_number_from_before_a_renumbering_is_no_rule() {
    let (mut bench, reader) = by_rule(live(), false, false);
    bench.ruled(&[tcp(0, 1, 200, TCP_SYN)], voice);
    bench.manager.change_rules(&mut RulesChange {
        is_renumbered: true,
        named: Arc::new([(8, name_hash("voice"))]),
        ..RulesChange::default()
    });
    bench.manager.drain();
    let seen = look(&mut bench, &reader, 1);
    assert_eq!(sum(&reader, &seen, "flows_begun"), 0, "its rule was voice");
}

/// Walks frames to these MAC addresses, tagged where there is a VLAN.
fn frames(bench: &mut Bench, frames: &[(u8, Option<u16>, Tcp)]) {
    for &(mac, vlan, tcp) in frames {
        let mut data = [&[mac; 6][..], &[9; 6]].concat();
        if let Some(vlan) = vlan {
            // With a priority.
            data.extend([[0x81, 0], (vlan | 5 << 13).to_be_bytes()].concat());
        }
        data.extend([8, 0]);
        data.extend(tcp.bytes());
        let packet = Packet {
            at: 0,
            captured: data.len() as u32,
            wire: u32::MAX,
            link: 1,
            time_us: tcp.time_us,
            rss: None,
            gso: Gso::NONE,
        };
        bench.manager.burst(&mut data, &[packet], 0, &mut bench.fates);
    }
}

fn egresses(bench: &mut Bench, reader: &Reader) -> Vec<(Egress, u64)> {
    let seen = look(bench, reader, 1);
    let field = reader.field("packets_in", Kind::Counter).unwrap();
    seen.egresses().skip(1).map(|row| (row.egress(), row.value(field).unwrap())).collect()
}

#[test]
fn vlan_and_interface_are_those_of_the_first_packet() {
    let flows = ServiceFlows { vlans: vec![10], in_ports: vec![2], ..ServiceFlows::default() };
    let (mut bench, reader) = observed(flows, 4);
    for (port, vlan, client) in [(2, Some(10), 1), (1, Some(10), 2), (2, Some(11), 3), (2, None, 4)]
    {
        bench.manager.note_port(port);
        frames(&mut bench, &[(1, vlan, tcp(0, client, 200, TCP_SYN))]);
        frames(&mut bench, &[(1, Some(10), tcp(1, client, 200, TCP_ACK))]);
    }
    let server = Egress::server([10, 0, 0, 200].into(), 0);
    assert_eq!(egresses(&mut bench, &reader), [(server, 2)]);
}

#[test]
fn traffic_is_divided_by_the_neighbour_that_the_clients_packets_go_to() {
    let flows = ServiceFlows { egress: EgressBy::NextHop, ..ServiceFlows::default() };
    let (mut bench, reader) = observed(flows, 4);
    frames(
        &mut bench,
        &[
            (7, None, tcp(0, 1, 200, TCP_SYN)),
            (1, None, tcp(1, 200, 1, TCP_SYN | TCP_ACK)),
            // Where the client's packets go later changes nothing.
            (8, None, tcp(2, 1, 200, TCP_ACK)),
            // Seen from the middle: only the client's packet says where it goes.
            (1, None, tcp(3, 200, 2, TCP_ACK)),
            (8, Some(5), tcp(4, 2, 200, TCP_ACK)),
        ],
    );
    let hops = [7, 8].map(|mac| Egress::next_hop([mac; 6]));
    assert_eq!(egresses(&mut bench, &reader), [(hops[0], 2), (hops[1], 1)]);
    let seen = look(&mut bench, &reader, 2);
    assert_eq!(sum(&reader, &seen, "packets_out"), 2, "what came before counts");
    // Without Ethernet it is not known.
    bench.burst(&[tcp(5, 3, 200, TCP_SYN)]);
    let seen = look(&mut bench, &reader, 3);
    assert_eq!(values(&reader, &seen, "flows_begun")[0].1, 1, "among the others");
}

#[test]
fn traffic_is_divided_by_the_interface_that_it_leaves_by() {
    let flows = ServiceFlows { egress: EgressBy::OutPort([31, 32]), ..ServiceFlows::default() };
    let (mut bench, reader) = observed(flows, 4);
    bench.manager.note_port(1);
    bench.burst(&[tcp(0, 1, 200, TCP_SYN)]);
    bench.manager.note_port(2);
    // The server's packet comes in where the client's leave.
    bench.burst(&[tcp(1, 200, 2, TCP_ACK), tcp(2, 2, 200, TCP_ACK), tcp(3, 3, 200, TCP_SYN)]);
    let expected = [(Egress::out_port(32), 2), (Egress::out_port(31), 1)];
    assert_eq!(egresses(&mut bench, &reader), expected);
}

/// The server's merged packet is the response, and closes the flow.
#[test]
fn a_merged_packet_that_closes_a_flow_is_measured_first() {
    let measured = ::measure::Features::DEFAULT;
    let config = Config { effect: Effect::Arrival, measured, ..config() };
    let (mut bench, reader) = observed_in(config, ServiceFlows::default(), 4);
    bench.burst(&opened(0, 1));
    let request = Tcp { payload: 9, ..tcp(1000, 1, 200, TCP_FIN | TCP_ACK) };
    bench.burst(&[request]);
    let mut response = Tcp { payload: 200, ..tcp(4000, 200, 1, TCP_FIN | TCP_ACK) }.bytes();
    let packet = Packet {
        at: 0,
        captured: response.len() as u32,
        wire: u32::MAX,
        link: 101,
        time_us: 4000,
        rss: None,
        gso: Gso::tcp(100),
    };
    bench.manager.burst(&mut response, &[packet], 0, &mut bench.fates);
    let seen = look(&mut bench, &reader, 9);
    assert_eq!(values(&reader, &seen, "flows_ended")[1], (200, 1));
    let field = reader.field("response", Kind::Reservoir).unwrap();
    let slot = seen.egresses().nth(1).unwrap().slot();
    let samples = reader.samples(slot, field).unwrap();
    assert_eq!(samples.iter().map(|it| it.value).collect::<Vec<_>>(), [3_000_000]);
}
