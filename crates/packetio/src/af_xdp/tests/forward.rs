//! Frames from one interface to the other, as inline does it.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::af_packet::AF_PACKET;
use crate::af_xdp::AF_XDP;
use crate::batch::FrameBatch;
use crate::error::RxError;
use crate::faults::{FaultRates, Faults};

/// Two pairs: `a0` to `b0`, and `c0` to `d0`. The ports are on `b0` and `c0`.
fn two_pairs(test: &str) -> Option<Netns> {
    let netns = pair(test)?;
    netns.set_up("ip link add c0 type veth peer name d0 && ip link set c0 up && ip link set d0 up");
    plain(&netns, &["c0", "d0"]);
    Some(netns)
}

/// The two ports, and a listener at each far end.
struct Wire {
    ports: Vec<Opened>,
    ends: Vec<Opened>,
}

fn wire(change: impl Fn(&mut XdpSettings)) -> Wire {
    let settings = ["b0", "c0"].map(|name| {
        let mut settings = settings(name);
        change(&mut settings.own.xdp);
        settings
    });
    let listener = |name: &str| PortSettings {
        direction: Direction::Incoming,
        is_promiscuous: true,
        wait: Duration::ZERO,
        ..PortSettings::new(name)
    };
    let ends = open(&AF_PACKET, &["a0", "d0"].map(listener), 1).unwrap();
    let ports = open(&AF_XDP, &settings, 1).unwrap();
    Wire {
        ports: ports.into_iter().flatten().collect(),
        ends: ends.into_iter().flatten().collect(),
    }
}

impl Wire {
    /// One round in both directions; how many frames came.
    fn round(&mut self) -> usize {
        let [one, other] = self.ports.get_disjoint_mut([0, 1]).unwrap();
        forward(&mut *one.rx, &mut **other.tx.as_mut().unwrap())
            + forward(&mut *other.rx, &mut **one.tx.as_mut().unwrap())
    }

    /// Until nothing has come for a while.
    fn all(&mut self) -> usize {
        let (mut frames, mut idle) = (0, 0);
        while idle < 20 {
            let round = self.round();
            frames += round;
            idle = if round == 0 { idle + 1 } else { 0 };
            if round == 0 {
                wait(self.ports.iter().map(|port| &*port.rx), None, Duration::from_millis(5));
            }
        }
        frames
    }
}

fn forward(rx: &mut dyn Rx, tx: &mut dyn Tx) -> usize {
    let Received::Burst(mut burst) = rx.receive(64).unwrap() else {
        tx.flush().unwrap();
        return 0;
    };
    for i in 0..burst.len() {
        burst.bytes_mut(i)[5] ^= 0x80;
    }
    tx.send(&burst, Selection::All).unwrap();
    burst.len()
}

/// As [`forward`] leaves frames.
fn changed(mut frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    frames.iter_mut().for_each(|frame| frame[5] ^= 0x80);
    frames
}

#[test]
fn frames_pass_both_ways_in_order_and_come_back() {
    let Some(netns) = two_pairs("frames_pass_both_ways_in_order_and_come_back") else {
        return;
    };
    netns.inside(|| {
        for mode in [XdpMode::Native, XdpMode::Generic] {
            // Far fewer frames than pass, so that each is used many times.
            let mut wire = wire(|it| (it.mode, it.frames) = (mode, 256));
            for _ in 0..15 {
                send("a0", tagged(100));
                send("d0", numbered(100));
                assert_eq!(wire.all(), 200);
                assert!(take(&mut *wire.ends[1].rx, 100) == changed(tagged(100)));
                assert!(take(&mut *wire.ends[0].rx, 100) == changed(numbered(100)));
            }
            for port in &mut wire.ports {
                let (counts, sent) = (port.rx.counts(), port.tx.as_ref().unwrap().counts());
                assert_eq!((counts.received, counts.dropped, counts.missing), (1500, 0, 0));
                assert_eq!((sent.sent, sent.unsent()), (1500, 0));
                assert_eq!(port.tx.as_mut().unwrap().link_event(), None);
            }
        }
    });
}

#[test]
fn under_overload_all_frames_are_counted() {
    let Some(netns) = two_pairs("under_overload_all_frames_are_counted") else {
        return;
    };
    netns.inside(|| {
        let mut wire = wire(|it| it.frames = 64);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                netns.inside(|| {
                    for _ in 0..50 {
                        send("a0", numbered(500));
                    }
                    stop.store(true, Ordering::Relaxed);
                });
            });
            while !stop.load(Ordering::Relaxed) {
                wire.round();
                std::thread::sleep(Duration::from_millis(1));
            }
            sender.join().unwrap();
        });
        wire.all();
        let received = wire.ports[0].rx.counts();
        let sent = wire.ports[1].tx.as_ref().unwrap().counts();
        assert!(received.dropped > 0 && received.received > 0, "{received:?}");
        assert_eq!(received.waiting, 0);
        assert_sums_close(&received);
        assert_eq!(received.received, sent.sent + sent.unsent(), "{sent:?}");
    });
}

