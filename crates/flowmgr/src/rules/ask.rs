//! Questions about the rules of flows, and the packets that wait for the answers.
//!
//! Packets of a flow with an open question wait in a list for the answer; they are all of one
//! burst. What a flow's first packets add to its series waits as well, because the answer may be
//! that the flow gives none. By packet time the walk pauses at each question.

use cring::TASKS_MAX;

use super::{InForce, RuleQuestion, Rules, VLAN_UNKNOWN, renewed_max};
use crate::action::PolicyStamp;
use crate::behaviour::Behaviour;
use crate::config::BURST_MAX;
use crate::config::Effect;
use crate::entry::{Hot, STATE_EMITTED, STATE_WITHHELD};
use crate::flows::Flows;
use crate::manager::Staged;
use crate::verdict::Verdict;
use crate::{MINUTE_US, wire};

/// Questions of a burst, and the packets that wait for the answers.
#[derive(Default)]
pub(crate) struct Asking {
    pub(super) questions: Vec<RuleQuestion>,
    pub(super) waiting: Vec<Waiting>,
    /// Empty, for use in turn with these two.
    pub(super) spare: (Vec<RuleQuestion>, Vec<Waiting>),
    /// Questions that may still be raised about flows whose rule is only out of date.
    renewals_left: usize,
}

/// A packet that waits for an answer, or several identical ones.
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
        let lists = || (Vec::with_capacity(BURST_MAX), Vec::with_capacity(4 * BURST_MAX));
        let (questions, waiting) = lists();
        Asking { questions, waiting, spare: lists(), renewals_left: 0 }
    }

    /// The open question about a flow.
    fn find(&self, index: u32) -> Option<usize> {
        self.questions.iter().rposition(|it| it.flow.index == index)
    }
}

/// What rules may ask about a flow's first packet beyond its tuple and VLAN.
#[derive(Clone, Copy)]
pub(crate) struct FirstPacket {
    /// [`RuleQuestion::in_port`].
    pub in_port: u8,
    /// [`RuleQuestion::dscp`].
    pub dscp: u8,
}

/// Why a flow's rule is looked up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The flow has begun.
    Begun,
    /// Its label was decided, or it may have gone beyond a bound.
    News,
    /// The rules have changed, or may have while the flow was silent.
    Renewed,
}

/// What is known of a flow at the end of a burst.
pub(crate) struct Known {
    /// The classes of its labels, by task.
    pub classes: [Option<u16>; TASKS_MAX],
    /// The class that its port will give it, if the answer gives no other one.
    pub by_port: Option<u16>,
    pub contradicts: Option<u16>,
    pub behaviour: Behaviour,
}

impl InForce {
    /// Whether this packet may lead a flow to another rule: at a bound, or in another minute than
    /// the packet before.
    #[inline]
    fn looks_now(&self, hot: &Hot, from_low: bool, time_us: i64) -> bool {
        let minute = |time_us: i64| time_us.div_euclid(MINUTE_US);
        self.has_bounds && hot.is_at_mark(hot.direction(from_low))
            || self.has_hours && minute(time_us) != minute(hot.last_us())
    }
}

impl Rules {
    /// Whether the action of a labelled flow surely holds, so that [`Rules::must_ask`] need not be
    /// called: the usual packet.
    #[inline(always)]
    pub fn is_settled(&self, flows: &Flows, hot: &Hot) -> bool {
        hot.policy == flows.policy && hot.last_us() > self.settled_after_us
    }

