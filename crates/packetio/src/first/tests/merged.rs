//! Packets that are several: merged on their way in, or not yet split on their way out.

use std::os::fd::AsFd;
use std::time::Instant;

use super::packets::{ACK, FIN, Packet, TCP, tcp, udp, v4, v6};
use super::{Bench, SOON, first, namespace};
use crate::burst::Gso;
use crate::sys;

/// A frame that its sender leaves to the network card to split into parts of `size` payload bytes.
fn merged(packet: &Packet, kind: u8, size: u16) -> Vec<u8> {
    let bytes = packet.bytes();
    let transport = bytes.len() - packet.payload - if packet.protocol == TCP { 20 } else { 8 };
    let mut header = vec![1, kind];
    for field in [
        bytes.len() - packet.payload,
        usize::from(size),
        transport,
        if packet.protocol == TCP { 16 } else { 6 },
    ] {
        header.extend((field as u16).to_ne_bytes());
    }
    [header, bytes].concat()
}

const OF_TCP_V4: u8 = 1;
const OF_TCP_V6: u8 = 4;
const OF_UDP: u8 = 5;

#[test]
fn merged_packets_count_as_those_of_which_they_are_made() {
    let Some(netns) = namespace("merged_packets_count_as_those_of_which_they_are_made") else {
        return;
    };
    netns.inside(|| {
        let mut bench = Bench::new(first(2));
        sys::set_option(bench.wire.0.as_fd(), libc::PACKET_VNET_HDR, &[1]).unwrap();
        let wait_for = |bench: &mut Bench, offered: u64, counted: u64| {
            let began = Instant::now();
            let is_there = |bench: &mut Bench| {
                let sums = bench.sums();
                (sums.offered, sums.counted) == (offered, counted)
            };
            while !is_there(bench) {
                assert!(began.elapsed() < SOON, "{:?}", bench.sums());
            }
        };
        for (kind, packet) in [
            (OF_TCP_V4, tcp(v4(1, 7), v4(2, 9), ACK, 3500)),
            (OF_TCP_V6, tcp(v6(1, 7), v6(2, 9), ACK, 3500)),
        ] {
            let before = bench.sums();
            for _ in 0..5 {
                bench.wire.send(&merged(&packet, kind, 1000));
            }
            wait_for(&mut bench, before.offered + 2, before.counted + 3 * 4);
            let up = bench.up_now().frames;
            assert!(up.iter().all(|up| up.frame.gso == Gso::new(1000, false)));
            assert!(up.iter().all(|up| up.frame.wire as usize == packet.bytes().len()));
            let counted = bench.sums().counted_bytes - before.counted_bytes;
            let headers = packet.bytes().len() as u64 - 3500;
            assert_eq!(counted, 3 * (3500 + 4 * headers));
            // The end of a connection comes up, however large.
            let end = Packet { flags: ACK | FIN, ..packet };
            bench.wire.send(&merged(&end, kind, 1400));
            wait_for(&mut bench, before.offered + 3, before.counted + 3 * 4);
            let up = bench.up_now();
            assert_eq!(up.frames[0].frame.gso, Gso::new(1400, false));
            let bytes = 3 * (3500 + 4 * (headers - 14));
            assert_eq!(bench.counted(&packet), ([12, 0], [bytes, 0]));
        }
        assert_eq!(bench.sums().merged, 6);
    });
}

#[test]
fn merged_datagrams_come_up_for_user_space_to_tell_them_apart() {
    let Some(netns) = namespace("merged_datagrams_come_up_for_user_space_to_tell_them_apart")
    else {
        return;
    };
    netns.inside(|| {
        let mut bench = Bench::new(first(1));
        sys::set_option(bench.wire.0.as_fd(), libc::PACKET_VNET_HDR, &[1]).unwrap();
        let datagrams = udp(v4(1, 7), v4(2, 9), 3500);
        for _ in 0..4 {
            bench.wire.send(&merged(&datagrams, OF_UDP, 1000));
            bench.sent += 1;
        }
        let up = bench.up().frames;
        assert_eq!(up.len(), 4);
        for up in up {
            assert_eq!(up.frame.gso, Gso::new(1000, true));
            assert_eq!(up.bytes, datagrams.bytes()[..2048]);
        }
        bench.drain();
        assert!(bench.told.is_empty());
    });
}
