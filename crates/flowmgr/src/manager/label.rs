//! The label of a packet's flow: whether it counts by now, and which action goes with it.

use cring::{Answers, Label};

use super::{Fate, Manager, Packet};
use crate::action::Action;
use crate::config::Effect;
use crate::entry::{NOT_IN_EFFECT, STATE_DECIDED, STATE_EMITTED, STATE_IN_EFFECT};
use crate::expiry::Clock;
use crate::tag::set_dscp;
use crate::verdict::Verdict;
use crate::wire::Headers;

impl Manager {
    /// Whether a packet behind the K-th carries its flow's label. With
    /// [`Effect::Arrival`] it is tagged in place, unless rules say how.
    #[inline(always)]
    pub(super) fn label<const RULES: bool>(
        &mut self,
        index: u32,
        packet: &Packet,
        headers: &Headers,
        fate: &mut Fate,
        data: &mut [u8],
    ) -> Verdict {
        match self.config.effect {
            Effect::Arrival => {
                let (word, hot) = self.entries.label_and_hot(index);
                // The action is that of the entry, unless the label is new or the map of actions is another one.
                let (class, action) = match word.read().1 {
                    Label::Class { class, .. } if hot.policy == self.policy => {
                        (class, Action::of_number(hot.action))
                    }
                    _ if RULES => match self.class_of(index) {
                        Some(class) => (class, Action::default()),
                        None => return self.no_label::<RULES>(index, packet, fate, data),
                    },
                    _ => match self.look_up_action(index) {
                        Some(found) => found,
                        None => return self.no_label::<RULES>(index, packet, fate, data),
                    },
                };
                if let Some(volume) = self.counters.labelled_by_class.get_mut(usize::from(class)) {
                    volume.add(1, u64::from(headers.length));
                }
                if let Some(dscp) = action.dscp
                    && !RULES
                {
                    let frame = &mut data[packet.at..packet.at + packet.captured as usize];
                    set_dscp(frame, headers.ip_at, dscp);
                }
            }
            Effect::PacketTime { delay_us } => {
                let is_in_effect = self.entries.hot(index).has(STATE_IN_EFFECT)
                    || self.comes_into_effect(index, packet.time_us, delay_us);
                // Which labels of other tasks count does not depend on the first task's.
                let verdict = self.no_label::<RULES>(index, packet, fate, data);
                if !is_in_effect {
                    return verdict;
                }
                fate.label_of = Some(self.entries.flow_ref(index));
                let depths = match self.has_depths {
                    true => self.depths_in_effect(index, packet.time_us, delay_us),
                    false => 1,
                };
                fate.depths |= (1 << depths) - 1;
            }
        }
        self.counters.labelled_bytes += u64::from(headers.length);
        Verdict::Labelled
    }

    /// With [`Effect::Arrival`] and several depths: whether the flow's answers have decided by now. If so, the label is put
    /// where the walk looks for it.
    #[cold]
    pub(super) fn decide(&mut self, index: u32) -> bool {
        let Answers::Decided { depth: task } = self.answers(index, self.depths.count()) else {
            return false;
        };
        let first = self.entries.label(index);
        let (generation, before) = first.read();
        let (_, label) = self.entries.word(task, index).read();
        if before != label {
            // Decided means that no word waits, so this one is ours.
            first.replace(generation, label);
        }
        self.entries.set_decided(index, task);
        // With several tasks the state means that no packet adds to a series.
        if !self.has_more_tasks {
            self.entries.hot_mut(index).set(STATE_DECIDED);
        }
        true
    }

    /// With [`Effect::Arrival`] and several depths: whether the first label word holds the flow's label, for now or for good. An
    /// answer takes the place of a port's label between bursts only ([`Manager::settle`]): the packets of a burst have one label.
    pub(super) fn has_decided(&mut self, index: u32) -> bool {
        self.entries.decided(index).is_some()
            || self.class_by_port(0, index).is_some()
            || self.decide(index)
    }

