//! One file per command of the program.

pub mod check;
pub mod config;
pub mod ctl;
pub mod devices;
pub mod manual;
pub mod model;
pub mod policy;
pub mod profile;
pub mod recorded;
pub mod replay;
pub mod run;
pub mod top;
