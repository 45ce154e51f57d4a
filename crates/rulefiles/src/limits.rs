//! Bounds on what rule files may hold, so that a wrong file costs no more than its own size.

/// Filters of a rule, at most.
pub const RULE_FILTERS_MAX: usize = 1 << 20;
/// Bytes of a line, at most.
pub const LINE_MAX: usize = 1 << 20;
/// Files inside each other, at most.
pub const DEPTH_MAX: usize = 8;
/// Files of a set of rules, at most.
pub const FILES_MAX: usize = 1024;
/// Prefixes of a set, at most.
pub const SET_MAX: usize = 1 << 20;
/// Bytes of a TOML file, at most. The parser holds the whole file.
pub const TOML_MAX: u64 = 64 << 20;
