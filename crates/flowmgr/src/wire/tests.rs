//! Border cases of the parser. That it agrees with another parser on real
//! captures is tested end to end.

use proptest::prelude::*;

use super::*;

const ETHERNET: u16 = 1;
const RAW: u16 = 101;

fn udp_v4(total_length: u16) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    ip[2..4].copy_from_slice(&total_length.to_be_bytes());
    ip.extend([0x13, 0x88, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4]);
    ip
}

fn tcp_v4() -> Vec<u8> {
    let mut ip = udp_v4(40)[..20].to_vec();
    ip[9] = TCP;
    ip.extend([
        0,
        80,
        0x9c,
        0x40,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0x50,
        TCP_SYN | TCP_ACK,
        0,
        0,
        0,
        0,
        0,
        0,
    ]);
    ip
}

/// IPv6 with the given extension headers' bytes; `first` is their first type.
fn udp_v6(first: u8, extensions: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x60, 0, 0, 0, 0, 0, first, 64];
    ip.extend([1; 16]);
    ip.extend([2; 16]);
    ip.extend(extensions);
    ip.extend([0x13, 0x88, 0, 53, 0, 8, 0, 0]);
    let length = (ip.len() - 40) as u16;
    ip[4..6].copy_from_slice(&length.to_be_bytes());
    ip
}

fn ethernet(ethertypes: &[u8], ip: &[u8]) -> Vec<u8> {
    [&[0; 12], ethertypes, ip].concat()
}

#[test]
fn reads_addresses_ports_flags_and_length() {
    let headers = parse(ETHERNET, &ethernet(&[8, 0], &tcp_v4())).unwrap();
    let (source, destination) = headers.key.ends(headers.from_low);
    assert_eq!(source, ("10.0.0.1".parse().unwrap(), 80));
    assert_eq!(destination, ("10.0.0.2".parse().unwrap(), 40000));
    assert_eq!(headers.key.protocol(), TCP);
    assert_eq!(headers.tcp_flags, TCP_SYN | TCP_ACK);
    assert_eq!((headers.length, headers.ip_at), (40, 14));
}

#[test]
fn a_zero_total_length_means_all_that_was_captured() {
    let mut ip = udp_v4(0);
    ip.extend([0; 6]);
    assert_eq!(parse(RAW, &ip).unwrap().length, 38);
}

#[test]
fn padding_is_no_header() {
    // The IP length ends inside the UDP header; the frame goes on.
    assert_eq!(parse(RAW, &udp_v4(27)), Err(Verdict::L4Short));
    assert_eq!(parse(RAW, &udp_v4(28)).unwrap().length, 28);
}

#[test]
fn each_defect_has_its_verdict() {
    let with = |at: usize, value: u8| {
        let mut ip = tcp_v4();
        ip[at] = value;
        parse(RAW, &ip)
    };
    assert_eq!(parse(RAW, &[]), Err(Verdict::IpShort));
    assert_eq!(with(0, 0x55), Err(Verdict::IpVersion));
    assert_eq!(with(0, 0x44), Err(Verdict::IpIhl));
    assert_eq!(with(3, 19), Err(Verdict::IpLength));
    assert_eq!(with(7, 1), Err(Verdict::Fragment));
    assert_eq!(with(6, 0x20).map(|headers| headers.length), Ok(40)); // first fragment
    assert_eq!(with(9, 47), Err(Verdict::OtherL4));
    assert_eq!(with(32, 0x40), Err(Verdict::TcpDoff));
    assert_eq!(with(32, 0x60), Err(Verdict::L4Short));
    assert_eq!(parse(RAW, &tcp_v4()[..39]), Err(Verdict::L4Short));
    assert_eq!(parse(RAW, &tcp_v4()[..19]), Err(Verdict::IpShort));
    let mut udp = udp_v4(32);
    udp[25] = 7;
    assert_eq!(parse(RAW, &udp), Err(Verdict::UdpLength));
    assert_eq!(parse(127, &tcp_v4()), Err(Verdict::UnsupportedLink));
}

