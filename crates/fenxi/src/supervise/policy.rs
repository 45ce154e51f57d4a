//! Changes of the rules during a run: `fenxi ctl policy`. See also `docs/policy.md`.
//!
//! A thread of its own makes one change after the other, off the cores of the data path. A change
//! makes a new version of the policy, which the flow workers take between two bursts; once all have
//! released the old one, it is reused for the next change. Flows look their rule up again with
//! their next packet.
//!
//! ```text
//! fenxi ctl ── queue ── policy thread ── version ── flow workers
//!                        │  ▲                 old version │
//!               filters  ▼  │ index  ◀────────────────────┘
//!                      helper: trains
//! ```
//!
//! When many rules have changed, a helper trains an index while changes go on. The queue is short;
//! a client that finds it full is told to send one large batch, which costs little more than one
//! change.

mod running;
#[cfg(test)]
mod tests;
mod workers;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded, select, tick};
use dataplane::state::{RulesOp, SharedState};
use dataplane::swap::Refusal;
use dataplane::swap::helpers::Helpers;
use policy::Trained;
use tracing::{info, warn};

use crate::exit::Failure;
use crate::protocol::{Body, Code, Reply, Request};
use crate::rules::{Refused, Rules};
pub use running::{NoChange, RunningRules, SharedRules};
pub use workers::Workers;

/// Maximum changes that wait.
const QUEUE: usize = 4;

/// Interval at which it is checked whether a training is due.
const CHECK_EVERY: Duration = Duration::from_millis(100);

/// Time limit for reading a file of rules and training its index.
const READ_WITHIN: Duration = Duration::from_secs(100);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandKind {
    /// Make a batch of changes.
    Change(String),
    /// Replace all rules by the rules of a file.
    Load(PathBuf),
    /// Undo the last of these two.
    Undo,
    Show {
        /// Number or name; `None` for the first ones.
        rule: Option<String>,
        /// Maximum number of rules.
        limit: usize,
    },
}

impl CommandKind {
    /// The command that a request asks for, if it is for the policy thread.
    pub fn from_request(request: Request) -> Result<CommandKind, Request> {
        Ok(match request {
            Request::PolicyChange { changes } => CommandKind::Change(changes),
            Request::PolicyLoad { file } => CommandKind::Load(file),
            Request::PolicyUndo {} => CommandKind::Undo,
            Request::PolicyShow { rule, limit, .. } => CommandKind::Show { rule, limit },
            request => return Err(request),
        })
    }

    fn op(&self) -> Option<RulesOp> {
        match self {
            CommandKind::Change(_) => Some(RulesOp::Change),
            CommandKind::Load(_) => Some(RulesOp::Load),
            CommandKind::Undo => Some(RulesOp::Undo),
            CommandKind::Show { .. } => None,
        }
    }
}

/// A command, and the callback that receives the reply.
struct Command {
    kind: CommandKind,
    answer: Box<dyn FnOnce(Reply) + Send>,
}

/// The running policy thread. It ends soon after the helpers' run guard is dropped.
pub struct Running {
    commands: Sender<Command>,
    state: Arc<SharedState>,
}

/// Identity of rules, and their trained index unless the training failed.
type Training = (u64, Option<Trained>);

struct Thread {
    rules: SharedRules,
    helpers: Helpers,
    trained: Sender<Training>,
}

impl Running {
    /// Starts it.
    pub fn start(rules: SharedRules, helpers: Helpers) -> Result<Running, Failure> {
        let (commands, asked) = bounded(QUEUE);
        let (trained, done) = bounded(1);
        let running = Running { commands, state: helpers.state().clone() };
        let thread = Thread { rules, helpers, trained };
        std::thread::Builder::new()
            .name("policy".to_owned())
            .spawn(move || {
                thread.helpers.cores().keep_off();
                thread.run(&asked, &done);
            })
            .map_err(|error| {
                Failure::unavailable(format!("cannot start the policy thread: {error}"))
            })?;
        Ok(running)
    }

    /// Passes a command on. `answer` gets the reply, at once if the queue is full.
    pub fn ask(&self, kind: CommandKind, answer: impl FnOnce(Reply) + Send + 'static) {
        let answer = Box::new(answer);
        let (command, why) = match self.commands.try_send(Command { kind, answer }) {
            Ok(()) => return,
            Err(TrySendError::Full(command)) => (command, BUSY),
            Err(TrySendError::Disconnected(command)) => (command, "the run is shutting down"),
        };
        if let Some(op) = command.kind.op() {
            self.state.update(|state| state.rules_updates.count(op, false));
        }
        (command.answer)(Reply::refused(Code::Busy, why));
    }
}

const BUSY: &str = "busy: other changes of the rules are waiting; send changes in one batch, by \
    `fenxi ctl policy change`";

