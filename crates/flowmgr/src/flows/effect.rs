//! What an action does to packets, and which packets count as labelled.

use cring::{Label, Source};

use super::Flows;
use crate::action::Action;
use crate::config::Effect;
use crate::manager::Fate;
use crate::outbox::InEffect;
use crate::record::{DecidedBy, Decision};
use crate::tag::set_dscp;
use crate::verdict::Verdict;

impl Flows {
    /// Applies an action to packets of `length` bytes each that have a verdict by label.
    pub fn apply(
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
        let is_promise = self.effect != Effect::Arrival;
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
    pub fn drop(
        &mut self,
        is_promise: bool,
        index: u32,
        fate: &mut Fate,
        packets: u32,
        length: u32,
    ) {
        if fate.verdict == Verdict::Labelled {
            // By packet time a label is a promise, which is kept or taken back by the flow's
            // records.
            if is_promise {
                return;
            }
            self.retract(index, packets, length);
        }
        fate.verdict = Verdict::Dropped;
    }

    /// Takes back packets that were counted as labelled.
    pub fn retract(&mut self, index: u32, packets: u32, length: u32) {
        let bytes = u64::from(packets) * u64::from(length);
        debug_assert!(self.counters.labelled_bytes >= bytes, "these were not counted");
        self.counters.labelled_bytes -= bytes;
        if let (_, Label::Class { class, .. }) = self.entries.label(index).read()
            && let Some(volume) = self.counters.labelled_by_class.get_mut(usize::from(class))
        {
            volume.packets -= u64::from(packets);
            volume.bytes -= bytes;
        }
    }

    /// Counts packets as labelled that were not counted so.
    pub fn count_labelled(&mut self, index: u32, packets: u32, length: u32) {
        let bytes = u64::from(packets) * u64::from(length);
        self.counters.labelled_bytes += bytes;
        match self.effect {
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

    pub fn since(&self, index: u32, packets_before: u32, bytes_before: u64) -> InEffect {
        let counts = self.entries.counts(index);
        debug_assert!(counts.bytes_total() >= bytes_before, "counts go up only");
        InEffect {
            packets: counts.packets_total() - u64::from(packets_before),
            bytes: counts.bytes_total() - bytes_before,
        }
    }

    /// Packets were promised as labelled, and the class is known by now: counts the packets for
    /// which the label counts. The others turn out unlabelled, or had the label of their flow's
    /// port.
    #[inline]
    pub fn confirm(
        &mut self,
        index: u32,
        decision: Option<Decision>,
        promised: InEffect,
        labelled: InEffect,
    ) {
        let decision = decision.filter(|it| it.decided_by != DecidedBy::Port);
        let labelled = match decision {
            Some(_) => labelled,
            None => InEffect::default(),
        };
        let class = decision.map_or(usize::MAX, |it| usize::from(it.class));
        if let Some(of_class) = self.counters.labelled_by_class.get_mut(class) {
            of_class.add(labelled.packets, labelled.bytes);
        }
        debug_assert!(labelled.packets <= promised.packets, "more than was promised");
        let others = InEffect {
            packets: promised.packets - labelled.packets,
            bytes: promised.bytes - labelled.bytes,
        };
        if let (_, Label::Class { class, source: Source::Port, .. }) =
            self.entries.label(index).read()
        {
            let by_class = &mut self.counters.labelled_by_class;
            if let Some(of_class) = by_class.get_mut(usize::from(class)) {
                of_class.add(others.packets, others.bytes);
            }
            return;
        }
        self.counters.verdicts.retract_labelled(others.packets);
        self.counters.labelled_bytes -= others.bytes;
    }
}