#[test]
fn link_layers_lead_to_the_ip_header() {
    let ip = udp_v4(32);
    let at = |link, frame: &[u8]| parse(link, frame).map(|headers| headers.ip_at);
    assert_eq!(at(ETHERNET, &ethernet(&[0x88, 0xa8, 0, 5, 0x81, 0, 0, 7, 8, 0], &ip)), Ok(22));
    assert_eq!(at(ETHERNET, &ethernet(&[0x88, 0x64, 0x11, 0, 0, 1, 0, 34, 0, 0x21], &ip)), Ok(22));
    assert_eq!(at(ETHERNET, &ethernet(&[0x88, 0x47, 0, 0, 0x10, 64, 0, 0, 0x11, 64], &ip)), Ok(22));
    assert_eq!(at(ETHERNET, &ethernet(&[0x86, 0xdd], &ip)), Err(Verdict::IpVersion));
    assert_eq!(at(ETHERNET, &ethernet(&[8, 6], &ip)), Err(Verdict::NonIp));
    assert_eq!(at(ETHERNET, &ethernet(&[0x81, 0, 0], &[])), Err(Verdict::LinkShort));
    assert_eq!(at(113, &[&[0; 14][..], &[8, 0], &ip].concat()), Ok(16));
    assert_eq!(at(276, &[&[8, 0][..], &[0; 18], &ip].concat()), Ok(20));
    assert_eq!(at(0, &[&[2, 0, 0, 0][..], &ip].concat()), Ok(4));
    assert_eq!(at(108, &[&[0, 0, 0, 2][..], &ip].concat()), Ok(4));
    assert_eq!(at(0, &[&[30, 0, 0, 0][..], &udp_v6(UDP, &[])].concat()), Ok(4));
    assert_eq!(at(0, &[&[99, 0, 0, 0][..], &ip].concat()), Err(Verdict::NonIp));
}

