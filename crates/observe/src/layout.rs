//! The layout of a service's shared memory, byte by byte (version 1).
//!
//! All numbers are u64, little endian, aligned to 8 bytes; offsets and sizes count words of 8
//! bytes. Text is UTF-8, filled up with zero bytes. Times are ns since the Unix epoch.
//!
//! ```text
//! page 0    header, schema                      fixed, except for two words
//! FRAMES    3 frames of FRAME_WORDS             identities, counters and gauges of all egresses
//! HISTOGRAMS  EGRESSES × HISTOGRAM_STRIDE       one part per egress
//! RESERVOIRS  EGRESSES × RESERVOIR_STRIDE       one part per egress
//! ```
//!
//! Each of the three regions begins on a page.
//!
//! # Header
//!
//! | byte | word | name | value |
//! |---|---|---|---|
//! | 0 | 0 | magic | `FENXIOBS` |
//! | 8 | 1 | version | 1; another number means another layout |
//! | 16 | 2 | words | of the whole file |
//! | 24 | 3 | page | bytes, 4096 |
//! | 32 | 4 | epoch | when the writer began; another run has another epoch |
//! | 40 | 5 | egresses | slots for egresses, 1 to 4096 |
//! | 48 | 6 | buffers | 3 |
//! | 56 | 7 | fields | records of the schema |
//! | 64 | 8 | schema | offset of the first record, 64 |
//! | 72 | 9 | frames | offset of the first frame |
//! | 80 | 10 | frame words | of one frame |
//! | 88 | 11 | rows | offset of the first row in a frame |
//! | 96 | 12 | row words | of one row |
//! | 104 | 13 | histograms | offset |
//! | 112 | 14 | histogram stride | words per egress |
//! | 120 | 15 | histogram words | of one of its three buffers |
//! | 128 | 16 | reservoirs | offset |
//! | 136 | 17 | reservoir stride | words per egress |
//! | 144 | 18 | writer | which of the service's writers, from 0 |
//! | 152 | 19 | writers | how many files the service has: one per thread that writes |
//! | 192 | 24–31 | name | of the service, 64 bytes |
//! | 256 | 32 | published | count of frames published; changes |
//! | 320 | 40 | ended | 0, then 1 when nothing more will be written; changes |
//!
//! # Schema
//!
//! One record of 8 words per field.
//!
//! | byte | value |
//! |---|---|
//! | 0 | name, 32 bytes |
//! | 32 | unit, 8 bytes: `ns`, `bytes`, `packets`, `flows` |
//! | 40 | kind: 1 counter, 2 gauge, 3 reservoir, 4 window, 5 histogram |
//! | 48 | offset: in a row (1, 2), in an egress's reservoirs (3, 4), in a histogram buffer (5) |
//! | 56 | words |
//!
//! # Frame
//!
//! A block with three buffers, counted by `published`; see below for how to copy one.
//!
//! | word | value |
//! |---|---|
//! | 0 | generation: changes whenever an egress is added or removed |
//! | 1 | time of publication; a writer that publishes no more is dead |
//! | 2 | rows in use: one more than the highest slot that is active |
//! | 8 | bitmap: bit *i* mod 64 of word 8 + *i* / 64 is set where slot *i* has an egress |
//! | rows | one row per slot |
//!
//! A row is the egress's incarnation (no two egresses of a file share one; 0: none), its kind in
//! the low 32 bits with its port in the high 32, its address of 16 bytes, then counters and gauges.
//! Kinds: 1 server (IPv6 address or mapped IPv4, port), 2 next hop (MAC address in the first 6
//! bytes), 3 out-port (port: the interface's index), 4 all others together.
//!
//! # Histograms
//!
//! Per egress: `published`, seven words of nothing, then a block of three buffers, each with the
//! incarnation, the time of publication, and per histogram a sum and 64 buckets. Bucket *b* counts
//! values from 2ᵇ to 2ᵇ⁺¹ − 1, bucket 0 the value 0 too. Histograms are published in turn, one
//! egress with each frame, so they lag behind the counters.
//!
//! # Reservoirs and windows
//!
//! Per egress: the incarnation (0 while it is emptied), seven words of nothing, then 128 samples of
//! three words for each field: sequence (twice the sample's number; odd while it is written; 0 for
//! none), time, value.
//!
//! A *window* keeps the newest 128 samples. A *reservoir* puts each sample into a random slot
//! (Aquarius, Algorithm 1). That is an exponentially fading sample, not a uniform one: a sample
//! stays for 128 more on average. Readers that want a uniform sample of a period filter by time.
//!
//! # To copy a block
//!
//! Load `published` (*n*), then an acquire fence; copy buffer *n* mod 3; then an acquire fence, and
//! load `published` again. The copy is whole if the count has grown by at most 1. A sample is whole
//! if its sequence is even, not 0, and the same before and after, with the same fences. An egress's
//! histograms and samples are its own if their incarnation is the one of its row, for samples
//! before and after.

