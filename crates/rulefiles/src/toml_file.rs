//! TOML files: `[[rule]]`, `[[include]]` and `[sets]`, in file order.

use std::borrow::Cow;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::draft::{Draft, Key};
use crate::error::{self, Problem};
use crate::nearest::suggest;
use crate::sets::Sets;

/// A problem and its line, from 1.
pub type At = (u32, Problem);

const TABLES: [&str; 3] = ["rule", "include", "sets"];

/// Offsets of line starts, to find the line of a byte.
struct LineStarts(Vec<usize>);

impl LineStarts {
    fn new(text: &str) -> LineStarts {
        let starts = text.match_indices('\n').map(|(at, _)| at + 1);
        LineStarts(std::iter::once(0).chain(starts).collect())
    }

    fn line(&self, at: usize) -> u32 {
        self.0.partition_point(|start| *start <= at) as u32
    }
}

pub struct Document<'t> {
    root: Spanned<DeTable<'t>>,
    starts: LineStarts,
}

/// A rule or an include; their order matters.
pub enum Item<'t> {
    Rule(Entries<'t>),
    Include(Entries<'t>),
}

/// The keys of a table, in file order.
pub struct Entries<'t> {
    pub line: u32,
    /// Name, line and value of each key.
    pub all: Vec<(Cow<'t, str>, u32, &'t DeValue<'t>)>,
}

impl<'t> Document<'t> {
    pub fn parse(text: &'t str) -> Result<Document<'t>, At> {
        let starts = LineStarts::new(text);
        let (root, errors) = DeTable::parse_recoverable(text);
        // After one mistake the parser often reports others that are not real.
        let start = |error: &toml::de::Error| error.span().map_or(0, |span| span.start);
        match errors.iter().min_by_key(|error| start(error)) {
            Some(first) => Err((starts.line(start(first)), not_toml(first))),
            None => Ok(Document { root, starts }),
        }
    }

    pub fn items(&'t self) -> Result<Vec<Item<'t>>, At> {
        let mut items = Vec::new();
        for (name, value) in self.root.get_ref() {
            let line = self.starts.line(name.span().start);
            let name = name.get_ref().as_ref();
            let is_rule = match (name, value.get_ref()) {
                ("sets", DeValue::Table(_)) => continue,
                ("rule" | "include", DeValue::Array(_)) => name == "rule",
                _ => return Err((line, unknown_top(name))),
            };
            for table in value.get_ref().as_array().into_iter().flatten() {
                let at = table.span().start;
                let DeValue::Table(fields) = table.get_ref() else {
                    return Err((self.starts.line(at), unknown_top(name)));
                };
                let first = fields.keys().map(|key| key.span().start).min();
                let entries = self.entries(at, fields)?;
                items.push((first.unwrap_or(at), is_rule, entries));
            }
        }
        items.sort_by_key(|(at, ..)| *at);
        let item = |(_, is_rule, entries)| match is_rule {
            true => Item::Rule(entries),
            false => Item::Include(entries),
        };
        Ok(items.into_iter().map(item).collect())
    }

    pub fn sets(&'t self) -> Result<Entries<'t>, At> {
        let table = self.root.get_ref().get("sets").map(|table| table.get_ref());
        let all = table.and_then(DeValue::as_table).map(|table| self.flat(table));
        Ok(Entries { line: 1, all: all.unwrap_or_default() })
    }

    fn flat(&'t self, table: &'t DeTable<'t>) -> Vec<(Cow<'t, str>, u32, &'t DeValue<'t>)> {
        let mut all: Vec<_> = table.iter().collect();
        all.sort_by_key(|(key, _)| key.span().start);
        let entry = |(key, value): (&'t Spanned<_>, &'t Spanned<DeValue<'t>>)| {
            let name: &Cow<'t, str> = key.get_ref();
            (Cow::Borrowed(name.as_ref()), self.starts.line(key.span().start), value.get_ref())
        };
        all.into_iter().map(entry).collect()
    }

    /// The keys of a rule or an include; keys of the table `over` become `over.KEY`.
    fn entries(&'t self, at: usize, table: &'t DeTable<'t>) -> Result<Entries<'t>, At> {
        let mut all = Vec::with_capacity(table.len());
        for (name, line, value) in self.flat(table) {
            match (name.as_ref(), value) {
                ("over", DeValue::Table(bounds)) => {
                    let bounds = self.flat(bounds).into_iter();
                    all.extend(bounds.map(|(name, line, value)| {
                        (Cow::Owned(format!("over.{name}")), line, value)
                    }));
                }
                ("over", value) => {
                    let expected = "a table such as over = { bytes = \"10 MiB\" }";
                    return Err((line, Problem::value("over", &found(value), expected)));
                }
                _ => all.push((name, line, value)),
            }
        }
        Ok(Entries { line: self.starts.line(at), all })
    }
}

pub fn rule(entries: &Entries<'_>, sets: &Sets) -> Result<Draft, At> {
    let mut draft = Draft::default();
    for (name, line, value) in &entries.all {
        set(&mut draft, name, value, sets).map_err(|problem| (*line, problem))?;
    }
    Ok(draft)
}

/// A rule from text without braces: `source = "10.0.0.0/8", drop = true`.
pub fn one_rule(text: &str) -> Result<Draft, Problem> {
    let braced = format!("{{{text}}}");
    let value = DeValue::parse(&braced).map_err(|error| not_toml(&error))?;
    let DeValue::Table(table) = value.get_ref() else {
        return Err(Problem::NotToml("expected keys and values".to_owned()));
    };
    // The text is a single line, so any key's line will do.
    let document =
        Document { root: Spanned::new(0..0, table.clone()), starts: LineStarts(vec![0]) };
    let entries = document.entries(0, document.root.get_ref());
    let entries = entries.map_err(|(_, problem)| problem)?;
    rule(&entries, &Sets::default()).map_err(|(_, problem)| problem)
}

/// Sets a key of a rule or of an include.
pub fn set(draft: &mut Draft, name: &str, value: &DeValue<'_>, sets: &Sets) -> Result<(), Problem> {
    let key = Key::parse("key", name)?;
    let texts = texts(key.name(), value)?;
    let texts: Vec<&str> = texts.iter().map(AsRef::as_ref).collect();
    draft.set(key, &texts, sets)
}

/// The text of a value, or of each value of a list.
pub fn texts<'v>(key: &'static str, value: &'v DeValue<'_>) -> Result<Vec<Cow<'v, str>>, Problem> {
    let text = |value: &'v DeValue<'_>| match value {
        DeValue::String(text) => Ok(Cow::Borrowed(text.as_ref())),
        DeValue::Integer(number) if number.radix() == 10 => Ok(Cow::Borrowed(number.as_str())),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map(|number| Cow::Owned(number.to_string()))
            .map_err(|_| Problem::value(key, number.as_str(), "a smaller number")),
        DeValue::Float(number) => Ok(Cow::Borrowed(number.as_str())),
        DeValue::Boolean(truth) => Ok(Cow::Borrowed(if *truth { "true" } else { "false" })),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
            Err(Problem::value(key, &found(value), "a text, a number or a list of them"))
        }
    };
    match value {
        DeValue::Array(values) => values.iter().map(|value| text(value.get_ref())).collect(),
        value => Ok(vec![text(value)?]),
    }
}

/// A value for a message; lists and tables by type.
pub fn found(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => number.as_str().to_owned(),
        DeValue::Float(number) => number.as_str().to_owned(),
        DeValue::Boolean(truth) => truth.to_string(),
        DeValue::Datetime(when) => when.to_string(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

fn unknown_top(name: &str) -> Problem {
    let near = match name {
        "rule" | "include" => format!("; write [[{name}]] for each, and its keys below"),
        "sets" => "; write [sets], and below it NAME = [\"10.0.0.0/8\", ...] or NAME = { file = \
                   \"list.txt\" }"
            .to_owned(),
        _ if Key::parse("key", name).is_ok() => "; keys of a rule stand below [[rule]]".to_owned(),
        _ => suggest(name, TABLES.into_iter()),
    };
    Problem::UnknownKey { what: "table", key: error::shown(name), near }
}

fn not_toml(error: &toml::de::Error) -> Problem {
    let lines: Vec<&str> = error.message().lines().map(str::trim).collect();
    Problem::NotToml(lines.join("; "))
}
