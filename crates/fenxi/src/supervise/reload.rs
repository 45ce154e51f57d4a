//! Reloads of the configuration and swaps of the model. See also `docs/control.md`.
//!
//! A thread of its own handles one command after the other. For a reload it reads all layers again
//! and checks the result twice: on its own, as the next start would use it, and combined with the
//! keys that only a start can change, as this run will use it. Then it prepares everything that is
//! needed, and applies it only when nothing can fail any more:
//!
//! ```text
//! read ─ check ─ mix ─ check ─ open what is new ─┬─ analytics workers: prepare on all, then commit
//!                                                ├─ kernel:            the next edition
//!                                                ├─ flow workers:      settings between two bursts
//!                                                └─ sinks:             what each one has prepared
//! ```
//!
//! Reading files or opening models may hang, so helpers with deadlines do it. The thread itself
//! never waits without a deadline, keeps its state, and is ready for the next command. Once the run
//! ends it waits for nothing.
//!
//! [`Change`] holds everything that live keys affect; a test compares it with the catalogue of
//! keys. A reload that has to be confirmed keeps what is needed to undo it, including the warm
//! sessions of the old model.

mod answers;
mod change;
mod offers;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use config::{Config, ConfigErrors, Differences, Loaded, Sources};
use crossbeam_channel::{Receiver, Sender, bounded, never, select};
use dataplane::Error;
use dataplane::bundle::{find_bundle, labels};
use dataplane::placement::Cores;
use dataplane::state::RulesOp;
use dataplane::swap::helpers::{Helpers, opening_model};
use dataplane::swap::{Prepared, Previous, Refusal, Swapper};
use packetio::KernelEditions;
use recording::Recorder;
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::notify::Notifier;
use super::policy::SharedRules;
use crate::exit::Failure;
use crate::log;
use crate::protocol::{Body, Code, FlowTruth, Reply};
use crate::sinks::{self, Sinks};
use change::{Base, Change, RulesChange, Sessions};
use learn::Offers;

/// Time limit for reading the files of a configuration. They are small, so only a file server that
/// does not answer takes longer.
const READ_WITHIN: Duration = Duration::from_secs(10);

/// Interval at which candidates under way are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandKind {
    Reload {
        /// Undo it unless it is confirmed within this time.
        confirm_within: Option<Duration>,
    },
    Confirm,
    LoadModel {
        /// Name of the task; `None`: the only one.
        task: Option<String>,
        dir: PathBuf,
    },
    /// A candidate that a tuner offers.
    Offer {
        task: Option<String>,
        dir: PathBuf,
    },
    /// A teacher's labels of flows.
    Truth {
        task: Option<String>,
        flows: Vec<FlowTruth>,
    },
    /// The model before the last promotion is to come back.
    Back {
        task: Option<String>,
    },
}

pub struct Command {
    pub kind: CommandKind,
    /// Takes the reply; the client may have disconnected.
    pub answer: oneshot::Sender<Reply>,
}

pub struct Reloader {
    pub sources: Sources,
    pub running: Loaded,
    pub helpers: Helpers,
    /// One per task.
    pub swappers: Vec<Swapper>,
    /// The rules, and the flow workers.
    pub rules: SharedRules,
    /// They follow the configuration, and reopen their files with every reload.
    pub sinks: Arc<Sinks>,
    pub notifier: Notifier,
    /// The last reload, until it is confirmed.
    pub undo: Option<Undo>,
    /// The recording, which notes each command and its outcome.
    pub recorder: Option<Recorder>,
    /// What the kernel labels flows by, if it does.
    pub kernel: Option<Arc<KernelEditions>>,
    /// Candidates that a tuner offers; `None`: the run gives no samples to learn from.
    pub offers: Option<Offers>,
    /// By task: the generation of the last promoted candidate, and the sessions before it.
    pub promoted: Vec<Option<(u16, Previous)>>,
}

pub struct Undo {
    running: Loaded,
    /// The sessions that the reload replaced, by task.
    before: Vec<Option<Previous>>,
    /// The generations of the models that it found in use, by task.
    generations: Vec<u16>,
    /// When it is undone unless it is confirmed.
    at: Instant,
}

struct ReloadOutcome {
    differences: Differences,
    has_model: bool,
    rules_gone: usize,
}

struct Applied {
    /// By task.
    before: Vec<Option<Previous>>,
    rules_gone: usize,
}

