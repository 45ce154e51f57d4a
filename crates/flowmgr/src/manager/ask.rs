//! Rules in the walk: an action that is known is read from the entry, a question is raised for one that is not.
//!
//! Packets of a flow about which a question is open wait, in a list, for the answer; they are those of the same burst. What the
//! first packets of a flow add to its series waits as well, because the answer may be that the flow gives none. By packet time
//! the walk pauses at each question.

use cring::{FlowRef, Label};

use super::{Fate, Manager, Packet, Staged};
use crate::action::{Action, PolicyStamp};
use crate::behaviour::Behaviour;
use crate::config::Effect;
use crate::key::Key;
use crate::rules::{InForce, RuleQuestion, renewed_max};
use crate::tag::set_dscp;
use crate::verdict::Verdict;
use crate::wire::Headers;

/// Questions of a burst, and the packets that wait for the answers.
#[derive(Default)]
pub(crate) struct Asking {
    pub questions: Vec<RuleQuestion>,
    pub waiting: Vec<Waiting>,
    /// Questions about flows whose rule is only out of date that may still be raised.
    renewals_left: usize,
}

/// A packet that waits for an answer, or several that are alike.
#[derive(Clone, Copy)]
pub(crate) struct Waiting {
    /// Its number in the burst.
    pub at: u32,
    /// Number of the question.
    pub question: u32,
    pub time_us: i64,
    pub verdict: Verdict,
    /// It may be an element of a series.
    pub may_be_element: bool,
    pub packets: u32,
    /// Bytes of each.
    pub length: u32,
    pub staged: Staged,
}

impl Asking {
    pub fn new() -> Asking {
        Asking {
            questions: Vec::with_capacity(super::BURST_MAX),
            waiting: Vec::with_capacity(4 * super::BURST_MAX),
            renewals_left: 0,
        }
    }

    /// The open question about a flow.
    fn find(&self, index: u32) -> Option<u32> {
        let found = self.questions.iter().rposition(|it| it.flow.index == index);
        found.map(|number| number as u32)
    }
}

/// Why a flow's rule is looked up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// The flow has begun.
    Begun,
    /// Its label was decided, or it may have gone beyond a bound.
    News,
    /// The rules have changed, or may have while the flow was silent.
    Renewed,
}

impl Manager {
    /// With rules: what its flow's rule does to a packet. `fate` has the verdict by label.
    #[inline(always)] // as are the other parts of the walk
    pub(super) fn act(
        &mut self,
        at: usize,
        index: u32,
        packet: &Packet,
        (headers, staged): (&Headers, &Staged),
        fate: &mut Fate,
        data: &mut [u8],
    ) {
        let knows_label =
            fate.verdict == Verdict::Labelled && self.config.effect == Effect::Arrival;
        let stamp = self.policy.knowing(knows_label);
        let hot = self.entries.hot(index);
        let Some(rules) = &self.rules else {
            return;
        };
        let is_known = hot.policy == stamp
            && !rules.may_be_outdated(hot.last_us)
            && !(rules.has_bounds && hot.is_at_mark(hot.direction(headers.from_low)));
        // A flow that was put off before, and would be again.
        let is_put_off =
            self.asking.renewals_left == 0 && hot.policy == PolicyStamp::NONE && hot.has_packets();
        let number = hot.action;
        if !is_known
            && !is_put_off
            && self.waits_for_answer(at, index, packet, staged, fate.verdict)
            || number == 0
        {
            return;
        }
        let frame = &mut data[packet.at..packet.at + packet.captured as usize];
        let action = Action::of_number(number);
        match action.dscp {
            // By far the most frequent.
            Some(dscp) if self.config.effect == Effect::Arrival => {
                fate.action = number;
                set_dscp(frame, headers.ip_at, dscp);
            }
            _ => self.apply(number, index, fate, 1, headers.length, frame),
        }
    }

