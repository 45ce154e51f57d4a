//! The effective configuration, key by key with origins, for `fenxi config show`.

use std::fmt::Write as _;

use serde::Serialize;
use toml::Value;

use crate::checked::GOAL_KEYS;
use crate::keys::{Change, Key, Shape};
use crate::kind::Kind;
use crate::origin::Origin;
use crate::settings::{Settings, Table};

/// Every key in the order of the catalogue, maps such as `tag.dscp` entry by entry; then what was
/// set of devices and tasks.
#[derive(Debug, Serialize)]
pub struct Effective {
    /// The keys.
    pub config: Vec<EffectiveKey>,
}

/// A key with the value in effect.
#[derive(Debug, Clone, Serialize)]
pub struct EffectiveKey {
    /// Section and name, as in `flow.k`; entries of maps and keys of devices have three parts.
    pub key: String,
    /// The value.
    pub value: Value,
    /// Where it was set.
    #[serde(serialize_with = "as_text")]
    pub origin: Origin,
    /// Unit of the value; may be empty.
    pub unit: &'static str,
    /// What the key is for.
    pub why: &'static str,
    /// When another value takes effect.
    pub change: Change,
    /// The header of the table it stands in, and its name there, for TOML.
    #[serde(skip)]
    place: (String, String),
    /// Whether it is the first of its table, which may have the same header as the one before.
    #[serde(skip)]
    begins_table: bool,
    /// Whether TOML shows it as a comment, because it has no effect: see [`is_idle`].
    #[serde(skip)]
    is_idle: bool,
}

fn as_text<S: serde::Serializer>(origin: &Origin, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(origin)
}

impl Effective {
    pub(crate) fn new(settings: &Settings) -> Effective {
        let mut config = Vec::new();
        for section in &settings.sections {
            for (at, table) in settings.tables(section.name).enumerate() {
                let first = config.len();
                of_table(table, &mut config);
                for row in &mut config[first..] {
                    row.is_idle = is_idle(row, settings, table, at == 0);
                }
            }
        }
        Effective { config }
    }

    /// TOML that sets what is in effect; if `with_origins`, with a comment after each value that
    /// says where it was set.
    pub fn to_toml(&self, with_origins: bool) -> String {
        let lines = self.config.iter().map(|row| {
            let comment = if row.is_idle { "# " } else { "" };
            format!("{comment}{} = {}", row.place.1, row.value)
        });
        let lines: Vec<_> = lines.collect();
        // Comments are aligned, except those after the longest values.
        let width = lines
            .iter()
            .map(|line| line.chars().count())
            .filter(|width| *width <= 40)
            .max()
            .unwrap_or(0);
        let mut text = String::new();
        let mut table = "";
        for (row, line) in self.config.iter().zip(&lines) {
            if row.place.0 != table || row.begins_table {
                let gap = if table.is_empty() { "" } else { "\n" };
                table = &row.place.0;
                let _ = writeln!(text, "{gap}{table}");
            }
            let _ = match with_origins {
                true => writeln!(text, "{line:width$}  # {}", row.origin),
                false => writeln!(text, "{line}"),
            };
        }
        text
    }
}

fn row(key: &Key, table: &str, name: String, value: Value, origin: &Origin) -> EffectiveKey {
    EffectiveKey {
        key: format!("{table}.{name}"),
        value,
        origin: origin.clone(),
        unit: key.unit,
        why: key.why,
        change: key.change,
        place: (format!("[{table}]"), name),
        begins_table: false,
        is_idle: false,
    }
}

/// What a table sets; one that sets nothing needs no rows. In TOML, its keys come before the tables
/// within it.
fn of_table(table: &Table, config: &mut Vec<EffectiveKey>) {
    let section = table.section;
    let is_list = section.shape == Shape::List;
    let path = match section.shape {
        Shape::One => section.name.to_owned(),
        _ => format!("{}.{}", section.name, toml_key(&table.name)),
    };
    let is_map = |(key, setting): &(&Key, &crate::settings::Setting)| {
        matches!(key.kind, Kind::Map(_)) && !setting.entries.is_empty()
    };
    let (maps, single): (Vec<_>, Vec<_>) = table.set().partition(is_map);
    for (key, setting) in single {
        let (value, name) = (setting.value.clone(), key.name().to_owned());
        let mut row = row(key, &path, name, value, &setting.origin);
        if is_list {
            row.place.0 = format!("[[{}]]", section.name);
            row.begins_table = key.name() == "name";
        }
        config.push(row);
    }
    for (key, setting) in maps {
        let Kind::Map(kind) = key.kind else { continue };
        let path = format!("{path}.{}", key.name());
        for (name, entry) in &setting.entries {
            let value = kind.shown(&entry.value);
            let mut row = row(key, &path, toml_key(name), value, &entry.origin);
            if is_list {
                // It belongs to the [[task]] above.
                row.place.0 = format!("[{}.{}]", section.name, key.name());
            }
            config.push(row);
        }
    }
}

/// Whether a key of a task has no effect: a later layer overrides it in the section, or chose a
/// policy that plans for no goal.
fn is_idle(row: &EffectiveKey, settings: &Settings, task: &Table, is_first: bool) -> bool {
    let key = row.place.1.as_str();
    if task.section.shape != Shape::List || row.place.0 != "[[task]]" {
        return false;
    }
    settings.of_task(Some(task), is_first, key).is_none()
        || (GOAL_KEYS.contains(&key)
            && settings.policy_without_goal(Some(task), is_first).is_some())
}

/// A label as a TOML key: bare where that is allowed, otherwise quoted.
fn toml_key(label: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !label.is_empty() && label.chars().all(is_bare) {
        label.to_owned()
    } else {
        Value::String(label.to_owned()).to_string()
    }
}
