//! Ports over DPDK's software devices. DPDK starts once per process, so each test has its own
//! process.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::sync::Arc;

mod common;

use common::{alone, capture, packets_of};
use dpdk::{BURST_MAX, Eal, ErrorKind, Link, Port, PortQueue, PortSettings};

/// Without huge pages and cards, with these software devices.
fn start(devices: &[&str]) -> Arc<Eal> {
    Eal::start(&args(devices)).unwrap()
}

fn args(devices: &[&str]) -> Vec<String> {
    let base = ["--no-huge", "-m", "128", "--no-pci"];
    let devices = devices.iter().map(|device| format!("--vdev={device}"));
    base.into_iter().map(str::to_owned).chain(devices).collect()
}

fn settings(device: &str) -> PortSettings {
    PortSettings {
        device: device.to_owned(),
        queues: 1,
        mbufs: 4096,
        is_promiscuous: true,
        sends: true,
    }
}

fn open(eal: &Arc<Eal>, device: &str) -> PortQueue {
    let mut queues = Port::open(eal, &settings(device)).unwrap();
    assert_eq!(queues.len(), 1);
    queues.remove(0)
}

/// `count` packets, the i-th with bytes i.
fn numbered(count: usize) -> Vec<Vec<u8>> {
    let packet = |i: usize| vec![i as u8; 60 + i % 1400];
    (0..count).map(packet).collect()
}

/// All packets that a queue has.
fn drain(queue: &mut PortQueue, max: usize) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while queue.rx.poll(max) > 0 {
        let placed: Vec<_> = queue.rx.packets().collect();
        assert!(placed.len() <= max);
        let lent = queue.rx.lend();
        let bytes = |it: &dpdk::Placed| lent.bytes()[it.at..it.at + it.length as usize].to_vec();
        all.extend(placed.iter().map(bytes));
    }
    all
}

#[test]
fn packets_come_in_order_and_whole() {
    alone("packets_come_in_order_and_whole", || {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("in.pcap");
        capture(&file, &numbered(1000));
        let eal = start(&[&format!("net_pcap0,rx_pcap={}", file.display())]);
        assert_eq!(eal.devices(), ["net_pcap0"]);
        let mut queue = open(&eal, "net_pcap0");
        assert_eq!(queue.rx.port().link(), Link::Up);
        assert_eq!(drain(&mut queue, 100), numbered(1000));
        assert_eq!((queue.rx.gathered(), queue.rx.dropped()), (0, 0));
    });
}

#[test]
fn packets_are_changed_and_sent_in_place() {
    alone("packets_are_changed_and_sent_in_place", || {
        let dir = tempfile::tempdir().unwrap();
        let [from, to] = ["in.pcap", "out.pcap"].map(|name| dir.path().join(name));
        capture(&from, &numbered(500));
        let device = format!("net_pcap0,rx_pcap={},tx_pcap={}", from.display(), to.display());
        let eal = start(&[&device]);
        let mut queue = open(&eal, "net_pcap0");
        let (mut rx, mut tx) = (queue.rx, queue.tx.take().unwrap());
        loop {
            let count = rx.poll(64);
            if count == 0 {
                break;
            }
            let placed: Vec<_> = rx.packets().collect();
            let mut lent = rx.lend();
            for it in &placed {
                lent.bytes_mut()[it.at] ^= 0xff;
            }
            // Every other one.
            let sent = tx.send(&lent, (0..count).step_by(2));
            assert_eq!(sent, count.div_ceil(2));
            // It may be on its way now: read, but not changed.
            let first = &placed[0];
            let bytes = &lent.bytes()[first.at..first.at + first.length as usize];
            assert_eq!((bytes[0], bytes[59]), (bytes[1] ^ 0xff, bytes[1]));
            assert!(lent.bytes_mut().is_empty() && lent.into_bytes().is_empty());
        }
        drop((rx, tx, eal));
        let mut expected: Vec<_> = numbered(500).into_iter().step_by(2).collect();
        expected.iter_mut().for_each(|packet| packet[0] ^= 0xff);
        assert_eq!(packets_of(&to), expected);
    });
}