impl Thread {
    fn run(&self, commands: &Receiver<Command>, trained: &Receiver<Training>) {
        let check = tick(CHECK_EVERY);
        loop {
            let done = select! {
                recv(commands) -> command => match command {
                    Ok(Command { kind, answer }) => {
                        answer(self.reply(&kind));
                        Ok(())
                    }
                    Err(_) => return,
                },
                recv(trained) -> training => match training {
                    Ok((id, trained)) => self.rules.lock().adopt(id, trained),
                    Err(_) => return,
                },
                recv(check) -> _ => self.rules.lock().compact(),
                recv(self.helpers.run_ended()) -> _ => return,
            };
            if let Err(Refusal::Because(why)) = done {
                warn!("rules: {why}");
            }
            self.train();
        }
    }

    fn train(&self) {
        let mut rules = self.rules.lock();
        let id = rules.id();
        let Some(training) = rules.training(Instant::now()) else { return };
        let sender = self.trained.clone();
        let what = "training the index of the rules";
        let started = self.helpers.start(what, move || {
            let trained = training.run();
            if let Err(error) = &trained {
                warn!("the rules stay with their old index: {error}");
            }
            // Fails if the policy thread has ended.
            let _ = sender.send((id, trained.ok()));
        });
        if let Err(error) = started {
            warn!("{error}");
            let _ = rules.adopt(id, None);
        }
    }

    fn reply(&self, kind: &CommandKind) -> Reply {
        if let CommandKind::Show { rule, limit } = kind {
            return match self.rules.lock().shown(rule.as_deref(), *limit) {
                Ok(shown) => Reply::ok(Body::Policy(shown)),
                Err(why) => refused(&NoChange::Refused(why)),
            };
        }
        let reply = match self.change(kind) {
            Ok(body) => Reply::ok(body),
            Err(why) => refused(&why),
        };
        if let Some(op) = kind.op() {
            self.rules.lock().count(op, reply.error.is_none());
        }
        match (&reply.error, &reply.body) {
            (Some(why), _) => warn!("rules: refused, they stay as they are: {why}"),
            (None, Some(Body::Done(done))) => info!("{done}"),
            (None, _) => {}
        }
        reply
    }

    fn change(&self, kind: &CommandKind) -> Result<Body, NoChange> {
        if self.helpers.state().get().undone_at.is_some() {
            let why = "the last reload is not confirmed yet: run `fenxi ctl confirm`, or wait \
                until it is undone";
            return Err(NoChange::Unconfirmed(why));
        }
        match kind {
            CommandKind::Change(text) => {
                let changed = self.rules.lock().change(text)?;
                Ok(Body::PolicyChanged(changed))
            }
            CommandKind::Load(file) => self.load(file),
            CommandKind::Undo => {
                let rules = self.rules.lock().undo()?;
                let done = format!("rules: the last change is undone; {rules} in use");
                Ok(Body::Done(done))
            }
            CommandKind::Show { .. } => Ok(Body::Done(String::new())),
        }
    }

    /// Reading may hang, so a helper does it.
    fn load(&self, file: &Path) -> Result<Body, NoChange> {
        let (terms, path) = (self.rules.lock().terms().clone(), file.to_owned());
        let what = format!("reading the rules of {}", file.display());
        let cure = "the disk or server of the file is slow, or the rules are too many for this \
            machine: copy the file to a local disk, or load fewer rules";
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        let read = self
            .helpers
            .run(&what, READ_WITHIN, cure, move || Rules::read_until(&path, "", terms, &asked));
        // Ends a helper that has missed its deadline.
        stop.store(true, Ordering::Relaxed);
        let invalid = |error: dataplane::Error| Refused::Invalid(error.to_string());
        let rules = read?.map_err(|error| NoChange::Refused(invalid(error)))?;
        let (count, file) = (rules.len(), file.display());
        self.rules.lock().replace(None, rules)?;
        Ok(Body::Done(format!("rules: {count} of {file} in use")))
    }
}

fn refused(why: &NoChange) -> Reply {
    match why {
        NoChange::Refused(Refused::Invalid(why)) => Reply::refused(Code::Invalid, why),
        NoChange::Refused(Refused::NotFound(why)) => Reply::refused(Code::NotFound, why),
        NoChange::NothingToUndo => Reply::refused(
            Code::Conflict,
            "there is nothing to undo: the last 16 batches of changes and the last file can be \
            undone, each once",
        ),
        NoChange::Unconfirmed(why) => Reply::refused(Code::Conflict, *why),
        NoChange::Workers(Refusal::Because(error)) => Reply::refused(Code::Busy, error.to_string()),
        NoChange::Workers(Refusal::RunEnded) => {
            Reply::refused(Code::Busy, "the run is shutting down")
        }
    }
}
