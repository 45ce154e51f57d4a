//! The workers of a run, and how others reach them.

pub mod analytics_worker;
pub mod clock;
pub mod counters;
pub mod egress;
pub mod flow_worker;
pub mod inline;
mod label_waker;
pub mod look;
pub mod recorder;
pub mod rules;
pub mod run;
pub mod server_actions;
pub mod servers;
pub mod settings;
pub mod sink;
#[cfg(test)]
#[path = "../tests/common/small_table.rs"]
mod small_table;
pub mod snapshot;
pub mod state;
pub mod swap;
pub mod waker;