#[test]
fn buffers_go_round() {
    alone("buffers_go_round", || {
        let eal = start(&["net_null0", "net_null1"]);
        let (mut one, mut other) = (open(&eal, "net_null0"), open(&eal, "net_null1"));
        // Many times the buffers that there are, lent and sent, some not selected, from a thread of
        // its own.
        let tx = other.tx.as_mut().unwrap();
        let send = || {
            for round in 0..2000 {
                let count = one.rx.poll(BURST_MAX);
                assert_eq!(count, BURST_MAX, "in round {round}");
                let lent = one.rx.lend();
                assert_eq!(tx.send(&lent, 0..200), 200);
                // Twice is possible, too.
                assert_eq!(tx.send(&lent, 0..10), 10);
                let copies = std::iter::repeat_n(&lent.bytes()[..60], 8);
                assert_eq!(tx.send_copies(copies), 8);
            }
        };
        std::thread::scope(|scope| scope.spawn(send).join()).unwrap();
        assert_eq!(one.rx.port().lost(), 0);
    });
}

#[test]
fn packets_of_other_pools_and_in_pieces_are_copied() {
    alone("packets_of_other_pools_and_in_pieces_are_copied", || {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("in.pcap");
        // The second one is longer than a buffer.
        capture(&file, &[vec![1; 100], vec![2; 9000], vec![3; 100]]);
        let eal = start(&[&format!("net_pcap0,rx_pcap={}", file.display()), "net_ring0"]);
        let (mut pcap, mut ring) = (open(&eal, "net_pcap0"), open(&eal, "net_ring0"));
        let mut got = Vec::new();
        while pcap.rx.poll(8) > 0 {
            let count = pcap.rx.packets().count();
            let lent = pcap.rx.lend();
            assert_eq!(ring.tx.as_mut().unwrap().send(&lent, 0..count), count);
            // The ring hands on the packets of the capture's pool, which are still lent.
            got.extend(drain(&mut ring, 8));
        }
        assert_eq!(got, [vec![1; 100], vec![3; 100]]);
        assert_eq!((pcap.rx.gathered(), pcap.rx.dropped()), (1, 1));
        assert_eq!((ring.rx.gathered(), ring.rx.dropped()), (2, 0));
    });
}

#[test]
fn a_device_that_hashes_has_several_queues() {
    alone("a_device_that_hashes_has_several_queues", || {
        let eal = start(&["net_null0", "net_ring0"]);
        let two = PortSettings { queues: 2, ..settings("net_null0") };
        let mut queues = Port::open(&eal, &two).unwrap();
        assert_eq!(queues.len(), 2);
        for queue in &mut queues {
            assert!(queue.rx.port().has_symmetric_hash());
            assert_eq!(queue.rx.poll(32), 32);
        }
        let error = Port::open(&eal, &PortSettings { device: "net_ring0".to_owned(), ..two });
        let error = error.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Setting);
        assert!(error.to_string().contains("does not; use one flow worker"), "{error}");
    });
}

#[test]
fn a_device_that_is_not_there_and_too_few_buffers_are_refused() {
    alone("a_device_that_is_not_there_and_too_few_buffers_are_refused", || {
        let eal = start(&["net_null0", "net_null1"]);
        let error = Port::open(&eal, &settings("eth0")).unwrap_err();
        assert_eq!(error.kind, ErrorKind::NoDevice);
        let few = PortSettings { mbufs: 1024, ..settings("net_null0") };
        let error = Port::open(&eal, &few).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Setting);
        assert!(error.to_string().contains("1024 packet buffers; its rings"), "{error}");
        // Starting DPDK again gives the running one.
        open(&Eal::start(&[]).unwrap(), "net_null1");
        drop(eal);
        let again = Eal::start(&args(&["net_null0"])).unwrap_err();
        assert!(again.to_string().contains("twice"), "{again}");
    });
}

#[test]
fn wrong_arguments_are_one_line() {
    alone("wrong_arguments_are_one_line", || {
        let error = Eal::start(&["--no-such-option".to_owned()]).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Setting);
        assert!(error.to_string().contains("unrecognized option '--no-such-option'"), "{error}");
        assert_eq!(error.to_string().lines().count(), 1);
    });
}

#[test]
fn a_start_without_huge_pages_says_so() {
    alone("a_start_without_huge_pages_says_so", || {
        let total = fs::read_to_string("/proc/sys/vm/nr_hugepages").unwrap();
        if total.trim() != "0" {
            println!(
                "SKIPPED a_start_without_huge_pages_says_so: needs a machine without huge pages"
            );
            return;
        }
        let error = Eal::start(&["--no-pci".to_owned()]).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Memory, "{error}");
    });
}

#[test]
fn arguments_that_only_print_are_refused() {
    alone("arguments_that_only_print_are_refused", || {
        for arg in ["--help", "-v", "--", "--proc-type=secondary"] {
            let error = Eal::start(&[arg.to_owned()]).unwrap_err();
            assert!(error.to_string().contains(arg), "{error}");
        }
        // They were not tried, so DPDK can still be started.
        start(&[]);
    });
}
