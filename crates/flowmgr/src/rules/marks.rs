//! What the table keeps of each flow for the rules in force.

use std::io;
use std::sync::Arc;

use super::ask::Asking;
use super::{RULES_MAX, RulesChange};
use crate::action::GENERATIONS;
use crate::entry::Counts;
use crate::memory::{Array, Zeroed};
use crate::outbox::SPARE_ENTRIES;
use crate::prefetch::prefetch;

/// What the table keeps of each flow for rules.
pub struct RuleMemory {
    marks: Array<RuleMark>,
    /// Of flows with [`RuleMark::PARTLY_ASKED`]: [`super::RuleAnswer::unasked`].
    unasked: Array<u8>,
    reported: Array<Reported>,
    /// [`super::RuleAnswer::kept`]; empty: nothing is kept.
    kept: Array<u64>,
    /// When each of the last changes was, in packet time; the earliest time for changes that have
    /// not happened.
    changed_us: Box<[i64; GENERATIONS]>,
    /// Room for the questions of a burst.
    pub(super) asking: Asking,
}

impl RuleMemory {
    /// For a table of `max_flows` flows: 1 KiB, and 25 bytes per flow, of which 16 are touched only
    /// where flows are reported while they go on, and one only where a rule names tasks.
    ///
    /// # Errors
    /// The system has not enough memory.
    pub fn new(max_flows: usize) -> io::Result<RuleMemory> {
        let entries = max_flows + SPARE_ENTRIES;
        Ok(RuleMemory {
            marks: Array::new(entries)?,
            unasked: Array::new(entries)?,
            reported: Array::new(entries)?,
            kept: Array::new(0)?,
            changed_us: Box::new([i64::MIN; GENERATIONS]),
            asking: Asking::new(),
        })
    }

    /// The same with room for [`super::RuleAnswer::kept`], 8 bytes per flow.
    ///
    /// # Errors
    /// As [`RuleMemory::new`].
    pub fn keeping(max_flows: usize) -> io::Result<RuleMemory> {
        let kept = Array::new(max_flows + SPARE_ENTRIES)?;
        Ok(RuleMemory { kept, ..RuleMemory::new(max_flows)? })
    }
}

/// A flow's rule number plus one (24 bits), its numbering (3 bits), five flags, and the VLAN of its
/// first packet (13 bits from bit 32 on).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct RuleMark(u64);

#[expect(unsafe_code, reason = "promises about types of integers")]
mod zeroed {
    // SAFETY: integers only.
    unsafe impl super::Zeroed for super::RuleMark {}
    // SAFETY: integers only.
    unsafe impl super::Zeroed for super::Reported {}
}

impl RuleMark {
    const NUMBER_BITS: u32 = 24;
    const NUMBERINGS: u32 = 8;
    /// The VLAN is known: its 12 bits follow.
    const VLAN_KNOWN: u64 = 1 << 32;
    const VLAN_AT: u32 = 33;
    const VLAN: u64 = u64::MAX << 32;
    /// A rule asks nothing about the flow, so that it gave no series.
    const UNASKED: u64 = 1 << 31;
    /// The flow has its label from a rule.
    const LABELLED: u64 = 1 << 30;
    /// A question had the flow's label.
    const LABEL_TOLD: u64 = 1 << 29;
    /// The flow was reported, see [`Reported`].
    const REPORTED: u64 = 1 << 28;
    /// A rule, or its name, keeps some tasks from being asked about the flow.
    const PARTLY_ASKED: u64 = 1 << 27;
    const FLAGS: u64 = RuleMark::VLAN
        | RuleMark::UNASKED
        | RuleMark::LABELLED
        | RuleMark::LABEL_TOLD
        | RuleMark::REPORTED
        | RuleMark::PARTLY_ASKED;

    fn with_rule(self, rule: Option<u32>, numbering: u32) -> RuleMark {
        let flags = self.0 & RuleMark::FLAGS;
        let number = rule.map_or(0, |rule| rule.min(RULES_MAX - 1) + 1);
        RuleMark(flags | u64::from(numbering << RuleMark::NUMBER_BITS | number))
    }

    fn with_vlan(self, vlan: u16) -> RuleMark {
        let bits = u64::from(vlan & 0xfff) << RuleMark::VLAN_AT;
        RuleMark(self.0 & !RuleMark::VLAN | RuleMark::VLAN_KNOWN | bits)
    }

