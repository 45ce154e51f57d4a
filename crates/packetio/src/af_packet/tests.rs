//! Ports over real interfaces: veth pairs in network namespaces, which the tests make and remove.
//! Without root or `ip` they are skipped by name.

mod copies;
mod forward;
mod frames;
mod kept;
mod offloads;
mod ports;
mod states;

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use super::reader::RingReader;
use super::transmit::Transmit;
use crate::burst::Burst;
use crate::error::{OpenError, TxError};
use crate::settings::{Direction, PortSettings};
use crate::tests::frames::{End, KINDS, flows, frame, mark, numbered};
use crate::tests::netns::Netns;
use frames::{all, drain, send};

impl RingReader {
    /// Opens the one ring of an interface.
    fn open(settings: &PortSettings) -> Result<RingReader, OpenError> {
        let mut rings = RingReader::open_rings(settings, 1)?;
        Ok(rings.pop().expect("one ring was asked for"))
    }

    /// The next frames, if any.
    fn receive(&mut self, max: usize) -> Result<Burst<'_>, TxError> {
        self.fetch(max).map_err(|kind| self.interface.error(kind))?;
        Ok(self.burst())
    }
}

/// A port on the far end of the pair.
fn config() -> PortSettings {
    PortSettings { direction: Direction::Incoming, is_promiscuous: true, ..PortSettings::new("b0") }
}

/// One of several rings: small, and patient, for a block counts as used once its time is up,
/// however little is in it, and a busy machine takes its time to send.
fn one_of_several() -> PortSettings {
    PortSettings { blocks: 32, block_timeout_ms: 20, ..config() }
}

fn sender(interface: &str) -> Transmit {
    Transmit::open(interface, false).unwrap()
}

#[test]
fn what_is_sent_is_received() {
    let Some(netns) = Netns::with_pair("what_is_sent_is_received") else {
        return;
    };
    let sent = numbered(5000);
    netns.inside(|| {
        let mut port = RingReader::open(&config()).unwrap();
        let mut transmit = sender("a0");
        let before_s = seconds();
        send(&mut transmit, &sent);
        let mut received = Vec::new();
        drain(&mut port, |frame, bytes| {
            assert_eq!((frame.link, frame.rss, frame.wire), (1, None, bytes.len() as u32));
            assert!((before_s - 1..=seconds() + 1).contains(&(frame.time_us / 1_000_000)));
            received.push(bytes.to_vec());
        });
        assert!(received == sent, "{} frames received", received.len());
        let bytes: usize = sent.iter().map(Vec::len).sum();
        let (counts, sent_counts) = (port.counts(), transmit.counts);
        assert_eq!((counts.received, counts.seen, counts.dropped), (5000, 5000, 0));
        assert_eq!(counts.received_bytes, bytes as u64);
        assert_eq!((sent_counts.sent, sent_counts.sent_bytes), (5000, bytes as u64));
    });
    assert_eq!(netns.received_by("b0"), 5000);
}

fn seconds() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64
}

#[test]
fn a_snap_length_cuts_what_is_kept() {
    let Some(netns) = Netns::with_pair("a_snap_length_cuts_what_is_kept") else {
        return;
    };
    netns.inside(|| {
        let config = PortSettings { snap_length: 96, ..config() };
        let mut port = RingReader::open(&config).unwrap();
        send(&mut sender("a0"), numbered(100));
        let mut count = 0;
        drain(&mut port, |frame, bytes| {
            assert_eq!(bytes.len(), 96.min(frame.wire as usize));
            count += 1;
        });
        assert_eq!(count, 100);
    });
}

