//! The walk's measurements against definitions of the RFCs, computed here from whole lists of
//! packets with numbers that do not wrap.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use measure::{ACK, FIN, Feature, Features, Flow, Known, SYN, Tcp, Told};
use oracle::{Event, Expected};
use proptest::prelude::*;

mod oracle;

/// Where the numbers of both sides begin: before they wrap, and in the middle.
fn firsts() -> impl Strategy<Value = [u32; 2]> {
    let first = prop_oneof![any::<u32>(), (0u32..5000).prop_map(|before| u32::MAX - before)];
    [first.clone(), first]
}

/// A conversation as it passes here: what each side sends, what is lost before it gets here or
/// behind, what comes twice, and when.
#[derive(Clone, Debug)]
enum Step {
    /// A side sends new bytes.
    Send { from: bool, bytes: u16 },
    /// A side sends again what waits for its acknowledgement, from the oldest byte on.
    Again { from: bool, bytes: u16 },
    /// A side acknowledges all that came without a hole, or the last number again.
    Acknowledge { from: bool },
    /// A side's next bytes are lost before they get here.
    Lose { from: bool, bytes: u16 },
    /// Time passes, µs.
    Wait { us: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (any::<bool>(), 1u16..3000).prop_map(|(from, bytes)| Step::Send { from, bytes }),
        1 => (any::<bool>(), 1u16..3000).prop_map(|(from, bytes)| Step::Again { from, bytes }),
        5 => any::<bool>().prop_map(|from| Step::Acknowledge { from }),
        1 => (any::<bool>(), 1u16..3000).prop_map(|(from, bytes)| Step::Lose { from, bytes }),
        4 => (1u32..90_000).prop_map(|us| Step::Wait { us }),
    ]
}

/// One end of the conversation.
#[derive(Default)]
struct Host {
    /// Numbers sent and acknowledged, from 0.
    sent: u64,
    acknowledged: u64,
    /// What came of the other side, in ranges.
    came: Vec<(u64, u64)>,
}

impl Host {
    /// Up to where everything came.
    fn whole(&self) -> u64 {
        let mut ranges = self.came.clone();
        ranges.sort_unstable();
        ranges
            .iter()
            .fold(0, |whole, &(from, to)| if from <= whole { whole.max(to) } else { whole })
    }
}

/// The packets that pass here.
fn play(steps: &[Step], has_handshake: bool) -> Vec<Event> {
    let mut hosts = [Host::default(), Host::default()];
    let mut now_us = 1_000_000_000_i64;
    let mut events = Vec::new();
    let mut say = |hosts: &mut [Host; 2], from: usize, seq, length, payload, flags, now_us| {
        let ack = hosts[from].whole();
        hosts[from ^ 1].acknowledged = hosts[from ^ 1].acknowledged.max(ack);
        events.push(Event { from, seq, ack, length, payload, flags, time_us: now_us });
    };
    if has_handshake {
        for (from, flags) in [(0, SYN), (1, SYN | ACK), (0, ACK)] {
            let length = u64::from(flags & SYN != 0);
            let seq = hosts[from].sent;
            say(&mut hosts, from, seq, length, 0, flags, now_us);
            hosts[from].sent += length;
            hosts[from ^ 1].came.push((seq, seq + length));
            now_us += 10_000 + 3000 * from as i64;
        }
    }
    for step in steps {
        match *step {
            Step::Wait { us } => now_us += i64::from(us),
            Step::Acknowledge { from } => {
                let from = usize::from(from);
                let seq = hosts[from].sent;
                say(&mut hosts, from, seq, 0, 0, ACK, now_us);
            }
            Step::Send { from, bytes } => {
                let (from, bytes) = (usize::from(from), u64::from(bytes));
                let seq = hosts[from].sent;
                say(&mut hosts, from, seq, bytes, bytes, ACK, now_us);
                hosts[from].sent += bytes;
                hosts[from ^ 1].came.push((seq, seq + bytes));
            }
            Step::Lose { from, bytes } => hosts[usize::from(from)].sent += u64::from(bytes),
            Step::Again { from, bytes } => {
                let from = usize::from(from);
                let seq = hosts[from].acknowledged;
                let bytes = u64::from(bytes).min(hosts[from].sent - seq);
                if bytes > 0 {
                    say(&mut hosts, from, seq, bytes, bytes, ACK, now_us);
                    hosts[from ^ 1].came.push((seq, seq + bytes));
                }
            }
        }
    }
    events
}

