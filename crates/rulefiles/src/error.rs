//! Errors in rule files. Each is one line with the place and how to fix it.

use std::io;

use policy::{FILTERS_MAX, RULES_MAX};

use crate::limits::{DEPTH_MAX, FILES_MAX, LINE_MAX, RULE_FILTERS_MAX, SET_MAX, TOML_MAX};

/// Why no rules were read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A file cannot be opened.
    #[error("{what}: cannot be opened: {error}")]
    Open {
        /// The file, after the place that includes it.
        what: String,
        /// The system's error.
        error: io::Error,
    },
    /// Reading failed.
    #[error("{what}: cannot be read: {error}")]
    Read {
        /// The file.
        what: String,
        /// The system's error.
        error: io::Error,
    },
    /// The content is wrong.
    #[error("{place}: {problem}")]
    Wrong {
        /// File and line.
        place: String,
        /// What is wrong there.
        problem: Problem,
    },
}

/// Errors in a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// TOML syntax.
    #[error("not TOML: {0}")]
    NotToml(String),
    /// Invalid UTF-8.
    #[error("not UTF-8; save the file as UTF-8")]
    NotUtf8,
    /// An unknown key.
    #[error("unknown {what} {key}{near}")]
    UnknownKey {
        /// `key`, `column`, `table`.
        what: &'static str,
        /// As written.
        key: String,
        /// A suggestion, or the known ones.
        near: String,
    },
    /// An invalid value.
    #[error("{key}: found {found}, expected {expected}")]
    Value {
        /// Its key.
        key: &'static str,
        /// As written, quoted.
        found: String,
        /// What the key takes.
        expected: String,
    },
    /// An address has bits beyond its prefix length.
    #[error("{key}: {prefix} has bits set beyond its length; write {cure}")]
    HostBits {
        /// Its key.
        key: &'static str,
        /// As written.
        prefix: String,
        /// Suggested prefixes.
        cure: String,
    },
    /// Several values for a key that takes one.
    #[error("{key}: a list of {count} values, expected one value; write a rule for each")]
    OneValue {
        /// The key.
        key: &'static str,
        /// Number of values.
        count: usize,
    },
    /// An empty list.
    #[error("{key}: an empty list matches nothing; leave the key out for every one")]
    EmptyList {
        /// The key.
        key: &'static str,
    },
    /// A key is missing.
    #[error("{table} needs {key}")]
    Missing {
        /// `[[include]]`, a set.
        table: String,
        /// The key, with an example.
        key: &'static str,
    },
    /// An unknown set.
    #[error("{key}: there is no set \"{name}\"{near}")]
    NoSuchSet {
        /// The key that refers to it.
        key: &'static str,
        /// As written, without `@`.
        name: String,
        /// A suggestion.
        near: String,
    },
    /// A name is used twice.
    #[error("{what} \"{name}\" is already at {first}; give it another name")]
    Taken {
        /// `a rule named`, `a set named`.
        what: &'static str,
        /// The name.
        name: String,
        /// Place of its first use.
        first: String,
    },
    /// An unknown interface.
    #[error("in_port: there is no interface \"{name}\"; there are {known}")]
    NoSuchInterface {
        /// As written.
        name: String,
        /// The known interfaces.
        known: String,
    },
    /// Too many interfaces for their numbers.
    #[error(
        "in_port: rules name more than {} interfaces; leave in_port out where addresses say the \
         same",
        u8::MAX
    )]
    TooManyInterfaces,
    /// Source and destination share no address family.
    #[error(
        "source is {source_family}, destination is {destination_family}: no packet has both; write \
         prefixes of one family"
    )]
    Families {
        /// `IPv4` or `IPv6`.
        source_family: &'static str,
        /// `IPv4` or `IPv6`.
        destination_family: &'static str,
    },
    /// The rule has too many filters.
    #[error(
        "the rule has {0} combinations of prefixes and ports, {RULE_FILTERS_MAX} at most; use \
         fewer \
         ports, or several rules"
    )]
    TooManyCombinations(usize),
    /// Too many filters in all.
    #[error("more than {FILTERS_MAX} filters in all; use prefixes that cover several")]
    TooManyFilters,
    /// Too many rules.
    #[error("more than {RULES_MAX} rules; use prefixes that cover several of them")]
    TooManyRules,
    /// A set has too many prefixes.
    #[error("set \"{0}\" has more than {SET_MAX} prefixes; split it into several sets")]
    SetTooLarge(String),
    /// A line is too long.
    #[error("a line longer than {LINE_MAX} bytes; split the rule into several")]
    LineTooLong,
    /// A TOML file is too large.
    #[error(
        "larger than {} MiB, which TOML files may not be; write so many rules as CSV and include \
         them",
        TOML_MAX >> 20
    )]
    TomlTooLarge,
    /// A CSV row does not match the header.
    #[error(
        "{found} cells, but the header has {expected} columns; leave cells empty, but keep their \
         commas"
    )]
    Cells {
        /// Cells of the row.
        found: usize,
        /// Columns of the header.
        expected: usize,
    },
    /// A column is in the header twice.
    #[error("column {0} is in the header twice; remove one")]
    ColumnTwice(&'static str),
    /// A CSV file has no header.
    #[error("no header; the first line names the columns, such as: source,destination_port,dscp")]
    NoHeader,
    /// A quote is not closed.
    #[error("a quoted cell does not end on its line; close it with \"")]
    OpenQuote,
    /// Text follows a quoted cell.
    #[error("text behind a quoted cell; double the quotes inside: \"a \"\"b\"\"\"")]
    AfterQuote,
    /// Not a filter of ClassBench.
    #[error(
        "not a ClassBench filter ({0}), expected: @10.0.0.0/8 0.0.0.0/0 0 : 65535 53 : 53 \
         0x11/0xFF"
    )]
    NotClassBench(String),
    /// The format cannot be detected.
    #[error(
        "the format cannot be told; name the file .toml or .csv, or say format = \"toml\", \"csv\" \
         or \"classbench\""
    )]
    UnknownFormat,
    /// An included path is not a regular file.
    #[error("include: {0} is not a regular file")]
    NotAFile(String),
    /// The path is not a regular file.
    #[error("not a regular file; copy the rules into one")]
    NotRegular,
    /// A file includes itself.
    #[error("include: {0} includes itself; remove one include")]
    Cycle(String),
    /// A file is included twice.
    #[error("include: {0} is included twice; remove one include")]
    Twice(String),
    /// Includes are nested too deeply.
    #[error(
        "include: more than {DEPTH_MAX} files inside each other; include the files from one place"
    )]
    TooDeep,
    /// Too many files.
    #[error("include: more than {FILES_MAX} files; write the rules into fewer files")]
    TooManyFiles,
}

impl Problem {
    /// The error at this place.
    pub(crate) fn at(self, place: impl Into<String>) -> ReadError {
        ReadError::Wrong {
            place: place.into(),
            problem: self,
        }
    }

    /// An invalid value.
    pub(crate) fn value(key: &'static str, found: &str, expected: impl Into<String>) -> Problem {
        Problem::Value {
            key,
            found: shown(found),
            expected: expected.into(),
        }
    }
}

/// Text for a message: quoted, escaped, truncated.
pub fn shown(text: &str) -> String {
    const MOST: usize = 60;
    let start: String = text.chars().take(MOST).collect();
    let dots = if start.len() < text.len() { "..." } else { "" };
    format!("{start:?}{dots}")
}