    /// Asks about the flow of a packet, which waits for the answer. If it is put off, the packet does not wait.
    #[inline(never)]
    fn waits_for_answer(
        &mut self,
        at: usize,
        index: u32,
        packet: &Packet,
        staged: &Staged,
        verdict: Verdict,
    ) -> bool {
        let Some(question) = self.ask(index, packet.time_us) else {
            return false;
        };
        let length = staged.headers.as_ref().map_or(0, |headers| headers.length);
        self.asking.waiting.push(Waiting {
            at: at as u32,
            question,
            time_us: packet.time_us,
            verdict,
            may_be_element: false,
            packets: 1,
            length,
            staged: *staged,
        });
        true
    }

    /// Whether a flow was looked up by the rules in force.
    fn is_current(&self, index: u32) -> bool {
        let hot = self.entries.hot(index);
        let may_be_outdated = |rules: &InForce| rules.may_be_outdated(hot.last_us);
        hot.policy.knowing(true) == self.policy && !self.rules.as_ref().is_some_and(may_be_outdated)
    }

    #[inline]
    fn has_bounds(&self) -> bool {
        self.rules.as_ref().is_some_and(|rules| rules.has_bounds)
    }

    /// The number of the question about a flow, which is raised unless it is open; `None`: it is put off.
    fn ask(&mut self, index: u32, time_us: i64) -> Option<u32> {
        let hot = self.entries.hot(index);
        if hot.policy.is_asked() {
            return self.asking.find(index);
        }
        // A flow that was reported with this packet has none either, but was heard of before.
        let is_new = !hot.has_packets() && hot.last_us == 0;
        let is_first = is_new && hot.policy == PolicyStamp::NONE;
        let is_current = self.is_current(index);
        let cause = match (is_first, is_current) {
            (true, _) => Cause::Begun,
            (_, true) => Cause::News,
            _ => Cause::Renewed,
        };
        let asked = match is_first {
            true => PolicyStamp::ASKED_FIRST,
            false => PolicyStamp::ASKED,
        };
        self.raise(index, cause, asked, time_us)
    }

    /// Raises a question about a flow that has none; `None`: it is put off.
    fn raise(&mut self, index: u32, cause: Cause, asked: PolicyStamp, time_us: i64) -> Option<u32> {
        // By packet time rules do not change, and no flow waits for its turn.
        if cause == Cause::Renewed && self.config.effect == Effect::Arrival {
            if self.asking.renewals_left == 0 {
                // By chance the stamp might become that of the rules in force before the flow's turn comes.
                self.entries.hot_mut(index).policy = PolicyStamp::NONE;
                return None;
            }
            self.asking.renewals_left -= 1;
        }
        self.entries.hot_mut(index).policy = asked;
        let question = RuleQuestion {
            is_by_same_rules: cause == Cause::News,
            ..self.question(index, time_us)
        };
        self.asking.questions.push(question);
        Some(self.asking.questions.len() as u32 - 1)
    }

    /// A question about a flow that no packet of this burst raised: its label was decided, or packets of it were counted
    /// elsewhere.
    pub(crate) fn ask_between(&mut self, index: u32, time_us: i64) {
        if self.rules.is_none() || self.config.effect != Effect::Arrival {
            return;
        }
        let hot = self.entries.hot(index);
        if hot.policy.is_asked() {
            return;
        }
        let is_current = self.is_current(index);
        let cause = match is_current {
            true => Cause::News,
            false => Cause::Renewed,
        };
        if self
            .raise(index, cause, PolicyStamp::ASKED, time_us)
            .is_some()
        {
            let last = self.asking.questions.len() - 1;
            self.complete_question(last);
        }
    }

    /// The same for a label, unless the flow was asked about since.
    pub(crate) fn ask_for_label(&mut self, index: u32) {
        if self.entries.hot(index).policy != self.policy {
            let last_us = self.entries.hot(index).last_us;
            self.ask_between(index, last_us);
        }
    }

