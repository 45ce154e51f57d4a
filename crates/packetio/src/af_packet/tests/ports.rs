//! Interfaces through the traits, as users of the crate see them.

use std::time::{Duration, Instant};

use super::config;
use super::one_of_several;
use crate::af_packet::AF_PACKET;
use crate::backend::Opened;
use crate::error::InterfaceErrorKind;
use crate::open::{open, open_tx, probe};
use crate::rx::{LinkEvent, Received, Rx, WaitHandle, wait};
use crate::settings::PortSettings;
use crate::tests::frames::{flows, numbered, trace};
use crate::tests::netns::Netns;
use crate::tx::{Selection, Tx};

/// Longer than the kernel needs for anything here.
const SOON: Duration = Duration::from_secs(5);

fn ports(rings: u16) -> Vec<Opened> {
    let settings = PortSettings {
        wait: Duration::ZERO,
        completes_checksums: true,
        sends: true,
        ..one_of_several()
    };
    open(&AF_PACKET, &[settings], rings).unwrap().remove(0)
}

/// Receives until `is_enough`; how many frames came, and what was reported.
fn run(
    ports: &mut [Opened],
    is_enough: impl Fn(usize, &[LinkEvent]) -> bool,
) -> (usize, Vec<LinkEvent>) {
    let (mut frames, mut events) = (0, Vec::new());
    let began = Instant::now();
    while !is_enough(frames, &events) {
        assert!(began.elapsed() < SOON, "{frames} frames, {events:?}");
        let before = frames;
        for port in &mut *ports {
            match port.rx.receive(64).unwrap() {
                Received::Burst(burst) => frames += burst.len(),
                Received::Nothing => events.extend(port.rx.link_event()),
                Received::End => panic!("a live port does not end"),
            }
        }
        if frames == before {
            wait(ports.iter().map(|port| &*port.rx), None, Duration::from_millis(20));
        }
    }
    (frames, events)
}

/// Sends frames of 300 flows, 1800 in all.
fn send_flows(interface: &str) {
    send(&mut *open_tx(&AF_PACKET, interface).unwrap(), flows(false));
}

fn send(tx: &mut dyn Tx, frames: Vec<Vec<u8>>) {
    let mut trace = trace(frames);
    while let Received::Burst(burst) = trace.receive(100).unwrap() {
        tx.send(&burst, Selection::All).unwrap();
    }
}

#[test]
fn an_interface_that_was_away_is_reported_once_and_found_again() {
    let Some(netns) =
        Netns::with_pair("an_interface_that_was_away_is_reported_once_and_found_again")
    else {
        return;
    };
    netns.inside(|| {
        let mut ports = ports(2);
        assert!(ports.iter().all(|port| port.rx.is_live() && port.rx.name() == "b0"));
        send_flows("a0");
        run(&mut ports, |frames, _| frames == 1800);

        netns.run("ip link set b0 down");
        let (_, events) = run(&mut ports, |_, events| !events.is_empty());
        let down = "b0: the interface is down; work on it goes on when it is up";
        assert_eq!(events, [LinkEvent::Down(down.to_owned())]);
        for _ in 0..100 {
            assert!(matches!(ports[1].rx.receive(8), Ok(Received::Nothing)));
        }
        assert!(ports.iter_mut().all(|port| port.rx.counts().is_away));
        assert!(ports.iter().all(|port| matches!(port.rx.wait_handle(), WaitHandle::Away)));
        assert!(!ports[0].rx.is_lost());
        let mut burst = trace(numbered(10));
        let burst = burst.receive(10).unwrap().burst().unwrap();
        let tx = ports[0].tx.as_mut().unwrap();
        let error = tx.send(&burst, Selection::All).unwrap_err();
        assert!(matches!(error.kind, InterfaceErrorKind::Down));
        assert_eq!(error.to_string(), down);
        assert_eq!(tx.link_event(), None, "the receiving side reports it");

        netns.set_up("ip link set b0 up");
        let (_, events) = run(&mut ports, |_, events| !events.is_empty());
        assert_eq!(events, [LinkEvent::Up("b0: the interface is back".to_owned())]);

        netns.run("ip link del b0");
        let (_, events) = run(&mut ports, |_, events| events.len() == 1);
        let LinkEvent::Down(line) = &events[0] else {
            panic!("{events:?}");
        };
        assert!(line.starts_with("b0: the interface is "), "{line}");
        run_until(&mut ports, |port| port.rx.is_lost());
        assert!(!ports[0].rx.is_failed());

        netns.add_pair();
        run(&mut ports, |_, events| events.iter().any(|event| matches!(event, LinkEvent::Up(_))));
        run_until(&mut ports, |port| !port.rx.is_lost());
        send_flows("a0");
        run(&mut ports, |frames, _| frames == 1800);
        // The sending side follows by itself.
        let tx = ports[1].tx.as_mut().unwrap();
        tx.send(&burst, Selection::All).unwrap();
        assert_eq!(tx.counts().sent, 10);
        let counts: Vec<_> = ports.iter_mut().map(|port| port.rx.counts()).collect();
        assert_eq!(counts.iter().map(|counts| counts.received).sum::<u64>(), 3600);
        assert!(counts.iter().all(|counts| !counts.is_away && counts.missing == 0));
    });
}