pub struct Running {
    thread: JoinHandle<()>,
    /// Holds one command while another is executed.
    pub commands: Sender<Command>,
}

impl Running {
    /// Starts it.
    pub fn start(reloader: Reloader) -> Result<Running, Failure> {
        let (commands, run) = bounded(1);
        let thread = std::thread::Builder::new()
            .name("reload".to_owned())
            .spawn(move || {
                reloader.helpers.cores().keep_off();
                reloader.run(&run);
            })
            .map_err(|error| {
                Failure::unavailable(format!("cannot start the reload thread: {error}"))
            })?;
        Ok(Running { thread, commands })
    }

    /// Whether the thread has ended. It ends soon after the helpers' run guard is dropped.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }
}

/// The error for a configuration that cannot be read or is invalid.
fn unreadable(errors: ConfigErrors) -> Error {
    match errors {
        ConfigErrors::Unreadable(message) => Error::NoInput(message),
        ConfigErrors::Invalid(lines) => Error::Config(lines.join("\n")),
    }
}

impl Reloader {
    fn run(mut self, commands: &Receiver<Command>) {
        let helpers = self.helpers.clone();
        // Commands in between do not put it off.
        let mut next_look = Instant::now() + LOOK_EVERY;
        loop {
            let undo_is_due = match &self.undo {
                Some(undo) => crossbeam_channel::at(undo.at),
                None => never(),
            };
            let look = match &self.offers {
                Some(offers) if offers.have_work() && self.undo.is_none() => {
                    crossbeam_channel::at(next_look)
                }
                _ => never(),
            };
            select! {
                recv(commands) -> command => match command {
                    Ok(Command { kind, answer }) => {
                        let reply = self.reply(&kind);
                        self.record(&kind, &reply);
                        let _ = answer.send(reply);
                    }
                    Err(_) => return,
                },
                recv(undo_is_due) -> _ => self.revert(),
                recv(look) -> _ => {
                    self.look_at_offers();
                    next_look = Instant::now() + LOOK_EVERY;
                }
                recv(helpers.run_ended()) -> _ => return,
            }
        }
    }

    /// Notes the command and its outcome in the recording.
    fn record(&self, kind: &CommandKind, reply: &Reply) {
        if let Some(recorder) = &self.recorder {
            let outcome = match (&reply.error, &reply.body) {
                (Some(why), _) => format!("refused: {why}"),
                (None, Some(Body::Reloaded(reloaded))) => answers::line(reloaded),
                (None, _) => "done".to_owned(),
            };
            let kind = match kind {
                CommandKind::Truth { task, flows } => {
                    format!("Truth {{ task: {task:?}, flows: {} }}", flows.len())
                }
                kind => format!("{kind:?}"),
            };
            recorder.note(format!("{kind}: {outcome}"));
        }
    }

    fn reply(&mut self, kind: &CommandKind) -> Reply {
        match kind {
            CommandKind::Confirm => self.confirm(),
            CommandKind::Truth { task, flows } => self.truth(task.as_deref(), flows),
            _ if self.undo.is_some() => Reply::refused(
                Code::Conflict,
                "the last reload is not confirmed yet: run `fenxi ctl confirm`, or wait until it \
                 is undone",
            ),
            CommandKind::Reload { confirm_within } => self.reload(*confirm_within),
            CommandKind::LoadModel { task, dir } => self.load_model(task.as_deref(), dir),
            CommandKind::Offer { task, dir } => self.offer(task.as_deref(), dir),
            CommandKind::Back { task } => self.back(task.as_deref()),
        }
    }

    fn reload(&mut self, confirm_within: Option<Duration>) -> Reply {
        // systemd units of both types accept both messages: for `notify-reload` RELOADING starts
        // the reload, for `notify` it is informational.
        self.notifier.reloading();
        self.reopen_records();
        let outcome = self.take_over(confirm_within);
        self.notifier.say("READY=1");
        let is_applied = outcome.is_ok();
        self.helpers.state().update(|state| match is_applied {
            true => {
                state.reloads.applied += 1;
                state.configured = SystemTime::now();
            }
            false => state.reloads.refused += 1,
        });
        match outcome {
            Ok(outcome) => {
                let reloaded = self.reloaded(outcome, confirm_within);
                info!("{}", answers::line(&reloaded));
                Reply::ok(Body::Reloaded(reloaded))
            }
            Err(refusal) => {
                let reply = answers::refused(&refusal);
                let why = reply.error.as_deref().unwrap_or_default();
                for line in why.lines() {
                    warn!("reload refused: {line}");
                }
                reply
            }
        }
    }

