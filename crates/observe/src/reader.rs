//! Readers of a service's shared memory: they check what the file says once, then copy.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use crate::egress::{Egress, Slot};
use crate::error::Error;
use crate::layout::{
    BITMAP, BUCKETS, ENDED, EPOCH, Field, GENERATION, HISTOGRAM_BUFFER_HEADER, HISTOGRAMS_HEADER,
    IDENTITY_WORDS, Kind, Layout, NAME, NAME_WORDS, PUBLISHED, ROWS_USED, TIME, WRITER, from_words,
};
use crate::memory::{Memory, map_read_only};
use crate::publication::{BUFFERS, Publication, copy};
use crate::reservoirs;
use crate::sample::Sample;
use crate::sync::Ordering;
use crate::writer::Writer;

/// A service's file, mapped read-only.
pub struct Reader {
    memory: Memory,
    layout: Layout,
}

impl Reader {
    /// Maps a file in a folder.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::from_fd(File::open(path)?)
    }

    /// Maps a file that [`receive`](crate::receive) gave.
    pub fn from_fd(file: impl AsFd) -> Result<Self, Error> {
        Self::new(map_read_only(file)?)
    }

    /// A reader in the writer's own process.
    pub fn of(writer: &Writer) -> Result<Self, Error> {
        match writer.file() {
            Some(file) => Self::from_fd(file),
            None => Self::new(writer.memory().clone()),
        }
    }

    pub(crate) fn new(memory: Memory) -> Result<Self, Error> {
        // The layout is read once. What the file says later does not move anything.
        let layout = Layout::read(memory.len(), |word| memory[word].load(Ordering::Relaxed))?;
        Ok(Self { memory, layout })
    }

    fn word(&self, word: usize) -> u64 {
        self.memory[word].load(Ordering::Relaxed)
    }

    /// The service's name.
    pub fn name(&self) -> Option<String> {
        from_words((NAME..NAME + NAME_WORDS).map(|word| self.word(word)))
    }

    /// When the writer began, ns since the Unix epoch.
    pub fn epoch_ns(&self) -> u64 {
        self.word(EPOCH)
    }

    /// Which of the service's writers this file is of, from 0, and how many there are.
    pub fn writer(&self) -> (u64, u64) {
        (self.word(WRITER), self.word(WRITER + 1))
    }

    /// Whether the service was removed or its writer ended. A writer that was killed does not say
    /// so: then [`Snapshot::time_ns`] stays where it is.
    pub fn is_ended(&self) -> bool {
        self.word(ENDED) != 0
    }

    /// The schema.
    pub fn fields(&self) -> &[Field] {
        &self.layout.fields
    }

    /// The field of this name and kind.
    pub fn field(&self, name: &str, kind: Kind) -> Option<&Field> {
        self.layout.field(name, |other| other == kind)
    }

    /// An empty snapshot to read into.
    pub fn snapshot(&self) -> Snapshot {
        let words = vec![0; self.layout.frame_words];
        Snapshot { words, rows: self.layout.rows, row_words: self.layout.row_words, used: 0 }
    }

    /// Copies all egresses with their counters and gauges, as they were at one moment.
    ///
    /// # Errors
    /// [`Error::Busy`], and [`Error::Malformed`] where the copy is nothing that a writer publishes;
    /// then the snapshot is empty.
    pub fn read(&self, into: &mut Snapshot) -> Result<(), Error> {
        let frames = &self.memory[self.layout.frames..][..BUFFERS * self.layout.frame_words];
        let publication = Publication { count: &self.memory[PUBLISHED], buffers: frames };
        into.used = 0;
        into.words.resize(self.layout.frame_words, 0);
        let used = publication.read(|words| {
            let used = words[ROWS_USED].load(Ordering::Relaxed);
            let used = usize::try_from(used).ok().filter(|used| *used <= self.layout.egresses)?;
            copy(&words[..self.layout.rows + used * self.layout.row_words], &mut into.words);
            Some(used)
        });
        into.used = used.ok_or(Error::Busy)?.ok_or(Error::Malformed("more rows than slots"))?;
        (into.rows, into.row_words) = (self.layout.rows, self.layout.row_words);
        Ok(())
    }

    /// Copies the histograms of an egress.
    ///
    /// # Errors
    /// [`Error::Changed`] if the slot has another egress, or none of the egress's histograms were
    /// published yet; [`Error::Busy`].
    pub fn histograms(&self, slot: Slot) -> Result<Histograms, Error> {
        let region = self.part(slot, self.layout.histograms, self.layout.histogram_stride)?;
        let region = &self.memory[region..][..self.layout.histogram_stride];
        let mut words = vec![0; self.layout.histogram_words];
        let buffers = &region[HISTOGRAMS_HEADER..];
        let publication = Publication { count: &region[0], buffers };
        publication.read(|from| copy(from, &mut words)).ok_or(Error::Busy)?;
        match words[0] == u64::from(slot.incarnation) {
            true => Ok(Histograms { words }),
            false => Err(Error::Changed),
        }
    }

    /// The samples of an egress in a field of kind reservoir or window, oldest first; those that
    /// were being overwritten are left out.
    ///
    /// # Errors
    /// [`Error::Changed`] if the slot has another egress.
    pub fn samples(&self, slot: Slot, field: &Field) -> Result<Vec<Sample>, Error> {
        if !field.kind.is_sampled() || !self.layout.fields.contains(field) {
            return Err(Error::Schema("not a field of this file with samples"));
        }
        let region = self.part(slot, self.layout.reservoirs, self.layout.reservoir_stride)?;
        let region = &self.memory[region..][..self.layout.reservoir_stride];
        let reservoir = field.offset..field.offset + field.words;
        let mut samples = Vec::with_capacity(crate::layout::SAMPLES);
        let incarnation = slot.incarnation.into();
        if !reservoirs::read(region, incarnation, reservoir, |sample| samples.push(sample)) {
            return Err(Error::Changed);
        }
        samples.sort_unstable_by_key(|sample| sample.number);
        Ok(samples)
    }

    /// Where an egress's part of a region begins.
    fn part(&self, slot: Slot, region: usize, stride: usize) -> Result<usize, Error> {
        let index = slot.index as usize;
        let is_slot = index < self.layout.egresses && slot.incarnation != 0;
        is_slot.then(|| region + index * stride).ok_or(Error::Changed)
    }
}

