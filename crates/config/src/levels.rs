//! `log.level`: a level, or levels by target, as in `info,fenxi::sinks::mark=debug`.

/// How much is logged, from nothing to everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing.
    Off,
    /// What ends a run or loses data.
    Error,
    /// What somebody should look at.
    Warn,
    /// What an operator wants to know.
    Info,
    /// What helps to find a fault.
    Debug,
    /// Everything.
    Trace,
}

/// Levels by name, from nothing to all.
const LEVELS: [(&str, Level); 6] = [
    ("off", Level::Off),
    ("error", Level::Error),
    ("warn", Level::Warn),
    ("info", Level::Info),
    ("debug", Level::Debug),
    ("trace", Level::Trace),
];

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
                    targets.push((target.to_owned(), level(name).ok_or_else(wrong)?));
                }
                None if program.is_none() => program = Some(level(directive).ok_or_else(wrong)?),
                _ => return Err(wrong()),
            }
        }
        Ok(Levels { program: program.unwrap_or(Level::Info), targets })
    }
}

fn level(name: &str) -> Option<Level> {
    let found = LEVELS.iter().find(|(known, _)| *known == name);
    found.map(|(_, level)| *level)
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
