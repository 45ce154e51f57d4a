//! The memory of a TPACKET_V3 receive ring, shared with the kernel, which fills blocks in turn and
//! hands them over one by one (`Documentation/networking/packet_mmap.rst`).
//!
//! The first 48 bytes of a block are its descriptor, with a status word. While it says "user", the
//! kernel neither reads nor writes the block; once it is set back to "kernel", the block may be
//! filled at once. In between the block is *held*: its bytes are lent only then. Its descriptor is
//! never lent, so only [`Ring::release`] can give the block back.
//!
//! A ring whose socket is kept outlives its process. The next one finds its position in the
//! descriptors ([`Ring::resume`]): the kernel numbers blocks as it opens them, and the reader notes
//! there how far it has read.
#![allow(unsafe_code, reason = "memory shared with the kernel")]

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::mm::MapFlags;

use crate::mapping::Mapping;

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

/// While a block is read, its version field holds this bit and the number of frames read. The
/// kernel writes its version there when it opens a block, and never reads it.
const READING: u32 = 1 << 31;
/// The version field of a block that was given back.
const READ: u32 = u32::MAX;

/// A mapped ring.
#[derive(Debug)]
pub(super) struct Ring {
    mapping: Mapping,
    block_bytes: usize,
    blocks: usize,
    /// The held block or, if none is held, the next one to be handed over.
    at: usize,
    is_held: bool,
}

/// The frames in a block, as the kernel describes them; the reader checks the numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Contents {
    /// Frames in the block.
    pub packets: u32,
    /// Frames that the previous process had handed out.
    pub read: u32,
    /// Offset of the first frame behind the descriptor.
    pub first: usize,
}

impl Ring {
    /// Maps the receive ring of a socket: `blocks` blocks of `block_bytes` bytes.
    pub fn map(socket: BorrowedFd<'_>, block_bytes: usize, blocks: usize) -> io::Result<Self> {
        let bytes = block_bytes.checked_mul(blocks).ok_or(io::ErrorKind::OutOfMemory)?;
        if block_bytes <= DESCRIPTOR
            || !block_bytes.is_multiple_of(align_of::<AtomicU64>())
            || blocks == 0
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mapping = Mapping::shared(socket, bytes, 0, MapFlags::empty())?;
        Ok(Self { mapping, block_bytes, blocks, at: 0, is_held: false })
    }

    /// Continues where the previous process stopped, while the kernel may go on filling.
    ///
    /// The kernel opens and numbers the blocks one after the other (`prb_open_block`). To be read
    /// are the newest and, before it, all blocks handed over with numbers that decrease by one. If
    /// none precedes it, the newest is being filled; or it was read already, and the kernel, which
    /// had found the ring full, has yet to open the next one.
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

    /// Frames in the blocks handed over and in the one being filled.
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

    /// Holds the next block, if the kernel has handed it over.
    #[inline]
    pub fn hold(&mut self) -> Option<Contents> {
        self.is_held = self.is_held || self.is_handed_over(self.at);
        self.is_held.then(|| Contents {
            packets: self.word(PACKETS).load(Ordering::Relaxed),
            read: self.read(self.at),
            first: (self.word(FIRST).load(Ordering::Relaxed) as usize).saturating_sub(DESCRIPTOR),
        })
    }

    /// Notes for the next process how many frames of the held block were read. A single store, so a
    /// killed process leaves no partial value.
    #[inline]
    pub fn note(&mut self, read: u32) {
        if self.is_held {
            self.word(VERSION).store(READING | read.min(READ - READING - 1), Ordering::Relaxed);
        }
    }

    /// The bytes behind the descriptor of the held block; empty if none is held.
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

    /// Gives the held block, if any, back to the kernel.
    #[inline]
    pub fn release(&mut self) {
        if std::mem::take(&mut self.is_held) {
            self.word(VERSION).store(READ, Ordering::Relaxed);
            self.word(STATUS).store(KERNEL, Ordering::Release);
            self.at = (self.at + 1) % self.blocks;
        }
    }

    /// Whether the block belongs to the reader.
    #[inline]
    fn is_handed_over(&self, block: usize) -> bool {
        self.descriptor(block, STATUS).load(Ordering::Acquire) & USER != 0
    }

    /// Whether the block was given back and not opened again.
    fn is_read(&self, block: usize) -> bool {
        self.descriptor(block, VERSION).load(Ordering::Relaxed) == READ
    }

    /// Frames read of a block that was not given back.
    #[inline]
    fn read(&self, block: usize) -> u32 {
        let word = self.descriptor(block, VERSION).load(Ordering::Relaxed);
        if word & READING == 0 { 0 } else { word & !READING }
    }

    /// The number that the kernel gave the block on opening it; 0 if it never did.
    fn number(&self, block: usize) -> u64 {
        const { assert!(NUMBER + 8 <= DESCRIPTOR && NUMBER.is_multiple_of(8)) };
        // SAFETY: within the descriptor, and aligned to 8 bytes, as are blocks: the kernel allows
        // only multiples of a page. It writes there by single stores, and no slice of the ring
        // covers it.
        let number = unsafe { AtomicU64::from_ptr(self.block(block).add(NUMBER).cast().as_ptr()) };
        number.load(Ordering::Acquire)
    }

    /// A word of the current block's descriptor.
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
        unsafe { self.mapping.start().add(block * self.block_bytes) }
    }
}
