//! Rules in the walk: a known action is read from the entry, an unknown one raises a question;
//! answers are written into the entries and applied to the packets that waited for them.

use cring::{FlowRef, TASKS_MAX};

use super::walk::Walk;
use super::{Fate, Packet, Staged};
use crate::action::{Action, PolicyStamp};
use crate::config::Effect;
use crate::entry::STATE_EMITTED;
use crate::ids::{DepthId, TaskId};
use crate::part::Part;
use crate::rules::{Cause, FirstPacket, Known, RuleAnswer, RuleQuestion, Waiting};
use crate::tag::set_dscp;
use crate::verdict::Verdict;
use crate::wire::Headers;

impl<P: Part> Walk<P> {
    /// With rules: applies its flow's rule to a packet. `fate` has the verdict by label.
    #[inline(always)] // as are the other parts of the walk
    pub fn act(
        &mut self,
        at: usize,
        index: u32,
        packet: &Packet,
        (headers, staged): (&Headers, &Staged),
        fate: &mut Fate,
        data: &mut [u8],
    ) {
        let hot = self.flows.entries.hot(index);
        let number = hot.action;
        let way = (headers.from_low, packet.time_us);
        let is_settled =
            fate.verdict == Verdict::Labelled && self.rules.is_settled(&self.flows, hot);
        if !is_settled
            && self.rules.must_ask(&self.flows, index, fate.verdict, way)
            && self.waits_for_answer(at, index, packet, (staged, fate.verdict), data)
            || number == 0
        {
            return;
        }
        let frame = &mut data[packet.at..packet.at + packet.captured as usize];
        match Action::of_number(number).dscp {
            // By far the most frequent.
            Some(dscp) if self.flows.effect == Effect::Arrival => {
                fate.action = number;
                set_dscp(frame, headers.ip_at, dscp);
            }
            _ => self.flows.apply(number, index, fate, 1, headers.length, frame),
        }
    }

    /// Asks about the flow of a packet. Returns whether the packet waits for the answer; it does
    /// not if the question is put off.
    #[inline(never)]
    fn waits_for_answer(
        &mut self,
        at: usize,
        index: u32,
        packet: &Packet,
        staged: (&Staged, Verdict),
        data: &[u8],
    ) -> bool {
        let first = self.first_packet(index);
        let flows = &mut self.flows;
        let when = (at, packet.time_us);
        let frame = data.get(packet.at..packet.at + packet.captured as usize);
        let frame = (packet.link, frame.unwrap_or_default());
        self.rules.waits_for_answer(flows, index, first, when, staged, frame)
    }

    /// Raises a question about a flow that no packet of this burst raised, if there is a cause.
    pub fn ask_now(&mut self, index: u32, cause: Option<Cause>) {
        let Some(cause) = cause else {
            return;
        };
        let first = self.first_packet(index);
        let last_us = self.flows.entries.hot(index).last_us();
        let raised = self.rules.raise(&mut self.flows, index, first, cause, last_us);
        if let Some(number) = raised {
            self.complete_question(number);
        }
    }

    fn first_packet(&self, index: u32) -> FirstPacket {
        FirstPacket { in_port: self.headers.in_port(index), dscp: self.headers.dscp(index) }
    }

    /// Adds to the open questions what is known of their flows only now.
    pub fn complete_questions(&mut self) {
        for number in 0..self.rules.questions().len() {
            self.complete_question(number);
        }
    }

    pub fn complete_question(&mut self, number: usize) {
        let index = self.rules.asked_about(number);
        let is_live = self.flows.effect == Effect::Arrival;
        let is_first = self.flows.entries.hot(index).policy == PolicyStamp::ASKED_FIRST;
        // By packet time labels are not known here.
        let mut classes = match is_live {
            true => self.labels.classes_of(&mut self.flows, index),
            false => [None; TASKS_MAX],
        };
        let mut by_port = None;
        if is_live && is_first && self.labels.tasks.has_ports_first {
            let subject = self.subject(index);
            let class = |task| Some(self.labels.port_at_first(task, &subject)?.class);
            by_port = class(TaskId::FIRST);
            for task in self.labels.tasks_in_rules() {
                classes[task.index()] = classes[task.index()].or(class(task));
            }
        }
        let known = Known {
            classes,
            by_port,
            contradicts: self.labels.kept.contradicts(DepthId::FIRST, index),
            behaviour: self.behaviour(index),
        };
        self.rules.complete(&self.flows, number, known);
    }

    /// See [`crate::Manager::rule_question`].
    pub fn rule_question(&self, flow: FlowRef, time_us: i64) -> RuleQuestion {
        let index = flow.index;
        let counts = self.flows.entries.counts(index);
        let (bytes, packets) = self.rules.since_begin(index, &counts);
        RuleQuestion {
            behaviour: self.behaviour(index),
            bytes,
            packets,
            ..self.rules.question(&self.flows, index, self.first_packet(index), time_us)
        }
    }

