//! The parser against `etherparse`, an independent one, on every packet of the captures at hand.
//!
//! Promised: both accept the same packets, and find in them the IP header at the same place and the
//! same addresses, ports, protocol, IP length and TCP flags. To accept means to find a TCP, UDP or
//! ICMP header that belongs to a flow. etherparse reads laxly here, as a capture may be snapped,
//! and so lets pass a few packets that we refuse: [`lenience`] tells them by etherparse's own
//! fields. A packet that only one accepts for another reason fails the test.
//!
//! Link headers that etherparse does not know (PPPoE, MPLS, more than three tags) are skipped
//! for it by what our parser found, so that the rest is compared all the same.
use crate::common;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use etherparse::{
    EtherType, Icmpv4Slice, Icmpv6Slice, Ipv6ExtensionSlice, LaxNetSlice, LaxSlicedPacket,
    TcpHeaderSlice, UdpHeaderSlice, UdpSlice, ether_type,
};
use flowmgr::wire::{self, ICMP, ICMPV6, TCP, UDP};
use packetio::{CaptureReader, Received, Rx};

/// What both parsers say of a packet.
#[derive(Debug, PartialEq)]
struct Packet {
    ip_at: usize,
    source: (IpAddr, u16),
    destination: (IpAddr, u16),
    protocol: u8,
    length: u32,
    tcp_flags: u8,
}

/// Packets by what came of the comparison.
type Tally = BTreeMap<String, u64>;

const SAME: &str = "the same";
const SAME_FROM_IP: &str = "the same, link header skipped for etherparse";
const NEITHER: &str = "neither accepts";
const NO_IP: &str = "no IP header found";

#[test]
fn agrees_with_etherparse_on_the_shipped_capture() {
    let mut tally = Tally::new();
    compare_capture(&common::demo(), &mut tally);
    println!("{tally:#?}");
    assert!(tally[SAME] > 5_000);
}

#[test]
fn agrees_with_etherparse_on_the_shared_captures() {
    let test = "agrees_with_etherparse_on_the_shared_captures";
    let Some(folder) = common::shared("captures") else {
        return common::skip(test, "the shared captures");
    };
    let train = compare_folder(&folder.join("train"));
    println!("train: {train:#?}");
    assert!(train.keys().all(|outcome| !outcome.starts_with("only")));

    let odd = compare_folder(&folder.join("odd"));
    println!("odd: {odd:#?}");
    for verdict in ["ip_length", "ip_version", "other_l4", "udp_length"] {
        assert!(odd.contains_key(&only_lax_etherparse(verdict)), "{verdict}");
    }
    assert!(odd.contains_key(SAME_FROM_IP) && odd.contains_key(NEITHER));
}

fn compare_folder(folder: &Path) -> Tally {
    let entries = std::fs::read_dir(folder).expect("a folder of captures");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    let mut tally = Tally::new();
    for path in paths {
        compare_capture(&path, &mut tally);
    }
    tally
}

/// Compares a capture up to its end, or to where it is damaged.
fn compare_capture(path: &Path, tally: &mut Tally) {
    let mut reader = CaptureReader::open(path).expect("opens");
    let mut packets = 0;
    while let Ok(Received::Burst(burst)) = reader.receive(256) {
        for (i, frame) in burst.frames().iter().enumerate() {
            let outcome = compare(frame.link, burst.bytes(i))
                .unwrap_or_else(|why| panic!("{}, packet {}: {why}", path.display(), packets + i));
            *tally.entry(outcome).or_default() += 1;
        }
        packets += burst.len();
    }
}

/// What came of it, or how the two disagree.
fn compare(link: u16, frame: &[u8]) -> Result<String, String> {
    let mut outcome = SAME;
    let ours = ours(link, frame);
    let mut sliced = slice(link, frame);
    if let (Ok(ours), None) = (&ours, sliced.as_ref().and_then(|sliced| sliced.net.as_ref())) {
        outcome = SAME_FROM_IP;
        sliced = LaxSlicedPacket::from_ip(&frame[ours.ip_at..]).ok();
    }
    let Some(sliced) = sliced else {
        let neither = ours.is_err().then(|| NEITHER.to_owned());
        return neither.ok_or("only ours is accepted".to_owned());
    };
    match (ours, theirs(&sliced, frame)) {
        (Ok(ours), Ok(theirs)) if ours == theirs => Ok(outcome.to_owned()),
        (Err(_), Err(_)) => Ok(NEITHER.to_owned()),
        (Err(verdict), Ok(_)) if lenience(&sliced) == Some(verdict) => {
            Ok(only_lax_etherparse(verdict))
        }
        (ours, theirs) => Err(format!("fenxi {ours:?}, etherparse {theirs:?}")),
    }
}

fn only_lax_etherparse(verdict: &str) -> String {
    format!("only etherparse accepts, being lax: {verdict}")
}

fn ours(link: u16, frame: &[u8]) -> Result<Packet, &'static str> {
    let headers = wire::parse(link, frame).map_err(|verdict| verdict.name())?;
    let (source, destination) = headers.key.ends(headers.from_low);
    Ok(Packet {
        ip_at: headers.ip_at as usize,
        source,
        destination,
        protocol: headers.key.protocol(),
        length: headers.length,
        tcp_flags: headers.tcp_flags,
    })
}

