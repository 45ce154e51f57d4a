//! What is kept of labels in addition to the label words: when a series was emitted, how long its
//! label took, which depth decided.
//!
//! The values of the first depth of all lie in the flow's cold line, the others in separate arrays.

use std::io;

use cring::LabelWord;

use crate::config::Effect;
use crate::entry::{Entries, LABEL_NOT_EMITTED};
use crate::ids::DepthId;
use crate::memory::{Array, Zeroed};
use crate::prefetch::prefetch_all;

/// What a flow keeps for one depth beyond the first of all, apart from the label word.
#[derive(Clone, Copy, Debug, Default)]
struct OtherDepth {
    /// As [`crate::entry::Cold::emitted_at`].
    emitted_at: i64,
    /// As [`crate::entry::Cold::time_to_label_us`].
    time_to_label_us: u32,
    /// Set at a task's first depth.
    decided: Decided,
}

/// Which depth of a task gave a flow's label for good.
#[derive(Clone, Copy, Debug, Default)]
struct Decided {
    /// The depth, from 0, plus one; 0 while none has.
    depth: u16,
    /// The class of the port's label that its answer contradicts, plus one; 0: none.
    contradicts: u16,
}

/// What a flow keeps for a depth of the first task beyond the first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Deeper {
    /// As [`crate::entry::Cold::bytes_before`], from when on this depth's answer would count.
    pub bytes_before: u64,
    /// As [`crate::entry::Cold::packets_before`]; [`NOT_IN_EFFECT`] before that.
    pub packets_before: u32,
    /// Set at the first, for the first task; unused at the others.
    decided: Decided,
}

/// Value of [`Deeper::packets_before`] while the depth's answer would not count yet.
pub(crate) const NOT_IN_EFFECT: u32 = u32::MAX;

/// Bytes that a flow takes by packet time for each depth of the first task beyond the first, in
/// addition to [`OTHER_DEPTH_BYTES`]; live for the first of them only.
pub(crate) const DEEPER_BYTES: usize = size_of::<Deeper>();

/// Bytes that a flow takes for each depth beyond the first of all, without its series.
pub(crate) const OTHER_DEPTH_BYTES: usize = size_of::<LabelWord>() + size_of::<OtherDepth>();

#[expect(unsafe_code, reason = "promises about types of integers")]
mod zeroed {
    use super::{Deeper, OtherDepth, Zeroed};

    // SAFETY: integers, and what is made of them.
    unsafe impl Zeroed for OtherDepth {}
    // SAFETY: integers, and what is made of them.
    unsafe impl Zeroed for Deeper {}
}

/// The arrays.
pub(crate) struct Kept {
    others: Array<OtherDepth>,
    deeper: Array<Deeper>,
    /// Per flow: depths beyond the first of all, and how many of `deeper`.
    counts: [usize; 2],
}

impl Kept {
    /// For flows with `depths` depths, at least one, of which `of_first` are the first task's.
    pub fn new(
        entries: usize,
        (depths, of_first): (usize, usize),
        effect: Effect,
    ) -> io::Result<Kept> {
        let deeper = match effect {
            // Only the first says which depth has decided: answers count when they come.
            Effect::Arrival => (of_first - 1).min(1),
            Effect::PacketTime { .. } => of_first - 1,
        };
        let counts = [depths - 1, deeper];
        Ok(Kept {
            others: Array::new(entries * counts[0])?,
            deeper: Array::new(entries * counts[1])?,
            counts,
        })
    }

    /// Whether the first task has several depths.
    #[inline]
    pub fn has_deeper(&self) -> bool {
        self.counts[1] > 0
    }

    /// Asks for what is kept of a flow.
    #[inline]
    pub fn prefetch(&self, index: u32) {
        prefetch_all(&self.others, index, self.counts[0]);
        prefetch_all(&self.deeper, index, self.counts[1]);
    }

    #[inline]
    pub fn begin(&mut self, index: u32) {
        if self.counts == [0; 2] {
            return;
        }
        let from = index as usize * self.counts[0];
        for depth in &mut self.others[from..from + self.counts[0]] {
            (depth.time_to_label_us, depth.decided) = (LABEL_NOT_EMITTED, Decided::default());
        }
        for depth in self.deeper_mut(index) {
            (depth.packets_before, depth.decided) = (NOT_IN_EFFECT, Decided::default());
        }
    }

    /// The flow was reported: what counts from now on belongs to the next record.
    pub fn report(&mut self, index: u32) {
        for depth in self.deeper_mut(index) {
            if depth.packets_before != NOT_IN_EFFECT {
                (depth.bytes_before, depth.packets_before) = (0, 0);
            }
        }
    }

