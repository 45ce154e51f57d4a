//! Reads rule files and their includes.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use policy::{RuleNumber, RuleSet};

use crate::draft::{Draft, Parts, word};
use crate::error::{Problem, ReadError};
use crate::expand;
use crate::format::Format;
use crate::include::{Include, beside, file_name, open, open_regular};
use crate::limits::{DEPTH_MAX, FILES_MAX, TOML_MAX};
use crate::lines::{LineError, Lines};
use crate::sets::{Members, Sets, read_prefixes};
use crate::toml_file::{self, At, Document, Entries, Item};
use crate::warnings::{Warning, WarningKind, Warnings};
use crate::{classbench, csv};

/// How to read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// Interfaces that rules may name; an interface's number is its index plus 1. Empty: any name.
    pub interfaces: &'a [String],
    /// Format of the file; `None`: detect it.
    pub format: Option<Format>,
    /// Accept pipes and devices, which may block.
    pub takes_pipes: bool,
    /// Reading fails once this is true: the rules are no longer needed.
    pub stop: Option<&'a AtomicBool>,
}

/// What was read.
#[derive(Debug)]
pub struct Rules {
    /// The rules.
    pub set: RuleSet,
    /// Possible mistakes, one entry per kind and file.
    pub warnings: Vec<Warning>,
}

/// Reads a file of rules and its includes.
///
/// # Errors
/// A file is missing or a line is wrong; then no rules are returned.
pub fn read(path: &Path, options: &Options<'_>) -> Result<Rules, ReadError> {
    let what = path.display().to_string();
    let opened = match options.takes_pipes {
        true => File::open(path).map_err(|error| ReadError::Open { what, error })?,
        false => open_regular(path, what.clone(), Problem::NotRegular.at(what))?,
    };
    read_from(path, opened, options)
}

/// Reads rules from a reader. `path` names it in messages, and includes are relative to it.
///
/// # Errors
/// As [`read`].
pub fn read_from(
    path: &Path,
    opened: impl Read,
    options: &Options<'_>,
) -> Result<Rules, ReadError> {
    let mut reader = Reader::new(options);
    reader.file(path, opened, options.format, &Parts::default())?;
    reader.finish()
}

/// Adds a rule given as `source = "10.0.0.0/8", drop = true`, after the others. `origin` names its
/// source in messages, and `named` looks up names, since some rules may be deleted. If `rules` has
/// interfaces, it may name only these.
///
/// # Errors
/// The rule is wrong; then `rules` is unchanged.
pub fn parse_one(
    rules: &mut RuleSet,
    text: &str,
    origin: &str,
    named: impl FnOnce(&RuleSet, &str) -> Option<RuleNumber>,
) -> Result<RuleNumber, ReadError> {
    let wrong = |problem: Problem| problem.at(origin);
    let draft = toml_file::one_rule(text).map_err(wrong)?;
    if let Some((name, rule)) =
        draft.name.as_deref().and_then(|name| Some((name, named(rules, name)?)))
    {
        let first = rules.place_of(&rules.rules[rule as usize]);
        return Err(wrong(taken(name, first)));
    }
    let is_fixed = !rules.interfaces.is_empty();
    let interfaces = rules.interfaces.len();
    let in_port = number_of_interface(rules, draft.in_port.as_deref(), is_fixed).map_err(wrong)?;
    let known = rules.files.iter().position(|file| file.as_os_str() == origin);
    let file = known.unwrap_or(rules.files.len());
    // Line 0: a source without lines.
    let place = (file as u16, 0);
    match expand::add(rules, draft, &Parts::default(), in_port, place, &mut Warnings::default()) {
        Ok(rule) => {
            if known.is_none() {
                rules.files.push(PathBuf::from(origin));
            }
            Ok(rule)
        }
        Err(problem) => {
            rules.interfaces.truncate(interfaces);
            Err(wrong(problem))
        }
    }
}

/// A file whose reads fail once `stop` is true.
struct Stoppable<'a, R> {
    file: R,
    stop: Option<&'a AtomicBool>,
}

impl<R: Read> Read for Stoppable<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            true => Err(io::Error::other("given up")),
            false => self.file.read(into),
        }
    }
}

struct Reader<'a> {
    rules: RuleSet,
    sets: Sets,
    warnings: Warnings,
    /// The caller has given all interfaces.
    has_interfaces: bool,
    /// Files being read, each included by the one before.
    open: Vec<PathBuf>,
    seen: HashSet<PathBuf>,
    stop: Option<&'a AtomicBool>,
}