/// etherparse's own way to the IP header, after the fixed header of link types that it does not
/// know.
fn slice(link: u16, frame: &[u8]) -> Option<LaxSlicedPacket<'_>> {
    let be16 = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
    match link {
        1 => LaxSlicedPacket::from_ethernet(frame).ok(),
        113 => Some(LaxSlicedPacket::from_ether_type(EtherType(be16(14)?), frame.get(16..)?)),
        276 => Some(LaxSlicedPacket::from_ether_type(EtherType(be16(0)?), frame.get(20..)?)),
        0 | 108 => {
            let family = u32::from_ne_bytes(*frame.first_chunk()?);
            let announced = match family.min(family.swap_bytes()) {
                2 => ether_type::IPV4,
                10 | 23 | 24 | 28 | 30 => ether_type::IPV6,
                _ => return None,
            };
            Some(LaxSlicedPacket::from_ether_type(announced, &frame[4..]))
        }
        12 | 14 | 101 | 228 | 229 => LaxSlicedPacket::from_ip(frame).ok(),
        _ => None,
    }
}

/// What etherparse found, or why it is no packet of a flow.
fn theirs(sliced: &LaxSlicedPacket<'_>, frame: &[u8]) -> Result<Packet, String> {
    // First, for in 0.21 the extensions of a packet cut within them must not be walked: their
    // iterator then reads out of bounds.
    if let Some((error, layer)) = &sliced.stop_err {
        return Err(format!("{layer}: {error}"));
    }
    let offset = |part: &[u8]| part.as_ptr().addr() - frame.as_ptr().addr();
    let (ip_at, ends, length, fragment): (_, [IpAddr; 2], _, _) = match &sliced.net {
        Some(LaxNetSlice::Ipv4(v4)) => {
            let header = v4.header();
            let ip_at = offset(header.slice());
            let ends = [header.source_addr().into(), header.destination_addr().into()];
            let length = match header.total_len() {
                0 => frame.len() - ip_at,
                length => length.into(),
            };
            (ip_at, ends, length, header.fragments_offset().value())
        }
        Some(LaxNetSlice::Ipv6(v6)) => {
            let header = v6.header();
            let ends = [header.source_addr().into(), header.destination_addr().into()];
            let fragments = v6.extensions().clone().into_iter().map(|header| match header {
                Ipv6ExtensionSlice::Fragment(header) => header.fragment_offset().value(),
                _ => 0,
            });
            let length = usize::from(header.payload_length()) + 40;
            (offset(header.slice()), ends, length, fragments.max().unwrap_or(0))
        }
        _ => return Err(NO_IP.to_owned()),
    };
    if fragment != 0 {
        return Err("a later fragment".to_owned());
    }
    let payload = sliced.ip_payload().ok_or(NO_IP)?;
    let protocol = payload.ip_number.0;
    let (ports, tcp_flags) = ports(ends[0].is_ipv6(), protocol, payload.payload)?;
    Ok(Packet {
        ip_at,
        source: (ends[0], ports[0]),
        destination: (ends[1], ports[1]),
        protocol,
        length: length as u32,
        tcp_flags,
    })
}

/// Ports and TCP flags, by their headers: etherparse by itself reads none of a first fragment.
fn ports(is_v6: bool, protocol: u8, payload: &[u8]) -> Result<([u16; 2], u8), String> {
    match protocol {
        ICMP if !is_v6 => {
            Icmpv4Slice::from_slice(payload).map_err(|error| error.to_string())?;
            Ok(([0; 2], 0))
        }
        ICMPV6 if is_v6 => {
            let icmp = Icmpv6Slice::from_slice(payload).map_err(|error| error.to_string())?;
            match icmp.type_u8() {
                0..130 => Ok(([0; 2], 0)),
                _ => Err("of listeners or neighbours".to_owned()),
            }
        }
        TCP => {
            let tcp = TcpHeaderSlice::from_slice(payload).map_err(|error| error.to_string())?;
            let flags = [tcp.fin(), tcp.syn(), tcp.rst(), tcp.psh()];
            let more = [tcp.ack(), tcp.urg(), tcp.ece(), tcp.cwr()];
            let bits = flags.into_iter().chain(more).enumerate();
            let flags = bits.map(|(bit, is_set)| u8::from(is_set) << bit).sum();
            Ok(([tcp.source_port(), tcp.destination_port()], flags))
        }
        UDP => {
            let udp = UdpSlice::from_slice_lax(payload).map_err(|error| error.to_string())?;
            Ok(([udp.source_port(), udp.destination_port()], 0))
        }
        _ => Err("another protocol".to_owned()),
    }
}

/// The verdict of a packet that etherparse accepts only because it reads laxly: the version is not
/// the one that the link layer announced; the IPv4 length is below its header's; an AH in IPv4 is
/// skipped, as we do in IPv6 only; the UDP length is below 8.
fn lenience(sliced: &LaxSlicedPacket<'_>) -> Option<&'static str> {
    let (version, v4) = match sliced.net.as_ref()? {
        LaxNetSlice::Ipv4(v4) => (ether_type::IPV4, Some(v4)),
        _ => (ether_type::IPV6, None),
    };
    if sliced.ether_payload().is_some_and(|ether| ether.ether_type != version) {
        return Some("ip_version");
    }
    if let Some(v4) = v4 {
        let header = v4.header();
        if header.total_len() != 0 && usize::from(header.total_len()) < header.slice().len() {
            return Some("ip_length");
        }
        if v4.extensions().auth.is_some() {
            return Some("other_l4");
        }
    }
    let payload = sliced.ip_payload()?;
    let udp = UdpHeaderSlice::from_slice(payload.payload).ok()?;
    (payload.ip_number.0 == UDP && udp.length() < 8).then_some("udp_length")
}
