//! Changes under way: another configuration, and another model. Read this beside `docs/control.md`.
//!
//! A thread of its own takes one kind after the other. For a reload it reads all layers again and checks the outcome twice:
//! by itself, as the next start would have it, and mixed with the keys that only a start can change, as this run will. Then
//! it makes all that is needed, and only when nothing can fail any more brings it into use:
//!
//! ```text
//! read ─ check ─ mix ─ check ─ open what is new ─┬─ analytics threads: offered to all, then changed over
//!                                                ├─ flow managers:     settings between two bursts
//!                                                └─ sinks:             what each has prepared
//! ```
//!
//! Whatever reads files or opens models may take for ever, so it is done by helpers that have deadlines; the thread itself
//! waits for nothing without one, keeps its state, and is there for the next kind. Once the run ends it waits for nothing.
//!
//! What [`Change`] holds is what live keys reach; a test holds the catalogue against it. A reload that is to be confirmed
//! leaves behind how to undo it, with the old model's sessions, which stay warm until then.

mod answers;
mod change;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use config::{Config, ConfigErrors, Differences, Loaded, Sources};
use crossbeam_channel::{Receiver, Sender, bounded, never, select};
use dataplane::Error;
use dataplane::bundle::find_bundle;
use dataplane::placement::Cores;
use dataplane::settings::{SettingsSender, WorkerEnded};
use dataplane::state::SharedState;
use dataplane::swap::helpers::Helpers;
use dataplane::swap::{Previous, Refusal, Swapper};
use recording::Recorder;
use tracing::{info, warn};

use super::notify::Notifier;
use crate::control::protocol::{Body, Code, Reply};
use crate::exit::Failure;
use crate::log;
use crate::sinks::Sinks;
use change::{Base, Change, Sessions};

/// How long the files of a configuration may take to be read: they are small, so only a file server that does not answer
/// takes longer.
const READ_WITHIN: Duration = Duration::from_secs(10);

/// What is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandKind {
    /// Read the configuration again.
    Reload {
        /// Undo it unless it is confirmed within this time.
        confirm_within: Option<Duration>,
    },
    /// The last reload is to stay.
    Confirm,
    /// Take the model of another bundle.
    LoadModel(PathBuf),
}

/// An kind, and who waits for the answer.
pub struct Command {
    pub kind: CommandKind,
    pub answer: Box<dyn FnOnce(Reply) + Send>,
}

/// All that the thread works with.
pub struct Reloader {
    pub sources: Sources,
    /// What the run works by.
    pub running: Loaded,
    pub helpers: Helpers,
    /// Of the model.
    pub classes: Arc<[String]>,
    pub swapper: Swapper,
    pub workers: Vec<SettingsSender>,
    /// They change with the configuration, and open their files anew with every reload.
    pub sinks: Arc<Sinks>,
    pub state: Arc<SharedState>,
    pub notifier: Notifier,
    /// The last reload, until it is confirmed.
    pub undo: Option<Undo>,
    /// Where orders are noted.
    pub recorder: Option<Recorder>,
}

/// How a reload is undone.
pub struct Undo {
    running: Loaded,
    /// The sessions that the reload replaced.
    before: Option<Previous>,
    /// When.
    at: Instant,
}

/// What a reload came to.
struct Outcome {
    differences: Differences,
    has_model: bool,
}

/// The thread.
pub struct Running {
    thread: JoinHandle<()>,
    commands: Sender<Command>,
}

impl Running {
    /// Starts it.
    ///
    /// # Errors
    /// No thread.
    pub fn start(reloader: Reloader) -> Result<Running, Failure> {
        let (commands, run) = bounded(1);
        let thread = std::thread::Builder::new()
            .name("reload".to_owned())
            .spawn(move || {
                reloader.helpers.cores().keep_off();
                reloader.run(&run);
            })
            .map_err(|error| Failure::unavailable(format!("cannot start the reload thread: {error}")))?;
        Ok(Running { thread, commands })
    }

    /// Where orders go; while one is under way, one more.
    pub fn commands(&self) -> &Sender<Command> {
        &self.commands
    }

