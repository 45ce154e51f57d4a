//! Ports over real interfaces: veth pairs in network namespaces, which the tests make and remove.
//! Without root, `ip` or `ethtool` they are skipped by name.

mod forward;
mod refused;
mod states;

use std::time::{Duration, Instant};

use super::settings::{XdpMode, XdpSettings, ZeroCopy};
use crate::BackendSettings;
use crate::af_packet::AF_PACKET;
use crate::af_xdp::AF_XDP;
use crate::backend::{Backend, Opened};
use crate::error::OpenError;
use crate::open::open_tx;
use crate::rx::{LinkEvent, Received, Rx, RxCounts, WaitHandle, wait};
use crate::settings::{Direction, PortSettings};
use crate::tests::frames::{End, KINDS, flows, frame, numbered, trace};
use crate::tests::netns::{Netns, has_ethtool, skip, wait_for_closed};
use crate::tx::{Selection, Tx};

/// Longer than the kernel needs for anything here.
const SOON: Duration = Duration::from_secs(10);

/// A namespace with a veth pair that does to frames what wires and cards without offloads do.
fn pair(test: &str) -> Option<Netns> {
    if !has_ethtool() {
        skip(test, "ethtool");
        return None;
    }
    let netns = Netns::with_pair(test)?;
    plain(&netns, &["a0", "b0"]);
    Some(netns)
}

/// Turns off what merges packets and strips tags.
fn plain(netns: &Netns, interfaces: &[&str]) {
    for name in interfaces {
        netns.run(&format!(
            "ethtool -K {name} tx off tso off gso off gro off rxvlan off txvlan off"
        ));
    }
}

/// A port on one end of the pair that sends, too.
fn settings(interface: &str) -> PortSettings {
    PortSettings {
        direction: Direction::Incoming,
        is_promiscuous: true,
        wait: Duration::ZERO,
        sends: true,
        own: BackendSettings {
            xdp: XdpSettings { frames: 2048, ..XdpSettings::default() },
            ..BackendSettings::default()
        },
        ..PortSettings::new(interface)
    }
}

/// Opens what a test may have closed just before.
fn open(
    backend: &Backend,
    interfaces: &[PortSettings],
    rings: u16,
) -> Result<Vec<Vec<Opened>>, OpenError> {
    wait_for_closed();
    crate::open::open(backend, interfaces, rings)
}

fn open_one(settings: PortSettings) -> Opened {
    let mut opened = open(&AF_XDP, &[settings], 1).unwrap();
    opened.remove(0).remove(0)
}

/// Sends frames through packet sockets, as a neighbour does.
fn send(interface: &str, frames: Vec<Vec<u8>>) {
    let mut tx = open_tx(&AF_PACKET, interface).unwrap();
    send_by(&mut *tx, frames);
}

fn send_by(tx: &mut dyn Tx, frames: Vec<Vec<u8>>) {
    let mut trace = trace(frames);
    while let Received::Burst(burst) = trace.receive(100).unwrap() {
        tx.send(&burst, Selection::All).unwrap();
    }
}

/// Receives `count` frames and whatever comes in a moment more; returns their bytes.
fn take(rx: &mut dyn Rx, count: usize) -> Vec<Vec<u8>> {
    let (mut frames, began, mut idle) = (Vec::new(), Instant::now(), 0);
    while frames.len() < count || idle < 20 {
        assert!(began.elapsed() < SOON, "{} of {count} frames", frames.len());
        match rx.receive(33).unwrap() {
            Received::Burst(burst) => {
                idle = 0;
                frames.extend((0..burst.len()).map(|i| burst.bytes(i).to_vec()));
            }
            Received::Nothing => {
                idle += 1;
                wait([&*rx], None, Duration::from_millis(5));
            }
            Received::End => panic!("a live port does not end"),
        }
    }
    frames
}

fn assert_sums_close(counts: &RxCounts) {
    assert_eq!(
        (counts.offered, counts.missing),
        (counts.received + counts.dropped + counts.waiting, 0),
        "{counts:?}"
    );
}

#[test]
fn what_is_sent_is_received() {
    let Some(netns) = pair("what_is_sent_is_received") else {
        return;
    };
    netns.inside(|| {
        for mode in [XdpMode::Auto, XdpMode::Native, XdpMode::Generic] {
            let mut settings = settings("b0");
            settings.own.xdp.mode = mode;
            let mut port = open_one(settings);
            let how = port.how.clone().unwrap();
            let name = match mode {
                XdpMode::Generic => "generic",
                _ => "native",
            };
            assert_eq!(how, format!("b0: XDP in {name} mode, the kernel copies, 1 queue"));
            let sent = numbered(5000);
            for part in sent.chunks(500) {
                let before_s = seconds();
                send("a0", part.to_vec());
                let received = take(&mut *port.rx, part.len());
                assert!(received == part, "{} frames received", received.len());
                assert!(seconds() - before_s < 60);
            }
            let counts = port.rx.counts();
            assert_eq!((counts.received, counts.dropped), (5000, 0));
            let bytes: usize = sent.iter().map(Vec::len).sum();
            assert_eq!(counts.bytes, bytes as u64);
            assert_sums_close(&counts);
        }
    });
}