    /// Whether to look up the rule of a packet's flow; `verdict` is the verdict by label.
    #[inline(always)] // as are the other parts of the walk
    pub fn must_ask(
        &self,
        flows: &Flows,
        index: u32,
        verdict: Verdict,
        (from_low, time_us): (bool, i64),
    ) -> bool {
        let Some(rules) = &self.in_force else {
            return false;
        };
        let knows_label = verdict == Verdict::Labelled && flows.effect == Effect::Arrival;
        let hot = flows.entries.hot(index);
        let is_known = hot.policy == flows.policy.knowing(knows_label)
            && !rules.may_be_outdated(hot.last_us())
            && !(rules.looks_again && rules.looks_now(hot, from_low, time_us));
        // A flow that was put off before, and would be put off again.
        let is_put_off =
            self.asking.renewals_left == 0 && hot.policy == PolicyStamp::NONE && hot.has_packets();
        !is_known && !is_put_off
    }

    /// Asks about the flow of a packet. Returns whether the packet waits for the answer; it does
    /// not if the question is put off.
    #[inline(never)]
    pub fn waits_for_answer(
        &mut self,
        flows: &mut Flows,
        index: u32,
        first: FirstPacket,
        (at, time_us): (usize, i64),
        (staged, verdict): (&Staged, Verdict),
        (link, frame): (u16, &[u8]),
    ) -> bool {
        if let Some(rules) = &mut self.in_force
            && rules.vlan(index).is_none()
        {
            rules.set_vlan(index, wire::vlan(link, frame).unwrap_or(0));
        }
        let Some(question) = self.ask(flows, index, first, time_us) else {
            return false;
        };
        debug_assert!(question < self.asking.questions.len());
        let length = staged.headers.as_ref().map_or(0, |headers| headers.length);
        self.asking.waiting.push(Waiting {
            at: at as u32,
            question: question as u32,
            time_us,
            verdict,
            may_be_element: false,
            packets: 1,
            length,
            staged: *staged,
        });
        true
    }

    /// Whether a flow was looked up under the rules in force.
    fn is_current(&self, flows: &Flows, index: u32) -> bool {
        let hot = flows.entries.hot(index);
        let may_be_outdated = |rules: &InForce| rules.may_be_outdated(hot.last_us());
        hot.policy.knowing(true) == flows.policy
            && !self.in_force.as_ref().is_some_and(may_be_outdated)
    }

    #[inline]
    fn has_bounds(&self) -> bool {
        self.in_force.as_ref().is_some_and(|rules| rules.has_bounds)
    }

    /// The number of the question about a flow, which is raised unless it is open; `None` if it is
    /// put off.
    fn ask(
        &mut self,
        flows: &mut Flows,
        index: u32,
        first: FirstPacket,
        time_us: i64,
    ) -> Option<usize> {
        let hot = flows.entries.hot(index);
        if hot.policy.is_asked() {
            return self.asking.find(index);
        }
        // A flow that was reported with this packet has none either, but was seen before.
        let is_new = !hot.has_packets() && hot.last_us() == 0;
        let is_first = is_new && hot.policy == PolicyStamp::NONE;
        let is_current = self.is_current(flows, index);
        let cause = match (is_first, is_current) {
            (true, _) => Cause::Begun,
            (_, true) => Cause::News,
            _ => Cause::Renewed,
        };
        self.raise(flows, index, first, cause, time_us)
    }

    /// Raises a question about a flow that has none; `None` if it is put off.
    pub fn raise(
        &mut self,
        flows: &mut Flows,
        index: u32,
        first: FirstPacket,
        cause: Cause,
        time_us: i64,
    ) -> Option<usize> {
        debug_assert!(!flows.entries.hot(index).policy.is_asked(), "a question is open");
        // By packet time rules do not change, and no flow waits for its turn.
        if cause == Cause::Renewed && flows.effect == Effect::Arrival {
            if self.asking.renewals_left == 0 {
                // Generations wrap: until the flow's turn comes, its stamp might become valid
                // again.
                flows.entries.hot_mut(index).policy = PolicyStamp::NONE;
                return None;
            }
            self.asking.renewals_left -= 1;
        }
        flows.entries.hot_mut(index).policy = match cause {
            Cause::Begun => PolicyStamp::ASKED_FIRST,
            Cause::News | Cause::Renewed => PolicyStamp::ASKED,
        };
        let question = RuleQuestion {
            is_by_same_rules: cause == Cause::News,
            begins: cause == Cause::Begun,
            ..self.question(flows, index, first, time_us)
        };
        self.asking.questions.push(question);
        Some(self.asking.questions.len() - 1)
    }

