use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::key::{Key, TCP, UDP};

fn memory(cells: usize) -> Memory {
    Memory::new(cells, 7).unwrap()
}

fn hashes(memory: &Memory, protocol: u8, server: &str, port: u16) -> Hashes {
    let server: IpAddr = server.parse().unwrap();
    let client: IpAddr =
        if server.is_ipv6() { "2001:db8:ffff::1" } else { "198.51.100.7" }.parse().unwrap();
    let key = Key::from_ends(protocol, (client, 40_000), (server, port));
    memory.table.hashes(&key, key.ends(true).1 == (server, port))
}

fn begin(memory: &mut Memory, protocol: u8, server: &str, at_us: i64) -> [f32; LOCAL] {
    let hashes = hashes(memory, protocol, server, 443);
    memory.begin(hashes, at_us)
}

fn end(memory: &mut Memory, protocol: u8, server: &str, volume: u64, lasted_us: u64) {
    let hashes = hashes(memory, protocol, server, 443);
    memory.end(hashes, volume, lasted_us, 0);
}

#[track_caller]
fn assert_near(found: [f32; LOCAL], expected: [f64; LOCAL]) {
    for (found, expected) in found.into_iter().zip(expected) {
        assert!((f64::from(found) - expected).abs() < 1e-5, "{found} instead of {expected}");
    }
}

/// `models/train/fenxi_train/servers.py` has computed the figures.
#[test]
fn features_are_those_of_the_reference() {
    let memory = &mut memory(1 << 12);
    let nothing = [12.220947265625, 12.0, 16.0, 0.0, 31.676380634773523];
    assert_near(NOTHING_KNOWN, nothing);
    assert_near(begin(memory, TCP, "192.0.2.1", 0), nothing);
    let again = begin(memory, TCP, "192.0.2.1", 3_000_000);
    assert_near(again, [12.220947265625, 12.0, 16.0, 0.0, 21.430511951446533]);
    end(memory, TCP, "192.0.2.1", 14_000_000, 20_000_000);
    assert_near(
        begin(memory, TCP, "192.0.2.1", 60_000_000),
        [23.339382648468018, 21.363956311602653, 22.573901754102593, 1.0, 25.698732405900955],
    );
    end(memory, TCP, "192.0.2.1", 5000, 100_000);
    assert_near(
        begin(memory, TCP, "192.0.2.9", 61_000_000),
        [22.460984468460083, 17.201821379363537, 19.81411936506629, 0.0, 31.676380634773523],
    );
    assert_near(
        begin(memory, UDP, "2001:db8::1", 62_000_000),
        [21.670718669891357, 14.972469359636307, 18.17949678003788, 0.0, 31.676380634773523],
    );
    end(memory, UDP, "2001:db8::1", 0, 0);
    assert_near(
        begin(memory, UDP, "2001:db8::2", 63_000_000),
        [20.188066482543945, 5.3235446612040205, 6.463821077346801, 0.0, 31.676380634773523],
    );
    let known = [22.544371366500854, 17.199068315327168, 19.63206904307008, 2.0];
    let [a, b, c, d] = known;
    assert_near(begin(memory, TCP, "192.0.2.1", 61_500_000), [a, b, c, d, 20.43051242828369]);
    // Time has stepped back.
    assert_near(begin(memory, TCP, "192.0.2.1", 61_000_000), [a, b, c, d, 0.0]);
    for i in 0..40 {
        end(memory, TCP, "192.0.2.1", 1_000_000 + 1000 * i, 1_000_000);
    }
    assert_near(
        begin(memory, TCP, "192.0.2.1", 9_000_000_000),
        [20.232563018798828, 19.854796840359587, 19.927768426697856, 32.0, 31.676380634773523],
    );
    assert_eq!((memory.table.counters.unknown, memory.table.counters.evicted), (5, 0));
}

#[test]
fn logarithms_are_exact_at_powers_of_two_and_rise_between() {
    for power in 0..52 {
        assert_eq!(log2((1 << power) - 1), f64::from(power));
    }
    let values: Vec<f64> = (0..10_000).map(log2).collect();
    assert!(values.is_sorted_by(|a, b| a < b));
    let by_the_book = |x: i64| {
        let whole = (x + 1).ilog2();
        f64::from(whole) + ((x + 1) - (1 << whole)) as f64 / (1_i64 << whole) as f64
    };
    assert!(values.iter().zip(0..).all(|(found, x)| *found == by_the_book(x)));
    assert!(log2(NUMBER_MAX as i64) < log2(i64::MAX));
}

