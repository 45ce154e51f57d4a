//! Logs which latency goals cannot be met on the devices of a run, and which tasks leave devices to
//! tasks with shorter goals. `fenxi check --deep` reports the same before the start.

use dataplane::counters::GoalState;
use dataplane::state::SharedState;
use tracing::{info, warn};

use super::collector::Collector;

/// Goals as of the last poll.
#[derive(Default)]
pub struct Goals {
    /// Task by task, in all analytics managers.
    logged: Vec<GoalState>,
}

impl Goals {
    /// Logs changes since the last poll.
    pub fn poll(&mut self, collector: &Collector, state: &SharedState) {
        let mut place = 0;
        for watched in &collector.analytics {
            for (number, task) in watched.latest.tasks.iter().enumerate() {
                if self.has_changed(place, task.goal) {
                    let tasks = state.get().tasks;
                    let name = tasks.get(number).map_or("", |task| task.name.as_str());
                    log(&format!("task {name} of {}", watched.thread), task.goal);
                }
                place += 1;
            }
        }
    }

    /// Keeps the state of a goal and compares it with the one before.
    fn has_changed(&mut self, place: usize, now: GoalState) -> bool {
        if place >= self.logged.len() {
            self.logged.resize(place + 1, GoalState::default());
        }
        let before = std::mem::replace(&mut self.logged[place], now);
        // The turnaround itself changes with each drift of a profile, so it is not compared.
        before.devices_left != now.devices_left
            || before.unreachable.is_some() != now.unreachable.is_some()
    }
}

fn log(what: &str, goal: GoalState) {
    match goal.unreachable {
        Some(turnaround) => warn!(
            "{what}: its goal cannot be promised: on its device the largest batches of all tasks \
            take {:.1} ms together; give the slow tasks another device (task.NAME.devices) or \
            smaller batches (task.NAME.batch_sizes)",
            turnaround.as_secs_f64() * 1e3
        ),
        None if goal.devices_left > 0 => info!(
            "{what}: leaves the first {} of its devices to tasks with shorter goals",
            goal.devices_left
        ),
        None => info!("{what}: its goal can hold, on all of its devices"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_goal_that_comes_into_reach_or_out_of_it_is_told() {
        let mut goals = Goals::default();
        let of = |ms: u64, devices_left| GoalState {
            devices_left,
            unreachable: (ms > 0).then(|| Duration::from_millis(ms)),
        };
        let steps = [of(0, 0), of(5, 0), of(6, 0), of(0, 1), of(0, 1), of(0, 0)];
        let news = steps.map(|step| goals.has_changed(1, step));
        assert_eq!(news, [false, true, false, true, false, true]);
    }
}
