//! The data array: one entry per flow (FENXI Fig. 5), split by how often its
//! parts are touched.
//!
//! * [`Entry`], one 64-byte line: all that a packet of a labelled flow touches,
//!   the key, the label word, the counters.
//! * [`Cold`], one line: identity and times; touched when a flow begins, at its
//!   K-th packet, when a counter carries over, and at its end.
//! * The series, see [`crate::series`], while it is collected.
//! * [`OtherTask`] and one more label word for each task beyond the first, in arrays of their own.
//!
//! Counters in the hot line are 8 bits of packets and 24 bits of bytes for each
//! direction and carry into the cold line, so that an exact 64-bit time, both
//! addresses of IPv6, the label word and the flow's action fit in as well.
//!
//! Label words are shared with the analytics side; everything else belongs to
//! the one flow manager that holds [`Entries`]. This module has `unsafe` for
//! that reason only: the label word and the rest lie in one line.
#![allow(
    unsafe_code,
    reason = "label words are shared, the rest of their line is not"
)]

use std::cell::UnsafeCell;
use std::io;
use std::sync::Arc;

use cring::{FlowRef, LabelWord, Labels};

use crate::action::PolicyStamp;
use crate::key::{KIND_UDP, KIND_V6, Key};
use crate::memory::{Array, Pages, Zeroed};
use crate::prefetch::prefetch;

/// The hot line of a flow, without its label word.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Hot {
    /// Time of the last packet, µs since the epoch.
    pub last_us: i64,
    low: [u64; 2],
    high: [u64; 2],
    ports: u32,
    /// Packets forward and reverse, modulo [`PACKETS_CARRIED`] and 0 only where there were none.
    packets: [u8; 2],
    /// Number of the flow's action, where `policy` says by which map.
    pub action: u8,
    pub policy: PolicyStamp,
    /// Bytes forward and reverse, bits 0 to 15 and 16 to 23.
    bytes_low: [u16; 2],
    bytes_high: [u8; 2],
    /// Kind bits of the key, and the `STATE_` bits.
    state: u8,
    /// Low bits of the tick at which the flow was last reported, see
    /// [`crate::expiry::ActiveTimeout`].
    pub reported_tick: u8,
}

const STATE_KIND: u8 = KIND_UDP | KIND_V6;
/// Forward is from the key's low end to its high end.
const STATE_LOW_IS_FORWARD: u8 = 0x04;
/// A FIN came from the forward side; shifted by one, from the reverse side.
pub(crate) const STATE_FIN_FORWARD: u8 = 0x08;
/// A FIN came from the reverse side.
pub(crate) const STATE_FIN_REVERSE: u8 = 0x10;
/// A RST came.
pub(crate) const STATE_RST: u8 = 0x20;
/// The series was completed: it was emitted or shed.
pub(crate) const STATE_EMITTED: u8 = 0x40;
/// The label counts for packets from now on.
pub(crate) const STATE_IN_EFFECT: u8 = 0x80;
/// With [`STATE_EMITTED`] and [`crate::Effect::Arrival`], where labels need no [`STATE_IN_EFFECT`]: of several depths one has
/// decided, and its answer stands in the first task's label word.
pub(crate) const STATE_DECIDED: u8 = STATE_IN_EFFECT;
/// With [`crate::Effect::Arrival`] and several tasks, in the place of the states above: no packet adds to a series any more.
pub(crate) const STATE_COLLECTED: u8 = STATE_IN_EFFECT;
/// A state that no flow has, see [`Hot::has_all`].
pub(crate) const STATE_NEVER: u16 = 0x100;
/// Without [`STATE_EMITTED`], which a label in effect has as well: the series is complete, and was not emitted because the
/// flow began mid-stream.
pub(crate) const STATE_WITHHELD: u8 = STATE_IN_EFFECT;

impl Hot {
    /// Begins a flow whose first packet goes from the low end (`from_low`) or
    /// from the high one.
    pub fn begin(&mut self, key: &Key, from_low: bool) {
        *self = Hot {
            low: key.low,
            high: key.high,
            ports: key.ports,
            state: key.kind | if from_low { STATE_LOW_IS_FORWARD } else { 0 },
            ..Hot::default()
        };
    }

