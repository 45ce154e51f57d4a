//! Labels inline, between two bursts: what an analytics worker does between two rounds.

use analytics::{Counters, Task};

use crate::opening::inline::Inline;
use crate::threads::counters::AnalyticsSnapshot;
use crate::threads::recorder::NotRecorded;
use crate::threads::snapshot::Publisher;
use crate::threads::swap::SwapPort;

/// Between two rounds, in which a failed device is probed and a new model comes into use.
const ROUND_EVERY_NS: u64 = 10_000_000;

/// How others reach the tasks that a flow worker answers itself. Each is optional.
#[derive(Default)]
pub struct Hooks {
    /// Bring another model to a task.
    pub swaps: Vec<SwapPort>,
    /// Takes snapshots of the counters.
    pub telemetry: Option<Publisher<AnalyticsSnapshot>>,
}

/// The hooks, and when they were last served.
pub(crate) struct Served {
    hooks: Hooks,
    round_ns: u64,
}

impl Served {
    pub fn new(hooks: Hooks) -> Served {
        Served { hooks, round_ns: 0 }
    }

    /// Between two bursts.
    pub fn serve(&mut self, inline: &mut Inline, now_ns: u64) {
        for swap in &self.hooks.swaps {
            swap.serve(&mut inline.manager, &mut NotRecorded);
        }
        if now_ns.saturating_sub(self.round_ns) >= ROUND_EVERY_NS {
            self.round_ns = now_ns;
            inline.manager.round(now_ns);
        }
        if let Some(telemetry) = &self.hooks.telemetry {
            telemetry.publish(|snapshot| {
                count_answers(inline);
                snapshot.update(&inline.manager);
            });
        }
    }

    /// The worker ends; gives what each task has counted.
    pub fn finish(self, inline: &mut Inline) -> Vec<Counters> {
        count_answers(inline);
        if let Some(telemetry) = self.hooks.telemetry {
            telemetry.finish(|snapshot| snapshot.update(&inline.manager));
        }
        let tasks = inline.manager.tasks().iter();
        tasks.map(|task| task.counters().clone()).collect()
    }
}

fn count_answers(inline: &mut Inline) {
    inline.manager.tasks_mut().iter_mut().for_each(Task::count_answers);
}