    fn vlan(self) -> Option<u16> {
        let is_known = self.0 & RuleMark::VLAN_KNOWN != 0;
        is_known.then_some((self.0 >> RuleMark::VLAN_AT & 0xfff) as u16)
    }

    fn is_of(self, numbering: u32) -> bool {
        self.0 as u32 >> RuleMark::NUMBER_BITS & (RuleMark::NUMBERINGS - 1) == numbering
    }

    fn rule(self, numbering: u32) -> Option<u32> {
        let number = self.0 as u32 & ((1 << RuleMark::NUMBER_BITS) - 1);
        number.checked_sub(1).filter(|_| self.is_of(numbering))
    }
}

/// Counts in the flow's records so far. A flow's counters restart from 0 after each record, but
/// bounds apply to its whole life. Without [`RuleMark::REPORTED`] these count as 0 whatever is in
/// memory, so most flows never touch them.
#[derive(Clone, Copy, Debug, Default)]
struct Reported {
    bytes: u64,
    packets: u64,
}

/// Rules are in force.
pub(crate) struct InForce {
    memory: RuleMemory,
    pub has_bounds: bool,
    pub has_behaviours: bool,
    /// [`RulesChange::named`].
    pub named: Arc<[(u32, u64)]>,
    /// By packet time, flows are looked up again with their first packet of each minute.
    pub has_hours: bool,
    /// Whether known rules of flows may be looked up again as they go on: `has_bounds` or
    /// `has_hours`.
    pub looks_again: bool,
    numbering: u32,
    /// The next of [`RuleMemory::changed_us`] to be written.
    next_change: usize,
    /// When the oldest of these changes was: the stamp of a flow whose last packet came before may
    /// have wrapped around.
    pub outdated_us: i64,
}

impl InForce {
    pub fn new(memory: RuleMemory) -> InForce {
        InForce {
            memory,
            has_bounds: false,
            has_behaviours: false,
            named: Arc::default(),
            has_hours: false,
            looks_again: false,
            numbering: 0,
            next_change: 0,
            outdated_us: i64::MIN,
        }
    }

    /// Other rules are in force from now on, by the packets' time.
    pub fn change(&mut self, change: &RulesChange, now_us: i64) {
        self.has_bounds = change.has_bounds;
        self.has_behaviours = change.has_behaviours;
        self.has_hours = change.has_hours;
        self.looks_again = change.has_bounds || change.has_hours;
        if change.is_renumbered {
            self.numbering = (self.numbering + 1) % RuleMark::NUMBERINGS;
        }
        let changed_us = &mut self.memory.changed_us;
        changed_us[self.next_change] = now_us;
        self.next_change = (self.next_change + 1) % GENERATIONS;
        self.outdated_us = changed_us[self.next_change];
    }

    /// Clears what is known, for a flow that begins.
    pub fn begin(&mut self, index: u32) {
        self.memory.marks[index as usize] = RuleMark::default();
        self.keep(index, 0);
    }

    /// What the last answer keeps of a flow.
    pub fn kept(&self, index: u32) -> u64 {
        self.memory.kept.get(index as usize).copied().unwrap_or_default()
    }

    pub fn keep(&mut self, index: u32, kept: u64) {
        if let Some(place) = self.memory.kept.get_mut(index as usize) {
            *place = kept;
        }
    }

    /// Prefetches what is kept of a flow that ends.
    pub fn prefetch(&self, index: u32) {
        prefetch(&self.memory.marks, index as usize);
    }

    /// Whether generations have wrapped around since a flow's last packet, so that its stamp says
    /// nothing.
    #[inline]
    pub fn may_be_outdated(&self, last_us: i64) -> bool {
        last_us <= self.outdated_us
    }

    /// The flow was reported with these counts.
    pub fn report(&mut self, index: u32, counts: &Counts) {
        let mark = &mut self.memory.marks[index as usize];
        let reported = &mut self.memory.reported[index as usize];
        if mark.0 & RuleMark::REPORTED == 0 {
            mark.0 |= RuleMark::REPORTED;
            *reported = Reported::default();
        }
        reported.bytes += counts.bytes_total();
        reported.packets += counts.packets_total();
    }

    /// Bytes and packets of the flow's whole life, given its `counts` since the last record.
    pub fn since_begin(&self, index: u32, counts: &Counts) -> (u64, u64) {
        let is_reported = self.memory.marks[index as usize].0 & RuleMark::REPORTED != 0;
        let reported = match is_reported {
            true => self.memory.reported[index as usize],
            false => Reported::default(),
        };
        (reported.bytes + counts.bytes_total(), reported.packets + counts.packets_total())
    }

