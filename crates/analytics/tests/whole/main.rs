//! The whole data path under any course of events: flow table, ring, batches, devices, label words,
//! records and marks, without threads and with clocks that the test moves.
//!
//! A list of [events](events::Event) is packets, pauses, clocks that are set, devices that answer
//! in any order, fail or stay silent, other models and settings, and one of the ways to stop. After
//! each event everything must balance: packets and verdicts, series and outcomes, flows begun and
//! recorded. Each record must match the packets of its flow, with a label that the model it names
//! gives to that flow's own series. Tables and rings are small, so that they are full now and then,
//! and at the end the test checks what it has reached.
//!
//! A list that fails is made shorter and printed. `PROPTEST_CASES=1000000` tries more of them.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so; clippy sees only #[test] functions as tests"
)]

mod coverage;
mod device;
mod events;
mod finish;
mod frames;
mod model;
mod traffic;
mod world;

use std::sync::Mutex;

use flowmgr::Effect;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use coverage::Coverage;
use events::{Event, Plan, lists, plans};
use world::World;

/// Lists for each effect; together 10⁵.
const LISTS: u32 = 50_000;

/// `Err` says what is wrong.
type Outcome = Result<(), String>;

/// Ends a check where something is not as it must be.
macro_rules! ensure {
    ($holds:expr, $($what:tt)+) => {
        if !$holds {
            return Err(format!($($what)+));
        }
    };
}
use ensure;

fn run(plan: &Plan, events: &[Event], effect: Effect) -> Result<Coverage, String> {
    let mut world = World::new(plan.clone(), effect);
    for (at, event) in events.iter().enumerate() {
        let outcome = world.step(event);
        outcome.map_err(|error| format!("event {at}, {event:?}: {error}"))?;
    }
    world.finish().map_err(|error| format!("at the end: {error}"))
}

fn run_lists(effect: Effect, reached: &[&'static str]) {
    let is_asked = std::env::var_os("PROPTEST_CASES").is_some();
    let default = Config::default();
    let cases = if is_asked { default.cases } else { LISTS };
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..default });
    let coverage = Mutex::new(Coverage::default());
    let result = runner.run(&(plans(), lists()), |(plan, events)| {
        let seen = run(&plan, &events, effect).map_err(TestCaseError::fail)?;
        coverage.lock().unwrap().merge(seen);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    // Fewer lists than usual need not reach everything.
    if cases >= LISTS {
        coverage.into_inner().unwrap().assert_seen(reached);
    }
}

const REACHED: [&str; 38] = [
    "table full",
    "chain full",
    "half_open",
    "closed",
    "idle",
    "evicted",
    "withheld",
    "labelled by the model",
    "labelled by the cache",
    "named by the port",
    "contradicted",
    "labelled by a later model",
    "labelled",
    "midstream",
    "one way",
    "ended by FIN",
    "ended by RST",
    "ended by silence",
    "ended by the stop",
    "reported by the active timeout",
    "clock set back",
    "clock set forward",
    "swap",
    "swap refused",
    "swap waits for a batch",
    "stood down",
    "reload",
    "reload refused",
    "audit",
    "retried",
    "failed twice",
    "failed without another device",
    "shed without a device",
    "device came back",
    "error",
    "wrong_shape",
    "not_a_probability",
    "deadline",
];

#[test]
fn live_everything_balances_and_each_label_is_its_own_flows() {
    let live = ["ring full", "ring half full", "post-mortem", "stopped with labels on their way"];
    run_lists(Effect::Arrival, &[&REACHED[..], &live].concat());
}

#[test]
fn in_a_replay_too() {
    let delay_us = 200;
    let replay = ["replay held up"];
    run_lists(Effect::PacketTime { delay_us }, &[&REACHED[..], &replay].concat());
}
