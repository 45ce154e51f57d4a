//! The data array: one entry per flow (FENXI Fig. 5), split by how often its
//! parts are touched.
//!
//! * [`Entry`], one 64-byte line with [`Hot`]: all that a packet of a labelled flow touches,
//!   the key, the label word, the counters.
//! * [`Cold`], one line: identity and times; touched when a flow begins, at its
//!   K-th packet, when a counter carries over, and at its end.
//! * The series, see [`crate::series`], while it is collected.
//! * One more label word for each depth beyond the first, in an array of their own.
//!
//! Counters in the hot line are 8 bits of packets and 24 bits of bytes for each
//! direction and carry into the cold line, so that an exact time, both
//! addresses of IPv6, the label word and the flow's action fit in as well.
//!
//! Label words are shared with the analytics side; everything else belongs to
//! the one flow manager that holds [`Entries`]. This module has `unsafe` for
//! that reason only: the label word and the rest lie in one line.
#![allow(unsafe_code, reason = "label words are shared, the rest of their line is not")]

use std::cell::UnsafeCell;
use std::io;
use std::sync::Arc;

use cring::{FlowRef, Label, LabelWord, Labels};

use crate::ids::Awaited;
use crate::ids::DepthId;
use crate::key::Key;
use crate::memory::{Array, Pages, Zeroed};
use crate::prefetch::{prefetch, prefetch_all};
use hot::PACKETS_CARRIED;
pub(crate) use hot::{
    Carry, FLAGS_USUAL, Hot, STATE_COLLECTED, STATE_EMITTED, STATE_FIN_FORWARD, STATE_IN_EFFECT,
    STATE_NEVER, STATE_RST, STATE_WITHHELD,
};

mod hot;

/// The cold line of a flow.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Cold {
    pub first_us: i64,
    pub flow_id: u64,
    /// When the series was emitted, by the clock of [`crate::Effect`]: µs of
    /// packet time, or ns of the caller's clock.
    pub emitted_at: i64,
    /// When the flow was last reported, in flow time: its first packet, then each record.
    pub reported_us: i64,
    /// Counts at the moment the label took effect, since the last record.
    pub bytes_before: u64,
    pub packets_before: u32,
    /// K-th packet to label, µs; [`LABEL_NOT_EMITTED`] until the label record is out.
    pub time_to_label_us: u32,
    /// Carries of [`Hot`]: of [`PACKETS_CARRIED`] packets, and bytes >> 24, by direction.
    pub packets_high: [u32; 2],
    pub bytes_high: [u32; 2],
}

/// Value of [`Cold::time_to_label_us`] while no label record was written.
pub(crate) const LABEL_NOT_EMITTED: u32 = u32::MAX;

// SAFETY: integers only.
unsafe impl Zeroed for Cold {}

/// Packets and bytes of a flow, forward and reverse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets forward and reverse.
    pub packets: [u64; 2],
    /// Bytes at the IP layer, forward and reverse.
    pub bytes: [u64; 2],
}

impl Counts {
    pub(crate) fn packets_total(&self) -> u64 {
        self.packets[0] + self.packets[1]
    }

    pub(crate) fn bytes_total(&self) -> u64 {
        self.bytes[0] + self.bytes[1]
    }
}

/// The length of the packet that is being walked, if it has been counted already.
#[derive(Clone, Copy)]
pub(crate) struct Own(pub Option<u32>);

/// The hot line: shared label word, private rest.
#[repr(C, align(64))]
struct Entry {
    label: LabelWord,
    hot: UnsafeCell<Hot>,
}

const _: () = assert!(size_of::<Entry>() == 64 && size_of::<Cold>() == 64);

// SAFETY: integers only, and a label word of zero is the one of a new entry.
unsafe impl Zeroed for Entry {}

// SAFETY: integers only.
unsafe impl Zeroed for [u32; 2] {}

// SAFETY: as above; a label word is one integer.
unsafe impl Zeroed for LabelWord {}

/// The label words of a data array, as the analytics side sees them.
struct Shared {
    entries: Array<Entry>,
    /// The words of other depths than the first, flow by flow.
    others: Array<LabelWord>,
    /// How many other depths there are.
    other_depths: usize,
}

