//! Two namespaces that talk through ports in a third one, as inline does it.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::counts::RingCounts;
use super::super::reader::RingReader;
use super::super::transmit::Transmit;
use super::config;
use crate::settings::PortSettings;
use crate::tests::netns::{Netns, has_ethtool, skip};
use crate::tx::{Selection, TxCounts};

/// Sends on what a port receives, until `stop`.
fn forward(
    port: &mut RingReader,
    transmit: &mut Transmit,
    stop: &AtomicBool,
) -> (RingCounts, TxCounts) {
    while !stop.load(Ordering::Relaxed) {
        let burst = port.receive(64).unwrap();
        transmit.send(&burst, Selection::All).unwrap();
    }
    (port.counts(), transmit.counts)
}

/// Three namespaces, the ports `m0` and `m1` in the second.
fn three(test: &str) -> Option<[Netns; 3]> {
    let [near, middle, far] = [Netns::new(test)?, Netns::new(test)?, Netns::new(test)?];
    for (netns, end, port, address) in
        [(&near, "a0", "m0", "10.9.0.1"), (&far, "b0", "m1", "10.9.0.2")]
    {
        netns.run(&format!("ip link add {end} type veth peer name {port} netns {}", middle.name()));
        netns.run(&format!("ip addr add {address}/24 dev {end} && ip link set {end} up"));
        middle.run(&format!("ip link set {port} up"));
    }
    Some([near, middle, far])
}

/// Opens both ways, lets them talk, and says what went each way.
fn through(
    near: &Netns,
    middle: &Netns,
    far: &Netns,
    sends_merged: bool,
) -> [(RingCounts, TxCounts); 2] {
    let open = |name: &str| {
        let config =
            PortSettings { interface: name.to_owned(), completes_checksums: true, ..config() };
        (RingReader::open(&config).unwrap(), Transmit::open(name, sends_merged).unwrap())
    };
    let ((mut port_a, mut to_a), (mut port_b, mut to_b)) =
        middle.inside(|| (open("m0"), open("m1")));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let there = scope.spawn(|| forward(&mut port_a, &mut to_b, &stop));
        let back = scope.spawn(|| forward(&mut port_b, &mut to_a, &stop));
        let talked = std::panic::catch_unwind(|| talk(near, far));
        stop.store(true, Ordering::Relaxed);
        let counts = [there.join().unwrap(), back.join().unwrap()];
        talked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        counts
    })
}

#[test]
fn real_programs_talk_through_two_ports() {
    const TEST: &str = "real_programs_talk_through_two_ports";
    let Some([near, middle, far]) = three(TEST) else {
        return;
    };
    if !has_ethtool() {
        return skip(TEST, "ethtool");
    }
    // With all offloads on, as interfaces have them by default.
    for (received, sent) in through(&near, &middle, &far, true) {
        assert!(received.merged > 0 && received.dropped == 0, "{received:?}");
        assert_eq!(received.received, sent.sent, "{sent:?}");
    }
    // And with packets as on a wire; checksums are still left to the "card".
    near.run("ethtool -K a0 tso off gso off");
    far.run("ethtool -K b0 tso off gso off");
    for (received, sent) in through(&near, &middle, &far, false) {
        assert_eq!((received.dropped, received.merged), (0, 0), "{received:?}");
        assert_eq!(received.received, sent.sent, "{sent:?}");
        assert!(received.partial_checksums > 0);
    }
}

/// Echoes 4 MB over TCP.
fn talk(near: &Netns, far: &Netns) {
    let sent: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let listener = far.inside(|| TcpListener::bind("10.9.0.2:0").unwrap());
    let address = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            stream.write_all(&received).unwrap();
        });
        near.inside(|| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&sent).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut echoed = Vec::new();
            stream.read_to_end(&mut echoed).unwrap();
            assert!(echoed == sent, "{} bytes came back", echoed.len());
        });
    });
}
