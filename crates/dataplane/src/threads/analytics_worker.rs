//! An analytics worker: the thread around an analytics manager. It runs rounds and decides how long
//! to sleep between them.
//!
//! A busy thread polls. With nothing to do it spins and yields for some microseconds. Then it
//! sleeps: briefly while a device works on series; until a batch is due or may be full while series
//! wait for their batch; and for `IDLE_SLEEP` while there are no series. In a live run it parks
//! instead, until a flow worker wakes it ([`crate::threads::waker`]). So an idle thread costs
//! little, and the first series after a quiet time is seen within that sleep. The system may add
//! its timer slack to each sleep, 50 µs by default; a thread of a live run asks for less.
//!
//! In a replay at full speed nobody waits for a single label. There the thread gathers: it sleeps
//! until a batch has come together instead of looking at every series as it comes. And there a flow
//! worker may hold packets back until a label is there, so the manager is told not to wait for more
//! series without end ([`Manager::gather`]).

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use analytics::{Counters, Manager, Round};
use crossbeam_utils::Backoff;

use crate::threads::counters::AnalyticsSnapshot;
use crate::threads::recorder::SeriesRecorder;
use crate::threads::run::{PAUSE, Run};
use crate::threads::snapshot::Publisher;
use crate::threads::swap::SwapPort;
use crate::threads::waker::Waiter;

/// Sleep while no series is undecided and nobody would wake the thread.
const IDLE_SLEEP: Duration = Duration::from_micros(450);

/// The longest time to stay parked, and so the longest wait for a snapshot of the counters.
const PARK_MAX: Duration = Duration::from_millis(20);

/// Sleep of a thread that gathers.
const GATHER: Duration = Duration::from_micros(500);

/// How much later than asked the system may wake the thread, ns.
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::new(5_000).unwrap();

/// How others reach an analytics worker between two rounds. Each is optional.
#[derive(Default)]
pub struct Hooks {
    /// Bring another model, or other settings, to a task.
    pub swaps: Vec<SwapPort>,
    /// Takes snapshots of the counters.
    pub telemetry: Option<Publisher<AnalyticsSnapshot>>,
    /// Records the rounds.
    pub recorder: Box<dyn SeriesRecorder>,
}

/// The thread's work.
pub struct AnalyticsWorker {
    /// The manager whose rounds it runs.
    pub manager: Manager,
    /// A replay at full speed: rounds wait for series to gather.
    pub gathers: bool,
    /// State shared with the other threads of the run.
    pub run: Arc<Run>,
    /// How others reach it.
    pub hooks: Hooks,
}

/// Raises the alarm when the thread panics, so that nobody waits for its labels.
struct Alarm(Arc<Run>);

impl Drop for Alarm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.analytics_died.store(true, Ordering::Release);
        }
    }
}

impl AnalyticsWorker {
    /// Runs rounds until the rings are closed and every series is decided; gives what each task has
    /// counted.
    pub fn run(mut self) -> Vec<Counters> {
        let run = self.run.clone();
        let _alarm = Alarm(run.clone());
        if self.gathers {
            self.manager.gather();
        } else {
            // If the system refuses, sleeps are only a little longer.
            let _ = rustix::thread::set_current_timer_slack(Some(TIMER_SLACK_NS));
        }
        let mut idle =
            Idle { backoff: Backoff::new(), waiter: run.waker.waiter(), is_prepared: false };
        while !self.manager.is_done() {
            let drains = run.inputs_open.load(Ordering::Acquire) == 0;
            if drains {
                self.manager.drain();
            }
            self.serve_hooks();
            let now_ns = run.now_ns();
            let before = self.manager.labelled();
            let recorder = &mut self.hooks.recorder;
            let round = recorder.round(&mut self.manager, now_ns, drains);
            if self.manager.labelled() != before {
                run.wake_for_labels();
            }
            self.sleep(round, now_ns, &mut idle);
        }
        if let Some(telemetry) = self.hooks.telemetry {
            telemetry.finish(|snapshot| snapshot.update(&self.manager));
        }
        self.hooks.recorder.leave(&self.manager);
        let tasks = self.manager.tasks().iter();
        tasks.map(|task| task.counters().clone()).collect()
    }

    fn serve_hooks(&mut self) {
        let Hooks { swaps, telemetry, recorder } = &mut self.hooks;
        for swap in swaps.iter() {
            swap.serve(&mut self.manager, recorder.as_mut());
        }
        if let Some(telemetry) = telemetry {
            telemetry.publish(|snapshot| snapshot.update(&self.manager));
        }
    }

    /// Sleeps as long as nothing can be due, or not at all.
    fn sleep(&self, round: Round, now_ns: u64, idle: &mut Idle<'_>) {
        let due = self.manager.time_until_due(now_ns);
        let undecided = self.manager.undecided() > 0;
        if round != Round::Idle || undecided {
            idle.is_prepared = false;
        }
        let is_recorded = self.hooks.recorder.is_open();
        match round {
            Round::Worked => idle.backoff = Backoff::new(),
            Round::Seen if !self.gathers && due.is_zero() => idle.backoff = Backoff::new(),
            _ if self.gathers => std::thread::sleep(GATHER),
            // While a run is recorded, empty rounds would fill the file and hold the lock that
            // other threads need.
            _ if !idle.backoff.is_completed() && !is_recorded => idle.backoff.snooze(),
            _ if undecided => std::thread::sleep(due.max(PAUSE)),
            _ => idle.park(),
        }
    }
}

/// State of a thread with nothing to do.
struct Idle<'a> {
    backoff: Backoff,
    waiter: Option<&'a Waiter>,
    /// The waiter's flag is up: after one more look at the rings the thread may park.
    is_prepared: bool,
}

impl Idle<'_> {
    fn park(&mut self) {
        match self.waiter {
            Some(waiter) if self.is_prepared => waiter.park(PARK_MAX),
            Some(waiter) => {
                waiter.prepare();
                self.is_prepared = true;
            }
            None => std::thread::sleep(IDLE_SLEEP),
        }
    }
}
