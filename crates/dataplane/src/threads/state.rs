//! State of a run that is not a counter: the model in use, reloads, and work that is under way or
//! was given up. It serves metrics, health and `fenxi ctl`; the data path never reads it.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use accel::Bundle;
use config::Config;

use crate::opening::profiles::Profiles;
use crate::opening::tasks::{self, OpenTask};

/// Identity of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelId {
    /// Name of the bundle.
    pub name: String,
    /// Version of the bundle.
    pub version: String,
    /// SHA-256 of the model's file, in hexadecimal.
    pub sha256: String,
    /// Folder of the bundle.
    pub dir: PathBuf,
    /// The generation that labels carry: how many models have come before, canaries too, wrapping.
    pub generation: u16,
}

impl ModelId {
    /// The identity of a bundle's model.
    pub fn from_bundle(bundle: &Bundle, generation: u16) -> ModelId {
        ModelId {
            name: bundle.name().to_owned(),
            version: bundle.version().to_owned(),
            sha256: bundle.sha256().to_owned(),
            dir: bundle.dir().to_owned(),
            generation,
        }
    }
}

/// Models, other than the one in use, that a task knows: flows may have been answered by them.
const OTHERS_MAX: usize = 8;

/// Reloads of the configuration, by result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reloads {
    /// The new configuration is in use.
    pub applied: u64,
    /// The new configuration was refused, and the old one stayed in use.
    pub refused: u64,
    /// The new configuration was applied, was not confirmed in time, and was undone.
    pub reverted: u64,
}

/// Swaps of the model, by result.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swaps {
    /// All analytics workers use the new model.
    pub done: u64,
    /// The old model stayed in use.
    pub refused: u64,
    /// The model before was put back: a reload was not confirmed in time, or a promoted candidate
    /// was rolled back.
    pub reverted: u64,
    /// Why the last refused swap was refused.
    pub last_refusal: Option<String>,
}

/// Candidates for a task's model.
#[derive(Debug, Clone, Default)]
pub struct Offers {
    /// How many came to each outcome, by its name.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Where the candidate stands that is under way.
    pub stands: Option<String>,
    /// The last refusal or return: its outcome, and why.
    pub last_refusal: Option<(&'static str, String)>,
    /// Flows that a teacher has named: held out and waiting for that, others, and those with labels
    /// that the model does not have.
    pub truths: [u64; 3],
}

impl Offers {
    /// Counts one.
    pub fn count(&mut self, outcome: &'static str) {
        *self.outcomes.entry(outcome).or_default() += 1;
    }
}

/// Work under way.
#[derive(Debug, Clone)]
pub struct Pending {
    /// The work, as in `opening the model m 1.0 on cpu`.
    pub what: String,
    /// When it began.
    pub since: Instant,
}

/// A helper thread that missed its deadline, so that nobody waits for it. It keeps its memory until
/// it ends.
#[derive(Debug, Clone)]
pub struct Abandoned {
    /// Number of the helper.
    pub id: u64,
    /// The work for which it was started.
    pub what: String,
    /// When it began.
    pub since: Instant,
}

/// The state of one task.
#[derive(Debug, Clone)]
pub struct TaskState {
    /// Its name.
    pub name: String,
    /// The model of all its devices; during a swap some may still have the old one.
    pub model: ModelId,
    /// The latest canaries and models before.
    others: VecDeque<ModelId>,
    /// As [`TaskNames::depths`](crate::opening::tasks::TaskNames::depths); a swap does not change
    /// them.
    pub depths: Vec<usize>,
    /// Entries of all its prefix caches of one pipeline together; 0 without a cache.
    pub cache_entries: u64,
    /// Swaps of its model so far.
    pub swaps: Swaps,
    /// Candidates for its model so far.
    pub offers: Offers,
}

impl TaskState {
    fn from_task(task: &OpenTask) -> TaskState {
        TaskState {
            name: task.name.clone(),
            model: ModelId::from_bundle(&task.bundle, 0),
            others: VecDeque::new(),
            depths: tasks::depths(&task.bundle),
            cache_entries: cache_entries(&task.config),
            swaps: Swaps::default(),
            offers: Offers::default(),
        }
    }

    /// A model answers flows, or has, without being in use.
    pub fn remember(&mut self, model: ModelId) {
        self.others.truncate(OTHERS_MAX - 1);
        self.others.push_front(model);
    }

