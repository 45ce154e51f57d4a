//! Labels of flows, a part of a flow: which depths are asked, what their answers resolve to, which
//! action goes with a label, and what servers' ports say.

mod decision;
mod kept;
mod ports;
mod samples;
mod truths;
mod walk;

use std::io;

use crate::action::Actions;
use crate::asked::Subject;
use crate::config::{Config, Effect};
use crate::entry::Counts;
use crate::entry::{STATE_COLLECTED, STATE_EMITTED, STATE_NEVER, STATE_WITHHELD};
use crate::flows::Flows;
use crate::ids::{DepthId, TaskId};
use crate::part::{First, Part};
use crate::series::Arrival;
use crate::tasks::Tasks;

pub(crate) use kept::{DEEPER_BYTES, OTHER_DEPTH_BYTES};
pub(crate) use samples::SAMPLE_BYTES;
pub(crate) use truths::TRUTH_BYTES;

/// What is kept of labels, and by which tasks and tables they are given.
pub(crate) struct Labels {
    pub tasks: Tasks,
    pub kept: kept::Kept,
    /// Whether labels that are bands held.
    truths: truths::Truths,
    /// `None`: no flow gives samples.
    samples: Option<samples::Samples>,
    /// What becomes of packets, by the classes of labels.
    actions: Actions,
    /// Tasks after the first whose labels rules ask for: bit n for task n.
    in_rules: u8,
    /// These and the tasks after the first whose labels have actions.
    in_use: u8,
    /// The states in the hot line that together mean that no packet can complete a series any more.
    collected: u16,
}

impl Part for Labels {
    #[inline]
    fn begin(&mut self, index: u32, _: &First<'_>) {
        self.kept.begin(index);
        self.truths.begin(index);
        if let Some(samples) = &mut self.samples {
            samples.begin(index);
        }
    }

    fn report(&mut self, index: u32, counts: &Counts) {
        self.kept.report(index);
        self.truths.report(index, counts);
        if let Some(samples) = &mut self.samples {
            samples.report(index, counts);
        }
    }

    fn prefetch(&self, index: u32) {
        self.kept.prefetch(index);
    }
}

impl Labels {
    /// For a checked configuration. Takes its actions, ports and networks.
    pub fn new(config: &mut Config, tasks: Tasks, entries: usize) -> io::Result<Labels> {
        let (depths, of_first) = (tasks.depths(), tasks.task(TaskId::FIRST).depths());
        let actions = std::mem::replace(&mut config.settings.actions, Actions::of_dscp(&[]));
        Ok(Labels {
            kept: kept::Kept::new(entries, (depths, of_first.into()), config.effect)?,
            truths: truths::Truths::new(entries, &tasks, !config.samples.is_none())?,
            samples: samples::Samples::new(config.samples, entries)?,
            in_rules: 0,
            in_use: actions.other_tasks(),
            actions,
            collected: match (depths, config.effect) {
                (1, _) => u16::from(STATE_EMITTED),
                (_, Effect::Arrival) if tasks.count() > 1 => u16::from(STATE_COLLECTED),
                // All depths are of one task, and one has decided. A series in a record has what
                // the greatest depth asks for, whenever answers come.
                (_, Effect::Arrival) if config.record_series.is_none() => {
                    u16::from(STATE_EMITTED | STATE_COLLECTED)
                }
                _ => STATE_NEVER,
            },
            tasks,
        })
    }

    /// Takes other actions and leaves the old ones in their place.
    pub fn configure(&mut self, actions: &mut Actions) {
        std::mem::swap(&mut self.actions, actions);
        self.in_use = self.in_rules | self.actions.other_tasks();
    }

    /// From now on rules ask for labels of these tasks: bit n for task n.
    pub fn change_rules(&mut self, tasks: u8) {
        self.in_rules = tasks & !1;
        self.in_use = self.in_rules | self.actions.other_tasks();
    }

    pub fn actions(&self) -> &Actions {
        &self.actions
    }

    #[inline]
    pub fn collected(&self) -> u16 {
        self.collected
    }

    /// Whether a due depth is asked about a flow, so that its series is sent. `subject`: where the
    /// task may not be asked about every flow. The series is withheld if the flow began mid-stream
    /// and the model was not trained for that, or if the task already has its label.
    pub fn sends(
        &mut self,
        flows: &mut Flows,
        arrival: &Arrival,
        depth: DepthId,
        subject: Option<&Subject>,
        is_midstream: bool,
    ) -> bool {
        let index = arrival.index;
        // The hot line holds the first task's states.
        let is_first = depth == self.tasks.task(TaskId::FIRST).first_asked;
        let is_first_asked = self.tasks.is_first_asked(depth);
        let task = self.tasks.of_depth(depth);
        debug_assert!(self.tasks.k(depth) > 0, "a depth without a series is not due");
        let is_asked =
            subject.is_none_or(|it| self.tasks.is_asked_at(&flows.entries, index, it, depth));
        if !is_asked || !self.tasks.task(task).config.midstream && is_midstream {
            if is_first && self.tasks.count() == 1 {
                flows.entries.hot_mut(index).set(STATE_WITHHELD);
            }
            let counters = &mut flows.counters.depths[depth.index()];
            match is_asked {
                true => counters.series_withheld += u64::from(is_first_asked),
                false => counters.flows_not_asked += u64::from(is_first_asked),
            }
            return false;
        }
        let may_be_decided =
            depth != self.tasks.task(task).first && flows.effect == Effect::Arrival;
        if may_be_decided && self.is_decided(flows, index, task) {
            return false;
        }
        if is_first {
            flows.entries.hot_mut(index).set(STATE_EMITTED);
        }
        let emitted_at = match flows.effect {
            Effect::Arrival => arrival.now_ns as i64,
            Effect::PacketTime { .. } => arrival.time_us,
        };
        self.kept.set_emitted_at(&mut flows.entries, depth, index, emitted_at);
        self.truths.note(&flows.entries, depth, index, arrival.time_us);
        self.begin_without_port(flows, depth, index, emitted_at);
        true
    }
}
