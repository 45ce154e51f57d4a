//! A table of TupleMerge: filters with prefixes at least as long as the table's, by a hash of these
//! bits.

use crate::prefetch::{prefetch, prefetch_whole};
use crate::{Address, Filter, Key, Ports, Rank};

/// The bits of a key that a table hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Mask {
    pub source: u8,
    pub destination: u8,
    /// Whether the source port is hashed; the table's filters have exactly one.
    pub source_port: bool,
    /// Whether the destination port is hashed; the table's filters have exactly one.
    pub destination_port: bool,
}

impl Mask {
    pub fn fits_in(&self, table: &Mask) -> bool {
        table.source <= self.source
            && table.destination <= self.destination
            && table.source_port <= self.source_port
            && table.destination_port <= self.destination_port
    }

    /// Greater for a table that distinguishes more filters.
    pub fn specificity(&self) -> u32 {
        let ports = u32::from(self.source_port) + u32::from(self.destination_port);
        u32::from(self.source) + u32::from(self.destination) + 16 * ports
    }

    pub fn new<A: Address>(filter: &Filter<A>) -> Mask {
        let is_one = |ports: Ports| ports.first == ports.last;
        Mask {
            source: filter.source_length,
            destination: filter.destination_length,
            source_port: is_one(filter.source_ports),
            destination_port: is_one(filter.destination_ports),
        }
    }
}

/// A filter and the next one in its list.
#[derive(Clone, Copy, Debug)]
struct Node<A> {
    filter: Filter<A>,
    /// Index of a node; [`NONE`] at the end.
    next: u32,
}

/// No node. Indices of nodes have 24 bits; the upper eight of a head are a Bloom filter of the
/// list's hashes, so that most keys not in the table read no node.
const NONE: u32 = (1 << 24) - 1;
const EMPTY: u32 = NONE;
/// Maximum filters per table.
pub(super) const NODES_MAX: usize = NONE as usize;
/// Minimum heads.
const HEADS_MIN: usize = 16;

/// A hash table. Filters with equal masked keys or hashes that share a head form a list by rank.
#[derive(Clone, Debug)]
pub(super) struct Table<A> {
    pub mask: Mask,
    /// `mask` as bit masks.
    source_mask: A,
    destination_mask: A,
    port_mask: u32,
    /// Least rank of the table's filters.
    pub best: Rank,
    heads: Vec<u32>,
    /// The last node of each head's list, to append without walking the list. Only needed while
    /// filters are added.
    tails: Vec<u32>,
    /// Shift of a hash to the index of its head.
    shift: u32,
    nodes: Vec<Node<A>>,
}

impl<A: Address> Table<A> {
    pub fn new(mask: Mask) -> Table<A> {
        Table {
            mask,
            source_mask: A::mask(mask.source),
            destination_mask: A::mask(mask.destination),
            port_mask: (u32::from(mask.source_port) * 0xffff_0000)
                | (u32::from(mask.destination_port) * 0xffff),
            best: Rank::LAST,
            heads: vec![EMPTY; HEADS_MIN],
            tails: vec![NONE; HEADS_MIN],
            shift: shift_for(HEADS_MIN),
            nodes: Vec::new(),
        }
    }

