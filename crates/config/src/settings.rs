//! The values of all keys after all layers, before they are stored in the structs of their
//! sections.

use toml::Value;

use crate::keys::{Key, Keyed, Section, Shape};
use crate::origin::Origin;
pub use crate::setting::{EntrySetting, Setting};

/// The setting of a key that no section declares.
static NOTHING: Setting = Setting {
    value: Value::Boolean(false),
    entries: std::collections::BTreeMap::new(),
    origin: Origin::BuiltIn,
    refused: false,
};

/// What the layers came to.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The sections in the order in which they are shown: those that are one table come first.
    pub(crate) sections: Vec<&'static Section>,
    /// Within a section, in the order in which they were first named.
    pub(crate) tables: Vec<Table>,
}

impl Settings {
    /// The defaults of these sections.
    pub(crate) fn new(mut sections: Vec<&'static Section>) -> Settings {
        sections.sort_by_key(|section| section.shape != Shape::One);
        let single = sections.iter().filter(|it| it.shape == Shape::One);
        let tables = single.map(|section| Table {
            values: section.keys.iter().map(|key| Some(Setting::built_in(key))).collect(),
            ..Table::new(section, "", Origin::BuiltIn)
        });
        let tables = tables.collect();
        Settings { sections, tables }
    }

    /// The section called `name`.
    pub(crate) fn section(&self, name: &str) -> Option<&'static Section> {
        self.sections.iter().copied().find(|it| it.name == name)
    }

    /// The tables of a section.
    pub fn tables(&self, section: &str) -> impl Iterator<Item = &Table> + Clone {
        let is_of = move |table: &&Table| table.section.name == section;
        self.tables.iter().filter(is_of)
    }

    /// The setting of a key such as `flow.k`.
    pub fn setting(&self, path: &str) -> &Setting {
        let (section, name) = path.split_once('.').unwrap_or((path, ""));
        let setting = self.tables(section).find_map(|table| table.get(name));
        debug_assert!(setting.is_some(), "no section has the key {path}");
        setting.unwrap_or(&NOTHING)
    }

    /// The word that a key is set to.
    pub fn word(&self, path: &str) -> &str {
        self.setting(path).value.as_str().unwrap_or_default()
    }

    /// The section's values.
    pub(crate) fn read<T: Keyed>(&self, problems: &mut Vec<String>) -> T {
        let mut keyed = T::default();
        for table in self.tables(T::SECTION.name) {
            keyed.store_table(table, problems);
        }
        keyed
    }

    /// A key with its value and origin, for messages.
    pub fn named(&self, path: &str) -> String {
        let Setting { value, origin, .. } = self.setting(path);
        format!("{path} = {value} ({origin})")
    }

    /// Whether the value of one of these keys was refused.
    pub fn is_refused(&self, paths: &[&str]) -> bool {
        paths.iter().any(|path| self.setting(path).refused)
    }

    /// Reports a combination of keys that is broken, unless one of them was refused already.
    pub fn rule(&self, paths: &[&str], broken: bool, why: &str, problems: &mut Vec<String>) {
        if broken && !self.is_refused(paths) {
            let named: Vec<_> = paths.iter().map(|path| self.named(path)).collect();
            problems.push(format!("{}: {why}", named.join(" with ")));
        }
    }

    /// These settings, but with the values of `running` for keys that change only at a start. A
    /// section that has such keys and whose tables changed keeps the tables of `running`.
    pub(crate) fn live_over(&self, running: &Settings) -> Settings {
        let mut mixture = self.clone();
        mixture.tables.clear();
        for section in &self.sections {
            let after: Vec<_> = self.tables(section.name).cloned().collect();
            let before: Vec<_> = running.tables(section.name).cloned().collect();
            let has_same_names = after.len() == before.len()
                && after.iter().zip(&before).all(|(after, before)| after.name == before.name);
            if section.keys.iter().all(Key::is_live) {
                mixture.tables.extend(after);
            } else if has_same_names {
                let pairs = after.into_iter().zip(&before);
                mixture.tables.extend(pairs.map(|(after, before)| after.live_over(before)));
            } else {
                mixture.tables.extend(before);
            }
        }
        // The mode of the run stays.
        mixture.settle();
        mixture
    }
}

/// What was set of a section; of one of its tables, where it has several.
#[derive(Debug, Clone)]
pub struct Table {
    /// The section.
    pub(crate) section: &'static Section,
    /// The name; empty where the section has one table.
    pub name: String,
    /// Where it was first named.
    pub origin: Origin,
    /// In the order of the section's keys.
    pub(crate) values: Vec<Option<Setting>>,
    /// Whether some value was refused.
    pub refused: bool,
}

impl PartialEq for Table {
    fn eq(&self, other: &Table) -> bool {
        self.name == other.name && self.values == other.values
    }
}

impl Table {
    pub(crate) fn new(section: &'static Section, name: &str, origin: Origin) -> Table {
        Table {
            section,
            name: name.to_owned(),
            origin,
            values: vec![None; section.keys.len()],
            refused: false,
        }
    }

    /// What the table says of a key, if anything.
    pub fn get(&self, key: &str) -> Option<&Setting> {
        self.values[self.section.position(key)?].as_ref()
    }

    /// The keys that are set.
    pub fn set(&self) -> impl Iterator<Item = (&'static Key, &Setting)> {
        let all = self.section.keys.iter().zip(&self.values);
        all.filter_map(|(key, setting)| Some((key, setting.as_ref()?)))
    }

    /// A key as messages name it.
    pub fn path(&self, key: &str) -> String {
        match self.section.shape {
            Shape::One => format!("{}.{key}", self.section.name),
            _ => format!("{}.{}.{key}", self.section.name, self.name),
        }
    }

    /// Why a value cannot be used.
    pub(crate) fn complaint(&self, key: &Key, setting: &Setting, why: &str) -> String {
        let (path, Setting { value, origin, .. }) = (self.path(key.name()), setting);
        match self.section.shape {
            Shape::One => format!("{path} = {value} ({origin}): {why}"),
            _ => format!("{origin}: {path}: {why}"),
        }
    }

    /// This table, with what `running` says where a key changes at a start only.
    fn live_over(mut self, running: &Table) -> Table {
        for (at, key) in self.section.keys.iter().enumerate() {
            if !key.is_live() {
                self.values[at] = running.values[at].clone();
            }
        }
        self
    }
}
