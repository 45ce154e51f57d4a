//! The effective configuration, key by key with origins, for `fenxi config show`.

use std::fmt::Write as _;

use serde::Serialize;
use toml::Value;

use crate::keys::{Change, GOAL_KEYS, Key, KeyId, TaskKey};
use crate::kind::Kind;
use crate::layers::{Section, Settings, Table};
use crate::origin::Origin;

/// Every key in the order of the catalogue, maps such as `tag.dscp` entry by entry; then what was set of devices and tasks.
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
    pub(crate) fn of(settings: &Settings) -> Effective {
        let mut config = Vec::new();
        let sections = KeyId::ALL.chunk_by(|a, b| a.key().section() == b.key().section());
        for section in sections {
            // In TOML, the keys of a section come before the tables within it.
            let set = section.iter().map(|id| (id.key(), settings.setting(*id)));
            let (maps, single): (Vec<_>, Vec<_>) = set.partition(|(key, setting)| {
                matches!(key.kind, Kind::Map(_)) && !setting.entries.is_empty()
            });
            for (key, setting) in single {
                let (value, name) = (setting.value.clone(), key.name().to_owned());
                config.push(row(key, key.section(), name, value, &setting.origin));
            }
            for (key, setting) in maps {
                let Kind::Map(kind) = key.kind else { continue };
                for (name, entry) in &setting.entries {
                    let value = kind.shown(&entry.value);
                    let row = row(key, key.path, toml_key(name), value, &entry.origin);
                    config.push(row);
                }
            }
        }
        for device in &settings.devices {
            of_table(Section::Device, device, &mut config);
        }
        for set in &settings.nft_sets {
            of_table(Section::NftSet, set, &mut config);
        }
        for (at, task) in settings.tasks.iter().enumerate() {
            let first = config.len();
            of_table(Section::Task, task, &mut config);
            for row in &mut config[first..] {
                row.is_idle = is_idle(row, settings, task, at == 0);
            }
        }
        Effective { config }
    }

    /// TOML that sets what is in effect; if `with_origins`, with a comment after each value that says where it was set.
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

/// What a table sets; one that sets nothing needs no rows.
fn of_table(section: Section, table: &Table, config: &mut Vec<EffectiveKey>) {
    let path = format!("{}.{}", section.name(), toml_key(&table.name));
    let set = section.keys().iter().zip(table.settings());
    let set = set.filter_map(|(key, setting)| Some((key, setting.as_ref()?)));
    let (maps, single): (Vec<_>, Vec<_>) = set.partition(|(key, setting)| {
        matches!(key.kind, Kind::Map(_)) && !setting.entries.is_empty()
    });
    for (key, setting) in single {
        let (value, name) = (setting.value.clone(), key.name().to_owned());
        let mut row = row(key, &path, name, value, &setting.origin);
        if section == Section::Task {
            row.place.0 = "[[task]]".to_owned();
            row.begins_table = key.name() == TaskKey::Name.key().name();
        }
        config.push(row);
    }
    for (key, setting) in maps {
        let path = format!("{path}.{}", key.name());
        for (name, entry) in &setting.entries {
            let value = match key.kind {
                Kind::Map(kind) => kind.shown(&entry.value),
                _ => entry.value.clone(),
            };
            let mut row = row(key, &path, toml_key(name), value, &entry.origin);
            if section == Section::Task {
                // It belongs to the [[task]] above.
                row.place.0 = format!("[task.{}]", key.name());
            }
            config.push(row);
        }
    }
}

/// Whether a key of a task has no effect: a later layer overrides it in the section, or chose a policy that plans for no goal.
fn is_idle(row: &EffectiveKey, settings: &Settings, task: &Table, is_first: bool) -> bool {
    let mut keys = TaskKey::ALL.iter().copied();
    let key = keys.find(|id| id.key().name() == row.place.1);
    let Some(id) = key.filter(|_| row.place.0 == "[[task]]") else {
        return false;
    };
    let is_goal = GOAL_KEYS
        .iter()
        .any(|goal| goal.key().name() == row.place.1);
    settings.of_task(task, is_first, id).is_none()
        || (is_goal && settings.policy_without_goal(task, is_first).is_some())
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
