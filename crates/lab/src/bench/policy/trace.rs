//! Keys to look up, held in memory: each lies in a rule of the set, which is drawn uniformly or by
//! Zipf's law.

use policy::{Filter, Key, Ports, TCP};

use crate::rng::{Lot, Rng};

/// `count` keys, each of a rule that is drawn with the same chance.
pub fn uniform(filters: &[Filter<u32>], count: usize) -> Vec<Key<u32>> {
    let mut rng = Rng::new(1);
    let mut key = |_| {
        let place = rng.below(filters.len() as u32) as usize;
        within(&filters[place], &mut rng)
    };
    (0..count).map(&mut key).collect()
}

/// `count` keys: the n-th most frequent rule has a chance in proportion to 1/n^`exponent`. A rule
/// that is met again is met by the same flow.
pub fn zipf(filters: &[Filter<u32>], exponent: f64, count: usize) -> Vec<Key<u32>> {
    let mut rng = Rng::new(2);
    let flows = flows(filters, &mut rng);
    let weighted = (1..).zip(flows).map(|(rank, flow)| (flow, f64::from(rank).powf(-exponent)));
    let lot = Lot::new(weighted);
    (0..count).filter_map(|_| lot.draw(&mut rng)).collect()
}

/// A key of each rule, in random order.
fn flows(filters: &[Filter<u32>], rng: &mut Rng) -> Vec<Key<u32>> {
    let mut flows: Vec<Key<u32>> = filters.iter().map(|it| within(it, rng)).collect();
    rng.shuffle(&mut flows);
    flows
}

/// A key of a rule; TCP where the rule leaves the protocol open.
fn within(filter: &Filter<u32>, rng: &mut Rng) -> Key<u32> {
    let address = |prefix: u32, length: u8, rng: &mut Rng| {
        let below = u32::MAX.checked_shr(u32::from(length)).unwrap_or(0);
        prefix | rng.bits() as u32 & below
    };
    let port = |ports: Ports, rng: &mut Rng| {
        ports.first + rng.below(u32::from(ports.last - ports.first) + 1) as u16
    };
    Key {
        source: address(filter.source, filter.source_length, rng),
        destination: address(filter.destination, filter.destination_length, rng),
        source_port: port(filter.source_ports, rng),
        destination_port: port(filter.destination_ports, rng),
        protocol: filter.protocol.unwrap_or(TCP),
        in_port: filter.in_port,
    }
}