use crate::error::Error;
use crate::publication::BUFFERS;
use crate::reservoirs::RESERVOIRS_HEADER;
use crate::sample::SAMPLE_WORDS;

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"FENXIOBS");
pub(crate) const VERSION: u64 = 1;
pub(crate) const PAGE: usize = 4096;
/// Words in a page.
const PAGE_WORDS: usize = PAGE / 8;
/// Slots for egresses that a file may have at most.
pub const EGRESSES_MAX: usize = 4096;
const FIELDS_MAX: usize = 256;
/// A file has at most 1 GiB.
pub(crate) const WORDS_MAX: usize = 1 << 27;
/// Samples of a reservoir or a window, the paper's k.
pub const SAMPLES: usize = 128;
/// Buckets of a histogram.
pub const BUCKETS: usize = 64;

const _: () = assert!(cfg!(target_endian = "little"), "words are read as they stand");

/// Words of the header that change.
pub(crate) const PUBLISHED: usize = 32;
pub(crate) const ENDED: usize = 40;
/// Words of the header with text or of the writer.
pub(crate) const EPOCH: usize = 4;
pub(crate) const WRITER: usize = 18;
pub(crate) const NAME: usize = 24;
pub(crate) const NAME_WORDS: usize = 8;
pub(crate) const SCHEMA: usize = 64;
pub(crate) const FIELD_WORDS: usize = 8;

/// Words of a frame.
pub(crate) const GENERATION: usize = 0;
pub(crate) const TIME: usize = 1;
pub(crate) const ROWS_USED: usize = 2;
pub(crate) const BITMAP: usize = 8;
/// Words of a row before its first value: incarnation, kind and port, address.
pub(crate) const IDENTITY_WORDS: usize = 4;
/// Words in front of an egress's first histogram buffer, and of a buffer's first histogram.
pub(crate) const HISTOGRAMS_HEADER: usize = 8;
pub(crate) const HISTOGRAM_BUFFER_HEADER: usize = 2;

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A sum that only grows.
    Counter = 1,
    /// A value that goes up and down.
    Gauge = 2,
    /// An exponentially fading sample of all values (Algorithm 1 of the Aquarius paper).
    Reservoir = 3,
    /// The newest values.
    Window = 4,
    /// How often values of each power of two came, and their sum.
    Histogram = 5,
}

impl Kind {
    fn from_word(word: u64) -> Option<Self> {
        let all = [Self::Counter, Self::Gauge, Self::Reservoir, Self::Window, Self::Histogram];
        all.into_iter().find(|kind| *kind as u64 == word)
    }

    pub(crate) fn is_value(self) -> bool {
        matches!(self, Self::Counter | Self::Gauge)
    }

    pub(crate) fn is_sampled(self) -> bool {
        matches!(self, Self::Reservoir | Self::Window)
    }

