//! Limits repeated lines: the first few pass, the others are counted.
//!
//! Lines are equal if they come from the same place in the program with the same words. A period
//! begins with the first of them; at its end one line reports the number of the others.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Length of a period, from its first line.
pub const PERIOD: Duration = Duration::from_secs(30);

/// Lines that pass in a period.
pub const LINES: u64 = 5;

/// Maximum kinds of lines; beyond that, lines are distinguished only by their place in the program.
const KINDS: usize = 256;

/// Target of the lines that report repeats.
pub const TARGET: &str = "fenxi::log::repeated";

/// Key of equal lines: place and words.
type Kind = u64;

struct Seen {
    began: Instant,
    lines: u64,
    level: Level,
    text: String,
}

/// A line that came more often than it passed.
#[derive(Debug, PartialEq, Eq)]
pub struct Repeated {
    times: u64,
    level: Level,
    text: String,
}

impl Repeated {
    pub fn log(&self) {
        let Repeated { times, level, text } = self;
        match *level {
            Level::ERROR => tracing::error!(target: TARGET, "{text} … repeated {times} times"),
            Level::WARN => tracing::warn!(target: TARGET, "{text} … repeated {times} times"),
            Level::INFO => tracing::info!(target: TARGET, "{text} … repeated {times} times"),
            Level::DEBUG => tracing::debug!(target: TARGET, "{text} … repeated {times} times"),
            Level::TRACE => tracing::trace!(target: TARGET, "{text} … repeated {times} times"),
        }
    }
}

/// The lines of the periods that are not over; shared by all its clones.
#[derive(Clone, Default)]
pub struct Repeats(Arc<Mutex<HashMap<Kind, Seen>>>);

impl Repeats {
    /// Whether a line from this place in the program passes now.
    fn admits(&self, now: Instant, place: &impl Hash, level: Level, text: String) -> bool {
        let mut kinds = self.lock();
        let mut kind = hash(&(place, &text));
        if !kinds.contains_key(&kind) && kinds.len() >= KINDS {
            kind = hash(&place);
        }
        let seen = kinds.entry(kind).or_insert(Seen { began: now, lines: 0, level, text });
        seen.lines += 1;
        seen.lines <= LINES
    }

    /// Takes the lines whose period is over at this time; all lines without one.
    pub fn take(&self, now: Option<Instant>) -> Vec<Repeated> {
        let is_over = |seen: &Seen| now.is_none_or(|now| now.duration_since(seen.began) >= PERIOD);
        let mut kinds = self.lock();
        let over = kinds.extract_if(|_, seen| is_over(seen));
        let repeated = over.filter_map(|(_, seen)| {
            let times = seen.lines.checked_sub(LINES).filter(|times| *times > 0)?;
            Some(Repeated { times, level: seen.level, text: seen.text })
        });
        repeated.collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Kind, Seen>> {
        // The state is consistent after every statement, so a panic elsewhere does not matter.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The filter in front of the output.
pub struct Limit(pub Repeats);

impl<S: Subscriber> Layer<S> for Limit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if metadata.target() == TARGET {
            return true;
        }
        let mut text = Text::default();
        event.record(&mut text);
        let (place, level) = (metadata.callsite(), *metadata.level());
        self.0.admits(Instant::now(), &place, level, text.0)
    }
}

/// Message and fields as in the output.
#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let gap = if self.0.is_empty() { "" } else { " " };
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{gap}{value:?}"),
            name => write!(self.0, "{gap}{name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of `lines` equal lines that pass at that time.
    fn passed(repeats: &Repeats, at: Instant, place: u32, text: &str, lines: u64) -> u64 {
        let admits = |_: &u64| repeats.admits(at, &place, Level::WARN, text.to_owned());
        (0..lines).filter(admits).count() as u64
    }

    fn repeated(times: u64, text: &str) -> Repeated {
        Repeated { times, level: Level::WARN, text: text.to_owned() }
    }

    #[test]
    fn a_few_pass_and_the_others_are_counted_when_the_period_is_over() {
        let repeats = Repeats::default();
        let began = Instant::now();
        assert_eq!(passed(&repeats, began, 1, "full", LINES + 120), LINES);
        let later = began + PERIOD - Duration::from_millis(1);
        assert_eq!(passed(&repeats, later, 1, "full", 3), 0);
        // Other words, or the same from another place, are counted apart.
        assert_eq!(passed(&repeats, later, 1, "empty", 2), 2);
        assert_eq!(passed(&repeats, later, 2, "full", 2), 2);
        assert_eq!(repeats.take(Some(later)), []);
        let over = began + PERIOD;
        assert_eq!(repeats.take(Some(over)), [repeated(123, "full")]);
        // A new period; lines within the limit are not reported.
        assert_eq!(passed(&repeats, over, 1, "full", LINES), LINES);
        assert_eq!(repeats.take(Some(over + PERIOD)), []);
    }

    #[test]
    fn at_the_end_all_are_told() {
        let repeats = Repeats::default();
        let now = Instant::now();
        assert_eq!(passed(&repeats, now, 1, "full", LINES + 1), LINES);
        assert_eq!(repeats.take(None), [repeated(1, "full")]);
        assert_eq!(repeats.take(None), []);
    }

    #[test]
    fn ever_different_lines_take_no_more_memory_and_are_limited_by_their_place() {
        let repeats = Repeats::default();
        let now = Instant::now();
        let lines = 10_000;
        let passed: u64 = (0..lines).map(|i| passed(&repeats, now, 7, &i.to_string(), 1)).sum();
        assert_eq!(passed, KINDS as u64 + LINES);
        assert!(repeats.lock().len() <= KINDS + 1);
        let told: u64 = repeats.take(None).iter().map(|it| it.times).sum();
        assert_eq!(told, lines - passed);
    }

    #[test]
    fn the_layer_keeps_lines_back() {
        use tracing_subscriber::layer::SubscriberExt;

        #[derive(Clone, Default)]
        struct Kept(Arc<Mutex<Vec<String>>>);
        impl<S: Subscriber> Layer<S> for Kept {
            fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
                let mut text = Text::default();
                event.record(&mut text);
                self.0.lock().unwrap().push(text.0);
            }
        }
        let (repeats, kept) = (Repeats::default(), Kept::default());
        let log = tracing_subscriber::registry().with(Limit(repeats.clone())).with(kept.clone());
        tracing::subscriber::with_default(log, || {
            for _ in 0..LINES + 2 {
                tracing::info!(disk = 1, "full");
            }
            repeats.take(None).iter().for_each(Repeated::log);
        });
        let kept = kept.0.lock().unwrap();
        assert_eq!(kept.len() as u64, LINES + 1);
        assert_eq!(kept[0], "full disk=1");
        assert_eq!(*kept.last().unwrap(), "full disk=1 … repeated 2 times");
    }
}
