//! What leaves of a burst, and what is copied of it.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use cring::ring;
use flowmgr::{Action, Fate, Packet, RuleAnswer, RuleMemory, RulesChange};
use packetio::{Burst, Frame, LinkEvent, Selection, Tx, TxCounts, TxError};

use super::{Egress, Forward, Mirror};
use crate::opening::inline::FlowManager;
use crate::threads::counters::PortCounters;
use crate::threads::run::{Event, Run};
use crate::threads::small_table::config;

/// Which port was given which frames, by host and DSCP, in the order of the calls.
type Sent = Arc<Mutex<Vec<(&'static str, Vec<(u8, u8)>)>>>;

/// A port that notes what it is given, and whose link has just come back.
struct Noting(&'static str, Sent, TxCounts);

impl Tx for Noting {
    fn send(&mut self, burst: &Burst<'_>, which: Selection<'_>) -> Result<(), TxError> {
        let selected = (0..burst.len()).filter(|&at| which.has(at));
        let seen = |at| (burst.bytes(at)[15], burst.bytes(at)[1] >> 2);
        let frames: Vec<_> = selected.map(seen).collect();
        self.2.sent += frames.len() as u64;
        self.1.lock().unwrap().push((self.0, frames));
        Ok(())
    }

    fn name(&self) -> &str {
        self.0
    }

    fn counts(&self) -> TxCounts {
        self.2
    }

    fn link_event(&mut self) -> Option<LinkEvent> {
        Some(LinkEvent::Up(self.0.to_owned()))
    }
}

fn port(name: &'static str, sent: &Sent) -> Box<dyn Tx> {
    Box::new(Noting(name, sent.clone(), TxCounts::default()))
}

/// A datagram from the numbered host, raw IPv4.
fn datagram(host: u8) -> [u8; 28] {
    let mut packet = [0; 28];
    packet[..4].copy_from_slice(&[0x45, 0, 0, 28]);
    packet[8..10].copy_from_slice(&[64, 17]);
    packet[12..20].copy_from_slice(&[10, 0, 0, host, 10, 0, 1, 1]);
    packet[20..28].copy_from_slice(&[0, 80, 0, 80, 0, 8, 0, 0]);
    packet
}

fn manager() -> FlowManager {
    let (producer, _) = ring(64);
    let config = config(256);
    let mut manager = FlowManager::with_parts(config, vec![vec![producer]], None).unwrap();
    manager.change_rules(&mut RulesChange {
        memory: Some(RuleMemory::new(256).unwrap()),
        ..RulesChange::default()
    });
    manager
}

/// What is done with the packets of each host: nothing, copied with a DSCP, dropped, dropped and
/// copied.
fn action(host: u8) -> Action {
    Action {
        dscp: (host == 2).then_some(46),
        mirror: host == 2 || host == 4,
        drop: host == 3 || host == 4,
    }
}

/// Sends datagrams of these hosts from the first port on.
fn send(forward: &mut Forward, manager: &mut FlowManager, hosts: &[u8]) {
    let mut data: Vec<u8> = hosts.iter().flat_map(|host| datagram(*host)).collect();
    let packet = |at| Packet {
        at: 28 * at,
        captured: 28,
        wire: u32::MAX,
        link: 101,
        time_us: 1_000_000,
        rss: None,
        gso: flowmgr::Gso::NONE,
    };
    let packets: Vec<Packet> = (0..hosts.len()).map(packet).collect();
    let mut fates: Vec<Fate> = Vec::new();
    manager.burst(&mut data, &packets, 0, &mut fates);
    let questions = manager.rule_questions().iter();
    let answers: Vec<RuleAnswer> = questions
        .map(|question| match question.source.0 {
            IpAddr::V4(source) => RuleAnswer {
                rule: Some(1),
                action: action(source.octets()[3]),
                ..RuleAnswer::default()
            },
            IpAddr::V6(_) => RuleAnswer::default(),
        })
        .collect();
    manager.answer_rules(&answers, &mut data, &packets, 0, &mut fates);
    let frame = |at| Frame { at: 28 * at, captured: 28, wire: 28, ..Frame::default() };
    let frames: Vec<Frame> = (0..hosts.len()).map(frame).collect();
    let burst = Burst::new(&mut data, &frames);
    forward.send(0, &burst, &packets, &fates, manager).unwrap();
}

#[test]
fn copies_go_first_and_have_the_dscp_and_what_is_dropped() {
    let sent = Sent::default();
    let take = || std::mem::take(&mut *sent.lock().unwrap());
    let (run, events) = Run::new(1, 0);
    let run = Arc::new(run);
    let mirror = Mirror::new(port("mirror", &sent), run.clone());
    let ports = || [port("left", &sent), port("right", &sent)];
    let mut forward = Forward::new(ports(), Some(mirror), run.clone(), 0);
    let mut manager = manager();
    // Rules are asked in the first round, and known in the second.
    for _ in 0..2 {
        send(&mut forward, &mut manager, &[1, 2, 3, 4, 2]);
        assert_eq!(
            take(),
            [("mirror", vec![(2, 46), (4, 0), (2, 46)]), ("right", vec![(1, 0), (2, 46), (2, 46)])]
        );
        assert_eq!(events.try_recv(), Ok(Event::Info("mirror".to_owned())));
    }
    // Without any that is copied, nobody asks.
    send(&mut forward, &mut manager, &[1, 3]);
    assert_eq!(take(), [("right", vec![(1, 0)])]);
    assert_eq!(forward.copied().sent, 6);
    let mut counters = [PortCounters::default(); 2];
    forward.count(&mut counters);
    assert_eq!((counters[1].tx.sent, counters[1].ruled_out), (7, 5));

    let mut forward = Forward::new(ports(), None, run, 0);
    send(&mut forward, &mut manager, &[2, 4]);
    assert_eq!(take(), [("right", vec![(2, 46)])]);
    assert_eq!(forward.copied(), TxCounts::default());
}
