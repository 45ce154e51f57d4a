//! The hash table: buckets of one cache line that point into the data array
//! (FENXI §4.1, Fig. 5).
//!
//! A bucket holds eight slots, each a one-byte tag of the hash, a two-byte time
//! of last access in seconds, and the index of the flow's entry. A full bucket
//! chains to others from a pool. In a chain every bucket but the last is full,
//! because a removal moves the chain's last slot into the hole; so the pool can
//! not run out before the entries do, whatever the keys.
//!
//! The table knows hashes, indices and times. The caller says whether the flow at an index is the
//! right one.

use std::io;
use std::ops::Range;

use crate::memory::{Array, Pages, Zeroed};
use crate::prefetch::prefetch;
use crate::tags::matching;
use chains::Chains;
use victims::Hands;

mod chains;
mod victims;

/// Slots in a bucket.
const SLOTS: usize = 8;

/// Hashed buckets whose flows are looked at together, see [`Table::due_in`]: a word of
/// [`Table::in_use`] has a bit for each.
pub(crate) const BUCKETS_IN_GROUP: usize = 64;

/// Buckets in a chain, at most. So a chain has room for 32 flows, and someone who can make hashes
/// collide (the paper's hash, or a key that became known) makes a look-up a few times slower and no
/// more: the next flow of that bucket finds the table full. With honest hashes and no more than
/// eight flows per bucket, the 33rd in one bucket is as likely as one in 10^10.
const CHAIN_MAX: usize = 4;

/// Flows in a bucket's chain, at most.
pub(crate) const CHAIN_SLOTS: usize = CHAIN_MAX * SLOTS;
// Numbers of slots are taken modulo it, and wrap at 2^32.
const _: () = assert!(CHAIN_SLOTS.is_power_of_two());

/// A bucket, one cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Bucket {
    indices: [u32; SLOTS],
    stamps: [u16; SLOTS],
    tags: [u8; SLOTS],
    /// The next bucket of the chain; 0 for none, since bucket 0 is never chained.
    next: u32,
    /// Bit i: slot i is in use.
    occupied: u8,
    /// Bit i: the flow in slot i ended by FIN or RST and only lingers.
    closed: u8,
    /// Bit i: nobody has answered the flow in slot i yet, see [`Occupant::is_half_open`].
    half_open: u8,
    /// Bit i: for a half-open flow, the hand has passed it since its last packet, see [`victims`];
    /// for any other flow, it has the long timeout.
    kept: u8,
}

const _: () = assert!(size_of::<Bucket>() == 64);

// SAFETY: integers only.
#[allow(unsafe_code, reason = "a promise about the type, no code")]
unsafe impl Zeroed for Bucket {}

impl Bucket {
    /// Slots in use whose tag is `tag`, as bits.
    #[inline]
    fn matches(&self, tag: u8) -> u8 {
        matching(self.tags, tag) & self.occupied
    }

    #[inline]
    fn occupant(&self, slot: usize) -> Occupant {
        Occupant {
            index: self.indices[slot],
            stamp: self.stamps[slot],
            is_closed: self.closed >> slot & 1 == 1,
            is_half_open: self.half_open >> slot & 1 == 1,
            is_lasting: self.kept & !self.half_open & 1 << slot != 0,
        }
    }

    /// The last slot in use, of a bucket that is not empty.
    #[inline]
    fn last(&self) -> usize {
        (7 - self.occupied.leading_zeros() as usize) & 7
    }
}

/// Bits of slots after the flow of slot `from` has moved to `to`, where another was.
#[inline]
pub(crate) fn moved(bits: u8, from: usize, to: usize) -> u8 {
    let (of_from, of_to) = (1 << (from & 7), 1 << (to & 7));
    let bits = if bits & of_from != 0 { bits | of_to } else { bits & !of_to };
    bits & !of_from
}

/// A slot in use. Valid until the next insertion or removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The hashed bucket, where the chain begins.
    head: u32,
    bucket: u32,
    slot: u8,
}

/// What a slot says of its flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Occupant {
    pub index: u32,
    /// Second of the last access, wrapping.
    pub stamp: u16,
    pub is_closed: bool,
    /// No packet has shown yet that the other side takes part. Such a flow may be part of a flood
    /// from forged addresses, so it is evicted first.
    pub is_half_open: bool,
    /// Has the timeout of an established connection.
    pub is_lasting: bool,
}