    pub fn rule(&self, index: u32) -> Option<u32> {
        self.memory.marks[index as usize].rule(self.numbering)
    }

    /// Whether the flow's last answer came since rules were last renumbered.
    pub fn is_numbered(&self, index: u32) -> bool {
        self.memory.marks[index as usize].is_of(self.numbering)
    }

    pub fn set_rule(&mut self, index: u32, rule: Option<u32>) {
        let mark = &mut self.memory.marks[index as usize];
        *mark = mark.with_rule(rule, self.numbering);
    }

    /// Notes that a question has the flow's label; returns whether it is the first.
    pub fn tell_label(&mut self, index: u32) -> bool {
        let mark = &mut self.memory.marks[index as usize];
        let is_new = mark.0 & RuleMark::LABEL_TOLD == 0;
        mark.0 |= RuleMark::LABEL_TOLD;
        is_new
    }

    /// The flow's label has changed since a question had it.
    pub fn untell_label(&mut self, index: u32) {
        self.memory.marks[index as usize].0 &= !RuleMark::LABEL_TOLD;
    }

    /// A rule asks nothing about the flow.
    pub fn is_unasked(&self, index: u32) -> bool {
        self.memory.marks[index as usize].0 & RuleMark::UNASKED != 0
    }

    pub fn set_unasked(&mut self, index: u32) {
        self.memory.marks[index as usize].0 |= RuleMark::UNASKED;
    }

    /// Whether an answer gave the flow a rule, or tasks that are not asked about it. False for a
    /// flow that began before the first rules, until its next answer.
    pub fn has_answer(&self, index: u32) -> bool {
        let mark = self.memory.marks[index as usize].0;
        mark & !(RuleMark::REPORTED | RuleMark::LABEL_TOLD | RuleMark::VLAN) != 0
    }

    /// The tasks that a rule does not ask about the flow, see [`super::RuleAnswer::unasked`].
    pub fn unasked(&self, index: u32) -> u8 {
        let mark = self.memory.marks[index as usize].0;
        match mark & (RuleMark::UNASKED | RuleMark::PARTLY_ASKED) {
            0 => 0,
            RuleMark::PARTLY_ASKED => self.memory.unasked[index as usize],
            _ => u8::MAX,
        }
    }

    pub fn set_tasks_unasked(&mut self, index: u32, unasked: u8) {
        let mark = &mut self.memory.marks[index as usize].0;
        if unasked == 0 {
            *mark &= !RuleMark::PARTLY_ASKED;
            return;
        }
        *mark |= RuleMark::PARTLY_ASKED;
        self.memory.unasked[index as usize] = unasked;
    }

    /// [`super::RuleQuestion::vlan`], once a packet has raised a question.
    pub fn vlan(&self, index: u32) -> Option<u16> {
        self.memory.marks[index as usize].vlan()
    }

    pub fn set_vlan(&mut self, index: u32, vlan: u16) {
        let mark = &mut self.memory.marks[index as usize];
        *mark = mark.with_vlan(vlan);
    }

    /// A rule gave the flow's label.
    pub fn is_labelled(&self, index: u32) -> bool {
        self.memory.marks[index as usize].0 & RuleMark::LABELLED != 0
    }

    pub fn set_labelled(&mut self, index: u32) {
        self.memory.marks[index as usize].0 |= RuleMark::LABELLED;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_holds_a_rule_of_its_numbering() {
        let mark = RuleMark(RuleMark::UNASKED);
        for rule in [None, Some(0), Some(RULES_MAX - 1)] {
            let mark = mark.with_rule(rule, 7);
            assert_eq!((mark.rule(7), mark.rule(0)), (rule, None));
            assert!(mark.0 & RuleMark::UNASKED != 0 && mark.0 & RuleMark::LABELLED == 0);
        }
    }

    #[test]
    fn a_mark_holds_the_vlan_of_the_first_packet() {
        let mark = RuleMark(RuleMark::LABELLED).with_vlan(4094).with_rule(Some(5), 7);
        assert_eq!((mark.vlan(), mark.rule(7)), (Some(4094), Some(5)));
        assert!(mark.0 & RuleMark::LABELLED != 0 && mark.0 & RuleMark::UNASKED == 0);
        let other = mark.with_vlan(0);
        assert_eq!((other.vlan(), other.rule(7)), (Some(0), Some(5)));
        assert_eq!(RuleMark::default().with_rule(Some(1), 0).vlan(), None);
    }
}
