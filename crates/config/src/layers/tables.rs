//! Tables with names of the user's choice: `[device.NAME]`, `[nftset.NAME]` and `[[task]]`. What they hold is known, what they are called
//! is not.

use std::collections::BTreeSet;
use std::ops::Range;

use toml::de::{DeArray, DeTable, DeValue};
use toml::{Spanned, Value};

use super::layer::Layer;
use super::values::{in_order, loose, owned, suggest};
use crate::keys::{DEVICE_KEYS, DeviceKey, Key, NFT_SET_KEYS, NftSetKey, TASK_KEYS, TaskKey};
use crate::kind::{Entry, Kind};
use crate::origin::Origin;
use crate::setting::Setting;

/// Words that others use for a key of a task.
const OTHER_WORDS: [(&str, &str); 2] = [("goal", "latency_goal_ms"), ("bundle", "model")];

/// What a table is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// A `[device.NAME]`.
    Device,
    /// A `[nftset.NAME]`.
    NftSet,
    /// A `[[task]]`.
    Task,
}

impl Section {
    /// What the sections are called, in the order of the variants.
    pub const NAMES: [&'static str; 3] = ["device", "nftset", "task"];

    /// The section called `name`.
    pub fn parse(name: &str) -> Option<Section> {
        match name {
            "device" => Some(Section::Device),
            "nftset" => Some(Section::NftSet),
            "task" => Some(Section::Task),
            _ => None,
        }
    }

    /// The section that a path such as `device.npu.thread` leads into, and the rest of the path.
    pub fn of_path(path: &str) -> Option<(Section, &str)> {
        let (section, rest) = path.split_once('.')?;
        Some((Section::parse(section)?, rest))
    }

    /// As it stands before the dot of a path.
    pub fn name(self) -> &'static str {
        Section::NAMES[self as usize]
    }

    /// The keys of its tables.
    pub fn keys(self) -> &'static [Key] {
        match self {
            Section::Device => DEVICE_KEYS,
            Section::NftSet => NFT_SET_KEYS,
            Section::Task => TASK_KEYS,
        }
    }

    /// What to write in place of something that is none of its tables.
    pub(super) fn how_to_write(self) -> &'static str {
        match self {
            Section::Device => {
                "device is a section of tables: write [device.NAME] and its keys below"
            }
            Section::NftSet => {
                "nftset is a section of tables: write [nftset.NAME] and its keys below"
            }
            Section::Task => "task is a list of tables: write [[task]] and its keys below",
        }
    }

    /// "; did you mean ...?", where a key is near.
    fn near(self, wrong: &str) -> String {
        let mut words = OTHER_WORDS.iter().filter(|_| self == Section::Task);
        match words.find(|(word, _)| *word == wrong) {
            Some((_, key)) => format!("; did you mean {key}?"),
            None => suggest(wrong, self.keys().iter().map(Key::name)),
        }
    }

    fn position(self, key: &str) -> Option<usize> {
        self.keys().iter().position(|known| known.name() == key)
    }
}

/// A table with a name of the user's choice.
#[derive(Debug, Clone)]
pub struct Table {
    /// The name.
    pub name: String,
    /// Where it was first named.
    pub origin: Origin,
    /// What was set, in the order of the section's keys.
    values: Vec<Option<Setting>>,
    /// Whether some value was refused.
    pub refused: bool,
}

impl Table {
    /// What a `[device.NAME]` says of a key, if anything.
    pub fn of_device(&self, id: DeviceKey) -> Option<&Setting> {
        self.values.get(id as usize)?.as_ref()
    }

    /// What a `[nftset.NAME]` says of a key, if anything.
    pub fn of_nft_set(&self, id: NftSetKey) -> Option<&Setting> {
        self.values.get(id as usize)?.as_ref()
    }

    /// What a `[[task]]` says of a key, if anything.
    pub fn of_task(&self, id: TaskKey) -> Option<&Setting> {
        self.values.get(id as usize)?.as_ref()
    }

    /// This table, with what `running` says where a key changes at a start only.
    pub(super) fn live_over(&self, section: Section, running: &Table) -> Table {
        let mut mixture = self.clone();
        for (at, key) in section.keys().iter().enumerate() {
            if !key.is_live() {
                mixture.values[at] = running.values[at].clone();
            }
        }
        mixture
    }

    /// The settings in the order of the section's keys.
    pub fn settings(&self) -> &[Option<Setting>] {
        &self.values
    }
}

/// A key of a table, as a layer names it.
#[derive(Clone, Copy)]
struct Place<'a> {
    section: Section,
    table: &'a str,
    key: &'a str,
}