    /// Why to ask about a flow while no packet of it is walked; `None` if it is not asked about, or
    /// already is.
    pub fn cause_between(&self, flows: &Flows, index: u32) -> Option<Cause> {
        let is_asked = flows.entries.hot(index).policy.is_asked();
        if self.in_force.is_none() || flows.effect != Effect::Arrival || is_asked {
            return None;
        }
        Some(self.cause_now(flows, index))
    }

    fn cause_now(&self, flows: &Flows, index: u32) -> Cause {
        match self.is_current(flows, index) {
            true => Cause::News,
            false => Cause::Renewed,
        }
    }

    /// The same for a flow with a label, unless it was asked about since.
    pub fn cause_by_label(&self, flows: &Flows, index: u32) -> Option<Cause> {
        let is_new = flows.entries.hot(index).policy != flows.policy;
        is_new.then(|| self.cause_between(flows, index)).flatten()
    }

    /// The same for a flow whose packets were counted elsewhere and may exceed a bound. Without
    /// room for more questions, the flow's turn comes with its next counts.
    pub fn cause_by_counts(&self, flows: &Flows, index: u32) -> Option<Cause> {
        let is_new = self.has_room() && (!self.is_current(flows, index) || self.has_bounds());
        is_new.then(|| self.cause_between(flows, index)).flatten()
    }

    /// The same where its behaviour has changed: now where `may_raise`, else it is asked about at
    /// its next packet. An open question gets the behaviour when it is complete.
    pub fn cause_by_behaviour(
        &self,
        flows: &mut Flows,
        index: u32,
        may_raise: bool,
    ) -> Option<Cause> {
        let is_asked = flows.entries.hot(index).policy.is_asked();
        if is_asked || !self.in_force.as_ref().is_some_and(|it| it.has_behaviours) {
            return None;
        }
        if !may_raise || !self.has_room() {
            flows.entries.hot_mut(index).policy = PolicyStamp::NONE;
            return None;
        }
        Some(self.cause_now(flows, index))
    }

    fn has_room(&self) -> bool {
        self.asking.questions.len() < BURST_MAX
    }

    /// A question without the values that change until the end of the burst.
    pub fn question(
        &self,
        flows: &Flows,
        index: u32,
        first: FirstPacket,
        time_us: i64,
    ) -> RuleQuestion {
        let name = flows.name(index);
        let key = flows.entries.hot(index).key();
        let vlan = self.in_force.as_ref().and_then(|rules| rules.vlan(index));
        RuleQuestion {
            flow: flows.entries.flow_ref(index),
            flow_id: name.flow_id,
            protocol: name.protocol,
            source: name.source,
            destination: name.destination,
            in_port: first.in_port,
            vlan: vlan.unwrap_or(VLAN_UNKNOWN),
            dscp: first.dscp,
            first_us: name.first_us,
            classes: [None; TASKS_MAX],
            behaviour: Behaviour::None,
            bytes: 0,
            packets: 0,
            age_us: time_us.saturating_sub(name.first_us).max(0) as u64,
            sample: flows.sample_of(&key),
            begins: false,
            kept: self.in_force.as_ref().map_or(0, |rules| rules.kept(index)),
            before: self.rule_of(index),
            is_by_same_rules: false,
            is_label_new: false,
            is_by_port: false,
            contradicts: None,
        }
    }

    /// The flow that a question is about.
    pub fn asked_about(&self, number: usize) -> u32 {
        self.asking.questions[number].flow.index
    }

    /// The open question about a flow.
    pub fn open_question(&self, index: u32) -> Option<usize> {
        self.asking.find(index)
    }