#[test]
fn vlan_tags_are_there() {
    let Some(netns) = Netns::with_pair("vlan_tags_are_there") else {
        return;
    };
    let (a, b) = (End { host: 1, port: 7 }, End { host: 2, port: 9 });
    let tags: [&[(u16, u16)]; 4] =
        [&[], &[(0x8100, 0x6064)], &[(0x88a8, 10), (0x8100, 20)], &[(0x8100, 0)]];
    let sent: Vec<_> =
        (0..400_u32).map(|i| frame(a, b, KINDS[i as usize % 6], tags[i as usize % 4], i)).collect();
    netns.inside(|| {
        for completes_checksums in [false, true] {
            let config = PortSettings { completes_checksums, ..config() };
            let mut port = RingReader::open(&config).unwrap();
            send(&mut sender("a0"), &sent);
            let received = all(&mut port);
            assert!(received == sent, "{} frames received", received.len());
            assert_eq!(port.counts().tags_restored, 300);
        }
    });
}

/// The ring in which each flow was seen, by the marks of its frames.
fn rings_of_flows(rings: &mut [RingReader]) -> HashMap<u32, usize> {
    let mut seen = HashMap::new();
    for (i, ring) in rings.iter_mut().enumerate() {
        drain(ring, |_, bytes| {
            let known = *seen.entry(mark(bytes)).or_insert(i);
            assert_eq!(known, i, "flow {:x} is seen in two rings", mark(bytes));
        });
    }
    seen
}

/// That flows were seen in all rings, about as many in each.
fn assert_spread(seen: &HashMap<u32, usize>, rings: usize) {
    assert_eq!(seen.len(), 640);
    for ring in 0..rings {
        let share = seen.values().filter(|&&of| of == ring).count();
        assert!(share * rings * 2 > seen.len(), "ring {ring} of {rings} has {share} flows");
    }
}

#[test]
fn both_directions_of_a_flow_meet_in_one_ring() {
    let Some(netns) = Netns::with_pair("both_directions_of_a_flow_meet_in_one_ring") else {
        return;
    };
    netns.inside(|| {
        for rings in [2, 3] {
            let config = PortSettings { direction: Direction::Both, ..one_of_several() };
            let mut ports = RingReader::open_rings(&config, rings).unwrap();
            send(&mut sender("a0"), flows(false));
            send(&mut sender("b0"), flows(true));
            assert_spread(&rings_of_flows(&mut ports), usize::from(rings));
            let counts: Vec<_> = ports.iter_mut().map(RingReader::counts).collect();
            assert_eq!(counts.iter().map(|counts| counts.received).sum::<u64>(), 2 * 1800);
            assert_eq!(counts.iter().map(|counts| counts.seen).sum::<u64>(), 2 * 1800);
        }
    });
}

#[test]
fn rings_of_two_interfaces_see_the_same_flows() {
    let Some(netns) = Netns::with_pair("rings_of_two_interfaces_see_the_same_flows") else {
        return;
    };
    netns.inside(|| {
        let open = |name: &str| {
            let interface = name.to_owned();
            RingReader::open_rings(&PortSettings { interface, ..one_of_several() }, 3).unwrap()
        };
        let (mut near, mut far) = (open("a0"), open("b0"));
        send(&mut sender("a0"), flows(false));
        send(&mut sender("b0"), flows(true));
        let flows = rings_of_flows(&mut far);
        assert_spread(&flows, 3);
        assert_eq!(rings_of_flows(&mut near), flows);
    });
}

#[test]
fn own_frames_are_seen_once_or_not_at_all() {
    let Some(netns) = Netns::with_pair("own_frames_are_seen_once_or_not_at_all") else {
        return;
    };
    netns.inside(|| {
        for (interface, direction, times) in [
            ("a0", Direction::Both, 1),
            ("a0", Direction::Incoming, 0),
            ("lo", Direction::Both, 1),
            ("lo", Direction::Incoming, 1),
        ] {
            for rings in [1, 2] {
                let config = PortSettings {
                    direction,
                    blocks: 32,
                    block_timeout_ms: 20,
                    ..PortSettings::new(interface)
                };
                let mut ports = RingReader::open_rings(&config, rings).unwrap();
                send(&mut sender(interface), numbered(100));
                let count: usize = ports.iter_mut().map(|port| all(port).len()).sum();
                assert_eq!(count, 100 * times, "{interface} {direction:?} {rings}");
            }
        }
    });
}