/// The buckets and the free entries.
pub(crate) struct Table {
    /// The hashed buckets, then the pool of chained ones.
    buckets: Array<Bucket>,
    /// Hashed buckets - 1; their number is a power of two.
    mask: u32,
    /// One bit per hashed bucket: it is not empty. So the sweep and the end skip empty buckets
    /// without reading them.
    in_use: Array<u64>,
    /// For each word of `in_use`, the second from which on its flows are to be looked at again.
    due_s: Array<u16>,
    /// The chains that may hold a half-open flow: all that do, and some longer ones that
    /// the hand has not looked at since.
    may_be_half_open: Chains,
    /// Half-open flows.
    half_open: usize,
    hands: Hands,
    /// Free chained buckets; those never used lie from `pool_fresh` on.
    pool_free: Vec<u32>,
    pool_fresh: u32,
    /// Free entries; those never used lie from `entries_fresh` on. The one freed last is taken
    /// first: its lines are still in the cache, whereas the paper's ring would give the coldest.
    /// Its generation keeps old labels off.
    entries_free: Vec<u32>,
    entries_fresh: u32,
    entries: u32,
}

impl Table {
    /// `buckets`, a power of two, for up to `entries` flows.
    pub fn new(buckets: usize, entries: usize) -> io::Result<Table> {
        let pool = entries / SLOTS + 1;
        // Large tables: no memory is an error, not an abort.
        let (mut pool_free, mut entries_free) = (Vec::new(), Vec::new());
        pool_free.try_reserve_exact(pool)?;
        entries_free.try_reserve_exact(entries)?;
        Ok(Table {
            buckets: Array::new(buckets + pool)?,
            mask: buckets as u32 - 1,
            in_use: Array::new(buckets.div_ceil(64))?,
            due_s: Array::new(buckets.div_ceil(64))?,
            may_be_half_open: Chains::new(buckets)?,
            half_open: 0,
            hands: Hands::new(buckets as u32),
            pool_free,
            pool_fresh: buckets as u32,
            entries_free,
            entries_fresh: 0,
            entries: entries as u32,
        })
    }

    /// The pages under the buckets.
    pub fn pages(&self) -> Pages {
        self.buckets.pages()
    }

    /// Hashed buckets.
    pub fn buckets(&self) -> u32 {
        self.mask + 1
    }

    /// Half-open flows in the table.
    pub fn half_open(&self) -> usize {
        self.half_open
    }

    /// Entries that no flow owns.
    pub fn entries_free(&self) -> usize {
        self.entries_free.len() + (self.entries - self.entries_fresh) as usize
    }

