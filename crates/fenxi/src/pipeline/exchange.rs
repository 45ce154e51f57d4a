//! The exchange of what the analytics threads work with: the model, the devices, batching and cache.
//!
//! Whoever drives it works off the data path. It opens the other bundle beside the running one, checks that its labels mean
//! the same, opens and warms a session for each that is in use, and hands them over. All analytics threads take what stands
//! by before the first of them changes, so that either all change or none. Each changes over between two batches and hands
//! back what it had, to be dropped here. Whatever fails before, the old model goes on.
//!
//! ```text
//! here:             open ─ check ─ golden test ─ warm ─┐       ┌ change over              ┌─ drop, or keep
//!                                                      ▼ offer │ (or stand down)  retired ┘
//! analytics thread:                    round, round, stand_by ─┴─► round … round, take_retired
//! ```
//!
//! Source: active and standby snapshot, LiteFlow §3.4.

use std::path::Path;
use std::sync::Arc;

use accel::Bundle;
use analytics::{Accelerator, Manager, NewModel, Refused, Retired, Settings, Standby};
use cring::MODELS_MAX;
use crossbeam_channel::{Receiver, Sender, bounded};

use super::threads::{Cores, Role, Thread};
use super::{Opener, analytics_config, open_bundle};
use crate::config::Config;
use crate::control::in_use::{InUse, Model, Swaps, cache_entries};
use crate::exit::Failure;
use crate::recording::{Recorder, SeriesSeat};

/// From one configuration to another.
type Change = (analytics::Config, analytics::Config);

/// What an analytics thread is told.
enum Step {
    /// With what its settings were made of, for a recording.
    Offer(Standby, Option<Arc<Change>>),
    ChangeOver,
    StandDown,
}

/// What it answers; to a change-over once all of its devices have changed.
enum Answer {
    Accepted,
    Refused(Refused),
    Retired(Retired),
    StoodDown(Option<Standby>),
}

/// An analytics thread's end.
pub struct ExchangePort {
    steps: Receiver<Step>,
    answers: Sender<Answer>,
}

impl ExchangePort {
    /// Between two rounds: takes the next step, and hands back what is no longer in use. Costs two looks where there is
    /// neither. `seat` is the thread's place at a recording, if there is one.
    pub fn exchange(&self, manager: &mut Manager, seat: Option<&mut SeriesSeat>) {
        if let Some(retired) = manager.take_retired() {
            self.answer(Answer::Retired(retired));
        }
        let Ok(step) = self.steps.try_recv() else {
            return;
        };
        match step {
            Step::Offer(standby, change) => {
                let taken = match seat {
                    Some(seat) => seat.stand_by(manager, standby, change.as_deref()),
                    None => manager.stand_by(standby),
                };
                self.answer(match taken {
                    Ok(()) => Answer::Accepted,
                    Err(refused) => Answer::Refused(refused),
                });
            }
            Step::ChangeOver => match seat {
                Some(seat) => seat.change_over(manager),
                None => manager.change_over(),
            },
            Step::StandDown => {
                let stood_down = match seat {
                    Some(seat) => seat.stand_down(manager),
                    None => manager.stand_down(),
                };
                self.answer(Answer::StoodDown(stood_down));
            }
        }
    }

    fn answer(&self, answer: Answer) {
        // The other side waits for it before it takes the next step, so there is room; if it has gone, all ends soon.
        let _ = self.answers.try_send(answer);
    }
}

/// The driver's end of one analytics thread.
struct Target {
    thread: Thread,
    steps: Sender<Step>,
    answers: Receiver<Answer>,
}

/// Why nothing was exchanged.
#[derive(Debug)]
pub enum Refusal {
    /// The old goes on.
    Because(Failure),
    /// The run has ended.
    RunEnded,
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Refusal {
        Refusal::Because(failure)
    }
}

/// What is to come into use, ready and warm.
pub struct Prepared {
    /// Another model, or the same on other devices, for each analytics thread; empty: they keep theirs.
    accelerators: Vec<Vec<Accelerator>>,
    bundle: Arc<Bundle>,
    settings: Vec<Option<Settings>>,
    /// What the settings were made of.
    change: Option<Arc<Change>>,
    cache_entries: u64,
    /// The model, where there is one, was in use before and comes back.
    pub is_return: bool,
}

/// What was in use before, for each analytics thread.
pub struct Before {
    accelerators: Vec<Vec<Accelerator>>,
    bundle: Arc<Bundle>,
}

impl Before {
    /// Whether all of its sessions can work again: one that had hung might give an old answer to a new batch.
    fn is_sound(&self) -> bool {
        let sessions = self.accelerators.iter().flatten();
        sessions.into_iter().all(|it| it.device.is_idle())
    }
}

/// Exchanges, one at a time.
pub struct Exchange {
    cores: Cores,
    targets: Vec<Target>,
    bundle: Arc<Bundle>,
    in_use: Arc<InUse>,
    generation: u16,
    /// Where sessions that come in are recorded.
    recorder: Option<Recorder>,
}

