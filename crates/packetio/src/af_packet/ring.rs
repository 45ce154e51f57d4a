//! The memory of a TPACKET_V3 receive ring, which the kernel shares: blocks that it fills in turn
//! and hands over one by one (`Documentation/networking/packet_mmap.rst`).
//!
//! The first 48 bytes of a block are its descriptor, with the word that says whose the block is.
//! While that word says "user", the kernel neither reads nor writes the block; when it is set
//! back to "kernel", the block may be filled at once. So a block is *held* between the two, its
//! bytes are lent only while it is held, and its descriptor is never lent, so that nobody but
//! [`Ring::release`] can give it back.
//!
//! A ring outlives the process that reads it, if somebody keeps its socket. The next one finds its place in the descriptors
//! ([`Ring::resume`]): the kernel numbers the blocks as it opens them, and the reader notes there how far it has read.
#![allow(unsafe_code, reason = "memory shared with the kernel")]

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Bytes of a block's descriptor (`tpacket_block_desc`, with the version 1 header in it).
pub(super) const DESCRIPTOR: usize = 48;
/// Offsets in the descriptor.
const VERSION: usize = 0;
const STATUS: usize = 8;
const PACKETS: usize = 12;
const FIRST: usize = 16;
const NUMBER: usize = 24;

/// Values of the status word.
const KERNEL: u32 = 0;
const USER: u32 = 1;

/// In the place of the version of a block that is being read: this bit, and how many of its frames were. The kernel writes its
/// own version there when it opens a block, and never reads it.
const READING: u32 = 1 << 31;
/// The same of a block that was given back.
const READ: u32 = u32::MAX;

/// A mapped ring.
#[derive(Debug)]
pub(super) struct Ring {
    start: NonNull<u8>,
    block_bytes: usize,
    blocks: usize,
    /// The block that is held; if none is, the one that the kernel hands over next.
    at: usize,
    is_held: bool,
}

// SAFETY: the mapping belongs to the ring alone, and nothing about it is tied to a thread.
unsafe impl Send for Ring {}

/// The descriptor's numbers for the frames in a block. They come from the kernel, and the reader checks them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Contents {
    /// Frames in the block.
    pub packets: u32,
    /// Of these, frames that whoever read the ring before had handed out.
    pub read: u32,
    /// Where the first one is, from behind the descriptor.
    pub first: usize,
}

