//! How one source changes the settings of the layers below it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use toml::de::{DeArray, DeTable, DeValue};
use toml::{Spanned, Value};

use super::values::{in_order, line_and_column, loose, one_line, owned};
use crate::keys::{Key, Section, Shape};
use crate::kind::Kind;
use crate::origin::Origin;
use crate::setting::{EntrySetting, Setting};
use crate::settings::{Settings, Table};
use crate::{nearest, suggest};

/// A shorter name for the variable of a key, which wins where both are set.
const SHORT_VARIABLE: (&str, &str) = ("FENXI_LOG", "FENXI_LOG_LEVEL");

/// Words that others use for a key of a task.
const OTHER_WORDS: [(&str, &str); 2] = [("goal", "latency_goal_ms"), ("bundle", "model")];

/// What a layer reads from.
pub(super) enum Source<'a> {
    File { name: Arc<str>, text: &'a str },
    Variable(Arc<str>),
    Set,
}

impl Source<'_> {
    fn origin(&self, at: Range<usize>) -> Origin {
        match self {
            Source::File { name, text } => {
                Origin::File { file: name.clone(), line: line_and_column(text, at.start).0 }
            }
            Source::Variable(name) => Origin::Variable(name.clone()),
            Source::Set => Origin::Set,
        }
    }
}

/// One source, with the settings so far and the problems found in them.
pub(super) struct Layer<'a> {
    source: Source<'a>,
    settings: &'a mut Settings,
    problems: &'a mut Vec<String>,
}

/// Positions of a table in the settings, and of a key in its section.
#[derive(Clone, Copy)]
struct Place {
    table: usize,
    key: usize,
}

