//! Shows the flows of the table to people, as they are between two bursts.
//!
//! Looking changes nothing, allocates nothing and is done in portions: the caller says how many
//! flows it has time for, and continues from the bucket that it gets back. Flows do not move
//! between hashed buckets, so none is seen twice. A flow that begins or ends meanwhile may be
//! missed.

mod tasks;

use std::net::IpAddr;

use cring::{Label, Series};
use measure::Told;

use crate::action::Action;
use crate::asked::Subject;
use crate::behaviour::Behaviour;
use crate::behaviour::Behaviours;
use crate::config::{DEPTHS_MAX, OTHERS_MAX};
use crate::entry::{Counts, STATE_EMITTED, STATE_WITHHELD};
use crate::flows::Flows;
use crate::headers::HeadersSeen;
use crate::ids::TaskId;
use crate::labels::Labels;
use crate::measured::Measured;
use crate::record::{Decision, FlowName};
use crate::rules::Rules;
use crate::series::SeriesStore;
use crate::table::Occupant;

pub use tasks::{OtherLabel, TaskDetail};

/// Flows in a bucket's chain, at most: a portion is never cut within a chain.
pub const CHAIN_FLOWS_MAX: usize = crate::table::CHAIN_SLOTS;

/// A flow of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowLook {
    /// The flow.
    pub flow: FlowName,
    /// Time of the last packet, µs.
    pub last_us: i64,
    /// Packets and bytes since the last record.
    pub counts: Counts,
    /// When that record was made, in flow time, µs; the first packet where there is none.
    pub reported_us: i64,
    /// TCP that was not seen from its first SYN on.
    pub midstream: bool,
    /// Only one side has taken part.
    pub is_half_open: bool,
    /// It ended by FIN or RST and lingers for stragglers.
    pub is_closed: bool,
    /// What is known of its label, of the first task.
    pub standing: Standing,
    /// The labels of the tasks behind the first, in their order.
    pub others: [Option<OtherLabel>; OTHERS_MAX],
    /// Number of its rule, by the last answer.
    pub rule: Option<u32>,
    /// The action on its packets now.
    pub action: Action,
    /// What headers have said of it.
    pub headers: HeadersSeen,
    /// What the flow does.
    pub behaviour: Behaviour,
    /// What was measured of it, where that is on.
    pub measured: Option<Told>,
}

/// A flow to look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The flow of this number.
    Id(u64),
    /// The flow between two ends, in either order.
    Ends {
        /// IP protocol number; `None`: any.
        protocol: Option<u8>,
        /// The ends, with their ports.
        ends: [(IpAddr, u16); 2],
    },
}

impl Wanted {
    /// Whether this is the flow.
    pub fn is_of(&self, flow: &FlowName) -> bool {
        match *self {
            Wanted::Id(id) => flow.flow_id == id,
            Wanted::Ends { protocol, ends } => {
                let found = [flow.source, flow.destination];
                protocol.is_none_or(|protocol| protocol == flow.protocol)
                    && (found == ends || found == [ends[1], ends[0]])
            }
        }
    }
}

/// How far a flow is on the way to its label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Fewer elements have come than the first depth needs.
    Collecting {
        /// Elements so far.
        elements: u8,
    },
    /// The flow began mid-stream, and the model was not trained for that.
    Withheld,
    /// A rule asks nothing about it.
    Unasked,
    /// The task is not asked about it, as is none about ICMP.
    NotAsked,
    /// A series is on its way to the model.
    Asked,
    /// No answer was sure, and the next depth needs more elements.
    Unsure {
        /// Elements so far.
        elements: u8,
    },
    /// The series was shed, or its inference failed.
    Lost,
    /// It has its label.
    Labelled(Decision),
}

/// Everything the table knows about one flow.
#[derive(Clone, Copy)]
pub struct FlowDetail {
    /// The flow.
    pub look: FlowLook,
    /// Everything collected of the first task's unit.
    pub series: Series,
    /// The label word of each depth, with its number of elements. Once a depth has decided, the
    /// first one holds its answer, unless ports name flows with their first packets.
    pub answers: [Option<(u8, Label)>; DEPTHS_MAX],
    /// Which of the depths decided.
    pub decided: Option<u8>,
    /// The same for each task behind the first.
    pub others: [Option<TaskDetail>; OTHERS_MAX],
}

/// What a look sees: the flows and their parts, between two bursts.
pub(crate) struct View<'a> {
    pub flows: &'a Flows,
    pub labels: &'a Labels,
    pub rules: &'a Rules,
    pub series: &'a SeriesStore,
    pub behaviours: Option<&'a Behaviours>,
    pub measured: Option<&'a Measured>,
    /// What tasks' conditions ask about a flow.
    pub subject: &'a dyn Fn(u32) -> Subject,
    /// What headers have said of a flow.
    pub headers: &'a dyn Fn(u32) -> HeadersSeen,
}

