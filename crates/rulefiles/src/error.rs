//! Errors in rule files. Each is one line with the place and how to fix it.

use std::io;

use policy::{FILTERS_MAX, RULES_MAX};

use crate::limits::{
    DEPTH_MAX, FILES_MAX, HOSTS_MAX, LINE_MAX, RULE_FILTERS_MAX, SET_MAX, TOML_MAX,
};

/// Why no rules were read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what variants and fields are")]
pub enum ReadError {
    #[error("{what}: cannot be opened: {error}")]
    Open { what: String, error: io::Error },
    #[error("{what}: cannot be read: {error}")]
    Read { what: String, error: io::Error },
    #[error("{place}: {problem}")]
    Wrong { place: String, problem: Problem },
}

/// Errors in a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what variants and fields are")]
pub enum Problem {
    #[error("not TOML: {0}")]
    NotToml(String),
    #[error("not UTF-8; save the file as UTF-8")]
    NotUtf8,
    #[error("unknown {what} {key}{near}")]
    UnknownKey { what: &'static str, key: String, near: String },
    #[error("{key}: found {found}, expected {expected}")]
    Value { key: &'static str, found: String, expected: String },
    #[error("{key}: {prefix} has bits set beyond its length; write {cure}")]
    HostBits { key: &'static str, prefix: String, cure: String },
    #[error("{key}: a list of {count} values, expected one value; write a rule for each")]
    OneValue { key: &'static str, count: usize },
    #[error("{key}: an empty list matches nothing; leave the key out for every one")]
    EmptyList { key: &'static str },
    #[error("a rule takes one of app, volume, duration and rate; write a rule for each")]
    AppTwice,
    #[error("{table} needs {key}")]
    Missing { table: String, key: &'static str },
    #[error("{key}: there is no set \"{name}\"{near}")]
    NoSuchSet { key: &'static str, name: String, near: String },
    #[error(
        "{key}: set \"{set}\" has names of hosts, such as {host}; write host = \"@{set}\", which \
         holds for flows that they begin and for others"
    )]
    NamesInSet { key: &'static str, set: String, host: String },
    #[error("host: more than {HOSTS_MAX} hosts; write prefixes, or source and destination")]
    TooManyHosts,
    #[error("{what} \"{name}\" is already at {first}; give it another name")]
    Taken { what: &'static str, name: String, first: String },
    #[error("in_port: there is no interface \"{name}\"; there are {known}")]
    NoSuchInterface { name: String, known: String },
    #[error(
        "in_port: rules name more than {} interfaces; leave in_port out where addresses say the \
         same",
        u8::MAX
    )]
    TooManyInterfaces,
    #[error(
        "source is {source_family}, destination is {destination_family}: no packet has both; write \
         prefixes of one family"
    )]
    Families { source_family: &'static str, destination_family: &'static str },
    #[error(
        "the rule has {0} combinations of prefixes and ports, {RULE_FILTERS_MAX} at most; use \
         fewer ports, or several rules"
    )]
    TooManyCombinations(usize),
    #[error("more than {FILTERS_MAX} filters in all; use prefixes that cover several")]
    TooManyFilters,
    #[error("more than {RULES_MAX} rules; use prefixes that cover several of them")]
    TooManyRules,
    #[error("set \"{0}\" has more than {SET_MAX} prefixes; split it into several sets")]
    SetTooLarge(String),
    #[error("a line longer than {LINE_MAX} bytes; split the rule into several")]
    LineTooLong,
    #[error(
        "larger than {} MiB, which TOML files may not be; write the rules as CSV and include them",
        TOML_MAX >> 20
    )]
    TomlTooLarge,
    #[error(
        "{found} cells, but the header has {expected} columns; leave cells empty, but keep their \
         commas"
    )]
    Cells { found: usize, expected: usize },
    #[error("column {0} is in the header twice; remove one")]
    ColumnTwice(&'static str),
    #[error("no header; the first line names the columns, such as: source,destination_port,dscp")]
    NoHeader,
    #[error("a quoted cell does not end on its line; close it with \"")]
    OpenQuote,
    #[error("text behind a quoted cell; double the quotes inside: \"a \"\"b\"\"\"")]
    AfterQuote,
    #[error(
        "not a ClassBench filter ({0}), expected: @10.0.0.0/8 0.0.0.0/0 0 : 65535 53 : 53 0x11/0xFF"
    )]
    NotClassBench(String),
    #[error(
        "the format cannot be told; name the file .toml or .csv, or say format = \"toml\", \"csv\" \
         or \"classbench\""
    )]
    UnknownFormat,
    #[error("include: {0} is not a regular file")]
    NotAFile(String),
    #[error("not a regular file; copy the rules into one")]
    NotRegular,
    #[error("include: {0} includes itself; remove one include")]
    Cycle(String),
    #[error("include: {0} is included twice; remove one include")]
    Twice(String),
    #[error(
        "include: more than {DEPTH_MAX} files inside each other; include the files from one place"
    )]
    TooDeep,
    #[error("include: more than {FILES_MAX} files; write the rules into fewer files")]
    TooManyFiles,
}

impl Problem {
    pub(crate) fn at(self, place: impl Into<String>) -> ReadError {
        ReadError::Wrong { place: place.into(), problem: self }
    }

    pub(crate) fn value(key: &'static str, found: &str, expected: impl Into<String>) -> Problem {
        Problem::Value { key, found: shown(found), expected: expected.into() }
    }
}

/// Text for a message: quoted, escaped, truncated.
pub fn shown(text: &str) -> String {
    const MOST: usize = 60;
    let start: String = text.chars().take(MOST).collect();
    let dots = if start.len() < text.len() { "..." } else { "" };
    format!("{start:?}{dots}")
}
