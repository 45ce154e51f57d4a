//! Tuple space search (Srinivasan et al., SIGCOMM 1999) as Open vSwitch's `lib/classifier.c` does it, as a rival.
//!
//! All filters with one mask are in one hash table, a subtable. Ranges of ports become prefixes, so that a rule may have
//! entries in several subtables. Subtables are ordered by the best rank in them, and a search ends where none of the others
//! has a better one than what was found.
//!
//! Two things save searches. *Tries* of all source and of all destination prefixes say which lengths of prefixes an address
//! has; subtables of other lengths are passed over. *Stages*: a subtable that looks at ports has an index of its entries
//! without ports, and is passed over if that lacks the key. Open vSwitch has both by default, first of all so that megaflows get
//! wider masks. Which of them save time depends on the set, so the bench takes the fastest of all ways.

mod table;
mod trie;

use std::collections::HashMap;

use policy::{Address, Filter, Key, Ports, Rank, RuleNumber};

use table::{Masked, Table};
use trie::{Lengths, Trie};

/// Which bits of a key a subtable looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Mask {
    source: u8,
    destination: u8,
    /// As [`rest`] packs them.
    rest: u64,
}

/// Bits of the ports in [`Masked::rest`].
const PORTS: u64 = 0xffff_ffff;

/// Ports, protocol and interface in one word.
#[inline]
fn rest(source_port: u16, destination_port: u16, protocol: u8, in_port: u8) -> u64 {
    u64::from(in_port) << 40
        | u64::from(protocol) << 32
        | u64::from(source_port) << 16
        | u64::from(destination_port)
}

impl Mask {
    #[inline]
    fn of<A: Address>(&self, key: &Key<A>) -> Masked<A> {
        let all = rest(
            key.source_port,
            key.destination_port,
            key.protocol,
            key.in_port,
        );
        Masked {
            source: key.source.prefix(self.source),
            destination: key.destination.prefix(self.destination),
            rest: all & self.rest,
        }
    }
}

/// All filters of one mask.
#[derive(Clone, Debug)]
struct Subtable<A> {
    /// The best rank of its filters.
    best: Rank,
    mask: Mask,
    table: Table<A>,
    /// Its entries without ports, if it looks at ports and there are stages.
    without_ports: Option<Table<A>>,
}

/// What saves searches.
#[derive(Clone, Copy, Debug)]
pub struct Savings {
    pub tries: bool,
    pub stages: bool,
}

/// A set of filters.
#[derive(Clone, Debug)]
pub struct TupleSpace<A> {
    /// Best rank first.
    subtables: Vec<Subtable<A>>,
    /// Of sources and destinations.
    tries: Option<[Trie<A>; 2]>,
}

impl<A: Address> TupleSpace<A> {
    pub fn new(filters: &[Filter<A>], savings: Savings) -> TupleSpace<A> {
        let mut subtables: Vec<Subtable<A>> = Vec::new();
        let mut by_mask: HashMap<Mask, usize> = HashMap::new();
        for filter in filters {
            for (value, bits) in rests(filter) {
                let mask = Mask {
                    source: filter.source_length,
                    destination: filter.destination_length,
                    rest: bits,
                };
                let place = *by_mask.entry(mask).or_insert_with(|| {
                    subtables.push(Subtable::new(mask, savings.stages));
                    subtables.len() - 1
                });
                subtables[place].insert(filter, value);
            }
        }
        subtables.sort_by_key(|subtable| subtable.best);
        let sources = || filters.iter().map(|it| (it.source, it.source_length));
        let destinations = || {
            filters
                .iter()
                .map(|it| (it.destination, it.destination_length))
        };
        TupleSpace {
            subtables,
            tries: savings
                .tries
                .then(|| [Trie::new(sources()), Trie::new(destinations())]),
        }
    }

    /// The rule of the least rank that has the key.
    pub fn find(&self, key: &Key<A>) -> Option<RuleNumber> {
        match &self.tries {
            None => self.search(key, |_| true),
            Some([sources, destinations]) => {
                // Asked for only if a subtable wants to know.
                let (mut source, mut destination) = (None::<Lengths>, None::<Lengths>);
                self.search(key, |mask| {
                    (mask.source == 0
                        || source
                            .get_or_insert_with(|| sources.lengths(key.source))
                            .has(mask.source))
                        && (mask.destination == 0
                            || destination
                                .get_or_insert_with(|| destinations.lengths(key.destination))
                                .has(mask.destination))
                })
            }
        }
    }

