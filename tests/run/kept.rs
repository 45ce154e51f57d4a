//! Mode inline: the receive rings outlive the process in the descriptor store of the service
//! manager, so that a restart makes packets late and loses none.

use std::fs;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::process::Signal;

use crate::common::lab::Lab;
use crate::common::live::Live;
use crate::common::store::Store;
use crate::common::{self, uninterrupted};
use crate::run::traffic::ask_udp;

/// Rings that hold what comes for 20 s at least, however long a start takes on this machine.
const PATIENT: [&str; 6] =
    ["--set", "io.block_timeout_ms=20", "--set", "io.blocks=1024", "--set", "io.block_bytes=65536"];
/// `io.burst`: as many frames of each ring may come again after a crash.
const BURST: usize = 32;
const GOING_ON: &str = "going on with the receive rings of the process before";
const REFUSED: &str = "the receive rings of the process before cannot be used";

fn args<'a>(settings: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["--set", "io.interfaces=[\"l\", \"r\"]"];
    args.extend(["--set", "io.mode=inline", "--set", "io.burst=32"]);
    args.extend(PATIENT);
    args.extend(common::SIMULATED);
    args.extend(settings);
    args
}

/// Numbered datagrams from one host to another, one each half millisecond.
struct Stream {
    near: UdpSocket,
    far: UdpSocket,
    sent: AtomicU32,
    /// The number that arrived last.
    arrived: AtomicU32,
    is_over: AtomicBool,
}

impl Stream {
    fn new(lab: &Lab, hosts: [&str; 2], address: &str) -> Stream {
        let [near, far] = ask_udp(lab, hosts, address, 12);
        set_socket_recv_buffer_size_force(&far, 64 << 20).unwrap();
        // Without a reader of the ring, what is sent stays in the socket's buffer until that is
        // full.
        near.set_write_timeout(Some(Duration::from_secs(30))).unwrap();
        Stream {
            near,
            far,
            sent: AtomicU32::new(0),
            arrived: AtomicU32::new(0),
            is_over: AtomicBool::new(false),
        }
    }

    fn send(&self) {
        while !self.is_over.load(Ordering::Relaxed) {
            let number = self.sent.load(Ordering::Relaxed) + 1;
            self.near.send(&number.to_be_bytes()).unwrap();
            self.sent.store(number, Ordering::Relaxed);
            std::thread::sleep(Duration::from_micros(500));
        }
        self.near.send(&u32::MAX.to_be_bytes()).unwrap();
    }

    /// The numbers of all that arrive.
    fn receive(&self) -> Vec<u32> {
        let mut numbers = Vec::new();
        loop {
            let mut bytes = [0; 4];
            uninterrupted(|| self.far.recv(&mut bytes)).expect("something arrives");
            match u32::from_be_bytes(bytes) {
                u32::MAX => return numbers,
                number => numbers.push(number),
            }
            self.arrived.store(u32::from_be_bytes(bytes), Ordering::Relaxed);
        }
    }

    /// Waits until `more` more were sent.
    fn sends(&self, more: u32) {
        let until = self.sent.load(Ordering::Relaxed) + more;
        while self.sent.load(Ordering::Relaxed) < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until what is sent now has arrived.
    fn passes(&self, live: &Live) {
        let until = self.sent.load(Ordering::Relaxed);
        live.wait_for("datagrams pass", |_| self.arrived.load(Ordering::Relaxed) >= until);
    }
}

/// Ends streams when the test does, also by a panic.
struct Ending<'a>(&'a [Stream]);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        for stream in self.0 {
            stream.is_over.store(true, Ordering::Relaxed);
        }
    }
}

/// All numbers, once each and in order, but for bursts that come again; how many did.
fn again(numbers: &[u32], sent: u32) -> usize {
    let mut next = 1;
    let mut again = 0;
    for &number in numbers {
        assert!(number <= next, "{next} to {} are missing", number - 1);
        again += usize::from(number < next);
        next = next.max(number + 1);
    }
    assert_eq!(next, sent + 1, "the last ones are missing");
    again
}

