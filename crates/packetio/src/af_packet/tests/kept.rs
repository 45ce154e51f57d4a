//! Rings that outlive the process that reads them: here the end of a reader, which leaves only
//! the socket without its mapping.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::super::reader::{RingReader, names};
use super::frames::{all, send};
use super::{assert_spread, config, one_of_several, rings_of_flows, sender};
use crate::af_packet::AF_PACKET;
use crate::backend::Opened;
use crate::kept::{AdoptError, Inherited};
use crate::open::{adopt, open};
use crate::rx::{Notice, Received};
use crate::settings::{Keeper, PortSettings};
use crate::sys;
use crate::tests::frames::{flows, mark, numbered};
use crate::tests::netns::Netns;

/// What a service manager does.
#[derive(Debug, Default)]
struct Store(Mutex<Vec<(String, OwnedFd)>>);

impl Keeper for Store {
    fn keep(&self, name: &str, socket: BorrowedFd<'_>) {
        let socket = socket.try_clone_to_owned().unwrap();
        self.0.lock().unwrap().push((name.to_owned(), socket));
    }

    fn forget(&self, name: &str) {
        self.0.lock().unwrap().retain(|(known, _)| known != name);
    }
}

impl Store {
    /// What the next process gets. In another order, which may be any.
    fn pass_on(&self) -> Vec<Inherited> {
        let kept = self.0.lock().unwrap();
        let pass = |(name, socket): &(String, OwnedFd)| Inherited {
            name: name.clone(),
            socket: socket.try_clone().unwrap(),
        };
        kept.iter().rev().map(pass).collect()
    }

    fn names(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(|(name, _)| name.clone()).collect()
    }

    /// The one ring that is kept, adopted.
    fn ring(&self, settings: &PortSettings) -> RingReader {
        let sockets = self.pass_on().into_iter().map(|it| it.socket).collect();
        RingReader::adopt_rings(settings, sockets).unwrap().remove(0)
    }
}

fn kept(settings: PortSettings) -> (Arc<Store>, PortSettings) {
    let store = Arc::new(Store::default());
    let keeper: Option<Arc<dyn Keeper>> = Some(store.clone());
    (store, PortSettings { keeper, ..settings })
}

/// Takes at least `least` frames, in bursts of 7; returns their numbers.
fn take(port: &mut RingReader, least: usize) -> Vec<u32> {
    let mut taken = Vec::new();
    while taken.len() < least {
        let burst = port.receive(7).unwrap();
        taken.extend((0..burst.len()).map(|i| mark(burst.bytes(i))));
    }
    taken
}

/// Frames of one length, with these numbers.
fn marked(numbers: std::ops::Range<u32>) -> Vec<Vec<u8>> {
    let with = |number: u32| {
        let mut frame = numbered(1).remove(0);
        frame.extend(number.to_be_bytes());
        frame
    };
    numbers.map(with).collect()
}

/// Often, so that it comes round several times, and meets blocks that are being filled, read or
/// given back.
#[test]
fn the_next_process_goes_on_where_the_one_before_has_left() {
    let Some(netns) = Netns::with_pair("the_next_process_goes_on_where_the_one_before_has_left")
    else {
        return;
    };
    netns.inside(|| {
        for block_timeout_ms in [1, 20] {
            let (store, settings) =
                kept(PortSettings { block_bytes: 4096, blocks: 16, block_timeout_ms, ..config() });
            let mut transmit = sender("a0");
            let mut port = RingReader::open(&settings).unwrap();
            let (mut sent, mut taken) = (0, Vec::new());
            for process in 0..60 {
                let more = 20 + process % 17;
                send(&mut transmit, marked(sent..sent + more));
                sent += more;
                let there = (sent as usize - taken.len()).saturating_sub(15);
                taken.extend(take(&mut port, there));
                port.leave();
                assert_eq!(all(&mut port).len(), 0, "it was left");
                drop(port);
                send(&mut transmit, marked(sent..sent + 10));
                sent += 10;
                port = store.ring(&settings);
            }
            taken.extend(all(&mut port).iter().map(|frame| mark(frame)));
            assert!(taken.iter().copied().eq(0..sent), "{taken:?}");
            let counts = port.counts();
            assert_eq!((counts.dropped, counts.waiting(), counts.seen), (0, 0, counts.received));
        }
    });
}