    /// Whether the thread has ended. It does soon after the run is over for helpers.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }
}

/// Why a configuration cannot be read.
fn unreadable(errors: ConfigErrors) -> Error {
    match errors {
        ConfigErrors::Unreadable(message) => Error::NoInput(message),
        ConfigErrors::Invalid(lines) => Error::Config(lines.join("\n")),
    }
}

impl Reloader {
    fn run(mut self, commands: &Receiver<Command>) {
        let helpers = self.helpers.clone();
        loop {
            let undo_is_due = match &self.undo {
                Some(undo) => crossbeam_channel::at(undo.at),
                None => never(),
            };
            select! {
                recv(commands) -> command => match command {
                    Ok(Command { kind, answer }) => {
                        let reply = self.reply(&kind);
                        self.record(&kind, &reply);
                        answer(reply);
                    }
                    Err(_) => return,
                },
                recv(undo_is_due) -> _ => self.revert(),
                recv(helpers.run_ended()) -> _ => return,
            }
        }
    }

    /// For whoever replays the recording.
    fn record(&self, kind: &CommandKind, reply: &Reply) {
        if let Some(recorder) = &self.recorder {
            let outcome = match (&reply.error, &reply.body) {
                (Some(why), _) => format!("refused: {why}"),
                (None, Some(Body::Reloaded(reloaded))) => reloaded.line(),
                (None, _) => "done".to_owned(),
            };
            recorder.note(format!("{kind:?}: {outcome}"));
        }
    }

    fn reply(&mut self, kind: &CommandKind) -> Reply {
        match kind {
            CommandKind::Confirm => self.confirm(),
            _ if self.undo.is_some() => Reply::refused(
                Code::Conflict,
                "the last reload is not confirmed yet: run `fenxi ctl confirm`, or wait until it is undone",
            ),
            CommandKind::Reload { confirm_within } => self.reload(*confirm_within),
            CommandKind::LoadModel(dir) => self.load_model(dir),
        }
    }