    /// Prefetches the bucket of a hash.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        prefetch(&self.buckets, (hash as u32 & self.mask) as usize);
    }

    /// Prefetches the bits of the bucket of a hash.
    #[inline]
    pub fn prefetch_marks(&self, hash: u64) {
        let head = hash as u32 & self.mask;
        prefetch(&self.in_use, head as usize / 64);
        prefetch(&self.due_s, head as usize / 64);
        self.may_be_half_open.prefetch(head);
    }

    /// The slot that most likely belongs to a hash, and its entry: the first in the
    /// hashed bucket with its tag.
    #[inline]
    pub fn guess(&self, hash: u64) -> Option<(u8, u32)> {
        let bucket = &self.buckets[(hash as u32 & self.mask) as usize];
        let matches = bucket.matches(tag_of(hash));
        let slot = matches.trailing_zeros() as usize & 7;
        (matches != 0).then(|| (slot as u8, bucket.indices[slot]))
    }

    /// The entry of a guess, as long as no flow has begun or ended since.
    #[inline]
    pub fn guessed(&self, hash: u64, slot: u8) -> u32 {
        self.buckets[(hash as u32 & self.mask) as usize].indices[usize::from(slot & 7)]
    }

    /// The slot with this hash whose flow `is_it` recognises by its index. Looks first
    /// at the slot that [`Table::guess`] named; the bucket may have changed since.
    #[inline(always)] // the walk is there twice, with rules and without
    pub fn find_from(
        &self,
        hash: u64,
        guess: Option<u8>,
        is_it: impl Fn(u32) -> bool,
    ) -> Option<Place> {
        if let Some(slot) = guess {
            let head = hash as u32 & self.mask;
            let bucket = &self.buckets[head as usize];
            let slot = slot & 7;
            if bucket.occupied >> slot & 1 == 1 && is_it(bucket.indices[usize::from(slot)]) {
                return Some(Place { head, bucket: head, slot });
            }
        }
        self.find(hash, is_it)
    }

    /// The slot with this hash whose flow `is_it` recognises by its index.
    // Out of line: a look-up that was guessed right does without, and has more registers.
    #[inline(never)]
    pub fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<Place> {
        let tag = tag_of(hash);
        let head = hash as u32 & self.mask;
        let mut at = head;
        loop {
            let bucket = &self.buckets[at as usize];
            let mut matches = bucket.matches(tag);
            while matches != 0 {
                let slot = matches.trailing_zeros();
                if is_it(bucket.indices[slot as usize]) {
                    return Some(Place { head, bucket: at, slot: slot as u8 });
                }
                matches &= matches - 1;
            }
            if bucket.next == 0 {
                return None;
            }
            at = bucket.next;
        }
    }

    #[inline]
    pub fn occupant(&self, place: Place) -> Occupant {
        self.assert_occupied(place);
        self.buckets[place.bucket as usize].occupant(usize::from(place.slot & 7))
    }

    /// Notes an access in second `stamp`; returns the flow's entry.
    #[inline]
    pub fn touch(&mut self, place: Place, stamp: u16) -> u32 {
        let bucket = &mut self.buckets[place.bucket as usize];
        let slot = usize::from(place.slot & 7);
        bucket.stamps[slot] = stamp;
        bucket.indices[slot]
    }

    /// Notes an access as [`Table::touch`] does, if the flow `goes_on`; returns its entry and
    /// whether it is half-open. The hand must pass a half-open flow once more before it is evicted.
    #[inline(always)]
    pub fn touch_if(
        &mut self,
        place: Place,
        stamp: u16,
        goes_on: impl FnOnce(Occupant) -> bool,
    ) -> Option<(u32, bool)> {
        self.assert_occupied(place);
        let bucket = &mut self.buckets[place.bucket as usize];
        let slot = usize::from(place.slot & 7);
        if !goes_on(bucket.occupant(slot)) {
            return None;
        }
        // Most packets come within the second of the one before.
        if bucket.stamps[slot] != stamp {
            bucket.stamps[slot] = stamp;
            self.due_s[place.head as usize / 64] = stamp;
        }
        let half_open = bucket.half_open & 1 << slot;
        bucket.kept &= !half_open;
        Some((bucket.indices[slot], half_open != 0))
    }

    /// Marks the flow as no longer half-open; `is_lasting` gives it the long timeout.
    pub fn establish(&mut self, place: Place, is_lasting: bool) {
        self.assert_occupied(place);
        let bucket = &mut self.buckets[place.bucket as usize];
        let bit = 1 << place.slot;
        self.half_open -= usize::from(bucket.half_open & bit != 0);
        bucket.half_open &= !bit;
        bucket.kept = bucket.kept & !bit | if is_lasting { bit } else { 0 };
        self.make_due(place);
        self.note_none_half_open(place.head);
    }

    /// Removes a chain of one bucket, as most are, from `may_be_half_open` if it holds no half-open
    /// flow.
    #[inline]
    fn note_none_half_open(&mut self, head: u32) {
        let bucket = &self.buckets[head as usize];
        if bucket.next == 0 && bucket.half_open == 0 {
            self.may_be_half_open.remove(head);
        }
    }

    /// Takes the long timeout away.
    pub fn last_no_longer(&mut self, place: Place) {
        let bucket = &mut self.buckets[place.bucket as usize];
        bucket.kept &= bucket.half_open | !(1 << place.slot);
    }

    /// Marks the flow as ended by FIN or RST.
    pub fn close(&mut self, place: Place) {
        self.assert_occupied(place);
        self.buckets[place.bucket as usize].closed |= 1 << place.slot;
    }

    /// Takes a free entry and puts it into the bucket of `hash`, as a half-open flow;
    /// `None` if there is no free entry, or the bucket's chain is full.
    #[inline]
    pub fn insert(&mut self, hash: u64, stamp: u16) -> Option<(Place, u32)> {
        if self.entries_free() == 0 {
            return None;
        }
        let head = hash as u32 & self.mask;
        let first = &self.buckets[head as usize];
        let bucket = match first.next == 0 && first.occupied != u8::MAX {
            true => head,
            false => self.bucket_with_room(head)?,
        };
        let index = self.take_entry()?;
        let line = &mut self.buckets[bucket as usize];
        let slot = line.occupied.trailing_ones() as usize & 7;
        line.indices[slot] = index;
        line.stamps[slot] = stamp;
        line.tags[slot] = tag_of(hash);
        line.occupied |= 1 << slot;
        line.closed &= !(1 << slot);
        line.half_open |= 1 << slot;
        line.kept &= !(1 << slot);
        self.half_open += 1;
        debug_assert!(self.half_open <= self.entries as usize, "more than there are flows");
        self.in_use[head as usize / 64] |= 1 << (head % 64);
        self.due_s[head as usize / 64] = stamp;
        self.may_be_half_open.insert(head);
        self.assert_chain(head);
        Some((Place { head, bucket, slot: slot as u8 }, index))
    }

    /// The free entry that the `ahead`-th flow from now on takes, from 1, unless one ends before.
    pub fn free_ahead(&self, ahead: usize) -> Option<u32> {
        self.entries_free.len().checked_sub(ahead).map(|at| self.entries_free[at])
    }

    #[inline]
    fn take_entry(&mut self) -> Option<u32> {
        if let Some(index) = self.entries_free.pop() {
            return Some(index);
        }
        let index = self.entries_fresh;
        (index < self.entries).then(|| {
            self.entries_fresh += 1;
            index
        })
    }

    /// Whether the chain of this hash has no room for another flow.
    #[inline]
    pub fn chain_is_full(&self, hash: u64) -> bool {
        let mut bucket = &self.buckets[(hash as u32 & self.mask) as usize];
        let mut length = 1;
        while bucket.next != 0 {
            bucket = &self.buckets[bucket.next as usize];
            length += 1;
        }
        length == CHAIN_MAX && bucket.occupied == u8::MAX
    }

    /// The last bucket of the chain, or a new one behind it: all others are full.
    #[inline(never)]
    fn bucket_with_room(&mut self, mut at: u32) -> Option<u32> {
        let mut length = 1;
        while self.buckets[at as usize].next != 0 {
            at = self.buckets[at as usize].next;
            length += 1;
        }
        if self.buckets[at as usize].occupied != u8::MAX {
            return Some(at);
        }
        if length == CHAIN_MAX {
            return None;
        }
        let chained = self.pool_free.pop().unwrap_or_else(|| {
            self.pool_fresh += 1;
            self.pool_fresh - 1
        });
        self.buckets[at as usize].next = chained;
        Some(chained)
    }

    /// Takes a flow out of its bucket and moves the chain's last slot into the
    /// hole. The flow's entry stays taken until [`Table::free_entry`].
    #[inline]
    pub fn remove(&mut self, place: Place) {
        self.assert_occupied(place);
        let bucket = &mut self.buckets[place.head as usize];
        if bucket.next != 0 {
            return self.remove_from_chain(place);
        }
        // Without branches: nobody can guess which slot of a bucket it is, and what is left.
        let (from, to) = (bucket.last(), usize::from(place.slot & 7));
        self.half_open -= usize::from(bucket.half_open >> to & 1);
        bucket.indices[to] = bucket.indices[from];
        bucket.stamps[to] = bucket.stamps[from];
        bucket.tags[to] = bucket.tags[from];
        bucket.occupied &= !(1 << from);
        for bits in [&mut bucket.closed, &mut bucket.half_open, &mut bucket.kept] {
            *bits = moved(*bits, from, to);
        }
        let (is_empty, has_none) = (bucket.occupied == 0, bucket.half_open == 0);
        self.in_use[place.head as usize / 64] &= !(u64::from(is_empty) << (place.head % 64));
        self.may_be_half_open.remove_if(place.head, has_none);
    }

    /// The same where the chain has several buckets.
    #[inline(never)]
    fn remove_from_chain(&mut self, place: Place) {
        let removed = &self.buckets[place.bucket as usize];
        self.half_open -= usize::from(removed.half_open >> place.slot & 1);
        let (mut last, mut before_last) = (place.head, place.head);
        while self.buckets[last as usize].next != 0 {
            before_last = last;
            last = self.buckets[last as usize].next;
        }
        let tail = &mut self.buckets[last as usize];
        let from = tail.last();
        let moving = (tail.indices[from], tail.stamps[from], tail.tags[from]);
        let moving_bits = [tail.closed, tail.half_open, tail.kept].map(|bits| bits >> from & 1);
        tail.occupied &= !(1 << from);
        for bits in [&mut tail.closed, &mut tail.half_open, &mut tail.kept] {
            *bits &= !(1 << from);
        }
        let tail_is_empty = tail.occupied == 0;

        let to = usize::from(place.slot);
        if (last, from) != (place.bucket, to) {
            let hole = &mut self.buckets[place.bucket as usize];
            (hole.indices[to], hole.stamps[to], hole.tags[to]) = moving;
            let bits = [&mut hole.closed, &mut hole.half_open, &mut hole.kept];
            for (bits, bit) in bits.into_iter().zip(moving_bits) {
                *bits = *bits & !(1 << to) | bit << to;
            }
        }
        if tail_is_empty {
            self.buckets[before_last as usize].next = 0;
            self.pool_free.push(last);
        }
        self.assert_chain(place.head);
        self.note_none_half_open(place.head);
    }

    /// Asserts, in debug builds, what look-ups and the pool rely on: every bucket of a chain but
    /// the last is full, and a chained one is not empty.
    fn assert_chain(&self, head: u32) {
        if cfg!(debug_assertions) {
            let mut length = 1;
            let mut at = head;
            while self.buckets[at as usize].next != 0 {
                let bucket = &self.buckets[at as usize];
                debug_assert_eq!(bucket.occupied, u8::MAX, "a hole in the chain of {head}");
                at = bucket.next;
                length += 1;
                debug_assert_ne!(self.buckets[at as usize].occupied, 0, "empty in {head}");
            }
            debug_assert!(length <= CHAIN_MAX, "the chain of {head} is too long");
        }
    }

    /// A place holds a flow until that flow is removed, or moved by another's removal.
    #[inline]
    fn assert_occupied(&self, place: Place) {
        debug_assert_eq!(
            self.buckets[place.bucket as usize].occupied >> place.slot & 1,
            1,
            "nothing is at {place:?}"
        );
    }

    /// Takes every flow out. Their entries stay taken until
    /// [`Table::free_entry`].
    pub fn clear(&mut self) {
        let mut head = 0;
        while let Some(in_use) = self.in_use_from(head, self.buckets()) {
            let mut next = in_use;
            loop {
                let bucket = &mut self.buckets[next as usize];
                (bucket.occupied, bucket.closed) = (0, 0);
                (bucket.half_open, bucket.kept) = (0, 0);
                next = std::mem::take(&mut bucket.next);
                if next == 0 {
                    break;
                }
            }
            head = in_use + 1;
        }
        self.in_use.fill(0);
        self.may_be_half_open.clear();
        self.half_open = 0;
        self.pool_free.clear();
        self.pool_fresh = self.buckets();
    }

    /// Gives a removed flow's entry back.
    pub fn free_entry(&mut self, index: u32) {
        debug_assert!(index < self.entries_fresh, "an entry that was never taken");
        self.entries_free.push(index);
        let free = self.entries_free.len();
        debug_assert!(free <= self.entries_fresh as usize, "an entry was given back twice");
    }
}

