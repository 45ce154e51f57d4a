//! Lines of records to the readers of `records.socket`.

use std::sync::Arc;
use std::time::Instant;

use super::{SCHEMA_VERSION, WRITE_AT, WRITE_WITHIN};
use crate::sinks::broadcast::{Broadcaster, Protocol};

/// Readers that may be `backlog` bytes behind. Records say who talked to whom, so the mode of the
/// socket is the file's. What readers send is not read.
pub fn protocol(backlog: usize) -> Protocol {
    Protocol {
        thread: "readers",
        readers_max: 16,
        backlog,
        admits: |_| true,
        is_one_way: false,
        before: |lost, _| if lost > 0 { lost_line(lost).into_bytes() } else { Vec::new() },
    }
}

/// Lines on their way to the readers, for the thread that writes records.
pub struct Stream {
    broadcaster: Arc<Broadcaster>,
    text: Vec<u8>,
    lines: u64,
    since: Option<Instant>,
}

impl Stream {
    pub fn new(broadcaster: Arc<Broadcaster>) -> Stream {
        Stream { broadcaster, text: Vec::with_capacity(2 * WRITE_AT), lines: 0, since: None }
    }

    /// Whether anybody reads.
    pub fn has_readers(&self) -> bool {
        self.broadcaster.has_readers()
    }

    /// Takes `text`, `lines` whole lines.
    pub fn push(&mut self, text: &[u8], lines: u64) {
        self.text.extend(text);
        self.lines += lines;
        self.since.get_or_insert_with(Instant::now);
    }

    /// Gives the readers what there is, if it is much or old.
    pub fn publish_due(&mut self) {
        let is_old = self.since.is_some_and(|since| since.elapsed() >= WRITE_WITHIN);
        if is_old || self.text.len() >= WRITE_AT {
            self.publish();
        }
    }

    pub fn publish(&mut self) {
        self.broadcaster.publish(&self.text, self.lines);
        self.text.clear();
        (self.lines, self.since) = (0, None);
    }
}

fn lost_line(records: u64) -> String {
    format!("{{\"type\":\"lost\",\"schema_version\":{SCHEMA_VERSION},\"records\":{records}}}\n")
}
