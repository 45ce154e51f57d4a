//! `log.level`: a level, or levels by target, as in `info,fenxi::mark=debug`.

use tracing_subscriber::filter::{LevelFilter, Targets};

use super::repeats;

/// Levels by name, from nothing to all.
const LEVELS: [(&str, LevelFilter); 6] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];

/// What is no level.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\": expected off, error, warn, info, debug or trace, or a target with one of them, as in info,fenxi::mark=debug"
)]
pub struct LevelError(String);

/// Reads levels. A level by itself is that of fenxi, by default info; libraries say no more than warnings unless a target
/// names them.
pub fn parse(text: &str) -> Result<Targets, LevelError> {
    let mut targets = Vec::new();
    let mut of_fenxi = None;
    for directive in text.split(',').map(str::trim) {
        let wrong = || LevelError(directive.to_owned());
        match directive.split_once('=') {
            Some((target, name)) if is_target(target) => {
                targets.push((target.to_owned(), level(name).ok_or_else(wrong)?));
            }
            None if of_fenxi.is_none() => of_fenxi = Some(level(directive).ok_or_else(wrong)?),
            _ => return Err(wrong()),
        }
    }
    let of_fenxi = of_fenxi.unwrap_or(LevelFilter::INFO);
    Ok(Targets::new()
        .with_default(of_fenxi.min(LevelFilter::WARN))
        .with_target("fenxi", of_fenxi)
        .with_targets(targets)
        // It counts lines that were let through before.
        .with_target(repeats::TARGET, LevelFilter::TRACE))
}

fn level(name: &str) -> Option<LevelFilter> {
    let found = LEVELS.iter().find(|(known, _)| *known == name);
    found.map(|(_, level)| *level)
}

/// A path of Rust, as in `fenxi::mark`.
fn is_target(text: &str) -> bool {
    let is_name = |name: &str| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    text.split("::").all(is_name)
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn levels_hold_for_fenxi_and_targets_for_what_they_name() {
        let targets = parse("info, fenxi::mark=debug,hyper=error").unwrap();
        for (target, level, is_let_through) in [
            ("fenxi", Level::INFO, true),
            ("fenxi::run::control", Level::INFO, true),
            ("fenxi::run::control", Level::DEBUG, false),
            ("fenxi::mark::writer", Level::DEBUG, true),
            ("fenxi::mark::writer", Level::TRACE, false),
            ("tokio", Level::INFO, false),
            ("tokio", Level::WARN, true),
            ("hyper", Level::WARN, false),
            (repeats::TARGET, Level::DEBUG, true),
        ] {
            let found = targets.would_enable(target, &level);
            assert_eq!(found, is_let_through, "{target} {level}");
        }
        // Who asks for more of one part keeps the rest.
        let targets = parse("fenxi::mark=trace").unwrap();
        assert!(targets.would_enable("fenxi::run", &Level::INFO));
        let off = parse("off").unwrap();
        assert!(!off.would_enable("fenxi::run", &Level::ERROR));
        assert!(!off.would_enable("tokio", &Level::ERROR));
    }

    #[test]
    fn what_is_no_level_is_named() {
        for (text, directive) in [
            ("", ""),
            ("inof", "inof"),
            ("info,debug", "debug"),
            ("info,", ""),
            ("fenxi::mark=loud", "fenxi::mark=loud"),
            ("fenxi::=debug", "fenxi::=debug"),
            ("=debug", "=debug"),
            ("info,[span]=debug", "[span]=debug"),
        ] {
            assert_eq!(
                parse(text).unwrap_err(),
                LevelError(directive.to_owned()),
                "{text}"
            );
        }
    }
}