/// Iteration over a chain in which slots may be removed on the way.
impl Table {
    /// The first hashed bucket of `from..to` that is not empty.
    pub fn in_use_from(&self, from: u32, to: u32) -> Option<u32> {
        set_from(&self.in_use, from, to)
    }

    /// The first group of these hashed buckets that is due, as far as it lies among them: it has
    /// had a packet since the last look, or the time of [`Table::put_off`] has come.
    pub fn due_in(&self, heads: Range<u32>, now_s: u16) -> Option<Range<u32>> {
        // Both wrap, and neither is half of the range ahead of the other.
        let is_due = |&due_s: &u16| now_s.wrapping_sub(due_s).cast_signed() >= 0;
        let groups = heads.start as usize / 64..heads.end.div_ceil(64) as usize;
        let mut group = groups.start;
        for line in self.due_s[groups].chunks(32) {
            // Without a way out, so that the compiler makes a vector of it.
            if line.iter().fold(false, |any, due_s| any | is_due(due_s)) {
                group += line.iter().take_while(|due_s| !is_due(due_s)).count();
                let first = group as u32 * 64;
                return Some(first.max(heads.start)..(first + 64).min(heads.end));
            }
            group += line.len();
        }
        None
    }

    /// The group of `head` is to be looked at again at this second, unless a packet comes before.
    pub fn put_off(&mut self, head: u32, until_s: u16) {
        self.due_s[head as usize / 64] = until_s;
    }

