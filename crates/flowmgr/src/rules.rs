//! Rules as the walk sees them: questions about flows, and answers to them.
//!
//! The walk knows no rule. While it walks a burst it collects a question for each flow whose rule
//! has to be looked up: it began, its label was decided, the rules have changed since the last
//! time, or it may have gone beyond a bound. The caller answers all of them in one go
//! ([`crate::Manager::answer_rules`]), before the burst leaves, so that answers count for the
//! packets that raised the questions. A flow whose rule is known costs a comparison in its hot
//! line.

use std::net::IpAddr;
use std::sync::Arc;

use cring::{FlowRef, TASKS_MAX};

use crate::action::{Action, PolicyStamp};
use crate::behaviour::Behaviour;
use crate::config::Effect;
use crate::entry::Counts;
use crate::flows::Flows;
use crate::part::{First, Part};
use ask::Asking;
pub(crate) use ask::{Cause, FirstPacket, Known, Waiting};
use marks::InForce;
pub use marks::RuleMemory;

mod ask;
mod marks;

/// How many questions a burst of `packets` packets may raise about flows whose rule is only out of
/// date; the other flows keep their actions until a later burst. A look-up costs as much as the
/// walk of a few packets, so few among many do not slow it down, and where packets are few every
/// flow soon gets its turn.
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
    /// VLAN of the first packet's outermost tag; 0 without one. If the flow began before there were
    /// rules, the first packet that raised a question counts, and before it [`VLAN_UNKNOWN`].
    pub vlan: u16,
    /// DSCP of the first packet, as it came.
    pub dscp: u8,
    /// Time of the first packet, µs since the epoch.
    pub first_us: i64,
    /// Classes of the flow's labels, by task: the first's, and of other tasks those that rules ask
    /// for ([`RulesChange::label_tasks`]). By packet time labels are not known here.
    pub classes: [Option<u16>; TASKS_MAX],
    /// What the flow does.
    pub behaviour: Behaviour,
    /// Bytes in both directions so far, including the packets that raised the question.
    pub bytes: u64,
    /// Packets in both directions so far.
    pub packets: u64,
    /// Time since the first packet, µs.
    pub age_us: u64,
    /// A hash of the flow.
    pub sample: u16,
    /// The flow has begun with this burst, and was not asked about before.
    pub begins: bool,
    /// [`RuleAnswer::kept`] of the last answer.
    pub kept: u64,
    /// The rule of the last answer, unless rules were renumbered since.
    pub before: Option<u32>,
    /// The rules have not changed since the last answer: only what is known of the flow is new.
    pub is_by_same_rules: bool,
    /// The first task's label was not known at the last answer, or has changed.
    pub is_label_new: bool,
    /// The first task's label is the one that its port gives the flow with this answer, unless the
    /// answer gives another or the task is not asked about it.
    pub is_by_port: bool,
    /// The class that the port gave the flow before, if an answer contradicts it.
    pub contradicts: Option<u16>,
}

/// No VLAN, for a flow of which no packet has raised a question.
pub const VLAN_UNKNOWN: u16 = u16::MAX;

/// What a flow's rule asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleAnswer {
    /// Number of the rule, below [`RULES_MAX`]; `None`: the flow has none.
    pub rule: Option<u32>,
    /// The action on the flow's packets. Without a DSCP they get their label's.
    pub action: Action,
    /// Tasks that are not asked about the flow, unless they were: bit n for task n.
    pub unasked: u8,
    /// The first task's label of the flow, unless it has one.
    pub class: Option<u16>,
    /// What is kept of the flow for its next question, where [`RuleMemory::keeping`] has room.
    pub kept: u64,
}

/// Numbers of rules are below this.
pub const RULES_MAX: u32 = (1 << 24) - 1;

