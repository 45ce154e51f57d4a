//! Limits of rule files, so that a bad file costs no more than its own size.

/// Maximum filters per rule.
pub const RULE_FILTERS_MAX: usize = 1 << 20;
/// Maximum hosts per rule: they are no part of the index.
pub const HOSTS_MAX: usize = 4096;
/// Maximum bytes per line.
pub const LINE_MAX: usize = 1 << 20;
/// Maximum nesting of includes.
pub const DEPTH_MAX: usize = 8;
/// Maximum files per rule set.
pub const FILES_MAX: usize = 1024;
/// Maximum prefixes per set.
pub const SET_MAX: usize = 1 << 20;
/// Maximum bytes of a TOML file, which the parser holds as a whole.
pub const TOML_MAX: u64 = 64 << 20;
