//! Answers to the questions of a burst: written into the entries, and applied to the packets that waited for them.

use cring::{Label, Source};

use super::ask::Waiting;
use super::{Fate, Manager, Packet};
use crate::action::{Action, PolicyStamp};
use crate::config::Effect;
use crate::entry::{STATE_DECIDED, STATE_EMITTED, STATE_IN_EFFECT, STATE_WITHHELD};
use crate::manager::settle::Awaited;
use crate::rules::{RuleAnswer, RuleQuestion};
use crate::verdict::Verdict;

impl Manager {
    /// The flows whose rule is to be looked up, since the last answers; answered by [`Manager::answer_rules`].
    pub fn rule_questions(&self) -> &[RuleQuestion] {
        &self.asking.questions
    }

    /// Takes an answer to each of [`Manager::rule_questions`], in their order, and applies them to the packets of the burst that was
    /// walked last, as [`Manager::burst`] does: with [`Effect::Arrival`] in place. By packet time the walk then goes on, up to the
    /// next question. Behind other questions than those of a burst there are no packets.
    pub fn answer_rules(
        &mut self,
        answers: &[RuleAnswer],
        data: &mut [u8],
        packets: &[Packet],
        now_ns: u64,
        fates: &mut Vec<Fate>,
    ) {
        debug_assert_eq!(answers.len(), self.asking.questions.len());
        let questions = std::mem::take(&mut self.asking.questions);
        let mut waiting = std::mem::take(&mut self.asking.waiting);
        let mut answered = 0;
        // Packets are in the order in which they came, and so are the questions that they raised.
        for waiting in &mut waiting {
            let number = waiting.question as usize;
            if number >= questions.len().min(answers.len()) {
                continue;
            }
            while answered <= number {
                let (question, answer) = (&questions[answered], &answers[answered]);
                self.note(question, answer, waiting.time_us, now_ns);
                answered += 1;
            }
            let index = questions[number].flow.index;
            let mut fate = Fate::without_flow(waiting.verdict);
            let fate = fates.get_mut(waiting.at as usize).unwrap_or(&mut fate);
            let frame = packets
                .get(waiting.at as usize)
                .and_then(|packet| data.get_mut(packet.at..packet.at + packet.captured as usize));
            self.treat(index, waiting, fate, frame.unwrap_or_default());
            if waiting.may_be_element {
                self.add_late(index, waiting, now_ns);
            }
        }
        for (question, answer) in questions.iter().zip(answers).skip(answered) {
            let last_us = self.entries.hot(question.flow.index).last_us;
            self.note(question, answer, last_us, now_ns);
        }
        self.asking.questions = questions;
        self.asking.questions.clear();
        waiting.clear();
        self.asking.waiting = waiting;
        if fates.len() < packets.len() {
            let has_merged = packets.iter().any(|packet| !packet.gso.is_none());
            self.walk_on(has_merged, packets, now_ns, data, fates);
        }
        self.rings
            .iter_mut()
            .flatten()
            .for_each(cring::Producer::publish);
    }

    /// Writes an answer into the flow's entry.
    fn note(&mut self, question: &RuleQuestion, answer: &RuleAnswer, time_us: i64, now_ns: u64) {
        let index = question.flow.index;
        // The flow may have ended since, and its label come with its end.
        if self.entries.flow_ref(index) != question.flow {
            return;
        }
        let Some(rules) = &mut self.rules else {
            return;
        };
        rules.set_rule(index, answer.rule);
        rules.set_tasks_unasked(index, answer.unasked);
        let is_first = self.entries.hot(index).policy == PolicyStamp::ASKED_FIRST;
        let all = u8::MAX >> (8 - self.tasks.count().min(8));
        if answer.unasked & all == all || answer.class.is_some() {
            self.ask_nothing(index);
        }
        let given = match answer.class {
            Some(class) => self
                .label_by_rule(index, class, time_us, now_ns)
                .then_some(class),
            None if is_first => self.name_by_ports(index, time_us),
            None => None,
        };
        // What the port says was part of the first question, and counts if it was given.
        let mut class = question.class.filter(|_| !is_first);
        if self.config.effect == Effect::Arrival {
            class = given.or(class);
        }
        if let (Some(rules), true) = (&mut self.rules, is_first && class.is_some()) {
            rules.tell_label(index);
        }
        let of_labels = match (class, self.config.effect) {
            (None, _) if !self.acts_by_others => 0,
            // By packet time labels are looked up later than the walk.
            (None, Effect::PacketTime { .. }) => 0,
            _ => self.action_of_labels(index, class),
        };
        let action = answer.action.or_dscp_of(Action::of_number(of_labels));
        let stamp = self.policy.knowing(class.is_some());
        let hot = self.entries.hot_mut(index);
        (hot.action, hot.policy) = (action.number(), stamp);
    }

