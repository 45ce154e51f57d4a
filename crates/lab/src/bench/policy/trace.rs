//! Keys to look up, held in memory: each lies in a rule of the set, which is drawn uniformly, by
//! Zipf's law, or for each flow of real traffic.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use policy::{Filter, Key, Ports, TCP};

use crate::rng::Rng;
use fenxi::exit::Failure;

/// How the rule of a key is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Locality {
    /// Each rule with the same chance.
    Uniform,
    /// The n-th most frequent rule with a chance in proportion to 1/n^s.
    Zipf(f64),
}

/// `count` keys.
pub fn keys(filters: &[Filter<u32>], locality: Locality, count: usize, seed: u64) -> Vec<Key<u32>> {
    let mut rng = Rng::new(seed);
    match locality {
        Locality::Uniform => {
            let mut key = |_| {
                let place = rng.below(filters.len() as u32) as usize;
                within(&filters[place], &mut rng)
            };
            (0..count).map(&mut key).collect()
        }
        Locality::Zipf(s) => {
            // A rule that is met again is met by the same flow.
            let flows = flows(filters, &mut rng);
            let sums: Vec<f64> = (1..=flows.len())
                .scan(0.0, |sum, place| {
                    *sum += (place as f64).powf(-s);
                    Some(*sum)
                })
                .collect();
            let all = sums.last().copied().unwrap_or_default();
            let mut key = |_| {
                let at = rng.share() * all;
                let place = sums.partition_point(|sum| *sum <= at);
                flows[place.min(flows.len() - 1)]
            };
            (0..count).map(&mut key).collect()
        }
    }
}

/// Keys of the flows of real traffic in the order of its packets, in which each flow has a rule
/// that is drawn uniformly.
pub fn of_flows(filters: &[Filter<u32>], flows: impl Iterator<Item = u32>) -> Vec<Key<u32>> {
    let key = |flow: u32| {
        let mut rng = Rng::new(u64::from(flow) + 1);
        // The first numbers of near seeds are alike.
        rng.bits();
        let place = rng.below(filters.len() as u32) as usize;
        within(&filters[place], &mut rng)
    };
    flows.map(key).collect()
}

/// A key of each rule, in random order.
fn flows(filters: &[Filter<u32>], rng: &mut Rng) -> Vec<Key<u32>> {
    let mut flows: Vec<Key<u32>> = filters.iter().map(|it| within(it, rng)).collect();
    for place in (1..flows.len()).rev() {
        let other = rng.below(place as u32 + 1) as usize;
        flows.swap(place, other);
    }
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

/// Writes keys as ClassBench's trace generator does, a key a line: addresses, ports and protocol
/// as numbers, then the rule of the key's box that was drawn, which need not be the first that has
/// it.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, keys: &[Key<u32>]) -> Result<(), Failure> {
    let file = File::create(path).map_err(|error| Failure::creating(path, &error))?;
    let mut file = BufWriter::new(file);
    let written = keys.iter().try_for_each(|key| {
        writeln!(
            file,
            "{}\t{}\t{}\t{}\t{}\t0",
            key.source, key.destination, key.source_port, key.destination_port, key.protocol
        )
    });
    let written = written.and_then(|()| file.flush());
    written.map_err(|error| Failure::writing(&path.display().to_string(), &error))
}
