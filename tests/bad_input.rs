//! Every problem with the program's input gives one clear line that names it and the exit code of
//! its kind, and nothing is lost silently.
//!
//! One file per kind: captures, packets, models and the ONNX Runtime library, configurations,
//! outputs, signals.

use crate::common;

mod captures;
mod configs;
mod library;
mod models;
mod outputs;
mod packets;
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
        assert!(finished.stderr.contains(part), "no \"{part}\" in: {}", finished.stderr);
    }
}
