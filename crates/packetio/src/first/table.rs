//! The flow table, in memory shared with the kernel: array maps, mapped into this process.
//!
//! An entry's version identifies its counts: every flow gets another one, also a flow whose counts
//! restart or that returns elsewhere. A writer swaps the version first, so there is one at a time;
//! a reader checks the version before and after, and treats an entry that changed meanwhile as
//! free.
#![allow(unsafe_code, reason = "memory shared with the kernel; it is only reached as atomic words")]

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

use rustix::mm::MapFlags;

use super::hash::Secrets;
use super::layout::{
    CLAIMED_SHIFT, CLEARING, DEPTHS_MAX, ELEMENTS_MAX, Element, GIVING, IS_KEPT, IS_MARKED,
    IS_OURS, KernelCounts, Key, REPORTED_SHIFT, Reported, VERSION_STEP, WAYS, WORKERS_MAX,
    WRITTEN_SHIFT,
};
use crate::mapping::Mapping;

/// An entry as in `bpf/first.h`: one cache line.
#[repr(C, align(64))]
struct Entry {
    ends: AtomicU64,
    /// 0: free.
    kind: AtomicU64,
    version: AtomicU32,
    last: AtomicU32,
    /// Packets handed out, and those with payload; of a flow that the kernel labels, its edition,
    /// and its class once it has one.
    sent: [AtomicU8; 2],
    is_quiet: AtomicU8,
    flags: AtomicU8,
    /// Program only.
    sent_bytes: AtomicU32,
    packets: [AtomicU64; 2],
    bytes: [AtomicU64; 2],
}

/// The other words of IPv6 addresses.
type Words = [AtomicU64; 3];

/// A series as in `bpf/series.h`.
#[repr(C)]
struct Series {
    state: AtomicU64,
    answers: [AtomicU32; DEPTHS_MAX],
    elements: [AtomicU64; ELEMENTS_MAX],
}

const _: () = assert!(size_of::<Entry>() == 64 && size_of::<Words>() == 24);
const _: () = assert!(size_of::<Series>() == 128);

/// The values of a mapped map whose values have no padding.
///
/// # Safety
/// `T` consists of atomic integers only and matches the map's values, which the kernel reads and
/// writes integer by integer.
unsafe fn values<T>(map: &Mapping) -> &[T] {
    // SAFETY: the mapping has that many values, starts at a page and so is aligned, and lives as
    // long as the slice; any bytes are values.
    unsafe { std::slice::from_raw_parts(map.start().as_ptr().cast(), map.bytes() / size_of::<T>()) }
}

/// The entries of all workers, and which workers sleep.
#[derive(Debug)]
pub struct Table {
    entries: Mapping,
    words: Mapping,
    asleep: Mapping,
    /// Only where the kernel labels flows.
    series: Option<Mapping>,
    workers: u32,
    /// Sets per worker.
    sets: u32,
    secrets: Secrets,
}