#[test]
fn a_restart_loses_nothing() {
    for (layout, signal, most) in [
        ("1:1:1", Signal::TERM, 0),
        ("1:1:1", Signal::KILL, 2 * BURST),
        ("2:1:1", Signal::TERM, 0),
        ("2:1:1", Signal::KILL, 2 * BURST),
    ] {
        let Some(lab) = Lab::bridged("kept", &["python3"]) else {
            return;
        };
        let layout = format!("pipeline.layout={layout}");
        let args = args(&["--set", &layout]);
        let mut live = Live::start(&lab, "box", &args);
        let streams = [
            Stream::new(&lab, ["left", "right"], "10.78.0.2"),
            Stream::new(&lab, ["right", "left"], "fd78:0::1"),
        ];
        let restarts = 2;
        let (live, numbers) = std::thread::scope(|scope| {
            let senders: Vec<_> = streams.iter().map(|it| scope.spawn(|| it.send())).collect();
            let receivers = streams.each_ref().map(|it| scope.spawn(|| it.receive()));
            let ending = Ending(&streams);
            for _ in 0..restarts {
                streams.iter().for_each(|it| it.passes(&live));
                let (store, said) = live.left(signal);
                assert_eq!(store.names().len(), if layout.ends_with("2:1:1") { 4 } else { 2 });
                assert!(!said.contains(REFUSED), "{said}");
                // As many as wait when the next one starts.
                streams.iter().for_each(|it| it.sends(200));
                live = Live::succeed(store, &lab, "box", &args);
                assert_eq!(live.said(GOING_ON), 1);
            }
            streams.iter().for_each(|it| it.passes(&live));
            drop(ending);
            senders.into_iter().for_each(|it| it.join().unwrap());
            (live, receivers.map(|it| it.join().unwrap()))
        });
        for (stream, numbers) in streams.iter().zip(numbers) {
            let sent = stream.sent.load(Ordering::Relaxed);
            let again = again(&numbers, sent);
            assert!(again <= restarts * most, "{again} came again");
        }
        assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
        assert_eq!(live.metric_sum("fenxi_port_dropped_packets_total"), 0.0);
        assert_no_child_inherits(&live);
        let summary = live.terminate(0).json();
        assert_eq!(summary["live"]["unsent"], 0, "{summary}");
    }
}

/// Packet sockets are closed where another program starts (`O_CLOEXEC`).
fn assert_no_child_inherits(live: &Live) {
    let process = format!("/proc/{}", live.pid());
    let sockets = fs::read_to_string(format!("{process}/net/packet")).unwrap();
    let inodes = sockets.lines().filter_map(|line| line.split_whitespace().last());
    let sockets: Vec<String> = inodes.map(|inode| format!("socket:[{inode}]")).collect();
    let mut found = 0;
    for entry in fs::read_dir(format!("{process}/fd")).unwrap().map_while(Result::ok) {
        let number = entry.file_name().into_string().unwrap();
        let target = fs::read_link(entry.path()).unwrap_or_default();
        if !sockets.iter().any(|it| target.as_os_str() == it.as_str()) {
            continue;
        }
        let text = fs::read_to_string(format!("{process}/fdinfo/{number}")).unwrap();
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = u32::from_str_radix(flags.unwrap().trim(), 8).unwrap();
        assert!(flags & 0o2_000_000 != 0, "{number}: {text}");
        found += 1;
    }
    // Two to receive and two to send, at least.
    assert!(found >= 4, "{found}");
}

/// One that was started with what is in the store, and what it says of that; its store.
fn next(store: Store, lab: &Lab, args: &[&str], says: &str) -> Store {
    let live = Live::succeed(store, lab, "box", args);
    for line in [GOING_ON, REFUSED] {
        assert_eq!(live.said(line), usize::from(line == says), "{line}");
    }
    let (store, _) = live.left(Signal::TERM);
    store
}

#[test]
fn rings_of_other_settings_are_given_up() {
    let Some(lab) = Lab::bridged("kept-other", &["python3"]) else {
        return;
    };
    let usual = args(&[]);
    let (store, _) = Live::start(&lab, "box", &usual).left(Signal::TERM);
    let before = store.names();
    assert_eq!(before.len(), 2);
    let store = next(store, &lab, &usual, GOING_ON);
    assert_eq!(store.names(), before);
    let store = next(store, &lab, &args(&["--set", "io.blocks=512"]), REFUSED);
    let now = store.names();
    assert!(now.len() == 2 && now.iter().all(|name| !before.contains(name)), "{now:?}");
    // In another mode none is kept, and none opened.
    let tap = args(&["--set", "io.mode=tap", "--set", "io.blocks=512"]);
    let store = next(store, &lab, &tap, "");
    assert!(store.names().is_empty(), "{:?}", store.names());
}

#[test]
fn an_interface_that_came_back_is_kept_anew() {
    let Some(lab) = Lab::bridged("kept-anew", &["python3"]) else {
        return;
    };
    let args = args(&[]);
    let live = Live::start(&lab, "box", &args);
    let before = live.stored();
    lab.run("left", "ip link del dev eth");
    live.wait_for("it is gone", |live| live.said("l: the interface is ") > 0);
    lab.bridge("left");
    live.wait_for("it is back", |live| live.said("l: the interface is back") == 1);
    // It may have its number again, and so the same name.
    let mut now = live.stored();
    now.dedup();
    assert_eq!((before.len(), now.len()), (2, 2), "{before:?} {now:?}");
    let (store, _) = live.left(Signal::KILL);
    // And while no process runs: then it is another interface.
    let store = next(store, &lab, &args, GOING_ON);
    lab.run("left", "ip link del dev eth");
    lab.bridge("left");
    let store = next(store, &lab, &args, REFUSED);
    next(store, &lab, &args, GOING_ON);
}