    /// What packets of the flow were counted elsewhere may be beyond a bound.
    pub(crate) fn ask_for_counts(&mut self, index: u32) {
        // There is no room for more; the flow's turn comes with its next counts.
        if self.asking.questions.len() >= super::BURST_MAX {
            return;
        }
        if !self.is_current(index) || self.has_bounds() {
            let last_us = self.entries.hot(index).last_us;
            self.ask_between(index, last_us);
        }
    }

    /// The flow's behaviour has changed. It is asked about now where `may_raise`, else at its next packet.
    pub(super) fn ask_for_behaviour(&mut self, index: u32, may_raise: bool) {
        let hot = self.entries.hot(index);
        let (is_asked, last_us) = (hot.policy.is_asked(), hot.last_us);
        // An open question gets the behaviour when it is complete.
        if is_asked || !self.rules.as_ref().is_some_and(|it| it.has_behaviours) {
            return;
        }
        if !may_raise || self.asking.questions.len() >= super::BURST_MAX {
            self.entries.hot_mut(index).policy = PolicyStamp::NONE;
            return;
        }
        let cause = match self.is_current(index) {
            true => Cause::News,
            false => Cause::Renewed,
        };
        if self
            .raise(index, cause, PolicyStamp::ASKED, last_us)
            .is_some()
        {
            let last = self.asking.questions.len() - 1;
            self.complete_question(last);
        }
    }

    /// A question about a flow that a fate of the last burst names, for a packet of this time.
    pub fn rule_question(&self, flow: FlowRef, time_us: i64) -> RuleQuestion {
        let question = self.question(flow.index, time_us);
        let counts = self.entries.counts(flow.index);
        let (bytes, packets) = match &self.rules {
            Some(rules) => rules.since_begin(flow.index, &counts),
            None => (counts.bytes_total(), counts.packets_total()),
        };
        RuleQuestion {
            behaviour: self.behaviour(flow.index),
            bytes,
            packets,
            ..question
        }
    }

    /// A question without what changes until the end of the burst.
    fn question(&self, index: u32, time_us: i64) -> RuleQuestion {
        let name = self.name(index);
        let key = self.entries.hot(index).key();
        RuleQuestion {
            flow: self.entries.flow_ref(index),
            flow_id: name.flow_id,
            protocol: name.protocol,
            source: name.source,
            destination: name.destination,
            in_port: self.series.port(index),
            first_us: name.first_us,
            class: None,
            behaviour: Behaviour::None,
            bytes: 0,
            packets: 0,
            age_us: time_us.saturating_sub(name.first_us).max(0) as u64,
            sample: self.sample_of(&key),
            before: self.rule_of(index),
            is_by_same_rules: false,
            is_label_new: false,
            is_by_port: false,
            contradicts: None,
        }
    }

    /// A hash of a flow, by which shares of flows are taken.
    pub(super) fn sample_of(&self, key: &Key) -> u16 {
        (self.hasher.hash(key, None) >> 24) as u16
    }

    /// The rest of what is known of the flows asked about, at the end of the burst.
    pub(super) fn complete_questions(&mut self) {
        for number in 0..self.asking.questions.len() {
            self.complete_question(number);
        }
    }

    fn complete_question(&mut self, number: usize) {
        let index = self.asking.questions[number].flow.index;
        let class = self.class_now(index);
        let by_port = self.class_at_first(index);
        let contradicts = self.entries.contradicts(0, index);
        let (counts, behaviour) = (self.entries.counts(index), self.behaviour(index));
        let Some(rules) = &mut self.rules else {
            return;
        };
        let is_label_new = class.is_some() && rules.tell_label(index);
        let (bytes, packets) = rules.since_begin(index, &counts);
        let question = &mut self.asking.questions[number];
        (question.bytes, question.packets) = (bytes, packets);
        question.class = class.or(by_port);
        question.is_by_port = by_port.is_some();
        question.contradicts = contradicts;
        question.behaviour = behaviour;
        question.is_label_new |= is_label_new || by_port.is_some();
    }