    pub fn key(&self) -> Key {
        Key {
            low: self.low,
            high: self.high,
            ports: self.ports,
            kind: self.state & STATE_KIND,
        }
    }

    #[inline]
    pub fn is_of(&self, key: &Key) -> bool {
        // Without branches: nearly always all are equal.
        let addresses = (self.low[0] ^ key.low[0])
            | (self.low[1] ^ key.low[1])
            | (self.high[0] ^ key.high[0])
            | (self.high[1] ^ key.high[1]);
        let rest = (self.ports ^ key.ports) | u32::from((self.state & STATE_KIND) ^ key.kind);
        addresses | u64::from(rest) == 0
    }

    #[inline]
    pub fn has(&self, state: u8) -> bool {
        self.state & state == state
    }

    /// Whether it has all of these states. [`STATE_NEVER`] is one that no flow has.
    #[inline]
    pub fn has_all(&self, states: u16) -> bool {
        u16::from(self.state) & states == states
    }

    #[inline]
    pub fn set(&mut self, state: u8) {
        self.state |= state;
    }

    pub fn is_low_forward(&self) -> bool {
        self.has(STATE_LOW_IS_FORWARD)
    }

    /// 0 for a forward packet, 1 for one in reverse.
    #[inline]
    pub fn direction(&self, from_low: bool) -> usize {
        usize::from(from_low != self.is_low_forward())
    }

    /// The flow ended by FIN from both sides, or by RST.
    pub fn is_closed(&self) -> bool {
        self.has(STATE_RST) || self.has(STATE_FIN_FORWARD | STATE_FIN_REVERSE)
    }

    /// The forward side or the reverse side sent FIN, or one of them RST.
    pub fn is_closing(&self) -> bool {
        self.state & (STATE_RST | STATE_FIN_FORWARD | STATE_FIN_REVERSE) != 0
    }

    /// Packets came since the flow's last record.
    pub fn has_packets(&self) -> bool {
        self.packets != [0; 2]
    }

    /// Whether the next packet in a direction is one at which a flow is held against bounds: the 1st, 2nd, 4th, 8th, 16th, and
    /// each 32nd or so.
    #[inline]
    pub fn is_at_mark(&self, direction: usize) -> bool {
        // As in `Hot::count`; past 255 comes 1.
        let next = self.packets[direction & 1].wrapping_add(1);
        next & next.wrapping_sub(1) == 0 || next.is_multiple_of(32)
    }

    /// A packet came in reverse since the flow's last record, however many did.
    #[inline]
    pub fn has_reverse_packets(&self) -> bool {
        self.packets[1] != 0
    }

    /// Counts a packet; says what must carry into the cold line.
    #[inline]
    pub fn count(&mut self, direction: usize, length: u32) -> Option<Carry> {
        let direction = direction & 1;
        // Past 255 comes 1, so that a count of 0 says that no packet came.
        let (packets, packets_carry) = self.packets[direction].overflowing_add(1);
        let packets = packets + u8::from(packets_carry);
        let bytes = self.bytes(direction) + length;
        self.packets[direction] = packets;
        self.set_bytes(direction, bytes);
        (packets_carry || bytes >> 24 != 0).then_some(Carry {
            packets: packets_carry,
            bytes: (bytes >> 24) as u8,
        })
    }

    #[inline]
    fn bytes(&self, direction: usize) -> u32 {
        u32::from(self.bytes_low[direction]) | u32::from(self.bytes_high[direction]) << 16
    }

    #[inline]
    fn set_bytes(&mut self, direction: usize, bytes: u32) {
        self.bytes_low[direction] = bytes as u16;
        self.bytes_high[direction] = (bytes >> 16) as u8;
    }
}

/// Packets that one carry of the hot line's counter stands for.
const PACKETS_CARRIED: u64 = u8::MAX as u64;

/// What goes from the hot line's counters to the cold line's.
#[derive(Clone, Copy)]
pub(crate) struct Carry {
    packets: bool,
    pub bytes: u8,
}

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

/// What a flow keeps for one task beyond the first, apart from the label word.
#[derive(Clone, Copy, Debug, Default)]
struct OtherTask {
    /// As [`Cold::emitted_at`].
    emitted_at: i64,
    /// As [`Cold::time_to_label_us`].
    time_to_label_us: u32,
    /// Of the first depth of a task.
    decided: Decided,
}

