//! The label of a packet's flow: whether it counts by now, and which action goes with it.

use cring::{Answers, Label, TASKS_MAX};

use super::Labels;
use super::kept::{Deeper, NOT_IN_EFFECT};
use crate::action::Action;
use crate::config::Effect;
use crate::entry::{Own, STATE_COLLECTED, STATE_EMITTED, STATE_IN_EFFECT};
use crate::expiry::Clock;
use crate::flows::Flows;
use crate::ids::{DepthId, TaskId};
use crate::manager::{Fate, Packet};
use crate::tag::set_dscp;
use crate::verdict::Verdict;
use crate::wire::Headers;

impl Labels {
    /// Whether a packet behind the K-th carries its flow's label. With
    /// [`Effect::Arrival`] it is tagged in place, unless rules say how.
    #[inline(always)]
    pub fn label<const RULES: bool>(
        &mut self,
        flows: &mut Flows,
        index: u32,
        packet: &Packet,
        headers: &Headers,
        fate: &mut Fate,
        data: &mut [u8],
    ) -> Verdict {
        debug_assert!(flows.entries.hot(index).has(STATE_EMITTED));
        match flows.effect {
            Effect::Arrival => {
                let (word, hot) = flows.entries.label_and_hot(index);
                // The entry's action holds, unless the label is new or the map of actions has
                // changed.
                let (class, action) = match word.read().1 {
                    Label::Class { class, .. } if hot.policy == flows.policy => {
                        (class, Action::of_number(hot.action))
                    }
                    _ if RULES => match self.class_of(flows, index) {
                        Some(class) => (class, Action::default()),
                        None => return self.no_label::<RULES>(flows, index, packet, fate, data),
                    },
                    _ => match self.look_up_action(flows, index) {
                        Some(found) => found,
                        None => return self.no_label::<RULES>(flows, index, packet, fate, data),
                    },
                };
                if let Some(volume) = flows.counters.labelled_by_class.get_mut(usize::from(class)) {
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
                let when = (packet.time_us, delay_us, Own(None));
                let is_in_effect = self.promise(flows, index, when, fate);
                // Which labels of other tasks count does not depend on the first task's.
                let verdict = self.no_label::<RULES>(flows, index, packet, fate, data);
                if !is_in_effect {
                    return verdict;
                }
            }
        }
        flows.counters.labelled_bytes += u64::from(headers.length);
        Verdict::Labelled
    }

    /// Whether a packet that completed a series carries the label for it. The packet has been
    /// counted, and has a verdict by what was known before it.
    pub fn label_own<const RULES: bool>(
        &mut self,
        flows: &mut Flows,
        index: u32,
        packet: &Packet,
        headers: &Headers,
        fate: &mut Fate,
        data: &mut [u8],
    ) -> Verdict {
        let is_emitted = flows.entries.hot(index).has(STATE_EMITTED);
        match flows.effect {
            Effect::PacketTime { delay_us } => {
                let when = (packet.time_us, delay_us, Own(Some(headers.length)));
                let is_in_effect = is_emitted && self.promise(flows, index, when, fate);
                self.no_label::<RULES>(flows, index, packet, fate, data);
                if !is_in_effect || fate.verdict == Verdict::Labelled {
                    return fate.verdict;
                }
                flows.counters.labelled_bytes += u64::from(headers.length);
                Verdict::Labelled
            }
            // Another task's answer may change the action; the packet was counted as labelled.
            Effect::Arrival if fate.verdict == Verdict::Labelled => {
                let action = Action::of_number(flows.entries.hot(index).action);
                if let Some(dscp) = action.dscp
                    && !RULES
                {
                    let frame = &mut data[packet.at..packet.at + packet.captured as usize];
                    set_dscp(frame, headers.ip_at, dscp);
                }
                Verdict::Labelled
            }
            Effect::Arrival if is_emitted => {
                self.label::<RULES>(flows, index, packet, headers, fate, data)
            }
            Effect::Arrival => self.no_label::<RULES>(flows, index, packet, fate, data),
        }
    }

    /// By packet time: whether the first task's label counts for a packet of this time. If so,
    /// notes in its fate the answers that do.
    #[inline(always)]
    fn promise(
        &mut self,
        flows: &mut Flows,
        index: u32,
        when: (i64, i64, Own),
        fate: &mut Fate,
    ) -> bool {
        let is_in_effect = flows.entries.hot(index).has(STATE_IN_EFFECT)
            || self.comes_into_effect(flows, index, when);
        if is_in_effect {
            fate.label_of = Some(flows.entries.flow_ref(index));
            let depths = match self.kept.has_deeper() {
                true => self.depths_in_effect(flows, index, when),
                false => 1,
            };
            fate.depths |= (1 << depths) - 1;
        }
        is_in_effect
    }

    /// What labels of other tasks do to a packet whose flow has no label of the first task, or by
    /// packet time none at all.
    #[inline(always)]
    pub fn no_label<const RULES: bool>(
        &mut self,
        flows: &mut Flows,
        index: u32,
        packet: &Packet,
        fate: &mut Fate,
        data: &mut [u8],
    ) -> Verdict {
        if self.in_use != 0 {
            self.act_by_others::<RULES>(flows, index, packet, fate, data);
        }
        Verdict::Unlabelled
    }

    /// Whether labels of a task after the first have actions, or rules ask for them.
    pub fn is_in_use(&self, task: TaskId) -> bool {
        self.in_use >> task.0 & 1 != 0
    }

    #[inline(never)]
    fn act_by_others<const RULES: bool>(
        &mut self,
        flows: &mut Flows,
        index: u32,
        packet: &Packet,
        fate: &mut Fate,
        data: &mut [u8],
    ) {
        if let Effect::PacketTime { delay_us } = flows.effect {
            fate.depths |= self.others_in_effect(flows, index, packet.time_us, delay_us);
            if fate.depths != 0 {
                fate.label_of = Some(flows.entries.flow_ref(index));
            }
            return;
        }
        // With rules the answer to the flow's question includes what labels say.
        if RULES {
            return;
        }
        let hot = flows.entries.hot(index);
        let action = match hot.policy == flows.policy.knowing(false) {
            true => hot.action,
            false => self.note_action(flows, index, None),
        };
        if let Some(dscp) = Action::of_number(action).dscp {
            let frame = &mut data[packet.at..packet.at + packet.captured as usize];
            set_dscp(frame, fate.ip_at, dscp);
        }
    }

    /// With [`Effect::PacketTime`]: how many depths of the first task have answers that count for a
    /// packet of this time. Notes the counts up to there for each, as [`Labels::comes_into_effect`]
    /// does for the first.
    #[cold]
    fn depths_in_effect(
        &mut self,
        flows: &mut Flows,
        index: u32,
        (time_us, delay_us, own): (i64, i64, Own),
    ) -> u8 {
        let is_in_effect = |it: &Deeper| it.packets_before != NOT_IN_EFFECT;
        let deeper = self.kept.deeper(index);
        if deeper.last().is_some_and(is_in_effect) {
            return 1 + deeper.len() as u8;
        }
        let mut depths = 1;
        for depth in self.tasks.task(TaskId::FIRST).all_depths().skip(1) {
            let at = depth.index() - 1;
            if !is_in_effect(&self.kept.deeper(index)[at]) {
                if flows.entries.word(depth, index).read().1 == Label::None {
                    break;
                }
                let emitted_us = self.kept.emitted_at(&flows.entries, depth, index);
                if !counts_at(time_us, emitted_us, delay_us) {
                    break;
                }
                let before = flows.entries.before(index, own);
                let deeper = &mut self.kept.deeper_mut(index)[at];
                (deeper.packets_before, deeper.bytes_before) = before;
            }
            depths += 1;
        }
        depths
    }

    /// The depths of other tasks whose labels are in use, if they count for a packet of this time.
    pub fn others_in_effect(&self, flows: &Flows, index: u32, time_us: i64, delay_us: i64) -> u16 {
        let mut others = 0;
        for task in self.tasks.ids().filter(|&task| self.is_in_use(task)) {
            for depth in self.tasks.task(task).all_depths() {
                let was_asked = flows.entries.word(depth, index).read().1 != Label::None;
                let emitted_us = self.kept.emitted_at(&flows.entries, depth, index);
                if was_asked && counts_at(time_us, emitted_us, delay_us) {
                    others |= 1 << depth.0;
                }
            }
        }
        others
    }

    /// With [`Effect::PacketTime`]: the label counts from `delay_us` after the
    /// K-th packet, and then for good. Notes the counts up to there, so that the
    /// promise can be taken back if the label never comes.
    fn comes_into_effect(
        &mut self,
        flows: &mut Flows,
        index: u32,
        (time_us, delay_us, own): (i64, i64, Own),
    ) -> bool {
        if !counts_at(time_us, flows.entries.cold(index).emitted_at, delay_us) {
            return false;
        }
        flows.entries.note_before(index, own);
        flows.entries.hot_mut(index).set(STATE_IN_EFFECT);
        true
    }

    /// Looks up a flow's action by the class of its label, and notes it in the entry; `None` while
    /// it has no label.
    #[cold]
    pub fn look_up_action(&mut self, flows: &mut Flows, index: u32) -> Option<(u16, Action)> {
        let class = self.class_of(flows, index)?;
        let action = self.note_action(flows, index, Some(class));
        Some((class, Action::of_number(action)))
    }

    /// Notes in the entry which action the flow's labels have. `first` is the first task's label,
    /// if it is there.
    pub fn note_action(&mut self, flows: &mut Flows, index: u32, first: Option<u16>) -> u8 {
        let action = self.action_of_labels(flows, index, first);
        // The first task's label, if it comes later, is still to be considered.
        let stamp = flows.policy.knowing(first.is_some());
        let hot = flows.entries.hot_mut(index);
        (hot.action, hot.policy) = (action, stamp);
        action
    }

    /// The number of the action that a flow's labels have; `first` is the first task's label.
    pub fn action_of_labels(&self, flows: &Flows, index: u32, first: Option<u16>) -> u8 {
        let of_first = first.map_or(0, |class| self.actions.number_of(TaskId::FIRST, class));
        if self.in_use == 0 {
            return of_first;
        }
        let by_label = |task| {
            let class = self.class_of_task(flows, task, index)?;
            Some(self.actions.number_of(task, class)).filter(|&number| number != 0)
        };
        self.tasks.ids().skip(1).filter_map(by_label).last().unwrap_or(of_first)
    }

    /// With [`Effect::Arrival`], the class of a flow's label; `None` while it has none.
    #[cold]
    pub fn class_of(&mut self, flows: &mut Flows, index: u32) -> Option<u16> {
        let hot = flows.entries.hot(index);
        if !hot.has(STATE_EMITTED) || self.kept.has_deeper() && !self.has_decided(flows, index) {
            return None;
        }
        match flows.entries.label(index).read() {
            (_, Label::Class { class, .. }) => Some(class),
            _ => None,
        }
    }

    /// With [`Effect::Arrival`], the classes of a flow's labels by task: the first's, and others'
    /// that rules ask for.
    pub fn classes_of(&mut self, flows: &mut Flows, index: u32) -> [Option<u16>; TASKS_MAX] {
        let mut classes = [None; TASKS_MAX];
        classes[0] = self.class_of(flows, index);
        for task in self.tasks_in_rules() {
            classes[task.index()] = self.class_of_task(flows, task, index);
        }
        classes
    }

    /// Tasks after the first whose labels rules ask for.
    pub fn tasks_in_rules(&self) -> impl Iterator<Item = TaskId> + use<> {
        let in_rules = self.in_rules;
        self.tasks.ids().filter(move |task| in_rules >> task.0 & 1 != 0)
    }

    /// With [`Effect::Arrival`] and several depths: whether the first label word holds the flow's
    /// label, for now or for good. An answer takes the place of a port's label between bursts only
    /// ([`crate::Manager::settle`]): the packets of a burst have one label.
    pub fn has_decided(&mut self, flows: &mut Flows, index: u32) -> bool {
        self.kept.decided(DepthId::FIRST, index).is_some()
            || self.class_by_port(flows, TaskId::FIRST, index).is_some()
            || self.decide(flows, index)
    }

    /// With [`Effect::Arrival`] and several depths: whether the flow's answers have decided by now.
    /// If so, the label is put where the walk looks for it.
    #[cold]
    pub fn decide(&mut self, flows: &mut Flows, index: u32) -> bool {
        let Answers::Decided { depth: rank } = self.answers(flows, TaskId::FIRST, index, None)
        else {
            return false;
        };
        let first = flows.entries.label(index);
        let (generation, before) = first.read();
        let (_, label) = flows.entries.word(DepthId::FIRST.behind(rank), index).read();
        debug_assert_ne!(before, Label::Pending, "an answer that may decide is on its way");
        if before != label {
            // Decided means that no word waits, so this one is ours.
            first.replace(generation, label);
            if let Some(samples) = &mut self.samples {
                samples.replaced(index, before);
            }
        }
        self.kept.set_decided(DepthId::FIRST, index, rank);
        // With several tasks the state means that no packet adds to a series.
        if self.tasks.count() == 1 {
            flows.entries.hot_mut(index).set(STATE_COLLECTED);
        }
        true
    }
}

/// Whether a label counts for a packet of this time, `delay_us` after its series was emitted.
pub(super) fn counts_at(time_us: i64, emitted_us: i64, delay_us: i64) -> bool {
    // A packet far before the K-th came after packet time had stepped back, and so after the delay.
    let is_far_before = time_us < emitted_us.saturating_sub(Clock::BOUND_US);
    time_us >= emitted_us.saturating_add(delay_us) || is_far_before
}
