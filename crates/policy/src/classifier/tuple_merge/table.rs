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
    /// How far a hash is shifted to be the number of a head.
    shift: u32,
    nodes: Vec<Node<A>>,
    /// List of nodes that are free.
    free: u32,
    count: usize,
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
            shift: shift_for(HEADS_MIN),
            nodes: Vec::new(),
            free: NONE,
            count: 0,
        }
    }

    /// Gives back memory that was taken for more filters.
    pub fn shrink(&mut self) {
        self.nodes.shrink_to_fit();
    }

    /// Filters in the table.
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn bytes(&self) -> usize {
        self.heads.len() * size_of::<u32>() + self.nodes.capacity() * size_of::<Node<A>>()
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

    /// Filters in the list that this one would join.
    pub fn list_length(&self, filter: &Filter<A>) -> usize {
        let mut length = 0;
        let mut next = self.heads[self.head_of(self.hash_of(filter))] & NONE;
        while let Some(node) = self.nodes.get(next as usize) {
            length += 1;
            next = node.next;
        }
        length
    }

    /// Adds a filter that fits the mask. The table has to have room, see [`NODES_MAX`].
    pub fn insert(&mut self, filter: &Filter<A>) {
        if self.count >= self.heads.len() / 2 {
            self.grow();
        }
        let number = match self.nodes.get(self.free as usize) {
            Some(node) => {
                let number = self.free;
                self.free = node.next;
                number
            }
            None => {
                self.nodes.push(Node {
                    filter: *filter,
                    next: NONE,
                });
                (self.nodes.len() - 1) as u32
            }
        };
        self.nodes[number as usize].filter = *filter;
        self.link(number);
        self.count += 1;
        self.best = self.best.min(filter.rank);
    }

    /// Puts a node into its list, by rank.
    fn link(&mut self, number: u32) {
        let filter = self.nodes[number as usize].filter;
        let hash = self.hash_of(&filter);
        let head = self.head_of(hash);
        let first = self.heads[head];
        let mut before = NONE;
        let mut next = first & NONE;
        while let Some(node) = self.nodes.get(next as usize)
            && node.filter.rank < filter.rank
        {
            before = next;
            next = node.next;
        }
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
    }

    /// A head for the list from this node on.
    fn head_from(&self, first: u32) -> u32 {
        let mut head = first;
        let mut next = first;
        while let Some(node) = self.nodes.get(next as usize) {
            head |= bloom_bit(self.hash_of(&node.filter));
            next = node.next;
        }
        head
    }

    fn grow(&mut self) {
        let heads = self.heads.len() * 2;
        let mut all = Vec::with_capacity(self.count);
        for &head in &self.heads {
            let mut next = head & NONE;
            while let Some(node) = self.nodes.get(next as usize) {
                all.push(next);
                next = node.next;
            }
        }
        self.heads = vec![EMPTY; heads];
        self.shift = shift_for(heads);
        for number in all {
            self.link(number);
        }
    }

    /// Takes the filters of a rule that have the same box and rank as this one; whether there was one.
    pub fn remove(&mut self, filter: &Filter<A>) -> bool {
        let head = self.head_of(self.hash_of(filter));
        let mut before = NONE;
        let mut next = self.heads[head] & NONE;
        while let Some(node) = self.nodes.get(next as usize).copied() {
            if node.filter == *filter {
                let first = match self.nodes.get_mut(before as usize) {
                    Some(before) => {
                        before.next = node.next;
                        self.heads[head] & NONE
                    }
                    None => node.next,
                };
                self.heads[head] = self.head_from(first);
                self.nodes[next as usize].next = self.free;
                self.free = next;
                self.count -= 1;
                return true;
            }
            before = next;
            next = node.next;
        }
        false
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