    /// The flow's label is no longer the one that its action is for.
    pub fn note_other_label(&mut self, index: u32) {
        self.rules.untell_label(index);
        let policy = self.flows.policy;
        let hot = self.flows.entries.hot_mut(index);
        if hot.policy == policy {
            hot.policy = policy.knowing(false);
        }
        self.complete_open_question(index);
    }

    /// An open question was asked with the labels before.
    fn complete_open_question(&mut self, index: u32) {
        if self.flows.entries.hot(index).policy.is_asked()
            && let Some(number) = self.rules.open_question(index)
        {
            self.complete_question(number);
        }
    }

    /// With [`Effect::Arrival`]: a task after the first has its label, so the rule or the action
    /// may change.
    pub fn note_label_of_other(&mut self, task: TaskId, index: u32) {
        if !self.labels.is_in_use(task) || self.flows.effect != Effect::Arrival {
            return;
        }
        if self.rules.is_on() {
            self.complete_open_question(index);
            // The action may already be by the first task's label, so the stamp does not tell: ask
            // again.
            let cause = self.rules.cause_between(&self.flows, index);
            return self.ask_now(index, cause);
        }
        let first = self.labels.class_of(&mut self.flows, index);
        self.labels.note_action(&mut self.flows, index, first);
    }
}

/// A walk whose questions are being answered.
pub(super) struct Answering<'a, P> {
    pub walk: &'a mut Walk<P>,
    /// The clock of [`crate::Manager::burst`].
    pub now_ns: u64,
}

