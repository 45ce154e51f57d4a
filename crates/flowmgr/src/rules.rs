//! Rules as the walk sees them: questions about flows, and answers to them.
//!
//! The walk knows no rule. While it walks a burst it collects a question for each flow whose rule
//! has to be looked up: it began, its label was decided, the rules have changed since the last
//! time, or it may have gone beyond a bound. The caller answers all of them in one go
//! ([`crate::Manager::answer_rules`]), before the burst leaves, so that answers count for the
//! packets that raised the questions. A flow whose rule is known costs a comparison in its hot
//! line.

use std::io;
use std::net::IpAddr;

use cring::FlowRef;

use crate::action::{Action, GENERATIONS};
use crate::behaviour::Behaviour;
use crate::entry::Counts;
use crate::flows::{Flows, SPARE_ENTRIES};
use crate::memory::{Array, Zeroed};
use crate::part::{First, Part};
use crate::prefetch::prefetch;
use ask::Asking;
pub(crate) use ask::{Cause, Known, Waiting};

mod ask;

/// Questions about flows whose rule is only out of date that a burst of so many packets may raise;
/// the other flows keep their actions until a later one. A look-up costs as much as the walk of a
/// few packets, so few among many do not slow it down, and where packets are few every flow gets
/// its turn soon.
pub const fn renewed_max(packets: usize) -> usize {
    1 + packets / 64
}

/// A flow whose rule is to be looked up, and what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleQuestion {
    /// The flow.
    pub flow: FlowRef,
    /// Its number in this run.
    pub flow_id: u64,
    /// IP protocol number.
    pub protocol: u8,
    /// Sender of the first packet.
    pub source: (IpAddr, u16),
    /// Receiver of the first packet.
    pub destination: (IpAddr, u16),
    /// Port where the first packet was seen, from 1; 0 where that is not known. See
    /// [`crate::Manager::receive_from`].
    pub in_port: u8,
    /// Time of the first packet, µs since the epoch.
    pub first_us: i64,
    /// Class of the flow's label, if it has one; by packet time labels are not known here.
    pub class: Option<u16>,
    /// What the flow does.
    pub behaviour: Behaviour,
    /// Bytes in both directions so far, with those of the packets that raised the question.
    pub bytes: u64,
    /// Packets in both directions so far.
    pub packets: u64,
    /// Time since the first packet, µs.
    pub age_us: u64,
    /// A hash of the flow.
    pub sample: u16,
    /// The rule of the last answer, unless rules have got other numbers since.
    pub before: Option<u32>,
    /// The rules are those of the last answer: only what is known of the flow is new.
    pub is_by_same_rules: bool,
    /// The flow's label was not known the last time, or is another one.
    pub is_label_new: bool,
    /// The label is the one that its port gives the flow with this answer, unless the answer gives
    /// another or the first task is not asked about it.
    pub is_by_port: bool,
    /// The class that its port gave the flow before, where an answer contradicts that.
    pub contradicts: Option<u16>,
}

/// What a flow's rule asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleAnswer {
    /// Number of the rule, below [`RULES_MAX`]; `None`: the flow has none.
    pub rule: Option<u32>,
    /// What is done to the flow's packets. Without a DSCP they get that of the flow's label.
    pub action: Action,
    /// Tasks that are not asked about the flow, unless they were: bit n for task n, depths not
    /// counted.
    pub unasked: u8,
    /// The flow's label, unless it has one.
    pub class: Option<u16>,
}

/// Numbers of rules are below this.
pub const RULES_MAX: u32 = (1 << 24) - 1;

/// Other rules are in force.
#[derive(Default)]
pub struct RulesChange {
    /// Some rule asks for what flows have done, so flows are looked up again as they go on.
    pub has_bounds: bool,
    /// Some rule asks for a behaviour.
    pub has_behaviours: bool,
    /// The numbers of rules stand for other rules than before.
    pub is_renumbered: bool,
    /// Memory for the rules of flows, needed with the first rules; afterwards, what is not needed
    /// comes back in it.
    pub memory: Option<RuleMemory>,
}

/// What the table keeps of each flow for rules.
pub struct RuleMemory {
    marks: Array<RuleMark>,
    /// Of flows with [`RuleMark::PARTLY_ASKED`]: [`RuleAnswer::unasked`].
    unasked: Array<u8>,
    reported: Array<Reported>,
    /// When each of the last changes was, by the packets' time; of those that were not yet, as
    /// early as can be.
    changed_us: Box<[i64; GENERATIONS]>,
    /// Room for the questions of a burst.
    asking: Asking,
}