    /// The flow has another label than its action is of.
    pub(super) fn note_other_label(&mut self, index: u32) {
        if let Some(rules) = &mut self.rules {
            rules.untell_label(index);
        }
        let hot = self.entries.hot_mut(index);
        if hot.policy == self.policy {
            hot.policy = self.policy.knowing(false);
        }
        // A question that is open was asked with the label before.
        if self.entries.hot(index).policy.is_asked() {
            self.complete_question_of(index);
        }
    }

    /// What the answers of a flow's first `count` depths come to.
    pub(crate) fn answers(&self, index: u32, count: u8) -> Answers {
        if let Some(task) = self.entries.decided(index)
            && task < count
        {
            return Answers::Decided { depth: task };
        }
        let label = |task| Some(self.entries.word(task, index).read().1);
        self.depths.resolve(count, label)
    }

    /// What the answers of a task come to, of its first `count` depths; of all where that is `None`.
    pub(crate) fn answers_of(&self, task: u8, index: u32, count: Option<u8>) -> Answers {
        let count_of = |all: u8| count.unwrap_or(all);
        if task == 0 {
            return self.answers(index, count_of(self.depths.count()));
        }
        let task = self.tasks.task(task);
        let count = count_of(task.depths.count());
        if let Some(depth) = self.entries.decided_of(task.first, index)
            && depth < count
        {
            return Answers::Decided { depth };
        }
        let label = |depth| Some(self.entries.word(task.first + depth, index).read().1);
        task.depths.resolve(count, label)
    }

    /// The class of a flow's label for a task, as far as its answers say now.
    fn class_of_task(&self, task: u8, index: u32) -> Option<u16> {
        let Answers::Decided { depth } = self.answers_of(task, index, None) else {
            return self.class_by_port(task, index);
        };
        let first = self.tasks.task(task).first;
        match self.entries.word(first + depth, index).read() {
            (_, Label::Class { class, .. }) => Some(class),
            _ => None,
        }
    }

    /// The number of the action that a flow's labels have, of which that of the first task is known.
    pub(super) fn action_of_labels(&self, index: u32, first: Option<u16>) -> u8 {
        let actions = &self.config.settings.actions;
        let mut number = first.map_or(0, |class| actions.number_of(class));
        for (place, task) in actions.other_tasks().enumerate() {
            let of_label = match self.class_of_task(task, index) {
                Some(class) => actions.number_of_other(place, class),
                None => 0,
            };
            if of_label != 0 {
                number = of_label;
            }
        }
        number
    }

    /// With [`Effect::Arrival`]: another task than the first has its label, and the action may be another one.
    pub(crate) fn note_label_of_other(&mut self, index: u32) {
        if !self.acts_by_others || self.config.effect != Effect::Arrival {
            return;
        }
        if self.rules.is_some() {
            // The answer may be that of the first task's label already, so it is asked for again whatever the stamp says.
            let last_us = self.entries.hot(index).last_us;
            return self.ask_between(index, last_us);
        }
        let first = self.class_of(index);
        self.note_action(index, first);
    }

    /// Notes in the entry which action the flow's labels have, of which that of the first task is known, or is not there yet.
    fn note_action(&mut self, index: u32, first: Option<u16>) -> u8 {
        let action = self.action_of_labels(index, first);
        // The first task's label is still to be considered where it comes later.
        let stamp = self.policy.knowing(first.is_some());
        let hot = self.entries.hot_mut(index);
        (hot.action, hot.policy) = (action, stamp);
        action
    }

    /// Of a packet whose flow has no label of the first task, or of any by packet time: what labels of other tasks do to it.
    #[inline(always)]
    pub(super) fn no_label<const RULES: bool>(
        &mut self,
        index: u32,
        packet: &Packet,
        fate: &mut Fate,
        data: &mut [u8],
    ) -> Verdict {
        if self.acts_by_others {
            self.act_by_others::<RULES>(index, packet, fate, data);
        }
        Verdict::Unlabelled
    }

