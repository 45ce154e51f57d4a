//! Devices: one that notes the answers of the device that does the work, and one that gives them
//! again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use accel::{Classification, Device, DeviceError, Sizes};
use analytics::Accelerator;

use crate::event::Call;
use crate::forms::{DeviceFacts, DeviceFailure};
use crate::journal::Shared;

/// FNV-1a of a batch's input: enough to notice that a replay submits other series.
fn hash_of(input: &[f32]) -> u32 {
    input.iter().fold(0x811c_9dc5, |hash, value| (hash ^ value.to_bits()).wrapping_mul(0x0100_0193))
}

/// A wrapper around the device that does the work.
pub struct RecordedDevice {
    pub inner: Box<dyn Device>,
    pub shared: Arc<Shared>,
}

impl Device for RecordedDevice {
    fn requested(&self) -> &str {
        self.inner.requested()
    }

    fn effective(&self) -> &str {
        self.inner.effective()
    }

    fn sizes(&self) -> &Sizes {
        self.inner.sizes()
    }

    fn is_idle(&self) -> bool {
        self.inner.is_idle()
    }

    fn input(&mut self, rows: usize) -> &mut [f32] {
        self.inner.input(rows)
    }

    fn context(&mut self, rows: usize) -> &mut [f32] {
        self.inner.context(rows)
    }

    fn submit(&mut self, rows: usize) -> Result<(), DeviceError> {
        // Where it will be refused there may be no input to look at.
        let has_input = self.shared.is_on() && self.is_idle() && self.sizes().takes(rows);
        let input = match has_input {
            true => {
                hash_of(self.inner.input(rows)) ^ hash_of(self.inner.context(rows)).rotate_left(1)
            }
            false => 0,
        };
        let submitted = self.inner.submit(rows);
        let refused = submitted.as_ref().err().cloned().map(DeviceFailure);
        self.shared.note(|| Call::Submitted { rows, input, refused });
        submitted
    }

    fn poll(&mut self) -> Option<Result<&[Classification], DeviceError>> {
        let answer = self.inner.poll();
        self.shared.note(|| match &answer {
            None => Call::Nothing,
            Some(Ok(results)) => {
                let results = results.iter().map(|it| (it.class, it.confidence));
                Call::Results(results.collect())
            }
            Some(Err(error)) => Call::Failed(DeviceFailure(error.clone())),
        });
        answer
    }

    fn ready_at(&self) -> Option<Instant> {
        self.inner.ready_at()
    }

    fn probabilities(&mut self) -> &[f32] {
        self.inner.probabilities()
    }

    fn is_integer(&self) -> bool {
        self.inner.is_integer()
    }
}

/// What devices answered in a round, and what the cost clock read. All devices and clocks of one
/// replay share it, on one thread.
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
        let Lines { calls, costs, strayed } = std::mem::take(&mut *lines);
        strayed.or_else(|| match (calls.len(), costs.len()) {
            (0, 0) => None,
            (0, costs) => Some(format!("{costs} readings of the cost clock are left over")),
            (calls, _) => Some(format!("{calls} calls of devices are left over")),
        })
    }

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

    pub fn accelerators(&self, facts: &[DeviceFacts]) -> Vec<Accelerator> {
        let accelerator = |facts: &DeviceFacts| Accelerator {
            device: Box::new(ScriptedDevice::new(facts, self.clone())),
            profile: facts.profile(),
            deadline: facts.deadline,
            executor: facts.executor,
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
    facts: DeviceFacts,
    input: Vec<f32>,
    context: Vec<f32>,
    results: Vec<Classification>,
    is_idle: bool,
    script: Script,
}

impl ScriptedDevice {
    fn new(facts: &DeviceFacts, script: Script) -> ScriptedDevice {
        let rows = facts.sizes.largest();
        ScriptedDevice {
            input: vec![0.0; rows * facts.row_len],
            context: vec![0.0; rows * facts.context],
            facts: facts.clone(),
            results: Vec::new(),
            is_idle: true,
            script,
        }
    }
}

impl Device for ScriptedDevice {
    fn requested(&self) -> &str {
        &self.facts.requested
    }

    fn effective(&self) -> &str {
        &self.facts.effective
    }

    fn sizes(&self) -> &Sizes {
        &self.facts.sizes
    }

    fn is_idle(&self) -> bool {
        self.is_idle
    }

    fn input(&mut self, rows: usize) -> &mut [f32] {
        &mut self.input[..rows * self.facts.row_len]
    }

    fn context(&mut self, rows: usize) -> &mut [f32] {
        &mut self.context[..rows * self.facts.context]
    }

    fn submit(&mut self, rows: usize) -> Result<(), DeviceError> {
        let hash = |numbers: &[f32], len| numbers.get(..rows * len).map_or(0, hash_of);
        let context = hash(&self.context, self.facts.context);
        let input = hash(&self.input, self.facts.row_len) ^ context.rotate_left(1);
        let mut lines = self.script.lines();
        let device = &self.facts.requested;
        match lines.calls.pop_front() {
            Some(Call::Submitted { rows: was, input: had, refused }) => {
                if was != rows {
                    lines.stray(format!("device {device} is given {rows} rows, not {was}"));
                } else if had != input {
                    lines.stray(format!("device {device} is given other series"));
                }
                self.is_idle = refused.is_some();
                refused.map_or(Ok(()), |failure| Err(failure.0))
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
                let results = results.into_iter();
                let results =
                    results.map(|(class, confidence)| Classification { class, confidence });
                self.results = results.collect();
                Some(Ok(&self.results))
            }
            Some(Call::Failed(failure)) => {
                self.is_idle = true;
                Some(Err(failure.0))
            }
            other => {
                lines.stray(format!("device {} is asked for results", self.facts.requested));
                if let Some(other) = other {
                    lines.calls.push_front(other);
                }
                None
            }
        }
    }
}
