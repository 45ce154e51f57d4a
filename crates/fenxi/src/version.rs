//! The version of the program.

/// Version and, where the build knew it, the revision: `0.1.0 (7e95779b347c)`.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), env!("FENXI_REVISION_SUFFIX"));
