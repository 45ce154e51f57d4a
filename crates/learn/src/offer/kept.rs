//! A promoted model that was kept: what it was promoted for may stop to hold. Then the model that
//! the operator chose, by the configuration or `fenxi ctl model load`, comes back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use accel::Bundle;
use tracing::warn;

use super::super::judge::{self, Trial};
use super::{Candidate, Models, Offers, RETURNED, Refusal};

/// Held-out flows that end between two looks. Each look has flows of its own.
pub const LOOK_FLOWS: usize = 500;

/// A look takes some tenths of a second, so the next one comes no sooner.
const LOOK_EVERY: Duration = Duration::from_secs(30);

pub struct Promoted {
    pub bundle: Arc<Bundle>,
    /// The model that the operator chose.
    pub chosen: Arc<Bundle>,
    pub generation: u16,
    /// Number of the first sample since the last look.
    pub from: u64,
    pub next_look: Instant,
    /// That it cannot be compared was said.
    pub is_said: bool,
}

impl Offers {
    /// The model that the operator chose, where this one is in use.
    pub(super) fn chosen(
        &mut self,
        task: usize,
        in_use: &Arc<Bundle>,
        generation: u16,
    ) -> Arc<Bundle> {
        self.promoted[task].take_if(|it| it.generation != generation);
        self.promoted[task].as_ref().map_or(in_use, |it| &it.chosen).clone()
    }

    /// A candidate has held what it promised.
    pub(super) fn keep(&mut self, task: usize, candidate: Candidate) {
        let Candidate { bundle, chosen, generation, .. } = candidate;
        self.promoted[task] = Some(Promoted {
            bundle,
            chosen,
            generation,
            from: self.held.with(|held| held.pushed(task)),
            next_look: Instant::now() + LOOK_EVERY,
            is_said: false,
        });
    }

    /// The model before the last promotion is in use again.
    pub(super) fn is_back(&mut self, task: usize, models: &dyn Models) {
        if let Some(promoted) = &mut self.promoted[task] {
            promoted.generation = models.in_use(task).1;
        }
    }

    /// The model of generation `before` is in use again, as generation `now`: a reload was undone.
    /// What was seen meanwhile is of another model, so a candidate's stage begins anew.
    pub fn is_again(&mut self, task: usize, before: u16, now: u16) {
        let from = self.held.with(|held| held.pushed(task));
        match &mut self.promoted[task] {
            Some(promoted) if promoted.generation == before => promoted.generation = now,
            _ => {}
        }
        match &mut self.candidates[task] {
            Some(candidate) if candidate.generation == before => {
                (candidate.generation, candidate.from) = (now, from);
            }
            _ => {}
        }
    }

    /// Looks at the model that was kept, if it is still in use and that is due.
    pub(super) fn look_at_promoted(&mut self, task: usize, models: &mut dyn Models) {
        let Some(mut promoted) = self.promoted[task].take() else { return };
        if models.in_use(task).1 != promoted.generation {
            return;
        }
        let is_due = Instant::now() >= promoted.next_look
            && self.held.with(|held| held.flows_since(task, promoted.from)) >= LOOK_FLOWS;
        if is_due {
            if let Err(why) = self.compare(task, &mut promoted, models)
                && self.fall_back(task, &promoted, &why, models)
            {
                return;
            }
            promoted.from = self.held.with(|held| held.pushed(task));
            promoted.next_look = Instant::now() + LOOK_EVERY;
        }
        self.promoted[task] = Some(promoted);
    }

    /// Whether it is still the best that there is.
    fn compare(
        &self,
        task: usize,
        promoted: &mut Promoted,
        models: &mut dyn Models,
    ) -> Result<(), Refusal> {
        let Promoted { bundle, chosen, from, is_said, .. } = promoted;
        let (samples, questions) = self.known(task, *from, bundle)?;
        match models.ask(task, [bundle, chosen], samples) {
            Ok([own, chosen]) => {
                *is_said = false;
                let (candidate, in_use) = (&own, &chosen);
                let classes = bundle.shape().classes;
                let trial = Trial { questions: &questions, classes, candidate, in_use };
                Ok(judge::check_promoted(&trial, RETURNED)?)
            }
            Err(Refusal { why, .. }) => {
                if !std::mem::replace(is_said, true) {
                    let (own, chosen) = (bundle.dir().display(), chosen.dir().display());
                    warn!("model {own}: not compared with {chosen}: {why}");
                }
                Ok(())
            }
        }
    }

    /// Brings the operator's model back. Returns whether it is in use.
    fn fall_back(
        &self,
        task: usize,
        promoted: &Promoted,
        because: &Refusal,
        models: &mut dyn Models,
    ) -> bool {
        let Promoted { bundle, chosen, .. } = promoted;
        let why = &because.why;
        // A canary that could not be withdrawn would come into use.
        let back = models.withdraw(task).and_then(|()| models.promote(task, chosen));
        let refusal = match &back {
            Ok(()) => {
                let chosen = chosen.dir().display();
                Refusal::new("fallen_back", format!("{why}; {chosen} is in use again"))
            }
            Err(failed) => {
                let why = format!("{why}; it stays in use, because {}", failed.why);
                Refusal::new("failed", why)
            }
        };
        self.refuse(task, bundle.dir(), &refusal);
        back.is_ok()
    }
}
