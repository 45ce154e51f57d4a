//! Whatever is wrong with what the program is given is said in one clear line that names it, with
//! the exit code of its kind, and nothing is lost silently.
//!
//! One file per kind: captures, packets, models and the ONNX Runtime library, configurations,
//! outputs, signals.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the helpers of tests may panic as the tests do"
)]

mod common;

#[path = "bad_input/captures.rs"]
mod captures;
#[path = "bad_input/configs.rs"]
mod configs;
#[path = "bad_input/library.rs"]
mod library;
#[path = "bad_input/models.rs"]
mod models;
#[path = "bad_input/outputs.rs"]
mod outputs;
#[path = "bad_input/packets.rs"]
mod packets;
#[path = "bad_input/signals.rs"]
mod signals;

use common::Finished;

/// Holds a refusal to its form: the exit code, nothing on standard output, and one line on standard
/// error, which has all the parts.
#[track_caller]
fn assert_refused(finished: Finished, code: i32, parts: &[&str]) {
    assert_eq!(
        (finished.stdout.as_str(), finished.stderr.lines().count()),
        ("", 1),
        "{finished:?}"
    );
    assert_says(&finished.expect_code(code), parts);
}

#[track_caller]
fn assert_says(finished: &Finished, parts: &[&str]) {
    for part in parts {
        assert!(
            finished.stderr.contains(part),
            "no \"{part}\" in: {}",
            finished.stderr
        );
    }
}
