//! The flow to be explained, from a flow table or from records.

use cring::{Feature, Features, Label, Series};
use dataplane::tasks::TaskNames;
use flowmgr::record::{Decision, EndReason, FlowName, SeriesRecord};
use flowmgr::{Action, FlowDetail, OTHERS_MAX, Standing, TaskDetail};

use super::super::flow_tables::LiveFlow;
use crate::protocol::FlowRow;
use crate::rules::number_by_order;
use crate::sinks::Known;

/// A flow as a task sees it.
#[derive(Clone)]
pub struct Subject {
    /// Its row in lists.
    pub row: FlowRow,
    pub name: FlowName,
    /// Time of the first and the last packet, µs since the epoch.
    pub times_us: [i64; 2],
    /// TCP whose first SYN was not seen.
    pub midstream: bool,
    /// Only one side has sent packets.
    pub one_way: bool,
    /// Time of the label, µs since the epoch.
    pub labelled_us: Option<i64>,
    pub ended: Option<EndReason>,
    /// The number of its rule, as shown to users.
    pub rule: Option<u64>,
    /// The action on its packets; `None` once it has ended.
    pub action: Option<Action>,
    /// What the task knows of it.
    pub own: OfTask,
    /// The other tasks behind the first, in order.
    others: Vec<OfTask>,
}

/// The fields that differ between tasks.
#[derive(Clone, Default)]
pub struct OfTask {
    /// Its label.
    pub decision: Option<Decision>,
    /// Its progress; `None` once it has ended.
    pub standing: Option<Standing>,
    /// The series so far.
    pub series: Option<Series>,
    /// The answer of each depth, while it is kept.
    pub answers: Option<Vec<Label>>,
    /// Index of the depth that decided.
    pub decided: Option<usize>,
}

impl OfTask {
    fn live(detail: &TaskDetail) -> OfTask {
        let answers = detail.answers.iter().flatten();
        OfTask {
            decision: match detail.standing {
                Standing::Labelled(decision) => Some(decision),
                _ => None,
            },
            standing: Some(detail.standing),
            series: Some(detail.series),
            answers: Some(answers.map(|(_, label)| *label).collect()),
            decided: detail.decided.map(usize::from),
        }
    }
}

impl Subject {
    /// A flow of a table. `known`: its records so far.
    pub fn live(
        row: FlowRow,
        detail: &FlowDetail,
        live: &LiveFlow,
        known: Option<&Known>,
    ) -> Subject {
        let look = &detail.look;
        let wall = |us: i64| us.saturating_add(live.ahead_us);
        Subject {
            row,
            name: look.flow,
            times_us: [wall(look.flow.first_us), wall(look.last_us)],
            midstream: look.midstream,
            one_way: look.is_half_open,
            labelled_us: known.and_then(|known| known.labelled_us),
            ended: None,
            rule: look.rule.map(number_by_order),
            action: Some(look.action),
            own: OfTask::live(&TaskDetail {
                standing: look.standing,
                series: detail.series,
                answers: detail.answers,
                decided: detail.decided,
            }),
            others: detail.others.iter().flatten().map(OfTask::live).collect(),
        }
    }

    /// The same flow as task `number` sees it. `takes_records`: the series of records, which is the
    /// first task's, serves this task.
    pub fn of_task(&self, number: usize, names: &TaskNames, takes_records: bool) -> Subject {
        let mut subject = self.clone();
        let Some(other) = number.checked_sub(1) else { return subject };
        subject.own = self.others.get(other).cloned().unwrap_or_default();
        subject.labelled_us = None;
        let label = self.row.labels.iter().find(|label| *label.task == *names.name).cloned();
        subject.row.label = label.as_ref().map(|it| it.label.clone());
        subject.row.confidence = label.as_ref().map(|it| it.confidence);
        subject.row.decided_by = label.map(|it| it.decided_by);
        if subject.own.series.is_none() && takes_records {
            subject.own.series = self.own.series;
            if let Some(series) = &mut subject.own.series {
                series.server_port = server_port(&self.name, self.midstream, subject.own.decision);
            }
        }
        subject
    }

