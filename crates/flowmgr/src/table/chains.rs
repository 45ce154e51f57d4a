//! A set of hashed buckets in which the next member is found quickly, however few there are.

use std::io;

use crate::memory::Array;
use crate::prefetch::prefetch;

/// A bit per bucket, and above them a bit per word of 64 that may have one set. So a search
/// through 2^18 buckets reads some 64 words at most.
pub(super) struct Chains {
    words: Array<u64>,
    /// A clear bit says that its word is 0. Cleared by the search.
    summary: Array<u64>,
}

impl Chains {
    /// No bucket of `buckets`.
    pub fn new(buckets: usize) -> io::Result<Chains> {
        let words = buckets.div_ceil(64);
        Ok(Chains { words: Array::new(words)?, summary: Array::new(words.div_ceil(64))? })
    }

    #[inline]
    pub fn insert(&mut self, head: u32) {
        let word = head as usize / 64;
        self.words[word] |= 1 << (head % 64);
        self.summary[word / 64] |= 1 << (word % 64);
    }

    #[inline]
    pub fn prefetch(&self, head: u32) {
        prefetch(&self.words, head as usize / 64);
    }

    #[inline]
    pub fn remove(&mut self, head: u32) {
        self.words[head as usize / 64] &= !(1 << (head % 64));
    }

    /// The same without a branch.
    #[inline]
    pub fn remove_if(&mut self, head: u32, is_out: bool) {
        self.words[head as usize / 64] &= !(u64::from(is_out) << (head % 64));
    }

    pub fn clear(&mut self) {
        self.words.fill(0);
        self.summary.fill(0);
    }

    /// The first member at `from` or behind it, else the first of all.
    pub fn next_from(&mut self, from: u32) -> Option<u32> {
        let word = from as usize / 64;
        let bits = self.words[word] & (u64::MAX << (from % 64));
        if bits != 0 {
            return Some(word as u32 * 64 + bits.trailing_zeros());
        }
        self.in_words_from(word + 1).or_else(|| self.in_words_from(0))
    }

    fn in_words_from(&mut self, first: usize) -> Option<u32> {
        let mut above = first / 64;
        let mut mask = u64::MAX << (first % 64);
        while above < self.summary.len() {
            let maybe = self.summary[above] & mask;
            if maybe == 0 {
                (above, mask) = (above + 1, u64::MAX);
                continue;
            }
            let word = above * 64 + maybe.trailing_zeros() as usize;
            let bits = self.words[word];
            if bits != 0 {
                return Some(word as u32 * 64 + bits.trailing_zeros());
            }
            self.summary[above] &= !(1 << (word % 64));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn finds_what_an_ordered_set_finds(
            steps in prop::collection::vec((any::<bool>(), 0u32..16_384, 0u32..16_384), 1..200),
        ) {
            let mut chains = Chains::new(16_384).unwrap();
            let mut oracle = BTreeSet::new();
            for (is_insertion, head, from) in steps {
                if is_insertion {
                    chains.insert(head);
                    oracle.insert(head);
                } else if let Some(&head) = oracle.range(head..).next() {
                    chains.remove(head);
                    oracle.remove(&head);
                }
                let next = oracle.range(from..).next().or_else(|| oracle.first());
                prop_assert_eq!(chains.next_from(from), next.copied());
            }
            chains.clear();
            prop_assert_eq!(chains.next_from(0), None);
        }
    }
}
