//! Properties: reading gives back what was written, whatever the chunks; and nothing panics.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::writer::{CaptureFormat, CaptureWriter};

/// A packet with a time that fits both formats.
fn packet() -> impl Strategy<Value = (Frame, Vec<u8>)> {
    let time_us = 0..(1_i64 << 32) * 1_000_000;
    (time_us, 0..1000_u16, any::<u32>(), vec(any::<u8>(), 0..80)).prop_map(
        |(time_us, time_sub_ns, wire, bytes)| {
            let captured = bytes.len() as u32;
            let frame = Frame {
                captured,
                wire,
                time_us,
                time_sub_ns,
                link: 1,
                gso: super::super::merged(wire),
                ..Frame::default()
            };
            (frame, bytes)
        },
    )
}

fn write(format: CaptureFormat, packets: &[(Frame, Vec<u8>)]) -> Vec<u8> {
    let mut writer = CaptureWriter::create(format, Vec::new()).unwrap();
    for (frame, bytes) in packets {
        writer.write(frame, bytes).unwrap();
    }
    writer.finish().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Captures made by hand, in both orders, with most of what the formats have.
fn samples() -> Vec<Vec<u8>> {
    let mut samples = Vec::new();
    for order in ORDERS {
        let pcap = [
            pcap_header(order, false, 1),
            record(order, 1, 2, b"some data"),
            record(order, 3, 4, b"some more data"),
            record(order, 5, 6, b""),
        ];
        let pcapng = [
            section(order),
            interface(order, 1, 0, &[(9, &[9]), (14, &[0; 8])]),
            enhanced(order, 0, 1 << 40, b"enhanced"),
            block(order, 0x7777, b"unknown"),
            old_packet(order, 0, 77, b"old"),
            section(order),
            interface(order, 101, 20, &[]),
            simple(order, 6, b"simple"),
        ];
        samples.extend([gzip(&pcap.concat()), gzip(&pcapng.concat())]);
        samples.extend([pcap.concat(), pcapng.concat()]);
    }
    samples
}

/// The same capture read whole and in chunks must give the same.
fn assert_chunks_do_not_matter(capture: &[u8], sizes: &[usize], max: usize) {
    let whole = read(capture);
    let chunked = read_from(Trickle::new(capture, sizes), max);
    assert_eq!(chunked.packets, whole.packets);
    let message = |outcome: &Outcome| outcome.error.as_ref().map(ToString::to_string);
    assert_eq!(message(&chunked), message(&whole));
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        packets in vec(packet(), 0..20),
        sizes in vec(1..100_usize, 1..5),
        max in 1..9_usize,
        pack: bool,
    ) {
        for (format, resolution_ns) in [
            (CaptureFormat::Pcap { nanosecond: false }, 1000),
            (CaptureFormat::Pcap { nanosecond: true }, 1),
            (CaptureFormat::Pcapng, 1),
        ] {
            let mut file = write(format, &packets);
            if pack {
                file = gzip(&file);
            }
            let outcome = read_from(Trickle::new(&file, &sizes), max);
            prop_assert_eq!(outcome.status(), "ok");
            let mut expected = packets.clone();
            for (frame, _) in &mut expected {
                frame.time_sub_ns -= frame.time_sub_ns % resolution_ns;
            }
            prop_assert_eq!(outcome.packets, expected);
        }
    }

    #[test]
    fn pcapng_holds_any_time_and_link(
        links in vec(0..4_u16, 1..20),
        times in vec(any::<i64>(), 20),
    ) {
        let packets: Vec<_> = links
            .iter()
            .zip(&times)
            .map(|(&link, &time_us)| (Frame { link, time_us, ..Frame::default() }, Vec::new()))
            .collect();
        let mut outcome = read(&write(CaptureFormat::Pcapng, &packets));
        prop_assert_eq!(outcome.status(), "ok");
        for (frame, _) in &mut outcome.packets {
            frame.interface = 0;
        }
        prop_assert_eq!(outcome.packets, packets);
    }

    #[test]
    fn arbitrary_bytes_are_read_alike_in_chunks(
        start in 0..6_usize,
        bytes in vec(any::<u8>(), 0..200),
        sizes in vec(1..20_usize, 1..4),
    ) {
        let starts = [
            vec![],
            vec![0x1f, 0x8b, 8, 0],
            pcap_of(&[]),
            section(ByteOrder::Little),
            [section(ByteOrder::Big), interface(ByteOrder::Big, 1, 0, &[])].concat(),
            words(ByteOrder::Little, &[0x0a0d_0d0a]),
        ];
        assert_chunks_do_not_matter(&[&starts[start][..], &bytes].concat(), &sizes, 3);
    }

    #[test]
    fn damaged_captures_are_read_alike_in_chunks(
        sample in 0..8_usize,
        damages in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        is_cut: bool,
        sizes in vec(1..20_usize, 1..4),
    ) {
        let mut capture = samples()[sample].clone();
        for (place, value) in damages {
            let place = place.index(capture.len());
            capture[place] = value;
        }
        if is_cut {
            capture.truncate(cut.index(capture.len()));
        }
        assert_chunks_do_not_matter(&capture, &sizes, 2);
    }
}
