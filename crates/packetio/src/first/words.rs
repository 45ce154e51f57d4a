//! Memory shared with the program in the kernel: an array map, mapped into this process. Both sides read and write whole words;
//! neither relies on what the other one does in between.
#![allow(
    unsafe_code,
    reason = "memory shared with the kernel; it is only reached as atomic words"
)]

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::layout::{ASLEEP_WORDS, FLOW_WORDS, Key};

const WORDS: usize = ASLEEP_WORDS + FLOW_WORDS;
const BYTES: usize = WORDS * size_of::<u64>();

/// The mapped words, and the seed of the hashes in them.
#[derive(Debug)]
pub struct Words {
    at: NonNull<AtomicU64>,
    seed: u64,
}

// SAFETY: the words are only reached as atomics, and the mapping stays as long as `Words`.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Maps the words of an array map that holds one value of so many words.
    pub fn map(map: BorrowedFd<'_>, seed: u64) -> io::Result<Words> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an address where nothing else is mapped.
        let at = unsafe {
            mmap(
                std::ptr::null_mut(),
                BYTES,
                protection,
                MapFlags::SHARED,
                map,
                0,
            )
        }?;
        let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Words { at, seed })
    }

    /// A flow needs no more packets.
    #[inline]
    pub fn say_enough(&self, key: &Key) {
        let hash = key.hash(self.seed);
        let word = ASLEEP_WORDS + (hash as usize & (FLOW_WORDS - 1));
        self.words()[word].store(hash, Ordering::Relaxed);
    }

    /// A worker is about to sleep, so the next packet for it wakes it.
    pub fn say_asleep(&self, worker: usize, is_asleep: bool) {
        // Ordered before the look at the ring that follows; the kernel writes its record before it reads the word.
        self.words()[worker].store(is_asleep.into(), Ordering::SeqCst);
    }

    fn words(&self) -> &[AtomicU64; WORDS] {
        // SAFETY: `at` is the beginning of a page, so aligned, and has as many words mapped as long as `self` lives; any bytes
        // make an integer, and the kernel's writes are to whole aligned words, as those of another thread's atomics.
        unsafe { self.at.cast().as_ref() }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: this is what `map` mapped, and nobody has a reference into it any more.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), BYTES) };
    }
}
