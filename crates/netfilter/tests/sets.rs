//! Elements of real sets of nftables: they appear, rules act on them, they go. Needs root and nft;
//! skipped by name without.
#![allow(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

mod common;

use std::time::{Duration, Instant};

use common::lab::Lab;
use common::settled;
use netfilter::conntrack::Tuple;
use netfilter::counts::Cause;
use netfilter::elements::{self, Members};
use netfilter::nft_set::Field;
use netfilter::writer::{StartError, Writer};

fn lab(test: &str, sets: &str) -> Option<Lab> {
    let lab = Lab::new(test, &["host"], &["nft"])?;
    lab.run("host", "ip link set lo up");
    lab.nft("host", &format!("table inet t {{\n{sets}\n}}"));
    Some(lab)
}

fn members(fields: &[&str], timeout_ms: u64) -> Members {
    let fields = fields.iter().map(|name| Field::parse(name).unwrap());
    Members { set: "inet t s".parse().unwrap(), fields: fields.collect(), timeout_ms }
}

/// `updates`: as this kernel may or may not.
fn start(lab: &Lab, members: &Members, updates: bool) -> Result<Writer, StartError> {
    lab.on("host", || {
        let (socket, key) = elements::open(members)?;
        let write = elements::writer(members, socket, key, updates);
        Writer::start("set", [1].into_iter(), 4096, write)
    })
}

fn tuple(source: &str, destination: &str) -> Tuple {
    Tuple {
        zone: 0,
        protocol: 6,
        source: (source.parse().unwrap(), 40_000),
        destination: (destination.parse().unwrap(), 22),
    }
}

fn listed(lab: &Lab) -> String {
    lab.run("host", "nft list set inet t s")
}

/// Seconds that an element still has, as nft lists them ("expires 59s990ms").
fn expires_ms(lab: &Lab) -> u64 {
    let text = listed(lab);
    let text = text.split("expires ").nth(1).unwrap().split([' ', '\n', ',']).next().unwrap();
    let (seconds, rest) = text.split_once('s').unwrap();
    let ms = rest.trim_end_matches("ms");
    seconds.parse::<u64>().unwrap() * 1000 + ms.parse().unwrap_or(0)
}