// SAFETY: integers, and what is made of them.
unsafe impl Zeroed for OtherTask {}

/// Which depth of a task gave a flow's label for good.
#[derive(Clone, Copy, Debug, Default)]
struct Decided {
    /// The depth, from 0, and one more; 0 while none has.
    depth: u16,
    /// The class of the port's label that its answer contradicts, and one more; 0: none.
    contradicts: u16,
}

impl Decided {
    fn depth(self) -> Option<u8> {
        self.depth.checked_sub(1).map(|depth| depth as u8)
    }
}

/// What a flow keeps for a depth beyond the first, in a run of its own beside [`OtherTask`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Deeper {
    /// As [`Cold::bytes_before`], from when on this depth's answer would count.
    pub bytes_before: u64,
    /// As [`Cold::packets_before`]; [`NOT_IN_EFFECT`] before that.
    pub packets_before: u32,
    /// Of the first: what the first task has. The others leave it unused.
    decided: Decided,
}

/// Value of [`Deeper::packets_before`] while the depth's answer would not count yet.
pub(crate) const NOT_IN_EFFECT: u32 = u32::MAX;

/// Bytes that a flow takes for each depth beyond the first, apart from those of [`OTHER_TASK_BYTES`].
pub(crate) const DEEPER_BYTES: usize = size_of::<Deeper>();

// SAFETY: integers, and what is made of them.
unsafe impl Zeroed for Deeper {}

/// Bytes that a flow takes for each task beyond the first, its series apart.
pub(crate) const OTHER_TASK_BYTES: usize = size_of::<LabelWord>() + size_of::<OtherTask>();

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
    /// The words of other tasks than the first, flow by flow.
    others: Array<LabelWord>,
    /// How many other tasks there are.
    other_tasks: usize,
}

// SAFETY: through a shared reference only the label words, which are atomic,
// can be reached; `hot` is reached through `Entries`, of which there is one.
unsafe impl Sync for Shared {}

impl Labels for Shared {
    fn word(&self, task: u8, index: u32) -> &LabelWord {
        match task {
            0 => &self.entries[index as usize].label,
            _ => &self.others[place_of(self.other_tasks, task, index)],
        }
    }
}

/// Where a task beyond the first has its place in an array of them.
fn place_of(other_tasks: usize, task: u8, index: u32) -> usize {
    debug_assert!(
        (1..=other_tasks).contains(&usize::from(task)),
        "a flow has no task {task}"
    );
    index as usize * other_tasks + usize::from(task) - 1
}

/// The data array, as its one flow manager sees it.
pub(crate) struct Entries {
    shared: Arc<Shared>,
    cold: Array<Cold>,
    others: Array<OtherTask>,
    deeper: Array<Deeper>,
    /// Depths beyond the first.
    depths: usize,
    /// With behaviours: bytes by which the counters of each direction run ahead, so that they carry where the flow may cross the
    /// bound of `bulk`. Below 2^24.
    ahead: Array<[u32; 2]>,
}

impl Entries {
    /// Room for `entries` flows with so many tasks each, at least one, of which so many are deeper than the first.
    pub fn new(
        entries: usize,
        tasks: usize,
        deeper: usize,
        behaviours: bool,
    ) -> io::Result<Entries> {
        let other_tasks = tasks - 1;
        Ok(Entries {
            shared: Arc::new(Shared {
                entries: Array::new(entries)?,
                others: Array::new(entries * other_tasks)?,
                other_tasks,
            }),
            cold: Array::new(entries)?,
            others: Array::new(entries * other_tasks)?,
            deeper: Array::new(entries * deeper)?,
            depths: deeper,
            ahead: Array::new(entries * usize::from(behaviours))?,
        })
    }

    /// The pages under the hot lines.
    pub fn pages(&self) -> Pages {
        self.shared.entries.pages()
    }

    /// The label words, for the analytics side.
    pub fn labels(&self) -> Arc<dyn Labels> {
        self.shared.clone()
    }

