//! Explains a flow of a replay, from its records.

use std::path::Path;

use config::Config;

use super::super::flow_rows::ended_row;
use super::explainer::dscp;
use super::{Subject, ask, explanation, wanted};
use crate::exit::Failure;
use crate::protocol::{Explanation, FlowQuery};
use crate::sinks::{RecentFlows, host_of};

/// The newest flow that a query means, and how many others fit.
pub fn of_records(
    recent: &RecentFlows,
    query: &FlowQuery,
    config: &Config,
    classes: &[String],
) -> Option<(Subject, usize)> {
    let (recent, wanted) = (recent.lock(), wanted(query));
    let mut fitting = recent.find(&wanted);
    let known = fitting.next()?;
    let ends = (known.flow.source.0, known.flow.destination.0);
    let host = host_of(ends.0, ends.1, &config.host_networks);
    let row = ended_row(known, host, classes);
    Some((Subject::ended(row, known), fitting.count()))
}

/// The explanation, with the model asked again.
///
/// # Errors
/// The bundle cannot be opened.
pub fn after_a_replay(
    subject: Subject,
    others: usize,
    config: &Config,
    dir: &Path,
) -> Result<Explanation, Failure> {
    let asked = ask(config, dir, subject.series.as_ref()).map_err(Failure::data)?;
    let model = format!("{} {}", asked.bundle.name(), asked.bundle.version());
    let written = dscp(config, false, &subject, &asked).into_iter().collect();
    Ok(explanation(subject, &asked, model, written, others))
}
