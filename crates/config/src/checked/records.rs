//! Records of flows, labels and hosts.

use std::path::PathBuf;
use std::time::Duration;

use crate::kind::{Kind, float, integer};
use crate::section;
use crate::setting::Setting;

section! {
    /// Records of flows, labels and hosts.
    pub struct Records = One "records";

    /// the file to which `fenxi run` appends records as JSON Lines; --flows overrides it
    path: Option<PathBuf> = restart "path", Kind::Text, "\"\"", "path, empty = none" => path;
    /// before the file grows larger than this, it becomes PATH.1 and a new file begins; 0 where
    /// logrotate does that
    rotate_bytes: u64 = restart "rotate_mib", integer(0, 1 << 20), "256",
        "MiB, 0 = never" => |s| Ok(s.get::<u64>()? << 20);
    /// how many old files are kept; PATH.1 is the newest
    rotate_files: usize = restart "rotate_files", integer(1, 1000), "4", "files";
    /// whose records have the series, to train a model with (docs/train.md); a flow is chosen by
    /// its number alone; --series: all
    series: f64 = restart "series", float(0.0, 1.0), "0.0", "share of the flows";
    /// how many records may wait for the writer
    queue: usize = restart "queue", integer(1024, 1 << 22), "65536", "records";
    /// how long `fenxi run` may take at its end to write the records that are left; the rest is
    /// lost and counted, and the exit code is 74
    drain_within: Duration = restart "drain_s", integer(0, 3600), "2",
        "seconds" => Setting::seconds;
    /// the Unix socket on which `fenxi run` gives records as JSON Lines to any program that
    /// connects, at most 16 at a time; root, the user and the group of the service may connect
    socket: Option<PathBuf> = restart "socket", Kind::Text, "\"\"",
        "path, empty = none" => Setting::socket;
    /// how far a reader of records.socket may fall behind; then records are left out for it, and a
    /// line of type lost says how many
    socket_backlog: usize = restart "socket_kib", integer(256, 1 << 20), "4096",
        "KiB" => |s| Ok(s.get::<usize>()? << 10);
}

fn path(setting: &Setting) -> Result<Option<PathBuf>, String> {
    match setting.get::<String>()?.as_str() {
        "-" => {
            Err("expected the path of a file; `fenxi run --flows -` writes to stdout".to_owned())
        }
        _ => setting.file(),
    }
}

/// When a new file of records begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rotate {
    /// The most bytes of a file.
    pub bytes: u64,
    /// How many old files are kept, at least one.
    pub files: usize,
}

impl Records {
    /// When a live run begins a new file; `None`: never.
    pub fn rotate(&self) -> Option<Rotate> {
        (self.rotate_bytes > 0)
            .then_some(Rotate { bytes: self.rotate_bytes, files: self.rotate_files })
    }
}
