//! How one source changes the settings of the layers below it.

use std::ops::Range;
use std::sync::Arc;

use toml::de::{DeTable, DeValue};
use toml::{Spanned, Value};

use super::values::{in_order, line_and_column, loose, one_line, owned, suggest};
use super::{Section, Settings};
use crate::keys::{KEYS, Key, position, sections};
use crate::kind::{Entry, Kind};
use crate::nearest::nearest;
use crate::origin::Origin;
use crate::setting::{EntrySetting, Setting};

/// A shorter name for the variable of a key, which wins where both are set.
const SHORT_VARIABLE: (&str, &str) = ("FENXI_LOG", "FENXI_LOG_LEVEL");

/// What a layer reads from.
pub(super) enum Source<'a> {
    BuiltIn,
    File { name: Arc<str>, text: &'a str },
    Variable(Arc<str>),
    Set,
}

impl Source<'_> {
    fn file_name(&self) -> &str {
        match self {
            Source::File { name, .. } => name,
            _ => "",
        }
    }

    pub(super) fn origin(&self, at: Range<usize>) -> Origin {
        match self {
            Source::BuiltIn => Origin::BuiltIn,
            Source::File { name, text } => Origin::File {
                file: name.clone(),
                line: line_and_column(text, at.start).0,
            },
            Source::Variable(name) => Origin::Variable(name.clone()),
            Source::Set => Origin::Set,
        }
    }
}

/// One source, with the settings so far and the problems found in them.
pub(super) struct Layer<'a> {
    pub(super) source: Source<'a>,
    pub(super) settings: &'a mut Settings,
    problems: &'a mut Vec<String>,
}

