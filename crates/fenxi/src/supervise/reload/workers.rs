//! The flow workers, as the reload thread changes their settings and rules.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use dataplane::Error;
use dataplane::rules::RulesUpdate;
use dataplane::settings::{SettingsSender, Update, WorkerEnded};
use dataplane::swap::Refusal;

use crate::rules::Rules;

/// The least time between two changes of the rules.
const RULES_APART: Duration = Duration::from_millis(flowmgr::RULES_APART_MS);

/// All flow workers, with the rules that they use.
pub struct Workers {
    workers: Vec<SettingsSender>,
    rules: Option<Rules>,
    max_flows: usize,
    /// When the rules were changed.
    changed: Instant,
}

impl Workers {
    /// Workers that use these rules, with tables of so many flows.
    pub fn new(workers: Vec<SettingsSender>, rules: Option<Rules>, max_flows: usize) -> Workers {
        Workers {
            workers,
            rules,
            max_flows,
            changed: Instant::now(),
        }
    }

    /// The rules in use; `None`: there were none ever.
    pub fn rules(&self) -> Option<&Rules> {
        self.rules.as_ref()
    }

    /// What leads back to `before`, the rules of some time ago. Flows have been looked up by others since.
    ///
    /// # Errors
    /// None: no rules name nothing.
    pub fn back_to(&self, before: Option<Rules>) -> Result<Option<Rules>, Error> {
        match (&self.rules, before) {
            (None, _) => Ok(None),
            (Some(_), None) => Rules::none().map(Some),
            (Some(_), before) => Ok(before),
        }
    }

    /// Gives all workers other settings and rules, waits until they use them, and drops the old ones.
    ///
    /// # Errors
    /// The run ends; no memory for the first rules.
    pub fn update(
        &mut self,
        settings: Option<&flowmgr::Settings>,
        rules: Option<Rules>,
        run_ended: &Receiver<Infallible>,
    ) -> Result<(), Refusal> {
        if settings.is_none() && rules.is_none() {
            return Ok(());
        }
        if rules.is_some() {
            self.wait_for_turn(run_ended)?;
        }
        let of_worker = |_: &SettingsSender| {
            let rules = rules.as_ref().map(|rules| rules.in_force.clone());
            let rules = rules.map(|rules| RulesUpdate::new(rules, self.max_flows));
            Ok(Update {
                settings: settings.cloned(),
                rules: rules.transpose()?,
            })
        };
        // All are there before the first is sent.
        let updates: Result<Vec<Update>, Refusal> = self.workers.iter().map(of_worker).collect();
        let ended = |WorkerEnded| Refusal::RunEnded;
        for (worker, update) in self.workers.iter().zip(updates?) {
            worker.send(update).map_err(ended)?;
        }
        for worker in &self.workers {
            worker.taken(run_ended).map_err(ended)?;
        }
        if rules.is_some() {
            (self.rules, self.changed) = (rules, Instant::now());
        }
        Ok(())
    }

    /// Waits until the rules may change again.
    fn wait_for_turn(&self, run_ended: &Receiver<Infallible>) -> Result<(), Refusal> {
        let left = RULES_APART.saturating_sub(self.changed.elapsed());
        match run_ended.recv_timeout(left) {
            Err(RecvTimeoutError::Timeout) => Ok(()),
            _ => Err(Refusal::RunEnded),
        }
    }
}
