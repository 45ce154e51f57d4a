//! The flows that the program counts, in memory shared with the kernel: array maps, mapped into this process.
//!
//! An entry's version says whose counts are in it: each flow has another one, and so has a flow whose counts began again, also
//! where it is back in another place. Who changes an entry swaps the version first, so two never do so at once; who reads one
//! looks at the version before and after, and an entry that changed meanwhile counts as free.
#![allow(
    unsafe_code,
    reason = "memory shared with the kernel; it is only reached as atomic words"
)]

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::layout::{CLEARING, Counts, GIVING, Key, VERSION_STEP, WAYS, WORKERS_MAX};

/// Bytes of an entry.
const ENTRY: usize = 128;

/// An entry as `bpf/first.c` has it.
#[repr(C, align(128))]
struct Entry {
    version: AtomicU32,
    low: AtomicU32,
    high: AtomicU32,
    low_port: AtomicU16,
    high_port: AtomicU16,
    /// 0: free.
    protocol: AtomicU8,
    is_v6: AtomicU8,
    sent: AtomicU8,
    sent_data: AtomicU8,
    last: AtomicU32,
    is_quiet: AtomicU32,
    zero: AtomicU32,
    packets: [AtomicU64; 2],
    bytes: [AtomicU64; 2],
    low_words: [AtomicU32; 3],
    high_words: [AtomicU32; 3],
    rest: [AtomicU64; 5],
}

const _: () = assert!(size_of::<Entry>() == ENTRY);

/// Memory of a map.
#[derive(Debug)]
struct Mapped {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is only reached as atomics, and stays mapped as long as `Mapped`.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn of(map: BorrowedFd<'_>, bytes: usize) -> io::Result<Mapped> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let anywhere = std::ptr::null_mut();
        // SAFETY: the kernel chooses an address where nothing else is mapped.
        let at = unsafe { mmap(anywhere, bytes, protection, MapFlags::SHARED, map, 0) }?;
        let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapped { at, bytes })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: this is what `of` mapped, and nobody has a reference into it any more.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

/// The entries of all workers, and who sleeps.
#[derive(Debug)]
pub struct Table {
    entries: Mapped,
    asleep: Mapped,
    workers: u32,
    /// Sets of a worker.
    sets: u32,
    seed: u64,
}

impl Table {
    /// Maps the maps `table` and `asleep` of the program.
    pub fn map(
        table: BorrowedFd<'_>,
        asleep: BorrowedFd<'_>,
        (workers, sets): (u32, u32),
        seed: u64,
    ) -> io::Result<Table> {
        let entries = workers as usize * sets as usize * WAYS;
        Ok(Table {
            entries: Mapped::of(table, entries * ENTRY)?,
            asleep: Mapped::of(asleep, WORKERS_MAX as usize * size_of::<u64>())?,
            workers,
            sets,
            seed,
        })
    }

    /// A worker is about to sleep, so that the next packet for it wakes it.
    pub fn say_asleep(&self, worker: u32) {
        if worker < WORKERS_MAX {
            // SAFETY: the map has a word for each worker, a page's beginning is aligned, any bytes make an integer, and the kernel
            // reads and writes whole words.
            let word = unsafe {
                self.asleep
                    .at
                    .cast::<AtomicU64>()
                    .add(worker as usize)
                    .as_ref()
            };
            // Ordered before the look at the ring that follows.
            word.store(1, Ordering::SeqCst);
        }
    }

    fn entries(&self) -> &[Entry] {
        let count = self.entries.bytes / ENTRY;
        // SAFETY: the mapping has so many entries, begins at a page and so is aligned, and lives as long as `self`. An entry is
        // atomics, of which any bytes are values, and the kernel reads and writes each of them as a whole.
        unsafe { std::slice::from_raw_parts(self.entries.at.as_ptr().cast(), count) }
    }

    /// Entries of a worker, numbered from 0.
    pub fn len(&self) -> usize {
        self.sets as usize * WAYS
    }

    /// What was counted at entry `number` of a worker, if a flow has it that was heard of within `ticks` before `now`.
    #[inline]
    pub fn read(&self, worker: u32, number: usize, now: u32, ticks: u32) -> Option<(Key, Counts)> {
        let entry = &self.entries()[worker as usize * self.len() + number];
        let version = entry.version.load(Ordering::Acquire);
        let last = entry.last.load(Ordering::Relaxed);
        if version & (GIVING | CLEARING) != 0 || is_before(last, now.wrapping_sub(ticks)) {
            return None;
        }
        let key = entry.key()?;
        let load = |words: &[AtomicU64; 2]| [0, 1].map(|i| words[i].load(Ordering::Relaxed));
        let counts = Counts {
            packets: load(&entry.packets),
            bytes: load(&entry.bytes),
            last,
            version,
        };
        // Orders what was read before the second look at the version.
        fence(Ordering::Acquire);
        (entry.version.load(Ordering::Relaxed) == version).then_some((key, counts))
    }

    fn find(&self, key: &Key) -> Option<&Entry> {
        let hash = key.hash(self.seed);
        let worker = match self.workers {
            1 => 0,
            workers => (hash >> 40) as u32 % workers,
        };
        let set = (worker * self.sets + (hash as u32 & (self.sets - 1))) as usize;
        let ways = &self.entries()[set * WAYS..(set + 1) * WAYS];
        ways.iter().find(|entry| {
            let version = entry.version.load(Ordering::Acquire);
            version & GIVING == 0 && entry.key().as_ref() == Some(key)
        })
    }

    /// A flow needs no more packets.
    #[inline]
    pub fn say_enough(&self, key: &Key) {
        if let Some(entry) = self.find(key) {
            entry.is_quiet.store(1, Ordering::Relaxed);
        }
    }

    /// Frees the entry of a flow, if it still has the version.
    pub fn free(&self, key: &Key, version: u32) {
        let Some(entry) = self.find(key) else {
            return;
        };
        let swap = |from, to| {
            entry
                .version
                .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
        };
        // If it fails, the kernel has begun something else with the entry.
        if swap(version, version | GIVING).is_ok() {
            entry.protocol.store(0, Ordering::Relaxed);
            let _ = swap(version | GIVING, version.wrapping_add(VERSION_STEP));
        }
    }
}

/// Whether one time in ticks, which wrap, is before another.
fn is_before(time: u32, other: u32) -> bool {
    (time.wrapping_sub(other) as i32) < 0
}

impl Entry {
    /// `None`: it is free.
    fn key(&self) -> Option<Key> {
        let protocol = self.protocol.load(Ordering::Relaxed);
        if protocol == 0 {
            return None;
        }
        let is_v6 = self.is_v6.load(Ordering::Relaxed);
        let load = |word: &AtomicU32| word.load(Ordering::Relaxed);
        let address = |last: &AtomicU32, words: &[AtomicU32; 3]| match is_v6 {
            0 => [load(last), 0, 0, 0],
            _ => [
                load(last),
                load(&words[0]),
                load(&words[1]),
                load(&words[2]),
            ],
        };
        Some(Key {
            low: address(&self.low, &self.low_words),
            high: address(&self.high, &self.high_words),
            low_port: self.low_port.load(Ordering::Relaxed),
            high_port: self.high_port.load(Ordering::Relaxed),
            protocol,
            is_v6,
        })
    }
}
