//! A block of words that one writer publishes whole and any number of readers copy whole.
//!
//! The block has three buffers, and a word counts its publications. Publication *n* stands in
//! buffer *n* mod 3, so the writer fills a buffer that no new reader looks at, then raises the
//! count. A reader copies the buffer that the count names and looks at the count again: the buffer
//! is overwritten by publication *n* + 3, which the writer begins after it has counted *n* + 2. So
//! a copy is whole if the count is at most *n* + 1 by then.
//!
//! There is no state in which the block is being changed. A writer that dies half-way leaves the
//! last publication as it was.
//!
//! Readers load Relaxed and fence, because only relaxed loads are promised to work in memory that
//! is mapped read-only.

use crate::sync::{AtomicU64, Ordering, fence};

/// Buffers of a block. With three, a copy may take as long as the writer takes to publish twice.
pub(crate) const BUFFERS: usize = 3;

/// Copies that a reader begins before it gives up. A copy fails only if it took longer than two
/// publications.
const TRIES: usize = 1000;

pub(crate) struct Publication<'a> {
    /// Publications so far; written by the writer.
    pub(crate) count: &'a AtomicU64,
    pub(crate) buffers: &'a [AtomicU64],
}

impl Publication<'_> {
    fn buffer(&self, number: u64) -> &[AtomicU64] {
        let words = self.buffers.len() / BUFFERS;
        &self.buffers[(number % BUFFERS as u64) as usize * words..][..words]
    }

    /// Publishes the words of `image`, which fit in a buffer. For the one writer only.
    #[inline]
    pub(crate) fn publish(&self, image: &[u64]) {
        let next = self.stage(image);
        // Release: the words are written before a reader learns of them.
        self.count.store(next, Ordering::Release);
    }

    /// Writes the words of `image`, which the next publication of the same count makes known.
    /// Returns the number of that.
    #[inline]
    pub(crate) fn stage(&self, image: &[u64]) -> u64 {
        // Relaxed: nobody else writes it.
        let next = self.count.load(Ordering::Relaxed).wrapping_add(1);
        // Release: a reader that sees one of the words below sees the last count.
        fence(Ordering::Release);
        for (word, value) in self.buffer(next).iter().zip(image) {
            word.store(*value, Ordering::Relaxed);
        }
        next
    }

    /// What `copy` makes of the newest publication, called until no word changed meanwhile; `None`
    /// where the writer was always faster. Before the first publication the words are zero.
    #[inline]
    pub(crate) fn read<T>(&self, mut copy: impl FnMut(&[AtomicU64]) -> T) -> Option<T> {
        (0..TRIES).find_map(|_| self.read_once(&mut copy))
    }

    /// The same for the buffer of another block, too, that was [staged](Self::stage) with this one.
    pub(crate) fn read_with<T>(
        &self,
        other: &Publication<'_>,
        mut copy: impl FnMut(&[AtomicU64], &[AtomicU64]) -> T,
    ) -> Option<T> {
        let mut both = |number| copy(self.buffer(number), other.buffer(number));
        (0..TRIES).find_map(|_| self.read_number(&mut both))
    }

    #[inline]
    pub(crate) fn read_once<T>(&self, copy: impl FnOnce(&[AtomicU64]) -> T) -> Option<T> {
        self.read_number(|number| copy(self.buffer(number)))
    }

    #[inline]
    fn read_number<T>(&self, copy: impl FnOnce(u64) -> T) -> Option<T> {
        let number = self.count.load(Ordering::Relaxed);
        // Acquire, with the store of the count: we see the words of this publication or later.
        fence(Ordering::Acquire);
        let copied = copy(number);
        // Acquire, with the writer's fence: if we saw a word of publication n + 3, we see a count
        // of at least n + 2 below.
        fence(Ordering::Acquire);
        let now = self.count.load(Ordering::Relaxed);
        (now.wrapping_sub(number) < BUFFERS as u64 - 1).then_some(copied)
    }
}

/// Copies relaxed words.
#[inline]
pub(crate) fn copy(from: &[AtomicU64], to: &mut [u64]) {
    for (word, value) in from.iter().zip(to) {
        *value = word.load(Ordering::Relaxed);
    }
}