// SAFETY: through a shared reference only the label words, which are atomic,
// can be reached; `hot` is reached through `Entries`, of which there is one.
unsafe impl Sync for Shared {}

impl Labels for Shared {
    fn word(&self, depth: u8, index: u32) -> &LabelWord {
        match depth {
            0 => &self.entries[index as usize].label,
            _ => &self.others[place_of(self.other_depths, depth, index)],
        }
    }
}

/// Where a depth beyond the first has its place in an array of them.
fn place_of(other_depths: usize, depth: u8, index: u32) -> usize {
    debug_assert!((1..=other_depths).contains(&usize::from(depth)), "a flow has no depth {depth}");
    index as usize * other_depths + usize::from(depth) - 1
}

/// The data array, as its one flow manager sees it.
pub(crate) struct Entries {
    shared: Arc<Shared>,
    cold: Array<Cold>,
    /// With behaviours: the bound of `bulk`.
    bulk_bytes: Option<u32>,
    /// With behaviours: bytes by which the counters of each direction run ahead, so that they carry
    /// where the flow may cross the bound of `bulk`. Below 2^24.
    ahead: Array<[u32; 2]>,
}

impl Entries {
    /// Room for `entries` flows with `depths` depths each, at least one.
    pub fn new(entries: usize, depths: usize, bulk_bytes: Option<u32>) -> io::Result<Entries> {
        debug_assert!(depths > 0, "a flow has a label word in its hot line");
        let other_depths = depths - 1;
        Ok(Entries {
            shared: Arc::new(Shared {
                entries: Array::new(entries)?,
                others: Array::new(entries * other_depths)?,
                other_depths,
            }),
            cold: Array::new(entries)?,
            ahead: Array::new(entries * usize::from(bulk_bytes.is_some()))?,
            bulk_bytes,
        })
    }

    /// As without behaviours; before the first flow.
    pub fn forgo_behaviours(&mut self) -> io::Result<()> {
        (self.bulk_bytes, self.ahead) = (None, Array::new(0)?);
        Ok(())
    }

    /// The pages under the hot lines.
    pub fn pages(&self) -> Pages {
        self.shared.entries.pages()
    }

    /// The label words, for the analytics side.
    pub fn labels(&self) -> Arc<dyn Labels> {
        self.shared.clone()
    }

    /// The same for one look.
    #[inline]
    pub fn labels_now(&self) -> &dyn Labels {
        &*self.shared
    }

    /// Asks for the hot line of an entry.
    #[inline]
    pub fn prefetch(&self, index: u32) {
        prefetch(&self.shared.entries, index as usize);
    }

    /// Asks for both lines of an entry, and for what its counters run ahead by.
    #[inline]
    pub fn prefetch_all(&self, index: u32) {
        self.prefetch(index);
        prefetch(&self.cold, index as usize);
        if !self.ahead.is_empty() {
            prefetch(&self.ahead, index as usize);
        }
    }

    /// Asks for the label words beyond the first.
    #[inline]
    pub fn prefetch_words(&self, index: u32) {
        prefetch_all(&self.shared.others, index, self.shared.other_depths);
    }

    /// The label word of the first depth.
    #[inline]
    pub fn label(&self, index: u32) -> &LabelWord {
        &self.shared.entries[index as usize].label
    }

    /// The label word of any depth.
    #[inline]
    pub fn word(&self, depth: DepthId, index: u32) -> &LabelWord {
        self.shared.word(depth.0, index)
    }

    /// A flow begins.
    #[inline]
    pub fn begin(&mut self, index: u32, key: &Key, from_low: bool, tick: u8, cold: Cold) {
        debug_assert_eq!(
            self.label(index).read().1,
            Label::None,
            "the label of the entry's last owner"
        );
        let hot = self.hot_mut(index);
        hot.begin(key, from_low);
        hot.reported_tick = tick;
        *self.cold_mut(index) = cold;
        if let Some(bulk_bytes) = self.bulk_bytes {
            self.ahead[index as usize] = [0; 2];
            self.arm(index, bulk_bytes + 1);
        }
    }

    /// The flow has ended: its labels are gone, and references to it are void.
    #[inline]
    pub fn retire(&mut self, index: u32) {
        for depth in 0..=self.shared.other_depths as u8 {
            self.word(DepthId(depth), index).retire();
        }
        debug_assert_eq!(self.label(index).read().1, Label::None);
    }