#[test]
fn what_finds_the_ring_full_is_counted_once() {
    let Some(netns) = Netns::with_pair("what_finds_the_ring_full_is_counted_once") else {
        return;
    };
    netns.inside(|| {
        let config = PortSettings { block_bytes: 4096, blocks: 4, ..config() };
        let mut port = RingReader::open(&config).unwrap();
        send(&mut sender("a0"), numbered(3000));
        let early = port.counts();
        assert!(early.dropped > 2900, "{early:?}");
        let received = all(&mut port);
        let counts = port.counts();
        assert!(!received.is_empty());
        assert_eq!(counts.received, received.len() as u64);
        assert_eq!((counts.seen, counts.dropped), (3000, 3000 - counts.received));
        assert_eq!(port.counts(), counts);
        // What it lost is over: it goes on.
        send(&mut sender("a0"), numbered(2));
        assert_eq!(all(&mut port), numbered(2));
    });
}

#[test]
fn a_port_that_never_sleeps_receives() {
    let Some(netns) = Netns::with_pair("a_port_that_never_sleeps_receives") else {
        return;
    };
    netns.inside(|| {
        let wait = Duration::ZERO;
        let mut port = RingReader::open(&PortSettings { wait, ..config() }).unwrap();
        assert!(port.receive(8).unwrap().is_empty());
        send(&mut sender("a0"), numbered(500));
        let (mut count, began) = (0, Instant::now());
        while count < 500 && began.elapsed() < Duration::from_secs(10) {
            count += port.receive(8).unwrap().len();
        }
        assert_eq!(count, 500);
    });
}

#[test]
fn cap_net_raw_alone_suffices_and_is_named() {
    let Some(netns) = Netns::with_pair("cap_net_raw_alone_suffices_and_is_named") else {
        return;
    };
    let only = |effective| CapabilitySets {
        effective,
        permitted: effective,
        inheritable: CapabilitySet::empty(),
    };
    netns.inside(|| {
        set_capabilities(None, only(CapabilitySet::NET_RAW)).unwrap();
        let config = PortSettings { completes_checksums: true, ..config() };
        let mut ports = RingReader::open_rings(&config, 2).unwrap();
        send(&mut sender("a0"), numbered(20));
        assert_eq!(ports.iter_mut().map(|port| all(port).len()).sum::<usize>(), 20);
    });
    netns.inside(|| {
        set_capabilities(None, only(CapabilitySet::empty())).unwrap();
        let error = RingReader::open(&config()).unwrap_err();
        assert!(matches!(&error, OpenError::MissingCapability { .. }));
        assert_eq!(error.to_string(), "b0: permission denied; packet sockets need CAP_NET_RAW");
    });
}

#[test]
fn what_cannot_be_opened_is_named() {
    let Some(netns) = Netns::with_pair("what_cannot_be_opened_is_named") else {
        return;
    };
    netns.inside(|| {
        for name in ["b1", "", "an-interface-name-beyond-all-bounds"] {
            let error = RingReader::open(&PortSettings::new(name)).unwrap_err();
            let OpenError::NoSuchInterface { interface, mut known } = error else {
                panic!("{error}");
            };
            known.sort();
            assert_eq!(
                (interface.as_str(), known),
                (name, vec!["a0".into(), "b0".into(), "lo".into()])
            );
        }
        for bad in [
            PortSettings { block_bytes: 5000, ..config() },
            PortSettings { blocks: 1, ..config() },
            PortSettings { block_timeout_ms: 0, ..config() },
            PortSettings { snap_length: 0, ..config() },
        ] {
            let error = RingReader::open(&bad).unwrap_err();
            assert!(matches!(error, OpenError::BadSetting { .. }), "{error}");
        }
    });
}
