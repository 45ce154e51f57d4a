//! What a `[[task]]` says over the sections, before it is held against the others.

use std::path::PathBuf;
use std::time::Duration;

use crate::checked::{Analytics, BatchPolicy, Cache, DscpMapping, MarkMapping};
use crate::setting::Setting;
use crate::store::Stored;
use crate::when::When;
use crate::words::words;

/// The longest name of a task, in bytes: it becomes a label of metrics and a field of records.
const TASK_NAME_MAX: usize = 32;
/// What rules write where no task is asked.
const NO_TASK: &str = "none";

words! {
    /// `analytics.policy`.
    pub enum PolicyName {
        /// Alg. 2.
        #[default]
        CarryOver = "carry-over",
        /// Alg. 1.
        Timeout = "timeout",
        /// Whenever the device is free.
        None = "none",
        /// When as many wait as the device takes.
        Max = "max",
        /// Batchy.
        Slo = "slo",
        /// Batchy's on-off controller.
        OnOff = "on-off",
    }
}

impl PolicyName {
    /// Whether it plans for a latency goal.
    pub fn has_goal(self) -> bool {
        matches!(self, PolicyName::Slo | PolicyName::OnOff)
    }
}

/// `[analytics]`.
#[derive(Debug, Default, Clone)]
pub struct Batching {
    /// When a batch fires.
    pub policy: PolicyName,
    /// T of Alg. 1 and 2.
    pub timeout: Duration,
    /// Φ of Alg. 2.
    pub phi: f64,
    /// Sizes to choose from.
    pub batch_sizes: Vec<usize>,
    /// No series is carried over for longer.
    pub max_wait: Duration,
    /// D of Batchy.
    pub latency_goal: Duration,
    /// δ of Batchy.
    pub slo_delta: f64,
}

impl Batching {
    /// What the policy's keys come to.
    pub fn checked(self) -> Analytics {
        let (latency_goal, delta) = (self.latency_goal, self.slo_delta);
        Analytics {
            policy: match self.policy {
                PolicyName::CarryOver => BatchPolicy::CarryOver,
                PolicyName::Timeout => BatchPolicy::Timeout,
                PolicyName::None => BatchPolicy::None,
                PolicyName::Max => BatchPolicy::Max,
                PolicyName::Slo => BatchPolicy::Slo {
                    latency_goal,
                    delta,
                },
                PolicyName::OnOff => BatchPolicy::OnOff {
                    latency_goal,
                    delta,
                },
            },
            timeout: self.timeout,
            phi: self.phi,
            batch_sizes: self.batch_sizes,
            max_wait: self.max_wait,
        }
    }
}

/// A `[[task]]` table over what the sections say.
#[derive(Debug)]
pub struct TaskDraft {
    /// Name of the task.
    pub name: String,
    /// Folder of the model bundle.
    pub model: Option<PathBuf>,
    /// Depths of the model.
    pub depths: Vec<usize>,
    /// Which flows it is asked about.
    pub when: When<String>,
    /// Devices by name.
    pub devices: Vec<String>,
    /// When a batch fires.
    pub batching: Batching,
    /// The prefix cache, also where it is off.
    pub cache: Cache,
    /// What is shed last.
    pub priority: u8,
    /// What its labels lead to.
    pub labels: LabelsDraft,
    /// Whether its labels stand in records.
    pub records: bool,
}

/// What the labels of a task lead to.
#[derive(Debug, Default)]
pub struct LabelsDraft {
    /// Least confidence of a label.
    pub min_confidence: Option<f32>,
    /// Label to DSCP.
    pub dscp: Vec<DscpMapping>,
    /// Label to bits.
    pub mark: Vec<MarkMapping>,
    /// Bits that `mark` may write; 0: those of `mark`.
    pub mark_mask: u32,
}

/// A table is found by its name, so the name cannot be set to another one.
pub fn task_name(setting: &Setting, name: &str) -> Stored {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if setting.get::<String>()? != name {
        return Err(format!("the task is called {name}"));
    }
    if name == NO_TASK {
        return Err(format!(
            "task = \"{NO_TASK}\" in a rule of policy.rules means that no model is asked; choose another name"
        ));
    }
    match (1..=TASK_NAME_MAX).contains(&name.len()) && name.chars().all(is_word) {
        true => Ok(()),
        false => Err(format!(
            "expected 1 to {TASK_NAME_MAX} letters, digits, - and _"
        )),
    }
}

pub fn task_when(setting: &Setting, place: &mut When<String>) -> Stored {
    let text: String = setting.get()?;
    *place = When::parse(&text).map_err(|error| error.to_string())?;
    Ok(())
}

pub fn task_depths(setting: &Setting, place: &mut Vec<usize>) -> Stored {
    let depths: Vec<usize> = setting.get()?;
    if !depths.is_sorted_by(|a, b| a < b) {
        return Err(format!(
            "found {}, expected depths that rise, each of them named once",
            setting.value
        ));
    }
    *place = depths;
    Ok(())
}