    fn words(self) -> usize {
        match self {
            Self::Counter | Self::Gauge => 1,
            Self::Reservoir | Self::Window => SAMPLES * SAMPLE_WORDS,
            Self::Histogram => 1 + BUCKETS,
        }
    }
}

/// A record of the schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// At most 32 bytes. A reservoir and a histogram of the same measure have the same name.
    pub name: String,
    /// At most 8 bytes: `ns`, `bytes`, `packets`, `flows`.
    pub unit: String,
    /// What it holds.
    pub kind: Kind,
    /// Where it begins, in its row, histogram buffer or reservoirs.
    pub(crate) offset: usize,
    pub(crate) words: usize,
}

impl Field {
    /// A field whose place the file's creation decides.
    pub fn new(name: &str, unit: &str, kind: Kind) -> Self {
        let (name, unit) = (name.to_owned(), unit.to_owned());
        Self { name, unit, kind, offset: 0, words: kind.words() }
    }
}

/// Where everything is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) words: usize,
    pub(crate) egresses: usize,
    pub(crate) frames: usize,
    pub(crate) frame_words: usize,
    pub(crate) rows: usize,
    pub(crate) row_words: usize,
    pub(crate) histograms: usize,
    pub(crate) histogram_stride: usize,
    pub(crate) histogram_words: usize,
    pub(crate) reservoirs: usize,
    pub(crate) reservoir_stride: usize,
    pub(crate) fields: Vec<Field>,
}

impl Layout {
    /// Places the fields of a new file.
    pub(crate) fn new(egresses: usize, fields: &[Field]) -> Result<Self, Error> {
        if !(1..=EGRESSES_MAX).contains(&egresses) {
            return Err(Error::Schema("egresses must be 1 to 4096"));
        }
        if fields.len() > FIELDS_MAX {
            return Err(Error::Schema("too many fields"));
        }
        let mut fields = fields.to_vec();
        let mut row_words = IDENTITY_WORDS;
        let mut histogram_words = HISTOGRAM_BUFFER_HEADER;
        let mut reservoir_stride = RESERVOIRS_HEADER;
        for field in &mut fields {
            if field.name.is_empty() || field.name.len() > 32 || field.unit.len() > 8 {
                return Err(Error::Schema("a name has 1 to 32 bytes, a unit at most 8"));
            }
            let end = match field.kind {
                Kind::Counter | Kind::Gauge => &mut row_words,
                Kind::Reservoir | Kind::Window => &mut reservoir_stride,
                Kind::Histogram => &mut histogram_words,
            };
            field.offset = *end;
            *end += field.words;
        }
        // What different threads touch, or at different times, starts on a cache line.
        let [histogram_words, reservoir_stride] =
            [histogram_words, reservoir_stride].map(|words| words.next_multiple_of(8));
        let rows = (BITMAP + egresses.div_ceil(64)).next_multiple_of(8);
        let frame_words = (rows + egresses * row_words).next_multiple_of(8);
        let histogram_stride = HISTOGRAMS_HEADER + BUFFERS * histogram_words;
        let page = |words: usize| words.next_multiple_of(PAGE_WORDS);
        let frames = page(SCHEMA + fields.len() * FIELD_WORDS);
        let histograms = page(frames + BUFFERS * frame_words);
        let reservoirs = page(histograms + egresses * histogram_stride);
        let words = page(reservoirs + egresses * reservoir_stride);
        if words > WORDS_MAX {
            return Err(Error::Schema("the file would have more than 1 GiB"));
        }
        Ok(Self {
            words,
            egresses,
            frames,
            frame_words,
            rows,
            row_words,
            histograms,
            histogram_stride,
            histogram_words,
            reservoirs,
            reservoir_stride,
            fields,
        })
    }

