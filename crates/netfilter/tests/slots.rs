//! Slots of real maps of nftables: new connections follow their weights, old ones stay. Needs root
//! and nft; skipped by name without.
#![allow(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

#[path = "../../../tests/common/lab.rs"]
#[allow(dead_code, reason = "each test uses its own part")]
mod lab;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lab::Lab;
use netfilter::slots::Slots;
use netfilter::writer::StartError;

const SLOTS: usize = 256;
const RULE: &str = "tcp dport 80 dnat to jhash ip saddr . tcp sport mod 256 map @servers";

/// A client, a router with this map and rule, and two servers on one host.
fn lab(test: &str, map: &str, rule: &str) -> Option<Lab> {
    let lab = Lab::routed(test, false, &[])?;
    lab.run("server", "ip addr add 10.77.2.3/24 dev eth");
    lab.nft(
        "router",
        &format!(
            "table ip balance {{
            map servers {{ {map} }}
            chain to {{ type nat hook prerouting priority dstnat; {rule}; }}
            }}"
        ),
    );
    let serve = lab.entering("server", || {
        let listener = TcpListener::bind("0.0.0.0:80").unwrap();
        std::thread::spawn(move || listener.incoming().flatten().for_each(serve));
    });
    std::thread::spawn(serve).join().unwrap();
    Some(lab)
}

/// Answers each byte with the last byte of the server's address.
fn serve(mut stream: TcpStream) {
    std::thread::spawn(move || {
        let SocketAddr::V4(own) = stream.local_addr()? else {
            return Ok(());
        };
        while stream.read(&mut [0])? > 0 {
            stream.write_all(&own.ip().octets()[3..])?;
        }
        Ok::<_, std::io::Error>(())
    });
}

fn servers() -> [SocketAddr; 2] {
    ["10.77.2.2:80", "10.77.2.3:80"].map(|server| server.parse().unwrap())
}

fn open(lab: &Lab) -> Result<Slots, StartError> {
    lab.on("router", || Slots::open(&"ip balance servers".parse().unwrap(), SLOTS, &servers()))
}

fn connect() -> std::io::Result<TcpStream> {
    TcpStream::connect_timeout(&"10.77.1.1:80".parse().unwrap(), Duration::from_secs(5))
}

/// 0 or 1: the server at the other end.
fn server_of(stream: &mut TcpStream) -> usize {
    let mut byte = [0];
    stream.write_all(&byte).unwrap();
    stream.read_exact(&mut byte).unwrap();
    usize::from(byte[0] - 2)
}

#[test]
fn new_connections_follow_weights_and_old_ones_stay() {
    let map = "typeof numgen inc mod 256 : ip daddr;";
    let Some(lab) = lab("weights", map, RULE) else {
        return;
    };
    let mut slots = open(&lab).unwrap();
    assert_eq!(slots.write(&[1.0, 0.0]).unwrap(), SLOTS);
    lab.on("client", || {
        let mut old = connect().unwrap();
        assert_eq!(server_of(&mut old), 0);
        assert_eq!(slots.write(&[0.0, 0.5]).unwrap(), SLOTS);
        assert_eq!([server_of(&mut old), server_of(&mut connect().unwrap())], [0, 1]);

        assert_eq!(slots.write(&[1.0, 2.0]).unwrap(), 85);
        let count = 1500;
        let second: usize = (0..count).map(|_| server_of(&mut connect().unwrap())).sum();
        let share = 171.0 / 256.0;
        let sigma = (share * (1.0 - share) / f64::from(count)).sqrt();
        let seen = second as f64 / f64::from(count);
        assert!((seen - share).abs() < 5.0 * sigma, "{seen} of the connections, not {share}");
        assert_eq!(server_of(&mut old), 0);
    });
    assert_eq!(slots.write(&[1.0, 2.0]).unwrap(), 0);
    // Another process goes on from what the map has.
    assert_eq!(open(&lab).unwrap().write(&[1.0, 1.0]).unwrap(), 43);
    // What someone else has changed is put right: when it is in the way, or once it is read.
    let change = "nft delete element ip balance servers '{ 0, 1 }' &&
        nft add element ip balance servers '{ 0 : 192.0.2.1 }'";
    slots.read().unwrap();
    slots.write(&[1.0, 0.0]).unwrap();
    lab.run("router", change);
    assert_ne!(slots.write(&[0.0, 1.0]).unwrap(), 0);
    lab.run("router", change);
    assert_eq!(slots.write(&[0.0, 1.0]).unwrap(), 0);
    slots.read().unwrap();
    assert_eq!(slots.write(&[0.0, 1.0]).unwrap(), 2);
    let listed = lab.run("router", "nft list map ip balance servers");
    assert_eq!(listed.matches(": 10.77.2.3").count(), SLOTS, "{listed}");
}

