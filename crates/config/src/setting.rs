//! A key's value, with the layer that set it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use toml::Value;

use crate::origin::Origin;

/// A key's value after all layers.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Of the key's kind. Of a map only that it was set: its content stands in `entries`.
    pub value: Value,
    /// The entries of a map, by name.
    pub entries: Entries,
    /// The layer that set it.
    pub origin: Origin,
    /// Whether some layer gave a value that was refused, so that `value` is not what the user
    /// meant.
    pub refused: bool,
}

impl Setting {
    /// A value that was accepted.
    pub(crate) fn accepted(value: Value, origin: Origin) -> Setting {
        Setting {
            value,
            entries: Entries::new(),
            origin,
            refused: false,
        }
    }

    /// The value as a path, where it is one.
    pub fn path(&self) -> Option<PathBuf> {
        let text = self.value.as_str().filter(|text| !text.is_empty())?;
        Some(self.origin.resolve(text))
    }
}

/// One entry of a map.
#[derive(Debug, Clone)]
pub struct EntrySetting {
    /// Of the map's kind of entry.
    pub value: Value,
    /// The layer that set it.
    pub origin: Origin,
    /// Whether the built-in map has the same.
    pub is_default: bool,
}

/// The entries of a map, by name.
pub type Entries = BTreeMap<String, EntrySetting>;
