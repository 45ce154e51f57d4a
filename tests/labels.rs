//! Placeholder.
mod common;
