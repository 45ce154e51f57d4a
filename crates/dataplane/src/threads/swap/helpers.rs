//! Helper threads: work that may never end, with a deadline.
//!
//! Opening a model runs foreign code: a library, a driver, the model's graph. Reading a file may
//! wait for a device or a server. Nothing can stop such a thread from outside. So the caller waits
//! until the deadline at most, and not at all once the run ends. A thread that is late is
//! abandoned: it goes on and keeps its memory, and [`SharedState`] reports it to health and metrics
//! until it ends. The thread never holds the caller's state, so the next attempt can start a new
//! one.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, select};
use tracing::{info, warn};

use super::prepared::Refusal;
use crate::placement::Cores;
use crate::threads::state::{Abandoned, SharedState};
use crate::{Error, leave_threads_behind};

/// How a model gets more time to be opened.
pub const MORE_TIME: &str = "raise model.open_timeout_s if it needs longer";

/// Starts helpers, and waits for them.
#[derive(Clone)]
pub struct Helpers {
    cores: Cores,
    state: Arc<SharedState>,
    run_ended: Receiver<Infallible>,
}

/// What a helper does that opens the model of a bundle.
pub fn opening_model(dir: &Path) -> String {
    format!("opening the model {}", dir.display())
}

/// Callers wait for helpers until this is dropped.
pub struct RunGuard {
    _sender: Sender<Infallible>,
}

/// A helper under way.
pub struct Helper {
    id: u64,
    what: String,
    began: Instant,
    state: Arc<SharedState>,
    has_ended: Arc<AtomicBool>,
}

impl Helpers {
    /// For a run on these cores. Callers wait for helpers until the guard is dropped.
    pub fn new(cores: &Cores, state: Arc<SharedState>) -> (Helpers, RunGuard) {
        let (sender, run_ended) = bounded(0);
        let helpers = Helpers { cores: cores.clone(), state, run_ended };
        (helpers, RunGuard { _sender: sender })
    }

    /// The cores of the data path; helpers run on others.
    pub fn cores(&self) -> &Cores {
        &self.cores
    }

    /// The state of the run.
    pub fn state(&self) -> &Arc<SharedState> {
        &self.state
    }

    /// Disconnected once the run ends.
    pub fn run_ended(&self) -> &Receiver<Infallible> {
        &self.run_ended
    }

    /// Does `work`, called `what`, on a separate thread, and waits at most `limit` for the outcome.
    /// `cure` says how to raise the limit.
    ///
    /// # Errors
    /// It was late, there is no thread, or it died; or the run ends.
    pub fn run<T: Send + 'static>(
        &self,
        what: &str,
        limit: Duration,
        cure: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let (done, outcome) = bounded(1);
        // If nobody waits for the outcome any more, it is dropped on the helper's thread.
        let helper = self.start(what, move || drop(done.send(work())))?;
        let died = || Error::software(format!("{what}: the thread for it died"));
        select! {
            recv(outcome) -> outcome => outcome.map_err(|_| died().into()),
            recv(self.run_ended) -> _ => {
                leave_threads_behind();
                Err(Refusal::RunEnded)
            }
            default(limit) => match outcome.try_recv() {
                Ok(outcome) => Ok(outcome),
                Err(_) => Err(helper.abandon(limit, cure).into()),
            },
        }
    }

    /// Starts `work`, called `what`, on a thread of its own.
    ///
    /// # Errors
    /// No thread.
    pub fn start(&self, what: &str, work: impl FnOnce() + Send + 'static) -> Result<Helper, Error> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let helper = || Helper {
            id: NUMBER.load(Ordering::Relaxed),
            what: what.to_owned(),
            began: Instant::now(),
            state: self.state.clone(),
            has_ended: Arc::default(),
        };
        NUMBER.fetch_add(1, Ordering::Relaxed);
        let (ours, cores) = (helper(), self.cores.clone());
        let theirs = Helper { has_ended: ours.has_ended.clone(), id: ours.id, ..helper() };
        std::thread::Builder::new()
            .name("helper".to_owned())
            .spawn(move || {
                // Dropped at the end of the work, also if it panics.
                let _ending = EndNote(theirs);
                cores.keep_off();
                work();
            })
            .map_err(|error| Error::unavailable(format!("{what}: no thread for it: {error}")))?;
        Ok(ours)
    }
}

