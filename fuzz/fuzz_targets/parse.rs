//! Any frame of any link type: the parser never panics, and what it says holds together.
//!
//! The input is the link type, two bytes big endian, and the frame. Beyond "no panic":
//! the headers that were found lie inside the frame and inside the IP length; bytes that come
//! behind change nothing that was decided on bytes that were there; and a tagged frame is still
//! the same packet, changed in its DSCP and checksum only.
#![no_main]

use std::net::IpAddr;

use flowmgr::tag::set_dscp;
use flowmgr::verdict::Verdict;
use flowmgr::wire::{Headers, ICMP, ICMPV6, TCP, UDP, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((link, frame)) = data.split_first_chunk() else {
        return;
    };
    let link = u16::from_be_bytes(*link);
    let parsed = parse(link, frame);
    if let Ok(headers) = &parsed {
        lies_inside(headers, frame);
        survives_tagging(link, headers, frame);
    }
    ignores_what_follows(link, parsed, frame);
});

/// The headers are where the result says, and the IP length holds them.
fn lies_inside(headers: &Headers, frame: &[u8]) {
    let ip = &frame[headers.ip_at as usize..];
    let ((source, _), (destination, _)) = headers.key.ends(headers.from_low);
    let layer4_at_least = match headers.key.protocol() {
        TCP => 20,
        UDP | ICMP | ICMPV6 => 8,
        other => panic!("protocol {other} has no flows"),
    };
    let (ip_at_least, is_open) = match (ip[0] >> 4, source, destination) {
        (4, IpAddr::V4(source), IpAddr::V4(destination)) => {
            assert_eq!(ip[12..16], source.octets());
            assert_eq!(ip[16..20], destination.octets());
            (20, false)
        }
        (6, IpAddr::V6(source), IpAddr::V6(destination)) => {
            assert_eq!(ip[8..24], source.octets());
            assert_eq!(ip[24..40], destination.octets());
            (40, ip[4..6] == [0, 0])
        }
        (version, ..) => panic!("version {version}, {source}, {destination}"),
    };
    assert!(ip.len() >= ip_at_least + layer4_at_least);
    assert!(is_open || headers.length as usize >= ip_at_least + layer4_at_least);
    assert!(headers.key.protocol() == TCP || headers.tcp_flags == 0);
    let (low, high) = headers.key.ends(true);
    assert!(if headers.key.is_icmp() { low >= high } else { low <= high });
}

/// Tagging changes the DSCP and the IPv4 checksum, and nothing that a flow is made of.
fn survives_tagging(link: u16, headers: &Headers, frame: &[u8]) {
    let dscp = frame[frame.len() - 1] & 63;
    let mut tagged = frame.to_vec();
    set_dscp(&mut tagged, headers.ip_at, dscp);
    assert_eq!(parse(link, &tagged), Ok(*headers));

    let at = headers.ip_at as usize;
    let class = tagged[at] << 4 | tagged[at + 1] >> 4;
    match frame[at] >> 4 {
        4 => {
            assert_eq!(tagged[at + 1], dscp << 2 | frame[at + 1] & 3);
            tagged[at + 10..at + 12].copy_from_slice(&frame[at + 10..at + 12]);
        }
        _ => assert_eq!(class, dscp << 2 | frame[at + 1] >> 4 & 3),
    }
    tagged[at..at + 2].copy_from_slice(&frame[at..at + 2]);
    assert_eq!(tagged, frame);
}

/// More bytes behind the frame are padding, or payload that was cut off: the result stays unless
/// it was that bytes are missing. The IP header gives the length; without one, the frame does.
fn ignores_what_follows(link: u16, parsed: Result<Headers, Verdict>, frame: &[u8]) {
    let longer = [frame, frame].concat();
    let again = parse(link, &longer);
    match parsed {
        Ok(mut headers) => {
            let ip = &frame[headers.ip_at as usize..];
            if ip[0] >> 4 == 4 && ip[2..4] == [0, 0] {
                headers.length += frame.len() as u32;
            }
            assert_eq!(again, Ok(headers));
        }
        Err(Verdict::LinkShort | Verdict::IpShort | Verdict::Ip6ExtShort | Verdict::L4Short) => {}
        Err(verdict) => assert_eq!(again, Err(verdict)),
    }
}