impl RuleMemory {
    /// For a table of so many flows; 21 bytes each, of which 16 are touched only where flows are
    /// reported while they go on, and one only where a rule names tasks; and 1 KiB.
    ///
    /// # Errors
    /// The system has not enough memory.
    pub fn new(max_flows: usize) -> io::Result<RuleMemory> {
        let entries = max_flows + SPARE_ENTRIES;
        Ok(RuleMemory {
            marks: Array::new(entries)?,
            unasked: Array::new(entries)?,
            reported: Array::new(entries)?,
            changed_us: Box::new([i64::MIN; GENERATIONS]),
            asking: Asking::new(),
        })
    }
}

/// Number of a flow's rule and one more (24 bits), the numbering that it belongs to (3 bits), and
/// five flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct RuleMark(u32);

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
    /// A rule asks nothing about the flow, so that it gave no series.
    const UNASKED: u32 = 1 << 31;
    /// The flow has its label from a rule.
    const LABELLED: u32 = 1 << 30;
    /// A question had the flow's label.
    const LABEL_TOLD: u32 = 1 << 29;
    /// The flow was reported, see [`Reported`].
    const REPORTED: u32 = 1 << 28;
    /// A rule, or its name, keeps some tasks from being asked about the flow.
    const PARTLY_ASKED: u32 = 1 << 27;
    const FLAGS: u32 = RuleMark::UNASKED
        | RuleMark::LABELLED
        | RuleMark::LABEL_TOLD
        | RuleMark::REPORTED
        | RuleMark::PARTLY_ASKED;

    fn with_rule(self, rule: Option<u32>, numbering: u32) -> RuleMark {
        let flags = self.0 & RuleMark::FLAGS;
        let number = rule.map_or(0, |rule| rule.min(RULES_MAX - 1) + 1);
        RuleMark(flags | numbering << RuleMark::NUMBER_BITS | number)
    }

    fn rule(self, numbering: u32) -> Option<u32> {
        let number = self.0 & ((1 << RuleMark::NUMBER_BITS) - 1);
        let is_current = self.0 >> RuleMark::NUMBER_BITS & (RuleMark::NUMBERINGS - 1) == numbering;
        number.checked_sub(1).filter(|_| is_current)
    }
}

/// Counts in the flow's records so far, which start again from 0 behind each: bounds are on a
/// flow's whole life. Of a flow without [`RuleMark::REPORTED`] they are 0, whatever is in memory,
/// which most flows then never touch.
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
    numbering: u32,
    /// The next of [`RuleMemory::changed_us`] to be written.
    next_change: usize,
    /// When the oldest of these changes was: a flow whose last packet came before may have a stamp
    /// that has come round.
    outdated_us: i64,
}

impl InForce {
    fn new(memory: RuleMemory) -> InForce {
        InForce {
            memory,
            has_bounds: false,
            has_behaviours: false,
            numbering: 0,
            next_change: 0,
            outdated_us: i64::MIN,
        }
    }

    /// Notes a change.
    fn change(&mut self, now_us: i64) {
        let changed_us = &mut self.memory.changed_us;
        changed_us[self.next_change] = now_us;
        self.next_change = (self.next_change + 1) % GENERATIONS;
        self.outdated_us = changed_us[self.next_change];
    }

    /// Whether generations have come round since a flow's last packet, so that its stamp says
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

    /// Bytes and packets of the flow's whole life, of which these are since its last record.
    pub fn since_begin(&self, index: u32, counts: &Counts) -> (u64, u64) {
        let is_reported = self.memory.marks[index as usize].0 & RuleMark::REPORTED != 0;
        let reported = match is_reported {
            true => self.memory.reported[index as usize],
            false => Reported::default(),
        };
        (
            reported.bytes + counts.bytes_total(),
            reported.packets + counts.packets_total(),
        )
    }

    pub fn rule(&self, index: u32) -> Option<u32> {
        self.memory.marks[index as usize].rule(self.numbering)
    }

    pub fn set_rule(&mut self, index: u32, rule: Option<u32>) {
        let mark = &mut self.memory.marks[index as usize];
        *mark = mark.with_rule(rule, self.numbering);
    }

