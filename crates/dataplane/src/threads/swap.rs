//! Two-phase swap of the analytics workers' model, devices, batching and cache.
//!
//! The driver works off the data path. A helper ([`Opening`]) opens the other bundle while the old
//! one is in use, checks that its labels mean the same, and opens and warms a session for each one
//! that is in use. Then the driver *prepares* every analytics worker, and only when all have
//! accepted does it *commit*, so either all swap or none. Each worker swaps between two batches. It
//! keeps the old sessions until the next swap, for flows that began with them and to bring them
//! back, and hands back those before them, which are dropped here. Any failure before the commit
//! *aborts* the swap, and the old model stays in use.
//!
//! ```text
//! driver: open ─ check ─ golden test ─ warm ─┐         ┌ commit                   ┌─ drop
//!                                            ▼ prepare │ (or abort)       retired ┘
//! analytics worker:          round, round, accept ─────┴─► round … round, take_retired
//! ```
//!
//! A model may first come as a canary, on a share of new flows, and is then promoted or withdrawn.
//! Another model that comes meanwhile has it withdrawn.
//!
//! Source: active and standby snapshot, LiteFlow §3.4.

pub mod helpers;
mod meaning;
mod opening;
mod periodic;
mod port;
mod prepared;
mod trial;

use std::sync::Arc;
use std::time::{Duration, Instant};

use accel::Bundle;
use analytics::{Coming, NewModel, Standby};
use cring::MODELS_MAX;
use tracing::warn;

use crate::Error;
use crate::opening::tasks::OpenTask;
use crate::placement::{Cores, Role, Thread};
use crate::threads::recorder::Change;
use crate::threads::state::{ModelId, Swaps};
use helpers::Helpers;
use opening::Known;
use port::{Answer, Step, Target, target};

pub use opening::Opening;
pub use periodic::{PeriodicSwapper, SwapPlan};
pub use port::SwapPort;
pub use prepared::{Prepared, Previous, Refusal};

/// How long an analytics worker may take for a step. It takes one between two rounds, thus within a
/// batch of a device that works inside it; a commit also waits for the batches of the other
/// devices, which are given up after their deadline, by default 1 s.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// What all workers have accepted, and what is known of it.
struct Ready {
    bundle: Arc<Bundle>,
    generation: u16,
    coming: Coming,
    has_model: bool,
    cache_entries: u64,
    is_return: bool,
}

/// How workers have taken a commit.
struct Committed {
    /// The old sessions can come back; not if a worker is late.
    is_sound: bool,
    /// A worker to which the sessions before did not come back.
    stays: Option<Thread>,
}

/// The workers' ends, each with its thread.
#[derive(Default)]
pub struct Ports(Vec<(Thread, SwapPort)>);

impl Ports {
    /// Takes the ends of one thread, in the order of its tasks.
    pub fn take(&mut self, thread: &Thread) -> Vec<SwapPort> {
        let of_thread = self.0.extract_if(.., |(of, _)| of == thread);
        of_thread.map(|(_, port)| port).collect()
    }
}

/// Drives swaps of one task's model, one at a time.
pub struct Swapper {
    helpers: Helpers,
    /// Number of the task.
    task: usize,
    targets: Vec<Target>,
    bundle: Arc<Bundle>,
    generation: u16,
    /// The last generation that a model got.
    given: u16,
    /// The canary's model and generation.
    canary: Option<(Arc<Bundle>, u16)>,
    known: Known,
    answer_within: Duration,
}

impl Swapper {
    /// A swapper for each of these tasks, and the ports of the workers that serve them.
    pub fn for_tasks(
        helpers: &Helpers,
        tasks: &[OpenTask],
        cores: &Cores,
    ) -> (Vec<Swapper>, Ports) {
        let mut all = Ports::default();
        let swappers = tasks.iter().enumerate().map(|(number, task)| {
            let (swapper, ports) = Swapper::new(helpers, number, task, cores);
            all.0.extend(ports.0);
            swapper
        });
        (swappers.collect(), all)
    }

    /// A swapper for the task with this number, and the ports of the workers that serve it: flow
    /// workers if its series are answered at once, otherwise analytics workers.
    pub fn new(
        helpers: &Helpers,
        number: usize,
        task: &OpenTask,
        cores: &Cores,
    ) -> (Swapper, Ports) {
        let threads = cores.iter().map(|(thread, _)| thread);
        let threads = threads.filter(|thread| match thread.role {
            Role::Flow(_) => task.is_inline,
            Role::Analytics(_) => !task.is_inline,
            Role::Session(_) => false,
        });
        let ends = threads.map(|thread| {
            let (target, port) = target(number, thread);
            (target, (thread.clone(), port))
        });
        let (targets, ports) = ends.unzip();
        let swapper = Swapper {
            helpers: helpers.clone(),
            task: number,
            targets,
            bundle: Arc::new(task.bundle.clone()),
            generation: 0,
            given: 0,
            canary: None,
            known: Known::default(),
            answer_within: ANSWER_WITHIN,
        };
        (swapper, Ports(ports))
    }

