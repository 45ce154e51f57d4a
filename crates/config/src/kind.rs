//! The types a key can have: what each accepts, and how messages describe it.

use std::ops::RangeInclusive;

use analytics::{CACHE_ENTRIES_MAX, SLO_DELTA};
use cring::K_MAX;
use policy::Dscp;
use toml::Value;

use crate::nearest;
use crate::value::FromValue;

/// Type and range of a key's value. Bounds are inclusive.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// A whole number.
    Integer {
        /// Least value.
        min: i64,
        /// Greatest value.
        max: i64,
    },
    /// A power of two, or 0 where `or_zero`.
    PowerOfTwo {
        /// Least value.
        min: i64,
        /// Greatest value.
        max: i64,
        /// Whether 0 is accepted too.
        or_zero: bool,
    },
    /// A number; whole numbers are accepted too.
    Float {
        /// Least value.
        min: f64,
        /// Greatest value.
        max: f64,
    },
    /// true or false.
    Bool,
    /// Any text.
    Text,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A list of `least` to `most` whole numbers.
    IntegerList {
        /// How many the list must hold.
        least: usize,
        /// Least value of each.
        min: i64,
        /// Greatest value of each.
        max: i64,
        /// How many the list may hold.
        most: usize,
    },
    /// A list of texts.
    TextList {
        /// Minimum length of the list.
        least: usize,
    },
    /// A DSCP name or number; a number once checked.
    Dscp,
    /// A table from names that the user chooses to values of this kind.
    Map(&'static Kind),
}

impl Kind {
    /// Whether values are plain text, so that unquoted text on a command line is the value itself.
    pub fn is_text(&self) -> bool {
        matches!(self, Kind::Text | Kind::OneOf(_))
    }

    /// `value` in the key's own type. Err: what was found, for [`Kind::complaint`].
    pub fn check(&self, value: Value) -> Result<Value, String> {
        let accepted = self.accept(&value)?;
        Ok(accepted.unwrap_or(value))
    }

    /// A checked value as `config show` prints it.
    pub fn shown(self, value: &Value) -> Value {
        let dscp = Dscp::from_value(value).and_then(Dscp::name);
        match (self, dscp) {
            (Kind::Dscp, Some(name)) => Value::String(name.to_owned()),
            _ => value.clone(),
        }
    }

    /// "found ..., expected ..." with the unit, and a suggestion for a near miss of a word.
    pub fn complaint(&self, found: &str, unit: &str) -> String {
        let word = found.trim_matches('"');
        let unit = if unit.is_empty() { String::new() } else { format!(" ({unit})") };
        let suggestion = match self {
            Kind::OneOf(words) => nearest(word, words.iter().copied()),
            Kind::Dscp => nearest(word, Dscp::names()),
            _ => None,
        };
        let suggestion =
            suggestion.map_or(String::new(), |word| format!("; did you mean \"{word}\"?"));
        format!("found {found}, expected {}{unit}{suggestion}", self.expected())
    }

    /// Ok(None): the value is fine as it stands. Ok(Some): fine in this form. Err: what was found
    /// that does not fit.
    fn accept(&self, value: &Value) -> Result<Option<Value>, String> {
        let fits = match (self, value) {
            (Kind::Integer { min, max }, Value::Integer(n)) => (min..=max).contains(&n),
            (Kind::PowerOfTwo { min, max, or_zero }, Value::Integer(n)) => {
                (*or_zero && *n == 0) || ((min..=max).contains(&n) && n.count_ones() == 1)
            }
            (Kind::Float { min, max }, Value::Float(x)) => (min..=max).contains(&x),
            (Kind::Float { .. }, Value::Integer(n)) => {
                let float = Value::Float(*n as f64);
                return self.accept(&float).map(|_| Some(float)).map_err(|_| n.to_string());
            }
            (Kind::Bool, Value::Boolean(_)) | (Kind::Text, Value::String(_)) => true,
            (Kind::OneOf(words), Value::String(word)) => words.contains(&word.as_str()),
            (Kind::IntegerList { least, min, max, most }, Value::Array(items)) => {
                for item in items {
                    Kind::Integer { min: *min, max: *max }
                        .accept(item)
                        .map_err(|found| format!("{found} in the list"))?;
                }
                if items.len() > *most {
                    return Err(format!("a list of {}", items.len()));
                }
                items.len() >= *least
            }
            (Kind::TextList { least }, Value::Array(items)) => {
                for item in items {
                    Kind::Text.accept(item).map_err(|found| format!("{found} in the list"))?;
                }
                items.len() >= *least
            }
            (Kind::Dscp, value) => {
                let dscp = match value {
                    Value::String(name) => Dscp::parse(name),
                    value => Dscp::from_value(value),
                };
                let dscp = dscp.ok_or_else(|| found(value))?;
                return Ok(Some(Value::Integer(dscp.code_point().into())));
            }
            (Kind::Map(_), Value::Table(_)) => true,
            _ => false,
        };
        if fits { Ok(None) } else { Err(found(value)) }
    }

