//! One file per command of the program.

pub mod bench;
pub mod check;
pub mod config;
pub mod model;
pub mod replay;
