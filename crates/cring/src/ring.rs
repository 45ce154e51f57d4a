//! A bounded lock-free ring between one producer and one consumer, written and read in place.
//!
//! ```text
//!            head (consumer)          published tail      tail (producer's own)
//!              │                            │                  │
//!    ──────────┼────────────────────────────┼──────────────────┼──────────
//!     free     │  waiting: consumer reads   │  pushed: hidden  │  free
//! ```
//!
//! Invariant, on which all unsafe code rests: `head ≤ published tail ≤ tail ≤ head + slots`; slots
//! from `head` up to the published tail belong to the consumer, all others to the producer. Only
//! the producer moves the tail, only the consumer the head; a slot changes sides by a Release store
//! of an index that the other side loads with Acquire.
//!
//! Indices grow and wrap at `usize::MAX`; their wrapping difference stays correct. The slot is the
//! index modulo the number of slots, a power of two.
//!
//! Speed: each side works on its own copies of both indices and reads the other's cache line only
//! when necessary: the producer when the ring looks full or on `free`, the consumer once per round.
//! Publishing and releasing in batches saves the same transfers in the other direction. Indices
//! have cache lines of their own (`CachePadded`); so should slots, by the alignment of `T`, as
//! [`Slot`](crate::Slot).

use crate::sync::{Arc, AtomicBool, AtomicUsize, Ordering, UnsafeCell};
use crossbeam_utils::CachePadded;

struct Shared<T> {
    /// Index of the oldest slot not released. Written by the consumer.
    head: CachePadded<AtomicUsize>,
    /// Index after the newest published slot. Written by the producer.
    tail: CachePadded<AtomicUsize>,
    /// The producer was dropped.
    closed: AtomicBool,
    /// The consumer was dropped.
    abandoned: AtomicBool,
    slots: Box<[UnsafeCell<T>]>,
}

// SAFETY: by the file's invariant one side at a time owns a slot, and only it writes the slot.
// `T: Send` because values pass between threads; `T: Sync` because a shared `&Consumer` hands out
// `&T`.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}

impl<T> Shared<T> {
    #[inline]
    fn slot(&self, index: usize) -> &UnsafeCell<T> {
        &self.slots[index & (self.slots.len() - 1)]
    }
}

/// A ring of `slots` slots, allocated once.
///
/// # Panics
/// `slots` is not a power of two.
pub fn ring<T: Copy + Default>(slots: usize) -> (Producer<T>, Consumer<T>) {
    ring_from(slots, 0)
}

/// A ring whose indices start at `start`, so that tests reach the wrap.
pub(crate) fn ring_from<T: Copy + Default>(
    slots: usize,
    start: usize,
) -> (Producer<T>, Consumer<T>) {
    assert!(slots.is_power_of_two(), "a ring has a power of two of slots, not {slots}");
    let shared = Arc::new(Shared {
        head: CachePadded::new(AtomicUsize::new(start)),
        tail: CachePadded::new(AtomicUsize::new(start)),
        closed: AtomicBool::new(false),
        abandoned: AtomicBool::new(false),
        slots: (0..slots).map(|_| UnsafeCell::new(T::default())).collect(),
    });
    let producer =
        Producer { shared: Arc::clone(&shared), tail: start, published: start, head: start };
    let consumer = Consumer { shared, head: start, tail: start };
    (producer, consumer)
}

/// The writing end. Dropping it publishes what was pushed and closes the ring.
pub struct Producer<T> {
    shared: Arc<Shared<T>>,
    /// After the newest pushed slot.
    tail: usize,
    /// The shared tail.
    published: usize,
    /// The shared head as last read; the consumer may have released more since.
    head: usize,
}

impl<T> Producer<T> {
    /// Number of free slots; the consumer may free more at any time. Reads the other side's cache
    /// line, so call it per burst, not per slot.
    #[inline]
    pub fn free(&mut self) -> usize {
        // Acquire: the consumer has finished with what it released before we write there.
        self.head = self.shared.head.load(Ordering::Acquire);
        self.capacity() - self.tail.wrapping_sub(self.head)
    }

