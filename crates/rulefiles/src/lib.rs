//! Files of policy rules.
//!
//! [`read`] reads a file and its includes into a [`policy::RuleSet`]; [`parse_one`] adds one rule
//! from text; [`write`](mod@write) converts rules back to text. From file to filters:
//!
//! | module | does |
//! |---|---|
//! | `reader` | reads files and their includes |
//! | `include` | opens files named in files |
//! | `toml_file`, `csv`, `classbench` | parse a format into keys and texts of values |
//! | `draft` | converts them to the typed parts of a rule, with `values` |
//! | `expand` | expands a rule's parts to filters |
//!
//! Separate from `policy`, so that the data plane depends on no text format.
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
pub use reader::{Options, Rules, parse_one, read, read_from};
pub use warnings::{Warning, WarningKind};