    #[inline(never)]
    fn act_by_others<const RULES: bool>(
        &mut self,
        index: u32,
        packet: &Packet,
        fate: &mut Fate,
        data: &mut [u8],
    ) {
        if let Effect::PacketTime { delay_us } = self.config.effect {
            fate.depths = self.others_in_effect(index, packet.time_us, delay_us);
            if fate.depths != 0 {
                fate.label_of = Some(self.entries.flow_ref(index));
            }
            return;
        }
        // With rules the answer to the flow's question has what labels say.
        if RULES {
            return;
        }
        let hot = self.entries.hot(index);
        let action = match hot.policy == self.policy.knowing(false) {
            true => hot.action,
            false => self.note_action(index, None),
        };
        if let Some(dscp) = Action::of_number(action).dscp {
            let frame = &mut data[packet.at..packet.at + packet.captured as usize];
            set_dscp(frame, fate.ip_at, dscp);
        }
    }

    /// The depths of other tasks, of those whose labels have actions, that count for a packet of this time.
    fn others_in_effect(&self, index: u32, time_us: i64, delay_us: i64) -> u16 {
        let mut others = 0;
        for number in self.config.settings.actions.other_tasks() {
            let task = self.tasks.task(number);
            for depth in task.first..task.first + task.depths.count() {
                let was_asked = self.entries.word(depth, index).read().1 != Label::None;
                let emitted_us = self.entries.emitted_at(depth, index);
                if was_asked && counts_at(time_us, emitted_us, delay_us) {
                    others |= 1 << depth;
                }
            }
        }
        others
    }

    /// With [`Effect::PacketTime`]: of how many depths of the first task the answers count for a packet of this time. Notes the
    /// counts up to there for each, as [`Manager::comes_into_effect`] does for the first.
    #[cold]
    fn depths_in_effect(&mut self, index: u32, time_us: i64, delay_us: i64) -> u8 {
        let counts = self.entries.counts(index);
        let mut depths = 1;
        for task in 1..self.depths.count() {
            let at = usize::from(task) - 1;
            if self.entries.deeper(index)[at].packets_before == NOT_IN_EFFECT {
                let was_asked = self.entries.word(task, index).read().1 != Label::None;
                let emitted_us = self.entries.emitted_at(task, index);
                if !was_asked || !counts_at(time_us, emitted_us, delay_us) {
                    break;
                }
                let deeper = &mut self.entries.deeper_mut(index)[at];
                deeper.bytes_before = counts.bytes_total();
                deeper.packets_before = counts.packets_total() as u32;
            }
            depths = task + 1;
        }
        depths
    }

    /// Looks a flow's action up by the class of its label, and notes it in the entry; `None` while it has no label.
    #[cold]
    pub(super) fn look_up_action(&mut self, index: u32) -> Option<(u16, Action)> {
        let class = self.class_of(index)?;
        let action = self.note_action(index, Some(class));
        Some((class, Action::of_number(action)))
    }

    /// With [`Effect::Arrival`], the class of a flow's label; `None` while it has none.
    #[cold]
    pub(crate) fn class_of(&mut self, index: u32) -> Option<u16> {
        let hot = self.entries.hot(index);
        if !hot.has(STATE_EMITTED) || self.has_depths && !self.has_decided(index) {
            return None;
        }
        match self.entries.label(index).read() {
            (_, Label::Class { class, .. }) => Some(class),
            _ => None,
        }
    }

    /// With [`Effect::PacketTime`]: the label counts from `delay_us` after the
    /// K-th packet, and then for good. Notes the counts up to there, so that the
    /// promise can be taken back if the label never comes.
    fn comes_into_effect(&mut self, index: u32, time_us: i64, delay_us: i64) -> bool {
        if !counts_at(time_us, self.entries.cold(index).emitted_at, delay_us) {
            return false;
        }
        let counts = self.entries.counts(index);
        let cold = self.entries.cold_mut(index);
        cold.bytes_before = counts.bytes_total();
        cold.packets_before = counts.packets_total() as u32;
        self.entries.hot_mut(index).set(STATE_IN_EFFECT);
        true
    }
}

/// Whether a label counts for a packet of this time, `delay_us` after its series was emitted.
fn counts_at(time_us: i64, emitted_us: i64, delay_us: i64) -> bool {
    // A packet far before the K-th came after packet time had stepped back, and so after the delay.
    let is_far_before = time_us < emitted_us.saturating_sub(Clock::BOUND_US);
    time_us >= emitted_us.saturating_add(delay_us) || is_far_before
}
