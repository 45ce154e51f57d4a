//! The exporter's thread against collectors that come, go and stall.
#![allow(clippy::unwrap_used, reason = "tests")]