impl Exchange {
    /// For these analytics threads; each is given its end. `bundle` is the model in use.
    pub fn new(
        cores: &Cores,
        bundle: &Bundle,
        in_use: Arc<InUse>,
        analytics: &[(Thread, Manager)],
    ) -> (Exchange, Vec<ExchangePort>) {
        let ends = analytics.iter().map(|(thread, _)| target(thread));
        let (targets, ports) = ends.unzip();
        let exchange = Exchange {
            cores: cores.clone(),
            targets,
            bundle: Arc::new(bundle.clone()),
            in_use,
            generation: 0,
            recorder: None,
        };
        (exchange, ports)
    }

    /// The same for a run that is recorded.
    pub fn recorded_by(self, recorder: Option<Recorder>) -> Exchange {
        Exchange { recorder, ..self }
    }

    /// The model in use.
    pub fn bundle(&self) -> &Arc<Bundle> {
        &self.bundle
    }

    /// What came of all exchanges so far.
    pub fn swaps(&self) -> Swaps {
        self.in_use.standing().swaps
    }

    /// Opens a bundle that could take the place of the one in use.
    ///
    /// # Errors
    /// It is damaged, or its classes or features mean something else.
    pub fn open(&self, config: &Config, dir: &Path) -> Result<Arc<Bundle>, Failure> {
        let bundle = self.read(config, dir)?;
        let fits = check_meaning(dir, "features", bundle.features(), self.bundle.features());
        let labels = [labels(&bundle), labels(&self.bundle)];
        fits.and_then(|()| check_meaning(dir, "labels", &labels[0], &labels[1]))
            .and_then(|()| check_midstream(dir, &bundle, &self.bundle))
            .inspect_err(|why| self.note_refusal(why))?;
        Ok(Arc::new(bundle))
    }

    /// Opens a bundle, whatever its classes and features are.
    ///
    /// # Errors
    /// It is damaged.
    pub fn read(&self, config: &Config, dir: &Path) -> Result<Bundle, Failure> {
        open_bundle(config, dir).inspect_err(|why| self.note_refusal(why))
    }

    /// Sessions with a model for each analytics thread, as the configuration asks for them.
    ///
    /// # Errors
    /// A device or a model that cannot be used, or golden outputs that differ.
    pub fn prepare(&self, config: &Config, bundle: Arc<Bundle>) -> Result<Prepared, Failure> {
        let prepared = self.open_sessions(config, bundle);
        prepared.inspect_err(|why| self.note_refusal(why))
    }

    fn open_sessions(&self, config: &Config, bundle: Arc<Bundle>) -> Result<Prepared, Failure> {
        let opener = Opener {
            config,
            bundle: &bundle,
            cores: &self.cores,
            golden_test: true,
            recorder: self.recorder.as_ref(),
        };
        let sessions = |target: &Target| {
            let Role::Analytics(manager) = target.thread.role else {
                return Err(Failure::software("a model for a thread that has none"));
            };
            opener.accelerators(target.thread.instance, manager)
        };
        let accelerators = self.targets.iter().map(sessions);
        let accelerators = accelerators.collect::<Result<_, Failure>>()?;
        Ok(self.prepared(config, accelerators, bundle))
    }

    /// The devices in use, for other settings only.
    pub fn keep(&self, config: &Config) -> Prepared {
        self.prepared(config, Vec::new(), self.bundle.clone())
    }

    /// Sessions that were in use before, if all of them can work again.
    pub fn again(&self, config: &Config, before: Before) -> Option<Prepared> {
        before
            .is_sound()
            .then(|| self.prepared(config, before.accelerators, before.bundle))
    }

    fn prepared(
        &self,
        config: &Config,
        accelerators: Vec<Vec<Accelerator>>,
        bundle: Arc<Bundle>,
    ) -> Prepared {
        Prepared {
            accelerators,
            bundle,
            settings: self.targets.iter().map(|_| None).collect(),
            change: None,
            cache_entries: cache_entries(config),
            is_return: false,
        }
    }

    /// The old model goes on: counted where it comes to light, for each attempt ends there.
    fn note_refusal(&self, why: &Failure) {
        self.in_use.note(|standing| {
            standing.swaps.refused += 1;
            standing.swaps.last_refusal = Some(why.to_string());
        });
    }

    /// Brings it into use everywhere, or nowhere; gives what was in use, where it was exchanged.
    ///
    /// # Errors
    /// An analytics thread refuses, and all keep what they have; or the run has ended.
    pub fn exchange(&mut self, prepared: Prepared) -> Result<Option<Before>, Refusal> {
        let Prepared {
            accelerators,
            bundle,
            settings,
            change,
            cache_entries,
            is_return,
        } = prepared;
        let has_model = !accelerators.is_empty();
        let generation = match has_model {
            true => (self.generation + 1) % MODELS_MAX as u16,
            false => self.generation,
        };
        let models = accelerators.into_iter().map(|accelerators| NewModel {
            accelerators,
            generation,
        });
        let models = models.map(Some).chain(std::iter::repeat_with(|| None));
        let standbys = models
            .zip(settings)
            .map(|(model, settings)| Standby { model, settings });
        let offered = self.offer(standbys, change.as_ref());
        if let Err(Refusal::Because(why)) = &offered
            && has_model
        {
            self.note_refusal(why);
        }
        offered?;
        let accelerators = self.change_over()?;
        self.generation = generation;
        let bundle = std::mem::replace(&mut self.bundle, bundle);
        let model = Model::of(&self.bundle, generation);
        self.in_use.note(|standing| {
            standing.model = model;
            standing.cache_entries = cache_entries;
            let swaps = &mut standing.swaps;
            match is_return {
                true => swaps.reverted += u64::from(has_model),
                false => swaps.done += u64::from(has_model),
            }
        });
        Ok(has_model.then_some(Before {
            accelerators,
            bundle,
        }))
    }