    /// The results of all swaps so far.
    pub fn swaps(&self) -> Swaps {
        self.helpers.state().get().tasks[self.task].swaps.clone()
    }

    /// Starts an attempt to open another model, for a helper thread.
    pub fn opening(&self) -> Opening {
        Opening {
            helpers: self.helpers.clone(),
            task: self.task,
            threads: self.targets.iter().map(|it| it.thread.clone()).collect(),
            bundle: self.bundle.clone(),
            generation: self.generation,
            canary: self.canary.as_ref().map(|(bundle, _)| bundle.clone()),
            known: self.known.clone(),
            is_refused: Arc::default(),
            began: Instant::now(),
        }
    }

    /// The generation of the canary.
    pub fn canary(&self) -> Option<u16> {
        Some(self.canary.as_ref()?.1)
    }

    /// Why a device of the canary has failed, if one has.
    ///
    /// # Errors
    /// The run has ended.
    pub fn canary_failure(&mut self) -> Result<Option<String>, Refusal> {
        if self.canary.is_none() {
            return Ok(None);
        }
        let until = Instant::now() + self.answer_within;
        let mut failure = None;
        for target in &mut self.targets {
            let looked = match target.has_finished_the_last(until, &self.helpers)? {
                true => {
                    target.send(Step::Look)?;
                    target.answer(until, &self.helpers)?
                }
                false => None,
            };
            match looked {
                Some(Answer::Looked(why)) => {
                    failure = failure.or(why.map(|why| format!("{}: {why}", target.thread)));
                }
                _ => return Ok(Some(target.no_answer(self.answer_within))),
            }
        }
        Ok(failure)
    }

    /// Takes the canary away, if there is one.
    ///
    /// # Errors
    /// An analytics worker refuses; or the run has ended.
    pub fn withdraw(&mut self) -> Result<(), Refusal> {
        let Some((_, generation)) = self.canary else {
            return Ok(());
        };
        let model = || NewModel { accelerators: Vec::new(), generation, coming: Coming::Withdrawn };
        let standby = || Standby { model: Some(model()), settings: None };
        self.prepare(std::iter::repeat_with(standby), None)?;
        self.commit()?;
        self.canary = None;
        Ok(())
    }

    /// Brings it into use on every worker or on none; returns what brings back the sessions that
    /// were replaced.
    ///
    /// # Errors
    /// An analytics worker refuses, and none swaps; or the run has ended.
    pub fn swap(&mut self, prepared: Prepared) -> Result<Option<Previous>, Refusal> {
        let ready = self.first_phase(prepared)?;
        self.second_phase(ready)
    }

    /// The same for several tasks: all of them change, on every worker, or none. A task without
    /// anything prepared stays as it is.
    ///
    /// # Errors
    /// As above.
    pub fn swap_all(
        swappers: &mut [Swapper],
        prepared: Vec<Option<Prepared>>,
    ) -> Result<Vec<Option<Previous>>, Refusal> {
        let mut all = Vec::new();
        for (number, prepared) in prepared.into_iter().enumerate() {
            let ready = prepared.map(|prepared| swappers[number].first_phase(prepared));
            match ready.transpose() {
                Ok(ready) => all.push(ready),
                Err(refusal) => {
                    for (swapper, ready) in swappers.iter_mut().zip(all) {
                        if ready.is_some() {
                            swapper.abort(&(0..swapper.targets.len()).collect::<Vec<_>>())?;
                        }
                    }
                    return Err(refusal);
                }
            }
        }
        let both = swappers.iter_mut().zip(all);
        let committed = both.map(|(swapper, ready)| match ready {
            Some(ready) => swapper.second_phase(ready),
            None => Ok(None),
        });
        // All commit, even if one fails.
        let committed: Vec<_> = committed.collect();
        committed.into_iter().collect()
    }

    /// Prepares every worker, or none.
    fn first_phase(&mut self, prepared: Prepared) -> Result<Ready, Refusal> {
        let Prepared { accelerators, bundle, settings, change, cache_entries, is_return, .. } =
            prepared;
        let (has_model, coming) = (!accelerators.is_empty(), prepared.coming);
        if has_model && coming != Coming::Promoted {
            self.withdraw()?;
        }
        let generation = match &self.canary {
            _ if !has_model => self.generation,
            Some((_, generation)) if coming == Coming::Promoted => *generation,
            _ => (self.given + 1) % MODELS_MAX as u16,
        };
        let model = |accelerators| NewModel { accelerators, generation, coming };
        let models = accelerators.into_iter().map(model);
        let models = models.map(Some).chain(std::iter::repeat_with(|| None));
        let standbys = models.zip(settings).map(|(model, settings)| Standby { model, settings });
        let prepared = self.prepare(standbys, change.as_ref());
        if let Err(Refusal::Because(why)) = &prepared
            && has_model
        {
            self.opening().refuse(why);
        }
        prepared?;
        Ok(Ready { bundle, generation, coming, has_model, cache_entries, is_return })
    }

