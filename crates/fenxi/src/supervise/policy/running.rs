//! The rules of a run and the flow workers that use them, behind a lock that the policy thread and
//! the reload thread share. No thread of the data path takes it.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crossbeam_channel::Receiver;
use dataplane::Error;
use dataplane::state::SharedState;
use dataplane::swap::Refusal;
use policy::{Trained, Version};
use tracing::warn;

use super::Workers;
use crate::protocol::{Code, PolicyChanged};
use crate::rules::{Refused, Rules};

/// Shared by the threads that change rules and settings.
#[derive(Clone)]
pub struct SharedRules(Arc<Mutex<RunningRules>>);

impl SharedRules {
    pub fn new(running: RunningRules) -> SharedRules {
        SharedRules(Arc::new(Mutex::new(running)))
    }

    pub fn lock(&self) -> MutexGuard<'_, RunningRules> {
        // A change that panicked has not reached the workers.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub struct RunningRules {
    pub rules: Rules,
    /// The rules before the last replacement, until it is undone.
    before: Option<Rules>,
    workers: Workers,
    state: Arc<SharedState>,
    run_ended: Receiver<Infallible>,
}

impl RunningRules {
    /// These rules, which the workers use already if they have any.
    pub fn new(
        rules: Rules,
        workers: Workers,
        state: Arc<SharedState>,
        run_ended: Receiver<Infallible>,
    ) -> RunningRules {
        let running = RunningRules { rules, before: None, workers, state, run_ended };
        running.note();
        running
    }

    /// Makes a batch of changes.
    ///
    /// # Errors
    /// It is wrong, or the workers cannot take it; then nothing changes.
    pub fn change(&mut self, text: &str) -> Result<PolicyChanged, Refused> {
        let old = self.rules.version();
        let changed = self.rules.change(text)?;
        if let Err(refusal) = self.publish(old) {
            // No worker has the change yet.
            let old = self.rules.version();
            if self.rules.undo().is_ok() {
                self.rules.advance(&old);
            }
            return Err(refusal.into());
        }
        Ok(changed)
    }

    /// Undoes the last batch of changes, else the last replacement of all rules; returns the number
    /// of rules.
    pub fn undo(&mut self) -> Result<u64, Refused> {
        if self.rules.store.can_undo() {
            let old = self.rules.version();
            self.rules.undo()?;
            self.publish(old)?;
        } else {
            let before = self.before.take().ok_or_else(nothing_to_undo)?;
            self.exchange(None, before)?;
            self.before = None;
        }
        Ok(self.rules.len())
    }

    /// Switches a profile; returns the number of its rules.
    ///
    /// # Errors
    /// No rule has it, or the run ends; then nothing changes.
    pub fn switch(&mut self, profile: &str, on: bool) -> Result<u64, Refused> {
        let before = self.rules.standing();
        let rules = self.rules.switch(profile, on)?;
        if let Err(refusal) = self.open_and_close() {
            self.rules.put_back(before);
            return Err(refusal.into());
        }
        Ok(rules)
    }

    /// Opens and closes rules by their hours and profiles. Where some change, all flows are looked
    /// up again.
    pub fn open_and_close(&mut self) -> Result<(), Refusal> {
        match self.workers.have_rules && self.rules.open_and_close() {
            true => self.workers.update(None, Some(&self.rules.in_force), &self.run_ended),
            false => Ok(()),
        }
    }

    /// Gives the workers new settings.
    pub fn configure(&mut self, settings: Option<&flowmgr::Settings>) -> Result<(), Refusal> {
        self.workers.update(settings, None, &self.run_ended)
    }

    /// Replaces all rules and, at the same time, the workers' settings; returns the number of lost
    /// batches of changes.
    ///
    /// # Errors
    /// The run ends, or there is no memory for the first rules; then the old ones stay.
    pub fn replace(
        &mut self,
        settings: Option<&flowmgr::Settings>,
        rules: Rules,
    ) -> Result<usize, Refusal> {
        let gone = self.rules.changes;
        self.exchange(settings, rules)?;
        Ok(gone)
    }

    /// Undoes [`RunningRules::replace`].
    pub fn put_back(&mut self, settings: Option<&flowmgr::Settings>) -> Result<(), Refusal> {
        match self.before.take() {
            Some(before) => {
                self.exchange(settings, before)?;
                self.before = None;
                Ok(())
            }
            None => self.configure(settings),
        }
    }

    fn exchange(
        &mut self,
        settings: Option<&flowmgr::Settings>,
        mut rules: Rules,
    ) -> Result<(), Refusal> {
        // Flows may have been looked up in other rules since.
        rules.renumber();
        rules.follow(&self.rules);
        let is_needed = self.workers.have_rules || rules.at_start().is_some();
        let in_force = is_needed.then_some(&rules.in_force);
        self.workers.update(settings, in_force, &self.run_ended)?;
        self.before = Some(std::mem::replace(&mut self.rules, rules));
        self.note();
        Ok(())
    }

    /// Puts a new index to use, if it was trained for these rules.
    pub fn adopt(&mut self, id: u64, trained: Option<Trained>) -> Result<(), Refusal> {
        let now = Instant::now();
        if let Some(before) = self.before.as_mut().filter(|before| before.id == id) {
            before.store.abandon(now);
        }
        if self.rules.id != id {
            return Ok(());
        }
        let Some(trained) = trained else {
            self.rules.store.abandon(now);
            return Ok(());
        };
        let old = self.rules.version();
        if let Err(error) = self.rules.store.adopt(trained, now) {
            warn!("the rules stay with their old index: {error}");
            return Ok(());
        }
        self.publish(old)?;
        self.state.update(|state| state.rules_updates.trainings += 1);
        Ok(())
    }

    /// Drops deleted rules once they are the majority.
    pub fn compact(&mut self) -> Result<(), Refusal> {
        let old = self.rules.version();
        match self.rules.compact() {
            Ok(true) => self.publish(old),
            Ok(false) => Ok(()),
            Err(error) => {
                Err(Error::Software(format!("the rules are not renumbered: {error}")).into())
            }
        }
    }

    /// Gives the workers the version after `old`, and returns `old` to the store for reuse.
    fn publish(&mut self, old: Version) -> Result<(), Refusal> {
        if self.rules.advance(&old) {
            let in_force = Some(&self.rules.in_force);
            self.workers.update(None, in_force, &self.run_ended)?;
            self.rules.store.give_back(old);
        }
        self.note();
        Ok(())
    }

    fn note(&self) {
        let rules = match self.workers.have_rules {
            true => self.rules.state(),
            false => dataplane::state::RulesState::default(),
        };
        self.state.update(|state| state.rules = rules);
    }
}

fn nothing_to_undo() -> Refused {
    let why = "there is nothing to undo: the last 16 batches of changes and the last file can be \
        undone, each once";
    Refused { code: Code::Conflict, why: why.to_owned() }
}