    /// What the label word of an answer says; `None`: the entry is another flow's by now.
    pub fn label_of(&self, Awaited { flow, depth }: Awaited) -> Option<Label> {
        self.word(depth, flow.index).label(flow.generation)
    }

    pub fn is_pending(&self, awaited: Awaited) -> bool {
        self.label_of(awaited) == Some(Label::Pending)
    }

    /// A label that is not here by now is too late.
    pub fn give_up(&self, awaited: Awaited) {
        if self.is_pending(awaited) {
            let Awaited { flow, depth } = awaited;
            let word = self.word(depth, flow.index);
            let _ = word.decide(flow.generation, Label::Unlabelled);
        }
    }

    /// A depth has no answer, and none is awaited.
    pub fn leave_unasked(&self, depth: DepthId, index: u32) {
        let word = self.word(depth, index);
        let (generation, _) = word.read();
        word.pend(generation);
        // Cannot be post-mortem: nobody else knows of the pending word.
        let _ = word.decide(generation, Label::Unlabelled);
    }

    /// Notes the counts up to now, from which on the label counts.
    pub fn note_before(&mut self, index: u32, own: Own) {
        let (packets, bytes) = self.before(index, own);
        let cold = self.cold_mut(index);
        (cold.packets_before, cold.bytes_before) = (packets, bytes);
    }

    /// Packets and bytes of a flow before a packet.
    pub fn before(&self, index: u32, own: Own) -> (u32, u64) {
        let counts = self.counts(index);
        let packets = counts.packets_total() - u64::from(own.0.is_some());
        (packets as u32, counts.bytes_total() - own.0.map_or(0, u64::from))
    }

    /// The flow that owns the entry now, as a reference for the ring.
    #[inline]
    pub fn flow_ref(&self, index: u32) -> FlowRef {
        let (generation, _) = self.label(index).read();
        FlowRef { index, generation }
    }

    #[inline]
    pub fn hot(&self, index: u32) -> &Hot {
        let entry = &self.shared.entries[index as usize];
        // SAFETY: `hot` is written through `hot_mut` only, which borrows the one
        // `Entries` of this array mutably, so no such reference lives now.
        unsafe { &*entry.hot.get() }
    }

    /// The label word of the first task with the rest of the line: the usual packet wants both.
    #[inline]
    pub fn label_and_hot(&self, index: u32) -> (&LabelWord, &Hot) {
        let entry = &self.shared.entries[index as usize];
        // SAFETY: as in `hot`.
        (&entry.label, unsafe { &*entry.hot.get() })
    }

    #[inline]
    pub fn hot_mut(&mut self, index: u32) -> &mut Hot {
        let entry = &self.shared.entries[index as usize];
        // SAFETY: as in `hot`; the returned borrow holds `self` exclusively.
        unsafe { &mut *entry.hot.get() }
    }

    #[inline]
    pub fn cold(&self, index: u32) -> &Cold {
        &self.cold[index as usize]
    }

    #[inline]
    pub fn cold_mut(&mut self, index: u32) -> &mut Cold {
        &mut self.cold[index as usize]
    }

    /// Counts a packet of `length` bytes at the IP layer.
    #[inline]
    pub fn count(&mut self, index: u32, direction: usize, length: u32) {
        if let Some(carry) = self.hot_mut(index).count(direction, length) {
            self.carry(index, direction, carry);
        }
    }

    /// Counts `packets` with `bytes` in total; returns how often the byte counter carried.
    pub fn count_sum(&mut self, index: u32, direction: usize, packets: u64, bytes: u64) -> u64 {
        let hot = self.hot_mut(index);
        // As in `Hot::count`, past 255 comes 1.
        debug_assert!(packets > 0 || bytes == 0, "bytes without a packet");
        let sum = u64::from(hot.packets[direction]) + packets;
        let carries = sum.saturating_sub(1) / PACKETS_CARRIED;
        hot.packets[direction] = (sum - carries * PACKETS_CARRIED) as u8;
        debug_assert_eq!(sum == 0, hot.packets[direction] == 0, "0: no packet came");
        let bytes = u64::from(hot.bytes(direction)) + bytes;
        hot.set_bytes(direction, bytes as u32);
        let cold = self.cold_mut(index);
        cold.packets_high[direction] = cold.packets_high[direction].wrapping_add(carries as u32);
        cold.bytes_high[direction] = cold.bytes_high[direction].wrapping_add((bytes >> 24) as u32);
        bytes >> 24
    }