    fn reload(&mut self, confirm_within: Option<Duration>) -> Reply {
        // Units of either type take both words: notify-reload the first as their cue, notify as the answer to theirs.
        self.notifier.reloading();
        self.reopen_records();
        let outcome = self.take_over(confirm_within);
        self.notifier.say("READY=1");
        let is_applied = outcome.is_ok();
        self.state.update(|state| match is_applied {
            true => {
                state.reloads.applied += 1;
                state.configured = SystemTime::now();
            }
            false => state.reloads.refused += 1,
        });
        match outcome {
            Ok(outcome) => {
                let reloaded = self.reloaded(outcome, confirm_within);
                info!("{}", reloaded.line());
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

    /// Reads, checks, and brings into use; all or nothing.
    fn take_over(&mut self, confirm_within: Option<Duration>) -> Result<Outcome, Refusal> {
        let sources = self.sources.clone();
        let cure = "check why its files cannot be read";
        let read = self
            .helpers
            .run("reading the configuration", READ_WITHIN, cure, move || {
                sources.load()
            })?;
        let read = read.map_err(unreadable)?.live();
        let differences = read.effective().differences(&self.running.effective());
        if !differences.restart.is_empty() {
            self.check_alone(&read)?;
        }
        let next = read
            .taken_over_by(&self.running)
            .map_err(unreadable)?
            .live();
        let change = self.prepare(&next.config, Sessions::AsConfigured)?;
        let has_model = change.prepared.has_model();
        let before = self.apply(change)?;
        let running = std::mem::replace(&mut self.running, next);
        self.undo = confirm_within.map(|time| Undo {
            running,
            before,
            at: Instant::now() + time,
        });
        self.note_undo();
        Ok(Outcome {
            differences,
            has_model,
        })
    }

    /// What the next start would refuse, as far as it can be told from here.
    fn check_alone(&self, read: &Loaded) -> Result<(), Refusal> {
        let (config, classes) = (read.config.clone(), self.classes.clone());
        self.open_model(&read.config, move |base| {
            Cores::of(&config).check()?;
            let dir = find_bundle(&config, None)?;
            let bundle = base.opening.read(&config, &dir)?;
            Ok(change::check_labels(&config, &bundle, &classes)?)
        })
    }

    fn prepare(&self, next: &Config, sessions: Sessions) -> Result<Change, Refusal> {
        let config = next.clone();
        self.open_model(next, move |base| Change::prepare(base, &config, sessions))
    }

    /// Does what opens the model of a configuration, on the thread of a helper.
    fn open_model<T: Send + 'static>(
        &self,
        config: &Config,
        work: impl FnOnce(&Base) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let dir = config.model.path.clone();
        let dir = dir.unwrap_or_else(|| PathBuf::from("that ships with fenxi"));
        self.open_model_in(&dir, config.model.open_timeout, work)
    }

    fn open_model_in<T: Send + 'static>(
        &self,
        dir: &Path,
        limit: Duration,
        work: impl FnOnce(&Base) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let base = Base {
            opening: self.swapper.opening(),
            now: self.running.config.clone(),
            sinks: self.sinks.clone(),
        };
        let opening = base.opening.clone();
        self.helpers
            .open_model(&opening, dir, limit, move || work(&base))
    }

    /// Brings it into use; gives the sessions that were replaced.
    fn apply(&mut self, change: Change) -> Result<Option<Previous>, Refusal> {
        let Change {
            prepared,
            flow,
            sinks,
            log_level,
        } = change;
        let mut before = None;
        // The only step that can be refused comes first.
        if prepared.is_something() {
            before = self.swapper.swap(prepared)?;
        }
        if let Some(flow) = flow {
            let ended = |WorkerEnded| Refusal::RunEnded;
            for worker in &self.workers {
                worker.send(flow.clone()).map_err(ended)?;
            }
            for worker in &self.workers {
                worker.taken(self.helpers.run_ended()).map_err(ended)?;
            }
        }
        sinks.into_iter().for_each(|commit| commit());
        if let Some(level) = log_level
            && let Err(error) = log::set_level(&level)
        {
            // The configuration was checked, so this does not happen.
            warn!("log.level: {error}");
        }
        Ok(before)
    }

    fn confirm(&mut self) -> Reply {
        if self.undo.take().is_none() {
            return Reply::refused(Code::Conflict, "there is no reload to confirm");
        }
        self.note_undo();
        info!("the last reload is confirmed");
        Reply::ok(Body::Done("the last reload is confirmed".to_owned()))
    }

    /// Nobody has confirmed the last reload: back to what was before.
    fn revert(&mut self) {
        let Some(Undo {
            running, before, ..
        }) = self.undo.take()
        else {
            return;
        };
        let sessions = before.map_or(Sessions::AsTheyAre, Sessions::Again);
        let change = self.prepare(&running.config, sessions);
        match change.and_then(|change| self.apply(change)) {
            Ok(_) => {
                self.running = running;
                self.state.update(|state| state.reloads.reverted += 1);
                warn!("the reload was not confirmed in time and has been undone");
            }
            Err(refusal) => {
                let why = answers::refused(&refusal).error.unwrap_or_default();
                warn!("the reload was not confirmed in time and cannot be undone: {why}");
            }
        }
        self.note_undo();
    }

    fn load_model(&mut self, dir: &Path) -> Reply {
        let (limit, path) = (self.running.config.model.open_timeout, dir.to_owned());
        let change = self.open_model_in(dir, limit, move |base| Change::model(base, &path));
        match change.and_then(|change| self.apply(change)) {
            Ok(_) => {
                let done = format!("{}: now in use", dir.display());
                info!("model {done}");
                Reply::ok(Body::Done(done))
            }
            Err(refusal) => {
                let reply = answers::refused(&refusal);
                let why = reply.error.as_deref().unwrap_or_default();
                warn!(
                    "model {}: refused, the old model stays in use: {why}",
                    dir.display()
                );
                reply
            }
        }
    }

    fn note_undo(&self) {
        let undone_at = self.undo.as_ref().map(|undo| undo.at);
        self.state.update(|state| state.undone_at = undone_at);
    }

    /// For whoever moved the file of records away, whatever becomes of the configuration.
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