    /// Asks for the hot line of an entry.
    #[inline]
    pub fn prefetch(&self, index: u32) {
        prefetch(&self.shared.entries, index as usize);
    }

    /// Asks for both lines of an entry.
    #[inline]
    pub fn prefetch_all(&self, index: u32) {
        self.prefetch(index);
        prefetch(&self.cold, index as usize);
    }

    /// The label word of the first task.
    #[inline]
    pub fn label(&self, index: u32) -> &LabelWord {
        &self.shared.entries[index as usize].label
    }

    /// The label word of any task.
    #[inline]
    pub fn word(&self, task: u8, index: u32) -> &LabelWord {
        self.shared.word(task, index)
    }

    /// The flow has ended: its labels are gone, and references to it are void.
    #[inline]
    pub fn retire(&mut self, index: u32) {
        for task in 0..=self.shared.other_tasks as u8 {
            self.word(task, index).retire();
        }
    }

    /// Begins what tasks beyond the first keep of a flow.
    #[inline]
    pub fn begin_other_tasks(&mut self, index: u32) {
        let tasks = self.shared.other_tasks;
        let from = index as usize * tasks;
        for task in &mut self.others[from..from + tasks] {
            (task.time_to_label_us, task.decided) = (LABEL_NOT_EMITTED, Decided::default());
        }
        for depth in self.deeper_mut(index) {
            (depth.packets_before, depth.decided) = (NOT_IN_EFFECT, Decided::default());
        }
    }

    /// What is kept for the depths beyond the first, in their order.
    #[inline]
    pub fn deeper(&self, index: u32) -> &[Deeper] {
        let from = index as usize * self.depths;
        &self.deeper[from..from + self.depths]
    }

    /// The same to be written.
    #[inline]
    pub fn deeper_mut(&mut self, index: u32) -> &mut [Deeper] {
        let from = index as usize * self.depths;
        &mut self.deeper[from..from + self.depths]
    }

    /// The task whose answer is the flow's label for good, where there are several depths.
    pub fn decided(&self, index: u32) -> Option<u8> {
        self.deeper(index).first()?.decided.depth()
    }

    pub fn set_decided(&mut self, index: u32, task: u8) {
        if let Some(first) = self.deeper_mut(index).first_mut() {
            first.decided.depth = u16::from(task) + 1;
        }
    }

    /// The same of another task than the first: which of its depths, from 0. `first` is the number of its first depth.
    pub fn decided_of(&self, first: u8, index: u32) -> Option<u8> {
        self.others[place_of(self.shared.other_tasks, first, index)]
            .decided
            .depth()
    }

    pub fn set_decided_of(&mut self, first: u8, index: u32, depth: u8) {
        let place = place_of(self.shared.other_tasks, first, index);
        self.others[place].decided.depth = u16::from(depth) + 1;
    }

    /// The class of the port's label that the answer that decided contradicts. `first` is the number of the task's first depth.
    pub fn contradicts(&self, first: u8, index: u32) -> Option<u16> {
        let decided = match first {
            0 => self.deeper(index).first().map(|depth| depth.decided),
            _ => Some(self.others[place_of(self.shared.other_tasks, first, index)].decided),
        };
        decided?.contradicts.checked_sub(1)
    }

    pub fn set_contradicts(&mut self, first: u8, index: u32, class: u16) {
        if first > 0 {
            let place = place_of(self.shared.other_tasks, first, index);
            self.others[place].decided.contradicts = class + 1;
        } else if let Some(depth) = self.deeper_mut(index).first_mut() {
            depth.decided.contradicts = class + 1;
        }
    }

    /// When the series of a task was emitted, see [`Cold::emitted_at`].
    pub fn emitted_at(&self, task: u8, index: u32) -> i64 {
        match task {
            0 => self.cold(index).emitted_at,
            _ => self.others[place_of(self.shared.other_tasks, task, index)].emitted_at,
        }
    }

    pub fn set_emitted_at(&mut self, task: u8, index: u32, at: i64) {
        match task {
            0 => self.cold_mut(index).emitted_at = at,
            _ => self.others[place_of(self.shared.other_tasks, task, index)].emitted_at = at,
        }
    }