impl Helper {
    /// Gives the helper up after `limit`. Returns the error, in which `cure` says how to allow more
    /// time.
    pub fn abandon(&self, limit: Duration, cure: &str) -> Error {
        let Helper { id, what, .. } = self;
        leave_threads_behind();
        self.state.update(|state| {
            // It may have ended at this very moment.
            if !self.has_ended.load(Ordering::Relaxed) {
                state.abandoned.push(Abandoned { id: *id, what: what.clone(), since: self.began });
            }
        });
        warn!(
            "{what}: given up after {} s; the thread goes on and keeps its memory until it or \
             fenxi ends",
            limit.as_secs_f64()
        );
        Error::unavailable(format!(
            "{what}: not done within {} s and given up; {cure}",
            limit.as_secs_f64()
        ))
    }
}

/// Notes the end of a helper, on its thread.
struct EndNote(Helper);

impl Drop for EndNote {
    fn drop(&mut self) {
        let Helper { id, what, began, state, has_ended } = &self.0;
        let mut was_abandoned = false;
        state.update(|state| {
            has_ended.store(true, Ordering::Relaxed);
            let before = state.abandoned.len();
            state.abandoned.retain(|abandoned| abandoned.id != *id);
            was_abandoned = state.abandoned.len() < before;
        });
        if was_abandoned {
            let seconds = began.elapsed().as_secs_f64();
            info!("{what}: the thread that was given up has ended, after {seconds:.1} s");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::opening::tasks::OpenTask;
    use config::Sources;

    const LONG: Duration = Duration::from_secs(60);

    fn helpers() -> (Helpers, RunGuard) {
        let config = Sources::named(None, &[]).load().unwrap().config;
        let tasks = OpenTask::open_all(&config, None).unwrap();
        let state = Arc::new(SharedState::new(&tasks));
        Helpers::new(&Cores::from_config(&config), state)
    }

    fn abandoned(helpers: &Helpers) -> Vec<String> {
        let abandoned = helpers.state.get().abandoned.into_iter();
        abandoned.map(|it| it.what).collect()
    }

    #[test]
    fn a_late_helper_is_abandoned_until_it_ends_and_others_work_meanwhile() {
        let (helpers, _lasts) = helpers();
        let (end, ends) = channel::<()>();
        let limit = Duration::from_millis(5);
        let late = helpers.run("the late one", limit, "wait longer", move || ends.recv());
        let Err(Refusal::Because(why)) = late else {
            panic!("not late");
        };
        assert_eq!(
            why.to_string(),
            "the late one: not done within 0.005 s and given up; wait longer"
        );
        assert!(matches!(why, Error::Unavailable(_)));
        assert_eq!(abandoned(&helpers), ["the late one"]);
        assert!(matches!(helpers.run("another", LONG, "", || 7), Ok(7)));
        assert_eq!(abandoned(&helpers), ["the late one"]);
        drop(end);
        let began = Instant::now();
        while !abandoned(&helpers).is_empty() {
            assert!(began.elapsed() < LONG, "it is never noted that it ended");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn the_end_of_the_run_ends_the_waiting() {
        let (helpers, lasts) = helpers();
        let (_keep, ends) = channel::<()>();
        drop(lasts);
        let ended = helpers.run("x", LONG, "", move || ends.recv());
        assert!(matches!(ended, Err(Refusal::RunEnded)));
    }

    #[test]
    fn a_helper_that_dies_is_named() {
        let (helpers, _lasts) = helpers();
        let died: Result<(), _> = helpers.run("x", LONG, "", || panic!("on purpose"));
        let Err(Refusal::Because(why)) = died else {
            panic!("no failure");
        };
        assert_eq!(why, Error::Software("x: the thread for it died".to_owned()));
    }
}
