//! What becomes of the program when its interface changes, and where it is attached.

use std::process::Command;
use std::time::{Duration, Instant};

use aya::programs::{SchedClassifier, TcAttachType};

use super::packets::{udp, v4};
use super::{Bench, SOON, Wire, first, namespace, settings};
use crate::af_packet::AF_PACKET;
use crate::error::OpenError;
use crate::open::{open, probe};
use crate::rx::LinkEvent;
use crate::settings::{Direction, PortSettings};
use crate::tests::netns::{output, wait_for_closed};

/// Programs at the way in and at the way out of an interface, by TCX or in filters.
pub fn programs(interface: &str) -> [usize; 2] {
    wait_for_closed();
    let ways = [(TcAttachType::Ingress, "ingress"), (TcAttachType::Egress, "egress")];
    ways.map(|(way, name)| match SchedClassifier::query_tcx(interface, way) {
        Ok((_, programs)) => programs.len(),
        Err(_) => {
            let mut list = Command::new("tc");
            let listed = output(list.args(["filter", "show", "dev", interface, name])).unwrap();
            String::from_utf8_lossy(&listed.stdout).matches("fenxi_filter direct-action").count()
        }
    })
}

pub fn settings_of(interface: &str, direction: Direction) -> PortSettings {
    PortSettings { interface: interface.to_owned(), direction, ..settings(first(2)) }
}

#[test]
fn packets_that_go_out_are_seen_unless_only_incoming_ones_are_wanted() {
    let test = "packets_that_go_out_are_seen_unless_only_incoming_ones_are_wanted";
    let Some(netns) = namespace(test) else {
        return;
    };
    netns.inside(|| {
        for direction in [Direction::Both, Direction::Incoming] {
            let mut bench = Bench::with(&settings_of("b0", direction), 1);
            let there = udp(v4(1, 7), v4(2, 9), 10);
            let out = Wire::new("b0");
            bench.send([there; 4]);
            bench.arrived();
            for _ in 0..3 {
                out.send(&there.back().bytes());
            }
            if direction == Direction::Both {
                bench.sent += 3;
            }
            assert_eq!(bench.how_many_up(), 2);
            let back = if direction == Direction::Both { 3 } else { 0 };
            assert_eq!(bench.packets_counted(&there), [2, back]);
            // What goes out at the other end comes in here, once.
            assert_eq!(bench.sums().counted, 2 + back);
        }
    });
}

#[test]
fn on_the_loopback_interface_each_packet_is_seen_once() {
    let Some(netns) = namespace("on_the_loopback_interface_each_packet_is_seen_once") else {
        return;
    };
    netns.inside(|| {
        for direction in [Direction::Both, Direction::Incoming] {
            let mut bench = Bench::with(&settings_of("lo", direction), 1);
            bench.wire = Wire::new("lo");
            let packet = udp(v4(1, 7), v4(2, 9), 10);
            assert_eq!(bench.up_of([packet; 5]), 2);
            assert_eq!(bench.packets_counted(&packet), [3, 0]);
        }
    });
}

#[test]
fn the_program_is_attached_as_long_as_a_port_is_open() {
    let Some(netns) = namespace("the_program_is_attached_as_long_as_a_port_is_open") else {
        return;
    };
    netns.inside(|| {
        assert_eq!(programs("b0"), [0, 0]);
        probe(&AF_PACKET, &settings_of("b0", Direction::Both)).unwrap();
        assert_eq!(programs("b0"), [0, 0], "it was there for a moment");
        let packet = udp(v4(1, 7), v4(2, 9), 10);
        for (direction, attached) in [(Direction::Both, [1, 1]), (Direction::Incoming, [1, 0])] {
            let mut bench = Bench::with(&settings_of("b0", direction), 2);
            assert_eq!(programs("b0"), attached);
            // Nothing is left of those before.
            assert_eq!(bench.sums().offered, 0);
            assert_eq!(bench.up_of([packet; 5]), 2);
            assert_eq!(bench.packets_counted(&packet), [3, 0]);
            let enough = bench.ports[1].enough.clone().unwrap();
            bench.ports.pop();
            assert_eq!(programs("b0"), attached);
            drop(bench);
            assert_eq!(programs("b0"), [0, 0]);
            // A worker may call `enough` after the program is gone.
            enough.note(17, [packet.from, packet.to]);
        }
    });
}

#[test]
fn two_programs_on_one_interface_both_see_all() {
    let Some(netns) = namespace("two_programs_on_one_interface_both_see_all") else {
        return;
    };
    netns.inside(|| {
        let mut one = Bench::with(&settings_of("b0", Direction::Both), 1);
        let mut other = Bench::with(&settings_of("b0", Direction::Both), 1);
        assert_eq!(programs("b0"), [2, 2]);
        let packet = udp(v4(1, 7), v4(2, 9), 10);
        assert_eq!(one.up_of([packet; 5]), 2);
        other.sent = 5;
        assert_eq!(other.how_many_up(), 2);
        assert_eq!(other.packets_counted(&packet), [3, 0]);
    });
}

