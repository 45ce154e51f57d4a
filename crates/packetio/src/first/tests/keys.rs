//! The program and this side compute the same hash of a flow: only then is it found when somebody
//! has enough of it.

use std::collections::HashSet;
use std::net::IpAddr;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::packets::{ACK, End, Packet, TCP, UDP, flow, tcp, udp};
use super::{Bench, first, namespace, settings};
use crate::settings::FirstPackets;

/// Words that differ in one bit, in none, and anyhow.
fn word() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), Just(u32::MAX), (0..32u32).prop_map(|bit| 1 << bit), any::<u32>()]
}

fn port() -> impl Strategy<Value = u16> {
    prop_oneof![Just(1), Just(443), Just(u16::MAX), any::<u16>()]
}

fn address(is_v6: bool) -> impl Strategy<Value = IpAddr> {
    [word(), word(), word(), word()].prop_map(move |words| match is_v6 {
        false => IpAddr::V4(words[0].into()),
        true => {
            let bits = words.iter().fold(0, |bits, word| bits << 32 | u128::from(*word));
            IpAddr::V6(bits.into())
        }
    })
}

fn end(is_v6: bool) -> impl Strategy<Value = End> {
    (address(is_v6), port())
}

fn packet() -> impl Strategy<Value = Packet> {
    let ends = any::<bool>().prop_flat_map(|is_v6| (end(is_v6), end(is_v6)));
    // Both ends may have one address.
    let ends = (ends, 0..8u8).prop_map(|((from, to), same)| match same {
        0 => (from, (from.0, to.1)),
        _ => (from, to),
    });
    (ends, any::<bool>()).prop_map(|((from, to), is_tcp)| match is_tcp {
        true => tcp(from, to, ACK, 1),
        false => udp(from, to, 1),
    })
}

#[test]
fn any_flow_is_found_by_its_ends() {
    let Some(netns) = namespace("any_flow_is_found_by_its_ends") else {
        return;
    };
    netns.inside(|| {
        let config = Config { cases: 12, failure_persistence: None, ..Config::default() };
        let strategy = (vec(packet(), 1..200), any::<u64>(), 1..4u16);
        let found = |(mut packets, seed, workers): (Vec<Packet>, u64, u16)| {
            let mut known = HashSet::new();
            packets.retain(|packet| known.insert(flow(packet)));
            let settings = settings(FirstPackets { flows: 1 << 16, seed, ..first(100) });
            let mut bench = Bench::with(&settings, workers);
            let count = packets.len();
            prop_assert_eq!(bench.up_of(packets.iter().copied()), count);
            let enough = bench.ports[0].enough.clone().unwrap();
            for (i, packet) in packets.iter().enumerate() {
                assert!([TCP, UDP].contains(&packet.protocol));
                let (from, to) = (packet.from, packet.to);
                match i % 3 {
                    0 => enough.note(packet.protocol, [from, to]),
                    1 => enough.note(packet.protocol, [to, from]),
                    _ => {}
                }
            }
            let back = packets.iter().map(|packet| packet.back());
            prop_assert_eq!(bench.up_of(back), count / 3);
            bench.drain();
            for (i, packet) in packets.iter().enumerate() {
                let is_same = packet.from == packet.to;
                let counted = match (i % 3, is_same) {
                    (2, _) => [0, 0],
                    (_, true) => [1, 0],
                    (_, false) => [0, 1],
                };
                prop_assert_eq!(bench.counted(packet).0, counted, "{:?}", packet);
            }
            Ok(())
        };
        TestRunner::new(config).run(&strategy, found).unwrap();
    });
}
