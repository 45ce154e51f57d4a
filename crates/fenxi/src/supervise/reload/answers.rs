//! The result of a reload, as a reply and as a line of the log.

use std::time::Duration;

use dataplane::swap::Refusal;

use super::{ReloadOutcome, Reloader};
use crate::protocol::{Code, Difference, Reloaded, Reply};

impl Reloader {
    pub(super) fn reloaded(
        &self,
        outcome: ReloadOutcome,
        confirm_within: Option<Duration>,
    ) -> Reloaded {
        let model = self.helpers.state().get().first().model.clone();
        Reloaded {
            applied: outcome.differences.live.into_iter().map(row).collect(),
            needs_restart: outcome.differences.restart.into_iter().map(row).collect(),
            unchanged: outcome.differences.unchanged,
            model: format!("{} {}", model.name, model.version),
            model_generation: model.generation,
            model_swapped: outcome.has_model,
            policy_changes_gone: outcome.rules_gone,
            confirm_within_s: confirm_within.map(|time| time.as_secs()),
        }
    }
}

fn row(difference: config::Difference) -> Difference {
    let config::Difference { key, from, to, origin } = difference;
    Difference { key, from, to, origin }
}

pub(super) fn line(reloaded: &Reloaded) -> String {
    let named = |rows: &[Difference]| match rows {
        [] => "nothing".to_owned(),
        rows => {
            let keys: Vec<&str> = rows.iter().map(|row| row.key.as_str()).collect();
            keys.join(", ")
        }
    };
    let mut line = format!("reloaded: applied {}", named(&reloaded.applied));
    if !reloaded.needs_restart.is_empty() {
        line += &format!("; restart needed for {}", named(&reloaded.needs_restart));
    }
    if reloaded.model_swapped {
        line += &format!("; model {} is in use", reloaded.model);
    }
    if reloaded.policy_changes_gone > 0 {
        let gone = reloaded.policy_changes_gone;
        let (noun, verb) = match gone {
            1 => ("change", "is"),
            _ => ("changes", "are"),
        };
        line += &format!("; {gone} {noun} of the rules by fenxi ctl {verb} gone");
    }
    if let Some(seconds) = reloaded.confirm_within_s {
        line += &format!("; will be undone in {seconds} s unless confirmed");
    }
    line
}

/// The reply to a refused command; the old configuration or model stays in use.
pub(super) fn refused(refusal: &Refusal) -> Reply {
    match refusal {
        Refusal::Because(failure) => Reply::refused(Code::Invalid, failure.to_string()),
        Refusal::RunEnded => Reply::refused(Code::Busy, "the run is shutting down"),
    }
}