/// Every rewrite changes every slot, and no connection finds one missing. Prints how long rewrites
/// take: once one returns, the next connection goes by it.
#[test]
fn a_thousand_rewrites_refuse_no_connection() {
    for size in ["", "size 256;"] {
        let map = format!("typeof numgen inc mod 256 : ip daddr; {size}");
        let Some(lab) = lab(&format!("hammer-{}", size.len()), &map, RULE) else {
            return;
        };
        let mut slots = open(&lab).unwrap();
        slots.write(&[1.0, 0.0]).unwrap();
        let is_over = AtomicBool::new(false);
        let (made, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let hammer = || {
            lab.entering("client", || {
                while !is_over.load(Ordering::Relaxed) {
                    let counted = match connect() {
                        Ok(mut stream) => {
                            server_of(&mut stream);
                            &made
                        }
                        Err(error) if error.kind() == ErrorKind::ConnectionRefused => &refused,
                        Err(error) => panic!("{error}"),
                    };
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let (mut took, mut failed) = (Vec::new(), 0);
        std::thread::scope(|scope| {
            (0..2).for_each(|_| drop(scope.spawn(hammer())));
            let deadline = Instant::now() + Duration::from_secs(20);
            // On a busy machine few connections come between two rewrites.
            while took.len() < 1000
                || made.load(Ordering::Relaxed) < 2000 && Instant::now() < deadline
            {
                let weights = if took.len() % 2 == 0 { [0.0, 1.0] } else { [1.0, 0.0] };
                let start = Instant::now();
                failed += usize::from(slots.write(&weights).ok() != Some(SLOTS));
                took.push(start.elapsed());
            }
            is_over.store(true, Ordering::Relaxed);
        });
        let (made, refused) = (made.into_inner(), refused.into_inner());
        let rewrites = took.len();
        took.sort();
        println!(
            "map {size:9} {rewrites} rewrites of {SLOTS} slots: p50 {:?}, p99 {:?}; \
             {made} connections, {refused} refused",
            took[rewrites / 2],
            took[rewrites * 99 / 100]
        );
        assert!(made > 0 && refused == 0 && failed == 0, "{refused} refused, {failed} failed");

        let mut took = Vec::new();
        lab.on("client", || {
            for round in 0..200 {
                let start = Instant::now();
                let weights = if round % 2 == 0 { [0.0, 1.0] } else { [1.0, 0.0] };
                slots.write(&weights).unwrap();
                took.push(start.elapsed());
                assert_eq!(server_of(&mut connect().unwrap()), (round + 1) % 2);
            }
        });
        took.sort();
        println!("map {size:9} call to effect, quiet: p50 {:?}, p99 {:?}", took[100], took[198]);
        // The median of a busy machine says little.
        assert!(took[50] < Duration::from_millis(1), "{:?}", took[50]);
    }
}

#[test]
fn values_may_have_a_port() {
    let rule = "tcp dport 80 dnat ip to jhash ip saddr . tcp sport mod 256 map @servers";
    let map = "typeof numgen inc mod 256 : ip daddr . tcp dport;";
    let Some(lab) = lab("port", map, rule) else {
        return;
    };
    let mut slots = open(&lab).unwrap();
    slots.write(&[0.0, 1.0]).unwrap();
    lab.on("client", || assert_eq!(server_of(&mut connect().unwrap()), 1));
}

#[test]
fn a_map_that_does_not_fit_is_named_with_its_cure() {
    let Some(lab) = lab("unfit", "type mark : ipv4_addr;", "counter") else {
        return;
    };
    let refusal = || open(&lab).err().unwrap().to_string();
    assert_eq!(
        refusal(),
        "the map ip balance servers has keys of type 19; declare it with \
         \"typeof numgen inc mod N : ip daddr\""
    );
    let declare = |what: &str| {
        let name = "ip balance servers";
        let line = format!("nft delete map {name}; nft add {}", what.replace('@', name));
        lab.run("router", &line);
    };
    declare("map @ '{ typeof numgen inc mod 256 : ip6 daddr; }'");
    assert!(refusal().contains("has values of ipv6_addr"), "{}", refusal());
    declare("set @ '{ type ipv4_addr; }'");
    assert!(refusal().contains("is a set; name a map"), "{}", refusal());
    lab.run("router", "nft delete set ip balance servers");
    let error = refusal();
    let cure = error.strip_prefix("there is no map ip balance servers; add it: ").unwrap();
    lab.run("router", cure);
    let mut slots = open(&lab).unwrap();
    slots.write(&[1.0, 1.0]).unwrap();

    lab.run("router", "nft delete table ip balance");
    assert_eq!(
        slots.write(&[1.0, 2.0]).unwrap_err().to_string(),
        "the map ip balance servers is gone; load its ruleset again"
    );
    let error = lab.on("router", || {
        let mut capabilities = rustix::thread::capabilities(None).unwrap();
        capabilities.effective.remove(rustix::thread::CapabilitySet::NET_ADMIN);
        rustix::thread::set_capabilities(None, capabilities).unwrap();
        Slots::open(&"ip balance servers".parse().unwrap(), SLOTS, &servers()).err().unwrap()
    });
    assert!(matches!(error, StartError::Capability { .. }), "{error}");
}