impl Table {
    /// Maps the program's maps `table`, `table_words` and `asleep`; and `series`, if it labels.
    pub fn map(
        [table, words, asleep]: [BorrowedFd<'_>; 3],
        series: Option<BorrowedFd<'_>>,
        (workers, sets): (u32, u32),
        secrets: Secrets,
    ) -> io::Result<Table> {
        let entries = workers as usize * sets as usize * WAYS;
        let map = |map, bytes| Mapping::shared(map, bytes, 0, MapFlags::empty());
        Ok(Table {
            entries: map(table, entries * size_of::<Entry>())?,
            words: map(words, entries * size_of::<Words>())?,
            asleep: map(asleep, WORKERS_MAX as usize * size_of::<u64>())?,
            series: series.map(|it| map(it, entries * size_of::<Series>())).transpose()?,
            workers,
            sets,
            secrets,
        })
    }

    /// Marks a worker as asleep, so that the next packet for it wakes it.
    pub fn set_asleep(&self, worker: u32) {
        // SAFETY: one word per worker.
        let words: &[AtomicU64] = unsafe { values(&self.asleep) };
        if let Some(word) = words.get(worker as usize) {
            // Ordered before the following check of the ring.
            word.store(1, Ordering::SeqCst);
        }
    }

    fn entries(&self) -> &[Entry] {
        // SAFETY: `Entry` has the program's layout.
        unsafe { values(&self.entries) }
    }

    /// The key at an entry; `None` if it is free.
    fn key(&self, number: usize) -> Option<Key> {
        let entry = &self.entries()[number];
        let kind = entry.kind.load(Ordering::Relaxed);
        // SAFETY: three words per entry.
        let words: &[Words] = unsafe { values(&self.words) };
        let word = |i| match i {
            0 => &entry.ends,
            _ => &words[number][i - 1],
        };
        (kind != 0).then(|| Key::from_words(kind, |i| word(i).load(Ordering::Relaxed)))
    }

    /// Entries of a worker, numbered from 0.
    pub fn len(&self) -> usize {
        self.sets as usize * WAYS
    }

    /// The counts at entry `number` of a worker, if its flow had a packet within `ticks` before
    /// `now`.
    #[inline]
    pub fn read(
        &self,
        worker: u32,
        number: usize,
        now: u32,
        ticks: u32,
    ) -> Option<(Key, KernelCounts)> {
        let number = worker as usize * self.len() + number;
        let entry = &self.entries()[number];
        let version = entry.version.load(Ordering::Acquire);
        let last = entry.last.load(Ordering::Relaxed);
        if version & (GIVING | CLEARING) != 0 || is_before(last, now.wrapping_sub(ticks)) {
            return None;
        }
        let key = self.key(number)?;
        let load = |words: &[AtomicU64; 2]| [0, 1].map(|i| words[i].load(Ordering::Relaxed));
        let counts = KernelCounts {
            packets: load(&entry.packets),
            bytes: load(&entry.bytes),
            last,
            version,
        };
        // Orders the reads before the second read of the version.
        fence(Ordering::Acquire);
        (entry.version.load(Ordering::Relaxed) == version).then_some((key, counts))
    }

    /// The series of an entry of this version whose elements are all written, its state, and where
    /// those begin and end that are in no record.
    fn unreported(&self, number: usize, version: u32) -> Option<(&Series, u64, [u8; 2])> {
        if self.entries()[number].flags.load(Ordering::Relaxed) & IS_OURS == 0 {
            return None;
        }
        // SAFETY: `Series` has the program's layout.
        let series: &[Series] = unsafe { values(self.series.as_ref()?) };
        let state = series[number].state.load(Ordering::Acquire);
        let field = |shift: u32| (state >> shift) as u8;
        let (written, from) = (field(WRITTEN_SHIFT), field(REPORTED_SHIFT));
        let is_whole = state as u32 == version && written == field(CLAIMED_SHIFT);
        (is_whole && from < written).then(|| (&series[number], state, [from, written]))
    }

    /// Elements of all workers that are in no record.
    #[cfg(test)]
    pub fn elements_kept(&self) -> u64 {
        let kept = self.entries().iter().enumerate().map(|(number, entry)| {
            let version = entry.version.load(Ordering::Acquire);
            let unreported = self.unreported(number, version);
            unreported.map_or(0, |(_, _, [from, to])| u64::from(to - from))
        });
        kept.sum()
    }

    /// Whether an entry of a worker has elements that are in no record.
    pub fn has_unreported(&self, worker: u32, number: usize, version: u32) -> bool {
        self.unreported(worker as usize * self.len() + number, version).is_some()
    }

    /// Takes the elements of an entry that are in no record; the program will not report them.
    pub fn take_unreported(&self, worker: u32, number: usize, version: u32) -> Option<Reported> {
        let number = worker as usize * self.len() + number;
        let (series, state, [from, to]) = self.unreported(number, version)?;
        let entry = &self.entries()[number];
        let flags = entry.flags.load(Ordering::Relaxed);
        // The flow has a label.
        let class = entry.sent[1].load(Ordering::Relaxed);
        let new = state + (u64::from(to - from) << REPORTED_SHIFT);
        series.state.compare_exchange(state, new, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        let element = |i: usize| Element(series.elements[i].load(Ordering::Relaxed));
        let answer = |i: usize| series.answers[i].load(Ordering::Relaxed);
        Some(Reported {
            from,
            to,
            class,
            marked: flags & (IS_MARKED | IS_KEPT),
            answers: std::array::from_fn(answer),
            elements: std::array::from_fn(element),
            ..Reported::default()
        })
    }

    fn find(&self, key: &Key) -> Option<&Entry> {
        let hash = self.secrets.hash(key);
        let worker = match self.workers {
            1 => 0,
            workers => (hash >> 40) as u32 % workers,
        };
        let set = (worker * self.sets + (hash as u32 & (self.sets - 1))) as usize;
        let is_it = |number: &usize| {
            let version = self.entries()[*number].version.load(Ordering::Acquire);
            version & GIVING == 0 && self.key(*number).as_ref() == Some(key)
        };
        let number = (set * WAYS..(set + 1) * WAYS).find(is_it)?;
        Some(&self.entries()[number])
    }

    /// Frees the entry of a flow if it still has this version.
    pub fn free(&self, key: &Key, version: u32) {
        let Some(entry) = self.find(key) else {
            return;
        };
        let swap = |from, to| {
            entry.version.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
        };
        // On failure the kernel is using the entry for something else.
        if swap(version, version | GIVING).is_ok() {
            entry.kind.store(0, Ordering::Relaxed);
            let _ = swap(version | GIVING, version.wrapping_add(VERSION_STEP));
        }
    }
}

/// Tells the kernel which flows need no more packets.
#[derive(Clone, Debug)]
pub struct Enough(pub(super) Arc<Table>);

impl Enough {
    /// The flow between these ends, in either order, needs no more packets. The kernel only counts
    /// its packets from now on, except those with SYN, FIN or RST, until the flow is silent for
    /// long or starts anew. Where it labels the flow itself, it knows.
    #[inline]
    pub fn note(&self, protocol: u8, ends: [(IpAddr, u16); 2]) {
        if let Some(entry) = self.0.find(&Key::new(protocol, ends))
            && entry.flags.load(Ordering::Relaxed) & IS_OURS == 0
        {
            entry.is_quiet.store(1, Ordering::Relaxed);
        }
    }
}

/// Whether a time in ticks, which wrap, is before another.
fn is_before(time: u32, other: u32) -> bool {
    (time.wrapping_sub(other) as i32) < 0
}
