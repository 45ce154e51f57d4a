//! Configuration: what the user wrote becomes, in one step that can fail, what the program uses.
//!
//! A section is a struct whose fields are its keys, declared once by [`section!`] in [`checked`].
//! [`sources`] finds the files; [`layers`] reads the built-in defaults, the files, the environment
//! and `--set` on top of each other and remembers where each value came from; `check` stores the
//! outcome in the structs, makes a [`Config`] of them, and refuses keys that contradict each other.
//! Every problem found is reported, one line each, not only the first.
//!
//! This crate starts no thread and knows neither pipelines nor the log. It uses other crates only
//! for the ranges and types of their settings.
#![forbid(unsafe_code)]

use std::path::Path;

mod by_memory;
mod by_mode;
mod check;
pub mod checked;
mod difference;
pub mod effective;
mod keys;
pub mod kind;
pub mod layers;
pub mod layout;
pub mod levels;
mod network;
pub mod origin;
mod setting;
pub mod settings;
pub mod sources;
#[cfg(test)]
mod tests;
mod value;
pub mod when;
mod words;

pub use check::task_exists;
pub use checked::Config;
use checked::PolicyName;
pub use difference::{Difference, Differences};
use effective::Effective;
pub use keys::{Change, Key, Keyed, Section, Shape, Stored, stored};
pub use kind::Kind;
pub use network::Network;
use origin::Origin;
pub use policy::{nearest, suggest};
pub use setting::{EntrySetting, Setting};
pub use settings::{Settings, Table};
pub use sources::Sources;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigErrors {
    /// The file could not be read.
    #[error("{0}")]
    Unreadable(String),
    /// The file, the environment or `--set` hold these problems, one line each.
    #[error("{}", .0.join("\n"))]
    Invalid(Vec<String>),
}

/// A configuration as it was read.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// What the program uses.
    pub config: Config,
    /// What it was made of, for the next one to be held against.
    settings: Settings,
}

impl Loaded {
    /// Key by key with origins.
    pub fn effective(&self) -> Effective {
        Effective::new(&self.settings)
    }

    /// As it is for live traffic.
    pub fn live(mut self) -> Loaded {
        let flow = &mut self.config.flow;
        flow.active_timeout = flow.active.live;
        flow.half_open_timeout = flow.half_open.live;
        flow.established_timeout = flow.established.live;
        self
    }

    /// As it is for a replay, whose packets wait for no mark: batching by default is the same in
    /// all modes.
    pub fn replayed(mut self) -> Loaded {
        let config = &mut self.config;
        for task in &mut config.tasks {
            if matches!(task.policy_origin, Origin::Mode(_)) {
                task.batching.name = PolicyName::default();
                task.policy_origin = Origin::BuiltIn;
            }
        }
        if let Some(first) = config.tasks.first() {
            config.analytics = first.batching.clone();
        }
        self
    }

    /// This configuration as far as a run that works by `running` can take it over: the keys that
    /// only a start can change keep their running values.
    ///
    /// # Errors
    /// Live keys that contradict the others of the run.
    pub fn taken_over_by(&self, running: &Loaded) -> Result<Loaded, ConfigErrors> {
        let mixture = self.settings.live_over(&running.settings);
        Config::checked(mixture, Vec::new()).map_err(|errors| match errors {
            ConfigErrors::Invalid(lines) => {
                let line = |line| format!("{line} (as long as other keys wait for a restart)");
                ConfigErrors::Invalid(lines.into_iter().map(line).collect())
            }
            errors => errors,
        })
    }
}

impl Config {
    /// Reads the file that is named, if any, the environment and the `--set` arguments over the
    /// built-in defaults and checks the outcome.
    ///
    /// # Errors
    /// As [`Sources::load`].
    pub fn load(file: Option<&Path>, sets: &[String]) -> Result<Config, ConfigErrors> {
        Ok(Sources::named(file, sets).load()?.config)
    }

    /// The same with everything given: files, and the environment as (name, value).
    fn from_layers(
        defaults: Settings,
        files: &[layers::FileLayer],
        variables: &[(String, String)],
        sets: &[String],
        mut problems: Vec<String>,
    ) -> Result<Loaded, ConfigErrors> {
        let settings = layers::read(defaults, files, variables, sets, &mut problems);
        Config::checked(settings, problems)
    }

    fn checked(settings: Settings, mut problems: Vec<String>) -> Result<Loaded, ConfigErrors> {
        match (check::check(&settings, &mut problems), problems.is_empty()) {
            (Some(config), true) => Ok(Loaded { config, settings }),
            _ => Err(ConfigErrors::Invalid(problems)),
        }
    }
}