    /// The header's words that tell the layout, with their places.
    fn header(&self) -> impl Iterator<Item = (usize, u64)> {
        let sizes = [
            self.egresses,
            BUFFERS,
            self.fields.len(),
            SCHEMA,
            self.frames,
            self.frame_words,
            self.rows,
            self.row_words,
            self.histograms,
            self.histogram_stride,
            self.histogram_words,
            self.reservoirs,
            self.reservoir_stride,
        ];
        let first = [(0, MAGIC), (1, VERSION), (2, self.words as u64), (3, PAGE as u64)];
        first.into_iter().chain((EPOCH + 1..).zip(sizes.map(|size| size as u64)))
    }

    /// Writes header and schema with `store`.
    pub(crate) fn write(&self, mut store: impl FnMut(usize, u64)) {
        for (word, value) in self.header() {
            store(word, value);
        }
        for (field, place) in self.fields.iter().zip((SCHEMA..).step_by(FIELD_WORDS)) {
            let mut store_text = |at, words, text: &str| {
                for (word, value) in to_words(text, words).enumerate() {
                    store(place + at + word, value);
                }
            };
            store_text(0, 4, &field.name);
            store_text(4, 1, &field.unit);
            store(place + 5, field.kind as u64);
            store(place + 6, field.offset as u64);
            store(place + 7, field.words as u64);
        }
    }

    /// The layout that a file's header and schema tell. Trusts no word of it: version 1 leaves the
    /// writer no choice but egresses and fields, so the rest must be what follows from them.
    pub(crate) fn read(words: usize, load: impl Fn(usize) -> u64) -> Result<Self, Error> {
        if words < SCHEMA || load(0) != MAGIC {
            return Err(Error::Foreign);
        }
        if load(1) != VERSION {
            return Err(Error::Version(load(1)));
        }
        let small = |word: usize, max: usize| match load(word) {
            value if value <= max as u64 => Ok(value as usize),
            _ => Err(Error::Malformed("a number in the header is too large")),
        };
        let egresses = small(5, EGRESSES_MAX)?;
        let count = small(7, FIELDS_MAX)?;
        if words < SCHEMA + count * FIELD_WORDS {
            return Err(Error::Malformed("the schema does not fit"));
        }
        let mut fields = Vec::with_capacity(count);
        for place in (SCHEMA..).step_by(FIELD_WORDS).take(count) {
            let text = |at: usize, words| from_words((at..at + words).map(&load));
            let bad = || Error::Malformed("a field of the schema");
            let kind = Kind::from_word(load(place + 5)).ok_or_else(bad)?;
            let name = text(place, 4).ok_or_else(bad)?;
            fields.push(Field::new(&name, &text(place + 4, 1).ok_or_else(bad)?, kind));
        }
        let layout = Self::new(egresses, &fields)
            .map_err(|_| Error::Malformed("egresses or fields of no valid file"))?;
        let offsets_follow = layout.header().all(|(word, value)| load(word) == value);
        let fields_follow =
            layout.fields.iter().zip((SCHEMA..).step_by(FIELD_WORDS)).all(|(field, place)| {
                load(place + 6) == field.offset as u64 && load(place + 7) == field.words as u64
            });
        if !offsets_follow || !fields_follow || layout.words > words {
            return Err(Error::Malformed("offsets that do not follow from egresses and fields"));
        }
        Ok(layout)
    }

    pub(crate) fn field(&self, name: &str, is_kind: impl Fn(Kind) -> bool) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name && is_kind(field.kind))
    }
}

/// Text as words, filled up with zeros.
pub(crate) fn to_words(text: &str, words: usize) -> impl Iterator<Item = u64> {
    let bytes = text.as_bytes();
    (0..words).map(|word| {
        let mut eight = [0; 8];
        let part = bytes.get(8 * word..).unwrap_or_default();
        for (to, from) in eight.iter_mut().zip(part) {
            *to = *from;
        }
        u64::from_le_bytes(eight)
    })
}

/// Text from words; `None` if it is not UTF-8.
pub(crate) fn from_words(words: impl Iterator<Item = u64>) -> Option<String> {
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).take_while(|byte| *byte != 0).collect();
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
