//! The writer of a service's shared memory. It never waits and reads nothing that a reader could
//! have written.
//!
//! Counters, gauges and histograms change in memory of the writer's own, at the cost of a load and
//! a store, and are copied out by [`Writer::publish`]. Samples are written in place, at once.

#[cfg(not(loom))]
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::egress::{Egress, Slot};
use crate::error::Error;
use crate::layout::{
    BITMAP, BUCKETS, ENDED, EPOCH, Field, GENERATION, HISTOGRAM_BUFFER_HEADER, HISTOGRAMS_HEADER,
    IDENTITY_WORDS, Kind, Layout, NAME, NAME_WORDS, PUBLISHED, ROWS_USED, SAMPLES, TIME, WRITER,
    to_words,
};
use crate::memory::Memory;
use crate::publication::{BUFFERS, Publication};
use crate::reservoirs;
use crate::sample::{self, SAMPLE_WORDS, Sample};
use crate::sync::Ordering;

/// What a file is created for.
#[derive(Clone, Copy, Debug)]
pub struct Service<'a> {
    /// The service's name, at most 64 bytes.
    pub name: &'a str,
    /// Slots for egresses.
    pub egresses: usize,
    /// What is measured.
    pub fields: &'a [Field],
    /// Now, ns since the Unix epoch.
    pub epoch_ns: u64,
    /// Which of the service's writers this is, from 0, and how many there are.
    pub writer: (usize, usize),
    /// Seed of the random slots of reservoirs, so that replays repeat.
    pub seed: u64,
}

/// A counter or gauge of the schema.
#[derive(Clone, Copy, Debug)]
pub struct Value {
    /// In a row.
    offset: usize,
}

/// A measure of the schema: its samples, its histogram, or both.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    samples: Option<Samples>,
    /// Offset of the histogram in a buffer.
    histogram: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Samples {
    /// Position among the fields with samples.
    index: usize,
    /// In an egress's reservoirs.
    offset: usize,
    is_window: bool,
}

/// The writer of one file. Dropping it publishes everything and marks the file as ended.
pub struct Writer {
    memory: Memory,
    /// For handing out and for readers of this process: it cannot be written through.
    #[cfg(not(loom))]
    file: Option<OwnedFd>,
    layout: Layout,
    /// The next frame.
    frame: Vec<u64>,
    /// The next buffer of each slot's histograms.
    histograms: Vec<u64>,
    /// Whether a slot's histograms changed since they were published.
    changed: Vec<bool>,
    /// The slot whose histograms are looked at next.
    turn: usize,
    /// Samples ever taken, by slot and field with samples. Never start again, see `sample`.
    taken: Vec<u64>,
    /// Fields with samples.
    sampled: usize,
    /// Slots in use, by the identity of their egress.
    order: Vec<u32>,
    /// The last one given.
    incarnation: u32,
    random: u64,
}

impl Writer {
    /// A file in memory of this process, for tests.
    pub fn in_memory(service: &Service<'_>) -> Result<Self, Error> {
        let layout = Layout::new(service.egresses, service.fields)?;
        let memory = Memory::heap(layout.words);
        Self::begin(memory, layout, service)
    }

    /// Writes what stays as it is.
    pub(crate) fn begin(
        memory: Memory,
        layout: Layout,
        service: &Service<'_>,
    ) -> Result<Self, Error> {
        if service.name.len() > 8 * NAME_WORDS {
            return Err(Error::Schema("a service's name has at most 64 bytes"));
        }
        let store = |word: usize, value| memory[word].store(value, Ordering::Relaxed);
        layout.write(store);
        store(EPOCH, service.epoch_ns);
        store(WRITER, service.writer.0 as u64);
        store(WRITER + 1, service.writer.1 as u64);
        (NAME..)
            .zip(to_words(service.name, NAME_WORDS))
            .for_each(|(word, value)| store(word, value));
        let sampled = layout.fields.iter().filter(|field| field.kind.is_sampled()).count();
        Ok(Self {
            frame: vec![0; layout.frame_words],
            histograms: vec![0; layout.egresses * layout.histogram_words],
            changed: vec![false; layout.egresses],
            turn: 0,
            taken: vec![0; layout.egresses * sampled],
            sampled,
            order: Vec::with_capacity(layout.egresses),
            incarnation: 0,
            // Odd constant, so that seed 0 works too.
            random: service.seed ^ 0x9e37_79b9_7f4a_7c15,
            memory,
            #[cfg(not(loom))]
            file: None,
            layout,
        })
    }

    /// The counter or gauge of this name.
    pub fn value(&self, name: &str) -> Option<Value> {
        self.layout.field(name, Kind::is_value).map(|field| Value { offset: field.offset })
    }