    /// The classes of its labels, by task.
    pub fn classes(&self) -> Vec<Option<u16>> {
        let all = std::iter::once(&self.own).chain(&self.others);
        all.map(|task| task.decision.map(|it| it.class)).collect()
    }

    pub fn ended(row: FlowRow, known: &Known) -> Subject {
        let series = known.series.as_deref().map(|series| {
            let port = server_port(&known.flow, known.midstream, known.decision);
            of_record(series, known.flow.protocol, port)
        });
        let other = |task| {
            let decision = known.others.get(&task).copied();
            OfTask { decision, ..OfTask::default() }
        };
        Subject {
            row,
            name: known.flow,
            times_us: [known.flow.first_us, known.last_us],
            midstream: known.midstream,
            one_way: known.counts.packets[1] == 0,
            labelled_us: known.labelled_us,
            ended: known.ended,
            rule: None,
            action: None,
            own: OfTask { decision: known.decision, series, ..OfTask::default() },
            others: (1..=OTHERS_MAX as u8).map(other).collect(),
        }
    }
}

/// The port that the model gets: 0 for a flow that began mid-stream, or that the port has named.
fn server_port(flow: &FlowName, midstream: bool, decision: Option<Decision>) -> u16 {
    if midstream || decision.is_some_and(|it| it.is_ports_first()) { 0 } else { flow.destination.1 }
}

/// The series of a record, as the model gets it.
fn of_record(record: &SeriesRecord, protocol: u8, server_port: u16) -> Series {
    let present = [
        (Feature::SignedLength, true),
        (Feature::PayloadLength, record.payloads.is_some()),
        (Feature::InterArrival, record.inter_arrivals_us.is_some()),
        (Feature::TcpFlags, record.tcp_flags.is_some()),
    ];
    let features = present.into_iter().filter(|(_, is_there)| *is_there);
    let features: Features = features.map(|(feature, _)| feature).collect();
    let k = record.lengths.len().min(cring::K_MAX);
    let mut series = Series::new(protocol, k, features);
    series.server_port = server_port;
    if let Some(local) = &record.local {
        series.set_local(local);
    }
    for (at, length) in record.lengths.iter().take(k).enumerate() {
        series.set_signed(at, *length);
    }
    let times = record.inter_arrivals_us.iter().flatten();
    for (at, us) in times.take(k).enumerate() {
        series.set_inter_arrival_us(at, *us);
    }
    for (feature, words) in
        [(Feature::PayloadLength, &record.payloads), (Feature::TcpFlags, &record.tcp_flags)]
    {
        let channel = series.channel_mut(feature);
        for (to, from) in channel.iter_mut().zip(words.iter().flatten()) {
            *to = *from;
        }
    }
    series
}

#[cfg(test)]
mod tests {
    use cring::Unit;

    use super::*;

    #[test]
    fn the_series_of_a_record_is_the_one_that_the_model_got() {
        let record = SeriesRecord {
            unit: Unit::Packet,
            lengths: vec![60, -1500, 40],
            offsets_us: vec![0, 10, 30],
            payloads: Some(vec![20, 1460, 0]),
            inter_arrivals_us: Some(vec![0, 10, 70_000]),
            tcp_flags: None,
            local: Some([1.0, 2.0, 3.0, 4.0, 5.0]),
        };
        let flow = FlowName {
            flow_id: 1,
            protocol: 6,
            source: ([10, 0, 0, 1].into(), 4000),
            destination: ([10, 0, 0, 2].into(), 443),
            first_us: 0,
        };
        let of_record = |midstream| of_record(&record, 6, server_port(&flow, midstream, None));
        let series = of_record(false);
        assert_eq!(series.signed_lengths().collect::<Vec<_>>(), [60, -1500, 40]);
        assert_eq!(series.inter_arrivals_us().collect::<Vec<_>>(), [0, 10, 70_000]);
        assert_eq!(series.channel(Feature::PayloadLength), [20, 1460, 0]);
        assert!(series.channel(Feature::TcpFlags).is_empty());
        assert_eq!((series.server_port, series.protocol), (443, 6));
        assert_eq!(series.local(), record.local.as_ref());
        assert_eq!(of_record(true).server_port, 0);
    }
}
