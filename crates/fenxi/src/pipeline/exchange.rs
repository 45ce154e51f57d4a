//! The exchange of what the analytics threads work with: the model, the devices, batching and cache.
//!
//! Whoever drives it works off the data path. A helper ([`Opening`]) opens the other bundle beside the running one, checks that
//! its labels mean the same, opens and warms a session for each that is in use; then they are handed over. All analytics threads take what stands
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

mod opening;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use accel::Bundle;
use analytics::{Accelerator, Manager, NewModel, Refused, Retired, Settings, Standby};
use cring::MODELS_MAX;
use crossbeam_channel::{Receiver, Sender, bounded, select};
use tracing::warn;

use super::analytics_config;
use super::helpers::Helpers;
use super::threads::Thread;
use crate::config::Config;
use crate::control::in_use::{Model, Swaps};
use crate::exit::Failure;
use crate::recording::{Recorder, SeriesSeat};
use opening::Known;

pub use opening::Opening;

/// From one configuration to another.
type Change = (analytics::Config, analytics::Config);

/// How long an analytics thread may take for a step. It takes one between two rounds, and so within a batch of a device that
/// works inside it; a change-over waits for the batches of the others, too. Those are given up after their deadline, by
/// default 1 s.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

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
    /// With what stood by, to be dropped on the other side.
    StoodDown {
        _standby: Option<Standby>,
    },
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
                    None => manager.prepare(standby),
                };
                self.answer(match taken {
                    Ok(()) => Answer::Accepted,
                    Err(refused) => Answer::Refused(refused),
                });
            }
            Step::ChangeOver => match seat {
                Some(seat) => seat.change_over(manager),
                None => manager.commit(),
            },
            Step::StandDown => {
                let stood_down = match seat {
                    Some(seat) => seat.stand_down(manager),
                    None => manager.abort(),
                };
                self.answer(Answer::StoodDown {
                    _standby: stood_down,
                });
            }
        }
    }

    fn answer(&self, answer: Answer) {
        // There is room for the answers to all steps of an exchange; if the other side has gone, all ends soon.
        let _ = self.answers.try_send(answer);
    }
}

/// The driver's end of one analytics thread.
struct Target {
    thread: Thread,
    steps: Sender<Step>,
    answers: Receiver<Answer>,
    /// Answers that are still to come.
    owed: usize,
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
    helpers: Helpers,
    targets: Vec<Target>,
    bundle: Arc<Bundle>,
    generation: u16,
    known: Known,
    answer_within: Duration,
    /// Where sessions that come in are recorded.
    recorder: Option<Recorder>,
}

impl Exchange {
    /// For these analytics threads; each is given its end. `bundle` is the model in use.
    pub fn new(
        helpers: &Helpers,
        bundle: &Bundle,
        analytics: &[(Thread, Manager)],
    ) -> (Exchange, Vec<ExchangePort>) {
        let ends = analytics.iter().map(|(thread, _)| target(thread));
        let (targets, ports) = ends.unzip();
        let exchange = Exchange {
            helpers: helpers.clone(),
            targets,
            bundle: Arc::new(bundle.clone()),
            generation: 0,
            known: Known::default(),
            answer_within: ANSWER_WITHIN,
            recorder: None,
        };
        (exchange, ports)
    }

    /// The same for a run that is recorded.
    pub fn recorded_by(self, recorder: Option<Recorder>) -> Exchange {
        Exchange { recorder, ..self }
    }

    /// What came of all exchanges so far.
    pub fn swaps(&self) -> Swaps {
        self.helpers.in_use().standing().swaps
    }