    /// The time to the label of a task, see [`Cold::time_to_label_us`].
    pub fn time_to_label_us(&self, task: u8, index: u32) -> u32 {
        match task {
            0 => self.cold(index).time_to_label_us,
            _ => self.others[place_of(self.shared.other_tasks, task, index)].time_to_label_us,
        }
    }

    pub fn set_time_to_label_us(&mut self, task: u8, index: u32, us: u32) {
        match task {
            0 => self.cold_mut(index).time_to_label_us = us,
            _ => self.others[place_of(self.shared.other_tasks, task, index)].time_to_label_us = us,
        }
    }

    /// The label of a task is another one, of which nothing was said.
    pub fn forget_time_to_label(&mut self, task: u8, index: u32) {
        self.set_time_to_label_us(task, index, LABEL_NOT_EMITTED);
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

    /// Counts so many packets with so many bytes in all; how often the counter of bytes carried.
    pub fn count_sum(&mut self, index: u32, direction: usize, packets: u64, bytes: u64) -> u64 {
        let hot = self.hot_mut(index);
        // As in `Hot::count`, past 255 comes 1.
        let sum = u64::from(hot.packets[direction]) + packets;
        let carries = sum.saturating_sub(1) / PACKETS_CARRIED;
        hot.packets[direction] = (sum - carries * PACKETS_CARRIED) as u8;
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

    fn ahead(&self, index: u32) -> [u32; 2] {
        self.ahead.get(index as usize).copied().unwrap_or_default()
    }

    /// [`Entries::arm`] for a flow that has no bytes yet.
    pub fn arm_anew(&mut self, index: u32, bytes: u32) {
        self.ahead[index as usize] = [0; 2];
        self.arm(index, bytes);
    }

    /// Makes the counter of a direction carry before or when so many more bytes have come in both directions, at most 2^24: each
    /// gets half of them. Counts stay as they are.
    pub fn arm(&mut self, index: u32, bytes: u32) {
        let counts = self.counts(index);
        for (direction, share) in [bytes.div_ceil(2), (bytes / 2).max(1)]
            .into_iter()
            .enumerate()
        {
            let low = (1 << 24) - share;
            let high = counts.bytes[direction]
                .saturating_sub(low.into())
                .div_ceil(1 << 24);
            self.hot_mut(index).set_bytes(direction, low);
            self.cold_mut(index).bytes_high[direction] = high as u32;
            let sum = (high << 24) + u64::from(low);
            self.ahead[index as usize][direction] = (sum - counts.bytes[direction]) as u32;
        }
    }

    /// Bytes that are left of those of the last [`Entries::arm`], behind one that made a counter carry so many times; below 0
    /// once more have come.
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
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::TCP;

    #[test]
    fn counters_carry_beyond_8_bits_of_packets_and_24_of_bytes() {
        let mut entries = Entries::new(1, 1, 0, false).unwrap();
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
        let mut entries = Entries::new(2, 1, 0, false).unwrap();
        let (key, _) = Key::new(false, TCP, ([1, 0], 1), ([2, 0], 2));
        (0..2).for_each(|index| entries.hot_mut(index).begin(&key, true));
        for (packets, length) in [
            (0u64, 9),
            (1, 65_535),
            (254, 1),
            (255, 0),
            (256, 1),
            (1000, 65_000),
        ] {
            entries.count_sum(0, 1, packets, packets * u64::from(length));
            (0..packets).for_each(|_| entries.count(1, 1, length));
            assert_eq!(entries.counts(0), entries.counts(1));
            assert_eq!(entries.hot(0).packets, entries.hot(1).packets);
        }
    }

    #[test]
    fn a_large_frame_carries_more_than_once() {
        let mut entries = Entries::new(1, 1, 0, false).unwrap();
        let (key, _) = Key::new(false, TCP, ([1, 0], 1), ([2, 0], 2));
        entries.hot_mut(0).begin(&key, true);
        entries.count(0, 0, u32::MAX >> 1);
        entries.count(0, 0, u32::MAX >> 1);
        assert_eq!(entries.counts(0).bytes[0], 2 * u64::from(u32::MAX >> 1));
    }

    #[test]
    fn a_new_flow_inherits_nothing_in_the_hot_line() {
        let mut entries = Entries::new(1, 1, 0, false).unwrap();
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
}
