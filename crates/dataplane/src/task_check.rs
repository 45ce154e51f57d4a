//! What only the models can tell about the tasks of a configuration.

use config::Config;

use crate::Error;

/// Refuses what a run cannot do yet: flow managers and analytics managers are built for the first task only.
///
/// # Errors
/// There are several tasks.
pub fn can_run(config: &Config) -> Result<(), Error> {
    match config.tasks.get(1) {
        None => Ok(()),
        Some(second) => Err(Error::config(format!(
            "{}: task.{}: several tasks cannot run yet, only be checked; keep one [[task]]",
            second.origin, second.name
        ))),
    }
}
