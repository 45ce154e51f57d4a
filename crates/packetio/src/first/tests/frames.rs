//! Frames of all kinds: with tags, with options, and such as are not parsed.

use super::packets::{
    ACK, Packet, SYN, TCP, UDP, ethernet, tcp, udp, v4, v4_header, v6, v6_header,
};
use super::{Bench, Wire, first, namespace, settings};
use crate::settings::{Direction, PortSettings};

#[test]
fn tags_are_there_and_flows_are_the_same_without() {
    let Some(netns) = namespace("tags_are_there_and_flows_are_the_same_without") else {
        return;
    };
    let tags: [&[(u16, u16)]; 5] = [
        &[],
        &[(0x8100, 0x6064)],
        &[(0x88a8, 10), (0x8100, 20)],
        &[(0x8100, 0)],
        &[(0x88a8, 4095)],
    ];
    netns.inside(|| {
        // On the way out tags are in the frame; on the way in the kernel has taken the outermost
        // off.
        for interface in ["a0", "b0"] {
            let settings = PortSettings {
                interface: interface.to_owned(),
                direction: Direction::Both,
                ..settings(first(50))
            };
            let mut bench = Bench::with(&settings, 1);
            for plain in [udp(v4(1, 7), v4(2, 9), 200), tcp(v6(1, 7), v6(2, 9), ACK, 50)] {
                let packets: Vec<_> =
                    (0..60).map(|i| Packet { tags: tags[i % 5], ..plain }).collect();
                bench.send(packets.iter().copied());
                let up = bench.up().frames;
                assert_eq!(up.len(), 50, "{interface}");
                for (up, packet) in up.iter().zip(&packets) {
                    let bytes = packet.bytes();
                    assert_eq!(up.frame.wire as usize, bytes.len(), "{interface} {packet:?}");
                    assert!(up.bytes.len() >= bytes.len().min(136));
                    assert_eq!(up.bytes, bytes[..up.bytes.len()], "{interface} {packet:?}");
                }
                bench.drain();
                let bytes = 10 * plain.ip_bytes() as u64;
                assert_eq!(bench.counted(&plain), ([10, 0], [bytes, 0]));
            }
        }
    });
}

/// Frames that are no plain packets of TCP or UDP.
fn unparsed() -> Vec<(&'static str, Vec<u8>)> {
    let (a, b) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    let (a6, b6) = ([0xfd; 16], [0xfe; 16]);
    let ports = [0, 7, 0, 9, 0, 28, 0, 0];
    let of_v4 = |protocol, fragment, payload: &[u8]| {
        let ip = v4_header([a, b], protocol, fragment, payload.len());
        [ethernet(&[], 0x0800), ip, payload.to_vec()].concat()
    };
    let of_v6 = |next, payload: &[u8]| {
        let ip = v6_header([a6, b6], next, payload.len());
        [ethernet(&[], 0x86dd), ip, payload.to_vec()].concat()
    };
    let data = |length: usize| [&ports[..], &vec![7; length]].concat();
    let mut cut = tcp(v4(1, 7), v4(2, 9), ACK, 0).bytes();
    cut.truncate(14 + 20 + 16);
    let mut short_header = tcp(v4(1, 7), v4(2, 9), ACK, 0).bytes();
    short_header[14 + 20 + 12] = 0x40;
    let mut of_other_version = udp(v4(1, 7), v4(2, 9), 0).bytes();
    of_other_version[14] = 0x55;
    let mut long_ip_header = udp(v4(1, 7), v4(2, 9), 0).bytes();
    long_ip_header[14] = 0x4f;
    let mut too_little = udp(v4(1, 7), v4(2, 9), 0).bytes();
    too_little[14 + 3] = 20;
    let fragment_header =
        |offset: u8, rest: &[u8]| [&[UDP, 0, 0, offset, 0, 0, 0, 9], rest].concat();
    vec![
        ("a first fragment", of_v4(UDP, 0x2000, &data(20))),
        ("a later fragment", of_v4(UDP, 5, &data(1000))),
        ("a last fragment of TCP", of_v4(TCP, 0x1000, &data(20))),
        ("a first fragment of IPv6", of_v6(44, &fragment_header(1, &data(20)))),
        ("a later fragment of IPv6", of_v6(44, &fragment_header(0x29, &data(20)))),
        ("options of IPv6", of_v6(0, &[&[UDP, 0, 1, 4, 0, 0, 0, 0], &data(20)[..]].concat())),
        ("ARP", [ethernet(&[], 0x0806), vec![1; 28]].concat()),
        ("ICMP", of_v4(1, 0, &data(56))),
        ("ICMPv6", of_v6(58, &data(56))),
        ("GRE", of_v4(47, 0, &data(1400))),
        ("ESP", of_v6(50, &data(99))),
        ("SCTP", of_v4(132, 0, &data(99))),
        ("IP in IP", of_v4(4, 0, &udp(v4(1, 1), v4(2, 2), 9).bytes()[14..])),
        ("MPLS", [ethernet(&[], 0x8847), vec![0, 0, 0x11, 64], data(60)].concat()),
        ("PPPoE", [ethernet(&[], 0x8864), vec![0x11, 0, 0, 1], data(60)].concat()),
        (
            "three tags",
            [ethernet(&[(0x8100, 1), (0x8100, 2), (0x8100, 3), (0x8100, 4)], 0x0800), data(60)]
                .concat(),
        ),
        ("a cut header of TCP", cut),
        ("a header of TCP that is too short", short_header),
        ("a header of IP that is too long", long_ip_header),
        ("another version of IP", of_other_version),
        ("a length of IP that is too short", too_little),
        ("a length of UDP that is too short", of_v4(UDP, 0, &[0, 7, 0, 9, 0, 7, 0, 0])),
        ("nothing but an Ethernet header", ethernet(&[], 0x0800)),
        ("a large packet", of_v4(47, 0, &data(2000))),
        ("one that is too large", of_v4(47, 0, &data(5000))),
    ]
}