impl<P: Part> Answering<'_, P> {
    /// See [`crate::Manager::answer_rules`].
    pub fn answer(
        &mut self,
        answers: &[RuleAnswer],
        data: &mut [u8],
        packets: &[Packet],
        fates: &mut Vec<Fate>,
    ) {
        debug_assert_eq!(answers.len(), self.walk.rules.questions().len());
        let (questions, mut waiting) = self.walk.rules.take_asking();
        let mut answered = 0;
        // Packets are in the order in which they came, and so are the questions that they raised.
        for waiting in &mut waiting {
            let number = waiting.question as usize;
            if number >= questions.len().min(answers.len()) {
                continue;
            }
            while answered <= number {
                let (question, answer) = (&questions[answered], &answers[answered]);
                self.note(question, answer, waiting.time_us);
                answered += 1;
            }
            let index = questions[number].flow.index;
            let mut fate = Fate::without_flow(waiting.verdict);
            let fate = fates.get_mut(waiting.at as usize).unwrap_or(&mut fate);
            let packet = packets.get(waiting.at as usize);
            let frame = packet
                .and_then(|packet| data.get_mut(packet.at..packet.at + packet.captured as usize));
            self.treat(index, waiting, fate, frame.unwrap_or_default());
            if waiting.may_be_element
                && self.add_late(index, waiting, packet)
                && let Some(packet) = packet
            {
                self.label_late(index, waiting, packet, fate, data);
            }
        }
        for (question, answer) in questions.iter().zip(answers).skip(answered) {
            let last_us = self.walk.flows.entries.hot(question.flow.index).last_us();
            self.note(question, answer, last_us);
        }
        self.walk.rules.put_asking(questions, waiting);
        self.walk.complete_questions();
        if fates.len() < packets.len() {
            let has_merged = packets.iter().any(|packet| !packet.gso.is_none());
            self.walk.walk_on(has_merged, packets, self.now_ns, data, fates);
        }
        self.walk.series.publish();
    }

    /// Writes an answer into the flow's entry.
    fn note(&mut self, question: &RuleQuestion, answer: &RuleAnswer, time_us: i64) {
        let index = question.flow.index;
        // The flow may have ended since, and got its label at its end.
        if self.walk.flows.entries.flow_ref(index) != question.flow {
            return;
        }
        let Some(rules) = self.walk.rules.in_force() else {
            return;
        };
        rules.set_rule(index, answer.rule);
        rules.set_tasks_unasked(index, answer.unasked);
        rules.keep(index, answer.kept);
        let is_first = self.walk.flows.entries.hot(index).policy == PolicyStamp::ASKED_FIRST;
        let all = self.walk.labels.tasks.bits();
        if answer.unasked & all == all || answer.class.is_some() {
            self.walk.rules.ask_nothing(&mut self.walk.flows, index);
        }
        let given = match answer.class {
            Some(class) => self.label_by_rule(index, class, time_us),
            None if is_first => self.walk.name_by_ports(index, time_us),
            None => None,
        };
        // The port's class was part of the first question, and counts if it was given.
        let mut class = question.classes[0].filter(|_| !is_first);
        if self.walk.flows.effect == Effect::Arrival {
            class = given.or(class);
        }
        if let (Some(rules), true) = (self.walk.rules.in_force(), is_first && class.is_some()) {
            rules.tell_label(index);
        }
        let of_labels = match (class, self.walk.flows.effect) {
            // By packet time labels are looked up later than the walk.
            (None, Effect::PacketTime { .. }) => 0,
            _ => self.walk.labels.action_of_labels(&self.walk.flows, index, class),
        };
        let action = answer.action.or_dscp_of(Action::of_number(of_labels));
        let stamp = self.walk.flows.policy.knowing(class.is_some());
        let hot = self.walk.flows.entries.hot_mut(index);
        (hot.action, hot.policy) = (action.number(), stamp);
    }

    /// Gives a flow its label, if it has none and none is on its way; returns the class if it was
    /// given.
    fn label_by_rule(&mut self, index: u32, class: u16, time_us: i64) -> Option<u16> {
        if !self.walk.labels.give_by_rule(
            &mut self.walk.flows,
            index,
            class,
            (time_us, self.now_ns),
        ) {
            return None;
        }
        if let Some(rules) = self.walk.rules.in_force() {
            rules.set_labelled(index);
        }
        Some(class)
    }

    /// Applies the answer to a packet.
    fn treat(&mut self, index: u32, waiting: &mut Waiting, fate: &mut Fate, frame: &mut [u8]) {
        let (packets, length) = (waiting.packets, waiting.length);
        let was = waiting.verdict;
        let is_given = self.walk.rules.is_labelled(index)
            || self.walk.labels.class_by_port(&self.walk.flows, TaskId::FIRST, index).is_some();
        if was == Verdict::Unlabelled && is_given {
            waiting.verdict = Verdict::Labelled;
            self.walk.flows.count_labelled(index, packets, length);
            if let Effect::PacketTime { .. } = self.walk.flows.effect {
                fate.label_of = Some(self.walk.flows.entries.flow_ref(index));
                fate.depths |= 1;
            }
        }
        if let Effect::PacketTime { delay_us } = self.walk.flows.effect {
            // Ports may have named the flow for other tasks with the answer.
            let (labels, flows) = (&self.walk.labels, &self.walk.flows);
            let others = labels.others_in_effect(flows, index, waiting.time_us, delay_us);
            if others != 0 {
                (fate.label_of, fate.depths) =
                    (Some(flows.entries.flow_ref(index)), fate.depths | others);
            }
        }
        fate.verdict = waiting.verdict;
        let action = self.walk.flows.entries.hot(index).action;
        self.walk.flows.apply(action, index, fate, packets, length, frame);
        self.walk.flows.counters.verdicts.change(was, fate.verdict, u64::from(packets));
    }

    /// Adds a packet that waited to the series of its flow. Returns whether an answer to them may
    /// be there now.
    fn add_late(&mut self, index: u32, waiting: &Waiting, packet: Option<&Packet>) -> bool {
        if self.walk.rules.is_unasked(index) {
            return false;
        }
        let Ok(headers) = waiting.staged.headers else {
            return false;
        };
        let (walk, time_us) = (&mut self.walk, waiting.time_us);
        let hot = walk.flows.entries.hot(index);
        let direction = hot.direction(headers.from_low);
        let at = packet.map(|packet| packet.at);
        let is_answered = !hot.has_all(walk.labels.collected())
            && walk.collect(index, direction, &waiting.staged, time_us, self.now_ns, at);
        is_answered || walk.flows.entries.hot(index).has(STATE_EMITTED)
    }

    /// The label of a packet that waited may have been given with an answer at once, by this packet
    /// or by one that waited before it.
    fn label_late(
        &mut self,
        index: u32,
        waiting: &Waiting,
        packet: &Packet,
        fate: &mut Fate,
        data: &mut [u8],
    ) {
        let (walk, was) = (&mut self.walk, fate.verdict);
        let Ok(headers) = &waiting.staged.headers else {
            return;
        };
        if was != Verdict::Unlabelled {
            return;
        }
        let (labels, flows) = (&mut walk.labels, &mut walk.flows);
        fate.verdict = labels.label_own::<true>(flows, index, packet, headers, fate, data);
        flows.counters.verdicts.change(was, fate.verdict, 1);
        if fate.verdict == Verdict::Labelled && walk.flows.effect == Effect::Arrival {
            let at = waiting.at as usize;
            walk.waits_for_answer(at, index, packet, (&waiting.staged, fate.verdict), data);
        }
    }
}
