//! pcapng.

use super::*;
use crate::CAPTURED_MAX;
use crate::capture::Flaw;
use crate::capture::error::{BLOCK_MAX, INTERFACES_MAX};

const LE: ByteOrder = ByteOrder::Little;

/// A section with one Ethernet interface, and these blocks.
fn file(blocks: &[Vec<u8>]) -> Vec<u8> {
    [section(LE), interface(LE, 1, 0, &[]), blocks.concat()].concat()
}

/// Asserts that a capture ends with `flaw`, after `packets`, in a record that begins at `at`.
fn assert_bad(capture: &[u8], flaw: Flaw, packets: usize, at: usize) {
    let outcome = read(capture);
    let error = outcome.error.expect("the end is an error");
    assert!(matches!(error.kind, CaptureErrorKind::BadRecord(f) if f == flaw), "{error}");
    assert_eq!((outcome.packets.len(), error.at), (packets, at as u64), "{error}");
}

#[test]
fn packets_of_all_three_kinds_in_both_orders() {
    for order in ORDERS {
        let outcome = read(
            &[
                section(order),
                interface(order, 276, 0, &[]),
                interface(order, 1, 0, &[(9, &[9])]),
                enhanced(order, 1, 5 << 32 | 1, b"enhanced"),
                old_packet(order, 1, 2_999, b"old"),
                simple(order, 5, b"lower"),
            ]
            .concat(),
        );
        assert_eq!(outcome.status(), "ok");
        assert_eq!(outcome.bytes(), [&b"enhanced"[..], b"old", b"lower"]);
        assert_eq!(outcome.times(), [(21_474_836, 481), (2, 999), (0, 0)]);
        let told: Vec<_> =
            outcome.packets.iter().map(|(f, _)| (f.link, f.interface, f.wire)).collect();
        assert_eq!(told, [(1, 1, 1008), (1, 1, 1003), (276, 0, 5)]);
    }
}

#[test]
fn a_section_starts_anew() {
    let outcome = read(
        &[
            file(&[enhanced(LE, 0, 1, b"a")]),
            section(ByteOrder::Big),
            interface(ByteOrder::Big, 101, 0, &[(14, &7_i64.to_be_bytes())]),
            enhanced(ByteOrder::Big, 0, 1, b"b"),
        ]
        .concat(),
    );
    let told: Vec<_> =
        outcome.packets.iter().map(|(f, _)| (f.link, f.interface, f.time_us)).collect();
    assert_eq!(told, [(1, 0, 1), (101, 1, 7_000_001)]);

    let forgotten = [file(&[]), section(LE)].concat();
    let capture = [forgotten.clone(), enhanced(LE, 0, 1, b"a")].concat();
    let flaw = Flaw::UnknownInterface { index: 0, known: 0 };
    assert_bad(&capture, flaw, 0, forgotten.len());
}

#[test]
fn a_simple_packet_is_as_long_as_the_shortest_tells() {
    for (snap, wire, room, captured) in
        [(0, 6, 8, 6), (0, 100, 8, 8), (3, 100, 8, 3), (50, 7, 8, 7), (0, 0, 0, 0)]
    {
        let capture =
            [section(LE), interface(LE, 1, snap, &[]), simple(LE, wire, &vec![1; room])].concat();
        let outcome = read(&capture);
        let (frame, _) = outcome.packets[0];
        assert_eq!((frame.captured, frame.wire), (captured, wire));
    }
    let long = vec![0; CAPTURED_MAX as usize + 4];
    let flaw = Flaw::CapturedTooLarge(CAPTURED_MAX + 4);
    let capture = file(&[simple(LE, u32::MAX, &long)]);
    assert_bad(&capture, flaw, 0, file(&[]).len());
    let flaw = Flaw::UnknownInterface { index: 0, known: 0 };
    assert_bad(&[section(LE), simple(LE, 4, b"data")].concat(), flaw, 0, 28);
}

#[test]
fn bad_blocks() {
    let good = enhanced(LE, 0, 1, b"good");
    let bad = |bad: Vec<u8>, flaw| {
        let capture = file(&[good.clone(), bad, good.clone()]);
        assert_bad(&capture, flaw, 1, file(std::slice::from_ref(&good)).len());
    };
    for size in [0, 8, 11, 13, 34, u32::MAX] {
        bad(words(LE, &[6, size, size]), Flaw::BlockLength(size));
    }
    let mut trailer = enhanced(LE, 0, 1, b"data");
    trailer.splice(32.., [0; 4]);
    bad(trailer, Flaw::BlockTrailer { first: 36, last: 0 });
    bad(words(LE, &[0x0a0d_0d0a, 28, 1]), Flaw::ByteOrder([1, 0, 0, 0]));
    bad(enhanced(LE, 1, 1, b""), Flaw::UnknownInterface { index: 1, known: 1 });
    bad(old_packet(LE, 2, 1, b""), Flaw::UnknownInterface { index: 2, known: 1 });
    bad(block(LE, 6, &[0; 16]), Flaw::BlockTooShort { kind: 6, bytes: 16 });
    bad(block(LE, 3, &[]), Flaw::BlockTooShort { kind: 3, bytes: 0 });
    bad(block(LE, 1, &[0; 4]), Flaw::BlockTooShort { kind: 1, bytes: 4 });
    let claim = |captured| block(LE, 6, &words(LE, &[0, 0, 0, captured, 0, 0]));
    bad(claim(5), Flaw::CapturedBeyondBlock(5));
    bad(claim(CAPTURED_MAX + 1), Flaw::CapturedTooLarge(CAPTURED_MAX + 1));
}

