//! The memory of a TPACKET_V3 receive ring, which the kernel shares: blocks that it fills in turn
//! and hands over one by one (`Documentation/networking/packet_mmap.rst`).
//!
//! The first 48 bytes of a block are its descriptor, with the word that says whose the block is.
//! While that word says "user", the kernel neither reads nor writes the block; when it is set
//! back to "kernel", the block may be filled at once. So a block is *held* between the two, its
//! bytes are lent only while it is held, and its descriptor is never lent, so that nobody but
//! [`Ring::release`] can give it back.
#![allow(unsafe_code, reason = "memory shared with the kernel")]

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Bytes of a block's descriptor (`tpacket_block_desc`, with the version 1 header in it).
pub(super) const DESCRIPTOR: usize = 48;
/// Offsets in the descriptor.
const STATUS: usize = 8;
const PACKETS: usize = 12;
const FIRST: usize = 16;

/// Values of the status word.
const KERNEL: u32 = 0;
const USER: u32 = 1;

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
            || !block_bytes.is_multiple_of(align_of::<AtomicU32>())
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

    /// Takes over the next block, if the kernel has handed it over.
    #[inline]
    pub fn hold(&mut self) -> Option<Contents> {
        self.is_held = self.is_held || self.status().load(Ordering::Acquire) & USER != 0;
        self.is_held.then(|| Contents {
            packets: self.word(PACKETS),
            first: (self.word(FIRST) as usize).saturating_sub(DESCRIPTOR),
        })
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
            let bytes = self.block().add(DESCRIPTOR);
            std::slice::from_raw_parts_mut(bytes.as_ptr(), self.block_bytes - DESCRIPTOR)
        }
    }

    /// Gives the block that is held, if one is, back to the kernel.
    #[inline]
    pub fn release(&mut self) {
        if std::mem::take(&mut self.is_held) {
            self.status().store(KERNEL, Ordering::Release);
            self.at = (self.at + 1) % self.blocks;
        }
    }

    fn status(&self) -> &AtomicU32 {
        self.descriptor(STATUS)
    }

    fn word(&self, offset: usize) -> u32 {
        self.descriptor(offset).load(Ordering::Relaxed)
    }

    fn descriptor(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset + 4 <= DESCRIPTOR && offset.is_multiple_of(4));
        // SAFETY: all callers pass a constant within the descriptor, aligned to 4 bytes, as are
        // the blocks. The kernel and this ring write there by single stores of whole words, and
        // no slice of the ring covers it.
        unsafe { AtomicU32::from_ptr(self.block().add(offset).cast().as_ptr()) }
    }

    fn block(&self) -> NonNull<u8> {
        // SAFETY: `at < blocks`, so the block is within the mapping.
        unsafe { self.start.add(self.at * self.block_bytes) }
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