    /// Takes what a counter of the hot line could not hold; once in 255 packets or
    /// 16 MiB.
    pub fn carry(&mut self, index: u32, direction: usize, carry: Carry) {
        let cold = self.cold_mut(index);
        cold.packets_high[direction] += u32::from(carry.packets);
        cold.bytes_high[direction] += u32::from(carry.bytes);
    }

    /// Packets and bytes since the flow's last record.
    #[inline]
    pub fn counts(&self, index: u32) -> Counts {
        let (hot, cold) = (self.hot(index), self.cold(index));
        let ahead = self.ahead(index);
        Counts {
            packets: std::array::from_fn(|direction| {
                u64::from(cold.packets_high[direction]) * PACKETS_CARRIED
                    + u64::from(hot.packets[direction])
            }),
            bytes: std::array::from_fn(|direction| {
                (u64::from(cold.bytes_high[direction]) << 24 | u64::from(hot.bytes(direction)))
                    - u64::from(ahead[direction])
            }),
        }
    }

    /// The bytes of [`Entries::counts`], both ways.
    #[inline]
    pub fn bytes_total(&self, index: u32) -> u64 {
        let (hot, cold) = (self.hot(index), self.cold(index));
        let sum = |[a, b]: [u32; 2]| u64::from(a) + u64::from(b);
        let low = sum([0, 1].map(|direction| hot.bytes(direction)));
        (sum(cold.bytes_high) << 24) + low - sum(self.ahead(index))
    }

    fn ahead(&self, index: u32) -> [u32; 2] {
        self.ahead.get(index as usize).copied().unwrap_or_default()
    }

    /// Makes a direction's counter carry at the latest when `bytes` more have come in both
    /// directions together, at most 2^24: each direction gets half. Counts stay as they are.
    pub fn arm(&mut self, index: u32, bytes: u32) {
        debug_assert!((1..=1 << 24).contains(&bytes), "more than a counter holds");
        let counts = self.counts(index);
        for (direction, share) in [bytes.div_ceil(2), (bytes / 2).max(1)].into_iter().enumerate() {
            let low = (1 << 24) - share;
            let high = counts.bytes[direction].saturating_sub(low.into()).div_ceil(1 << 24);
            self.hot_mut(index).set_bytes(direction, low);
            self.cold_mut(index).bytes_high[direction] = high as u32;
            let sum = (high << 24) + u64::from(low);
            self.ahead[index as usize][direction] = (sum - counts.bytes[direction]) as u32;
        }
        debug_assert_eq!(self.counts(index), counts, "counts stay as they are");
        debug_assert_eq!(self.bytes_total(index), counts.bytes_total());
    }

    /// Bytes left of the last [`Entries::arm`] after a counter carried `times` times; below 0 once
    /// more have come.
    pub fn left(&self, index: u32, times: u64) -> i64 {
        let hot = self.hot(index);
        let both = i64::from(hot.bytes(0)) + i64::from(hot.bytes(1));
        (2 << 24) - both - ((times as i64) << 24)
    }