    /// The group of a flow is to be looked at.
    pub fn make_due(&mut self, place: Place) {
        self.due_s[place.head as usize / 64] = self.occupant(place).stamp;
    }

    /// All groups are to be looked at.
    pub fn make_all_due(&mut self, now_s: u16) {
        self.due_s.fill(now_s);
    }

    /// The slots of a hashed bucket whose flow was silent for more than `open_s` seconds, or
    /// `closed_s` if it is closed, as bits; `None` where others are chained to it.
    #[inline]
    pub fn silent_in(&self, head: u32, now_s: u16, (open_s, closed_s): (u16, u16)) -> Option<u8> {
        let bucket = &self.buckets[head as usize];
        let beyond = |most_s: u16| {
            let silent = bucket.stamps.iter().map(|&stamp| now_s.wrapping_sub(stamp) > most_s);
            silent.zip(0..).fold(0, |all, (is_silent, slot)| all | u8::from(is_silent) << slot)
        };
        let silent = beyond(open_s) & !bucket.closed | beyond(closed_s) & bucket.closed;
        (bucket.next == 0).then_some(silent & bucket.occupied)
    }

    /// The place of a slot of hashed bucket `head`, and the last slot in use there.
    #[inline]
    pub fn in_head(&self, head: u32, slot: u8) -> (Place, usize) {
        (Place { head, bucket: head, slot }, self.buckets[head as usize].last())
    }