    /// The first task's depths beyond the first, in order; live at most one.
    #[inline]
    pub fn deeper(&self, index: u32) -> &[Deeper] {
        let from = index as usize * self.counts[1];
        &self.deeper[from..from + self.counts[1]]
    }

    /// The same, mutable.
    #[inline]
    pub fn deeper_mut(&mut self, index: u32) -> &mut [Deeper] {
        let from = index as usize * self.counts[1];
        &mut self.deeper[from..from + self.counts[1]]
    }

    fn other(&self, depth: DepthId, index: u32) -> &OtherDepth {
        &self.others[self.place_of(depth, index)]
    }

    fn other_mut(&mut self, depth: DepthId, index: u32) -> &mut OtherDepth {
        let place = self.place_of(depth, index);
        &mut self.others[place]
    }

    fn place_of(&self, depth: DepthId, index: u32) -> usize {
        debug_assert!(
            (1..=self.counts[0]).contains(&depth.index()),
            "a flow has no depth {depth:?} beyond the first"
        );
        index as usize * self.counts[0] + depth.index() - 1
    }

    /// `first`: the first depth of the task.
    fn decision(&self, first: DepthId, index: u32) -> Decided {
        match first {
            DepthId::FIRST => {
                self.deeper(index).first().map_or_else(Decided::default, |it| it.decided)
            }
            _ => self.other(first, index).decided,
        }
    }

    fn decision_mut(&mut self, first: DepthId, index: u32) -> Option<&mut Decided> {
        match first {
            DepthId::FIRST => self.deeper_mut(index).first_mut().map(|it| &mut it.decided),
            _ => Some(&mut self.other_mut(first, index).decided),
        }
    }

    /// Which depth of a task, from 0, gave the flow's label for good, where the task has several.
    /// `first` is its first depth.
    #[inline]
    pub fn decided(&self, first: DepthId, index: u32) -> Option<u8> {
        let depth = self.decision(first, index).depth.checked_sub(1);
        depth.map(|depth| depth as u8)
    }

    pub fn set_decided(&mut self, first: DepthId, index: u32, depth: u8) {
        debug_assert!(usize::from(depth) <= self.counts[0], "a task has fewer depths");
        if let Some(decided) = self.decision_mut(first, index) {
            decided.depth = u16::from(depth) + 1;
        }
    }

    /// The class of the port's label that the deciding answer contradicts.
    pub fn contradicts(&self, first: DepthId, index: u32) -> Option<u16> {
        self.decision(first, index).contradicts.checked_sub(1)
    }

    pub fn set_contradicts(&mut self, first: DepthId, index: u32, class: u16) {
        debug_assert!(class < u16::MAX, "that is none");
        if let Some(decided) = self.decision_mut(first, index) {
            decided.contradicts = class + 1;
        }
    }

    /// When the series of a depth was emitted, see [`crate::entry::Cold::emitted_at`].
    pub fn emitted_at(&self, entries: &Entries, depth: DepthId, index: u32) -> i64 {
        match depth {
            DepthId::FIRST => entries.cold(index).emitted_at,
            _ => self.other(depth, index).emitted_at,
        }
    }

    pub fn set_emitted_at(&mut self, entries: &mut Entries, depth: DepthId, index: u32, at: i64) {
        match depth {
            DepthId::FIRST => entries.cold_mut(index).emitted_at = at,
            _ => self.other_mut(depth, index).emitted_at = at,
        }
    }

    /// The time to the label of a depth, µs; `None` until the label is recorded.
    pub fn time_to_label_us(&self, entries: &Entries, depth: DepthId, index: u32) -> Option<u32> {
        let us = match depth {
            DepthId::FIRST => entries.cold(index).time_to_label_us,
            _ => self.other(depth, index).time_to_label_us,
        };
        (us != LABEL_NOT_EMITTED).then_some(us)
    }

    pub fn set_time_to_label_us(
        &mut self,
        entries: &mut Entries,
        depth: DepthId,
        index: u32,
        us: Option<u32>,
    ) {
        debug_assert_ne!(us, Some(LABEL_NOT_EMITTED), "that is none");
        let us = us.unwrap_or(LABEL_NOT_EMITTED);
        match depth {
            DepthId::FIRST => entries.cold_mut(index).time_to_label_us = us,
            _ => self.other_mut(depth, index).time_to_label_us = us,
        }
    }
}