    /// Takes the counts and starts again from 0, at an active timeout.
    pub fn take_counts(&mut self, index: u32) -> Counts {
        let counts = self.counts(index);
        self.hot_mut(index).packets = [0; 2];
        let cold = self.cold_mut(index);
        cold.packets_high = [0; 2];
        cold.bytes_high = [0; 2];
        if self.ahead.is_empty() {
            let hot = self.hot_mut(index);
            (hot.bytes_low, hot.bytes_high) = ([0; 2], [0; 2]);
        } else {
            // The counters still carry where they did.
            let hot = self.hot(index);
            self.ahead[index as usize] = [hot.bytes(0), hot.bytes(1)];
        }
        debug_assert_eq!(self.counts(index), Counts::default(), "all was taken");
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Packet;
    use crate::wire::{TCP, TCP_ACK, TCP_PSH, TCP_SYN};

    #[test]
    fn counters_carry_beyond_8_bits_of_packets_and_24_of_bytes() {
        let mut entries = Entries::new(1, 1, None).unwrap();
        let (key, _) = Key::new(false, TCP, ([1, 0], 1), ([2, 0], 2));
        entries.hot_mut(0).begin(&key, true);
        let (packets, length) = (200_000u64, 65_575u32);
        for _ in 0..packets {
            entries.count(0, 0, length);
        }
        for packets in 1..=1000 {
            entries.count(0, 1, 0);
            assert!(entries.hot(0).has_reverse_packets());
            assert_eq!(entries.counts(0).packets[1], packets);
        }
        entries.count(0, 1, 40);
        let counts = entries.counts(0);
        assert_eq!(counts.packets, [packets, 1001]);
        assert_eq!(counts.bytes, [packets * u64::from(length), 40]);
        assert_eq!(entries.take_counts(0), counts);
        assert_eq!(entries.counts(0), Counts::default());
    }

    #[test]
    fn many_at_once_count_as_one_by_one() {
        let mut entries = Entries::new(2, 1, None).unwrap();
        let (key, _) = Key::new(false, TCP, ([1, 0], 1), ([2, 0], 2));
        (0..2).for_each(|index| entries.hot_mut(index).begin(&key, true));
        for (packets, length) in
            [(0u64, 9), (1, 65_535), (254, 1), (255, 0), (256, 1), (1000, 65_000)]
        {
            entries.count_sum(0, 1, packets, packets * u64::from(length));
            (0..packets).for_each(|_| entries.count(1, 1, length));
            assert_eq!(entries.counts(0), entries.counts(1));
            assert_eq!(entries.hot(0).packets, entries.hot(1).packets);
        }
    }

    #[test]
    fn a_large_frame_carries_more_than_once() {
        let mut entries = Entries::new(1, 1, None).unwrap();
        let (key, _) = Key::new(false, TCP, ([1, 0], 1), ([2, 0], 2));
        entries.hot_mut(0).begin(&key, true);
        entries.count(0, 0, u32::MAX >> 1);
        entries.count(0, 0, u32::MAX >> 1);
        assert_eq!(entries.counts(0).bytes[0], 2 * u64::from(u32::MAX >> 1));
    }

    #[test]
    fn a_new_flow_inherits_nothing_in_the_hot_line() {
        let mut entries = Entries::new(1, 1, None).unwrap();
        let (first, _) = Key::new(false, TCP, ([1, 0], 1), ([2, 0], 2));
        entries.hot_mut(0).begin(&first, true);
        entries.hot_mut(0).set(STATE_RST | STATE_EMITTED);
        entries.count(0, 0, 100);
        let (second, _) = Key::new(true, TCP, ([3, 4], 1), ([5, 6], 2));
        entries.hot_mut(0).begin(&second, false);
        let hot = entries.hot(0);
        assert!(hot.is_of(&second) && !hot.is_of(&first));
        assert!(!hot.is_closed() && !hot.has(STATE_EMITTED));
        assert_eq!(hot.direction(false), 0);
        assert_eq!(entries.counts(0), Counts::default());
    }

    #[test]
    fn usual_flags_and_the_last_time_share_a_word() {
        let mut hot = Hot::default();
        let latest_us = Packet::TIME_MAX_US;
        for (direction, flags) in [(0, TCP_ACK), (1, TCP_PSH), (1, TCP_ACK), (0, TCP_PSH)] {
            assert!(!hot.has_flags(direction, flags));
            hot.set_flags(direction, flags | TCP_SYN);
            for time_us in [0, -1, latest_us, -latest_us] {
                hot.set_last_us(time_us);
                assert_eq!(hot.last_us(), time_us);
                assert!(hot.has_flags(direction, flags) && hot.has_flags(direction, 0));
                assert!(!hot.has_flags(direction, flags | TCP_SYN));
            }
        }
        hot.begin(&Key::new(false, TCP, ([1, 0], 1), ([2, 0], 2)).0, true);
        assert!(!hot.has_flags(0, TCP_ACK) && !hot.has_flags(1, TCP_PSH), "of another flow");
    }
}
