//! The backend `dpdk` through the traits, over DPDK's software devices. DPDK starts once per
//! process, so each test runs in a process of its own.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use packetio::{
    Backend, BackendSettings, DpdkSettings, FaultRates, Faults, Frame, FrameBatch, LinkEvent,
    OpenError, Opened, PortSettings, Received, Rx, Selection, Tx, WaitHandle, open, open_tx, probe,
};

#[path = "../../dpdk/tests/common/mod.rs"]
mod common;

use common::{alone, alone_in_namespace, capture, ip, packets_of};

/// Longer than anything here needs.
const SOON: Duration = Duration::from_secs(10);

fn dpdk() -> &'static Backend {
    Backend::parse("dpdk").unwrap()
}

fn settings(device: &str, vdevs: &[&str]) -> PortSettings {
    let base = ["--no-huge", "-m", "128", "--no-pci"].map(str::to_owned);
    let vdevs = vdevs.iter().map(|it| format!("--vdev={it}"));
    PortSettings {
        sends: true,
        own: BackendSettings {
            dpdk: DpdkSettings {
                args: base.into_iter().chain(vdevs).collect(),
                mbufs: 4096,
                ..DpdkSettings::default()
            },
            ..BackendSettings::default()
        },
        ..PortSettings::new(device)
    }
}

fn open_one(settings: &PortSettings) -> (Box<dyn Rx>, Box<dyn Tx>) {
    let mut ports = open(dpdk(), std::slice::from_ref(settings), 1).unwrap();
    let Opened { rx, tx, .. } = ports.remove(0).remove(0);
    (rx, tx.unwrap())
}

fn error(settings: PortSettings, rings: u16) -> OpenError {
    match open(dpdk(), &[settings], rings) {
        Ok(_) => panic!("it opens"),
        Err(error) => error,
    }
}

/// `count` frames, the i-th with bytes i.
fn numbered(count: usize) -> Vec<Vec<u8>> {
    let frame = |i: usize| vec![i as u8; 60 + i % 1400];
    (0..count).map(frame).collect()
}

/// The next frames of a port that has some.
fn next(rx: &mut dyn Rx) -> (Vec<Frame>, Vec<Vec<u8>>) {
    let began = Instant::now();
    while began.elapsed() < SOON {
        if let Received::Burst(burst) = rx.receive(64).unwrap() {
            let bytes = (0..burst.len()).map(|i| burst.bytes(i).to_vec()).collect();
            return (burst.frames().to_vec(), bytes);
        }
    }
    panic!("{}: no frames", rx.name());
}

#[test]
fn frames_are_received_stamped_and_counted() {
    alone("frames_are_received_stamped_and_counted", || {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("in.pcap");
        capture(&file, &[numbered(300), vec![vec![1; 9000]]].concat());
        let vdev = format!("net_pcap0,rx_pcap={}", file.display());
        let (mut rx, _tx) = open_one(&settings("net_pcap0", &[&vdev]));
        let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let mut all = Vec::new();
        while let Received::Burst(burst) = rx.receive(64).unwrap() {
            for (i, frame) in burst.frames().iter().enumerate() {
                assert_eq!(
                    (frame.captured, frame.wire),
                    (burst.bytes(i).len() as u32, frame.captured)
                );
                let age_us = frame.time_us - before.as_micros() as i64;
                assert!((0..SOON.as_micros() as i64).contains(&age_us), "{age_us} µs");
                assert_eq!((frame.link, frame.rss), (1, None));
                all.push(burst.bytes(i).to_vec());
            }
        }
        assert_eq!(all, numbered(300));
        let counts = rx.counts();
        // The long one was dropped.
        assert_eq!((counts.offered, counts.received, counts.dropped), (301, 300, 1));
        let bytes: usize = all.iter().map(Vec::len).sum();
        assert_eq!(counts.bytes, bytes as u64);
        assert!(!counts.is_away && !rx.is_lost());
    });
}