    /// The flow gives no series, unless it has given one.
    fn ask_nothing(&mut self, index: u32) {
        if self.entries.hot(index).has(STATE_EMITTED) {
            return;
        }
        self.entries.hot_mut(index).set(STATE_WITHHELD);
        if let Some(rules) = &mut self.rules {
            rules.set_unasked(index);
        }
    }

    /// Gives a flow its label, if it has none and none is on its way; whether it was given.
    fn label_by_rule(&mut self, index: u32, class: u16, time_us: i64, now_ns: u64) -> bool {
        if self.entries.label(index).read().1 != Label::None
            || self.entries.hot(index).has(STATE_EMITTED)
        {
            return false;
        }
        let label = Label::Class {
            class,
            confidence: u16::MAX,
            source: Source::Rule,
            model: 0,
        };
        if let Some(rules) = &mut self.rules {
            rules.set_labelled(index);
        }
        self.label_at_first(index, label, time_us);
        if self.config.effect == Effect::Arrival {
            self.entries.hot_mut(index).set(STATE_DECIDED);
            self.entries.set_emitted_at(0, index, now_ns as i64);
        }
        if self.has_depths {
            self.entries.set_decided(index, 0);
        }
        self.counters.flows_by_rule += 1;
        true
    }

    /// Gives a flow its label of the first task before any series, which counts from the packet of this time on.
    pub(super) fn label_at_first(&mut self, index: u32, label: Label, time_us: i64) {
        let flow = self.entries.flow_ref(index);
        let word = self.entries.label(index);
        word.pend(flow.generation);
        // Cannot be post-mortem: nobody else knows of the pending word.
        let _ = word.decide(flow.generation, label);
        self.entries.hot_mut(index).set(STATE_EMITTED);
        if let Effect::PacketTime { delay_us } = self.config.effect {
            self.entries.hot_mut(index).set(STATE_IN_EFFECT);
            let at = time_us.saturating_sub(delay_us);
            self.entries.set_emitted_at(0, index, at);
            self.leave_out_earlier_packets(index);
        }
        self.outbox.say_given(Awaited { flow, task: 0 });
    }

    /// By packet time, a label without a series counts for the packets that wait for it, and not for those before.
    fn leave_out_earlier_packets(&mut self, index: u32) {
        // The walk has counted the packets that wait. Those of this flow have raised one question, so they all wait for it.
        let counts = self.entries.counts(index);
        let cold = self.entries.cold_mut(index);
        cold.bytes_before = counts.bytes_total();
        cold.packets_before = counts.packets_total() as u32;
    }

    /// What the answer means for a packet.
    fn treat(&mut self, index: u32, waiting: &mut Waiting, fate: &mut Fate, frame: &mut [u8]) {
        let (packets, length) = (waiting.packets, waiting.length);
        let was = waiting.verdict;
        let is_given = self.is_labelled_by_rule(index) || self.class_by_port(0, index).is_some();
        if was == Verdict::Unlabelled && is_given {
            waiting.verdict = Verdict::Labelled;
            self.count_labelled(index, packets, length);
            if let Effect::PacketTime { .. } = self.config.effect {
                fate.label_of = Some(self.entries.flow_ref(index));
                fate.depths |= 1;
            }
        }
        fate.verdict = waiting.verdict;
        let action = self.entries.hot(index).action;
        self.apply(action, index, fate, packets, length, frame);
        self.counters
            .verdicts
            .change(was, fate.verdict, u64::from(packets));
    }

    /// Packets turn out labelled that were not counted so.
    fn count_labelled(&mut self, index: u32, packets: u32, length: u32) {
        let bytes = u64::from(packets) * u64::from(length);
        self.counters.labelled_bytes += bytes;
        match self.config.effect {
            Effect::Arrival => {
                if let (_, Label::Class { class, .. }) = self.entries.label(index).read()
                    && let Some(volume) =
                        self.counters.labelled_by_class.get_mut(usize::from(class))
                {
                    volume.add(u64::from(packets), bytes);
                }
            }
            Effect::PacketTime { .. } => {
                let cold = self.entries.cold_mut(index);
                // A report in between has set both to 0.
                cold.bytes_before = cold.bytes_before.saturating_sub(bytes);
                cold.packets_before = cold.packets_before.saturating_sub(packets);
            }
        }
    }

    /// Adds a packet that waited to the series of its flow.
    fn add_late(&mut self, index: u32, waiting: &Waiting, now_ns: u64) {
        if self.is_unasked(index) {
            return;
        }
        let Ok(headers) = waiting.staged.headers else {
            return;
        };
        let hot = self.entries.hot(index);
        if hot.has_all(self.collected) {
            return;
        }
        let direction = hot.direction(headers.from_low);
        self.collect(index, direction, &waiting.staged, waiting.time_us, now_ns);
    }
}