    /// An attempt to open what is to come into use, for the thread of a helper.
    pub fn opening(&self) -> Opening {
        Opening {
            helpers: self.helpers.clone(),
            threads: self.targets.iter().map(|it| it.thread.clone()).collect(),
            bundle: self.bundle.clone(),
            known: self.known.clone(),
            recorder: self.recorder.clone(),
            is_refused: Arc::default(),
            began: Instant::now(),
        }
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
            self.opening().refuse(why);
        }
        offered?;
        let accelerators = self.change_over()?;
        self.generation = generation;
        let bundle = std::mem::replace(&mut self.bundle, bundle);
        let model = Model::of(&self.bundle, generation);
        self.helpers.in_use().note(|standing| {
            standing.model = model;
            standing.cache_entries = cache_entries;
            let swaps = &mut standing.swaps;
            match is_return {
                true => swaps.reverted += u64::from(has_model),
                false => swaps.done += u64::from(has_model),
            }
        });
        let before = accelerators.map(|accelerators| Before {
            accelerators,
            bundle,
        });
        Ok(before.filter(|_| has_model))
    }

    /// The first step: all take what stands by, or none. Where one does not answer in time, which says that it is stuck in a
    /// device, the exchange is called off: what was offered is taken back by a step behind the offer, so that the thread
    /// finds both, in this order, whenever it goes on. Nobody changes over before all have accepted, so no two threads ever
    /// work with different models for longer than it takes to say the second step.
    fn offer(
        &mut self,
        standbys: impl Iterator<Item = Standby>,
        change: Option<&Arc<Change>>,
    ) -> Result<(), Refusal> {
        let until = Instant::now() + self.answer_within;
        for target in &mut self.targets {
            if !target.is_done_with_the_last(until, &self.helpers)? {
                let thread = &target.thread;
                return Err(Failure::unavailable(format!(
                    "{thread}: still busy with the last exchange, a device does not come back; restart fenxi"
                ))
                .into());
            }
        }
        for (target, standby) in self.targets.iter_mut().zip(standbys) {
            target.send(Step::Offer(standby, change.cloned()))?;
        }
        let until = Instant::now() + self.answer_within;
        let mut refusal = None;
        let mut to_stand_down = Vec::new();
        for (i, target) in self.targets.iter_mut().enumerate() {
            match target.answer(until, &self.helpers)? {
                Some(Answer::Refused(refused)) => {
                    let why = format!("{}: {}", target.thread, refused.error);
                    refusal = Some(Failure::data(why));
                }
                Some(_) => to_stand_down.push(i),
                None => {
                    refusal = Some(target.is_late(self.answer_within, "nothing was exchanged"));
                    to_stand_down.push(i);
                }
            }
        }
        let Some(refusal) = refusal else {
            return Ok(());
        };
        let until = Instant::now() + self.answer_within;
        for i in to_stand_down {
            let target = &mut self.targets[i];
            target.send(Step::StandDown)?;
            // One that is late owes both answers; they are dropped before the next exchange.
            if target.owed == 1 {
                drop(target.answer(until, &self.helpers)?);
            }
        }
        Err(refusal.into())
    }

    /// The second step: all change, and give what they had; `None` where one is late. That one changes before it works on
    /// another batch, whenever it goes on, and so the exchange stands.
    fn change_over(&mut self) -> Result<Option<Vec<Vec<Accelerator>>>, Refusal> {
        for target in &mut self.targets {
            target.send(Step::ChangeOver)?;
        }
        let until = Instant::now() + self.answer_within;
        let mut before = Some(Vec::new());
        for target in &mut self.targets {
            match target.answer(until, &self.helpers)? {
                Some(Answer::Retired(retired)) => {
                    if let Some(before) = &mut before {
                        before.push(retired.accelerators);
                    }
                    drop(retired.settings);
                }
                Some(_) => {}
                None => {
                    let what = "it changes over before its next batch";
                    warn!("{}", target.is_late(self.answer_within, what));
                    before = None;
                }
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
    /// Whether it owes no answer of an earlier exchange, or gives it in time. What is retired late is dropped here.
    fn is_done_with_the_last(
        &mut self,
        until: Instant,
        helpers: &Helpers,
    ) -> Result<bool, Refusal> {
        while self.owed > 0 {
            if self.answer(until, helpers)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sends a step on its way, to which there is one answer.
    fn send(&mut self, step: Step) -> Result<(), Refusal> {
        self.owed += 1;
        // There is room for all steps of an exchange.
        self.steps.try_send(step).map_err(|_| Refusal::RunEnded)
    }

    /// The answer, if it comes in time.
    fn answer(&mut self, until: Instant, helpers: &Helpers) -> Result<Option<Answer>, Refusal> {
        select! {
            recv(self.answers) -> answer => match answer {
                Ok(answer) => {
                    self.owed -= 1;
                    Ok(Some(answer))
                }
                Err(_) => Err(Refusal::RunEnded),
            },
            recv(helpers.run_ends()) -> _ => Err(Refusal::RunEnded),
            default(until.saturating_duration_since(Instant::now())) => Ok(None),
        }
    }

    fn is_late(&self, limit: Duration, what: &str) -> Failure {
        Failure::unavailable(format!(
            "{}: no answer within {} s, a device does not come back; {what}",
            self.thread,
            limit.as_secs_f64()
        ))
    }
}

/// An offer, its way back, and the change-over: as many steps, and answers, as can be under way.
const STEPS: usize = 3;

fn target(thread: &Thread) -> (Target, ExchangePort) {
    let (steps, taken) = bounded(STEPS);
    let (given, answers) = bounded(STEPS);
    let target = Target {
        thread: thread.clone(),
        steps,
        answers,
        owed: 0,
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
