//! How one thread takes its steps, whichever manager it has.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::event::{Counts, Event, Who};
use super::tape::{Recorder, Shared, Tape};

/// Interval between two records of a thread's counters.
const COUNTED_EVERY: Duration = Duration::from_millis(250);

/// Records the steps of one thread.
pub struct StepRecorder {
    pub(super) shared: Arc<Shared>,
    who: Who,
    /// False for good once the thread has left the recording.
    is_open: bool,
    /// The event under way.
    pub(super) body: Vec<u8>,
    counted: Instant,
    /// The counters that were written last, at `counted`.
    counts: Counts,
}

impl StepRecorder {
    pub(super) fn new(recorder: &Recorder, who: Who) -> StepRecorder {
        StepRecorder {
            shared: recorder.0.clone(),
            who,
            is_open: recorder.0.lock().enter(),
            body: Vec::new(),
            counted: Instant::now(),
            counts: Counts::new(),
        }
    }

    /// Whether it records.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// The number of the thread's manager.
    pub fn number(&self) -> u32 {
        match self.who {
            Who::Flow(number) | Who::Series(number) => number,
        }
    }

    /// Takes a step whose event is in the body. `counts` lists the manager's counters.
    pub fn step<M, T>(
        &mut self,
        manager: &mut M,
        counts: impl Fn(&M, &[String]) -> Counts,
        act: impl FnOnce(&mut M) -> T,
    ) -> T {
        self.step_then(manager, counts, act, |_, _| {})
    }

    /// The same; `describe` adds to the body what is known only after the step. It must add little, since the size of the
    /// body was checked before.
    pub fn step_then<M, T>(
        &mut self,
        manager: &mut M,
        counts: impl Fn(&M, &[String]) -> Counts,
        act: impl FnOnce(&mut M) -> T,
        describe: impl FnOnce(&mut Vec<u8>, &Shared),
    ) -> T {
        if !self.is_open {
            return act(manager);
        }
        let shared = self.shared.clone();
        let mut tape = shared.lock();
        if !tape.takes(&shared, self.body.len()) {
            self.leave_with(&mut tape, || counts(manager, &shared.classes));
            drop(tape);
            return act(manager);
        }
        let done = act(manager);
        describe(&mut self.body, &shared);
        tape.append(&shared, &self.body);
        if self.counted.elapsed() >= COUNTED_EVERY {
            self.count(&mut tape, counts(manager, &shared.classes));
        }
        done
    }

    /// Ends the recording of this thread.
    pub fn leave(&mut self, counts: impl FnOnce(&[String]) -> Counts) {
        if self.is_open {
            let shared = self.shared.clone();
            let mut tape = shared.lock();
            self.leave_with(&mut tape, || counts(&shared.classes));
        }
    }

    fn leave_with(&mut self, tape: &mut Tape, counts: impl FnOnce() -> Counts) {
        self.is_open = false;
        let (who, counts) = (self.who, counts());
        tape.leave(&self.shared, &Event::Counted { who, counts });
    }

    fn count(&mut self, tape: &mut Tape, counts: Counts) {
        self.counted = Instant::now();
        if counts == self.counts {
            return;
        }
        let who = self.who;
        let event = Event::Counted {
            who,
            counts: counts.clone(),
        };
        self.counts = counts;
        self.body.clear();
        event.encode(&mut self.body);
        tape.append(&self.shared, &self.body);
    }
}