impl View<'_> {
    /// Adds what the memory of servers said when the flow began.
    fn set_local(&self, index: u32, series: &mut Series) {
        if let Some(servers) = &self.flows.servers {
            series.set_local(servers.known(index));
        }
    }

    /// Reads flows from hashed bucket `from` on, about `most` of them, at most as many as `rows`
    /// has room for. Returns the bucket to go on from; `None` at the table's end.
    pub fn read_flows(&self, from: u32, most: usize, rows: &mut Vec<FlowLook>) -> Option<u32> {
        let room = rows.capacity().min(rows.len().saturating_add(most));
        let mut heads = from..self.flows.table.buckets();
        while let Some(head) = self.flows.table.in_use_from(heads.start, heads.end) {
            if rows.len() + CHAIN_FLOWS_MAX > room {
                return Some(head);
            }
            let mut next = self.flows.table.first_in(head);
            while let Some(place) = next {
                rows.push(self.look_at(self.flows.table.occupant(place)));
                next = self.flows.table.next_after(place);
            }
            heads.start = head + 1;
        }
        None
    }

    /// Looks for a flow among the next `most` flows, from bucket `from` on.
    pub fn look_for(&self, from: u32, most: usize, wanted: &Wanted) -> Found {
        let mut seen = 0;
        let mut heads = from..self.flows.table.buckets();
        while let Some(head) = self.flows.table.in_use_from(heads.start, heads.end) {
            if seen >= most {
                return Found::NotYet { next: head };
            }
            let mut next = self.flows.table.first_in(head);
            while let Some(place) = next {
                let occupant = self.flows.table.occupant(place);
                if wanted.is_of(&self.flows.name(occupant.index)) {
                    return Found::Flow(self.detail(occupant));
                }
                seen += 1;
                next = self.flows.table.next_after(place);
            }
            heads.start = head + 1;
        }
        Found::Nowhere
    }

    fn detail(&self, occupant: Occupant) -> FlowDetail {
        let index = occupant.index;
        let look = self.look_at(occupant);
        let mut series = Series::default();
        self.series.read_all(index, look.flow.protocol, &mut series);
        series.server_port = match look.midstream
            || self.labels.was_named_by_port(self.flows, TaskId::FIRST, index)
        {
            true => 0,
            false => look.flow.destination.1,
        };
        self.set_local(index, &mut series);
        let mut answers = [None; DEPTHS_MAX];
        let others = self.other_tasks(index, look.flow.protocol);
        if self.rules.is_labelled(index) {
            return FlowDetail { look, series, answers, decided: None, others };
        }
        let task = self.labels.tasks.task(TaskId::FIRST);
        for (depth, answer) in task.asked_depths().zip(&mut answers) {
            let (_, label) = self.flows.entries.word(depth, index).read();
            *answer = Some((self.labels.tasks.k(depth) as u8, label));
        }
        FlowDetail {
            look,
            series,
            answers,
            decided: match self.labels.kept.has_deeper() {
                true => self
                    .labels
                    .kept
                    .decided(task.first, index)
                    .and_then(|depth| depth.checked_sub(task.first_asked.rank(task.first))),
                false => matches!(look.standing, Standing::Labelled(_)).then_some(0),
            },
            others,
        }
    }

    fn look_at(&self, occupant: Occupant) -> FlowLook {
        let index = occupant.index;
        FlowLook {
            flow: self.flows.name(index),
            last_us: self.flows.entries.hot(index).last_us(),
            counts: self.flows.entries.counts(index),
            reported_us: self.flows.entries.cold(index).reported_us,
            midstream: self.series.is_midstream(index),
            is_half_open: occupant.is_half_open,
            is_closed: occupant.is_closed,
            standing: self.standing(index),
            others: self.other_labels(index),
            rule: self.rules.rule_of(index),
            action: Action::of_number(self.flows.entries.hot(index).action),
            headers: (self.headers)(index),
            behaviour: self.behaviour(index),
            measured: self.told(index),
        }
    }

    fn standing(&self, index: u32) -> Standing {
        if self.labels.tasks.count() > 1 {
            // The hot line's states do not say it for a single task.
            return self.standing_of(TaskId::FIRST, index);
        }
        let elements = self.series.seen(index, 0) as u8;
        let hot = self.flows.entries.hot(index);
        if !hot.has(STATE_EMITTED) {
            return match hot.has(STATE_WITHHELD) {
                _ if hot.key().is_icmp() => Standing::NotAsked,
                true if self.rules.is_unasked(index) => Standing::Unasked,
                true if !self.is_asked(index, TaskId::FIRST) => Standing::NotAsked,
                true => Standing::Withheld,
                false => Standing::Collecting { elements },
            };
        }
        if let Some((_, decision)) = self.labels.decision_now(self.flows, TaskId::FIRST, index) {
            return Standing::Labelled(decision);
        }
        let label = |depth| self.flows.entries.word(depth, index).read().1;
        let mut has_answer = false;
        for depth in self.labels.tasks.task(TaskId::FIRST).all_depths() {
            match label(depth) {
                Label::Pending => return Standing::Asked,
                Label::Class { .. } => has_answer = true,
                Label::None | Label::Unlabelled => {}
            }
        }
        match has_answer {
            true => Standing::Unsure { elements },
            false => Standing::Lost,
        }
    }

    fn told(&self, index: u32) -> Option<Told> {
        let entries = &self.flows.entries;
        self.measured.map(|it| it.told(entries, index, &entries.counts(index)))
    }

    fn behaviour(&self, index: u32) -> Behaviour {
        self.behaviours.map_or(Behaviour::None, |it| it.now(index))
    }

    fn is_asked(&self, index: u32, task: TaskId) -> bool {
        self.labels.tasks.is_asked(&(self.subject)(index), task)
    }
}

/// What [`crate::Manager::look_for`] found.
#[expect(
    clippy::large_enum_variant,
    reason = "found once per request, and nothing is allocated on the data path"
)]
pub enum Found {
    /// The flow.
    Flow(FlowDetail),
    /// Not among those looked at.
    NotYet {
        /// The bucket to go on from.
        next: u32,
    },
    /// The table has no such flow.
    Nowhere,
}
