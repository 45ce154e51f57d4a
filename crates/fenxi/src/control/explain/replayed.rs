//! Explains a flow of a replay, from its records.

use std::path::PathBuf;

use config::Config;
use dataplane::bundle::open_bundle;
use dataplane::tasks::TaskNames;

use super::super::flow_rows::ended_row;
use super::explainer::dscp;
use super::{AskedTask, Subject, ask, explanation, wanted};
use crate::exit::Failure;
use crate::names::Names;
use crate::protocol::{Explanation, FlowQuery};
use crate::sinks::{RecentFlows, host_of};

/// The newest flow that a query means, and the number of other matches.
pub fn of_records(
    recent: &RecentFlows,
    query: &FlowQuery,
    config: &Config,
    names: &[TaskNames],
) -> Option<(Subject, usize)> {
    let (recent, wanted) = (recent.lock(), wanted(query));
    let mut fitting = recent.find(&wanted);
    let known = fitting.next()?;
    let ends = (known.flow.source.0, known.flow.destination.0);
    let host = host_of(ends.0, ends.1, &config.host_networks);
    let row = ended_row(known, host, names, &Names::default());
    Some((Subject::ended(row, known), fitting.count()))
}

/// Asks the models again and explains the flow. `dirs`: the bundles' folders, in the order of
/// tasks.
pub fn after_a_replay(
    subject: &Subject,
    others: usize,
    config: &Config,
    names: &[TaskNames],
    dirs: &[PathBuf],
) -> Result<Explanation, Failure> {
    let mut tasks: Vec<AskedTask> = Vec::new();
    for (number, (names, dir)) in names.iter().zip(dirs).enumerate() {
        let own = config.of_task(number);
        // Records have the series of the first task.
        let takes_records = match tasks.first() {
            None => true,
            Some(first) => open_bundle(&own, dir)?.unit() == first.asked.bundle.unit(),
        };
        let subject = subject.of_task(number, names, takes_records);
        let asked = ask(&own, dir, subject.own.series.as_ref()).map_err(Failure::data)?;
        let model = format!("{} {}", asked.bundle.name(), asked.bundle.version());
        tasks.push(AskedTask { asked, model, subject });
    }
    let written = dscp(config, false, &tasks).into_iter().collect();
    let explained = explanation(tasks, config, written, others, None);
    explained.ok_or_else(|| Failure::software("no task"))
}
