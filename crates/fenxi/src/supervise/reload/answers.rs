//! The result of a reload, as a reply and as a line of the log.

use std::time::Duration;

use config::Difference;
use dataplane::swap::Refusal;

use super::{Outcome, Reloader};
use crate::protocol::{Code, Reloaded, Reply};

impl Reloader {
    /// The reply's body.
    pub(super) fn reloaded(&self, outcome: Outcome, confirm_within: Option<Duration>) -> Reloaded {
        let model = self.state.get().model;
        Reloaded {
            applied: outcome.differences.live,
            needs_restart: outcome.differences.restart,
            unchanged: outcome.differences.unchanged,
            model: format!("{} {}", model.name, model.version),
            model_generation: model.generation,
            model_swapped: outcome.has_model,
            confirm_within_s: confirm_within.map(|time| time.as_secs()),
        }
    }
}

impl Reloaded {
    /// In one line.
    pub(super) fn line(&self) -> String {
        let named = |rows: &[Difference]| match rows {
            [] => "nothing".to_owned(),
            rows => {
                let keys: Vec<&str> = rows.iter().map(|row| row.key.as_str()).collect();
                keys.join(", ")
            }
        };
        let mut line = format!("reloaded: applied {}", named(&self.applied));
        if !self.needs_restart.is_empty() {
            line += &format!("; restart needed for {}", named(&self.needs_restart));
        }
        if self.model_swapped {
            let (model, generation) = (&self.model, self.model_generation);
            line += &format!("; model {model}, generation {generation}");
        }
        if let Some(seconds) = self.confirm_within_s {
            line += &format!("; will be undone in {seconds} s unless confirmed");
        }
        line
    }
}

/// The reply to a refused command; the old configuration or model stays in use.
pub(super) fn refused(refusal: &Refusal) -> Reply {
    match refusal {
        Refusal::Because(failure) => Reply::refused(Code::Invalid, failure.to_string()),
        Refusal::RunEnded => Reply::refused(Code::Busy, "the run is shutting down"),
    }
}