impl<'a> Reader<'a> {
    fn new(options: &Options<'a>) -> Reader<'a> {
        let interfaces = options.interfaces;
        let mut rules = RuleSet::default();
        rules.interfaces.extend_from_slice(interfaces);
        Reader {
            rules,
            sets: Sets::default(),
            warnings: Warnings::default(),
            has_interfaces: !interfaces.is_empty(),
            open: Vec::new(),
            seen: HashSet::new(),
            stop: options.stop,
        }
    }

    fn lines<R: Read>(&self, file: R) -> Lines<Stoppable<'a, R>> {
        let stop = self.stop;
        Lines::new(Stoppable { file, stop })
    }

    fn finish(mut self) -> Result<Rules, ReadError> {
        let warnings = self.warnings.list(&self.rules);
        check_names(&self.rules)?;
        let RuleSet { rules, v4, v6, .. } = &mut self.rules;
        rules.shrink_to_fit();
        v4.shrink_to_fit();
        v6.shrink_to_fit();
        Ok(Rules { set: self.rules, warnings })
    }

    /// Reads a file; `defaults` completes its rules.
    fn file(
        &mut self,
        path: &Path,
        opened: impl Read,
        format: Option<Format>,
        defaults: &Parts,
    ) -> Result<(), ReadError> {
        // A pipe has no canonical path and cannot be included again.
        let canonical = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        self.open.push(canonical.clone());
        self.seen.insert(canonical);
        let number = self.rules.files.len() as u16;
        self.rules.files.push(path.to_owned());
        let mut lines = self.lines(opened);
        let first = lines.peek().map_err(|error| self.io(number, error))?;
        let format = format.or_else(|| Format::detect(path, first));
        let format = format.ok_or_else(|| Problem::UnknownFormat.at(path.display().to_string()))?;
        match format {
            Format::Toml => self.toml(number, path, lines, defaults)?,
            Format::Csv | Format::ClassBench => {
                let Reader { rules, sets, warnings, has_interfaces, .. } = self;
                let mut add = |draft, line, has_flags| {
                    if has_flags {
                        warnings.add(WarningKind::Flags, (number, line));
                    }
                    let origin = (number, line);
                    add(rules, warnings, *has_interfaces, draft, defaults, origin)
                };
                let read = match format {
                    Format::ClassBench => classbench::read(&mut lines, add),
                    _ => csv::read(&mut lines, sets, |draft, line| add(draft, line, false)),
                };
                read.map_err(|error| self.line_error(number, lines.number(), error))?;
            }
        }
        self.open.pop();
        Ok(())
    }

    fn toml(
        &mut self,
        number: u16,
        path: &Path,
        mut lines: Lines<impl Read>,
        defaults: &Parts,
    ) -> Result<(), ReadError> {
        let wrong = |problem: Problem| problem.at(path.display().to_string());
        let bytes = lines.rest(TOML_MAX).map_err(|error| self.io(number, error))?;
        if bytes.len() as u64 > TOML_MAX {
            return Err(wrong(Problem::TomlTooLarge));
        }
        let text = String::from_utf8(bytes).map_err(|_| wrong(Problem::NotUtf8))?;
        let at = |(line, problem): At| problem.at(format!("{}:{line}", path.display()));
        let document = Document::parse(&text).map_err(at)?;
        for (name, line, value) in document.sets().map_err(at)?.all {
            self.set(number, path, (&name, line), value)?;
        }
        for item in document.items().map_err(at)? {
            match item {
                Item::Rule(entries) => {
                    let draft = toml_file::rule(&entries, &self.sets).map_err(at)?;
                    let Reader { rules, warnings, has_interfaces, .. } = self;
                    let origin = (number, entries.line);
                    let added = add(rules, warnings, *has_interfaces, draft, defaults, origin);
                    added.map_err(|problem| at((entries.line, problem)))?;
                }
                Item::Include(entries) => self.include(number, path, &entries, defaults)?,
            }
        }
        Ok(())
    }