/// As many servers as the flood of the promise, 100,000 in a second, each with one flow. The
/// thousand busiest have four flows of 300 kB, as many as come in a minute of calm.
#[test]
fn a_flood_of_servers_leaves_the_busiest() {
    let memory = &mut memory(1 << 18);
    let of = |memory: &Memory, number: u32, port: u16| {
        let server = IpAddr::from(number.to_be_bytes());
        let client = IpAddr::from([198, 51, 100, 7]);
        let key = Key::from_ends(TCP, (client, 40_000), (server, port));
        memory.table.hashes(&key, key.ends(true).1 == (server, port))
    };
    // All in networks of their own.
    let busy: Vec<Hashes> = (0..1000).map(|it| of(memory, 0x0a00_0000 + (it << 8), 443)).collect();
    for &hashes in busy.iter().cycle().take(4000) {
        memory.begin(hashes, 0);
        memory.end(hashes, 300_000, 1_000_000, 0);
    }
    let bytes = memory.table.counters.cells;
    assert!((2001..=2100).contains(&bytes), "{bytes}");
    for number in 0..10_000_000_u32 {
        // No two have the same network either.
        let hashes = of(memory, number.wrapping_mul(0x9e37_79b1) | 1 << 31, number as u16);
        let at_us = i64::from(number) * 10;
        memory.begin(hashes, at_us);
        memory.end(hashes, u64::from(number % 1500), 0, at_us);
    }
    let now_us = 100_000_000;
    for &hashes in &busy {
        assert_eq!(memory.begin(hashes, now_us)[3], 4.0);
    }
    let counters = memory.table.counters;
    assert!(counters.cells <= 1 << 18 && counters.evicted > 10_000_000, "{counters:?}");
}

#[test]
fn the_least_worth_makes_room_and_worth_fades() {
    let memory = &mut memory(8);
    let hour_us = 60 * MINUTE_US;
    let cell = |memory: &mut Memory, hash: u64, volume: i64, at_us: i64| {
        let found = memory.table.find_or_add(hash, minute(at_us), Some(volume));
        let is_there = found.is_some();
        found.into_iter().for_each(|cell| cell.add([volume as f64, log2(volume), 0.0]));
        is_there
    };
    // Eight cells, of 2 to 16 MiB.
    for hash in 1..=8 {
        assert!(cell(memory, hash, (hash as i64) << 21, 0));
    }
    assert!(!cell(memory, 9, 1000, 0), "all are busy, and it is small");
    assert!(memory.table.find_or_add(9, 0, None).is_none());
    assert!(cell(memory, 9, 3 << 20, 0), "it is larger than the least");
    assert!(memory.table.find(1).is_none() && memory.table.find(2).is_some());
    assert!(cell(memory, 10, 1000, 5 * hour_us), "the least was busy hours ago");
    assert!(memory.table.find(9).is_none(), "of 3 MiB");
    assert!(cell(memory, 11, 1000, 5 * hour_us), "and the next newcomer takes its place");
    assert!(memory.table.find(10).is_none() && memory.table.find(2).is_some());
}

/// A memory of other size knows what one knew, and what finds no room is left out.
#[test]
fn another_memory_takes_over_the_cells() {
    let first = &mut memory(1 << 8);
    for server in 0..20 {
        end(first, TCP, &format!("192.0.2.{server}"), 1 << 20, 1_000_000);
    }
    begin(first, TCP, "203.0.113.1", 0);
    let mut copied = ServerCells::with_sets(4);
    copied.secret = first.table.secret();
    let (mut from, mut cells) = (Some(0), Vec::new());
    while let Some(set) = from {
        copied.cells.clear();
        let room = copied.cells.capacity();
        from = first.table.read(set, 4, &mut copied.cells);
        assert_eq!(copied.cells.capacity(), room, "it does not allocate");
        cells.extend_from_slice(&copied.cells);
    }
    // The port's, the network's and each server's, but not where no flow has ended.
    assert_eq!(cells.len(), 22);
    for (size, most) in [(1 << 12, 22), (8, 8)] {
        let second = &mut Memory::new(size, 99).unwrap();
        second.all = first.all;
        second.table.take(copied.secret, cells.iter().copied());
        assert_eq!(second.table.counters.cells, most);
        if most == 22 {
            let of_both = [first as &mut Memory, second].map(|it| begin(it, TCP, "192.0.2.7", 9));
            assert_eq!(of_both[0], of_both[1]);
        }
    }
}

proptest! {
    /// Whatever comes, numbers are finite and in their ranges.
    #[test]
    fn features_stay_in_their_ranges(
        flows in prop::collection::vec(any::<(u8, u64, u64, i64)>(), 0..200),
    ) {
        let mut memory = memory(8);
        for (server, volume, lasted_us, at_us) in flows {
            let server = format!("192.0.2.{}", server % 20);
            let hashes = hashes(&memory, TCP, &server, 443);
            let [volumes @ .., count, gap] = memory.begin(hashes, at_us);
            prop_assert!(volumes.iter().all(|it| (0.0..=53.0).contains(it)), "{volumes:?}");
            prop_assert!((0.0..=32.0).contains(&count) && (0.0..=31.7).contains(&gap));
            memory.end(hashes, volume, lasted_us, at_us);
        }
        prop_assert!(memory.table.counters.cells <= 8);
    }
}
