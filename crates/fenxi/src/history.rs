//! The history: sums of traffic per hour, label, host and service in a file, for `fenxi report` and
//! the page `/history`.
//!
//! ```text
//! flow worker ─ record ─► queue ─► thread: ledger, since the last write ─► store (SQLite)
//! fenxi report, /history ◄───────────────────── query, read-only ◄───────────┘
//! ```
//!
//! A record counts what came since the flow's previous record, and all of it goes to the hour of
//! the flow's last packet: live, a flow that goes on is recorded every `flow.active_timeout_s`
//! (120), so at most that much of an hour is the one's before. A flow counts where it ended. A
//! process that is killed loses what it has not written (`history.every_s`).
//!
//! Only the keys are there without the feature `history`, and refused.

#[cfg(feature = "history")]
mod query;
#[cfg(feature = "history")]
pub mod store;
#[cfg(feature = "history")]
mod time;

use std::path::PathBuf;
use std::time::Duration;

use config::kind::{Kind, integer};
use config::{Setting, Settings, stored};

#[cfg(feature = "history")]
pub use query::report;

/// What a build without the feature says.
pub const ABSENT: &str = "this fenxi was built without the feature history, as static builds are; \
    use the package, or records.path and docs/records.md";

config::section! {
    /// Sums of traffic per hour.
    pub struct Keys = One "history", checked by check;

    /// the file of sums per hour, label, host and service, which `fenxi report` and the page
    /// /history show; not in static builds
    path: Option<PathBuf> = restart "path", Kind::Text, "\"\"", "path, empty = none"
        => Setting::file;
    /// how often it is written; a process that is killed loses what came since
    every: Duration = restart "every_s", integer(1, 3600), "60", "seconds" => Setting::seconds;
    /// the largest that the file becomes, besides some MiB next to it while it is written; the
    /// oldest hours go first
    max_bytes: u64 = restart "max_mib", integer(1, 1 << 20), "64",
        "MiB" => |s| Ok(s.get::<u64>()? << 20);
    /// hours older than this are removed
    max_days: u32 = restart "max_days", integer(1, 36_500), "400", "days";
}

fn check(settings: &Settings, problems: &mut Vec<String>) {
    stored::<Keys>(settings, problems);
    let is_asked = !settings.word("history.path").is_empty();
    let is_absent = cfg!(not(feature = "history"));
    settings.rule(&["history.path"], is_asked && is_absent, ABSENT, problems);
}