#[test]
fn frames_are_sent_on_in_place_and_others_as_copies() {
    alone("frames_are_sent_on_in_place_and_others_as_copies", || {
        let dir = tempfile::tempdir().unwrap();
        let [from, to] = ["in.pcap", "out.pcap"].map(|name| dir.path().join(name));
        capture(&from, &numbered(100));
        let vdev = format!("net_pcap0,rx_pcap={},tx_pcap={}", from.display(), to.display());
        let (mut rx, mut tx) = open_one(&settings("net_pcap0", &[&vdev]));
        let even: Vec<bool> = (0..64).map(|i| i % 2 == 0).collect();
        while let Received::Burst(mut burst) = rx.receive(64).unwrap() {
            for i in 0..burst.len() {
                burst.bytes_mut(i)[1] = 0xaa;
            }
            tx.send(&burst, Selection::Marked(&even)).unwrap();
            assert_eq!(burst.bytes(0)[1], 0xaa);
            assert!(burst.parts().0.is_empty(), "it belongs to the device, too");
        }
        let mut expected = numbered(100);
        // The bursts have 64 and 36 frames, so frames of even numbers are even within their bursts.
        expected = expected.into_iter().step_by(2).collect();
        expected.iter_mut().for_each(|frame| frame[1] = 0xaa);
        let mut trace = FrameBatch::new();
        for (captured, wire) in [(60, 60), (60, 99), (1600, 1600), (300, 300)] {
            let frame = Frame { captured, wire, ..Frame::default() };
            trace.push(&frame, &vec![7; captured as usize]);
        }
        let burst = trace.receive(8).unwrap().burst().unwrap();
        tx.send(&burst, Selection::All).unwrap();
        expected.extend([vec![7; 60], vec![7; 300]]);
        let counts = tx.counts();
        assert_eq!((counts.sent, counts.cut, counts.too_long), (52, 1, 1));
        let bytes: usize = expected.iter().map(Vec::len).sum();
        assert_eq!(counts.sent_bytes, bytes as u64);
        drop((rx, tx));
        assert_eq!(packets_of(&to), expected);
    });
}

#[test]
fn frames_that_a_wrapper_has_changed_are_sent_as_they_are_then() {
    alone("frames_that_a_wrapper_has_changed_are_sent_as_they_are_then", || {
        let dir = tempfile::tempdir().unwrap();
        let [from, to] = ["in.pcap", "out.pcap"].map(|name| dir.path().join(name));
        capture(&from, &numbered(1000));
        let vdev = format!("net_pcap0,rx_pcap={},tx_pcap={}", from.display(), to.display());
        let (rx, mut tx) = open_one(&settings("net_pcap0", &[&vdev]));
        let rates = FaultRates { loss: 0.5, ..FaultRates::default() };
        let mut faults = Faults::new(Boxed(rx), rates, 3);
        let mut left = Vec::new();
        for _ in 0..1000 {
            if let Received::Burst(burst) = faults.receive(64).unwrap() {
                left.extend((0..burst.len()).map(|i| burst.bytes(i).to_vec()));
                tx.send(&burst, Selection::All).unwrap();
            }
        }
        drop((faults, tx));
        assert!(left.len() > 400 && left.len() < 600, "{} frames", left.len());
        assert_eq!(packets_of(&to), left);
    });
}

/// A port behind a pointer as one.
struct Boxed(Box<dyn Rx>);

impl Rx for Boxed {
    fn receive(&mut self, max: usize) -> Result<Received<'_>, packetio::RxError> {
        self.0.receive(max)
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn counts(&mut self) -> packetio::RxCounts {
        self.0.counts()
    }
}

#[test]
fn several_rings_have_hashes_of_the_device() {
    alone("several_rings_have_hashes_of_the_device", || {
        let mut ports = open(dpdk(), &[settings("net_null0", &["net_null0"])], 2).unwrap();
        let ports = ports.remove(0);
        assert_eq!(ports.len(), 2);
        for mut port in ports {
            // This device does not say that it has hashed, so there is no hash.
            assert_eq!(next(&mut *port.rx).0[0].rss, None);
        }
    });
}

