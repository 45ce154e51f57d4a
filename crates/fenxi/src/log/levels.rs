//! Makes a filter of events from the configured levels.

use config::levels::{Level, LevelError, Levels};
use tracing_subscriber::filter::{LevelFilter, Targets};

use super::repeats;

/// Reads levels. A level without a target is for fenxi, by default info; libraries log no more than
/// warnings unless a target names them.
pub fn parse(text: &str) -> Result<Targets, LevelError> {
    let levels = Levels::parse(text)?;
    let program = filter(levels.program);
    let targets = levels.targets.into_iter();
    Ok(Targets::new()
        .with_default(program.min(LevelFilter::WARN))
        .with_target("fenxi", program)
        .with_targets(targets.map(|(target, level)| (target, filter(level))))
        // Reports repeats of lines that have passed the filter.
        .with_target(repeats::TARGET, LevelFilter::TRACE))
}

fn filter(level: Level) -> LevelFilter {
    match level {
        Level::Off => LevelFilter::OFF,
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn levels_hold_for_fenxi_and_targets_for_what_they_name() {
        let targets = parse("info, fenxi::sinks::mark=debug,hyper=error").unwrap();
        for (target, level, is_let_through) in [
            ("fenxi", Level::INFO, true),
            ("fenxi::supervise", Level::INFO, true),
            ("fenxi::supervise", Level::DEBUG, false),
            ("fenxi::sinks::mark::writer", Level::DEBUG, true),
            ("fenxi::sinks::mark::writer", Level::TRACE, false),
            ("tokio", Level::INFO, false),
            ("tokio", Level::WARN, true),
            ("hyper", Level::WARN, false),
            (repeats::TARGET, Level::DEBUG, true),
        ] {
            let found = targets.would_enable(target, &level);
            assert_eq!(found, is_let_through, "{target} {level}");
        }
        // A level for one target leaves the others as they are.
        let targets = parse("fenxi::sinks::mark=trace").unwrap();
        assert!(targets.would_enable("fenxi::run", &Level::INFO));
        let off = parse("off").unwrap();
        assert!(!off.would_enable("fenxi::run", &Level::ERROR));
        assert!(!off.would_enable("tokio", &Level::ERROR));
    }
}
