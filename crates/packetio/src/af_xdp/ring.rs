//! One of the four rings that a socket shares with the kernel: entries between two positions that
//! only grow, each written by one side (`Documentation/networking/af_xdp.rst`).
//!
//! The producer fills entries and then moves its position; the consumer reads them and then moves
//! its own. So the two positions tell the one owner of each entry.
#![allow(unsafe_code, reason = "memory shared with the kernel")]

use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::MapFlags;
use rustix::net::xdp::{XdpDesc, XdpRingFlags, XdpRingOffset};

use crate::mapping::Mapping;

/// An entry: integers only, so that any bytes are valid.
pub(super) trait Entry: Copy {}
/// Fill and completion rings: a frame.
impl Entry for u64 {}
/// Receive and send rings: a frame and its bytes.
impl Entry for XdpDesc {}

/// The mapping of a ring of `size` entries.
#[derive(Debug)]
struct Map<T> {
    mapping: Mapping,
    at: XdpRingOffset,
    size: u32,
    entries: PhantomData<T>,
}

impl<T: Entry> Map<T> {
    /// Maps the ring at `offset` of a socket; the kernel has reported `at`.
    fn new(
        socket: BorrowedFd<'_>,
        at: XdpRingOffset,
        size: u32,
        offset: u64,
    ) -> io::Result<Map<T>> {
        // Kernels before 5.4 have no flags; they are not supported.
        let flags = at.flags.ok_or(io::ErrorKind::Unsupported)?;
        let bytes = at.desc as usize + size as usize * size_of::<T>();
        let words = [at.producer, at.consumer, flags];
        let fits = |word: &u64| word.is_multiple_of(4) && *word as usize + 4 <= bytes;
        if !size.is_power_of_two()
            || !words.iter().all(fits)
            || !(at.desc as usize).is_multiple_of(align_of::<T>())
        {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mapping = Mapping::shared(socket, bytes, offset, MapFlags::POPULATE)?;
        Ok(Map { mapping, at, size, entries: PhantomData })
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: `new` has checked that the offsets of positions and flags are aligned and lie
        // within the mapping, which lives as long as `self`. Both sides access these words as
        // atomics only.
        unsafe { AtomicU32::from_ptr(self.mapping.start().add(offset as usize).cast().as_ptr()) }
    }

    fn producer(&self) -> &AtomicU32 {
        self.word(self.at.producer)
    }

    fn consumer(&self) -> &AtomicU32 {
        self.word(self.at.consumer)
    }

    /// The entry at a position.
    fn entry(&self, position: u32) -> NonNull<T> {
        let index = (position & (self.size - 1)) as usize;
        // SAFETY: the index is below `size`, and `new` has mapped `size` aligned entries from
        // `desc` on.
        unsafe { self.mapping.start().add(self.at.desc as usize).cast::<T>().add(index) }
    }
}

/// A ring that this program fills: a fill or a send ring.
#[derive(Debug)]
pub(super) struct Producer<T> {
    map: Map<T>,
    /// Position of the next entry; entries since the shared position are not submitted yet.
    next: u32,
    /// The kernel's position when last read.
    taken: u32,
}

impl<T: Entry> Producer<T> {
    /// Maps the ring of a socket.
    pub fn map(
        socket: BorrowedFd<'_>,
        at: XdpRingOffset,
        size: u32,
        offset: u64,
    ) -> io::Result<Self> {
        let map = Map::new(socket, at, size, offset)?;
        let next = map.producer().load(Ordering::Relaxed);
        let taken = map.consumer().load(Ordering::Acquire);
        Ok(Producer { map, next, taken })
    }

    /// Adds an entry for the next [`Self::submit`]; `false` if the ring is full.
    #[inline]
    pub fn put(&mut self, entry: T) -> bool {
        if self.next.wrapping_sub(self.taken) >= self.map.size {
            self.taken = self.map.consumer().load(Ordering::Acquire);
            if self.next.wrapping_sub(self.taken) >= self.map.size {
                return false;
            }
        }
        // SAFETY: the position is less than `size` ahead of the kernel's, so the kernel does not
        // read the entry before it is submitted.
        unsafe { self.map.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Hands over all added entries.
    #[inline]
    pub fn submit(&mut self) {
        self.map.producer().store(self.next, Ordering::Release);
    }

    /// Added entries that the kernel has not taken yet.
    #[inline]
    pub fn pending(&mut self) -> u32 {
        self.taken = self.map.consumer().load(Ordering::Acquire);
        self.next.wrapping_sub(self.taken)
    }

    /// Whether the kernel needs a system call before it takes more entries.
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        let flags = self.map.at.flags.unwrap_or_default();
        let flags = self.map.word(flags).load(Ordering::Relaxed);
        flags & XdpRingFlags::XDP_RING_NEED_WAKEUP.bits() != 0
    }
}

/// A ring that the kernel fills: a receive or a completion ring.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    map: Map<T>,
    next: u32,
}

impl<T: Entry> Consumer<T> {
    /// Maps the ring of a socket.
    pub fn map(
        socket: BorrowedFd<'_>,
        at: XdpRingOffset,
        size: u32,
        offset: u64,
    ) -> io::Result<Self> {
        let map = Map::new(socket, at, size, offset)?;
        let next = map.consumer().load(Ordering::Relaxed);
        Ok(Consumer { map, next })
    }

    /// Entries ready to be taken.
    #[inline]
    pub fn available(&self) -> u32 {
        let filled = self.map.producer().load(Ordering::Acquire);
        filled.wrapping_sub(self.next).min(self.map.size)
    }

    /// Passes up to `most` entries to `each` and returns their places to the kernel.
    #[inline]
    pub fn take(&mut self, most: u32, mut each: impl FnMut(T)) -> u32 {
        let count = self.available().min(most);
        for _ in 0..count {
            // SAFETY: the position is below the kernel's, so the kernel has written the entry and
            // leaves it alone until this side's position passes it. Any bytes make an entry.
            each(unsafe { self.map.entry(self.next).read() });
            self.next = self.next.wrapping_add(1);
        }
        if count > 0 {
            self.map.consumer().store(self.next, Ordering::Release);
        }
        count
    }
}