    /// What the kind accepts, in words.
    pub fn expected(&self) -> String {
        match self {
            Kind::Integer { min, max: i64::MAX } => format!("an integer from {min} upwards"),
            Kind::Integer { min, max } => format!("an integer from {min} to {max}"),
            Kind::PowerOfTwo { min, max, or_zero } => {
                let zero = if *or_zero { "0 or " } else { "" };
                format!("{zero}a power of two from {min} to {max}")
            }
            Kind::Float { min, max } => format!("a number from {min} to {max}"),
            Kind::Bool => "true or false".to_owned(),
            Kind::Text => "text".to_owned(),
            Kind::OneOf(words) => {
                let quoted: Vec<_> = words.iter().map(|word| format!("\"{word}\"")).collect();
                format!("one of {}", quoted.join(", "))
            }
            Kind::IntegerList { least, min, max, most } => {
                format!("a list of {least} to {most} integers from {min} to {max}")
            }
            Kind::TextList { least: 0 } => "a list of texts such as [\"a\", \"b\"]".to_owned(),
            Kind::TextList { .. } => "a list of texts such as [\"cpu\"]".to_owned(),
            Kind::Dscp => "a DSCP name (CS0 to CS7, AF11 to AF43, EF, VA, LE, DF) or an integer \
                from 0 to 63"
                .to_owned(),
            Kind::Map(Kind::Dscp) => "a table of label = DSCP".to_owned(),
            Kind::Map(Kind::Text) => "a table of name = text".to_owned(),
            Kind::Map(kind) => format!("a table of label = {}", kind.expected()),
        }
    }
}

/// A value as a message shows it: itself, or its type where it would be long.
fn found(value: &Value) -> String {
    match value {
        Value::Array(items) if items.is_empty() => "an empty list".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Table(_) => "a table".to_owned(),
        Value::Datetime(when) => format!("the date or time {when}"),
        scalar => scalar.to_string(),
    }
}

/// A whole number in a range, ends included.
pub const fn integer(min: i64, max: i64) -> Kind {
    Kind::Integer { min, max }
}

/// A number in a range, ends included.
pub const fn float(min: f64, max: f64) -> Kind {
    Kind::Float { min, max }
}

/// A number in the range that the crate which uses it declares.
pub(crate) const fn number_in(range: RangeInclusive<f64>) -> Kind {
    float(*range.start(), *range.end())
}

/// A whole number in the range that the crate which uses it declares.
pub(crate) const fn seconds_in(range: RangeInclusive<u16>) -> Kind {
    integer(*range.start() as i64, *range.end() as i64)
}

/// A power of two in a range, ends included.
pub const fn power_of_two(min: i64, max: i64) -> Kind {
    Kind::PowerOfTwo { min, max, or_zero: false }
}

// Kinds of keys that several sections have.

/// Sizes of batches, for all devices or for one.
pub(crate) const BATCH_SIZES: Kind = Kind::IntegerList { least: 1, min: 1, max: 16_384, most: 16 };
/// Devices by name.
pub(crate) const DEVICES: Kind = Kind::TextList { least: 0 };
/// Milliseconds from a series' emission to its label.
pub(crate) const LATENCY_GOAL_MS: Kind = float(0.1, 1000.0);
/// Milliseconds that the oldest series waits.
pub(crate) const TIMEOUT_MS: Kind = float(0.1, 1000.0);
/// Milliseconds that a series is carried over.
pub(crate) const MAX_WAIT_MS: Kind = float(0.1, 60_000.0);
/// Share of the latency goal in reserve.
pub(crate) const SLO_DELTA_SHARE: Kind = number_in(SLO_DELTA);
/// Bits of the connection mark; 0 is the mark of connections without a label.
pub(crate) const MARK_MASK: Kind = integer(1, 0xffff_ffff);
/// The least confidence of a label.
pub(crate) const MIN_CONFIDENCE: Kind = float(-1.0, 1.0);
/// Lengths that make the key of the prefix cache; 0 turns it off.
pub(crate) const CACHE_PREFIX: Kind = integer(0, K_MAX as i64);
/// Entries of the prefix cache; 0 turns it off.
pub(crate) const CACHE_ENTRIES: Kind = integer(0, CACHE_ENTRIES_MAX as i64);
/// Microseconds that a simulated device takes, for a batch or a series.
pub(crate) const SIMULATED_US: Kind = float(0.0, 1_000_000.0);