/// The events of the first port until there is one that fits.
fn events(bench: &mut Bench, is_it: impl Fn(&LinkEvent) -> bool) -> Vec<LinkEvent> {
    let began = Instant::now();
    let mut events: Vec<LinkEvent> = Vec::new();
    while !events.iter().any(&is_it) {
        assert!(began.elapsed() < SOON, "{events:?}");
        for port in &mut bench.ports {
            assert!(port.rx.receive(64).unwrap().burst().is_none_or(|it| it.is_empty()));
            events.extend(port.rx.link_event());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    events
}

/// Asks until all ports say that they are away, or not.
fn until_away(bench: &mut Bench, is_away: bool) {
    let began = Instant::now();
    while bench.ports.iter_mut().any(|port| port.rx.counts().is_away != is_away) {
        assert!(began.elapsed() < SOON);
        for port in &mut bench.ports {
            assert_eq!(port.rx.link_event(), None);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_interface_that_was_away_is_reported_once_and_its_packets_come_again() {
    let test = "an_interface_that_was_away_is_reported_once_and_its_packets_come_again";
    let Some(netns) = namespace(test) else {
        return;
    };
    netns.inside(|| {
        let mut bench = Bench::with(&settings_of("b0", Direction::Both), 2);
        let port = &bench.ports[1].rx;
        assert!(port.is_live() && !port.is_lost() && port.name() == "b0");
        let packet = udp(v4(1, 7), v4(2, 9), 10);
        assert_eq!(bench.up_of([packet; 5]), 2);
        bench.drain();

        netns.run("ip link set b0 down");
        let down = "b0: the interface is down; work on it goes on when it is up";
        let said = events(&mut bench, |_| true);
        assert_eq!(said, [LinkEvent::Down(down.to_owned())]);
        until_away(&mut bench, true);
        assert!(bench.ports.iter().all(|port| !port.rx.is_lost()));

        netns.set_up("ip link set b0 up");
        let up = LinkEvent::Up("b0: the interface is back".to_owned());
        assert_eq!(events(&mut bench, |_| true), std::slice::from_ref(&up));
        until_away(&mut bench, false);
        assert_eq!(bench.up_of([packet; 5]), 0, "its flows are still known");
        assert_eq!(bench.up_of([udp(v4(3, 7), v4(2, 9), 10); 5]), 2);
        assert_eq!(bench.packets_counted(&packet), [8, 0]);

        netns.run("ip link del b0");
        let began = Instant::now();
        let said = events(&mut bench, |event| {
            let LinkEvent::Down(line) = event else {
                panic!("{event:?} after {:?}", began.elapsed());
            };
            line.contains("gone")
        });
        assert!(said.len() <= 2, "{said:?}");
        until_away(&mut bench, true);
        assert!(bench.ports.iter().all(|port| port.rx.is_lost() && !port.rx.is_failed()));

        netns.add_pair();
        bench.wire = Wire::new("a0");
        assert_eq!(events(&mut bench, |_| true), [up]);
        until_away(&mut bench, false);
        assert_eq!(programs("b0"), [1, 1]);
        assert_eq!(bench.up_of([udp(v4(4, 7), v4(2, 9), 10); 5]), 2);
        assert_eq!(bench.packets_counted(&udp(v4(4, 7), v4(2, 9), 10)), [3, 0]);
        let sums = bench.sums();
        assert_eq!((sums.received, sums.dropped), (6, 0), "they count on");
        assert_eq!(sums.counted, 20 - 6);
    });
}

#[test]
fn an_interface_with_another_name_is_reported_with_the_cure() {
    let Some(netns) = namespace("first: an_interface_with_another_name_is_reported_with_the_cure")
    else {
        return;
    };
    netns.inside(|| {
        let mut bench = Bench::with(&settings_of("b0", Direction::Both), 1);
        netns.run("ip link set b0 down && ip link set b0 name c0 && ip link set c0 up");
        let line = "b0: the interface is now called c0; give it its name back, or put the new one \
            into io.interfaces and restart";
        assert_eq!(events(&mut bench, |_| true), [LinkEvent::Down(line.to_owned())]);
        assert!(bench.ports[0].rx.is_lost());
    });
}

#[test]
fn an_interface_that_is_down_can_be_opened() {
    let Some(netns) = namespace("first: an_interface_that_is_down_can_be_opened") else {
        return;
    };
    netns.run("ip link set b0 down");
    netns.inside(|| {
        let mut bench = Bench::with(&settings_of("b0", Direction::Both), 1);
        assert!(bench.sums().is_away);
        netns.set_up("ip link set b0 up");
        events(&mut bench, |event| matches!(event, LinkEvent::Up(_)));
        assert_eq!(bench.up_of([udp(v4(1, 7), v4(2, 9), 10); 5]), 2);
    });
}

#[test]
fn what_cannot_be_opened_is_named() {
    let Some(netns) = namespace("first: what_cannot_be_opened_is_named") else {
        return;
    };
    netns.inside(|| {
        let error = probe(&AF_PACKET, &settings_of("b1", Direction::Both)).unwrap_err();
        assert!(matches!(error, OpenError::NoSuchInterface { .. }), "{error}");
        let wrong = PortSettings { blocks: 1, ..settings_of("b0", Direction::Both) };
        let error = open(&AF_PACKET, &[wrong], 1).map(drop).unwrap_err();
        assert!(matches!(error, OpenError::BadSetting { .. }), "{error}");
        let error =
            open(&AF_PACKET, &[settings_of("b0", Direction::Both)], 65).map(drop).unwrap_err();
        assert_eq!(error.to_string(), "b0: 65 flow workers; io.capture = \"first\" serves 64");
        assert_eq!(programs("b0"), [0, 0]);
    });
}