    /// Reads, checks and applies the configuration; all or nothing.
    fn take_over(&mut self, confirm_within: Option<Duration>) -> Result<ReloadOutcome, Refusal> {
        let sources = self.sources.clone();
        let cure = "check why its files cannot be read";
        let read = self
            .helpers
            .run("reading the configuration", READ_WITHIN, cure, move || sources.load())?;
        let read = read.map_err(unreadable)?.live();
        let differences = read.effective().differences(&self.running.effective());
        if !differences.restart.is_empty() {
            self.check_alone(&read)?;
        }
        let next = read.taken_over_by(&self.running).map_err(unreadable)?.live();
        let change = self.prepare(&next.config, Sessions::AsConfigured)?;
        let has_model = change.has_model();
        let generations = self.generations();
        let Applied { before, rules_gone } = self.apply(change)?;
        let running = std::mem::replace(&mut self.running, next);
        let undo = |time| Undo { running, before, generations, at: Instant::now() + time };
        self.undo = confirm_within.map(undo);
        self.note_undo();
        Ok(ReloadOutcome { differences, has_model, rules_gone })
    }

    /// Checks what the next start would refuse, as far as this process can see it.
    fn check_alone(&self, read: &Loaded) -> Result<(), Refusal> {
        let config = read.config.clone();
        self.open_model(&read.config, move |base| {
            Cores::from_config(&config).check()?;
            let mut of_tasks = Vec::new();
            for (number, opening) in base.openings() {
                let config = config.of_task(number);
                let bundle = opening.read(&config, &find_bundle(&config, None)?)?;
                change::check_labels(&config, &bundle, number)?;
                of_tasks.push(labels(&bundle));
            }
            Ok(sinks::check_labels(&config, &of_tasks)?)
        })
    }

    fn prepare(&self, next: &Config, sessions: Sessions) -> Result<Change, Refusal> {
        let config = next.clone();
        self.open_model(next, move |base| Change::prepare(base, &config, sessions))
    }