    /// The first step: all take what stands by, or none.
    fn offer(
        &self,
        standbys: impl Iterator<Item = Standby>,
        change: Option<&Arc<Change>>,
    ) -> Result<(), Refusal> {
        for (target, standby) in self.targets.iter().zip(standbys) {
            target.send(Step::Offer(standby, change.cloned()))?;
        }
        let mut refusal = None;
        let mut accepted = Vec::new();
        for target in &self.targets {
            match target.answer()? {
                Answer::Refused(refused) => {
                    let why = format!("{}: {}", target.thread, refused.error);
                    refusal = Some(Failure::data(why));
                }
                _ => accepted.push(target),
            }
        }
        let Some(refusal) = refusal else {
            return Ok(());
        };
        for target in accepted {
            target.send(Step::StandDown)?;
            if let Answer::StoodDown(standby) = target.answer()? {
                drop(standby);
            }
        }
        Err(refusal.into())
    }

    /// The second step: all change, and give what they had.
    fn change_over(&self) -> Result<Vec<Vec<Accelerator>>, Refusal> {
        for target in &self.targets {
            target.send(Step::ChangeOver)?;
        }
        let mut before = Vec::new();
        for target in &self.targets {
            if let Answer::Retired(retired) = target.answer()? {
                before.push(retired.accelerators);
                drop(retired.settings);
            }
        }
        Ok(before)
    }
}

impl Prepared {
    /// With batching and cache as the new configuration has them, for managers that work by the old one.
    ///
    /// # Errors
    /// Settings that are impossible in themselves.
    pub fn with_settings(mut self, old: &Config, new: &Config) -> Result<Prepared, Failure> {
        let [old, new] = [old, new].map(|config| analytics_config(config, &self.bundle));
        if old != new {
            for settings in &mut self.settings {
                let change = Settings::change(&old, &new);
                *settings = Some(change.map_err(|error| Failure::config(error.to_string()))?);
            }
            self.change = Some(Arc::new((old, new)));
        }
        Ok(self)
    }

    /// Its model.
    pub fn bundle(&self) -> &Arc<Bundle> {
        &self.bundle
    }

    /// Whether devices get another model, or the same one anew.
    pub fn has_model(&self) -> bool {
        !self.accelerators.is_empty()
    }

    /// Whether there is anything to bring into use.
    pub fn is_something(&self) -> bool {
        self.has_model() || self.settings.iter().any(Option::is_some)
    }
}

impl Target {
    fn send(&self, step: Step) -> Result<(), Refusal> {
        self.steps.send(step).map_err(|_| Refusal::RunEnded)
    }

    fn answer(&self) -> Result<Answer, Refusal> {
        self.answers.recv().map_err(|_| Refusal::RunEnded)
    }
}

fn target(thread: &Thread) -> (Target, ExchangePort) {
    let (steps, taken) = bounded(1);
    let (given, answers) = bounded(1);
    let target = Target {
        thread: thread.clone(),
        steps,
        answers,
    };
    let port = ExchangePort {
        steps: taken,
        answers: given,
    };
    (target, port)
}

fn labels(bundle: &Bundle) -> Vec<String> {
    let labels = bundle.labels().iter();
    labels.map(|label| label.name.clone()).collect()
}

/// A class is a number on its way to the flow, and must mean the same before and after.
fn check_meaning(
    dir: &Path,
    what: &str,
    found: &[String],
    in_use: &[String],
) -> Result<(), Failure> {
    if found == in_use {
        return Ok(());
    }
    Err(Failure::data(format!(
        "{}: the {what} are {}, but those of the model in use are {}; a model that is exchanged under way has the same, in \
         the same order",
        dir.display(),
        found.join(", "),
        in_use.join(", ")
    )))
}

/// Which flows are asked about is the flow managers' business, settled at their start. A model that is asked about other
/// flows than it was trained for is worse than none.
fn check_midstream(dir: &Path, found: &Bundle, in_use: &Bundle) -> Result<(), Failure> {
    if found.midstream() == in_use.midstream() {
        return Ok(());
    }
    Err(Failure::data(format!(
        "{}: midstream is {}, but {} of the model in use; a model that is asked about other flows is brought in by a restart",
        dir.display(),
        found.midstream(),
        in_use.midstream(),
    )))
}

#[cfg(test)]
mod tests;
