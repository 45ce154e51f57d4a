//! What each task says of a flow, where there are several.

use cring::{Label, Series};

use super::{Standing, View};
use crate::config::{DEPTHS_MAX, OTHERS_MAX};
use crate::ids::TaskId;
use crate::record::{DecidedBy, Decision};

/// The label of a task, in few bytes: each flow that is shown has room for every task's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherLabel {
    /// Number of the class in the model of the task.
    pub class: u16,
    /// 0 to 65,535 for 0 to 1.
    pub confidence: u16,
    /// Elements of the series that was asked about.
    pub depth: u8,
    /// Model or cache.
    pub decided_by: DecidedBy,
}

impl From<Decision> for OtherLabel {
    fn from(decision: Decision) -> OtherLabel {
        OtherLabel {
            class: decision.class,
            confidence: decision.confidence,
            depth: decision.depth,
            decided_by: decision.decided_by,
        }
    }
}

/// Everything the table knows about a flow for a task behind the first.
#[derive(Clone, Copy, Debug)]
pub struct TaskDetail {
    /// What is known of its label.
    pub standing: Standing,
    /// What was collected for it.
    pub series: Series,
    /// The label word of each depth, with its number of elements.
    pub answers: [Option<(u8, Label)>; DEPTHS_MAX],
    /// Which of the depths decided.
    pub decided: Option<u8>,
}

impl View<'_> {
    /// The labels of the tasks behind the first, in their order.
    pub(super) fn other_labels(&self, index: u32) -> [Option<OtherLabel>; OTHERS_MAX] {
        let mut labels = [None; OTHERS_MAX];
        for (id, label) in self.labels.tasks.ids().skip(1).zip(&mut labels) {
            let decision = self.labels.decision_now(self.flows, id, index);
            *label = decision.map(|(_, decision)| decision.into());
        }
        labels
    }

    /// What the table knows about a flow for each task behind the first.
    pub(super) fn other_tasks(&self, index: u32, protocol: u8) -> [Option<TaskDetail>; OTHERS_MAX] {
        let mut all = [None; OTHERS_MAX];
        for (id, detail) in self.labels.tasks.ids().skip(1).zip(&mut all) {
            *detail = Some(self.task_detail(id, index, protocol));
        }
        all
    }

    fn task_detail(&self, id: TaskId, index: u32, protocol: u8) -> TaskDetail {
        let task = self.labels.tasks.task(id);
        let mut series = Series::default();
        self.series.read(index, (&task.config, task.config.k_max()), protocol, &mut series);
        let hot = self.flows.entries.hot(index);
        let (_, (_, port)) = hot.key().ends(hot.is_low_forward());
        let is_not_told =
            self.series.is_midstream(index) || self.labels.was_named_by_port(self.flows, id, index);
        series.server_port = match is_not_told {
            true => 0,
            false => port,
        };
        self.set_local(index, &mut series);
        let mut answers = [None; DEPTHS_MAX];
        for (depth, answer) in task.asked_depths().zip(&mut answers) {
            let k = self.labels.tasks.k(depth) as u8;
            *answer = Some((k, self.flows.entries.word(depth, index).read().1));
        }
        let asked_from = task.first_asked.rank(task.first);
        let decided = self.labels.decision_now(self.flows, id, index);
        let decided = decided.and_then(|(depth, _)| depth.checked_sub(asked_from));
        TaskDetail { standing: self.standing_of(id, index), series, answers, decided }
    }

    /// How far a flow is on the way to a task's label; also for the first task, where there are
    /// several.
    pub(super) fn standing_of(&self, id: TaskId, index: u32) -> Standing {
        if let Some((_, decision)) = self.labels.decision_now(self.flows, id, index) {
            return Standing::Labelled(decision);
        }
        let task = self.labels.tasks.task(id);
        let unit = self.series.number_of(task.config.unit);
        let elements = self.series.seen(index, unit) as u8;
        let hot = self.flows.entries.hot(index);
        let (mut was_asked, mut has_answer) = (false, false);
        for depth in task.all_depths() {
            match self.flows.entries.word(depth, index).read().1 {
                Label::Pending => return Standing::Asked,
                Label::Class { .. } => has_answer = true,
                Label::Unlabelled => was_asked = true,
                Label::None => {}
            }
        }
        let seen = self.series.seen_by_unit(index);
        match () {
            () if has_answer => Standing::Unsure { elements },
            () if was_asked => Standing::Lost,
            () if self.rules.is_unasked(index) => Standing::Unasked,
            () if self.series.is_midstream(index) && !task.config.midstream => Standing::Withheld,
            () if hot.key().is_icmp() || !self.is_asked(index, id) => Standing::NotAsked,
            () if !self.labels.tasks.is_due(task.first_asked, &seen) => {
                Standing::Collecting { elements }
            }
            () => Standing::Asked,
        }
    }
}