fn seconds() -> i64 {
    rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec
}

#[test]
fn frames_have_the_time_of_their_burst_and_are_cut_as_asked() {
    let Some(netns) = pair("frames_have_the_time_of_their_burst_and_are_cut_as_asked") else {
        return;
    };
    netns.inside(|| {
        let mut port = open_one(PortSettings { snap_length: 96, sends: false, ..settings("b0") });
        assert!(port.tx.is_none());
        let before_s = seconds();
        send("a0", numbered(100));
        let (mut count, began) = (0, Instant::now());
        while count < 100 {
            assert!(began.elapsed() < SOON);
            let Received::Burst(burst) = port.rx.receive(64).unwrap() else {
                continue;
            };
            let stamp = burst.frames()[0].time_us;
            for (i, frame) in burst.frames().iter().enumerate() {
                assert_eq!((frame.link, frame.rss, frame.time_us), (1, None, stamp));
                assert!((before_s..=seconds() + 1).contains(&(stamp / 1_000_000)));
                assert_eq!(burst.bytes(i).len(), 96.min(frame.wire as usize));
                count += 1;
            }
        }
    });
}

#[test]
fn what_finds_no_frame_is_counted_once_and_it_goes_on() {
    let Some(netns) = pair("what_finds_no_frame_is_counted_once_and_it_goes_on") else {
        return;
    };
    netns.inside(|| {
        let mut settings = settings("b0");
        settings.own.xdp.frames = 64;
        let mut port = open_one(settings);
        // Nobody receives meanwhile.
        for part in numbered(1000).chunks(50) {
            send("a0", part.to_vec());
        }
        let began = Instant::now();
        while port.rx.counts().offered < 1000 {
            assert!(began.elapsed() < SOON, "{:?}", port.rx.counts());
        }
        let counts = port.rx.counts();
        assert_eq!((counts.waiting, counts.dropped), (64, 936));
        assert_sums_close(&counts);
        assert!(take(&mut *port.rx, 64) == numbered(64));
        send("a0", numbered(30));
        assert!(take(&mut *port.rx, 30) == numbered(30));
        let counts = port.rx.counts();
        assert_eq!((counts.received, counts.dropped, counts.waiting), (94, 936, 0));
        assert_sums_close(&counts);
    });
}

#[test]
fn frames_wake_a_thread_that_waits() {
    let Some(netns) = pair("frames_wake_a_thread_that_waits") else {
        return;
    };
    netns.inside(|| {
        let mut port = open_one(settings("b0"));
        assert!(matches!(port.rx.receive(8), Ok(Received::Nothing)));
        let waited = |rx: &dyn Rx, most: Duration| {
            let began = Instant::now();
            wait([rx], None, most);
            began.elapsed()
        };
        let short = Duration::from_millis(30);
        assert!(waited(&*port.rx, short) >= short);
        send("a0", numbered(1));
        assert!(waited(&*port.rx, SOON) < SOON);
        assert_eq!(take(&mut *port.rx, 1).len(), 1);
    });
}

#[test]
fn several_queues_are_spread_over_ports() {
    let Some(netns) = Netns::new("several_queues_are_spread_over_ports") else {
        return;
    };
    if !has_ethtool() {
        return skip("several_queues_are_spread_over_ports", "ethtool");
    }
    netns.set_up(
        "ip link add a0 numtxqueues 4 numrxqueues 4 type veth peer name b0 numtxqueues 4 \
         numrxqueues 4 && ethtool -L a0 rx 4 tx 4 && ethtool -L b0 rx 4 tx 4 && ip link set a0 up \
         && ip link set b0 up",
    );
    plain(&netns, &["a0", "b0"]);
    netns.inside(|| {
        for rings in [1, 3, 4] {
            let mut ports = open(&AF_XDP, &[settings("b0")], rings).unwrap().remove(0);
            assert_eq!(ports.len(), usize::from(rings));
            // Packet sockets send on the queue of the CPU, or of the flow.
            send("a0", flows(false));
            let (mut received, began) = (0, Instant::now());
            while received < 1800 {
                assert!(began.elapsed() < SOON, "{received}");
                let before = received;
                for port in &mut ports {
                    if let Received::Burst(burst) = port.rx.receive(64).unwrap() {
                        received += burst.len();
                    }
                }
                if received == before {
                    let ports = ports.iter().map(|port| &*port.rx);
                    wait(ports, None, Duration::from_millis(20));
                }
            }
            let counts = ports.iter_mut().map(|port| port.rx.counts());
            assert_eq!(counts.map(|it| it.received).sum::<u64>(), 1800);
            if rings > 1 {
                let event = ports[0].rx.link_event();
                assert!(
                    matches!(&event, Some(LinkEvent::Warning(line)) if line.contains("veth")),
                    "{event:?}"
                );
                let event = ports[0].rx.link_event();
                assert!(
                    matches!(&event, Some(LinkEvent::Warning(line)) if line.contains("two \
                        directions")),
                    "{event:?}"
                );
                assert_eq!(ports[1].rx.link_event(), None);
            }
        }
        let error = open(&AF_XDP, &[settings("b0")], 5).err().unwrap();
        assert_eq!(
            error.to_string(),
            "b0: it has 4 receive queues for 5 flow managers; `ethtool -L b0 combined 5` (or rx \
             5), or use fewer flow managers"
        );
    });
}

