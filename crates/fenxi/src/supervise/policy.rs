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

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded, select, tick};
use dataplane::state::{RulesOp, SharedState};
use dataplane::swap::Refusal;
use dataplane::swap::helpers::Helpers;
use policy::Trained;
use tracing::{info, warn};

use crate::control::Call;
use crate::exit::Failure;
use crate::figures::counted;
use crate::protocol::{Body, Code, Reply, Request};
use crate::rules::{Refused, Rules};
pub use running::{RunningRules, SharedRules};
pub use workers::Workers;

/// Maximum changes that wait.
const QUEUE: usize = 4;

/// Interval at which it is checked whether a training is due.
const CHECK_EVERY: Duration = Duration::from_millis(100);

/// Time limit for reading a file of rules and training its index.
const READ_WITHIN: Duration = Duration::from_secs(100);

/// The kind of change that a request asks for, as metrics name it.
fn op(request: &Request) -> Option<RulesOp> {
    match request {
        Request::PolicyChange { .. } => Some(RulesOp::Change),
        Request::PolicyLoad { .. } => Some(RulesOp::Load),
        Request::PolicyUndo {} => Some(RulesOp::Undo),
        _ => None,
    }
}

/// The running policy thread. It ends soon after the helpers' run guard is dropped.
pub struct Running {
    calls: Sender<Call>,
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
        let (calls, called) = bounded(QUEUE);
        let (trained, done) = bounded(1);
        let running = Running { calls, state: helpers.state().clone() };
        let thread = Thread { rules, helpers, trained };
        std::thread::Builder::new()
            .name("policy".to_owned())
            .spawn(move || {
                thread.helpers.cores().keep_off();
                thread.run(&called, &done);
            })
            .map_err(|error| {
                Failure::unavailable(format!("cannot start the policy thread: {error}"))
            })?;
        Ok(running)
    }

    /// Passes a call on; replies at once if the queue is full.
    pub fn ask(&self, call: Call) {
        let (call, why) = match self.calls.try_send(call) {
            Ok(()) => return,
            Err(TrySendError::Full(call)) => (call, BUSY),
            Err(TrySendError::Disconnected(call)) => (call, "the run is shutting down"),
        };
        if let Some(op) = op(&call.request) {
            self.state.update(|state| state.rules_updates.count(op, false));
        }
        call.reply(Reply::refused(Code::Busy, why));
    }
}

const BUSY: &str = "busy: other changes of the rules are waiting; send changes in one batch, by \
    `fenxi ctl policy change`";

impl Thread {
    fn run(&self, calls: &Receiver<Call>, trained: &Receiver<Training>) {
        let check = tick(CHECK_EVERY);
        loop {
            let done = select! {
                recv(calls) -> call => match call {
                    Ok(call) => {
                        let reply = self.reply(&call.request);
                        call.reply(reply);
                        Ok(())
                    }
                    Err(_) => return,
                },
                recv(trained) -> training => match training {
                    Ok((id, trained)) => self.rules.lock().adopt(id, trained),
                    Err(_) => return,
                },
                recv(check) -> _ => {
                    let mut rules = self.rules.lock();
                    rules.compact().and_then(|()| rules.open_and_close())
                }
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
        let id = rules.rules.id;
        let Some(training) = rules.rules.store.training(Instant::now()) else { return };
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

    fn reply(&self, request: &Request) -> Reply {
        let body = match request {
            Request::PolicyShow { rule, limit, .. } => {
                self.rules.lock().rules.shown(rule.as_deref(), *limit).map(Body::Policy)
            }
            Request::PolicyClosed { flow, before } => {
                self.rules.lock().rules.closed_for(flow, *before).map(Body::Policy)
            }
            request => self.change(request),
        };
        let reply = match body {
            Ok(body) => Reply::ok(body),
            Err(Refused { code, why }) => Reply::refused(code, why),
        };
        let Some(op) = op(request) else { return reply };
        let is_applied = reply.error.is_none();
        self.helpers.state().update(|state| state.rules_updates.count(op, is_applied));
        match (&reply.error, &reply.body) {
            (Some(why), _) => warn!("rules: refused, they stay as they are: {why}"),
            (None, Some(Body::Done(done))) => info!("{done}"),
            (None, _) => {}
        }
        reply
    }

    fn change(&self, request: &Request) -> Result<Body, Refused> {
        if self.helpers.state().get().undone_at.is_some() {
            let why = "the last reload is not confirmed yet: run `fenxi ctl confirm`, or wait \
                until it is undone";
            return Err(Refused { code: Code::Conflict, why: why.to_owned() });
        }
        match request {
            Request::PolicyChange { changes } => {
                let changed = self.rules.lock().change(changes)?;
                Ok(Body::PolicyChanged(changed))
            }
            Request::PolicyLoad { file } => self.load(file),
            Request::PolicyProfile { name, on } => {
                let rules = self.rules.lock().switch(name, *on)?;
                let state = if *on { "on" } else { "off" };
                let rules = counted(rules, "rule");
                Ok(Body::Done(format!("rules: profile {name} is {state}; it has {rules}")))
            }
            _ => {
                let rules = self.rules.lock().undo()?;
                let done = format!("rules: the last change is undone; {rules} in use");
                Ok(Body::Done(done))
            }
        }
    }

    /// Reading may hang, so a helper does it.
    fn load(&self, file: &Path) -> Result<Body, Refused> {
        let (terms, path) = (self.rules.lock().rules.terms.clone(), file.to_owned());
        let what = format!("reading the rules of {}", file.display());
        let cure = "the disk or server of the file is slow, or the rules are too many for this \
            machine: copy the file to a local disk, or load fewer rules";
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        let read = self
            .helpers
            .run(&what, READ_WITHIN, cure, move || Rules::read(&path, "", terms, &asked));
        // Ends a helper that has missed its deadline.
        stop.store(true, Ordering::Relaxed);
        let rules = read?.map_err(|error| Refused::invalid(error.to_string()))?;
        let (count, file) = (rules.len(), file.display());
        self.rules.lock().replace(None, rules)?;
        Ok(Body::Done(format!("rules: {count} of {file} in use")))
    }
}