impl<'a> Layer<'a> {
    pub(super) fn new(
        source: Source<'a>,
        settings: &'a mut Settings,
        problems: &'a mut Vec<String>,
    ) -> Layer<'a> {
        Layer {
            source,
            settings,
            problems,
        }
    }

    pub(super) fn read_defaults(&mut self) {
        for (position, key) in KEYS.iter().enumerate() {
            self.read_raw(position, key.default);
        }
    }

    pub(super) fn read_file(&mut self, text: &str) {
        let (root, errors) = DeTable::parse_recoverable(text);
        let start = |error: &toml::de::Error| error.span().map_or(0, |span| span.start);
        // One mistake often makes the parser report more further on, so only the first is certainly real.
        if let Some(first) = errors.iter().min_by_key(|error| start(error)) {
            let (line, column) = line_and_column(text, start(first));
            let file = self.source.file_name();
            self.problems.push(format!(
                "{file}:{line}:{column}: not TOML: {}",
                one_line(first.message())
            ));
            return;
        }
        for (name, value) in in_order(root.get_ref()) {
            self.read_top(name.get_ref(), name.span(), value);
        }
    }

    /// A name at the top of a file: a section, or a table with a name of the user's choice.
    fn read_top(&mut self, name: &str, at: Range<usize>, value: &Spanned<DeValue<'_>>) {
        let is_section = sections().contains(&name);
        match (Section::parse(name), value.get_ref()) {
            (Some(section @ (Section::Device | Section::NftSet)), DeValue::Table(tables)) => {
                self.read_tables(section, tables);
            }
            (Some(Section::Task), DeValue::Array(tables)) => self.read_tasks(tables),
            (Some(section), _) => self.problem(at, section.how_to_write()),
            (None, DeValue::Table(table)) if is_section => {
                for (key, value) in in_order(table) {
                    let path = format!("{name}.{}", key.get_ref());
                    match position(&path) {
                        Some(position) => self.read_key(position, key.span(), value),
                        None => self.unknown_key(key.span(), &path),
                    }
                }
            }
            (None, DeValue::Table(_)) => {
                let known = sections().into_iter().chain(Section::NAMES);
                let near = nearest(name, known);
                let near = near.map_or(String::new(), |near| match Section::parse(near) {
                    Some(Section::Task) => "; did you mean [[task]]?".to_owned(),
                    _ => format!("; did you mean [{near}]?"),
                });
                self.problem(at, &format!("unknown section [{name}]{near}"));
            }
            _ if is_section => self.problem(
                at,
                &format!("{name} is a section: write [{name}] and its keys below"),
            ),
            _ => self.unknown_key(at, name),
        }
    }

    pub(super) fn read_variable(&mut self, name: &str, value: &str) {
        let whole = match SHORT_VARIABLE {
            (short, whole) if name == short => whole,
            _ => name,
        };
        match KEYS.iter().position(|key| key.variable() == whole) {
            Some(position) => self.read_raw(position, value),
            None => {
                let known: Vec<_> = KEYS.iter().map(Key::variable).collect();
                let near = suggest(name, known.iter().map(String::as_str));
                self.problem(0..0, &format!("no key has this environment variable{near}"));
            }
        }
    }

    pub(super) fn read_set(&mut self, set: &str) {
        let Some((path, value)) = set.split_once('=') else {
            self.problem(0..0, &format!("{set}: expected key=value, as in flow.k=10"));
            return;
        };
        let path = path.trim();
        if let Some((section, rest)) = Section::of_path(path) {
            self.set_in_table(section, path, rest, value.trim());
        } else if let Some((position, entry, label)) = map_entry(path) {
            match loose(value.trim(), false) {
                Ok(value) => self.read_entry(position, entry, label, 0..0, &value),
                Err(message) => self.problem(0..0, &format!("{path}: {message}")),
            }
        } else if let Some(position) = position(path) {
            self.read_raw(position, value.trim());
        } else {
            self.unknown_key(0..0, path);
        }
    }

    /// A value given by itself: a default, a variable or the right side of `--set`.
    fn read_raw(&mut self, position: usize, text: &str) {
        match loose(text, KEYS[position].kind.is_text()) {
            Ok(value) => self.read_key(position, 0..0, &value),
            Err(message) => self.refuse(position, 0..0, &message),
        }
    }

    fn read_key(&mut self, position: usize, at: Range<usize>, value: &Spanned<DeValue<'_>>) {
        let key = &KEYS[position];
        if let (Kind::Map(entry), DeValue::Table(table)) = (key.kind, value.get_ref()) {
            // A table replaces the whole map of the layers below.
            self.accept(position, at, Value::Table(toml::Table::new()));
            for (name, value) in in_order(table) {
                self.read_entry(position, entry, name.get_ref(), name.span(), value);
            }
            return;
        }
        let value = owned(value).and_then(|value| key.kind.check(value));
        match value {
            Ok(value) => self.accept(position, at, value),
            Err(found) => self.refuse(position, at, &key.kind.complaint(&found, key.unit)),
        }
    }

    fn read_entry(
        &mut self,
        position: usize,
        entry: Entry,
        name: &str,
        at: Range<usize>,
        value: &Spanned<DeValue<'_>>,
    ) {
        match self.entry(entry, at.clone(), value) {
            Ok(mut setting) => {
                let built_in = self.settings.built_in[position].get(name);
                let is_source = matches!(self.source, Source::BuiltIn);
                setting.is_default =
                    is_source || built_in.is_some_and(|known| known.value == setting.value);
                let entries = &mut self.settings.values[position].entries;
                entries.insert(name.to_owned(), setting);
            }
            Err(complaint) => {
                self.problem(at, &format!("{}.{name}: {complaint}", KEYS[position].path));
            }
        }
    }

    pub(super) fn entry(
        &self,
        entry: Entry,
        at: Range<usize>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<EntrySetting, String> {
        let value = owned(value).and_then(|value| entry.check(value));
        Ok(EntrySetting {
            value: value.map_err(|found| entry.complaint(&found))?,
            origin: self.source.origin(at),
            is_default: false,
        })
    }

    fn accept(&mut self, position: usize, at: Range<usize>, value: Value) {
        self.settings.values[position] = Setting::accepted(value, self.source.origin(at));
    }

    fn refuse(&mut self, position: usize, at: Range<usize>, message: &str) {
        self.settings.values[position].refused = true;
        self.problem(at, &format!("{}: {message}", KEYS[position].path));
    }

    fn unknown_key(&mut self, at: Range<usize>, path: &str) {
        let near = suggest(path, KEYS.iter().map(|key| key.path));
        self.problem(at, &format!("unknown key {path}{near}"));
    }

    pub(super) fn problem(&mut self, at: Range<usize>, message: &str) {
        self.problems
            .push(format!("{}: {message}", self.source.origin(at)));
    }
}

/// The map that a path such as `tag.dscp.TLS` leads into, and the name of the entry. Quotes around the name, which TOML needs
/// for some, are allowed.
fn map_entry(path: &str) -> Option<(usize, Entry, &str)> {
    KEYS.iter().enumerate().find_map(|(position, key)| {
        let Kind::Map(entry) = key.kind else {
            return None;
        };
        let name = path.strip_prefix(key.path)?.strip_prefix('.')?;
        Some((position, entry, name.trim_matches('"')))
    })
}
