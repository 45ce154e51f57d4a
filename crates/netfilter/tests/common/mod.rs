//! What the tests of writers share.

#[path = "../../../../tests/common/lab.rs"]
#[allow(dead_code, reason = "each test uses its own part")]
pub mod lab;

use std::time::{Duration, Instant};

use netfilter::counts::UpdateCounts;
use netfilter::writer::Writer;

/// What became of all updates, once none waits.
pub fn settled(writer: &Writer) -> UpdateCounts {
    let deadline = Instant::now() + Duration::from_secs(20);
    while writer.waiting() > 0 {
        assert!(Instant::now() < deadline, "{:?}", writer.counts());
        std::thread::sleep(Duration::from_millis(1));
    }
    writer.counts()
}
