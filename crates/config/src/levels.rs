//! `log.level`: a level, or levels by target, as in `info,fenxi::sinks::mark=debug`.

use crate::words::words;

words! {
    /// How much is logged, from nothing to everything.
    pub enum Level {
        /// Nothing.
        Off = "off",
        /// What ends a run or loses data.
        Error = "error",
        /// What somebody should look at.
        Warn = "warn",
        /// What an operator wants to know.
        #[default]
        Info = "info",
        /// What helps to find a fault.
        Debug = "debug",
        /// Everything.
        Trace = "trace",
    }
}

/// What `log.level` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Levels {
    /// The level of the program itself; info where the text names none.
    pub program: Level,
    /// Targets (Rust paths such as `fenxi::sinks::mark`) with levels of their own, as ordered in
    /// the text.
    pub targets: Vec<(String, Level)>,
}

/// The part of a text that is no level.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\": expected off, error, warn, info, debug or trace, or a target with one of them, as in \
     info,fenxi::sinks::mark=debug"
)]
pub struct LevelError(pub String);

impl Levels {
    /// Reads levels, separated by commas.
    ///
    /// # Errors
    /// The first part that is neither a level nor a target with one; a second level without a
    /// target.
    pub fn parse(text: &str) -> Result<Levels, LevelError> {
        let mut targets = Vec::new();
        let mut program = None;
        for directive in text.split(',').map(str::trim) {
            let wrong = || LevelError(directive.to_owned());
            match directive.split_once('=') {
                Some((target, name)) if is_target(target) => {
                    targets.push((target.to_owned(), Level::parse(name).ok_or_else(wrong)?));
                }
                None if program.is_none() => {
                    program = Some(Level::parse(directive).ok_or_else(wrong)?);
                }
                _ => return Err(wrong()),
            }
        }
        Ok(Levels { program: program.unwrap_or_default(), targets })
    }
}

fn is_target(text: &str) -> bool {
    let is_name = |name: &str| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    text.split("::").all(is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_level_is_named() {
        for (text, directive) in [
            ("", ""),
            ("inof", "inof"),
            ("info,debug", "debug"),
            ("info,", ""),
            ("fenxi::sinks::mark=loud", "fenxi::sinks::mark=loud"),
            ("fenxi::=debug", "fenxi::=debug"),
            ("=debug", "=debug"),
            ("info,[span]=debug", "[span]=debug"),
        ] {
            assert_eq!(
                Levels::parse(text).unwrap_err(),
                LevelError(directive.to_owned()),
                "{text}"
            );
        }
    }
}