    /// The measure of this name.
    pub fn measure(&self, name: &str) -> Option<Measure> {
        let fields = self.layout.fields.iter().filter(|field| field.kind.is_sampled());
        let samples =
            fields.enumerate().find(|(_, field)| field.name == name).map(|(index, field)| {
                Samples { index, offset: field.offset, is_window: field.kind == Kind::Window }
            });
        let histogram = self.layout.field(name, |kind| kind == Kind::Histogram);
        let histogram = histogram.map(|field| field.offset);
        (samples.is_some() || histogram.is_some()).then_some(Measure { samples, histogram })
    }

    /// The slot of an egress that was inserted.
    pub fn lookup(&self, egress: &Egress) -> Option<Slot> {
        self.place(egress).ok().map(|place| self.slot(self.order[place]))
    }

    /// Position of an egress in `order`, or where it belongs.
    fn place(&self, egress: &Egress) -> Result<usize, usize> {
        let egress = egress.to_words();
        self.order.binary_search_by_key(&egress, |index| {
            let row = self.row(*index as usize);
            [self.frame[row + 1], self.frame[row + 2], self.frame[row + 3]]
        })
    }

    fn slot(&self, index: u32) -> Slot {
        Slot { index, incarnation: self.frame[self.row(index as usize)] as u32 }
    }

    fn row(&self, index: usize) -> usize {
        self.layout.rows + index * self.layout.row_words
    }

    /// The row of a slot, if its egress still has it.
    #[inline]
    fn row_of(&self, slot: Slot) -> Option<usize> {
        let row = self.row(slot.index as usize);
        let incarnation = u64::from(slot.incarnation);
        (slot.incarnation != 0 && self.frame.get(row) == Some(&incarnation)).then_some(row)
    }

    /// The egress's slot, a new one where it has none: all its values are zero, and readers see it
    /// after the next [`publish`](Self::publish). `None` if no slot is free.
    pub fn insert(&mut self, egress: &Egress) -> Option<Slot> {
        let place = match self.place(egress) {
            Ok(place) => return Some(self.slot(self.order[place])),
            Err(place) => place,
        };
        let is_free = |index: &usize| self.frame[BITMAP + index / 64] >> (index % 64) & 1 == 0;
        let index = (0..self.layout.egresses).find(is_free)?;
        self.order.insert(place, index as u32);
        self.incarnation = self.incarnation.wrapping_add(1).max(1);
        let incarnation = u64::from(self.incarnation);
        let row = self.row(index);
        self.frame[row] = incarnation;
        self.frame[row + 1..row + IDENTITY_WORDS].copy_from_slice(&egress.to_words());
        self.frame[BITMAP + index / 64] |= 1 << (index % 64);
        self.frame[ROWS_USED] = self.frame[ROWS_USED].max(index as u64 + 1);
        self.frame[GENERATION] += 1;
        let histograms = &mut self.histograms[index * self.layout.histogram_words..];
        histograms[..self.layout.histogram_words].fill(0);
        histograms[0] = incarnation;
        self.changed[index] = true;
        let reservoirs = self.layout.reservoirs + index * self.layout.reservoir_stride;
        let reservoirs = &self.memory[reservoirs..][..self.layout.reservoir_stride];
        reservoirs::begin(reservoirs, incarnation);
        Some(Slot { index: index as u32, incarnation: self.incarnation })
    }

    /// Frees a slot. Readers see it after the next [`publish`](Self::publish).
    pub fn remove(&mut self, slot: Slot) {
        let Some(row) = self.row_of(slot) else { return };
        let index = slot.index as usize;
        self.order.retain(|used| *used != slot.index);
        self.frame[row..row + self.layout.row_words].fill(0);
        self.frame[BITMAP + index / 64] &= !(1 << (index % 64));
        self.frame[ROWS_USED] = self.order.iter().max().map_or(0, |last| u64::from(*last) + 1);
        self.frame[GENERATION] += 1;
        self.changed[index] = false;
    }

    /// Adds to a counter or gauge.
    #[inline]
    pub fn add(&mut self, slot: Slot, value: Value, n: u64) {
        if let Some(row) = self.row_of(slot) {
            let word = &mut self.frame[row + value.offset];
            *word = word.wrapping_add(n);
        }
    }

    /// Adds to several counters or gauges; `false`, and nothing is added, if the slot's egress no
    /// longer has it.
    #[inline]
    pub fn add_all(&mut self, slot: Slot, values: &[(Value, u64)]) -> bool {
        let Some(row) = self.row_of(slot) else { return false };
        let row = &mut self.frame[row..row + self.layout.row_words];
        for (value, n) in values {
            row[value.offset] = row[value.offset].wrapping_add(*n);
        }
        true
    }

    /// A counter or gauge; `None` if the slot's egress no longer has it.
    pub fn get(&self, slot: Slot, value: Value) -> Option<u64> {
        self.row_of(slot).map(|row| self.frame[row + value.offset])
    }