    /// Notes that a question has the flow's label; whether it is the first.
    pub fn tell_label(&mut self, index: u32) -> bool {
        let mark = &mut self.memory.marks[index as usize];
        let is_new = mark.0 & RuleMark::LABEL_TOLD == 0;
        mark.0 |= RuleMark::LABEL_TOLD;
        is_new
    }

    /// The flow has another label than the one that a question had.
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

    /// Whether an answer said anything about the flow: it has a rule, or tasks that are not asked
    /// about it. Not so of a flow that began before the first rules, until its next answer.
    pub fn has_answer(&self, index: u32) -> bool {
        let mark = self.memory.marks[index as usize].0;
        mark & !(RuleMark::REPORTED | RuleMark::LABEL_TOLD) != 0
    }

    /// The tasks that a rule does not ask about the flow, see [`RuleAnswer::unasked`].
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

    /// The flow's label is that of a rule.
    pub fn is_labelled(&self, index: u32) -> bool {
        self.memory.marks[index as usize].0 & RuleMark::LABELLED != 0
    }

    pub fn set_labelled(&mut self, index: u32) {
        self.memory.marks[index as usize].0 |= RuleMark::LABELLED;
    }
}

/// The part of flows that rules need: the marks of the rules in force, and the questions about
/// them.
#[derive(Default)]
pub(crate) struct Rules {
    /// Since the first rules were in force.
    in_force: Option<InForce>,
    asking: Asking,
}

impl Part for Rules {
    fn begin(&mut self, index: u32, _: &First<'_>) {
        if let Some(rules) = &mut self.in_force {
            rules.memory.marks[index as usize] = RuleMark::default();
        }
    }

    fn report(&mut self, index: u32, counts: &Counts) {
        if let Some(rules) = &mut self.in_force {
            rules.report(index, counts);
        }
    }

    fn prefetch(&self, index: u32) {
        if let Some(rules) = &self.in_force {
            prefetch(&rules.memory.marks, index as usize);
        }
    }
}

impl Rules {
    /// See [`crate::Manager::change_rules`].
    pub fn change(&mut self, flows: &mut Flows, change: &mut RulesChange) {
        if self.in_force.is_none()
            && let Some(mut memory) = change.memory.take()
        {
            self.asking = std::mem::take(&mut memory.asking);
            self.in_force = Some(InForce::new(memory));
        }
        let Some(rules) = &mut self.in_force else {
            return;
        };
        rules.has_bounds = change.has_bounds;
        rules.has_behaviours = change.has_behaviours;
        if change.is_renumbered {
            rules.numbering = (rules.numbering + 1) % RuleMark::NUMBERINGS;
        }
        rules.change(flows.clock.packet_us());
        flows.policy = flows.policy.next();
    }

    /// Whether there were rules ever.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.in_force.is_some()
    }

    /// The rules in force, where an answer has just come.
    pub fn in_force(&mut self) -> Option<&mut InForce> {
        self.in_force.as_mut()
    }

    pub fn questions(&self) -> &[RuleQuestion] {
        &self.asking.questions
    }

    /// Takes the questions and the packets that wait, to be answered.
    pub fn take_asking(&mut self) -> (Vec<RuleQuestion>, Vec<Waiting>) {
        let asking = &mut self.asking;
        (
            std::mem::take(&mut asking.questions),
            std::mem::take(&mut asking.waiting),
        )
    }

    /// Gives their room back.
    pub fn put_asking(&mut self, mut questions: Vec<RuleQuestion>, mut waiting: Vec<Waiting>) {
        debug_assert!(self.asking.questions.is_empty(), "a question among answers");
        questions.clear();
        waiting.clear();
        (self.asking.questions, self.asking.waiting) = (questions, waiting);
    }

    /// The tasks that a rule keeps from being asked about a flow, bit n for task n; `None` while
    /// there is no answer about it.
    pub fn unasked(&self, index: u32) -> Option<u8> {
        let rules = self.in_force.as_ref().filter(|it| it.has_answer(index));
        rules.map(|it| it.unasked(index))
    }

    /// The flow has another label than the one that a question had.
    pub fn untell_label(&mut self, index: u32) {
        if let Some(rules) = &mut self.in_force {
            rules.untell_label(index);
        }
    }

    /// Bytes and packets of a flow's whole life, of which these are since its last record.
    pub fn since_begin(&self, index: u32, counts: &Counts) -> (u64, u64) {
        match &self.in_force {
            Some(rules) => rules.since_begin(index, counts),
            None => (counts.bytes_total(), counts.packets_total()),
        }
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
}
