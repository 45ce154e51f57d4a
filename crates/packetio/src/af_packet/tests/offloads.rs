//! What a local sender leaves to its network card, with real sockets between two namespaces.

use std::io::Write;
use std::net::{TcpListener, TcpStream, UdpSocket};

use super::super::reader::RingReader;
use super::config;
use super::frames::drain;
use crate::interface::{MERGE_INCOMING, Offloads, SPLIT_OUTGOING};
use crate::settings::PortSettings;
use crate::tests::netns::{Netns, has_ethtool, skip};

/// Two namespaces: `a0`, 10.9.0.1, in the first, `b0`, 10.9.0.2, in the second.
fn two(test: &str) -> Option<(Netns, Netns)> {
    let (near, far) = (Netns::new(test)?, Netns::new(test)?);
    near.run(&format!("ip link add a0 type veth peer name b0 netns {}", far.name()));
    near.run("ip addr add 10.9.0.1/24 dev a0 && ip link set a0 up");
    far.run("ip addr add 10.9.0.2/24 dev b0 && ip link set b0 up");
    Some((near, far))
}

/// Sum of the pseudo-header and the UDP datagram of an IPv4 frame without options.
fn udp_sum(frame: &[u8]) -> u32 {
    let words = |bytes: &[u8]| -> u32 {
        let word =
            |two: &[u8]| u32::from(two[0]) << 8 | two.get(1).map_or(0, |&low| u32::from(low));
        bytes.chunks(2).map(word).sum()
    };
    let udp = &frame[34..34 + usize::from(u16::from_be_bytes([frame[38], frame[39]]))];
    let sum = words(&frame[26..34]) + 17 + udp.len() as u32 + words(udp);
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum & 0xffff) + (sum >> 16)
}

#[test]
fn checksums_left_to_the_card_are_completed() {
    let Some((near, far)) = two("checksums_left_to_the_card_are_completed") else {
        return;
    };
    for completes_checksums in [false, true] {
        let config = PortSettings { completes_checksums, ..config() };
        let mut port = far.inside(|| RingReader::open(&config).unwrap());
        near.inside(|| {
            let socket = UdpSocket::bind("10.9.0.1:5000").unwrap();
            for length in 0..200 {
                socket.send_to(&vec![length as u8; length], "10.9.0.2:5001").unwrap();
            }
        });
        let (mut right, mut wrong) = (0, 0);
        drain(&mut port, |_, frame| {
            if frame[12..14] == [8, 0] && frame[23] == 17 {
                match udp_sum(frame) {
                    0xffff => right += 1,
                    _ => wrong += 1,
                }
            }
        });
        assert_eq!(port.counts().partial_checksums, 200);
        assert_eq!((right, wrong), if completes_checksums { (200, 0) } else { (0, 200) });
    }
}

/// Sends 4 MB over TCP, and says how many super-packets a port on `b0` has seen.
fn merged(near: &Netns, far: &Netns, port: &mut RingReader) -> u64 {
    const BYTES: usize = 4_000_000;
    let before = port.counts().merged;
    let listener = far.inside(|| TcpListener::bind("10.9.0.2:0").unwrap());
    let address = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            std::io::copy(&mut stream, &mut std::io::sink()).unwrap()
        });
        near.inside(|| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&vec![7; BYTES]).unwrap();
        });
        assert_eq!(reader.join().unwrap(), BYTES as u64);
    });
    let mut bytes = 0;
    drain(port, |frame, _| bytes += u64::from(frame.wire));
    assert!(bytes > BYTES as u64, "{bytes} bytes seen");
    port.counts().merged - before
}

#[test]
fn super_packets_are_counted_and_the_remedy_works() {
    const TEST: &str = "super_packets_are_counted_and_the_remedy_works";
    let Some((near, far)) = two(TEST) else {
        return;
    };
    if !has_ethtool() {
        return skip(TEST, "ethtool");
    }
    for completes_checksums in [false, true] {
        near.run("ethtool -K a0 tso on gso on");
        far.run("ethtool -K b0 tso on gso on");
        let config = PortSettings { completes_checksums, ..config() };
        let mut port = far.inside(|| RingReader::open(&config).unwrap());
        assert!(merged(&near, &far, &mut port) > 0);
        for (netns, interface) in [(&near, "a0"), (&far, "b0")] {
            let offloads = netns.inside(|| Offloads::query(interface).unwrap());
            let is_on = |name| offloads.is_on(name);
            assert!(is_on("tso") && is_on("gso") && !is_on("lro"), "{offloads:?}");
            let all = [&MERGE_INCOMING[..], &SPLIT_OUTGOING].concat();
            let remedy = offloads.remedy(interface, &all);
            netns.run(&remedy.expect("something to turn off"));
            let after = netns.inside(|| Offloads::query(interface).unwrap());
            assert_eq!(after.remedy(interface, &all), None);
            assert!(after.is_on("gso"));
        }
        assert_eq!(merged(&near, &far, &mut port), 0);
    }
}
