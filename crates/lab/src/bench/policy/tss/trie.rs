//! Which lengths of prefixes an address has: a binary trie of all prefixes of a field, with paths of a single child
//! compressed.

use policy::Address;

/// Lengths of prefixes as bits: length `n` is bit `n - 1`. Length 0 is always there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lengths(u128);

impl Lengths {
    #[inline]
    pub fn has(self, length: u8) -> bool {
        length == 0 || self.0 >> (length - 1) & 1 == 1
    }
}

#[derive(Clone, Copy, Debug)]
struct Node<A> {
    prefix: A,
    children: [u32; 2],
    length: u8,
    /// The prefix is one of the set, not only a place where others part.
    is_prefix: bool,
}

const NONE: u32 = u32::MAX;

/// Bits of an IPv4 address by which a search enters the trie.
const ENTRY_BITS: u8 = 16;

/// Prefixes of one field.
#[derive(Clone, Debug)]
pub struct Trie<A> {
    /// The first is the root, of length 0.
    nodes: Vec<Node<A>>,
    /// By the first bits of an IPv4 address: the next node, and the lengths of the prefixes above it. It saves most steps of
    /// a search, which Open vSwitch takes one by one.
    entries: Vec<(u32, u16)>,
}

impl<A: Address> Trie<A> {
    /// Of these prefixes with their lengths.
    pub fn new(prefixes: impl IntoIterator<Item = (A, u8)>) -> Trie<A> {
        let mut trie = Trie {
            nodes: vec![leaf(A::default(), 0, false)],
            entries: Vec::new(),
        };
        for (prefix, length) in prefixes {
            trie.insert(prefix, length);
        }
        if A::BITS == 32 {
            trie.enter();
        }
        trie
    }

    /// The lengths of the prefixes that an address has.
    #[inline]
    pub fn lengths(&self, address: A) -> Lengths {
        let entry = self.entries.get((address.fold() >> ENTRY_BITS) as usize);
        let (mut next, mut found) = entry.map_or((0, 0), |&(next, above)| (next, above.into()));
        while next != NONE {
            let node = &self.nodes[next as usize];
            if address.prefix(node.length) != node.prefix {
                break;
            }
            if node.is_prefix && node.length > 0 {
                found |= 1 << (node.length - 1);
            }
            if node.length == A::BITS {
                break;
            }
            next = node.children[bit(address, node.length)];
        }
        Lengths(found)
    }

    fn insert(&mut self, prefix: A, length: u8) {
        let mut at = 0;
        loop {
            // The node at `at` has a prefix of this one.
            let node = self.nodes[at];
            if node.length == length {
                self.nodes[at].is_prefix = true;
                return;
            }
            let side = bit(prefix, node.length);
            let below = node.children[side];
            if below == NONE {
                let new = self.push(leaf(prefix, length, true));
                self.nodes[at].children[side] = new;
                return;
            }
            let next = self.nodes[below as usize];
            let shared = shared((prefix, length), (next.prefix, next.length));
            if shared == next.length {
                at = below as usize;
                continue;
            }
            // They part above the next node: a node in between.
            let between = self.push(leaf(prefix.prefix(shared), shared, shared == length));
            self.nodes[between as usize].children[bit(next.prefix, shared)] = below;
            self.nodes[at].children[side] = between;
            at = between as usize;
            if shared == length {
                return;
            }
        }
    }

    /// Fills the table by which IPv4 addresses enter.
    fn enter(&mut self) {
        self.entries = vec![(NONE, 0); 1 << ENTRY_BITS];
        let mut waiting = vec![(0, 0)];
        while let Some((at, above)) = waiting.pop() {
            let node = self.nodes[at as usize];
            let first = (node.prefix.fold() >> ENTRY_BITS) as usize;
            if node.length >= ENTRY_BITS {
                self.entries[first] = (at, above);
                continue;
            }
            let is_counted = node.is_prefix && node.length > 0;
            let above = above
                | if is_counted {
                    1 << (node.length - 1)
                } else {
                    0
                };
            let places = 1 << (ENTRY_BITS - node.length);
            self.entries[first..first + places].fill((NONE, above));
            let children = node.children.into_iter().filter(|child| *child != NONE);
            waiting.extend(children.map(|child| (child, above)));
        }
    }

    fn push(&mut self, node: Node<A>) -> u32 {
        self.nodes.push(node);
        (self.nodes.len() - 1) as u32
    }

    /// Bytes on the heap.
    pub fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node<A>>()
            + self.entries.capacity() * size_of::<(u32, u16)>()
    }
}

fn leaf<A>(prefix: A, length: u8, is_prefix: bool) -> Node<A> {
    Node {
        prefix,
        children: [NONE; 2],
        length,
        is_prefix,
    }
}

/// The bit behind the first `length` ones.
#[inline]
fn bit<A: Address>(address: A, length: u8) -> usize {
    usize::from(address.prefix(length + 1) != address.prefix(length))
}

/// How many bits two prefixes share.
fn shared<A: Address>(one: (A, u8), other: (A, u8)) -> u8 {
    let (mut low, mut high) = (0, one.1.min(other.1));
    while low < high {
        let middle = (low + high).div_ceil(2);
        match one.0.prefix(middle) == other.0.prefix(middle) {
            true => low = middle,
            false => high = middle - 1,
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn an_address_has_the_lengths_of_the_prefixes_that_it_begins_with() {
        let mut rng = Rng::new(1);
        let mut prefixes = Vec::new();
        for _ in 0..500 {
            let length = rng.below(33) as u8;
            let address = rng.below(1 << 12) << 20 | rng.below(4);
            prefixes.push((address.prefix(length), length));
        }
        let trie = Trie::new(prefixes.iter().copied());
        for _ in 0..2000 {
            let address = rng.below(1 << 12) << 20 | rng.below(4);
            let lengths = trie.lengths(address);
            for length in 1..=32 {
                let expected = prefixes.contains(&(address.prefix(length), length));
                assert_eq!(lengths.has(length), expected, "{address:x}/{length}");
            }
        }
    }
}