    /// Writes the next slot in place; visible after the next [`publish`](Self::publish). `write`
    /// gets the slot's last contents, or the default.
    ///
    /// Returns false if the ring is full; then `write` was not called, and everything pushed is
    /// published, so that waiting for a free slot cannot deadlock.
    #[inline]
    pub fn push(&mut self, write: impl FnOnce(&mut T)) -> bool {
        if self.tail.wrapping_sub(self.head) == self.capacity() && self.free() == 0 {
            self.publish();
            return false;
        }
        self.shared.slot(self.tail).with_mut(|slot| {
            // SAFETY: the slot at `tail` is free, since `tail - head < capacity` and the head,
            // loaded with Acquire, only grows. So it is the producer's (file's invariant), and
            // `&mut self` makes the access exclusive.
            write(unsafe { &mut *slot });
        });
        self.tail = self.tail.wrapping_add(1);
        true
    }

    /// Makes all pushed slots visible to the consumer at once. Free if there are none.
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.tail {
            // Release: the slots are written before the consumer learns of them.
            self.shared.tail.store(self.tail, Ordering::Release);
            self.published = self.tail;
        }
    }

    /// Whether the consumer was dropped. Then nothing will be released, so check it when waiting
    /// for a free slot.
    pub fn is_abandoned(&self) -> bool {
        // Relaxed: no data depends on the flag.
        self.shared.abandoned.load(Ordering::Relaxed)
    }

    /// Number of slots.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.shared.slots.len()
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        self.publish();
        // Release, after the tail: a consumer that sees the ring closed sees every slot.
        self.shared.closed.store(true, Ordering::Release);
    }
}

/// The reading end. Dropping it marks the ring abandoned.
pub struct Consumer<T> {
    shared: Arc<Shared<T>>,
    /// The shared head.
    head: usize,
    /// The shared tail as last read.
    tail: usize,
}

impl<T> Consumer<T> {
    /// Number of readable slots. Reads the producer's tail; until the next call, [`get`](Self::get)
    /// and [`release`](Self::release) use what this call saw.
    #[inline]
    pub fn waiting(&mut self) -> usize {
        // Acquire: the slots are written before we read them.
        self.tail = self.shared.tail.load(Ordering::Acquire);
        self.seen()
    }

    /// The `i`-th oldest slot not yet released, in place.
    ///
    /// # Panics
    /// `i` is not below the result of the last [`waiting`](Self::waiting), less what was released
    /// since.
    #[inline]
    pub fn get(&self, i: usize) -> &T {
        assert!(i < self.seen(), "slot {i} asked for, {} waiting", self.seen());
        self.shared.slot(self.head.wrapping_add(i)).with(|slot| {
            // SAFETY: the slot is between head and published tail, so it is the consumer's (file's
            // invariant), and stays so while the reference lives: releasing takes `&mut self`.
            unsafe { &*slot }
        })
    }

    /// Returns the `n` oldest slots to the producer, at once.
    ///
    /// # Panics
    /// `n` exceeds the result of the last [`waiting`](Self::waiting), less what was released since.
    #[inline]
    pub fn release(&mut self, n: usize) {
        assert!(n <= self.seen(), "{n} slots released, {} waiting", self.seen());
        if n > 0 {
            self.head = self.head.wrapping_add(n);
            // Release: we have finished with the slots before the producer writes there.
            self.shared.head.store(self.head, Ordering::Release);
        }
    }

    /// Whether the producer was dropped. Everything it pushed is then visible to the next
    /// [`waiting`](Self::waiting): check this first to know that an empty ring stays empty.
    pub fn is_closed(&self) -> bool {
        // Acquire: pairs with the store in the producer's drop.
        self.shared.closed.load(Ordering::Acquire)
    }

    /// Number of slots.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.shared.slots.len()
    }

    /// Slots seen by the last `waiting` and not released since.
    #[inline]
    fn seen(&self) -> usize {
        self.tail.wrapping_sub(self.head)
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        // Relaxed: no data depends on the flag, and slots stay allocated until both ends are
        // dropped.
        self.shared.abandoned.store(true, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
