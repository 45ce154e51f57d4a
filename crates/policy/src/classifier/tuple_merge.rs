//! TupleMerge (Daly et al., ToN 2019): filters in hash tables by prefix lengths.
//!
//! Tuple space search has a table per combination of prefix lengths. Here a filter may also be in a
//! table that hashes fewer bits than it fixes while its list stays short, so tables are few. If a
//! list would get long, a table that hashes more bits is added, finally with ports.
//!
//! Adding a filter takes as long as a few look-ups, so changes to a trained index go here, too.

mod table;

use super::best::{BATCH, Best, Hit};
use crate::{Address, Filter, Key};
use table::{Mask, NODES_MAX, Table};

/// Maximum list that a filter joins if another table is possible.
const LIST_MAX: usize = 8;

/// Filters in hash tables.
#[derive(Clone, Debug, Default)]
pub struct TupleMerge<A> {
    /// Sorted by their least rank.
    tables: Vec<Table<A>>,
}

/// There is no room for another filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "more than {NODES_MAX} filters in a table of rules; use prefixes that cover several of them"
)]
pub struct TableFull;

impl<A: Address> TupleMerge<A> {
    /// From these filters, in any order.
    ///
    /// # Errors
    /// There are too many filters.
    pub fn new(filters: &[Filter<A>]) -> Result<TupleMerge<A>, TableFull> {
        let mut all = TupleMerge { tables: Vec::new() };
        // In the order of rank each filter is appended to its list, so equal filters take no
        // quadratic time.
        let mut order: Vec<u32> = (0..filters.len() as u32).collect();
        order.sort_unstable_by_key(|at| filters[*at as usize].rank);
        for at in order {
            all.insert(&filters[at as usize])?;
        }
        all.tables.iter_mut().for_each(Table::shrink);
        Ok(all)
    }

    /// Filters in all tables.
    pub fn len(&self) -> usize {
        self.tables.iter().map(Table::len).sum()
    }

    /// Whether there are no filters.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of tables.
    pub fn tables(&self) -> usize {
        self.tables.len()
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.tables.iter().map(Table::bytes).sum()
    }

    /// Adds a filter.
    ///
    /// # Errors
    /// There are too many filters.
    pub fn insert(&mut self, filter: &Filter<A>) -> Result<(), TableFull> {
        let own = Mask::new(filter);
        let at = self.table_for(filter, &own);
        let table = &mut self.tables[at];
        if table.len() >= NODES_MAX {
            return Err(TableFull);
        }
        let is_first = filter.rank < table.best;
        table.insert(filter);
        if is_first {
            self.tables.sort_by_key(|table| table.best);
        }
        Ok(())
    }

    /// The most specific table in which the filter's list is short, or a new table.
    fn table_for(&mut self, filter: &Filter<A>, own: &Mask) -> usize {
        let fitting = |(_, table): &(usize, &Table<A>)| own.fits_in(&table.mask);
        let short = |(_, table): &(usize, &Table<A>)| table.has_short_list(filter, LIST_MAX);
        let tables = self.tables.iter().enumerate();
        let found =
            tables.filter(fitting).filter(short).max_by_key(|(_, table)| table.mask.specificity());
        if let Some((at, _)) = found {
            return at;
        }
        for mask in relaxed::<A>(own) {
            if self.tables.iter().all(|table| table.mask != mask) {
                self.tables.push(Table::new(mask));
                return self.tables.len() - 1;
            }
        }
        // The table of its own mask has a long list: its filters agree in all hashed bits.
        let own_table = self.tables.iter().position(|table| table.mask == *own);
        own_table.unwrap_or(0)
    }

    /// For each of up to [`BATCH`] keys, finds the filter of least rank that contains the key and
    /// whose rule `counts`, if it is better than the one in `best`.
    #[inline]
    pub(super) fn find_into(
        &self,
        keys: &[Key<A>],
        mut counts: impl FnMut(Hit) -> bool,
        best: &mut Best,
    ) {
        // Many keys in one table at a time, or few keys in several: so memory accesses overlap.
        let at_a_time = BATCH / keys.len().clamp(1, BATCH);
        for tables in self.tables.chunks(at_a_time) {
            let mut probes = [Probe::default(); BATCH];
            let mut count = 0;
            for (number, table) in (0..).zip(tables) {
                for (place, key) in (0..).zip(keys) {
                    if best.rank(usize::from(place)) > table.best && count < BATCH {
                        let hash = table.hash_of_key(key);
                        table.prefetch_head(hash);
                        probes[count] = Probe { table: number, place, hash };
                        count += 1;
                    }
                }
            }
            if count == 0 {
                // Tables are sorted by best rank, so the rest has nothing better either.
                break;
            }
            let mut nodes = [(Probe::default(), 0); BATCH];
            let mut candidates = 0;
            for probe in &probes[..count] {
                if let Some(node) = tables[usize::from(probe.table)].first(probe.hash) {
                    nodes[candidates] = (*probe, node);
                    candidates += 1;
                }
            }
            for &(Probe { table, place, .. }, node) in &nodes[..candidates] {
                let place = usize::from(place);
                let wanted = |filter: &Filter<A>| {
                    counts(Hit { place, rule: filter.rule, is_conditional: filter.is_conditional })
                };
                let table = &tables[usize::from(table)];
                let found = table.find_from(node, &keys[place], best.rank(place), wanted);
                if let Some(filter) = found {
                    best.set(place, filter.rank, filter.rule);
                }
            }
        }
    }
}

/// A look-up of a key in a table, both by number.
#[derive(Clone, Copy, Default)]
struct Probe {
    table: u8,
    place: u8,
    hash: u64,
}

/// Masks for a new table for a filter of this mask, in the order to try.
fn relaxed<A: Address>(own: &Mask) -> impl Iterator<Item = Mask> {
    // Rounding down by up to an eighth of the bits makes room for filters with shorter prefixes.
    let step = A::BITS / 8;
    let round = |length: u8| length / step * step;
    let addresses = Mask {
        source: round(own.source),
        destination: round(own.destination),
        source_port: false,
        destination_port: false,
    };
    let exact_addresses = Mask { source_port: false, destination_port: false, ..*own };
    [addresses, exact_addresses, *own].into_iter()
}