    /// The open question about a flow, whose label is another one than when it was raised.
    pub(super) fn complete_question_of(&mut self, index: u32) {
        if let Some(number) = self.asking.find(index) {
            self.complete_question(number as usize);
        }
    }

    /// The class that its port will give a flow that has just begun, if the answer gives no other one.
    fn class_at_first(&self, index: u32) -> Option<u16> {
        let is_first = self.entries.hot(index).policy == PolicyStamp::ASKED_FIRST;
        match is_first && self.tasks.has_ports_first && self.config.effect == Effect::Arrival {
            true => self.port_at_first(0, index).map(|port| port.class),
            false => None,
        }
    }

    /// The class of a flow's label, where it counts from when it is there.
    fn class_now(&mut self, index: u32) -> Option<u16> {
        match self.config.effect {
            Effect::Arrival => self.class_of(index),
            Effect::PacketTime { .. } => None,
        }
    }

    /// A packet that may be an element of a series waits for the answer about its flow, if the flow has just begun.
    #[inline]
    pub(super) fn must_wait(&mut self, index: u32) -> bool {
        if self.entries.hot(index).policy != PolicyStamp::ASKED_FIRST {
            return false;
        }
        if let Some(waiting) = self.asking.waiting.last_mut() {
            waiting.may_be_element = true;
        }
        true
    }

    /// By packet time a burst pauses at a question, so that what comes of it does not depend on bursts.
    #[inline]
    pub(super) fn must_stop(&self) -> bool {
        self.config.effect != Effect::Arrival && !self.asking.questions.is_empty()
    }

    /// Packets that differ in nothing from the last one wait as that one does.
    pub(super) fn wait_alike(&mut self, index: u32, packets: u32) {
        if self.entries.hot(index).policy.is_asked()
            && let Some(&last) = self.asking.waiting.last()
        {
            self.asking.waiting.push(Waiting {
                packets,
                may_be_element: false,
                ..last
            });
        }
    }

    /// Applies an action to packets of `length` bytes each that have a verdict by label.
    pub(super) fn apply(
        &mut self,
        action: u8,
        index: u32,
        fate: &mut Fate,
        packets: u32,
        length: u32,
        frame: &mut [u8],
    ) {
        fate.action = action;
        let action = Action::of_number(action);
        let is_promise = self.config.effect != Effect::Arrival;
        if action.drop {
            self.drop(is_promise, index, fate, packets, length);
        } else if let Some(dscp) = action.dscp
            && !is_promise
        {
            set_dscp(frame, fate.ip_at, dscp);
        }
    }

    /// Packets do not leave.
    #[cold]
    fn drop(&mut self, is_promise: bool, index: u32, fate: &mut Fate, packets: u32, length: u32) {
        if fate.verdict == Verdict::Labelled {
            // By packet time a label is a promise, which is kept or taken back by the flow's records.
            if is_promise {
                return;
            }
            self.retract(index, packets, length);
        }
        fate.verdict = Verdict::Dropped;
    }

    /// Packets that were counted as labelled.
    fn retract(&mut self, index: u32, packets: u32, length: u32) {
        let bytes = u64::from(packets) * u64::from(length);
        self.counters.labelled_bytes -= bytes;
        if let (_, Label::Class { class, .. }) = self.entries.label(index).read()
            && let Some(volume) = self.counters.labelled_by_class.get_mut(usize::from(class))
        {
            volume.packets -= u64::from(packets);
            volume.bytes -= bytes;
        }
    }

    /// Before a burst of so many packets: questions that nobody has answered are put off.
    pub(super) fn begin_asking(&mut self, packets: usize) {
        self.asking.renewals_left = renewed_max(packets);
        self.asking.waiting.clear();
        for number in 0..self.asking.questions.len() {
            let flow = self.asking.questions[number].flow;
            let hot = self.entries.hot(flow.index);
            if self.entries.flow_ref(flow.index) == flow && hot.policy.is_asked() {
                self.entries.hot_mut(flow.index).policy = PolicyStamp::NONE;
            }
        }
        self.asking.questions.clear();
    }
}