    /// Runs `work`, which opens the models of a configuration, on a helper's thread.
    fn open_model<T: Send + 'static>(
        &self,
        config: &Config,
        work: impl FnOnce(&Base) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let shipped = Path::new("that ships with fenxi");
        let models = config.tasks.iter();
        let models = models.map(|task| opening_model(task.model.as_deref().unwrap_or(shipped)));
        let what = models.collect::<Vec<_>>().join(", ");
        self.open_model_in(0, &what, config.model.open_timeout, work)
    }

    /// Runs `work`, called `what`, on a helper's thread. If it fails, the attempt counts as refused
    /// for the task that it had come to, which is `task` at first.
    fn open_model_in<T: Send + 'static>(
        &self,
        task: usize,
        what: &str,
        limit: Duration,
        work: impl FnOnce(&Base) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let at = Arc::new(AtomicUsize::new(task));
        let base = Base {
            openings: self.swappers.iter().map(Swapper::opening).collect(),
            now: self.running.config.clone(),
            sinks: self.sinks.clone(),
            at: at.clone(),
            recorder: self.recorder.clone(),
            kernel: self.kernel.clone(),
        };
        let openings = base.openings.clone();
        let opening = || &openings[at.load(Ordering::Relaxed)];
        self.helpers.open_model(opening, what, limit, move || work(&base))
    }

    fn apply(&mut self, change: Change) -> Result<Applied, Refusal> {
        let Change { prepared, kernel, flow, rules, sinks, log_level } = change;
        // The only step that can be refused comes first.
        let prepared = prepared.into_iter();
        let prepared = prepared.map(|task| task.filter(Prepared::is_something));
        let before = Swapper::swap_all(&mut self.swappers, prepared.collect())?;
        if let (Some(editions), Some(labels)) = (&self.kernel, kernel) {
            let generation = self.helpers.state().get().first().model.generation;
            if let Err(why) = editions.commit(&labels, generation) {
                warn!("the kernel goes on to label flows as before: {why}; restart fenxi");
            }
        }
        let mut running = self.rules.lock();
        let mut rules_gone = 0;
        match rules {
            RulesChange::None => running.configure(flow.as_ref())?,
            RulesChange::Back => running.put_back(flow.as_ref())?,
            RulesChange::To(rules) => {
                rules_gone = running.replace(flow.as_ref(), *rules)?;
                self.helpers
                    .state()
                    .update(|state| state.rules_updates.count(RulesOp::Reload, true));
            }
        }
        drop(running);
        sinks.into_iter().for_each(|commit| commit());
        if let Some(level) = log_level
            && let Err(error) = log::set_level(&level)
        {
            // The configuration was checked, so this does not happen.
            warn!("log.level: {error}");
        }
        Ok(Applied { before, rules_gone })
    }

    fn confirm(&mut self) -> Reply {
        if self.undo.take().is_none() {
            return Reply::refused(Code::Conflict, "there is no reload to confirm");
        }
        self.note_undo();
        info!("the last reload is confirmed");
        Reply::ok(Body::Done("the last reload is confirmed".to_owned()))
    }

    /// Undoes the last reload, because nobody has confirmed it in time.
    fn revert(&mut self) {
        let Some(Undo { running, before, generations, .. }) = self.undo.take() else { return };
        match self.go_back(&running.config, before) {
            Ok(()) => {
                self.running = running;
                self.note_returns(&generations);
                self.helpers.state().update(|state| state.reloads.reverted += 1);
                warn!("the reload was not confirmed in time and has been undone");
            }
            Err(refusal) => {
                let why = answers::refused(&refusal).error.unwrap_or_default();
                warn!("the reload was not confirmed in time and cannot be undone: {why}");
            }
        }
        self.note_undo();
    }

    /// Brings the models of before back, and what else this configuration says.
    fn go_back(&mut self, config: &Config, before: Vec<Option<Previous>>) -> Result<(), Refusal> {
        let mut afresh: Vec<_> =
            before.iter().map(|it| it.as_ref().and_then(Previous::afresh)).collect();
        let replacing = self.generations();
        let change = self.prepare(config, Sessions::Again(before));
        let Err(why) = change.and_then(|change| self.apply(change)) else { return Ok(()) };
        // Some workers may have their sessions back, while a device of another one hangs.
        let now = self.generations();
        for (task, afresh) in afresh.iter_mut().enumerate() {
            afresh.take_if(|_| now[task] != replacing[task]);
        }
        if afresh.iter().all(Option::is_none) {
            return Err(why);
        }
        let said = answers::refused(&why).error.unwrap_or_default();
        warn!("{said}; what was in use before the reload is opened again");
        let change = self.prepare(config, Sessions::Again(afresh))?;
        self.apply(change).map(drop)
    }

    fn load_model(&mut self, task: Option<&str>, dir: &Path) -> Reply {
        let task = match self.task_called(task) {
            Ok(task) => task,
            Err(why) => return Reply::refused(Code::Invalid, why),
        };
        let (limit, path) = (self.running.config.model.open_timeout, dir.to_owned());
        let work = move |base: &Base| Change::model(base, task, &path);
        let change = self.open_model_in(task, &opening_model(dir), limit, work);
        match change.and_then(|change| self.apply(change)) {
            Ok(_) => {
                let done = format!("{}: now in use", dir.display());
                info!("model {done}");
                Reply::ok(Body::Done(done))
            }
            Err(refusal) => {
                let reply = answers::refused(&refusal);
                let why = reply.error.as_deref().unwrap_or_default();
                warn!("model {}: refused, the old model stays in use: {why}", dir.display());
                reply
            }
        }
    }

    /// The number of the task of this name, or of the only one.
    fn task_called(&self, name: Option<&str>) -> Result<usize, String> {
        let tasks = &self.running.config.tasks;
        let names = tasks.iter().map(|task| task.name.as_str());
        let listed = names.clone().collect::<Vec<_>>().join(", ");
        match name {
            None if tasks.len() == 1 => Ok(0),
            None => Err(format!("name the task whose model it is with --task: {listed}")),
            Some(name) => names
                .clone()
                .position(|it| it == name)
                .ok_or_else(|| format!("there is no task {name}; there are {listed}")),
        }
    }

    fn note_undo(&self) {
        let undone_at = self.undo.as_ref().map(|undo| undo.at);
        self.helpers.state().update(|state| state.undone_at = undone_at);
    }

    /// Reopens the record files, even if the configuration is refused: log rotation may have moved
    /// them away.
    fn reopen_records(&self) {
        if self.sinks.has_files() {
            self.sinks.reopen(Box::new(|opened| {
                if let Err(why) = opened {
                    warn!("records continue in the old file: {why}");
                }
            }));
        }
    }
}