#[test]
fn every_cut_is_found_and_placed() {
    let blocks = [
        section(LE),
        interface(LE, 1, 0, &[]),
        enhanced(LE, 0, 1, b"first"),
        block(LE, 0x7777, b"passed over"),
        simple(LE, 4, b"last"),
    ];
    let capture = blocks.concat();
    let mut ends = vec![0];
    for block in &blocks {
        ends.push(ends[ends.len() - 1] + block.len());
    }
    for cut in 4..capture.len() {
        let outcome = read(&capture[..cut]);
        let begin = ends.iter().rfind(|&&end| end <= cut).unwrap();
        assert_eq!(outcome.packets.len(), usize::from(cut >= ends[3]));
        if *begin == cut {
            assert_eq!(outcome.status(), "ok");
        } else {
            outcome.assert_truncated(Part::Block, *begin as u64);
        }
    }
}

#[test]
fn blocks_of_no_interest_are_passed_over_at_any_length() {
    let long = block(LE, 0x0bad, &vec![0xff; 3 * 1024 * 1024]);
    let last = enhanced(LE, 0, 1, b"behind it");
    let outcome = read(&file(&[long.clone(), last.clone()]));
    assert_eq!((outcome.status(), outcome.bytes()), ("ok", vec![&b"behind it"[..]]));

    let at = file(&[]).len();
    let cut = file(std::slice::from_ref(&long));
    for missing in [1, 4, 5, 2_000_000] {
        read(&cut[..cut.len() - missing]).assert_truncated(Part::Block, at as u64);
    }
    let mut wrong = long.clone();
    let size = long.len() as u32;
    wrong.splice(long.len() - 4.., [0; 4]);
    assert_bad(&file(&[wrong, last]), Flaw::BlockTrailer { first: size, last: 0 }, 0, at);
}

#[test]
fn a_section_header_may_be_long() {
    let order = ByteOrder::Big;
    let mut body = words(order, &[0x1a2b_3c4d, halves(order, 1, 0), u32::MAX, u32::MAX]);
    body.resize(2 * 1024 * 1024, 0);
    let capture = [
        block(order, 0x0a0d_0d0a, &body),
        interface(order, 1, 0, &[]),
        enhanced(order, 0, 1, b"data"),
    ];
    assert_eq!(read(&capture.concat()).bytes(), [b"data"]);
}

#[test]
fn a_packet_block_may_have_so_many_bytes_and_no_more() {
    let most = vec![0xab; CAPTURED_MAX as usize];
    let with_options = |options: u32| {
        let front = words(LE, &[0, 0, 1, CAPTURED_MAX, CAPTURED_MAX]);
        block(LE, 6, &[front, most.clone(), vec![0; options as usize]].concat())
    };
    let room = BLOCK_MAX - CAPTURED_MAX - 32;
    let outcome = read(&file(&[with_options(room)]));
    assert_eq!((outcome.status(), outcome.bytes()), ("ok", vec![&most[..]]));
    let too_long = file(&[with_options(room + 4)]);
    assert_bad(&too_long, Flaw::BlockTooLong(BLOCK_MAX + 4), 0, file(&[]).len());
    // A length that the file does not have is not taken at its word.
    let claim = file(&[words(LE, &[6, 0x7fff_fff0, 0, 0, 0])]);
    read(&claim).assert_truncated(Part::Block, file(&[]).len() as u64);
}

#[test]
fn interfaces_are_bounded() {
    let mut capture = section(LE);
    for _ in 0..INTERFACES_MAX {
        capture.extend(interface(LE, 1, 0, &[]));
    }
    let last = enhanced(LE, INTERFACES_MAX as u32 - 1, 1, b"data");
    let outcome = read(&[&capture[..], &last].concat());
    assert_eq!((outcome.status(), outcome.packets[0].0.interface), ("ok", u16::MAX));
    let one_more = [&capture[..], &interface(LE, 1, 0, &[])].concat();
    assert_bad(&one_more, Flaw::TooManyInterfaces, 0, capture.len());
}
