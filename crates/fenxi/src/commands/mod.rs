//! One file per command of the program.

pub mod check;
pub mod config;
pub mod model;
pub mod replay;