impl Ring {
    /// Maps the receive ring of a socket, which has `blocks` blocks of `block_bytes` bytes.
    pub fn map(socket: BorrowedFd<'_>, block_bytes: usize, blocks: usize) -> io::Result<Self> {
        let bytes = block_bytes
            .checked_mul(blocks)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        if block_bytes <= DESCRIPTOR
            || !block_bytes.is_multiple_of(align_of::<AtomicU64>())
            || blocks == 0
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                MapFlags::SHARED,
                socket,
                0,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            start,
            block_bytes,
            blocks,
            at: 0,
            is_held: false,
        })
    }

    /// Goes on where whoever read the ring before has stopped. The kernel may go on filling it meanwhile.
    ///
    /// The kernel opens the blocks one after the other and numbers them (`prb_open_block`), so those to be read are the newest
    /// and, before it, all that it has handed over, with numbers that go down by one. If there is none, the newest is being
    /// filled; or it was read already, and the kernel, which had found the ring full, has yet to open the next one.
    pub fn resume(&mut self) {
        let newest = (0..self.blocks).max_by_key(|block| self.number(*block));
        let newest = newest.unwrap_or_default();
        let (mut at, mut number) = (newest, self.number(newest));
        for _ in 1..self.blocks {
            let before = (at + self.blocks - 1) % self.blocks;
            if !self.is_handed_over(before) || self.number(before) != number.wrapping_sub(1) {
                break;
            }
            (at, number) = (before, number.wrapping_sub(1));
        }
        if self.is_read(at) {
            at = (at + 1) % self.blocks;
        }
        (self.at, self.is_held) = (at, false);
    }

    /// Frames that wait: in the blocks that were handed over, and in the one being filled.
    pub fn waiting(&self) -> u64 {
        let mut frames = 0;
        for i in 0..self.blocks {
            let block = (self.at + i) % self.blocks;
            let is_handed_over = self.is_handed_over(block);
            if self.is_read(block) {
                break;
            }
            let packets = self.descriptor(block, PACKETS).load(Ordering::Relaxed);
            frames += u64::from(packets.saturating_sub(self.read(block)));
            if !is_handed_over {
                break;
            }
        }
        frames
    }

    /// Takes over the next block, if the kernel has handed it over.
    #[inline]
    pub fn hold(&mut self) -> Option<Contents> {
        self.is_held = self.is_held || self.is_handed_over(self.at);
        self.is_held.then(|| Contents {
            packets: self.word(PACKETS).load(Ordering::Relaxed),
            read: self.read(self.at),
            first: (self.word(FIRST).load(Ordering::Relaxed) as usize).saturating_sub(DESCRIPTOR),
        })
    }

    /// Notes how many frames of the block that is held were read, for whoever reads the ring next. A single store, so that
    /// a process that is killed leaves no half of it.
    #[inline]
    pub fn note(&mut self, read: u32) {
        if self.is_held {
            self.word(VERSION)
                .store(READING | read.min(READ - READING - 1), Ordering::Relaxed);
        }
    }

    /// The bytes behind the descriptor of the block that is held; none if none is.
    #[inline]
    pub fn held(&mut self) -> &mut [u8] {
        if !self.is_held {
            return &mut [];
        }
        // SAFETY: the block lies within the mapping, which lives as long as `self`. It is held,
        // so the kernel leaves it alone until `release`, which needs `self` and so comes after
        // this borrow. The descriptor, which is read by atomics, is left out.
        unsafe {
            let bytes = self.block(self.at).add(DESCRIPTOR);
            std::slice::from_raw_parts_mut(bytes.as_ptr(), self.block_bytes - DESCRIPTOR)
        }
    }

    /// Gives the block that is held, if one is, back to the kernel.
    #[inline]
    pub fn release(&mut self) {
        if std::mem::take(&mut self.is_held) {
            self.word(VERSION).store(READ, Ordering::Relaxed);
            self.word(STATUS).store(KERNEL, Ordering::Release);
            self.at = (self.at + 1) % self.blocks;
        }
    }

    /// Whether the block is the reader's.
    #[inline]
    fn is_handed_over(&self, block: usize) -> bool {
        self.descriptor(block, STATUS).load(Ordering::Acquire) & USER != 0
    }

    /// Whether the block was given back and not opened again.
    fn is_read(&self, block: usize) -> bool {
        self.descriptor(block, VERSION).load(Ordering::Relaxed) == READ
    }

    /// Frames of the block that were read, if it was not given back.
    #[inline]
    fn read(&self, block: usize) -> u32 {
        let word = self.descriptor(block, VERSION).load(Ordering::Relaxed);
        if word & READING == 0 {
            0
        } else {
            word & !READING
        }
    }

    /// The number that the kernel gave the block when it opened it; 0 if it never did.
    fn number(&self, block: usize) -> u64 {
        const { assert!(NUMBER + 8 <= DESCRIPTOR && NUMBER.is_multiple_of(8)) };
        // SAFETY: within the descriptor, and aligned to 8 bytes, as blocks are, which begin at multiples of a page: the kernel
        // allows no others. It writes there by single stores, and no slice of the ring covers it.
        let number = unsafe { AtomicU64::from_ptr(self.block(block).add(NUMBER).cast().as_ptr()) };
        number.load(Ordering::Acquire)
    }

    /// A word of the descriptor of the block at hand.
    #[inline]
    fn word(&self, offset: usize) -> &AtomicU32 {
        self.descriptor(self.at, offset)
    }

    #[inline]
    fn descriptor(&self, block: usize, offset: usize) -> &AtomicU32 {
        debug_assert!(offset + 4 <= DESCRIPTOR && offset.is_multiple_of(4));
        // SAFETY: all callers pass a constant within the descriptor, aligned to 4 bytes, as are
        // the blocks. The kernel and this ring write there by single stores of whole words, and
        // no slice of the ring covers it.
        unsafe { AtomicU32::from_ptr(self.block(block).add(offset).cast().as_ptr()) }
    }

    #[inline]
    fn block(&self, block: usize) -> NonNull<u8> {
        debug_assert!(block < self.blocks);
        // SAFETY: all callers pass a block of the ring, so it is within the mapping.
        unsafe { self.start.add(block * self.block_bytes) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let bytes = self.block_bytes * self.blocks;
        // SAFETY: exactly what `map` has mapped, and no slice of it outlives the ring.
        // It cannot fail for such a range; if it did, the memory would stay mapped.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), bytes) };
    }
}