/// What the crate says of these packets.
fn told(events: &[Event], firsts: [u32; 2], is_open: bool) -> Told {
    let mut flow = Flow::begin(Features::DEFAULT, is_open);
    let side0 = events.first().map_or(0, |event| event.from);
    for event in events {
        let mut header = [0; 20];
        let word = |host: usize, number: u64| firsts[host].wrapping_add(number as u32);
        header[4..8].copy_from_slice(&word(event.from, event.seq).to_be_bytes());
        header[8..12].copy_from_slice(&word(event.from ^ 1, event.ack).to_be_bytes());
        header[12..16].copy_from_slice(&[0x50, event.flags, 0, 100]);
        let payload = event.payload as u32;
        let tcp = Tcp::new(&header).unwrap();
        flow.segment(event.from ^ side0, tcp, event.flags, payload, payload, event.time_us);
    }
    let known =
        Known { is_tcp: true, is_dns: false, duration_us: 0, packets: [2; 2], bytes: [0; 2] };
    Told::of(Features::ALL, &flow, None, known)
}

fn check(events: &[Event], firsts: [u32; 2], is_open: bool) {
    let side0 = events.first().map_or(0, |event| event.from);
    let found = told(events, firsts, is_open);
    let expected = Expected::of(events);
    for from in 0..2 {
        let (side, wanted) = (found.side(from ^ side0), &expected.sides[from]);
        if !wanted.is_seen {
            assert!(side.rtt.is_none(), "round trips of side {from}: {events:#?}");
            continue;
        }
        let rtt = side.rtt.map_or((0, 0, 0), |it| (it.samples, it.min_us, it.max_us));
        let samples = &wanted.round_trips_us;
        let of = |us: Option<&i64>| us.copied().unwrap_or(0) as u32;
        let wanted_rtt = (samples.len() as u32, of(samples.iter().min()), of(samples.iter().max()));
        assert_eq!(rtt, wanted_rtt, "round trips of side {from}: {events:#?}");
        let smoothed = side.rtt.map_or(0.0, |it| f64::from(it.smoothed_us()));
        let wanted_smoothed = wanted.smoothed_us();
        assert!((smoothed - wanted_smoothed).abs() <= 2.0, "{smoothed} {wanted_smoothed}");
        let again = side.retransmits.unwrap() + side.out_of_order.unwrap();
        assert_eq!(u64::from(again), wanted.again, "sent again by {from}: {events:#?}");
        let duplicates = side.duplicate_acks.unwrap();
        assert_eq!(u64::from(duplicates), wanted.duplicates, "side {from}: {events:#?}");
        if wanted.packets > 1 {
            assert_eq!(side.gap_us.unwrap(), wanted.gap_us as u32);
        }
    }
    if is_open {
        assert_eq!(found.server_handshake_us(), expected.server_handshake_us);
        assert_eq!(found.client_handshake_us(), expected.client_handshake_us);
        assert_eq!(found.response_us(), expected.response_us, "{events:#?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn conversations_from_their_beginning(
        steps in prop::collection::vec(step(), 0..60),
        firsts in firsts(),
    ) {
        check(&play(&steps, true), firsts, true);
    }

    #[test]
    fn conversations_from_the_middle(
        steps in prop::collection::vec(step(), 0..60),
        firsts in firsts(),
    ) {
        check(&play(&steps, false), firsts, false);
    }
}

/// Values of a whole life, by hand.
#[test]
fn a_connection_by_hand() {
    let event = |from, seq, ack, length, payload, flags, time_us| Event {
        from,
        seq,
        ack,
        length,
        payload,
        flags,
        time_us,
    };
    let events = [
        event(0, 0, 0, 1, 0, SYN, 0),
        event(1, 0, 1, 1, 0, SYN | ACK, 20_000),
        event(0, 1, 1, 0, 0, ACK, 25_000),
        event(0, 1, 1, 100, 100, ACK, 26_000),
        event(1, 1, 101, 0, 0, ACK, 46_500),
        event(1, 1, 101, 1000, 1000, ACK, 96_000),
        event(0, 101, 1001, 0, 0, ACK, 101_000),
        event(0, 101, 1001, 1, 0, FIN | ACK, 200_000),
    ];
    let told = told(&events, [7, u32::MAX], true);
    assert_eq!(told.server_handshake_us(), Some(20_000));
    assert_eq!(told.client_handshake_us(), Some(5000));
    assert_eq!(told.response_us(), Some(70_000));
    let [client, server] = [told.side(0), told.side(1)];
    assert_eq!(client.rtt.map(|it| (it.samples, it.min_us)), Some((1, 20_500)));
    assert_eq!(server.rtt.map(|it| (it.samples, it.min_us)), Some((1, 5000)));
    assert_eq!((client.gap_us, server.gap_us), (Some(99_000), Some(49_500)));
    assert_eq!(told.duration_us(), Some(0));
    assert!(Features::ALL.has(Feature::Spin));
}
