//! Labels on real connections, read back by `conntrack` and matched by nftables. Needs root and the
//! programs; skipped by name without.
#![allow(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

mod common;

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use common::lab::Lab;
use common::settled;
use netfilter::connections::{self, Wording};
use netfilter::connlabel;
use netfilter::conntrack::{Change, Tuple};
use netfilter::counts::Cause;
use netfilter::writer::Writer;

const WORDING: Wording = Wording { doing: "labelling connections", what: "connection labels" };

fn lab(test: &str) -> Option<Lab> {
    let lab = Lab::new(test, &["host"], &["nft", "conntrack"])?;
    lab.run("host", "ip link set lo up");
    lab.nft(
        "host",
        "table inet t {
            chain c {
                type filter hook output priority 0
                ct state new counter
            }
        }",
    );
    Some(lab)
}

/// Two sockets, and the tuple of the connection that the first word makes.
fn sockets(lab: &Lab) -> ([UdpSocket; 2], Tuple) {
    lab.on("host", || {
        let [near, far] = [0; 2].map(|port| UdpSocket::bind(("127.0.0.1", port)).unwrap());
        near.connect(far.local_addr().unwrap()).unwrap();
        let [source, destination] = [&near, &far].map(|socket| {
            let address = socket.local_addr().unwrap();
            (address.ip(), address.port())
        });
        let tuple = Tuple { zone: 0, protocol: 17, source, destination };
        ([near, far], tuple)
    })
}

/// The same after a word; the sockets live on.
fn speak(lab: &Lab) -> ([UdpSocket; 2], Tuple) {
    let (sockets, tuple) = sockets(lab);
    sockets[0].send(b"word").unwrap();
    (sockets, tuple)
}

/// A writer whose word n is label n - 1, in place of all labels under the mask.
fn writer(lab: &Lab, mask: u128, overwrites: bool) -> Writer {
    lab.on("host", || {
        let socket = connections::open(Change::Labels { bits: 0, mask: 0 }, WORDING).unwrap();
        let change = move |word: u64| Change::Labels { bits: 1 << (word - 1), mask };
        let write = connections::writer(socket, Arc::new(AtomicBool::new(overwrites)), change);
        Writer::start("labels", 1..=128, 64, write).unwrap()
    })
}

fn labels(lab: &Lab, tuple: &Tuple) -> String {
    let port = tuple.source.1;
    let line = format!("conntrack -L -p udp --orig-port-src {port} -o labels");
    let listed = with_names(lab, &line);
    let labels = listed.split("labels=").nth(1).unwrap_or_default();
    labels.split_whitespace().next().unwrap_or_default().to_owned()
}

/// What a line prints where the tools find names for labels, in an /etc of its own.
fn with_names(lab: &Lab, line: &str) -> String {
    let etc = tempfile::tempdir().unwrap();
    let names = "1 one\n3 ssh\n100 other\n127 last\n";
    std::fs::create_dir(etc.path().join("xtables")).unwrap();
    for file in connlabel::PLACES {
        std::fs::write(etc.path().join(file.strip_prefix("/etc/").unwrap()), names).unwrap();
    }
    lab.run("host", &format!("mount --bind {} /etc && {line}", etc.path().display()))
}

/// The kernel gives a connection room for labels when it begins, and only while some rule has to do
/// with labels.
#[test]
fn without_a_rule_about_labels_there_is_no_room_and_the_cause_is_counted() {
    let Some(lab) = lab("no-labels") else {
        return;
    };
    let writer = writer(&lab, u128::MAX, true);
    let (_old, old) = speak(&lab);
    writer.set(old, 1);
    let counts = settled(&writer);
    assert_eq!(counts.failed_by(Cause::NoLabels), 1, "{counts:?}");
    lab.run("host", "nft add rule inet t c ct label 5 counter");
    writer.set(old, 1);
    let counts = settled(&writer);
    assert_eq!(counts.failed_by(Cause::NoLabels), 2, "one that began before");
    let (_new, new) = speak(&lab);
    writer.set(new, 1);
    let counts = settled(&writer);
    assert_eq!(counts.written, 1, "{counts:?}");
    assert_eq!(labels(&lab, &new), "one");
}

/// Another writer (a rule) has label 100; ours are 1, 3 and 127, of which a connection has one at a
/// time.
#[test]
fn a_label_changes_no_bit_of_another_writer_and_rules_match_it() {
    let Some(lab) = lab("labels") else {
        return;
    };
    with_names(
        &lab,
        "nft add counter inet t ssh && nft add rule inet t c ct label set other && \
         nft add rule inet t c ct label ssh counter name ssh",
    );
    let mask = 1 << 127 | 1 << 3 | 1 << 1;
    let (first, keeping) = (writer(&lab, mask, true), writer(&lab, mask, false));
    let ([near, _far], tuple) = speak(&lab);
    assert_eq!(labels(&lab, &tuple), "other");
    first.set(tuple.reversed(), 3);
    assert_eq!(settled(&first).written, 1);
    assert_eq!(labels(&lab, &tuple), "ssh,other");
    near.send(b"word").unwrap();
    let counter = lab.run("host", "nft list counter inet t ssh");
    assert!(counter.contains("packets 1"), "{counter}");

    // One that keeps what is there sees ours and no other's.
    keeping.set(tuple, 127);
    assert_eq!(settled(&keeping).kept, 1);
    assert_eq!(labels(&lab, &tuple), "ssh,other");
    first.set(tuple, 127);
    assert_eq!(settled(&first).written, 2);
    assert_eq!(labels(&lab, &tuple), "other,last");
    near.send(b"word").unwrap();
    let counter = lab.run("host", "nft list counter inet t ssh");
    assert!(counter.contains("packets 1"), "no longer label 3: {counter}");
    // Neither tuple of a deleted connection is found.
    lab.run("host", "conntrack -D -p udp");
    first.set(tuple, 3);
    assert_eq!(settled(&first).not_found, 1);
    let (_sockets, other) = speak(&lab);
    keeping.set(other, 1);
    assert_eq!(settled(&keeping).written, 1, "label 100 is not ours");
}

/// As for a flow that its port names while its first packet is still on its way through the router.
#[test]
fn a_connection_that_begins_right_after_its_label_gets_it() {
    let Some(lab) = lab("early") else { return };
    lab.run("host", "nft add rule inet t c ct label 5 counter");
    for overwrites in [false, true] {
        let writer = writer(&lab, u128::MAX, overwrites);
        let (sockets, tuple) = sockets(&lab);
        writer.set(tuple, 3);
        // The first try is over, and the second not yet due, on any machine that is not very slow.
        std::thread::sleep(Duration::from_millis(3));
        sockets[0].send(b"word").unwrap();
        let counts = settled(&writer);
        assert_eq!((counts.written, counts.not_found), (1, 0), "{counts:?}");
    }
}
