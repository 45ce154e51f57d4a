//! End-to-end tests, through the real programs, in folders by subject. One program, so that the
//! product is linked once: `cargo test -p fenxi --test e2e SUBJECT::`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the helpers of tests may panic as the tests do"
)]

mod bad_input;
mod canary;
mod check;
mod commands;
mod common;
mod control;
mod determinism;
mod export;
mod failures;
mod features;
mod fleet;
mod hangs;
mod history;
mod hosts;
mod kernel_net;
mod labels;
mod layers;
mod layouts;
mod learn;
mod live;
mod measured;
mod offline;
mod packaging;
mod parser;
mod policy;
mod ports_first;
mod prometheus;
mod records;
mod reference;
mod reload;
mod run;
mod servers;
mod services;
mod start;
mod tasks;
mod write;