    /// Commits on every worker, and says so.
    fn second_phase(&mut self, ready: Ready) -> Result<Option<Previous>, Refusal> {
        let Ready { bundle, generation, coming, has_model, cache_entries, is_return } = ready;
        let Committed { is_sound, stays } = self.commit()?;
        if let Some(thread) = stays {
            // Other workers may have given labels of this generation.
            self.given = generation;
            let why = Error::unavailable(format!(
                "{thread}: a device of the model before does not answer and is abandoned; the \
                 model in use stays"
            ));
            self.opening().refuse(&why);
            return Err(why.into());
        }
        match coming {
            Coming::Canary => {
                let model = ModelId::from_bundle(&bundle, generation);
                self.helpers.state().update(|state| state.tasks[self.task].remember(model));
                (self.given, self.canary) = (generation, Some((bundle, generation)));
                return Ok(None);
            }
            Coming::Promoted => self.canary = None,
            _ if has_model => self.given = generation,
            _ => {}
        }
        self.generation = generation;
        let bundle = std::mem::replace(&mut self.bundle, bundle);
        let model = ModelId::from_bundle(&self.bundle, generation);
        self.helpers.state().update(|state| {
            let task = &mut state.tasks[self.task];
            let before = std::mem::replace(&mut task.model, model);
            if has_model {
                task.remember(before);
            }
            task.cache_entries = cache_entries;
            let swaps = &mut task.swaps;
            match is_return {
                true => swaps.reverted += u64::from(has_model),
                false => swaps.done += u64::from(has_model),
            }
        });
        Ok(has_model.then_some(Previous { is_sound, generation, bundle }))
    }

    /// The first phase: all workers accept, or none. A worker that does not answer in time is stuck
    /// in a device. Then the swap is aborted by a second step, so that the worker finds prepare and
    /// abort, in this order, whenever it goes on. Nobody commits before all have accepted, so no
    /// two workers use different models for longer than it takes to send the commit.
    fn prepare(
        &mut self,
        standbys: impl Iterator<Item = Standby>,
        change: Option<&Arc<Change>>,
    ) -> Result<(), Refusal> {
        let until = Instant::now() + self.answer_within;
        for target in &mut self.targets {
            if !target.has_finished_the_last(until, &self.helpers)? {
                let thread = &target.thread;
                return Err(Error::unavailable(format!(
                    "{thread}: still busy with the last swap, a device does not come back; restart \
                     fenxi"
                ))
                .into());
            }
        }
        for (target, standby) in self.targets.iter_mut().zip(standbys) {
            target.send(Step::Prepare(standby, change.cloned()))?;
        }
        let until = Instant::now() + self.answer_within;
        let mut refusal = None;
        let mut to_abort = Vec::new();
        for (i, target) in self.targets.iter_mut().enumerate() {
            match target.answer(until, &self.helpers)? {
                Some(Answer::Refused(refused)) => {
                    let why = format!("{}: {}", target.thread, refused.error);
                    refusal = Some(Error::data(why));
                }
                Some(_) => to_abort.push(i),
                None => {
                    refusal = Some(target.is_late(self.answer_within, "nothing was swapped"));
                    to_abort.push(i);
                }
            }
        }
        let Some(refusal) = refusal else {
            return Ok(());
        };
        self.abort(&to_abort)?;
        Err(refusal.into())
    }

    /// Takes back what these workers have accepted, or may yet accept.
    fn abort(&mut self, workers: &[usize]) -> Result<(), Refusal> {
        let until = Instant::now() + self.answer_within;
        for &i in workers {
            let target = &mut self.targets[i];
            target.send(Step::Abort)?;
            // A worker that is late owes both answers; they are dropped before the next swap.
            if target.owed == 1 {
                drop(target.answer(until, &self.helpers)?);
            }
        }
        Ok(())
    }

    /// The second phase: all workers swap, and hand back the sessions before the old ones, to be
    /// dropped here. A worker that is late swaps before its next batch, whenever it goes on, so the
    /// swap stands.
    fn commit(&mut self) -> Result<Committed, Refusal> {
        for target in &mut self.targets {
            target.send(Step::Commit)?;
        }
        let until = Instant::now() + self.answer_within;
        let (mut is_sound, mut stays) = (true, None);
        for target in &mut self.targets {
            match target.answer(until, &self.helpers)? {
                Some(Answer::Retired(retired)) => {
                    is_sound &= retired.can_come_back;
                    if retired.has_stayed {
                        stays = Some(target.thread.clone());
                    }
                }
                Some(_) => {}
                None => {
                    let what = "it swaps before its next batch";
                    warn!("{}", target.is_late(self.answer_within, what));
                    is_sound = false;
                }
            }
        }
        Ok(Committed { is_sound, stays })
    }
}

#[cfg(test)]
mod tests;
