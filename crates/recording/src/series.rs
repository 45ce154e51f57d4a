//! What an analytics worker records: its rounds and swaps are steps of the recording.

use analytics::{Manager, Refused, Round, Standby, Task};

use super::counts;
use super::event::{Counts, Event, Who, encode_round};
use super::settings::{DeviceFacts, SeriesConfig, SwapForm};
use super::step::StepRecorder;
use super::tape::Recorder;

/// Records the steps of one analytics worker, which has one task: runs of several are not recorded.
pub struct SeriesRecorder(StepRecorder);

impl SeriesRecorder {
    /// `number` is the analytics manager's, through all pipelines.
    pub fn new(recorder: &Recorder, number: usize) -> SeriesRecorder {
        SeriesRecorder(StepRecorder::new(recorder, Who::Series(number as u32)))
    }

    /// Whether steps are recorded: then a thread that polls releases the lock between rounds.
    pub fn is_open(&self) -> bool {
        self.0.is_open()
    }

    /// [`Manager::round`]; `draining` says whether [`Manager::drain`] was called before.
    pub fn round(&mut self, manager: &mut Manager, now_ns: u64, draining: bool) -> Round {
        let number = self.0.number();
        self.0.body.clear();
        let act = |manager: &mut Manager| manager.round(now_ns);
        self.0.step_then(manager, of, act, |body, shared| {
            let mut calls = shared.calls();
            let encoded = (calls.count, calls.encoded.as_slice());
            encode_round(body, number, now_ns, draining, &calls.costs, encoded);
            calls.count = 0;
            calls.encoded.clear();
            calls.costs.clear();
        })
    }

    /// [`Task::prepare`]; `change` has the configurations from which the settings were made.
    ///
    /// # Errors
    /// The task's.
    pub fn prepare(
        &mut self,
        task: &mut Task,
        mut standby: Standby,
        change: Option<&(analytics::Config, analytics::Config)>,
    ) -> Result<(), Refused> {
        if self.0.is_open() {
            let model = standby.model.as_mut().map(|model| {
                let devices = model.accelerators.iter_mut().map(DeviceFacts::of);
                (devices.collect(), model.generation)
            });
            let change = change.filter(|_| standby.settings.is_some()).cloned();
            let settings = change.map(|(old, new)| (SeriesConfig(old), SeriesConfig(new)));
            let swap = SwapForm { model, settings };
            self.describe(|manager| Event::Prepare { manager, swap });
        }
        self.0.step(task, of_task, |task| task.prepare(standby))
    }

    /// [`Task::commit`].
    pub fn commit(&mut self, task: &mut Task) {
        self.describe(|manager| Event::Commit { manager });
        self.0.step(task, of_task, Task::commit);
    }

    /// [`Task::abort`].
    pub fn abort(&mut self, task: &mut Task) -> Option<Standby> {
        self.describe(|manager| Event::Abort { manager });
        self.0.step(task, of_task, Task::abort)
    }

    /// Ends the recording of this thread.
    pub fn finish(mut self, manager: &Manager) {
        self.0.leave(|classes| of(manager, classes));
    }

    fn describe(&mut self, event: impl FnOnce(u32) -> Event) {
        self.0.body.clear();
        event(self.0.number()).encode(&mut self.0.body);
    }
}

fn of(manager: &Manager, classes: &[String]) -> Counts {
    of_task(&manager.tasks()[0], classes)
}

fn of_task(task: &Task, _: &[String]) -> Counts {
    counts::of_series(task.counters())
}