    /// The words of [`Table::in_use`] in which these hashed buckets have bits.
    pub fn words_of(heads: &Range<u32>) -> Range<u32> {
        heads.start / 64..heads.end.div_ceil(64)
    }

    /// Which of these hashed buckets are not empty, as bits of one of the words.
    #[inline]
    pub fn in_use_in(&self, word: u32, heads: &Range<u32>) -> u64 {
        let first = word * 64;
        let before = heads.start.saturating_sub(first).min(63);
        let behind = (first + 64).saturating_sub(heads.end).min(63);
        self.in_use[word as usize] & (u64::MAX << before) & (u64::MAX >> behind)
    }

    /// Prefetches these hashed buckets, but for empty ones.
    pub fn prefetch_in_use(&self, heads: Range<u32>) {
        for word in Table::words_of(&heads) {
            let mut bits = self.in_use_in(word, &heads);
            while bits != 0 {
                prefetch(&self.buckets, (word * 64 + bits.trailing_zeros()) as usize);
                bits &= bits - 1;
            }
        }
    }

    /// The first slot in use of the chain of hashed bucket `head`.
    pub fn first_in(&self, head: u32) -> Option<Place> {
        self.at_or_after(Place { head, bucket: head, slot: 0 })
    }

    /// The slot behind `place`.
    pub fn next_after(&self, place: Place) -> Option<Place> {
        self.at_or_after(Place { slot: place.slot + 1, ..place })
    }

    /// The first slot in use at `place` or behind it: after a removal at `place`,
    /// the slot that was moved there, if one was.
    pub fn at_or_after(&self, mut place: Place) -> Option<Place> {
        loop {
            let bucket = &self.buckets[place.bucket as usize];
            let rest = bucket.occupied.checked_shr(u32::from(place.slot)).unwrap_or(0);
            if rest != 0 {
                place.slot += rest.trailing_zeros() as u8;
                return Some(place);
            }
            if bucket.next == 0 {
                return None;
            }
            place.bucket = bucket.next;
            place.slot = 0;
        }
    }
}

/// The first bit of `from..to` that is set.
#[inline]
fn set_from(words: &[u64], from: u32, to: u32) -> Option<u32> {
    let mut word = from / 64;
    let mut bits = *words.get(word as usize)? & (u64::MAX << (from % 64));
    while bits == 0 {
        word += 1;
        if word * 64 >= to {
            return None;
        }
        bits = words[word as usize];
    }
    let found = word * 64 + bits.trailing_zeros();
    (found < to).then_some(found)
}

#[inline]
fn tag_of(hash: u64) -> u8 {
    (hash >> 56) as u8
}

#[cfg(test)]
mod tests;