/// Only the burst that was being processed comes again.
#[test]
fn after_a_crash_the_last_burst_comes_again() {
    let Some(netns) = Netns::with_pair("after_a_crash_the_last_burst_comes_again") else {
        return;
    };
    netns.inside(|| {
        let (store, settings) = kept(PortSettings { block_timeout_ms: 20, ..config() });
        let mut port = RingReader::open(&settings).unwrap();
        send(&mut sender("a0"), marked(0..100));
        let taken = take(&mut port, 21);
        drop(port);
        send(&mut sender("a0"), marked(100..150));
        let mut port = store.ring(&settings);
        let again: Vec<_> = all(&mut port).iter().map(|frame| mark(frame)).collect();
        let first = again[0] as usize;
        assert!(first < taken.len() && taken.len() - first <= 7, "{taken:?} {again:?}");
        assert!(again.iter().copied().eq(first as u32..150), "{again:?}");
    });
}

/// The kernel stops where it finds the ring full, and goes on from there, wherever it stood when
/// the process ended.
#[test]
fn a_ring_that_was_full_goes_on() {
    let Some(netns) = Netns::with_pair("a_ring_that_was_full_goes_on") else {
        return;
    };
    netns.inside(|| {
        for read_before in [0, 5, usize::MAX] {
            let (store, settings) = kept(PortSettings {
                block_bytes: 4096,
                blocks: 4,
                // So long that the kernel does not look after the ring before the next frame.
                block_timeout_ms: 1000,
                ..config()
            });
            let mut port = RingReader::open(&settings).unwrap();
            send(&mut sender("a0"), marked(0..500));
            let held = (500 - port.counts().dropped) as usize;
            let mut taken = take(&mut port, read_before.min(held));
            port.leave();
            drop(port);
            let mut port = store.ring(&settings);
            let left = port.counts().waiting() as usize;
            assert_eq!(taken.len() + left, held);
            taken.extend(take(&mut port, left));
            assert!(taken.iter().copied().eq(0..held as u32), "{taken:?}");
            port.receive(7).unwrap();
            send(&mut sender("a0"), marked(500..540));
            let later: Vec<_> = take(&mut port, 1);
            assert_eq!(later[0], 500, "{read_before}");
        }
    });
}

#[test]
fn what_is_dropped_while_no_process_reads_is_counted() {
    let Some(netns) = Netns::with_pair("what_is_dropped_while_no_process_reads_is_counted") else {
        return;
    };
    netns.inside(|| {
        let (store, settings) = kept(PortSettings { block_bytes: 4096, blocks: 4, ..config() });
        let mut port = RingReader::open(&settings).unwrap();
        port.leave();
        drop(port);
        send(&mut sender("a0"), marked(0..500));
        let mut port = store.ring(&settings);
        let received = all(&mut port);
        assert!(received == marked(0..received.len() as u32));
        let counts = port.counts();
        assert_eq!((counts.seen, counts.received), (500, received.len() as u64));
        assert_eq!(counts.dropped, 500 - counts.received);
    });
}

fn receive(ports: &mut [Opened]) -> usize {
    let mut frames = 0;
    let mut idle = 0;
    while idle < 200 {
        idle += 1;
        for port in &mut *ports {
            if let Received::Burst(burst) = port.rx.receive(64).unwrap() {
                frames += burst.len();
                idle = 0;
            }
        }
    }
    frames
}

/// Through the traits, and with an interface that goes and comes back.
#[test]
fn several_rings_are_adopted_together_and_kept_anew_with_their_interface() {
    let Some(netns) =
        Netns::with_pair("several_rings_are_adopted_together_and_kept_anew_with_their_interface")
    else {
        return;
    };
    netns.inside(|| {
        let (store, settings) = kept(one_of_several());
        let mut before = RingReader::open_rings(&settings, 3).unwrap();
        send(&mut sender("a0"), flows(false));
        let known = rings_of_flows(&mut before);
        assert_spread(&known, 3);
        before.iter_mut().for_each(RingReader::leave);
        drop(before);
        send(&mut sender("a0"), flows(false));
        let mut sockets = store.pass_on();
        sockets.sort_by(|a, b| a.name.cmp(&b.name));
        let sockets = sockets.into_iter().map(|it| it.socket).collect();
        let mut after = RingReader::adopt_rings(&settings, sockets).unwrap();
        assert_eq!(rings_of_flows(&mut after), known);
        assert_eq!(store.names(), names(&settings, 3).unwrap());

        after.iter_mut().for_each(RingReader::leave);
        drop(after);
        let each = std::slice::from_ref(&settings);
        let mut ports = adopt(each, 3, store.pass_on()).unwrap().remove(0);
        netns.run("ip link del b0");
        while !ports.iter().all(|port| port.rx.is_lost()) {
            receive(&mut ports);
        }
        netns.add_pair();
        while ports.iter().any(|port| port.rx.is_lost()) {
            receive(&mut ports);
        }
        let now = names(&settings, 3).unwrap();
        assert_eq!(store.names(), now, "the old ones are forgotten");
        assert!(ports.iter_mut().all(|port| port.rx.notify(Notice::Leave)));
        drop(ports);
        send(&mut sender("a0"), flows(false));
        let mut ports = adopt(each, 3, store.pass_on()).unwrap().remove(0);
        assert_eq!(receive(&mut ports), 1800);
        assert!(ports.iter_mut().all(|port| {
            let counts = port.rx.counts();
            (counts.missing, counts.offered) == (0, counts.received)
        }));
    });
}

