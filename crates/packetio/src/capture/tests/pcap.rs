//! Classic pcap.

use super::*;
use crate::CAPTURED_MAX;
use crate::capture::Flaw;

#[test]
fn both_orders_and_both_resolutions() {
    for order in ORDERS {
        for (nanosecond, times) in
            [(false, [(1_000_007, 0), (2_999_999, 0)]), (true, [(1_000_000, 7), (2_000_999, 999)])]
        {
            let outcome = read(
                &[
                    pcap_header(order, nanosecond, 101),
                    record(order, 1, 7, b"one"),
                    record(order, 2, 999_999, b""),
                ]
                .concat(),
            );
            assert_eq!(outcome.status(), "ok");
            assert_eq!(outcome.bytes(), [&b"one"[..], b""]);
            assert_eq!(outcome.times(), times);
            let first = outcome.packets[0].0;
            assert_eq!((first.link, first.captured, first.wire), (101, 3, 1003));
            assert_eq!((first.interface, first.rss), (0, None));
        }
    }
}

#[test]
fn the_link_type_is_the_low_half() {
    for order in ORDERS {
        let file = [pcap_header(order, false, 0x2400_0114), record(order, 0, 0, b"x")].concat();
        assert_eq!(read(&file).packets[0].0.link, 0x0114);
    }
}

#[test]
fn a_fraction_of_more_than_a_second_counts_as_it_stands() {
    let order = ByteOrder::Little;
    let latest = record(order, u32::MAX, u32::MAX, b"");
    let us = (u64::from(u32::MAX) * 1_000_000) as i64;
    let coarse = read(&[pcap_header(order, false, 1), latest.clone()].concat());
    assert_eq!(coarse.times(), [(us + i64::from(u32::MAX), 0)]);
    let fine = read(&[pcap_header(order, true, 1), latest].concat());
    assert_eq!(fine.times(), [(us + 4_294_967, 295)]);
}

#[test]
fn a_file_without_packets_is_fine() {
    let outcome = read(&pcap_of(&[]));
    assert_eq!((outcome.status(), outcome.packets.len()), ("ok", 0));
}

#[test]
fn every_cut_is_found_and_placed() {
    let file = pcap_of(&[b"first", b"", b"third packet"]);
    // Ends of the file header and of the records.
    let ends = [24, 24 + 21, 24 + 21 + 16, file.len()];
    for cut in 1..file.len() {
        let outcome = read(&file[..cut]);
        let complete = ends.iter().take_while(|&&end| end <= cut).count();
        assert_eq!(outcome.packets.len(), complete.saturating_sub(1), "cut {cut}");
        if ends.contains(&cut) {
            assert_eq!(outcome.status(), "ok", "cut {cut}");
            continue;
        }
        let (part, at) = match complete {
            0 => (Part::FileHeader, 0),
            n if cut < ends[n - 1] + 16 => (Part::RecordHeader, ends[n - 1]),
            n => (Part::PacketData, ends[n - 1]),
        };
        outcome.assert_truncated(part, at as u64);
    }
}

#[test]
fn a_packet_may_have_so_many_bytes_and_no_more() {
    let most = vec![0xab; CAPTURED_MAX as usize];
    let outcome = read(&pcap_of(&[b"a", &most, b"b"]));
    assert_eq!(outcome.bytes(), [b"a", &most[..], b"b"]);

    let too_many = vec![0xab; CAPTURED_MAX as usize + 1];
    let outcome = read(&pcap_of(&[b"a", &too_many, b"b"]));
    assert_eq!(outcome.bytes(), [b"a"]);
    let error = outcome.error.unwrap();
    let flaw = Flaw::CapturedTooLarge(CAPTURED_MAX + 1);
    assert!(matches!(error.kind, CaptureErrorKind::BadRecord(f) if f == flaw));
    assert_eq!(
        error.to_string(),
        "test: bad record: a packet claims 262145 captured bytes, more than 262144 \
         (byte 41, after 1 packet)"
    );
}

#[test]
fn what_a_burst_holds_survives_the_window() {
    // More than one window, with packets of all sizes up to a quarter of it.
    let packets: Vec<Vec<u8>> = (0..40_u8).map(|i| vec![i; usize::from(i) * 6551]).collect();
    let slices: Vec<&[u8]> = packets.iter().map(|packet| &packet[..]).collect();
    let file = pcap_of(&slices);
    assert!(file.len() > 4 * 1024 * 1024);
    for max in [1, 7, 1000] {
        let outcome = read_from(Cursor::new(file.clone()), max);
        assert_eq!((outcome.status(), outcome.bytes()), ("ok", slices.clone()));
    }
}
