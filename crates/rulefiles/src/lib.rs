//! Files of policy rules.
//!
//! [`read`] reads a file, with those that it includes, into a [`policy::RuleSet`]; [`parse_one`] adds one rule that was typed;
//! [`write`](mod@write) makes text of rules again. The path of a file:
//!
//! | module | does |
//! |---|---|
//! | `reader` | reads files, each with those inside it |
//! | `include` | files that a file names |
//! | `toml_file`, `csv`, `classbench` | one format each: lines in, keys and texts of values out |
//! | `draft` | keys and texts to the typed parts of a rule, `values` for each kind of value |
//! | `expand` | a rule's parts to filters |
//!
//! This crate stands beside `policy`, which the data plane uses and which therefore knows no text format.
#![forbid(unsafe_code)]

mod classbench;
mod csv;
mod draft;
mod error;
mod expand;
mod format;
mod include;
mod limits;
mod lines;
mod nearest;
mod reader;
mod sets;
mod toml_file;
mod values;
mod warnings;
pub mod write;

pub use error::{Problem, ReadError};
pub use format::Format;
pub use limits::RULE_FILTERS_MAX;
pub use reader::{Options, Rules, parse_one, parse_one_among, read, read_from};
pub use warnings::{Warning, WarningKind};