impl<'a> Layer<'a> {
    pub(super) fn new(
        source: Source<'a>,
        settings: &'a mut Settings,
        problems: &'a mut Vec<String>,
    ) -> Layer<'a> {
        Layer { source, settings, problems }
    }

    pub(super) fn read_file(&mut self, text: &str) {
        let (root, errors) = DeTable::parse_recoverable(text);
        let start = |error: &toml::de::Error| error.span().map_or(0, |span| span.start);
        // One mistake often makes the parser report more further on, so only the first is certainly
        // real.
        if let Some(first) = errors.iter().min_by_key(|error| start(error)) {
            let (line, column) = line_and_column(text, start(first));
            let Source::File { name, .. } = &self.source else {
                return;
            };
            let message = one_line(first.message());
            self.problems.push(format!("{name}:{line}:{column}: not TOML: {message}"));
            return;
        }
        for (name, value) in in_order(root.get_ref()) {
            self.read_top(name.get_ref(), name.span(), value);
        }
    }

    /// A name at the top of a file.
    fn read_top(&mut self, name: &str, at: Range<usize>, value: &Spanned<DeValue<'_>>) {
        let Some(section) = self.settings.section(name) else {
            return match value.get_ref() {
                DeValue::Table(_) => self.unknown_section(name, at),
                _ => self.unknown_path(name, at),
            };
        };
        match (section.shape, value.get_ref()) {
            (Shape::One, DeValue::Table(keys)) => self.read_table(section, "", at, keys),
            (Shape::Named, DeValue::Table(tables)) => self.read_tables(section, tables),
            (Shape::List, DeValue::Array(tables)) => self.read_list(section, tables),
            _ => self.problem(at, &section.how_to_write()),
        }
    }

    /// `[device]`, which is made of tables only.
    fn read_tables(&mut self, section: &'static Section, tables: &DeTable<'_>) {
        for (table, value) in in_order(tables) {
            match value.get_ref() {
                DeValue::Table(keys) => {
                    self.read_table(section, table.get_ref(), table.span(), keys);
                }
                _ => {
                    let (section, table_name) = (section.name, table.get_ref());
                    let line = format!(
                        "{section}.{table_name}: every {section} is a table of its own: write \
                         [{section}.NAME]"
                    );
                    self.problem(table.span(), &line);
                }
            }
        }
    }

    /// `[[task]]`. A task overrides the task of the same name in earlier files.
    fn read_list(&mut self, section: &'static Section, tables: &DeArray<'_>) {
        let mut names = BTreeSet::new();
        let of = section.name;
        for value in tables.iter() {
            let DeValue::Table(table) = value.get_ref() else {
                self.problem(value.span(), &section.how_to_write());
                continue;
            };
            let Some((_, name)) = table.iter().find(|(name, _)| name.get_ref() == "name") else {
                self.problem(value.span(), &format!("{of}: name is missing"));
                continue;
            };
            let line = match name.get_ref().as_str() {
                None => {
                    let found = owned(name).map_or_else(|found| found, |found| found.to_string());
                    let key = section.keys.iter().find(|key| key.name() == "name");
                    key.map(|key| key.kind.complaint(&found, key.unit)).unwrap_or_default()
                }
                Some(text) if !names.insert(text.to_owned()) => {
                    format!("there is already a {of} {text}; each needs a name of its own")
                }
                Some(text) => {
                    self.read_table(section, text, value.span(), table);
                    continue;
                }
            };
            self.problem(name.span(), &format!("{of}.name: {line}"));
        }
    }

    fn read_table(
        &mut self,
        section: &'static Section,
        name: &str,
        at: Range<usize>,
        keys: &DeTable<'_>,
    ) {
        let table = self.table(section, name, at);
        for (name, value) in in_order(keys) {
            match section.position(name.get_ref()) {
                Some(key) => self.read_key(Place { table, key }, name.span(), value),
                None => self.unknown_key(table, name.get_ref(), name.span()),
            }
        }
    }

    pub(super) fn read_variable(&mut self, name: &str, value: &str) {
        let whole = match SHORT_VARIABLE {
            (short, whole) if name == short => whole,
            _ => name,
        };
        let place = self.places().find(|(_, key)| key.variable() == whole);
        match place.map(|(place, _)| place) {
            Some(place) => self.read_raw(place, value),
            None => {
                let known: Vec<_> = self.places().map(|(_, key)| key.variable()).collect();
                let near = suggest(name, known.iter().map(String::as_str));
                self.problem(0..0, &format!("no key has this environment variable{near}"));
            }
        }
    }

    /// The keys of sections that are one table.
    fn places(&self) -> impl Iterator<Item = (Place, &'static Key)> {
        let tables = self.settings.tables.iter().enumerate();
        let single = tables.filter(|(_, table)| table.section.shape == Shape::One);
        single.flat_map(|(table, single)| {
            let keys = single.section.keys.iter().enumerate();
            keys.map(move |(at, key)| (Place { table, key: at }, key))
        })
    }

    /// `SECTION.KEY=VALUE`, or an entry of a map: `SECTION.KEY.ENTRY=VALUE`. In a section of
    /// tables, the table's name follows the section's.
    pub(super) fn read_set(&mut self, set: &str) {
        let Some((path, value)) = set.split_once('=') else {
            self.problem(0..0, &format!("{set}: expected key=value, as in flow.k=10"));
            return;
        };
        let (path, value) = (path.trim(), value.trim());
        let section = path.split_once('.');
        let section = section.and_then(|(name, rest)| Some((self.settings.section(name)?, rest)));
        let Some((section, rest)) = section else {
            return self.unknown_path(path, 0..0);
        };
        let (table, rest) = match (section.shape, rest.split_once('.')) {
            (Shape::One, _) => (self.table(section, "", 0..0), rest),
            (_, Some((table, rest))) => (self.table(section, table, 0..0), rest),
            (_, None) => {
                let section = section.name;
                self.problem(0..0, &format!("{path}: expected {section}.NAME.KEY=VALUE"));
                return;
            }
        };
        let (name, entry) = match rest.split_once('.') {
            Some((map, entry)) => (map, Some(entry)),
            None => (rest, None),
        };
        let key = section.position(name);
        match (key.map(|key| (key, section.keys[key].kind)), entry) {
            (Some((key, Kind::Map(kind))), Some(entry)) => {
                // Quotes around the name, which TOML needs for some, are allowed.
                let entry = entry.trim_matches('"');
                let is_text = kind.is_text() && section.shape != Shape::One;
                match loose(value, is_text) {
                    Ok(value) => self.read_entry(Place { table, key }, kind, entry, 0..0, &value),
                    Err(message) => {
                        self.settings.tables[table].refused = true;
                        self.problem(0..0, &format!("{path}: {message}"));
                    }
                }
            }
            (Some((key, _)), None) => self.read_raw(Place { table, key }, value),
            _ => self.unknown_key(table, rest, 0..0),
        }
    }

    /// A value given by itself: a variable or the right side of `--set`.
    fn read_raw(&mut self, place: Place, text: &str) {
        match loose(text, self.key(place).kind.is_text()) {
            Ok(value) => self.read_key(place, 0..0, &value),
            Err(message) => self.refuse(place, 0..0, &message),
        }
    }

    fn read_key(&mut self, place: Place, at: Range<usize>, value: &Spanned<DeValue<'_>>) {
        let key = self.key(place);
        if let (Kind::Map(kind), DeValue::Table(entries)) = (key.kind, value.get_ref()) {
            // A table replaces the whole map of the layers below.
            self.accept(place, at, Value::Table(toml::Table::new()));
            for (name, value) in in_order(entries) {
                self.read_entry(place, kind, name.get_ref(), name.span(), value);
            }
            return;
        }
        match owned(value).and_then(|value| key.kind.check(value)) {
            Ok(value) => self.accept(place, at, value),
            Err(found) => self.refuse(place, at, &key.kind.complaint(&found, key.unit)),
        }
    }

    fn read_entry(
        &mut self,
        place: Place,
        kind: &Kind,
        name: &str,
        at: Range<usize>,
        value: &Spanned<DeValue<'_>>,
    ) {
        let (origin, key) = (self.source.origin(at.clone()), self.key(place));
        let table = &mut self.settings.tables[place.table];
        match owned(value).and_then(|value| kind.check(value)) {
            Ok(value) => {
                let known = Setting::built_in(key).entries.remove(name);
                let is_default = table.section.shape == Shape::One
                    && known.is_some_and(|known| known.value == value);
                let empty = Value::Table(toml::Table::new());
                let map = table.values[place.key]
                    .get_or_insert_with(|| Setting::accepted(empty, origin.clone()));
                let entry = EntrySetting { value, origin, is_default };
                map.entries.insert(name.to_owned(), entry);
            }
            Err(found) => {
                table.refused = true;
                let path = table.path(key.name());
                let complaint = kind.complaint(&found, "");
                self.problem(at, &format!("{path}.{name}: {complaint}"));
            }
        }
    }

    fn key(&self, place: Place) -> &'static Key {
        &self.settings.tables[place.table].section.keys[place.key]
    }

    fn accept(&mut self, place: Place, at: Range<usize>, value: Value) {
        let setting = Setting::accepted(value, self.source.origin(at));
        self.settings.tables[place.table].values[place.key] = Some(setting);
    }

    fn refuse(&mut self, place: Place, at: Range<usize>, message: &str) {
        let name = self.key(place).name();
        let table = &mut self.settings.tables[place.table];
        table.refused = true;
        if let Some(setting) = &mut table.values[place.key] {
            setting.refused = true;
        }
        let path = table.path(name);
        self.problem(at, &format!("{path}: {message}"));
    }

    /// The position of a table; of a new one where this layer is the first to name it.
    fn table(&mut self, section: &'static Section, name: &str, at: Range<usize>) -> usize {
        let origin = self.source.origin(at);
        let tables = &mut self.settings.tables;
        let is_it = |table: &Table| table.section.name == section.name && table.name == name;
        tables.iter().position(is_it).unwrap_or_else(|| {
            tables.push(Table::new(section, name, origin));
            tables.len() - 1
        })
    }

    fn unknown_key(&mut self, table: usize, name: &str, at: Range<usize>) {
        let table = &mut self.settings.tables[table];
        let (section, path) = (table.section, table.path(name));
        if section.shape == Shape::One {
            return self.unknown_path(&path, at);
        }
        table.refused = true;
        let mut words = OTHER_WORDS.iter().filter(|_| section.shape == Shape::List);
        let near = match words.find(|(word, _)| *word == name) {
            Some((_, key)) => format!("; did you mean {key}?"),
            None => suggest(name, section.keys.iter().map(Key::name)),
        };
        self.problem(at, &format!("unknown key {path}{near}"));
    }

    fn unknown_path(&mut self, path: &str, at: Range<usize>) {
        let near = suggest(path, self.places().map(|(_, key)| key.path));
        self.problem(at, &format!("unknown key {path}{near}"));
    }

    fn unknown_section(&mut self, name: &str, at: Range<usize>) {
        let near = nearest(name, self.settings.sections.iter().map(|section| section.name));
        let is_list = |near| {
            let section = self.settings.section(near);
            section.is_some_and(|section| section.shape == Shape::List)
        };
        let near = near.map_or(String::new(), |near| match is_list(near) {
            true => format!("; did you mean [[{near}]]?"),
            false => format!("; did you mean [{near}]?"),
        });
        self.problem(at, &format!("unknown section [{name}]{near}"));
    }

    fn problem(&mut self, at: Range<usize>, message: &str) {
        self.problems.push(format!("{}: {message}", self.source.origin(at)));
    }
}
