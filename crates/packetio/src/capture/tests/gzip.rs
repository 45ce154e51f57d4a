//! Captures in gzip, whole, in members, cut and corrupt.

use std::io::Write;

use flate2::write::GzEncoder;
use flate2::{Compression, GzBuilder};

use super::*;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A capture of packets that hardly compress, so that a cut leaves some of them.
fn capture() -> Vec<u8> {
    let mut state = 1_u32;
    let mut byte = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let packets: Vec<Vec<u8>> = (0..50).map(|_| (0..100).map(|_| byte()).collect()).collect();
    let slices: Vec<&[u8]> = packets.iter().map(|packet| &packet[..]).collect();
    pcap_of(&slices)
}

#[test]
fn content_counts_and_not_the_name() {
    let plain = read(&capture());
    let packed = read(&gzip(&capture()));
    assert_eq!((packed.status(), packed.packets), ("ok", plain.packets));
    let order = ByteOrder::Big;
    let pcapng = [section(order), interface(order, 1, 0, &[]), enhanced(order, 0, 5, b"data")];
    assert_eq!(read(&gzip(&pcapng.concat())).bytes(), [b"data"]);
}

#[test]
fn members_follow_each_other_anywhere() {
    let capture = capture();
    let expected = read(&capture).packets;
    for cut in [0, 3, 24, 1000, capture.len()] {
        let file = [gzip(&capture[..cut]), gzip(&[]), gzip(&capture[cut..])].concat();
        let outcome = read(&file);
        assert_eq!((outcome.status(), &outcome.packets), ("ok", &expected));
    }
}

#[test]
fn what_follows_a_member_is_no_error_unless_it_begins_as_one() {
    let capture = capture();
    let with = |rest: &[u8]| read(&[&gzip(&capture)[..], rest].concat());
    for rest in [&b""[..], b"\x1f", b"\0\0\0\0\0", b"garbage", b"\x1f\x8c"] {
        let outcome = with(rest);
        assert_eq!((outcome.status(), outcome.packets.len()), ("ok", 50), "{rest:?}");
    }
    for rest in [&b"\x1f\x8b"[..], b"\x1f\x8bgarbage", &gzip(b"")[..9]] {
        let outcome = with(rest);
        assert_eq!(outcome.packets.len(), 50, "{rest:?}");
        outcome.assert_truncated(Part::GzipStream, capture.len() as u64);
    }
}

#[test]
fn a_cut_stream_gives_what_can_be_unpacked() {
    let capture = capture();
    let packed = gzip(&capture);
    let mut before = 0;
    for cut in (2..packed.len()).step_by(97) {
        let outcome = read(&packed[..cut]);
        let count = outcome.packets.len();
        assert!(count >= before, "more bytes, fewer packets at cut {cut}");
        before = count;
        let at =
            if count == 0 { outcome.error.as_ref().unwrap().at } else { 24 + 116 * count as u64 };
        outcome.assert_truncated(Part::GzipStream, at);
        // Random bytes pack to about their own size.
        assert!(count + 2 >= cut.saturating_sub(100) / 120, "{count} packets at cut {cut}");
    }
    // A trailer that is cut takes no packet away.
    for cut in packed.len() - 8..packed.len() {
        let outcome = read(&packed[..cut]);
        assert_eq!((outcome.status(), outcome.packets.len()), ("truncated", 50));
    }
}

#[test]
fn a_wrong_checksum_or_length_is_found_at_the_end() {
    let packed = gzip(&capture());
    for from_end in [1, 5, 8] {
        let mut broken = packed.clone();
        broken[packed.len() - from_end] ^= 1;
        let outcome = read(&broken);
        assert_eq!((outcome.status(), outcome.packets.len()), ("truncated", 50));
    }
}

#[test]
fn header_fields_are_passed_over_and_checked() {
    let capture = capture();
    let mut encoder = GzBuilder::new()
        .filename("name.pcap")
        .comment("recorded somewhere")
        .extra(vec![7; 300])
        .write(Vec::new(), Compression::fast());
    encoder.write_all(&capture).unwrap();
    let packed = encoder.finish().unwrap();
    assert_eq!(read(&packed).packets.len(), 50);
    for (byte, value) in [(2, 7), (3, packed[3] | 0x80)] {
        let mut broken = packed.clone();
        broken[byte] = value;
        read(&broken).assert_truncated(Part::GzipStream, 0);
    }
}

#[test]
fn a_header_checksum_is_checked() {
    let packed = gzip(&pcap_of(&[b"data"]));
    let mut header = packed[..10].to_vec();
    header[3] = 0x02;
    let mut crc = flate2::Crc::new();
    crc.update(&header);
    let sum = (crc.sum() & 0xffff) as u16;
    let with = |sum: u16| [&header[..], &sum.to_le_bytes()[..], &packed[10..]].concat();
    assert_eq!(read(&with(sum)).bytes(), [b"data"]);
    read(&with(sum ^ 1)).assert_truncated(Part::GzipStream, 0);
}

#[test]
fn an_error_of_the_content_comes_before_that_of_the_stream() {
    let mut capture = capture();
    capture.splice(24 + 116 + 8..24 + 116 + 12, [0xff; 4]); // second packet's captured length
    let packed = gzip(&capture);
    let outcome = read(&packed[..packed.len() - 1]);
    assert_eq!((outcome.status(), outcome.packets.len()), ("bad_record", 1));
}

#[test]
fn only_one_layer_is_unpacked() {
    let twice = gzip(&gzip(&capture()));
    assert_eq!(read(&twice).status(), "unknown_format");
}
