//! `run.json`: the initial state of a recorded run.

use std::path::Path;

use accel::Bundle;
use config::Config;
use serde::{Deserialize, Serialize};

use super::HEADER_FILE;
use super::event::VERSION;
use super::settings::FlowConfigForm;
use crate::error::RecordingError;
use config::layout::Layout;

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
    /// Name of the model's bundle.
    pub model: String,
    /// Version of the bundle.
    pub model_version: String,
    /// Name of the task.
    pub task: String,
    /// The model's features.
    pub features: Vec<String>,
    /// Names of the classes; the last is `unknown`.
    pub classes: Vec<String>,
    /// F:A:D of each pipeline.
    pub layout: String,
    /// Pipelines side by side.
    pub instances: usize,
    /// Slots of each ring.
    pub ring_slots: usize,
    /// Configuration of all flow managers, with the seed of the bucket hash, which differs with each start.
    #[serde(with = "FlowConfigForm")]
    pub flow: flowmgr::Config,
    /// The output of `fenxi config show`; for people.
    pub configuration: String,
}

impl Header {
    /// The header of a run that is about to begin. `configuration` is the effective one as TOML.
    pub fn new(
        config: &Config,
        configuration: String,
        bundle: &Bundle,
        classes: &[String],
        flow: &flowmgr::Config,
    ) -> Header {
        Header {
            format: VERSION,
            fenxi: env!("CARGO_PKG_VERSION").to_owned(),
            started: jiff::Timestamp::now().to_string(),
            mode: config.io.mode.name().to_owned(),
            interfaces: config.io.interfaces.clone(),
            model: bundle.name().to_owned(),
            model_version: bundle.version().to_owned(),
            task: config
                .tasks
                .first()
                .map_or_else(String::new, |task| task.name.clone()),
            features: bundle.features().to_vec(),
            classes: classes.to_vec(),
            layout: config.pipeline.layout.to_string(),
            instances: config.pipeline.instances,
            ring_slots: config.ring.slots,
            flow: flow.clone(),
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
        if self.classes.is_empty() || self.classes.len() > cring::CLASSES_MAX {
            return Err("there are no classes, or too many");
        }
        if self.flow.settings.actions.classes() != self.classes.len() {
            return Err("flow.settings.dscp has not one value for each class");
        }
        Ok(())
    }
}