    /// Adds to a question what is known of its flow now.
    pub fn complete(&mut self, flows: &Flows, number: usize, known: Known) {
        let question = &mut self.asking.questions[number];
        let index = question.flow.index;
        debug_assert!(flows.entries.hot(index).policy.is_asked(), "nobody asked");
        let Some(rules) = &mut self.in_force else {
            return;
        };
        let is_label_new = known.classes[0].is_some() && rules.tell_label(index);
        let (bytes, packets) = rules.since_begin(index, &flows.entries.counts(index));
        (question.bytes, question.packets) = (bytes, packets);
        question.classes = known.classes;
        question.classes[0] = known.classes[0].or(known.by_port);
        question.is_by_port = known.by_port.is_some();
        question.contradicts = known.contradicts;
        question.behaviour = known.behaviour;
        question.is_label_new |= is_label_new || known.by_port.is_some();
    }

    /// Whether a packet that may be an element of a series waits for the answer about its flow,
    /// because the flow has just begun.
    #[inline]
    pub fn must_wait(&mut self, flows: &Flows, index: u32) -> bool {
        if flows.entries.hot(index).policy != PolicyStamp::ASKED_FIRST {
            return false;
        }
        if let Some(waiting) = self.asking.waiting.last_mut() {
            waiting.may_be_element = true;
        }
        true
    }

    /// Whether the packet of this number in the burst, which was the last to be walked, waits for
    /// an answer; if so, it has this verdict from now on.
    pub fn waits_by(&mut self, at: usize, verdict: Verdict) -> bool {
        let waiting = self.asking.waiting.last_mut();
        let Some(waiting) = waiting.filter(|it| it.at as usize == at) else {
            return false;
        };
        waiting.verdict = verdict;
        true
    }

    /// By packet time a burst pauses at a question, so that its result does not depend on how
    /// packets are grouped in bursts.
    #[inline]
    pub fn must_stop(&self, flows: &Flows) -> bool {
        flows.effect != Effect::Arrival && !self.asking.questions.is_empty()
    }

    /// Packets that are identical to the last one wait as it does.
    pub fn wait_alike(&mut self, flows: &Flows, index: u32, packets: u32) {
        if flows.entries.hot(index).policy.is_asked()
            && let Some(&last) = self.asking.waiting.last()
        {
            self.asking.waiting.push(Waiting { packets, may_be_element: false, ..last });
        }
    }

    /// Before a burst of `packets` packets: questions that nobody has answered are put off.
    pub fn begin_asking(&mut self, flows: &mut Flows, packets: usize) {
        self.asking.renewals_left = renewed_max(packets);
        self.asking.waiting.clear();
        for number in 0..self.asking.questions.len() {
            let flow = self.asking.questions[number].flow;
            let hot = flows.entries.hot(flow.index);
            if flows.entries.flow_ref(flow.index) == flow && hot.policy.is_asked() {
                flows.entries.hot_mut(flow.index).policy = PolicyStamp::NONE;
            }
        }
        self.asking.questions.clear();
    }

    /// The flow gives no series, unless it has already given one.
    pub fn ask_nothing(&mut self, flows: &mut Flows, index: u32) {
        if flows.entries.hot(index).has(STATE_EMITTED) {
            return;
        }
        flows.entries.hot_mut(index).set(STATE_WITHHELD);
        if let Some(rules) = &mut self.in_force {
            rules.set_unasked(index);
        }
    }

    /// The rule of a flow's last answer.
    pub fn rule_of(&self, index: u32) -> Option<u32> {
        self.in_force.as_ref().and_then(|rules| rules.rule(index))
    }

    /// Whether a rule keeps a flow from being asked about.
    pub fn is_unasked(&self, index: u32) -> bool {
        self.in_force.as_ref().is_some_and(|rules| rules.is_unasked(index))
    }

    /// Whether a rule gave the flow's label.
    pub fn is_labelled(&self, index: u32) -> bool {
        self.in_force.as_ref().is_some_and(|rules| rules.is_labelled(index))
    }
}