#[test]
fn an_empty_port_is_polled_and_then_asked_at_intervals() {
    alone("an_empty_port_is_polled_and_then_asked_at_intervals", || {
        let (mut rx, _tx) = open_one(&settings("net_ring0", &["net_ring0"]));
        let sleeps = |rx: &dyn Rx| match rx.wait_handle() {
            WaitHandle::Within(time) => time,
            other => panic!("{other:?}"),
        };
        assert_eq!(sleeps(&*rx), Duration::ZERO);
        while sleeps(&*rx).is_zero() {
            assert!(matches!(rx.receive(8), Ok(Received::Nothing)));
        }
        assert_eq!(sleeps(&*rx), Duration::from_micros(50));
        // Far below the timeout.
        let began = Instant::now();
        packetio::wait([&*rx], None, SOON);
        assert!(began.elapsed() < SOON / 2);
    });
}

#[test]
fn what_cannot_be_opened_is_one_line_with_the_cure() {
    alone("what_cannot_be_opened_is_one_line_with_the_cure", || {
        let vdevs = ["net_null0", "net_ring0", "net_pcap7,rx_pcap=/nowhere.pcap"];
        // Keeps DPDK running, so that what follows uses its devices.
        let _open = open_one(&settings("net_null0", &vdevs));
        let missing = error(settings("eth0", &vdevs), 1).to_string();
        for part in [
            "eth0: no such device of DPDK; there are: net_null0, net_ring0; ",
            "/nowhere.pcap",
            "--vdev in dpdk.args",
        ] {
            assert!(missing.contains(part), "{missing}");
        }
        let two = error(settings("net_ring0", &[]), 2);
        assert!(matches!(two, OpenError::BadSetting { .. }));
        assert!(two.to_string().contains("2 flow workers"), "{two}");
        assert!(probe(dpdk(), &settings("net_ring0", &[])).is_ok());
        let Err(error) = open_tx(dpdk(), "net_null3") else {
            panic!("it opens");
        };
        assert!(matches!(error, OpenError::Unavailable { .. }), "{error}");
    });
}

/// The driver takes the tag out of the frame, which goes through the kernel.
#[test]
fn tagged_frames_are_received_as_they_were_sent() {
    alone_in_namespace("tagged_frames_are_received_as_they_were_sent", || {
        ip("link add name wire type veth peer name lan");
        for side in ["wire", "lan"] {
            let file = format!("/proc/sys/net/ipv6/conf/{side}/disable_ipv6");
            std::fs::write(file, "1").unwrap();
            ip(&format!("link set {side} up"));
        }
        let (mut rx, _tx) = open_one(&settings("net_af_packet0", &["net_af_packet0,iface=lan"]));
        let mut tagged = [[2; 12].as_slice(), &[0x81, 0, 0x20, 0x07, 0x08, 0x00]].concat();
        tagged.resize(200, 9);
        let plain = [[2; 12].as_slice(), &[0x08, 0x00], &[5; 80]].concat();
        let mut trace = FrameBatch::new();
        for bytes in [&tagged, &plain] {
            let length = bytes.len() as u32;
            trace.push(&Frame { captured: length, wire: length, ..Frame::default() }, bytes);
        }
        let burst = trace.receive(8).unwrap().burst().unwrap();
        let mut out = open_tx(<&Backend>::default(), "wire").unwrap();
        out.send(&burst, Selection::All).unwrap();
        let mut got = next(&mut *rx).1;
        while got.len() < 2 {
            got.extend(next(&mut *rx).1);
        }
        assert_eq!(got, [tagged, plain]);
    });
}

#[test]
fn a_link_that_goes_down_and_up_is_reported() {
    alone_in_namespace("a_link_that_goes_down_and_up_is_reported", || {
        let (mut rx, _tx) = open_one(&settings("net_tap0", &["net_tap0,iface=tap0"]));
        let mut event = || {
            let began = Instant::now();
            while began.elapsed() < SOON {
                let _ = rx.receive(8).unwrap();
                if let Some(event) = rx.link_event() {
                    return (event, rx.counts().is_away);
                }
            }
            panic!("nothing is reported");
        };
        ip("link set tap0 down");
        assert!(matches!(event(), (LinkEvent::Down(line), true) if line.contains("net_tap0")));
        ip("link set tap0 up");
        assert!(matches!(event(), (LinkEvent::Up(_), false)));
    });
}