#[test]
fn frames_from_elsewhere_are_copied() {
    let Some(netns) = two_pairs("frames_from_elsewhere_are_copied") else {
        return;
    };
    netns.inside(|| {
        let mut wire = wire(|_| {});
        let tx = wire.ports[1].tx.as_mut().unwrap();
        for _ in 0..20 {
            send_by(&mut **tx, numbered(200));
            assert!(take(&mut *wire.ends[1].rx, 200) == numbered(200));
        }
        assert_eq!(tx.counts().sent, 4000);
        // And by an interface that is opened to send alone.
        drop(wire.ports);
        let mut tx = open_tx(&AF_XDP, "c0").unwrap();
        send_by(&mut *tx, numbered(200));
        assert!(take(&mut *wire.ends[1].rx, 200) == numbered(200));
    });
}

#[test]
fn marked_cut_and_long_frames_are_told_apart() {
    let Some(netns) = two_pairs("marked_cut_and_long_frames_are_told_apart") else {
        return;
    };
    let sized = |length: usize| {
        let mut frame = numbered(1).remove(0);
        frame.resize(length, 9);
        frame
    };
    let tagged = |length: usize| {
        let mut frame = sized(length);
        frame[12..14].copy_from_slice(&[0x81, 0]);
        frame
    };
    netns.inside(|| {
        let mut wire = wire(|_| {});
        let tx = wire.ports[1].tx.as_mut().unwrap();
        send_by(&mut **tx, vec![sized(1514), sized(1515), tagged(1518), tagged(1519), sized(9000)]);
        assert_eq!((tx.counts().sent, tx.counts().too_long), (2, 3));
        let mut frames = trace(numbered(100));
        let burst = frames.receive(100).unwrap().burst().unwrap();
        let marks: Vec<bool> = (0..90).map(|i| i % 3 == 0).collect();
        tx.send(&burst, Selection::Marked(&marks)).unwrap();
        assert_eq!(tx.counts().sent, 32);
        assert_eq!(take(&mut *wire.ends[1].rx, 32).len(), 32);
    });
}

/// A port as the wrapper takes it.
struct Inside(Box<dyn Rx>);

impl Rx for Inside {
    fn receive(&mut self, max: usize) -> Result<Received<'_>, RxError> {
        self.0.receive(max)
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn counts(&mut self) -> RxCounts {
        self.0.counts()
    }
}

#[test]
fn a_port_with_faults_forwards() {
    let Some(netns) = two_pairs("a_port_with_faults_forwards") else {
        return;
    };
    netns.inside(|| {
        let mut wire = wire(|it| it.frames = 256);
        let rates = FaultRates { loss: 0.2, truncation: 0.2, corruption: 0.0 };
        let Opened { rx, tx, .. } = wire.ports.remove(0);
        drop(tx);
        let mut faults = Faults::new(Inside(rx), rates, 7);
        let tx = wire.ports[0].tx.as_mut().unwrap();
        let mut frames = 0;
        for _ in 0..30 {
            send("a0", numbered(100));
            let began = Instant::now();
            frames += 100;
            // A loss that is drawn already waits for its frame.
            while faults.faults().received < frames {
                assert!(began.elapsed() < SOON);
                match faults.receive(64).unwrap() {
                    Received::Burst(burst) => tx.send(&burst, Selection::All).unwrap(),
                    _ => tx.flush().unwrap(),
                }
            }
        }
        let (faults, sent) = (faults.faults(), tx.counts());
        assert_eq!(faults.received, 3000);
        assert!(faults.lost > 300 && faults.truncated > 300, "{faults:?}");
        assert_eq!(sent.cut, faults.truncated);
        assert_eq!(sent.sent + sent.cut, 3000 - faults.lost);
        assert_eq!(take(&mut *wire.ends[1].rx, sent.sent as usize).len() as u64, sent.sent);
    });
}

/// Two bursts cannot be alive at once in the program, but what was copied out of one may be sent
/// later.
#[test]
fn a_burst_that_is_kept_is_sent_as_a_copy() {
    let Some(netns) = two_pairs("a_burst_that_is_kept_is_sent_as_a_copy") else {
        return;
    };
    netns.inside(|| {
        let mut wire = wire(|_| {});
        send("a0", numbered(50));
        let mut kept = FrameBatch::new();
        let began = Instant::now();
        while kept.frames().len() < 50 {
            assert!(began.elapsed() < SOON);
            if let Received::Burst(burst) = wire.ports[0].rx.receive(64).unwrap() {
                for (i, frame) in burst.frames().iter().enumerate() {
                    kept.push(frame, burst.bytes(i));
                }
            }
        }
        let tx = wire.ports[1].tx.as_mut().unwrap();
        tx.send(&kept.burst(), Selection::All).unwrap();
        assert!(take(&mut *wire.ends[1].rx, 50) == numbered(50));
    });
}