    /// The latest model of this generation, if it is still known.
    pub fn model_of(&self, generation: u16) -> Option<&ModelId> {
        let mut models = std::iter::once(&self.model).chain(&self.others);
        models.find(|model| model.generation == generation)
    }
}

/// The state of a run at one moment.
#[derive(Debug, Clone)]
pub struct RuntimeState {
    /// The tasks, in the order of the configuration.
    pub tasks: Vec<TaskState>,
    /// Reloads of the configuration so far.
    pub reloads: Reloads,
    /// When a configuration was last read without a fault: at the start or by a reload.
    pub configured: SystemTime,
    /// When the last reload will be undone unless it is confirmed.
    pub undone_at: Option<Instant>,
    /// The first model while it is being opened; nothing is labelled before that.
    pub opening: Option<Pending>,
    /// Helpers that missed their deadline and still run.
    pub abandoned: Vec<Abandoned>,
    /// Rules in force.
    pub rules: RulesState,
    /// Changes of the rules so far.
    pub rules_updates: RulesUpdates,
}

/// What is known of the rules in force.
#[derive(Debug, Clone, Default)]
pub struct RulesState {
    /// How many there are; `None`: there were none ever.
    pub rules: Option<u64>,
    /// See [`RulesInForce::numbering`](crate::threads::rules::RulesInForce::numbering); 0: there
    /// are none.
    pub numbering: u64,
    /// Names of those that have counters of their own, in the order of the counters.
    pub counted: Arc<[String]>,
    /// Filters that models find.
    pub learned: u64,
    /// Filters in hash tables.
    pub remainder: u64,
    /// Changes wait for a training.
    pub is_pending: bool,
}

/// What changes the rules of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RulesOp {
    /// A batch of rules that are added or deleted.
    Change,
    /// Other rules, from a file.
    Load,
    /// The last of these two is undone.
    Undo,
    /// A reload of the configuration.
    Reload,
}

impl RulesOp {
    /// All of them.
    pub const ALL: [RulesOp; 4] = [RulesOp::Change, RulesOp::Load, RulesOp::Undo, RulesOp::Reload];

    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            RulesOp::Change => "change",
            RulesOp::Load => "load",
            RulesOp::Undo => "undo",
            RulesOp::Reload => "reload",
        }
    }
}

/// Changes of the rules so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RulesUpdates {
    /// By [`RulesOp`], those that were made.
    pub applied: [u64; 4],
    /// By [`RulesOp`], those that were refused.
    pub refused: [u64; 4],
    /// Indices that were trained and put to use while the run went on.
    pub trainings: u64,
    /// When the last one was made.
    pub last: Option<Instant>,
}

impl RulesUpdates {
    /// Counts one.
    pub fn count(&mut self, op: RulesOp, is_applied: bool) {
        let by_op = match is_applied {
            true => &mut self.applied,
            false => &mut self.refused,
        };
        by_op[op as usize] += 1;
        if is_applied {
            self.last = Some(Instant::now());
        }
    }
}

impl RuntimeState {
    /// The first task.
    pub fn first(&self) -> &TaskState {
        &self.tasks[0]
    }

    /// Swaps of the models of all tasks.
    pub fn swaps(&self) -> Swaps {
        let mut sum = Swaps::default();
        for swaps in self.tasks.iter().map(|task| &task.swaps) {
            sum.done += swaps.done;
            sum.refused += swaps.refused;
            sum.reverted += swaps.reverted;
            sum.last_refusal = swaps.last_refusal.clone().or(sum.last_refusal);
        }
        sum
    }

    /// Time left until the last reload is undone; `None` if no reload waits for confirmation.
    pub fn unconfirmed(&self) -> Option<Duration> {
        let until = self.undone_at?;
        Some(until.saturating_duration_since(Instant::now()))
    }
}

/// The one place where the state of a run is kept.
#[derive(Debug)]
pub struct SharedState {
    state: Mutex<RuntimeState>,
    profiles: Profiles,
}

impl SharedState {
    /// The state at the start of a run.
    pub fn new(tasks: &[OpenTask]) -> SharedState {
        SharedState {
            state: Mutex::new(RuntimeState {
                tasks: tasks.iter().map(TaskState::from_task).collect(),
                reloads: Reloads::default(),
                configured: SystemTime::now(),
                undone_at: None,
                opening: None,
                abandoned: Vec::new(),
                rules: RulesState::default(),
                rules_updates: RulesUpdates::default(),
            }),
            profiles: Profiles::new(tasks),
        }
    }

    /// The profiles of the devices.
    pub fn profiles(&self) -> &Profiles {
        &self.profiles
    }

    /// A copy of the state now.
    pub fn get(&self) -> RuntimeState {
        self.lock().clone()
    }

    /// Changes the state.
    pub fn update(&self, change: impl FnOnce(&mut RuntimeState)) {
        change(&mut self.lock());
    }

    fn lock(&self) -> MutexGuard<'_, RuntimeState> {
        // Every field is valid between any two statements, so a panic elsewhere leaves nothing
        // half-written.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Entries of all prefix caches of one pipeline together, as the configuration of a task asks for
/// them.
pub fn cache_entries(config: &Config) -> u64 {
    let caches = config.pipeline.layout.analytics_managers as u64;
    config.cache.as_ref().map_or(0, |cache| cache.entries) as u64 * caches
}
