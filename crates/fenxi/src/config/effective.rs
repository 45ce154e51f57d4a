//! The effective configuration, key by key with origins, for `fenxi config show`.

use std::fmt::Write as _;

use serde::Serialize;
use toml::Value;

use super::dscp;
use super::keys::{KEYS, TAG_DSCP};
use super::kind::Kind;
use super::layers::{Origin, Settings};

/// Every key in the order of the catalogue; `tag.dscp` entry by entry.
#[derive(Debug, Serialize)]
pub struct Effective {
    /// The keys.
    pub config: Vec<EffectiveKey>,
}

/// One key as it is in effect.
#[derive(Debug, Serialize)]
pub struct EffectiveKey {
    /// Section and name, as in `flow.k`; entries of `tag.dscp` have three parts.
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
    /// The table it stands in, and its name there, for TOML.
    #[serde(skip)]
    place: (&'static str, String),
}

fn as_text<S: serde::Serializer>(origin: &Origin, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(origin)
}

impl Effective {
    pub(super) fn of(settings: &Settings) -> Effective {
        let mut config = Vec::new();
        for key in KEYS {
            let setting = settings.setting(key.path);
            let row = |name: String,
                       place: (&'static str, String),
                       value: Value,
                       origin: &Origin| EffectiveKey {
                key: name,
                value,
                origin: origin.clone(),
                unit: key.unit,
                why: key.why,
                place,
            };
            if !matches!(key.kind, Kind::DscpMap) || settings.dscp.is_empty() {
                let place = (key.section(), key.name().to_owned());
                config.push(row(
                    key.path.to_owned(),
                    place,
                    setting.value.clone(),
                    &setting.origin,
                ));
                continue;
            }
            for (label, entry) in &settings.dscp {
                let name = dscp::name(entry.dscp);
                let value = name.map_or(Value::Integer(entry.dscp.into()), |name| {
                    Value::String(name.to_owned())
                });
                let place = (TAG_DSCP, toml_key(label));
                config.push(row(
                    format!("{TAG_DSCP}.{}", toml_key(label)),
                    place,
                    value,
                    &entry.origin,
                ));
            }
        }
        Effective { config }
    }

    /// TOML that sets what is in effect, with each origin as a comment behind its value.
    pub fn to_toml(&self) -> String {
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
                table = row.place.0;
                let _ = writeln!(text, "{gap}[{table}]");
            }
            let _ = writeln!(text, "{line:width$}  # {}", row.origin);
        }
        text
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
