//! Configuration: what the user wrote becomes, in one step that can fail, what the program uses.
//!
//! [`keys`] declares every key once; [`layers`] reads the built-in defaults, the file, the
//! environment and `--set` on top of each other and remembers where each value came from; [`check`]
//! turns the outcome into [`Config`], whose types say what was checked, and looks at keys that
//! contradict each other. Code outside this module never sees the raw form. Every problem found is
//! reported, one line each, not only the first.

use std::path::Path;

mod check;
pub mod checked;
mod dscp;
pub mod effective;
mod keys;
mod kind;
pub mod layers;
#[cfg(test)]
mod tests;

pub use checked::Config;
use effective::Effective;
pub use keys::nearest;

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

impl Config {
    /// Reads `file`, the environment and the `--set` arguments over the built-in defaults and
    /// checks the outcome.
    pub fn load(file: Option<&Path>, sets: &[String]) -> Result<(Config, Effective), ConfigErrors> {
        let mut problems = Vec::new();
        let mut variables = Vec::new();
        for (name, value) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            match value.into_string() {
                Ok(value) => variables.push((name, value)),
                Err(_) if name.starts_with("FENXI_") => {
                    problems.push(format!("{name}: the value is not UTF-8 text"))
                }
                Err(_) => {}
            }
        }
        variables.sort_unstable();
        let Some(path) = file else {
            return Config::from_layers(None, &variables, sets, problems);
        };
        let name = path.display().to_string();
        let bytes = std::fs::read(path).map_err(|error| {
            ConfigErrors::Unreadable(format!("{name}: cannot read the configuration: {error}"))
        })?;
        let text = String::from_utf8(bytes).map_err(|error| {
            let line = error.as_bytes()[..error.utf8_error().valid_up_to()]
                .iter()
                .filter(|byte| **byte == b'\n')
                .count()
                + 1;
            ConfigErrors::Invalid(vec![format!("{name}:{line}: not UTF-8 text")])
        })?;
        Config::from_layers(Some((&name, &text)), &variables, sets, problems)
    }

    /// The same with everything given: the file as (name, text) and the environment as (name,
    /// value).
    fn from_layers(
        file: Option<(&str, &str)>,
        variables: &[(String, String)],
        sets: &[String],
        mut problems: Vec<String>,
    ) -> Result<(Config, Effective), ConfigErrors> {
        let settings = layers::read(file, variables, sets, &mut problems);
        let config = check::check(&settings, &mut problems);
        if problems.is_empty() {
            Ok((config, Effective::of(&settings)))
        } else {
            Err(ConfigErrors::Invalid(problems))
        }
    }
}