    /// Reads a set: a list, or a table with a file.
    fn set(
        &mut self,
        number: u16,
        path: &Path,
        (name, line): (&str, u32),
        value: &toml::de::DeValue<'_>,
    ) -> Result<(), ReadError> {
        use toml::de::DeValue;
        let place = self.rules.place(number, line);
        let wrong = |problem: Problem| problem.at(place.clone());
        let name = &word("sets", name).map_err(wrong)?;
        let mut members = Members::default();
        match value {
            DeValue::Array(_) => {
                let texts = toml_file::texts("sets", value).map_err(wrong)?;
                let mut texts = texts.iter();
                texts.try_for_each(|text| members.add("sets", text)).map_err(wrong)?;
            }
            DeValue::Table(table) if table.len() == 1 && table.contains_key("file") => {
                let named = table.values().map(|file| file_name(file.get_ref()));
                let file = beside(path, &named.collect::<Result<String, _>>().map_err(wrong)?);
                let opened = open(&file, &place)?;
                let mut lines = self.lines(opened);
                members.prefixes = read_prefixes(name, &mut lines)
                    .map_err(|error| line_error(&file, lines.number(), error))?;
            }
            other => {
                let expected = "a list [\"10.0.0.0/8\", ...] or { file = \"list.txt\" }";
                let found = toml_file::found(other);
                return Err(wrong(Problem::value("sets", &found, expected)));
            }
        }
        self.sets.add(name, members, place.clone()).map_err(wrong)
    }

    fn include(
        &mut self,
        number: u16,
        path: &Path,
        entries: &Entries<'_>,
        defaults: &Parts,
    ) -> Result<(), ReadError> {
        let place = self.rules.place(number, entries.line);
        let include = Include::from_entries(entries, &self.sets)
            .map_err(|(line, problem)| problem.at(self.rules.place(number, line)))?;
        let file = beside(path, &include.file);
        let wrong = |problem: Problem| problem.at(place.clone());
        if self.open.len() >= DEPTH_MAX {
            return Err(wrong(Problem::TooDeep));
        }
        if self.rules.files.len() >= FILES_MAX {
            return Err(wrong(Problem::TooManyFiles));
        }
        let opened = open(&file, &place)?;
        let canonical = file.canonicalize().unwrap_or_else(|_| file.clone());
        let name = file.display().to_string();
        if self.open.contains(&canonical) {
            return Err(wrong(Problem::Cycle(name)));
        }
        if self.seen.contains(&canonical) {
            return Err(wrong(Problem::Twice(name)));
        }
        self.file(&file, opened, include.format, &include.parts.or(defaults))
    }

    fn io(&self, number: u16, error: io::Error) -> ReadError {
        let what = self.rules.files[usize::from(number)].display().to_string();
        ReadError::Read { what, error }
    }

    fn line_error(&self, number: u16, line: u32, error: LineError) -> ReadError {
        line_error(&self.rules.files[usize::from(number)], line, error)
    }
}

fn add(
    rules: &mut RuleSet,
    warnings: &mut Warnings,
    has_interfaces: bool,
    draft: Draft,
    defaults: &Parts,
    origin: (u16, u32),
) -> Result<(), Problem> {
    let in_port = number_of_interface(rules, draft.in_port.as_deref(), has_interfaces)?;
    expand::add(rules, draft, defaults, in_port, origin, warnings).map(drop)
}

/// The number of an interface; 0 for any. Adds the name unless interfaces are fixed.
fn number_of_interface(
    rules: &mut RuleSet,
    name: Option<&str>,
    is_fixed: bool,
) -> Result<u8, Problem> {
    let Some(name) = name else { return Ok(0) };
    let interfaces = &mut rules.interfaces;
    let place = interfaces.iter().position(|known| known == name);
    let place = match place {
        Some(place) => place,
        None if is_fixed => {
            return Err(Problem::NoSuchInterface {
                name: name.to_owned(),
                known: interfaces.join(", "),
            });
        }
        None => {
            if interfaces.len() >= usize::from(u8::MAX) {
                return Err(Problem::TooManyInterfaces);
            }
            interfaces.push(name.to_owned());
            interfaces.len() - 1
        }
    };
    u8::try_from(place + 1).map_err(|_| Problem::TooManyInterfaces)
}

fn check_names(rules: &RuleSet) -> Result<(), ReadError> {
    let mut first: HashMap<&str, RuleNumber> = HashMap::with_capacity(rules.names.len());
    for (rule, name) in &rules.names {
        if let Some(before) = first.insert(name, *rule) {
            let place = |rule: RuleNumber| rules.place_of(&rules.rules[rule as usize]);
            return Err(taken(name, place(before)).at(place(*rule)));
        }
    }
    Ok(())
}

fn taken(name: &str, first: String) -> Problem {
    Problem::Taken { what: "a rule named", name: name.to_owned(), first }
}

fn line_error(path: &Path, line: u32, error: LineError) -> ReadError {
    match error {
        LineError::Io(error) => ReadError::Read { what: path.display().to_string(), error },
        LineError::Wrong(problem) => problem.at(format!("{}:{line}", path.display())),
    }
}
