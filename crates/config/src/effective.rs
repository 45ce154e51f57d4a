//! The effective configuration, key by key with origins, for `fenxi config show`.

use std::fmt::Write as _;

use serde::Serialize;
use toml::Value;

use super::keys::{Change, DEVICE, DEVICE_KEYS, KEYS, Key};
use super::kind::Kind;
use super::layers::{DeviceSettings, Origin, Settings};

/// Every key in the order of the catalogue, maps such as `tag.dscp` entry by entry; then what was said of devices.
#[derive(Debug, Serialize)]
pub struct Effective {
    /// The keys.
    pub config: Vec<EffectiveKey>,
}

/// One key as it is in effect.
#[derive(Debug, Clone, Serialize)]
pub struct EffectiveKey {
    /// Section and name, as in `flow.k`; entries of maps and keys of devices have three parts.
    pub key: String,
    /// The value.
    pub value: Value,
    /// Where it was set.
    #[serde(serialize_with = "as_text")]
    pub origin: Origin,
    /// What one of the value is; may be empty.
    pub unit: &'static str,
    /// What the key is for.
    pub why: &'static str,
    /// When another value takes effect.
    pub change: Change,
    /// The table it stands in, and its name there, for TOML.
    #[serde(skip)]
    place: (String, String),
}

fn as_text<S: serde::Serializer>(origin: &Origin, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(origin)
}

impl Effective {
    pub(super) fn of(settings: &Settings) -> Effective {
        let mut config = Vec::new();
        for key in KEYS {
            let setting = settings.setting(key.path);
            let entries = settings.entries(key.path);
            if let (Kind::Map(kind), false) = (key.kind, entries.is_empty()) {
                for (name, entry) in entries {
                    let value = kind.shown(&entry.value);
                    config.push(row(key, key.path, toml_key(name), value, &entry.origin));
                }
                continue;
            }
            let (value, name) = (setting.value.clone(), key.name().to_owned());
            config.push(row(key, key.section(), name, value, &setting.origin));
        }
        for (name, device) in &settings.devices {
            of_device(name, device, &mut config);
        }
        Effective { config }
    }

    /// TOML that sets what is in effect; `with_origins`, with each origin as a comment behind its value.
    pub fn to_toml(&self, with_origins: bool) -> String {
        let lines = self
            .config
            .iter()
            .map(|row| format!("{} = {}", row.place.1, row.value));
        let lines: Vec<_> = lines.collect();
        // Origins line up behind all but the longest values.
        let width = lines
            .iter()
            .map(|line| line.chars().count())
            .filter(|width| *width <= 40)
            .max()
            .unwrap_or(0);
        let mut text = String::new();
        let mut table = "";
        for (row, line) in self.config.iter().zip(&lines) {
            if row.place.0 != table {
                let gap = if table.is_empty() { "" } else { "\n" };
                table = &row.place.0;
                let _ = writeln!(text, "{gap}[{table}]");
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
        place: (table.to_owned(), name),
    }
}

/// What was set of a device; a table in which nothing was set needs no rows, for it says nothing.
fn of_device(name: &str, device: &DeviceSettings, config: &mut Vec<EffectiveKey>) {
    let table = format!("{DEVICE}.{}", toml_key(name));
    for key in DEVICE_KEYS {
        let Some(setting) = device.setting(key.name()) else {
            continue;
        };
        let (value, name) = (setting.value.clone(), key.name().to_owned());
        if !matches!(key.kind, Kind::Map(_)) {
            config.push(row(key, &table, name, value, &setting.origin));
        }
    }
    for key in DEVICE_KEYS
        .iter()
        .filter(|key| matches!(key.kind, Kind::Map(_)))
    {
        let table = format!("{table}.{}", key.name());
        for (option, entry) in &device.options {
            let value = entry.value.clone();
            config.push(row(key, &table, toml_key(option), value, &entry.origin));
        }
    }
}

/// A label as a TOML key: bare where that is allowed, else quoted.
fn toml_key(label: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !label.is_empty() && label.chars().all(is_bare) {
        label.to_owned()
    } else {
        Value::String(label.to_owned()).to_string()
    }
}
