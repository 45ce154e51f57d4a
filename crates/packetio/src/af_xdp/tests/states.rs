//! What becomes of a port when its interface changes.

use super::*;
use crate::af_xdp::AF_XDP;
use crate::error::InterfaceErrorKind;
use crate::tests::netns::starting;

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
            let ports = ports.iter().map(|port| &*port.rx);
            wait(ports, None, Duration::from_millis(20));
        }
    }
    (frames, events)
}

/// Reads off what is reported at the start.
fn past_warnings(ports: &mut [Opened]) {
    for port in ports {
        while port.rx.link_event().is_some() {}
    }
}

fn ports() -> Vec<Opened> {
    let mut ports = open(&AF_XDP, &[settings("b0")], 1).unwrap().remove(0);
    past_warnings(&mut ports);
    ports
}

/// Waits until sending works again.
fn send_again(tx: &mut dyn Tx) {
    let began = Instant::now();
    let mut burst = trace(numbered(10));
    let burst = burst.receive(10).unwrap().burst().unwrap();
    let before = tx.counts().sent;
    while tx.send(&burst, Selection::All).is_err() || tx.counts().sent == before {
        assert!(began.elapsed() < SOON, "{:?}", tx.counts());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_interface_that_was_away_is_reported_once_and_found_again() {
    let Some(netns) = pair("an_interface_that_was_away_is_reported_once_and_found_again") else {
        return;
    };
    netns.inside(|| {
        let mut ports = ports();
        send("a0", numbered(100));
        run(&mut ports, |frames, _| frames == 100);

        netns.run("ip link set b0 down");
        let (_, events) = run(&mut ports, |_, events| !events.is_empty());
        let down = "b0: the interface is down; work on it goes on when it is up";
        assert_eq!(events, [LinkEvent::Down(down.to_owned())]);
        assert!(ports[0].rx.counts().is_away && !ports[0].rx.is_lost());
        assert!(matches!(ports[0].rx.wait_handle(), WaitHandle::Away));
        let mut burst = trace(numbered(10));
        let burst = burst.receive(10).unwrap().burst().unwrap();
        let tx = ports[0].tx.as_mut().unwrap();
        let error = tx.send(&burst, Selection::All).unwrap_err();
        assert!(matches!(error.kind, InterfaceErrorKind::Down));
        assert_eq!(error.to_string(), down);
        assert!(tx.send(&burst, Selection::All).is_ok(), "reported once");
        assert_eq!((tx.counts().sent, tx.counts().refused), (0, 20));
        assert_eq!(tx.link_event(), None, "the receiving side reports it");

        netns.set_up("ip link set b0 up");
        let (_, events) = run(&mut ports, |_, events| !events.is_empty());
        let back = LinkEvent::Up("b0: the interface is back".to_owned());
        assert_eq!(events, std::slice::from_ref(&back));
        send("a0", numbered(100));
        run(&mut ports, |frames, _| frames == 100);
        send_again(&mut **ports[0].tx.as_mut().unwrap());

        netns.run("ip link del b0");
        let (_, events) = run(&mut ports, |_, events| events.len() == 1);
        let gone = "b0: the interface is gone: deleted, or moved to another network namespace";
        assert_eq!(events, [LinkEvent::Down(gone.to_owned())]);
        assert!(ports[0].rx.is_lost() && !ports[0].rx.is_failed());
        let tx = ports[0].tx.as_mut().unwrap();
        let error = tx.send(&burst, Selection::All).unwrap_err();
        assert!(matches!(error.kind, InterfaceErrorKind::Gone));
        assert_eq!(error.to_string(), gone);

        netns.add_pair();
        plain(&netns, &["a0", "b0"]);
        let (_, events) = run(&mut ports, |_, events| events.contains(&back));
        assert!(!ports[0].rx.is_lost(), "{events:?}");
        send("a0", numbered(100));
        run(&mut ports, |frames, _| frames == 100);
        // The sending side follows by itself.
        send_again(&mut **ports[0].tx.as_mut().unwrap());
        let counts = ports[0].rx.counts();
        assert_eq!((counts.received, counts.is_away), (300, false));
        assert_sums_close(&counts);
    });
}

/// What is opened with all rights can be opened again with those that are said to suffice.
#[test]
fn an_interface_is_found_again_with_few_rights() {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
    let Some(netns) = pair("an_interface_is_found_again_with_few_rights") else {
        return;
    };
    netns.inside(|| {
        let mut ports = ports();
        let names = (AF_XDP.capabilities)(&settings("b0"));
        let kept = names.iter().map(|name| {
            let name = name.strip_prefix("CAP_").unwrap();
            CapabilitySet::from_name(name).unwrap()
        });
        let kept = kept.fold(CapabilitySet::empty(), |all, one| all | one);
        assert!(!kept.contains(CapabilitySet::NET_ADMIN));
        netns.run("ip link del b0");
        run(&mut ports, |_, events| !events.is_empty());
        netns.add_pair();
        plain(&netns, &["a0", "b0"]);
        let sets = CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: CapabilitySet::empty(),
        };
        set_capabilities(None, sets).unwrap();
        let (_, events) = run(&mut ports, |_, events| !events.is_empty());
        assert!(matches!(&events[..], [LinkEvent::Up(_)]), "{events:?}");
        netns.run("ip link show dev b0 | grep -q xdp");
    });
}

/// Frames that were on their way when an interface went are not lost for those that come later.
#[test]
fn no_frame_is_lost_for_good_with_an_interface() {
    let Some(netns) = pair("no_frame_is_lost_for_good_with_an_interface") else {
        return;
    };
    netns.inside(|| {
        let mut settings = settings("b0");
        settings.own.xdp.frames = 64;
        let mut port = vec![open_one(settings)];
        past_warnings(&mut port);
        for _ in 0..3 {
            // Received frames are sent back, some of them into the void.
            send("a0", numbered(64));
            let began = Instant::now();
            let mut frames = 0;
            while frames < 64 {
                assert!(began.elapsed() < SOON, "{frames}");
                let Opened { rx, tx, .. } = &mut port[0];
                if let Received::Burst(burst) = rx.receive(10).unwrap() {
                    frames += burst.len();
                    let _ = tx.as_mut().unwrap().send(&burst, Selection::All);
                    if frames == 30 {
                        netns.run("ip link set a0 down");
                    }
                }
            }
            netns.run("ip link del b0");
            run(&mut port, |_, events| !events.is_empty());
            netns.add_pair();
            plain(&netns, &["a0", "b0"]);
            run(&mut port, |_, events| {
                events.iter().any(|event| matches!(event, LinkEvent::Up(_)))
            });
            let _ = port[0].tx.as_mut().unwrap().flush();
        }
        send("a0", numbered(64));
        assert!(take(&mut *port[0].rx, 64) == numbered(64));
        assert_eq!(port[0].rx.counts().dropped, 0);
    });
}

#[test]
fn an_interface_with_another_name_serves_until_it_goes_down() {
    let Some(netns) = pair("an_interface_with_another_name_serves_until_it_goes_down") else {
        return;
    };
    netns.inside(|| {
        let mut ports = ports();
        netns.set_up("ip link set b0 down && ip link set b0 name c0 && ip link set c0 up");
        let (_, events) = run(&mut ports, |_, events| !events.is_empty());
        let line = "b0: the interface is now called c0; give it its name back, or put the new one \
            into io.interfaces and restart";
        assert!(events.contains(&LinkEvent::Warning(line.to_owned())), "{events:?}");
        send("a0", numbered(10));
        run(&mut ports, |frames, _| frames == 10);
        netns.run("ip link set c0 down");
        let (_, events) = run(&mut ports, |_, events| !events.is_empty());
        assert!(matches!(&events[..], [LinkEvent::Down(_)]), "{events:?}");
        assert!(ports[0].rx.is_lost());
        assert!(!netns.run("ip -d link show dev c0").contains("xdp"));
        netns.set_up("ip link set c0 name b0 && ip link set b0 up");
        let _ = ports[0].tx.as_mut().unwrap().flush();
        run(&mut ports, |_, events| events.iter().any(|event| matches!(event, LinkEvent::Up(_))));
        send("a0", numbered(10));
        run(&mut ports, |frames, _| frames == 10);
    });
}

#[test]
fn an_interface_that_is_down_can_be_opened() {
    let Some(netns) = pair("an_interface_that_is_down_can_be_opened") else {
        return;
    };
    netns.run("ip link set b0 down");
    netns.inside(|| {
        let mut ports = ports();
        assert!(ports[0].rx.counts().is_away);
        netns.set_up("ip link set b0 up");
        run(&mut ports, |_, events| !events.is_empty());
        send("a0", numbered(3));
        run(&mut ports, |frames, _| frames == 3);
    });
}

#[test]
fn an_mtu_that_grows_too_large_is_reported_once() {
    let Some(netns) = pair("an_mtu_that_grows_too_large_is_reported_once") else {
        return;
    };
    netns.inside(|| {
        // In native mode the driver of a veth refuses it by itself.
        let mut settings = settings("b0");
        settings.own.xdp.mode = XdpMode::Generic;
        let mut ports = vec![open_one(settings)];
        past_warnings(&mut ports);
        netns.run("ip link set b0 mtu 9000");
        let (_, events) = run(&mut ports, |_, events| !events.is_empty());
        let line = "b0: its MTU is 9000, and a frame of 2048 bytes has room for 1770; `ip link set \
            dev b0 mtu 3818` with xdp.frame_bytes = 4096, or set io.backend = \"af_packet\"; \
            longer frames are dropped";
        assert_eq!(events, [LinkEvent::Warning(line.to_owned())]);
        std::thread::sleep(Duration::from_millis(250));
        for _ in 0..10 {
            ports[0].rx.receive(8).unwrap();
            assert_eq!(ports[0].rx.link_event(), None);
        }
    });
}

/// A process that ends by SIGKILL leaves nothing on the interface. The process is this test
/// program, run again.
#[test]
fn a_killed_process_leaves_the_interface_as_it_was() {
    const ROLE: &str = "PACKETIO_XDP_VICTIM";
    if std::env::var_os(ROLE).is_some() {
        let _port = open_one(settings("b0"));
        println!("it is open");
        loop {
            std::thread::park();
        }
    }
    let Some(netns) = pair("a_killed_process_leaves_the_interface_as_it_was") else {
        return;
    };
    use std::io::BufRead;
    use std::process::{Command, Stdio};
    let mut victim = Command::new("ip");
    victim.args(["netns", "exec", netns.name()]);
    victim.arg(std::env::current_exe().unwrap());
    victim.args(["--exact", "--nocapture"]);
    victim.arg("af_xdp::tests::states::a_killed_process_leaves_the_interface_as_it_was");
    victim.env(ROLE, "1").stdout(Stdio::piped());
    let starting = starting();
    let mut victim = victim.spawn().unwrap();
    let lines = std::io::BufReader::new(victim.stdout.take().unwrap()).lines();
    let is_open = lines.map_while(Result::ok).any(|line| line.contains("it is open"));
    assert!(is_open, "{:?}", victim.wait());
    drop(starting);
    let shown = || netns.run("ip -d link show dev b0");
    assert!(shown().contains("xdp") && shown().contains("promiscuity 1"), "{}", shown());
    victim.kill().unwrap();
    victim.wait().unwrap();
    let began = Instant::now();
    while shown().contains("xdp") || !shown().contains("promiscuity 0") {
        assert!(began.elapsed() < SOON, "{}", shown());
    }
    netns.inside(|| drop(open_one(settings("b0"))));
}