    #[inline]
    fn search(&self, key: &Key<A>, mut may_have: impl FnMut(&Mask) -> bool) -> Option<RuleNumber> {
        let (mut rank, mut rule) = (Rank::LAST, None);
        for subtable in &self.subtables {
            if subtable.best >= rank {
                break;
            }
            if !may_have(&subtable.mask) {
                continue;
            }
            let masked = subtable.mask.of(key);
            if !subtable.passes(&masked) {
                continue;
            }
            if let Some(entry) = subtable.table.find(&masked, masked.hash())
                && entry.rank < rank
            {
                (rank, rule) = (entry.rank, Some(entry.rule));
            }
        }
        rule
    }

    /// Bytes on the heap.
    pub fn bytes(&self) -> usize {
        let tables = self.subtables.iter().map(|subtable| {
            let without_ports = subtable.without_ports.as_ref().map_or(0, Table::bytes);
            size_of::<Subtable<A>>() + subtable.table.bytes() + without_ports
        });
        let tries = self.tries.iter().flatten().map(Trie::bytes);
        tables.sum::<usize>() + tries.sum::<usize>()
    }
}

impl<A: Address> Subtable<A> {
    fn new(mask: Mask, stages: bool) -> Subtable<A> {
        let has_ports = mask.rest & PORTS != 0;
        Subtable {
            best: Rank::LAST,
            mask,
            table: Table::default(),
            without_ports: (stages && has_ports).then(Table::default),
        }
    }

    fn insert(&mut self, filter: &Filter<A>, rest: u64) {
        let key = Masked {
            source: filter.source,
            destination: filter.destination,
            rest,
        };
        self.best = self.best.min(filter.rank);
        self.table.insert(key, filter.rank, filter.rule);
        if let Some(index) = &mut self.without_ports {
            let rest = rest & !PORTS;
            index.insert(Masked { rest, ..key }, filter.rank, filter.rule);
        }
    }

    /// Whether the stage before the last lets a key through.
    #[inline]
    fn passes(&self, masked: &Masked<A>) -> bool {
        self.without_ports.as_ref().is_none_or(|index| {
            let rest = masked.rest & !PORTS;
            let masked = Masked { rest, ..*masked };
            index.find(&masked, masked.hash()).is_some()
        })
    }
}

/// The rests of a filter's keys, each with its mask.
fn rests<A>(filter: &Filter<A>) -> impl Iterator<Item = (u64, u64)> {
    let protocol = filter.protocol.map_or((0, 0), |protocol| (protocol, 0xff));
    let in_port = match filter.in_port {
        0 => (0, 0),
        in_port => (in_port, 0xff),
    };
    let destinations = prefixes(filter.destination_ports);
    let sources = prefixes(filter.source_ports).into_iter();
    sources.flat_map(move |source| {
        let pairs = destinations.clone().into_iter();
        pairs.map(move |destination| {
            (
                rest(source.0, destination.0, protocol.0, in_port.0),
                rest(source.1, destination.1, protocol.1, in_port.1),
            )
        })
    })
}

/// The fewest prefixes that make up a range, as values and masks.
fn prefixes(ports: Ports) -> Vec<(u16, u16)> {
    let mut prefixes = Vec::new();
    let (mut first, last) = (u32::from(ports.first), u32::from(ports.last));
    while first <= last {
        // The longest block that begins here, and does not end behind the last port.
        let aligned = if first == 0 {
            16
        } else {
            first.trailing_zeros()
        };
        let fits = (last + 1 - first).ilog2();
        let size = 1 << aligned.min(fits);
        prefixes.push((first as u16, !(size - 1) as u16));
        first += size;
    }
    prefixes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_the_fewest_prefixes_that_hold_its_ports() {
        assert_eq!(prefixes(Ports::ANY), [(0, 0)]);
        assert_eq!(prefixes(Ports::one(80)), [(80, 0xffff)]);
        let high = Ports {
            first: 1024,
            last: 65535,
        };
        assert_eq!(prefixes(high).len(), 6);
        let odd = Ports {
            first: 5,
            last: 700,
        };
        let all = prefixes(odd);
        for port in 0..=u16::MAX {
            let holding = all.iter().filter(|(value, mask)| port & mask == *value);
            assert_eq!(holding.count(), usize::from(odd.has(port)), "{port}");
        }
    }
}