#[test]
fn an_element_appears_with_its_timeout_is_refreshed_and_goes() {
    for updates in [elements::kernel_updates(), false] {
        let sets = "set s { type ipv4_addr; flags timeout; }
            counter hits { }
            chain c { type filter hook output priority 0; ip saddr @s counter name hits; }
";
        let Some(lab) = lab(&format!("refresh-{updates}"), sets) else {
            return;
        };
        let from = |address| tuple(address, "192.0.2.1");
        let long = start(&lab, &members(&["originator_address"], 50_000), updates).unwrap();
        long.set(from("127.0.0.1"), 0);
        assert_eq!(settled(&long).written, 1);
        assert!(listed(&lab).contains("127.0.0.1 timeout 50s expires 4"), "{}", listed(&lab));
        let before = expires_ms(&lab);
        std::thread::sleep(Duration::from_millis(2500));
        let aged = expires_ms(&lab);
        assert!(aged + 1000 < before, "{before} {aged}");
        // The same twice in a batch, and one of the other family.
        for address in ["127.0.0.1", "127.0.0.1", "::1"] {
            long.set(from(address), 0);
        }
        let counts = settled(&long);
        assert_eq!(
            (counts.written, counts.refreshed, counts.other_family),
            (1, 2, 1),
            "{counts:?}"
        );
        assert!(expires_ms(&lab) > aged, "{aged} {}", listed(&lab));

        // A rule acts on it while it is there.
        let hit = "nft list counter inet t hits | grep -o 'packets [0-9]*'";
        let ping = "python3 -c \"import socket; socket.socket(socket.AF_INET, \
            socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))\"";
        lab.run("host", ping);
        assert_ne!(lab.run("host", hit).trim(), "packets 0");
        let short = start(&lab, &members(&["originator_address"], 300), updates).unwrap();
        short.set(from("127.0.0.1"), 0);
        short.set(from("127.0.0.7"), 0);
        let counts = settled(&short);
        assert_eq!((counts.refreshed, counts.written), (1, 1), "{counts:?}");
        let deadline = Instant::now() + Duration::from_secs(20);
        while listed(&lab).contains("127.0.0") {
            assert!(Instant::now() < deadline, "{}", listed(&lab));
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn a_key_may_be_of_several_fields_in_both_families() {
    let types = [
        ("ipv4_addr . inet_service . ipv4_addr . inet_service", ["10.0.0.1", "192.0.2.9"]),
        ("ipv6_addr . inet_service . ipv6_addr . inet_service", ["fd00::1", "fd00::2"]),
    ];
    for (at, (of_type, [from, to])) in types.into_iter().enumerate() {
        let set = format!("set s {{ type {of_type}; flags timeout; timeout 1h; }}");
        let Some(lab) = lab(&format!("tuple-{at}"), &set) else {
            return;
        };
        let fields =
            ["originator_address", "originator_port", "responder_address", "responder_port"];
        let writer = start(&lab, &members(&fields, 0), true).unwrap();
        writer.set(tuple(from, to), 0);
        assert_eq!(settled(&writer).written, 1, "{:?}", writer.counts());
        let wanted = format!("{from} . 40000 . {to} . 22 expires 59m");
        assert!(listed(&lab).contains(&wanted), "{}", listed(&lab));
    }
    let set = "set s { type inet_proto . ipv4_addr . inet_service; flags timeout; }";
    let Some(lab) = lab("tuple-proto", set) else {
        return;
    };
    let fields = ["protocol", "responder_address", "responder_port"];
    let writer = start(&lab, &members(&fields, 9000), true).unwrap();
    writer.set(tuple("10.0.0.1", "192.0.2.9"), 0);
    settled(&writer);
    assert!(listed(&lab).contains("tcp . 192.0.2.9 . 22 timeout 9s"), "{}", listed(&lab));
}

/// What finds no room is counted, what was there before and what fits is written.
#[test]
fn a_full_set_is_counted_and_the_rest_of_the_batch_is_written() {
    let Some(lab) = lab("full", "set s { type ipv4_addr; size 10; flags timeout; }") else {
        return;
    };
    let writer = start(&lab, &members(&["originator_address"], 60_000), true).unwrap();
    for host in 1..=40 {
        writer.set(tuple(&format!("10.0.0.{host}"), "192.0.2.1"), 0);
    }
    let counts = settled(&writer);
    assert_eq!((counts.written, counts.failed_by(Cause::Full)), (10, 30), "{counts:?}");
    assert_eq!(listed(&lab).matches("expires").count(), 10);
    writer.set(tuple("10.0.0.1", "192.0.2.1"), 0);
    assert_eq!(settled(&writer).refreshed, 1);
}

#[test]
fn a_set_that_is_deleted_is_not_found_until_it_is_back() {
    let set = "set s { type ipv4_addr; flags timeout; }";
    let Some(lab) = lab("gone", set) else {
        return;
    };
    let writer = start(&lab, &members(&["originator_address"], 60_000), true).unwrap();
    lab.run("host", "nft delete table inet t");
    writer.set(tuple("10.0.0.1", "192.0.2.1"), 0);
    assert_eq!(settled(&writer).not_found, 1);
    lab.nft("host", &format!("table inet t {{\n{set}\n}}"));
    writer.set(tuple("10.0.0.1", "192.0.2.1"), 0);
    let counts = settled(&writer);
    assert_eq!((counts.written, counts.not_found), (1, 1), "{counts:?}");
    // Back as another type: refused, not written as something else.
    lab.run(
        "host",
        "nft delete set inet t s && nft add set inet t s '{ type ipv6_addr; flags timeout; }'",
    );
    writer.set(tuple("10.0.0.1", "192.0.2.1"), 0);
    let counts = settled(&writer);
    assert_eq!(counts.failed(), 1, "{counts:?}");
}

#[test]
fn a_set_that_does_not_fit_is_named_with_its_cure() {
    let Some(lab) = lab("unfit", "set s { type ipv4_addr . inet_service; }") else {
        return;
    };
    let refusal =
        |fields: &[&str]| start(&lab, &members(fields, 1000), true).err().unwrap().to_string();
    assert_eq!(
        refusal(&["originator_address"]),
        "the set inet t s has no timeouts; declare it with \"flags timeout\""
    );
    let declare = |of: &str| {
        lab.run("host", &format!("nft delete set inet t s && nft add set inet t s '{{ {of} }}'"));
    };
    declare("type ipv4_addr . inet_service; flags timeout;");
    let error = refusal(&["originator_address"]);
    assert!(error.contains("has type ipv4_addr . inet_service"), "{error}");
    declare("typeof ip saddr; flags timeout;");
    assert!(start(&lab, &members(&["originator_address"], 1000), true).is_ok());
    declare("type ipv4_addr; flags interval, timeout;");
    assert!(refusal(&["originator_address"]).contains("interval"));
    lab.run(
        "host",
        "nft delete set inet t s && nft add map inet t s '{ type ipv4_addr : mark; \
        flags timeout; }'",
    );
    assert!(refusal(&["originator_address"]).contains("is a map"));
    lab.run("host", "nft delete table inet t");
    let error = refusal(&["originator_address", "originator_port"]);
    assert!(
        error.starts_with(
            "there is no set inet t s; add it: nft 'add table inet t; add set inet t \
            s { type ipv4_addr . inet_service;"
        ),
        "{error}"
    );
    // The command that it gives makes a set that fits.
    let cure = error.split_once("add it: ").unwrap().1;
    lab.run("host", cure);
    assert!(start(&lab, &members(&["originator_address", "originator_port"], 1000), true).is_ok());
    let error = lab.on("host", || {
        let mut capabilities = rustix::thread::capabilities(None).unwrap();
        capabilities.effective.remove(rustix::thread::CapabilitySet::NET_ADMIN);
        rustix::thread::set_capabilities(None, capabilities).unwrap();
        elements::open(&members(&["originator_address", "originator_port"], 1000)).err().unwrap()
    });
    assert!(matches!(error, StartError::Capability { .. }), "{error}");
}