    /// Adds counters, gauges and histograms of an egress to another's, and frees its slot. Its
    /// samples are dropped.
    pub fn fold(&mut self, slot: Slot, into: Slot) {
        let (Some(from), Some(to)) = (self.row_of(slot), self.row_of(into)) else { return };
        if from == to {
            return;
        }
        for word in IDENTITY_WORDS..self.layout.row_words {
            self.frame[to + word] = self.frame[to + word].wrapping_add(self.frame[from + word]);
        }
        let words = self.layout.histogram_words;
        let [from, to] = [slot, into].map(|slot| slot.index as usize * words);
        for word in HISTOGRAM_BUFFER_HEADER..words {
            let sum = self.histograms[to + word].wrapping_add(self.histograms[from + word]);
            self.histograms[to + word] = sum;
        }
        self.changed[into.index as usize] = true;
        self.remove(slot);
    }

    /// Subtracts from a gauge, at most what it has.
    #[inline]
    pub fn subtract(&mut self, slot: Slot, value: Value, n: u64) {
        if let Some(row) = self.row_of(slot) {
            let word = &mut self.frame[row + value.offset];
            *word = word.saturating_sub(n);
        }
    }

    /// Takes a sample of a measure.
    #[inline]
    pub fn sample(&mut self, slot: Slot, measure: Measure, time_ns: u64, value: u64) {
        if self.row_of(slot).is_none() {
            return;
        }
        let index = slot.index as usize;
        if let Some(histogram) = measure.histogram {
            let place = index * self.layout.histogram_words + histogram;
            let words = &mut self.histograms[place..=place + BUCKETS];
            words[0] = words[0].wrapping_add(value);
            words[1 + bucket(value)] += 1;
            self.changed[index] = true;
        }
        if let Some(samples) = measure.samples {
            let taken = &mut self.taken[index * self.sampled + samples.index];
            *taken += 1;
            let number = *taken;
            let kept = match samples.is_window {
                true => number % SAMPLES as u64,
                false => self.random() % SAMPLES as u64,
            };
            let reservoirs = self.layout.reservoirs + index * self.layout.reservoir_stride;
            let place = reservoirs + samples.offset + kept as usize * SAMPLE_WORDS;
            let sample = Sample { number, time_ns, value };
            sample::write(&self.memory[place..place + SAMPLE_WORDS], sample);
        }
    }

    /// The next number of SplitMix64.
    #[inline]
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Copies out all counters and gauges, and the changed histograms of one egress, each in
    /// turn, so that the cost of a call stays small.
    pub fn publish(&mut self, now_ns: u64) {
        self.publish_frame(now_ns);
        let used = self.frame[ROWS_USED] as usize;
        let after = self.changed[..used].iter().skip(self.turn).position(|changed| *changed);
        let next = match after {
            Some(after) => Some(self.turn + after),
            None => self.changed[..used].iter().position(|changed| *changed),
        };
        if let Some(index) = next {
            self.publish_histograms(index, now_ns);
            self.turn = index + 1;
        }
    }

    /// Copies out everything.
    pub fn publish_all(&mut self, now_ns: u64) {
        self.publish_frame(now_ns);
        for index in 0..self.frame[ROWS_USED] as usize {
            if self.changed[index] {
                self.publish_histograms(index, now_ns);
            }
        }
    }

    fn publish_frame(&mut self, now_ns: u64) {
        self.frame[TIME] = now_ns;
        let frames = &self.memory[self.layout.frames..][..BUFFERS * self.layout.frame_words];
        let publication = Publication { count: &self.memory[PUBLISHED], buffers: frames };
        publication.publish(&self.frame[..self.row(self.frame[ROWS_USED] as usize)]);
    }

    fn publish_histograms(&mut self, index: usize, now_ns: u64) {
        self.changed[index] = false;
        let words = self.layout.histogram_words;
        let image = &mut self.histograms[index * words..][..words];
        image[1] = now_ns;
        let region = self.layout.histograms + index * self.layout.histogram_stride;
        let region = &self.memory[region..][..self.layout.histogram_stride];
        let buffers = &region[HISTOGRAMS_HEADER..];
        Publication { count: &region[0], buffers }.publish(image);
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    #[cfg(not(loom))]
    pub(crate) fn set_file(&mut self, file: OwnedFd) {
        self.file = Some(file);
    }

    /// The file, for [`hand_out`](crate::hand_out): who has it can read and not write. `None` for
    /// memory of this process.
    #[cfg(not(loom))]
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.publish_all(self.frame[TIME]);
        // Release: who sees the end sees all that was published.
        self.memory[ENDED].store(1, Ordering::Release);
    }
}

/// The histogram bucket of a value: the position of its highest bit.
#[inline]
fn bucket(value: u64) -> usize {
    (value | 1).ilog2() as usize
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
