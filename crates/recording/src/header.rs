//! `run.json`: the initial state of a recorded run.

use std::path::Path;
use std::sync::Arc;

use config::Config;
use config::layout::Layout;
use dataplane::tasks::{OpenTask, TaskNames};
use serde::{Deserialize, Serialize};

use super::HEADER_FILE;
use super::event::VERSION;
use super::forms::FlowConfigForm;
use crate::error::RecordingError;

/// The largest plausible number of pipelines.
const INSTANCES_MAX: usize = 4096;

/// The initial state of all managers, and facts for people.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Header {
    /// Version of the format of both files.
    pub format: u32,
    /// Version of the program.
    pub fenxi: String,
    /// Time of the start, RFC 3339.
    pub started: String,
    /// `io.mode`.
    pub mode: String,
    /// `io.interfaces`.
    pub interfaces: Vec<String>,
    /// The tasks, in their order.
    pub tasks: Vec<TaskHeader>,
    /// F:A:D of each pipeline.
    pub layout: String,
    /// Pipelines side by side.
    pub instances: usize,
    /// Slots of each ring.
    pub ring_slots: usize,
    /// Configuration of all flow managers, with the seed of the bucket hash, which differs with
    /// each start.
    #[serde(with = "FlowConfigForm")]
    pub flow: flowmgr::Config,
    /// The output of `fenxi config show`; for people.
    pub configuration: String,
}

/// A task of the run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TaskHeader {
    /// Its name.
    pub name: String,
    /// Name of the model's bundle.
    pub model: String,
    /// Version of the bundle.
    pub model_version: String,
    /// Names of the classes; the last is `unknown`.
    pub classes: Vec<String>,
}

impl Header {
    /// The header of a run that is about to begin. `configuration` is the effective one as TOML.
    pub fn new(
        config: &Config,
        configuration: String,
        tasks: &[OpenTask],
        flow: flowmgr::Config,
    ) -> Header {
        let task = |task: &OpenTask| TaskHeader {
            name: task.name.clone(),
            model: task.bundle.name().to_owned(),
            model_version: task.bundle.version().to_owned(),
            classes: task.names().classes.to_vec(),
        };
        Header {
            format: VERSION,
            fenxi: env!("CARGO_PKG_VERSION").to_owned(),
            started: jiff::Timestamp::now().to_string(),
            mode: config.io.mode.name().to_owned(),
            interfaces: config.io.interfaces.clone(),
            tasks: tasks.iter().map(task).collect(),
            layout: config.pipeline.layout.to_string(),
            instances: config.pipeline.instances,
            ring_slots: config.ring.slots,
            flow,
            configuration,
        }
    }

    /// Reads it from the folder of a recording.
    ///
    /// # Errors
    /// There is none; it is damaged, or of another version.
    pub fn read(dir: &Path) -> Result<Header, RecordingError> {
        let path = dir.join(HEADER_FILE);
        let text = std::fs::read_to_string(&path).map_err(|error| {
            RecordingError::NoInput(format!(
                "{}: {error}; name the folder that `fenxi run --record` made",
                path.display()
            ))
        })?;
        let damaged = |why: &dyn std::fmt::Display| {
            RecordingError::Damaged(format!("{}: {why}", path.display()))
        };
        let value: serde_json::Value =
            serde_json::from_str(&text).map_err(|error| damaged(&error))?;
        let format = value.get("format").and_then(serde_json::Value::as_u64);
        if format != Some(VERSION.into()) {
            let version = value.get("fenxi").and_then(serde_json::Value::as_str);
            return Err(damaged(&format!(
                "this recording has another format than fenxi {} reads; replay it with fenxi {}",
                env!("CARGO_PKG_VERSION"),
                version.unwrap_or("of the version that made it")
            )));
        }
        let header: Header = serde_json::from_value(value).map_err(|error| damaged(&error))?;
        header.check().map_err(|why| damaged(&why))?;
        Ok(header)
    }

    /// The tasks as records and summaries know them.
    pub fn names(&self) -> Arc<[TaskNames]> {
        let names = self.tasks.iter().zip(&self.flow.tasks).map(|(task, flow)| TaskNames {
            name: task.name.as_str().into(),
            classes: task.classes.clone().into(),
            depths: flow.depths.iter().map(|depth| depth.k).collect(),
            target: flow.target.clone(),
        });
        names.collect()
    }

    /// Values from which memory is allocated, or that index others.
    fn check(&self) -> Result<(), &'static str> {
        if Layout::parse(&self.layout).is_none() {
            return Err("layout is not F:A:D");
        }
        if !(1..=INSTANCES_MAX).contains(&self.instances) {
            return Err("instances is out of range");
        }
        if !self.ring_slots.is_power_of_two() || self.ring_slots > 1 << 24 {
            return Err("ring_slots is no power of two, or too large");
        }
        if self.tasks.is_empty() || self.flow.tasks.len() != self.tasks.len() {
            return Err("flow.tasks and tasks disagree");
        }
        for (task, flow) in self.tasks.iter().zip(&self.flow.tasks) {
            let classes = task.classes.len();
            if !(1..=cring::CLASSES_MAX).contains(&classes) || flow.classes != classes {
                return Err("a task has no classes, too many, or others than flow.tasks");
            }
            if flow.target.as_ref().is_some_and(|it| it.edges.len() + 2 != classes) {
                return Err("a task has more or fewer bands than classes");
            }
            if flow.ports.iter().any(|port| usize::from(port.class) >= classes) {
                return Err("a task's ports name a class that there is not");
            }
        }
        if !self.takes(&self.flow.settings) {
            return Err("flow.settings are out of range, or of other classes");
        }
        Ok(())
    }

    /// Whether flow managers take these settings: they do not check them themselves.
    pub fn takes(&self, settings: &flowmgr::Settings) -> bool {
        let by_task = settings.actions.dscp();
        let mut with_tasks = by_task.iter().zip(&self.flow.tasks);
        settings.idle_timeout_s <= flowmgr::TIMEOUT_S_MAX
            && flowmgr::CLOSED_TIMEOUT_S.contains(&settings.closed_timeout_s)
            && by_task.len() <= self.flow.tasks.len()
            && with_tasks.all(|(dscp, task)| dscp.is_empty() || dscp.len() == task.classes)
    }

    /// The same of the configuration of an analytics manager's task: its label words must be there.
    pub fn takes_words(&self, task: &analytics::Config) -> bool {
        let words: usize = self.flow.tasks.iter().map(|task| task.depths.len()).sum();
        let mut needs = task.after.needs.iter().map(|need| &need.words);
        usize::from(task.word) < words
            && needs
                .all(|it| !it.depths.is_empty() && usize::from(it.first) + it.depths.len() <= words)
    }
}
