//! A table of TupleMerge: filters whose prefixes are at least as long as the table's, found by a hash of that much of them.

use crate::prefetch::{prefetch, prefetch_whole};
use crate::{Address, Filter, Key, Ports, Rank};

/// Which bits of a key a table looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Mask {
    pub source: u8,
    pub destination: u8,
    /// The source port; filters of the table have exactly one.
    pub source_port: bool,
    /// The destination port; filters of the table have exactly one.
    pub destination_port: bool,
}

impl Mask {
    /// Whether filters of this kind may stand in a table of the other.
    pub fn fits_in(&self, table: &Mask) -> bool {
        table.source <= self.source
            && table.destination <= self.destination
            && table.source_port <= self.source_port
            && table.destination_port <= self.destination_port
    }

    /// Greater for a table that tells more filters apart.
    pub fn specificity(&self) -> u32 {
        let ports = u32::from(self.source_port) + u32::from(self.destination_port);
        u32::from(self.source) + u32::from(self.destination) + 16 * ports
    }

    /// All that a filter says.
    pub fn of<A: Address>(filter: &Filter<A>) -> Mask {
        let is_one = |ports: Ports| ports.first == ports.last;
        Mask {
            source: filter.source_length,
            destination: filter.destination_length,
            source_port: is_one(filter.source_ports),
            destination_port: is_one(filter.destination_ports),
        }
    }
}

/// A filter and the next one with the same hash.
#[derive(Clone, Copy, Debug)]
struct Node<A> {
    filter: Filter<A>,
    /// Number of a node; [`NONE`] at the end.
    next: u32,
}

/// No node. Numbers of nodes have 24 bits; the upper eight of a head are a Bloom filter of the list's hashes, so that most keys
/// that are not in the table touch no node.
const NONE: u32 = (1 << 24) - 1;
/// A head without nodes.
const EMPTY: u32 = NONE;
/// Filters of a table, at most.
pub(super) const NODES_MAX: usize = NONE as usize;
/// The least number of heads.
const HEADS_MIN: usize = 16;

/// One hash table. Filters with equal masked keys, and those whose hashes share a head, form a list by rank.
#[derive(Clone, Debug)]
pub(super) struct Table<A> {
    pub mask: Mask,
    /// The bits of `mask`.
    source_mask: A,
    destination_mask: A,
    port_mask: u32,
    /// No filter of the table has a lesser rank.
    pub best: Rank,
    heads: Vec<u32>,
    /// The last node of each head's list, so that a filter of the greatest rank is appended without a walk. Only while filters are
    /// added: look-ups do not need it.
    tails: Vec<u32>,
    /// How far a hash is shifted to be the number of a head.
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

    /// Gives back memory that only more filters need.
    pub fn shrink(&mut self) {
        self.nodes.shrink_to_fit();
        self.tails = Vec::new();
    }

    /// Filters in the table.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn bytes(&self) -> usize {
        (self.heads.len() + self.tails.len()) * size_of::<u32>()
            + self.nodes.capacity() * size_of::<Node<A>>()
    }

    /// The hash of what the table looks at.
    #[inline(always)]
    pub fn hash(&self, source: A, destination: A, source_port: u16, destination_port: u16) -> u64 {
        let source = (source & self.source_mask).fold();
        let destination = (destination & self.destination_mask).fold();
        let ports = u64::from(
            (u32::from(source_port) << 16 | u32::from(destination_port)) & self.port_mask,
        );
        // Who sends packets cannot make lists long, since lists are made of rules: so a short hash will do.
        let all = source.rotate_left(32) ^ destination ^ ports.wrapping_mul(0xa076_1d64_78bd_642f);
        all.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[inline(always)]
    pub fn hash_of_key(&self, key: &Key<A>) -> u64 {
        self.hash(
            key.source,
            key.destination,
            key.source_port,
            key.destination_port,
        )
    }

    fn hash_of(&self, filter: &Filter<A>) -> u64 {
        // Where the mask has the port, the filter's range is that one port.
        let (source_port, destination_port) =
            (filter.source_ports.first, filter.destination_ports.first);
        self.hash(
            filter.source,
            filter.destination,
            source_port,
            destination_port,
        )
    }

    #[inline]
    fn head_of(&self, hash: u64) -> usize {
        // The upper bits of a product depend on all bits; the uppermost three are for the Bloom filter.
        (hash << 3 >> self.shift) as usize
    }

    #[inline]
    pub fn prefetch_head(&self, hash: u64) {
        prefetch(&self.heads, self.head_of(hash));
    }

    /// The first node that a key of this hash may be in; asks for it.
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

    /// Of the list from this node on, the first filter that has the key and is `wanted`, if its rank is below `best`.
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

    /// Whether the list that this filter would join has fewer than `most` filters.
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

    /// Adds a filter that fits the mask. The table has to have room, see [`NODES_MAX`].
    pub fn insert(&mut self, filter: &Filter<A>) {
        if self.nodes.len() >= self.heads.len() / 2 {
            self.grow();
        } else if self.tails.is_empty() {
            self.tails = self
                .heads
                .iter()
                .map(|head| self.last(head & NONE))
                .collect();
        }
        self.nodes.push(Node {
            filter: *filter,
            next: NONE,
        });
        self.link((self.nodes.len() - 1) as u32);
        self.best = self.best.min(filter.rank);
    }

    /// Puts a node into its list, by rank. Rules come by rank, so nearly all are appended; only one that comes before others of its
    /// list, as a later rule of a greater priority does, walks.
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

    /// The last node of a list; [`NONE`] of an empty one.
    fn last(&self, first: u32) -> u32 {
        let (mut last, mut next) = (NONE, first);
        while let Some(node) = self.nodes.get(next as usize) {
            (last, next) = (next, node.next);
        }
        last
    }

    /// The nodes of a list between which a filter of this rank stands; [`NONE`] where there is none.
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