impl Layer<'_> {
    /// `[device]` or `[nftset]`, which are made of tables only.
    pub(super) fn read_tables(&mut self, section: Section, tables: &DeTable<'_>) {
        for (name, value) in in_order(tables) {
            let table_name = name.get_ref();
            match value.get_ref() {
                DeValue::Table(table) => self.read_table(section, table_name, name.span(), table),
                _ => {
                    let section = section.name();
                    self.problem(
                        name.span(),
                        &format!(
                            "{section}.{table_name}: every {section} is a table of its own: write [{section}.NAME]"
                        ),
                    );
                }
            }
        }
    }

    /// `[[task]]`, of which each has a name. A file's task goes over that of the same name in the files before.
    pub(super) fn read_tasks(&mut self, tables: &DeArray<'_>) {
        let mut names = BTreeSet::new();
        for value in tables.iter() {
            let DeValue::Table(table) = value.get_ref() else {
                self.problem(value.span(), Section::Task.how_to_write());
                continue;
            };
            let key = TaskKey::Name.key();
            let name = table.iter().find(|(name, _)| name.get_ref() == key.name());
            let Some((_, name)) = name else {
                self.problem(value.span(), "task: name is missing");
                continue;
            };
            match name.get_ref().as_str() {
                None => {
                    let found = owned(name).map_or_else(|found| found, |found| found.to_string());
                    let complaint = key.kind.complaint(&found, key.unit);
                    self.problem(name.span(), &format!("task.name: {complaint}"));
                }
                Some(text) if !names.insert(text.to_owned()) => self.problem(
                    name.span(),
                    &format!(
                        "task.name: there is already a task {text}; each needs a name of its own"
                    ),
                ),
                Some(text) => self.read_table(Section::Task, text, value.span(), table),
            }
        }
    }

    fn read_table(&mut self, section: Section, name: &str, at: Range<usize>, keys: &DeTable<'_>) {
        self.table(section, name, at);
        for (key, value) in in_order(keys) {
            let place = Place {
                section,
                table: name,
                key: key.get_ref(),
            };
            self.read_table_key(place, key.span(), value);
        }
    }

    /// `--set device.NAME.KEY=VALUE`, or an option: `device.NAME.options.OPTION`; the same for tasks.
    pub(super) fn set_in_table(&mut self, section: Section, path: &str, rest: &str, value: &str) {
        let Some((table, key)) = rest.split_once('.') else {
            let section = section.name();
            self.problem(0..0, &format!("{path}: expected {section}.NAME.KEY=VALUE"));
            return;
        };
        let place = Place {
            section,
            table,
            key,
        };
        self.table(section, table, 0..0);
        let map = key.split_once('.').and_then(|(map, entry)| {
            let position = section.position(map)?;
            let Kind::Map(kind) = section.keys()[position].kind else {
                return None;
            };
            Some((position, kind, entry))
        });
        let is_text = match (map, section.position(key)) {
            (Some((_, kind, _)), _) => kind == Entry::Text,
            (None, position) => position.is_some_and(|at| section.keys()[at].kind.is_text()),
        };
        let value = match loose(value, is_text) {
            Ok(value) => value,
            Err(message) => return self.refuse_in_table(place, 0..0, &message),
        };
        match map {
            Some((position, kind, entry)) => {
                self.read_table_entry(place, position, kind, entry, 0..0, &value);
            }
            None => self.read_table_key(place, 0..0, &value),
        }
    }

    fn read_table_key(&mut self, place: Place<'_>, at: Range<usize>, value: &Spanned<DeValue<'_>>) {
        let Place {
            section,
            table,
            key: name,
        } = place;
        let Some(position) = section.position(name) else {
            let near = section.near(name);
            self.table(section, table, at.clone()).refused = true;
            let section = section.name();
            return self.problem(at, &format!("unknown key {section}.{table}.{name}{near}"));
        };
        let key = &section.keys()[position];
        if let (Kind::Map(kind), DeValue::Table(entries)) = (key.kind, value.get_ref()) {
            let empty = Value::Table(toml::Table::new());
            self.accept_in_table(place, position, at, empty);
            for (entry, value) in in_order(entries) {
                self.read_table_entry(place, position, kind, entry.get_ref(), entry.span(), value);
            }
            return;
        }
        match owned(value).and_then(|value| key.kind.check(value)) {
            Ok(value) => self.accept_in_table(place, position, at, value),
            Err(found) => {
                let complaint = key.kind.complaint(&found, key.unit);
                self.refuse_in_table(place, at, &complaint);
            }
        }
    }

    fn read_table_entry(
        &mut self,
        place: Place<'_>,
        position: usize,
        kind: Entry,
        name: &str,
        at: Range<usize>,
        value: &Spanned<DeValue<'_>>,
    ) {
        match self.entry(kind, at.clone(), value) {
            Ok(entry) => {
                let empty =
                    Setting::accepted(Value::Table(toml::Table::new()), entry.origin.clone());
                let table = self.table(place.section, place.table, at);
                let map = table.values[position].get_or_insert(empty);
                map.entries.insert(name.to_owned(), entry);
            }
            Err(complaint) => {
                let path = format!("{}.{name}", place.section.keys()[position].name());
                self.refuse_in_table(
                    Place {
                        key: &path,
                        ..place
                    },
                    at,
                    &complaint,
                );
            }
        }
    }

    fn accept_in_table(
        &mut self,
        place: Place<'_>,
        position: usize,
        at: Range<usize>,
        value: Value,
    ) {
        let setting = Setting::accepted(value, self.source.origin(at.clone()));
        self.table(place.section, place.table, at).values[position] = Some(setting);
    }

    fn refuse_in_table(&mut self, place: Place<'_>, at: Range<usize>, message: &str) {
        let Place {
            section,
            table,
            key,
        } = place;
        self.table(section, table, at.clone()).refused = true;
        self.problem(at, &format!("{}.{table}.{key}: {message}", section.name()));
    }

    /// The settings so far of a table; new where this layer is the first to name it.
    fn table(&mut self, section: Section, name: &str, at: Range<usize>) -> &mut Table {
        let origin = self.source.origin(at);
        let tables = match section {
            Section::Device => &mut self.settings.devices,
            Section::NftSet => &mut self.settings.nft_sets,
            Section::Task => &mut self.settings.tasks,
        };
        let position = tables.iter().position(|table| table.name == name);
        let position = position.unwrap_or_else(|| {
            tables.push(Table {
                name: name.to_owned(),
                origin,
                values: vec![None; section.keys().len()],
                refused: false,
            });
            tables.len() - 1
        });
        &mut tables[position]
    }
}
