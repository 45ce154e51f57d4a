//! What records say: the label of a flow, its counts, its series.

use cring::{Answers, Feature, Label, Source};

use super::Awaited;
use crate::config::OTHERS_MAX;
use crate::entry::LABEL_NOT_EMITTED;
use crate::manager::Manager;
use crate::record::{Decision, EndReason, FlowName, FlowRecord, SeriesRecord};

impl Manager {
    /// The first task's label of a flow of the table as far as its answers say now, whether or not its record was made.
    pub(crate) fn decision_now(&self, index: u32) -> Option<Decision> {
        let flow = self.entries.flow_ref(index);
        let took_us = self.entries.time_to_label_us(0, index);
        let time_to_label_us = (took_us != LABEL_NOT_EMITTED).then_some(took_us);
        let task = match self.has_depths {
            true => match self.answers(index, self.depths.count()) {
                Answers::Decided { depth: task } => task,
                _ if self.class_by_port(0, index).is_some() => 0,
                _ => return None,
            },
            false => 0,
        };
        self.answer(Awaited { flow, task }, time_to_label_us)
    }

    /// What a depth of a task behind the first answered, given that it decided.
    pub(crate) fn decision_of_depth(&self, first: u8, depth: u8, index: u32) -> Option<Decision> {
        let flow = self.entries.flow_ref(index);
        let took_us = self.entries.time_to_label_us(first, index);
        let time_to_label_us = (took_us != LABEL_NOT_EMITTED).then_some(took_us);
        let task = first + depth;
        self.answer(Awaited { flow, task }, time_to_label_us)
    }

    /// The label of a flow for a task, by the number of its first depth; of several depths the one that they have decided on.
    pub(super) fn decision(&self, awaited: Awaited) -> Option<Decision> {
        let Awaited { flow, task } = awaited;
        let took_us = self.entries.time_to_label_us(task, flow.index);
        let time_to_label_us = (took_us != LABEL_NOT_EMITTED).then_some(took_us);
        let number = self.tasks.number_of(task);
        let depths = self.tasks.task(number).depths.count();
        if depths == 1 {
            return self.answer(awaited, time_to_label_us);
        }
        let decided = match number {
            0 => self.entries.decided(flow.index),
            _ => self.entries.decided_of(task, flow.index),
        };
        let by_port = self.class_by_port(number, flow.index).map(|_| 0);
        let depth = decided.or(by_port)?;
        let task = task + depth;
        self.answer(Awaited { flow, task }, time_to_label_us)
    }

    pub(super) fn answer(
        &self,
        awaited: Awaited,
        time_to_label_us: Option<u32>,
    ) -> Option<Decision> {
        match self.label_of(awaited)? {
            Label::Class {
                class,
                confidence,
                source,
                model,
            } => {
                let Awaited { flow, task } = awaited;
                let depth = match source {
                    Source::Port | Source::Rule => 0,
                    Source::Model | Source::Cache => self.config.tasks[usize::from(task)].k as u8,
                };
                let first = self.tasks.task(self.tasks.number_of(task)).first;
                Some(Decision {
                    class,
                    confidence,
                    decided_by: source.into(),
                    depth,
                    model,
                    contradicts: self.entries.contradicts(first, flow.index),
                    time_to_label_us,
                })
            }
            _ => None,
        }
    }

    /// A record of the flow as its entry has it, without a label.
    pub(super) fn flow_record(&self, index: u32, reason: EndReason) -> FlowRecord {
        let flow = self.name(index);
        let has_series = self.config.record_series.has(flow.flow_id);
        FlowRecord {
            flow,
            last_us: self.entries.hot(index).last_us,
            midstream: self.series.is_midstream(index),
            counts: self.entries.counts(index),
            reason,
            is_half_open: false,
            decision: None,
            others: [None; OTHERS_MAX],
            series: has_series.then(|| self.series_record(index)),
            rule: self.rule_of(index),
            behaviour: self.last_behaviour(index),
        }
    }

    pub(crate) fn name(&self, index: u32) -> FlowName {
        let (hot, cold) = (self.entries.hot(index), self.entries.cold(index));
        let key = hot.key();
        let (source, destination) = key.ends(hot.is_low_forward());
        FlowName {
            flow_id: cold.flow_id,
            protocol: key.protocol(),
            source,
            destination,
            first_us: cold.first_us,
        }
    }

    fn series_record(&self, index: u32) -> Box<SeriesRecord> {
        let mut series = cring::Series::default();
        let protocol = self.entries.hot(index).key().protocol();
        self.series.read_all(index, protocol, &mut series);
        let numbers = |feature| {
            let words = series.channel(feature);
            series.features().contains(feature).then(|| words.to_vec())
        };
        let has_times = series.features().contains(Feature::InterArrival);
        Box::new(SeriesRecord {
            unit: self.series.first_unit(),
            lengths: series.signed_lengths().collect(),
            offsets_us: self.series.offsets_us(index).to_vec(),
            payloads: numbers(Feature::PayloadLength),
            inter_arrivals_us: has_times.then(|| series.inter_arrivals_us().collect()),
            tcp_flags: numbers(Feature::TcpFlags),
        })
    }
}
