//! The script of a replayed round: the recorded answers of its devices and readings of its cost clock.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use accel::{Classification, Device, DeviceError, Sizes};
use analytics::Accelerator;

use super::call::{Call, hash_of};
use super::settings::DeviceFacts;

/// Shared by all devices and clocks of a replay, which runs on one thread.
#[derive(Clone, Default)]
pub struct Script(Arc<Mutex<Lines>>);

#[derive(Default)]
struct Lines {
    calls: VecDeque<Call>,
    costs: VecDeque<u64>,
    /// The first thing that the replay did and the run had not done.
    strayed: Option<String>,
}

impl Script {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For the next round.
    pub fn set(&self, calls: Vec<Call>, costs: Vec<u64>) {
        let mut lines = self.lines();
        lines.calls = calls.into();
        lines.costs = costs.into();
    }

    /// After the round: how it differed from the recorded one.
    pub fn strayed(&self) -> Option<String> {
        let mut lines = self.lines();
        let (calls, costs) = (lines.calls.len(), lines.costs.len());
        lines.calls.clear();
        lines.costs.clear();
        let left = || match (calls, costs) {
            (0, 0) => None,
            (0, costs) => Some(format!("{costs} readings of the cost clock are left over")),
            (calls, _) => Some(format!("{calls} calls of devices are left over")),
        };
        lines.strayed.take().or_else(left)
    }

    /// The clock of a manager.
    pub fn cost_clock(&self) -> impl Fn() -> u64 + Send + 'static {
        let script = self.clone();
        move || {
            let mut lines = script.lines();
            lines.costs.pop_front().unwrap_or_else(|| {
                lines.stray("the cost clock is read more often than recorded".to_owned());
                0
            })
        }
    }

    /// Devices as an analytics manager is given them.
    pub fn accelerators(&self, facts: &[DeviceFacts]) -> Vec<Accelerator> {
        let accelerator = |facts: &DeviceFacts| Accelerator {
            device: Box::new(ScriptedDevice::new(facts, self.clone())),
            profile: facts.profile(),
            deadline: facts.deadline,
            lane: 0,
        };
        facts.iter().map(accelerator).collect()
    }
}

impl Lines {
    fn stray(&mut self, what: String) {
        self.strayed.get_or_insert(what);
    }
}

/// A device that answers as one did before.
struct ScriptedDevice {
    requested: String,
    effective: String,
    sizes: Sizes,
    row_len: usize,
    context: Vec<f32>,
    context_len: usize,
    input: Vec<f32>,
    results: Vec<Classification>,
    is_idle: bool,
    script: Script,
}

impl ScriptedDevice {
    fn new(facts: &DeviceFacts, script: Script) -> ScriptedDevice {
        let sizes = facts.sizes.clone();
        ScriptedDevice {
            requested: facts.requested.clone(),
            effective: facts.effective.clone(),
            input: vec![0.0; sizes.largest() * facts.row_len],
            row_len: facts.row_len,
            context: vec![0.0; sizes.largest() * facts.context],
            context_len: facts.context,
            sizes,
            results: Vec::new(),
            is_idle: true,
            script,
        }
    }
}

impl Device for ScriptedDevice {
    fn requested(&self) -> &str {
        &self.requested
    }

    fn effective(&self) -> &str {
        &self.effective
    }

    fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    fn is_idle(&self) -> bool {
        self.is_idle
    }

    fn input(&mut self, rows: usize) -> &mut [f32] {
        &mut self.input[..rows * self.row_len]
    }

    fn context(&mut self, rows: usize) -> &mut [f32] {
        &mut self.context[..rows * self.context_len]
    }

    fn submit(&mut self, rows: usize) -> Result<(), DeviceError> {
        let hash = |numbers: &[f32], row_len| numbers.get(..rows * row_len).map_or(0, hash_of);
        let input =
            hash(&self.input, self.row_len) ^ hash(&self.context, self.context_len).rotate_left(1);
        let mut lines = self.script.lines();
        let device = &self.requested;
        match lines.calls.pop_front() {
            Some(Call::Submitted {
                rows: was,
                input: had,
                refused,
            }) => {
                if was != rows {
                    lines.stray(format!("device {device} is given {rows} rows, not {was}"));
                } else if had != input {
                    lines.stray(format!("device {device} is given other series"));
                }
                self.is_idle = refused.is_some();
                refused.map_or(Ok(()), Err)
            }
            other => {
                lines.stray(format!("device {device} is given a batch"));
                if let Some(other) = other {
                    lines.calls.push_front(other);
                }
                Ok(())
            }
        }
    }

    fn poll(&mut self) -> Option<Result<&[Classification], DeviceError>> {
        let mut lines = self.script.lines();
        match lines.calls.pop_front() {
            Some(Call::Nothing) => None,
            Some(Call::Results(results)) => {
                self.is_idle = true;
                self.results = results;
                Some(Ok(&self.results))
            }
            Some(Call::Failed(error)) => {
                self.is_idle = true;
                Some(Err(error))
            }
            other => {
                let device = &self.requested;
                lines.stray(format!("device {device} is asked for results"));
                if let Some(other) = other {
                    lines.calls.push_front(other);
                }
                None
            }
        }
    }
}