    /// Frees memory that only adding filters needs.
    pub fn shrink(&mut self) {
        self.nodes.shrink_to_fit();
        self.tails = Vec::new();
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn bytes(&self) -> usize {
        (self.heads.len() + self.tails.len()) * size_of::<u32>()
            + self.nodes.capacity() * size_of::<Node<A>>()
    }

    #[inline(always)]
    pub fn hash(&self, source: A, destination: A, source_port: u16, destination_port: u16) -> u64 {
        let source = (source & self.source_mask).fold();
        let destination = (destination & self.destination_mask).fold();
        let ports = (u32::from(source_port) << 16 | u32::from(destination_port)) & self.port_mask;
        let ports = u64::from(ports);
        // Lists consist of rules, so senders cannot make them long, and a short hash suffices.
        let all = source.rotate_left(32) ^ destination ^ ports.wrapping_mul(0xa076_1d64_78bd_642f);
        all.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[inline(always)]
    pub fn hash_of_key(&self, key: &Key<A>) -> u64 {
        self.hash(key.source, key.destination, key.source_port, key.destination_port)
    }

    fn hash_of(&self, filter: &Filter<A>) -> u64 {
        // If the mask has the port, the filter's range is a single port.
        let ports = (filter.source_ports.first, filter.destination_ports.first);
        self.hash(filter.source, filter.destination, ports.0, ports.1)
    }

    #[inline]
    fn head_of(&self, hash: u64) -> usize {
        // The upper bits of a product depend on all bits; the top three are for the Bloom filter.
        (hash << 3 >> self.shift) as usize
    }

    #[inline]
    pub fn prefetch_head(&self, hash: u64) {
        prefetch(&self.heads, self.head_of(hash));
    }

    /// The first node of the list for this hash, prefetched; `None` if the table has no such hash.
    #[inline]
    pub fn first(&self, hash: u64) -> Option<u32> {
        let head = self.heads[self.head_of(hash)];
        if head & bloom_bit(hash) == 0 {
            return None;
        }
        let node = head & NONE;
        prefetch_whole(&self.nodes, node as usize);
        Some(node)
    }

    /// In the list from this node on, the first filter that contains the key and is `wanted`, if
    /// its rank is below `best`.
    #[inline]
    pub fn find_from(
        &self,
        node: u32,
        key: &Key<A>,
        best: Rank,
        mut wanted: impl FnMut(&Filter<A>) -> bool,
    ) -> Option<&Filter<A>> {
        let mut next = node;
        while let Some(node) = self.nodes.get(next as usize) {
            if node.filter.rank >= best {
                return None;
            }
            if node.filter.has(key) && wanted(&node.filter) {
                return Some(&node.filter);
            }
            next = node.next;
        }
        None
    }

    /// Whether the list for this filter has fewer than `most` filters.
    pub fn has_short_list(&self, filter: &Filter<A>, most: usize) -> bool {
        let mut next = self.heads[self.head_of(self.hash_of(filter))] & NONE;
        for _ in 0..most {
            match self.nodes.get(next as usize) {
                Some(node) => next = node.next,
                None => return true,
            }
        }
        false
    }

    /// Adds a filter that fits the mask. There must be room, see [`NODES_MAX`].
    pub fn insert(&mut self, filter: &Filter<A>) {
        if self.nodes.len() >= self.heads.len() / 2 {
            self.grow();
        } else if self.tails.is_empty() {
            self.tails = self.heads.iter().map(|head| self.last(head & NONE)).collect();
        }
        debug_assert!(self.nodes.len() < NODES_MAX);
        debug_assert_eq!(filter.source.prefix(filter.source_length), filter.source);
        debug_assert_eq!(filter.destination.prefix(filter.destination_length), filter.destination);
        self.nodes.push(Node { filter: *filter, next: NONE });
        self.link((self.nodes.len() - 1) as u32);
        self.best = self.best.min(filter.rank);
    }

    /// Inserts a node into its list by rank. Rules mostly come in this order and are appended; only
    /// a later rule of greater priority walks the list.
    fn link(&mut self, number: u32) {
        let filter = self.nodes[number as usize].filter;
        let hash = self.hash_of(&filter);
        let head = self.head_of(hash);
        let first = self.heads[head];
        let tail = self.nodes.get(self.tails[head] as usize);
        let is_last = tail.is_none_or(|tail| tail.filter.rank <= filter.rank);
        let (before, next) = match is_last {
            true => (self.tails[head], NONE),
            false => self.place_of(first & NONE, filter.rank),
        };
        self.nodes[number as usize].next = next;
        let bloom = first & !NONE | bloom_bit(hash);
        let first = match self.nodes.get_mut(before as usize) {
            Some(node) => {
                node.next = number;
                first & NONE
            }
            None => number,
        };
        self.heads[head] = first | bloom;
        if next == NONE {
            self.tails[head] = number;
        }
    }

    /// The last node of a list; [`NONE`] if it is empty.
    fn last(&self, first: u32) -> u32 {
        let (mut last, mut next) = (NONE, first);
        while let Some(node) = self.nodes.get(next as usize) {
            (last, next) = (next, node.next);
        }
        last
    }

    /// The nodes of a list between which this rank belongs; [`NONE`] at its ends.
    fn place_of(&self, first: u32, rank: Rank) -> (u32, u32) {
        let (mut before, mut next) = (NONE, first);
        while let Some(node) = self.nodes.get(next as usize)
            && node.filter.rank < rank
        {
            (before, next) = (next, node.next);
        }
        (before, next)
    }

    fn grow(&mut self) {
        let heads = self.heads.len() * 2;
        let mut all = Vec::with_capacity(self.nodes.len());
        for &head in &self.heads {
            let mut next = head & NONE;
            while let Some(node) = self.nodes.get(next as usize) {
                all.push(next);
                next = node.next;
            }
        }
        self.heads = vec![EMPTY; heads];
        self.tails = vec![NONE; heads];
        self.shift = shift_for(heads);
        for number in all {
            self.link(number);
        }
    }
}

/// One of the eight upper bits of a head.
#[inline]
fn bloom_bit(hash: u64) -> u32 {
    1 << (24 + (hash >> 61))
}

fn shift_for(heads: usize) -> u32 {
    u64::BITS - heads.trailing_zeros()
}