#[test]
fn extension_headers_are_skipped_in_any_order() {
    let hop_then_fragment = [44, 0, 0, 0, 0, 0, 0, 0, UDP, 0, 0, 1, 0, 0, 0, 9];
    assert!(parse(RAW, &udp_v6(0, &hop_then_fragment)).is_ok());
    let later_fragment = [UDP, 0, 0, 8, 0, 0, 0, 9];
    assert_eq!(parse(RAW, &udp_v6(44, &later_fragment)), Err(Verdict::Fragment));
    let authentication = [UDP, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert!(parse(RAW, &udp_v6(51, &authentication)).is_ok());
    let too_long = [UDP, 200, 0, 0, 0, 0, 0, 0];
    assert_eq!(parse(RAW, &udp_v6(60, &too_long)), Err(Verdict::Ip6ExtShort));
    assert_eq!(parse(RAW, &udp_v6(50, &[])), Err(Verdict::OtherL4));
    assert_eq!(parse(RAW, &udp_v6(UDP, &[])).unwrap().length, 48);
}

proptest! {
    #[test]
    fn arbitrary_bytes_get_a_verdict(
        link in prop::sample::select(vec![0u16, 1, 12, 101, 108, 113, 276, 228, 9]),
        frame in prop::collection::vec(any::<u8>(), 0..120),
    ) {
        if let Ok(headers) = parse(link, &frame) {
            prop_assert!((headers.ip_at as usize) < frame.len());
            prop_assert!(headers.length >= 28);
        }
    }

    #[test]
    fn usual_packets_are_read_as_all_others_are(
        which in 0usize..3,
        ends in any::<[u8; 12]>(),
        (at, value) in (0usize..80, any::<u8>()),
        keep in 30usize..90,
        wire in prop::sample::select(vec![u32::MAX, 62, 54, 46, 45]),
        link in prop::sample::select(vec![ETHERNET, ETHERNET, RAW]),
    ) {
        let mut ip = [udp_v4(32), tcp_v4(), udp_v6(UDP, &[])][which].clone();
        let (ends_at, ethertype) = match ip[0] >> 4 {
            4 => (12, [8, 0]),
            _ => (32, [0x86, 0xdd]),
        };
        ip[ends_at..ends_at + 12].copy_from_slice(&ends);
        let mut frame = ethernet(&ethertype, &ip);
        let usual = |link, frame: &[u8], wire| {
            parse_usual_v4(link, frame, wire).or_else(|| usual::parse_v6(link, frame, wire))
        };
        let headers = usual(ETHERNET, &frame, u32::MAX);
        prop_assert_eq!(parse_any(ETHERNET, &frame, u32::MAX).ok(), headers);
        prop_assert!(headers.is_some());
        if let Some(byte) = frame.get_mut(at) {
            *byte = value;
        }
        frame.truncate(keep);
        if let Some(headers) = usual(link, &frame, wire) {
            prop_assert_eq!(parse_any(link, &frame, wire), Ok(headers));
        }
    }

    #[test]
    fn damaged_packets_get_a_verdict(at in 0usize..60, value in any::<u8>(), keep in 0usize..70) {
        for ip in [udp_v4(32), tcp_v4(), udp_v6(0, &[UDP, 0, 0, 0, 0, 0, 0, 0])] {
            let [high, low] = match ip[0] >> 4 {
                4 => [8, 0],
                _ => [0x86, 0xdd],
            };
            let mut frame = ethernet(&[0x81, 0, 0, 1, high, low], &ip);
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
            frame.truncate(keep);
            let _ = parse(ETHERNET, &frame);
        }
    }
}

#[test]
fn payload_is_what_the_lengths_leave_and_not_what_was_captured() {
    let payload = |ip: &[u8]| parse(RAW, ip).unwrap().payload();
    assert_eq!(payload(&udp_v4(32)), 4);
    assert_eq!(payload(&udp_v4(28)), 0);
    // Cut off by the capture: the IP length counts.
    assert_eq!(payload(&udp_v4(1400)), 1372);
    // No IP length: what was captured counts.
    let mut open = udp_v4(0);
    open.extend([0; 6]);
    assert_eq!(payload(&open), 10);
    assert_eq!(payload(&tcp_v4()), 0);
    // TCP options are a header, and so are the extensions of IPv6.
    let mut options = tcp_v4();
    options[2..4].copy_from_slice(&51u16.to_be_bytes());
    options[32] = 0x60;
    options.extend([0; 11]);
    assert_eq!(payload(&options), 7);
    let mut v6 = udp_v6(0, &[UDP, 0, 0, 0, 0, 0, 0, 0]);
    v6[5] += 9;
    assert_eq!(payload(&v6), 9);
}

#[test]
fn icmp_is_a_flow_of_hosts_unless_it_keeps_the_link_in_order() {
    let v4 = |protocol, keep: usize| {
        let mut ip = udp_v4(32);
        ip[9] = protocol;
        parse(RAW, &ip[..keep])
    };
    let headers = v4(ICMP, 32).unwrap();
    assert_eq!((headers.key.protocol(), headers.length, headers.payload()), (ICMP, 32, 4));
    assert_eq!(v4(ICMP, 28), Ok(headers));
    assert_eq!(v4(ICMP, 27), Err(Verdict::L4Short));
    assert_eq!(v4(ICMPV6, 32), Err(Verdict::OtherL4));
    let v6 = |protocol, kind| {
        let mut ip = udp_v6(0, &[protocol, 0, 0, 0, 0, 0, 0, 0]);
        ip[48] = kind;
        parse(RAW, &ip)
    };
    for kind in 0..=u8::MAX {
        let protocol = v6(ICMPV6, kind).map(|headers| headers.key.protocol());
        let expected = if kind < 130 { Ok(ICMPV6) } else { Err(Verdict::OtherL4) };
        assert_eq!(protocol, expected, "{kind}");
        assert_eq!(v6(ICMP, kind), Err(Verdict::OtherL4));
    }
}

#[test]
fn a_packet_that_claims_more_than_its_frame_had_is_malformed() {
    let claims = |ip: Vec<u8>, wire| parse_on_wire(RAW, &ip, wire).map(|headers| headers.length);
    // 32 bytes of which 4 are payload, and a frame padded to 46.
    assert_eq!(claims(udp_v4(32), 32), Ok(32));
    assert_eq!(claims(udp_v4(32), 46), Ok(32));
    assert_eq!(claims(udp_v4(46), 46), Ok(46));
    assert_eq!(claims(udp_v4(47), 46), Err(Verdict::IpLength));
    assert_eq!(claims(udp_v4(65_000), 32), Err(Verdict::IpLength));
    // The capture cut the frame: what it had on the wire counts.
    assert_eq!(claims(udp_v4(1400), 1400), Ok(1400));
    assert_eq!(claims(udp_v4(1400), 1399), Err(Verdict::IpLength));
    // A length that the header leaves open claims nothing.
    assert_eq!(claims(udp_v4(0), 32), Ok(32));
    let mut v6 = udp_v6(UDP, &[]);
    assert_eq!(claims(v6.clone(), 48), Ok(48));
    v6[5] += 1;
    assert_eq!(claims(v6, 48), Err(Verdict::IpLength));
    // Bytes in front of the IP header are none of the packet's.
    let tagged = ethernet(&[0x81, 0, 0, 7, 8, 0], &udp_v4(32));
    assert!(parse_on_wire(ETHERNET, &tagged, 50).is_ok());
    let tagged = ethernet(&[0x81, 0, 0, 7, 8, 0], &udp_v4(33));
    assert_eq!(parse_on_wire(ETHERNET, &tagged, 50), Err(Verdict::IpLength));
}

#[test]
fn the_outermost_tag_is_the_vlan() {
    let ethernet = |tags: &[u8]| [&[2; 12], tags, &[8, 0, 0x45]].concat();
    for (frame, vlan) in [
        (ethernet(&[]), None),
        (ethernet(&[0x81, 0, 0x60, 20]), Some(20)),
        (ethernet(&[0x88, 0xa8, 0xff, 0xfe, 0x81, 0, 0, 20]), Some(4094)),
        (vec![2; 13], None),
        ([&[2; 12], &[0x81, 0, 1][..]].concat(), None),
    ] {
        assert_eq!(super::vlan(1, &frame), vlan, "{frame:02x?}");
    }
    let cooked = [&[0; 14], &[0x81, 0, 0, 7, 8, 0][..]].concat();
    assert_eq!((super::vlan(113, &cooked), super::vlan(101, &cooked)), (Some(7), None));
}
