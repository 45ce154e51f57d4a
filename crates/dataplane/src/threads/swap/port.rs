//! The channel between the driver of swaps and one analytics worker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use analytics::{Manager, Refused, Retired, Standby};
use crossbeam_channel::{Receiver, Sender, bounded, select};

use super::helpers::Helpers;
use super::prepared::Refusal;
use crate::Error;
use crate::placement::Thread;
use crate::threads::recorder::{Change, SeriesRecorder};

/// The most steps, and answers, that can be under way: prepare, abort, commit.
const STEPS: usize = 3;

/// A step that the driver asks for.
pub(super) enum Step {
    /// With the configurations from which its settings were made, for a recording.
    Prepare(Standby, Option<Arc<Change>>),
    Commit,
    Abort,
    /// Whether the canary is sound.
    Look,
}

/// The worker's answer; to a commit it comes once all of the worker's devices use the new model.
pub(super) enum Answer {
    Accepted,
    Refused(Refused),
    Retired(Retired),
    /// Why a device of the canary has failed, if one has.
    Looked(Option<String>),
    /// With what was prepared, so that the driver drops it.
    Aborted {
        _standby: Option<Standby>,
    },
}

/// The analytics worker's end.
pub struct SwapPort {
    /// Number of the task.
    task: usize,
    steps: Receiver<Step>,
    answers: Sender<Answer>,
}

impl SwapPort {
    /// Between two rounds: takes the next step, and hands back devices and settings that are no
    /// longer in use. Costs two loads if there is neither. `recorder` takes the steps.
    pub fn serve(&self, manager: &mut Manager, recorder: &mut dyn SeriesRecorder) {
        let number = self.task;
        if let Some(retired) = manager.tasks_mut()[number].take_retired() {
            self.answer(Answer::Retired(retired));
        }
        let Ok(step) = self.steps.try_recv() else {
            return;
        };
        match step {
            Step::Prepare(standby, change) => {
                let taken = recorder.prepare(manager, number, standby, change.as_deref());
                self.answer(match taken {
                    Ok(()) => Answer::Accepted,
                    Err(refused) => Answer::Refused(refused),
                });
            }
            Step::Commit => recorder.commit(manager, number),
            Step::Abort => {
                let _standby = recorder.abort(manager, number);
                self.answer(Answer::Aborted { _standby });
            }
            Step::Look => {
                let failure = manager.tasks()[number].canary_failure();
                self.answer(Answer::Looked(failure.map(str::to_owned)));
            }
        }
    }

    fn answer(&self, answer: Answer) {
        // There is room for the answers to all steps of a swap; if the driver is gone, the run is
        // about to end.
        let _ = self.answers.try_send(answer);
    }
}

/// The driver's end of one analytics worker.
pub(super) struct Target {
    pub thread: Thread,
    steps: Sender<Step>,
    answers: Receiver<Answer>,
    /// Answers that the worker has not given yet.
    pub owed: usize,
}

impl Target {
    /// Whether the worker has answered all steps of earlier swaps, or does so in time. Late answers
    /// are dropped here.
    pub fn has_finished_the_last(
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

    /// Sends a step. Each step has one answer.
    pub fn send(&mut self, step: Step) -> Result<(), Refusal> {
        self.owed += 1;
        // There is room for all steps of a swap.
        self.steps.try_send(step).map_err(|_| Refusal::RunEnded)
    }

    /// The answer, if it comes in time.
    pub fn answer(&mut self, until: Instant, helpers: &Helpers) -> Result<Option<Answer>, Refusal> {
        select! {
            recv(self.answers) -> answer => match answer {
                Ok(answer) => {
                    self.owed -= 1;
                    Ok(Some(answer))
                }
                Err(_) => Err(Refusal::RunEnded),
            },
            recv(helpers.run_ended()) -> _ => Err(Refusal::RunEnded),
            default(until.saturating_duration_since(Instant::now())) => Ok(None),
        }
    }

    /// The error for a worker that has not answered within `limit`.
    pub fn is_late(&self, limit: Duration, what: &str) -> Error {
        Error::unavailable(format!("{}; {what}", self.no_answer(limit)))
    }

    /// That the worker has not answered within `limit`.
    pub fn no_answer(&self, limit: Duration) -> String {
        let (thread, limit) = (&self.thread, limit.as_secs_f64());
        format!("{thread}: no answer within {limit} s, a device does not come back")
    }
}

/// Both ends for a task of the worker of this name.
pub(super) fn target(task: usize, thread: &Thread) -> (Target, SwapPort) {
    let (steps, taken) = bounded(STEPS);
    let (given, answers) = bounded(STEPS);
    let target = Target { thread: thread.clone(), steps, answers, owed: 0 };
    let port = SwapPort { task, steps: taken, answers: given };
    (target, port)
}
