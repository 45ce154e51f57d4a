//! The version of the program.

/// The number alone: `0.1.0`.
pub const NUMBER: &str = env!("CARGO_PKG_VERSION");

/// The revision of the source, or `unknown`; `build.rs` says where it comes from.
pub const REVISION: &str = env!("REVISION_NAME");

/// The number and, where it is known, the revision: `0.1.0 (7e95779b347c)`.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), env!("REVISION_SUFFIX"));
