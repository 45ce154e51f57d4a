//! The tasks of a run, with their bundles open.

use std::path::Path;
use std::sync::Arc;

use accel::Bundle;
use config::Config;
use flowmgr::SeriesTask;

use crate::Error;
use crate::bundle::{classes, find_bundle, open_bundle, series_tasks};

/// A task whose bundle is open.
#[derive(Debug, Clone)]
pub struct OpenTask {
    /// Its name in the configuration.
    pub name: String,
    /// The configuration of the run, with this task as the only one: its sections say what the task says.
    pub config: Config,
    /// The model.
    pub bundle: Bundle,
}

impl OpenTask {
    /// All tasks of a configuration, in its order. `model` is the bundle that the command line names, for the only task.
    ///
    /// # Errors
    /// A bundle that is missing, damaged, or contradicts the configuration; several tasks and a `model`.
    pub fn open_all(config: &Config, model: Option<&Path>) -> Result<Vec<OpenTask>, Error> {
        if model.is_some() && config.tasks.len() > 1 {
            return Err(Error::config(
                "--model names one bundle, and the configuration has several tasks; set task.NAME.model instead"
                    .to_owned(),
            ));
        }
        let numbers = 0..config.tasks.len();
        let open = |number| {
            let config = of_task(config, number);
            let bundle = open_bundle(&config, &find_bundle(&config, model)?)?;
            Ok(OpenTask {
                name: config.tasks[0].name.clone(),
                config,
                bundle,
            })
        };
        numbers.map(open).collect()
    }

    /// What flow managers collect for all tasks: one for each depth of each.
    pub fn series(tasks: &[OpenTask]) -> Vec<SeriesTask> {
        let all = tasks.iter().flat_map(|task| series_tasks(&task.bundle));
        all.collect()
    }

    /// The task as records and metrics know it.
    pub fn names(&self) -> TaskNames {
        TaskNames {
            name: self.name.as_str().into(),
            classes: classes(&self.bundle),
            depths: self.bundle.depths().len(),
        }
    }
}

/// What a task and its classes are called.
#[derive(Debug, Clone)]
pub struct TaskNames {
    /// Its name in the configuration.
    pub name: Arc<str>,
    /// Names of the classes in the order of the model's outputs, then `unknown`.
    pub classes: Arc<[String]>,
    /// How many depths its model has, each of which is a task to flow managers.
    pub depths: usize,
}

/// The configuration with one of its tasks as the only one: its model, batching, cache and devices stand in the sections,
/// as where there is one task.
pub fn of_task(config: &Config, number: usize) -> Config {
    let task = config.tasks[number].clone();
    let mut own = config.clone();
    own.model.path.clone_from(&task.model);
    own.analytics.clone_from(&task.batching);
    own.cache.clone_from(&task.cache);
    own.accel.devices.clone_from(&task.devices);
    own.tasks = vec![task];
    own
}