#[test]
fn frames_to_this_machine_reach_it() {
    let Some(netns) = pair("frames_to_this_machine_reach_it") else {
        return;
    };
    let other = Netns::new("frames_to_this_machine_reach_it").unwrap();
    netns.run(&format!("ip link set a0 netns {}", other.name()));
    let speak = "echo 0 > /proc/sys/net/ipv6/conf/all/disable_ipv6";
    let addresses = |at: u8, name: &str| {
        format!(
            "{speak}; ip link set {name} up; ip addr add 10.7.0.{at}/24 dev {name}; echo 0 > \
             /proc/sys/net/ipv6/conf/{name}/disable_ipv6; ip addr add fd07::{at}/64 dev {name} \
             nodad"
        )
    };
    netns.run(&addresses(2, "b0"));
    other.run(&addresses(1, "a0"));
    let ping = |to: &str| {
        let line =
            format!("ip neigh flush dev a0; ping -c 1 -W 1 {to} >/dev/null && echo yes || echo no");
        other.run(&line).trim() == "yes"
    };
    netns.inside(|| {
        let mut settings = settings("b0");
        settings.own.xdp.to_host = vec!["10.7.0.2".parse().unwrap(), "fd07::2".parse().unwrap()];
        let mut port = open_one(settings.clone());
        assert!(ping("10.7.0.2") && ping("fd07::2"));
        take(&mut *port.rx, 0);
        let before = port.rx.counts().received;
        assert!(ping("10.7.0.2") && ping("fd07::2"));
        assert!(!ping("10.7.0.3"), "nobody has it");
        take(&mut *port.rx, 1);
        assert!(port.rx.counts().received > before, "its ARP request is the port's");
        drop(port);
        settings.own.xdp.to_host.clear();
        let port = open_one(settings);
        assert!(!ping("10.7.0.2"), "all frames are the port's");
        drop(port);
        wait_for_closed();
        assert!(ping("10.7.0.2"), "it is as it was");
    });
}

#[test]
fn the_other_ways_to_bind_work_or_are_refused() {
    let Some(netns) = pair("the_other_ways_to_bind_work_or_are_refused") else {
        return;
    };
    netns.inside(|| {
        let with = |change: &dyn Fn(&mut XdpSettings)| {
            let mut settings = settings("b0");
            change(&mut settings.own.xdp);
            settings
        };
        for working in [
            with(&|it| it.need_wakeup = false),
            with(&|it| it.busy_poll_us = 20),
            with(&|it| it.zero_copy = ZeroCopy::Off),
            with(&|it| it.frame_bytes = 4096),
        ] {
            let mut port = open_one(working);
            send("a0", numbered(100));
            assert!(take(&mut *port.rx, 100) == numbered(100));
            let tx = port.tx.as_mut().unwrap();
            send_by(&mut **tx, numbered(100));
            assert_eq!(tx.counts().sent, 100);
        }
        let error = open(&AF_XDP, &[with(&|it| it.zero_copy = ZeroCopy::On)], 1);
        assert_eq!(
            error.err().unwrap().to_string(),
            "b0: its driver does not share memory in this mode; set xdp.zero_copy = \"auto\""
        );
        assert!(!netns.run("ip -d link show dev b0").contains("xdp"));
    });
}

/// Frames with no tag, one and two.
fn tagged(count: u32) -> Vec<Vec<u8>> {
    let (a, b) = (End { host: 1, port: 7 }, End { host: 2, port: 9 });
    let tags: [&[(u16, u16)]; 4] =
        [&[], &[(0x8100, 0x6064)], &[(0x88a8, 10), (0x8100, 20)], &[(0x8100, 0)]];
    (0..count).map(|i| frame(a, b, KINDS[i as usize % 6], tags[i as usize % 4], i)).collect()
}

#[test]
fn vlan_tags_are_there() {
    let Some(netns) = pair("vlan_tags_are_there") else {
        return;
    };
    netns.inside(|| {
        for mode in [XdpMode::Native, XdpMode::Generic] {
            let mut settings = settings("b0");
            settings.own.xdp.mode = mode;
            let mut port = open_one(settings);
            send("a0", tagged(400));
            let received = take(&mut *port.rx, 400);
            assert!(received == tagged(400), "{mode:?}");
        }
    });
}

#[test]
fn a_silent_port_of_an_interface_that_is_there_can_be_waited_for() {
    let Some(netns) = pair("a_silent_port_of_an_interface_that_is_there_can_be_waited_for") else {
        return;
    };
    netns.inside(|| {
        let port = open_one(settings("b0"));
        assert!(matches!(port.rx.wait_handle(), WaitHandle::Fd(_)));
        assert_eq!(port.rx.name(), "b0");
        assert!(port.rx.is_live() && !port.rx.is_lost() && !port.rx.is_failed());
    });
}