#[test]
fn what_is_not_parsed_comes_up_whole_and_is_never_counted() {
    let Some(netns) = namespace("what_is_not_parsed_comes_up_whole_and_is_never_counted") else {
        return;
    };
    netns.run("ip link set a0 mtu 9000 && ip link set b0 mtu 9000");
    netns.inside(|| {
        let mut bench = Bench::new(first(1));
        let frames = unparsed();
        for (what, bytes) in &frames {
            for _ in 0..3 {
                bench.wire.send(bytes);
                bench.sent += 1;
            }
            let up = bench.up();
            assert_eq!(up.frames.len(), 3, "{what}");
            for up in &up.frames {
                assert_eq!(up.frame.wire as usize, bytes.len(), "{what}");
                assert!(up.frame.gso.is_none());
                // A tag that was taken off comes back to what was cut.
                let kept = bytes.len().min(2048);
                assert!((kept..=kept + 4).contains(&up.bytes.len()), "{what}");
                assert_eq!(up.bytes, bytes[..up.bytes.len()], "{what}");
            }
            assert_eq!(up.counts, [], "{what}");
        }
        bench.drain();
        assert!(bench.told.is_empty());
        let sums = bench.sums();
        assert_eq!((sums.counted, sums.received), (0, 3 * frames.len() as u64));
    });
}

#[test]
fn headers_with_options_are_parsed() {
    let Some(netns) = namespace("headers_with_options_are_parsed") else {
        return;
    };
    netns.inside(|| {
        let mut bench = Bench::new(first(1));
        let plain = tcp(v4(1, 7), v4(2, 9), ACK, 100);
        let mut bytes = plain.bytes();
        // 20 bytes of each header are options now, which were payload before.
        let ip = v4_header([[10, 0, 0, 1], [10, 0, 0, 2]], TCP, 0, 20 + 40 + 60);
        bytes.splice(14..34, [&ip[..], &[1; 20]].concat());
        bytes[14] = 0x4a;
        bytes[14 + 3] = 140 + 20;
        bytes[14 + 40 + 12] = 0xa0;
        for _ in 0..3 {
            bench.wire.send(&bytes);
            bench.sent += 1;
        }
        assert_eq!(bench.how_many_up(), 1);
        bench.drain();
        assert_eq!(bench.counted(&plain), ([2, 0], [320, 0]));
    });
}

/// A SYN with payload of which the headers end at byte 136 of the frame is not cut in them.
#[test]
fn headers_are_whole_however_many_options_and_tags_they_have() {
    let Some(netns) = namespace("headers_are_whole_however_many_options_and_tags_they_have") else {
        return;
    };
    netns.inside(|| {
        let wire = Wire::new("a0");
        let mut bench = Bench::new(first(1));
        let plain = tcp(v6(1, 7), v6(2, 9), SYN, 200);
        let tagged = Packet { tags: &[(0x88a8, 1), (0x8100, 2)], ..plain };
        let mut bytes = tagged.bytes();
        // The longest header of TCP.
        bytes[22 + 40 + 12] = 0xf0;
        wire.send(&bytes);
        bench.sent += 1;
        let up = bench.up().frames;
        assert!(up[0].bytes.len() >= 22 + 40 + 60);
        assert_eq!(up[0].bytes, bytes[..up[0].bytes.len()]);
    });
}