/// Receives until all ports are so.
fn run_until(ports: &mut [Opened], is_so: impl Fn(&Opened) -> bool) {
    let began = Instant::now();
    while !ports.iter().all(&is_so) {
        assert!(began.elapsed() < SOON);
        for port in &mut *ports {
            assert!(matches!(port.rx.receive(8), Ok(Received::Nothing)));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_interface_with_another_name_is_reported_with_the_cure() {
    let Some(netns) = Netns::with_pair("an_interface_with_another_name_is_reported_with_the_cure")
    else {
        return;
    };
    netns.inside(|| {
        let mut ports = ports(2);
        netns.run("ip link set b0 down && ip link set b0 name c0 && ip link set c0 up");
        let (_, events) = run(&mut ports, |_, events| !events.is_empty());
        let line = "b0: the interface is now called c0; give it its name back, or put the new one \
            into io.interfaces and restart";
        assert_eq!(events, [LinkEvent::Down(line.to_owned())]);
        run_until(&mut ports, |port| port.rx.is_lost());
    });
}

#[test]
fn only_marked_frames_are_sent() {
    let Some(netns) = Netns::with_pair("only_marked_frames_are_sent") else {
        return;
    };
    netns.inside(|| {
        let mut ports = ports(1);
        let mut tx = open_tx(&AF_PACKET, "a0").unwrap();
        let mut frames = trace(numbered(100));
        let burst = frames.receive(100).unwrap().burst().unwrap();
        let marks: Vec<bool> = (0..90).map(|i| i % 3 == 0).collect();
        tx.send(&burst, Selection::Marked(&marks)).unwrap();
        assert_eq!(tx.counts().sent, 30);
        let mut next = 0;
        let began = Instant::now();
        while next < 30 {
            assert!(began.elapsed() < SOON);
            if let Received::Burst(received) = ports[0].rx.receive(8).unwrap() {
                for i in 0..received.len() {
                    assert_eq!(received.bytes(i), burst.bytes(3 * next));
                    next += 1;
                }
            }
        }
        run_until(&mut ports, |_| true);
        assert_eq!(ports[0].rx.counts().received, 30);
    });
}

#[test]
fn frames_wake_a_thread_that_waits_and_a_silent_port_does_not() {
    let Some(netns) =
        Netns::with_pair("frames_wake_a_thread_that_waits_and_a_silent_port_does_not")
    else {
        return;
    };
    netns.inside(|| {
        let mut ports = ports(2);
        run_until(&mut ports, |_| true);
        let waited = |ports: &[Opened], most: Duration| {
            let began = Instant::now();
            wait(ports.iter().map(|port| &*port.rx), None, most);
            began.elapsed()
        };
        let short = Duration::from_millis(30);
        assert!(waited(&ports, short) >= short);
        send_flows("a0");
        assert!(waited(&ports, SOON) < SOON);
        let mut idle = trace(numbered(1));
        let began = Instant::now();
        wait([&idle as &dyn Rx, &*ports[0].rx], None, SOON);
        assert!(began.elapsed() < SOON, "memory has frames without being waited for");
        assert!(idle.receive(1).unwrap().burst().is_some());
    });
}

#[test]
fn what_could_be_opened_is_probed_alike() {
    let Some(netns) = Netns::with_pair("what_could_be_opened_is_probed_alike") else {
        return;
    };
    netns.inside(|| {
        let sending = PortSettings { sends: true, ..config() };
        probe(&AF_PACKET, &sending).unwrap();
        for wrong in [PortSettings::new("b1"), PortSettings { blocks: 1, ..config() }] {
            let probed = probe(&AF_PACKET, &wrong).unwrap_err();
            let Err(opened) = open(&AF_PACKET, std::slice::from_ref(&wrong), 2) else {
                panic!("{probed}");
            };
            assert_eq!(probed.to_string(), opened.to_string());
        }
    });
}