#[test]
fn rings_that_do_not_fit_are_refused() {
    let Some(netns) = Netns::with_pair("rings_that_do_not_fit_are_refused") else {
        return;
    };
    netns.inside(|| {
        let (store, settings) = kept(one_of_several());
        let open = |settings: &PortSettings, rings| {
            open(&AF_PACKET, std::slice::from_ref(settings), rings).unwrap()
        };
        let adopt = |settings: &PortSettings, rings, inherited| {
            adopt(std::slice::from_ref(settings), rings, inherited).map(drop)
        };
        drop(open(&settings, 2));
        let other = PortSettings { blocks: 64, ..settings.clone() };
        for (settings, rings) in [(&other, 2), (&settings, 3), (&settings, 1)] {
            let error = adopt(settings, rings, store.pass_on()).unwrap_err();
            assert!(matches!(error, AdoptError::Missing { .. }), "{error}");
            assert!(error.to_string().starts_with("b0: no ring was kept that is fenxi-ring-1 if"));
        }
        adopt(&settings, 2, store.pass_on()).unwrap();

        // A socket that is not what its name says.
        let refused = |socket: OwnedFd| {
            let mut inherited = store.pass_on();
            inherited[0].socket = socket;
            adopt(&settings, 2, inherited).unwrap_err().to_string()
        };
        let unbound = refused(sys::packet_socket().unwrap());
        assert_eq!(unbound, "b0: ring 1 was kept, but its interface is gone");
        let (alone, own) = kept(one_of_several());
        drop(open(&own, 1));
        let alone = refused(alone.pass_on().remove(0).socket);
        assert_eq!(alone, "b0: ring 1 was kept, but it is not one of a group of as many rings");
        let (longer, own) = kept(other);
        drop(open(&own, 1));
        let mut inherited = longer.pass_on();
        inherited[0].name = names(&settings, 1).unwrap().remove(0);
        let longer = adopt(&settings, 1, inherited).unwrap_err().to_string();
        assert!(longer.starts_with("b0: the kept receive ring cannot be mapped: "), "{longer}");
        let mut inherited = store.pass_on();
        let elsewhere = Netns::with_pair("elsewhere").unwrap();
        let there = elsewhere.inside(|| {
            let socket = sys::packet_socket().unwrap();
            let interface = crate::interface::Interface::open("b0").unwrap();
            sys::bind(socket.as_fd(), interface.index as i32, sys::ALL_PROTOCOLS).unwrap();
            socket
        });
        inherited[0].socket = there;
        let error = adopt(&settings, 2, inherited).unwrap_err().to_string();
        assert_eq!(error, "b0: ring 1 was kept, but it is in another network namespace");

        netns.run("ip link del b0");
        netns.add_pair();
        let error = adopt(&settings, 2, store.pass_on()).unwrap_err();
        assert!(matches!(error, AdoptError::Missing { .. }), "another interface: {error}");
    });
}

/// Behind a slow wire a sender that is to catch up loses nothing, where another one drops.
#[test]
fn what_waited_is_not_sent_faster_than_the_interface_takes_it() {
    const TEST: &str = "what_waited_is_not_sent_faster_than_the_interface_takes_it";
    let Some(netns) = Netns::with_pair(TEST) else {
        return;
    };
    netns.run("tc qdisc add dev a0 root tbf rate 100mbit burst 20kb limit 60mb");
    let frames: Vec<Vec<u8>> = (0..8000).map(|_| vec![2; 1514]).collect();
    netns.inside(|| {
        for is_patient in [false, true] {
            let mut transmit = sender("a0");
            if is_patient {
                transmit.be_patient(Duration::from_secs(60));
            }
            send(&mut transmit, &frames);
            let counts = transmit.counts;
            assert_eq!(counts.refused == 0, is_patient, "{counts:?}");
            assert_eq!(counts.sent + counts.refused, 8000);
        }
    });
}