/// A change of the rules in force.
#[derive(Default)]
pub struct RulesChange {
    /// Some rule bounds what flows have done, so flows are looked up again as they go on.
    pub has_bounds: bool,
    /// Some rule asks for a behaviour.
    pub has_behaviours: bool,
    /// By packet time: some rule has hours, so flows are looked up again each minute.
    pub has_hours: bool,
    /// Tasks whose labels some rule asks for: bit n for task n.
    pub label_tasks: u8,
    /// Rules were renumbered.
    pub is_renumbered: bool,
    /// Rules that have names, by number, rising, with [`name_hash`](crate::name_hash) of each. What
    /// was in force before is left in it.
    pub named: Arc<[(u32, u64)]>,
    /// Memory for the rules of flows, needed with the first rules; afterwards, what is not needed
    /// comes back in it.
    pub memory: Option<RuleMemory>,
}

/// The part of flows that rules need: the marks of the rules in force, and the questions about
/// them.
#[derive(Default)]
pub(crate) struct Rules {
    /// Since the first rules were in force.
    in_force: Option<InForce>,
    /// The action of a labelled flow holds if its stamp is current and its last packet came later.
    settled_after_us: i64,
    asking: Asking,
}

impl Part for Rules {
    fn begin(&mut self, index: u32, _: &First<'_>) {
        if let Some(rules) = &mut self.in_force {
            rules.begin(index);
        }
    }

    fn report(&mut self, index: u32, counts: &Counts) {
        if let Some(rules) = &mut self.in_force {
            rules.report(index, counts);
        }
    }

    fn prefetch(&self, index: u32) {
        if let Some(rules) = &self.in_force {
            rules.prefetch(index);
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
        rules.change(change, flows.clock.packet_us());
        std::mem::swap(&mut rules.named, &mut change.named);
        self.settled_after_us = match rules.looks_again || flows.effect != Effect::Arrival {
            true => i64::MAX,
            false => rules.outdated_us,
        };
        flows.policy = flows.policy.next();
    }

    /// The hash of the name of a flow's rule, none where the flow has no rule or it has no name;
    /// `None` while the flow's rule is not known.
    pub fn name_of_rule(&self, flows: &Flows, index: u32) -> Option<Option<u64>> {
        let Some(rules) = &self.in_force else { return Some(None) };
        let policy = flows.entries.hot(index).policy;
        // After a renumbering, the number of its rule says nothing until the next answer.
        let is_known =
            policy != PolicyStamp::NONE && !policy.is_asked() && rules.is_numbered(index);
        is_known.then(|| {
            let rule = rules.rule(index)?;
            let place = rules.named.binary_search_by_key(&rule, |(number, _)| *number);
            place.ok().map(|place| rules.named[place].1)
        })
    }

    /// Whether there have ever been rules.
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

    /// Takes the questions and the packets that wait, to be answered. Labels that come with the
    /// answers may raise others.
    pub fn take_asking(&mut self) -> (Vec<RuleQuestion>, Vec<Waiting>) {
        let Asking { questions, waiting, spare, .. } = &mut self.asking;
        let (spare_questions, spare_waiting) = std::mem::take(spare);
        (std::mem::replace(questions, spare_questions), std::mem::replace(waiting, spare_waiting))
    }

    /// Gives the vectors back for reuse.
    pub fn put_asking(&mut self, mut questions: Vec<RuleQuestion>, mut waiting: Vec<Waiting>) {
        questions.clear();
        waiting.clear();
        self.asking.spare = (questions, waiting);
    }

    /// The tasks that a rule keeps from being asked about a flow, bit n for task n; `None` while
    /// there is no answer about it.
    pub fn unasked(&self, index: u32) -> Option<u8> {
        let rules = self.in_force.as_ref().filter(|it| it.has_answer(index));
        rules.map(|it| it.unasked(index))
    }

    /// The flow's label has changed since a question had it.
    pub fn untell_label(&mut self, index: u32) {
        if let Some(rules) = &mut self.in_force {
            rules.untell_label(index);
        }
    }

    /// Bytes and packets of a flow's whole life, given its `counts` since the last record.
    pub fn since_begin(&self, index: u32, counts: &Counts) -> (u64, u64) {
        match &self.in_force {
            Some(rules) => rules.since_begin(index, counts),
            None => (counts.bytes_total(), counts.packets_total()),
        }
    }
}