/// All egresses of a service with their counters and gauges at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    words: Vec<u64>,
    rows: usize,
    row_words: usize,
    used: usize,
}

impl Snapshot {
    /// Changes whenever an egress was added or removed.
    pub fn generation(&self) -> u64 {
        self.words[GENERATION]
    }

    /// When it was published, ns since the Unix epoch; 0 before the first time.
    pub fn time_ns(&self) -> u64 {
        self.words[TIME]
    }

    /// The egresses in use.
    pub fn egresses(&self) -> impl Iterator<Item = Row<'_>> {
        let is_used = |index: &usize| self.words[BITMAP + index / 64] >> (index % 64) & 1 == 1;
        (0..self.used).filter(is_used).map(|index| {
            let words = &self.words[self.rows + index * self.row_words..][..self.row_words];
            Row { index, words }
        })
    }
}

/// An egress of a snapshot.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    index: usize,
    words: &'a [u64],
}

impl Row<'_> {
    /// Its slot, for [`Reader::samples`] and [`Reader::histograms`].
    pub fn slot(&self) -> Slot {
        Slot { index: self.index as u32, incarnation: self.words[0] as u32 }
    }

    /// What it is.
    pub fn egress(&self) -> Egress {
        Egress::from_words([self.words[1], self.words[2], self.words[3]])
    }

    /// The value of a field of kind counter or gauge of the same file.
    pub fn value(&self, field: &Field) -> Option<u64> {
        let is_value = field.kind.is_value() && field.offset >= IDENTITY_WORDS;
        self.words.get(field.offset).copied().filter(|_| is_value)
    }
}

/// The histograms of an egress at one moment.
#[derive(Clone, Debug)]
pub struct Histograms {
    words: Vec<u64>,
}

impl Histograms {
    /// When they were published, ns since the Unix epoch.
    pub fn time_ns(&self) -> u64 {
        self.words[1]
    }

    /// The sum of all values of a field of kind histogram of the same file, and how many had their
    /// highest bit at each position.
    pub fn histogram(&self, field: &Field) -> Option<(u64, &[u64])> {
        let is_histogram = field.kind == Kind::Histogram && field.offset >= HISTOGRAM_BUFFER_HEADER;
        let words =
            self.words.get(field.offset..=field.offset + BUCKETS).filter(|_| is_histogram)?;
        Some((words[0], &words[1..]))
    }
}

#[cfg(test)]
mod tests;
