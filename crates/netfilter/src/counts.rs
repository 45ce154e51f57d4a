//! Results of updates, for metrics and the summary.

use std::time::Duration;

use hdrhistogram::Histogram;
use rustix::io::Errno;

/// The result of an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Written.
    Written,
    /// The element existed, and its timeout was restarted.
    Refreshed,
    /// The connection had bits already, the same or others, and keeps them.
    Kept,
    /// There is no such connection, or no such set.
    NotFound,
    /// The address family does not match the set.
    OtherFamily,
    /// The kernel refused with this error number.
    Refused(i32),
    /// The kernel's answer was lost; the update may have been written.
    Unanswered,
}

/// Why an update failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Cause {
    /// The capability is missing.
    Permission,
    /// The kernel had no memory, or the socket no room.
    NoMemory,
    /// The set is full.
    Full,
    /// The connection has no room for labels.
    NoLabels,
    /// The kernel's answer was lost; the update may have been written.
    Unanswered,
    /// Any other error number; the last is [`UpdateCounts::last_errno`].
    Other,
}

impl Cause {
    /// All causes, in the order of their counters.
    pub const ALL: [Cause; 6] = [
        Cause::Permission,
        Cause::NoMemory,
        Cause::Full,
        Cause::NoLabels,
        Cause::Unanswered,
        Cause::Other,
    ];

    /// The name in metrics and summaries.
    pub const fn name(self) -> &'static str {
        match self {
            Cause::Permission => "permission",
            Cause::NoMemory => "no_memory",
            Cause::Full => "full",
            Cause::NoLabels => "no_labels",
            Cause::Unanswered => "unanswered",
            Cause::Other => "other",
        }
    }

    fn from_errno(errno: i32) -> Cause {
        match Errno::from_raw_os_error(errno) {
            Errno::PERM | Errno::ACCESS => Cause::Permission,
            Errno::NOMEM | Errno::NOBUFS => Cause::NoMemory,
            Errno::NFILE => Cause::Full,
            Errno::NOSPC => Cause::NoLabels,
            _ => Cause::Other,
        }
    }
}

/// Longer latencies are counted as this, µs.
const LATENCY_MAX_US: u64 = 60_000_000;

/// Updates by result.
#[derive(Clone, Debug)]
pub struct UpdateCounts {
    /// Requested: the sum of the following, or waiting.
    pub asked: u64,
    /// [`Fate::Written`].
    pub written: u64,
    /// [`Fate::Refreshed`].
    pub refreshed: u64,
    /// [`Fate::Kept`].
    pub kept: u64,
    /// [`Fate::NotFound`].
    pub not_found: u64,
    /// [`Fate::OtherFamily`].
    pub other_family: u64,
    /// By [`Cause`].
    failed: [u64; Cause::ALL.len()],
    /// The last error number of a failure, 0 before the first.
    pub last_errno: i32,
    /// Updates that found the queue full.
    pub dropped: u64,
    /// Time from the label to the kernel's answer, of updates written or refreshed, µs.
    pub latency_us: Histogram<u64>,
}

impl UpdateCounts {
    /// All zero.
    #[expect(clippy::expect_used, reason = "the bounds and digits are constants")]
    pub fn none() -> UpdateCounts {
        UpdateCounts {
            asked: 0,
            written: 0,
            refreshed: 0,
            kept: 0,
            not_found: 0,
            other_family: 0,
            failed: [0; Cause::ALL.len()],
            last_errno: 0,
            dropped: 0,
            latency_us: Histogram::new_with_max(LATENCY_MAX_US, 2).expect("bounds of a histogram"),
        }
    }

    /// Failed updates by cause.
    pub fn failed_by(&self, cause: Cause) -> u64 {
        self.failed[cause as usize]
    }

    /// Failed updates.
    pub fn failed(&self) -> u64 {
        self.failed.iter().sum()
    }

    /// Updates without a result yet. Below 0: more results than updates.
    pub fn waiting(&self) -> i64 {
        let done = self.written + self.refreshed + self.kept;
        let not_done = self.not_found + self.other_family + self.failed() + self.dropped;
        self.asked as i64 - (done + not_done) as i64
    }

    pub(crate) fn add(&mut self, fate: Fate, latency: Duration) {
        match fate {
            Fate::Written => self.written += 1,
            Fate::Refreshed => self.refreshed += 1,
            Fate::Kept => self.kept += 1,
            Fate::NotFound => self.not_found += 1,
            Fate::OtherFamily => self.other_family += 1,
            Fate::Refused(errno) => {
                self.failed[Cause::from_errno(errno) as usize] += 1;
                self.last_errno = errno;
            }
            Fate::Unanswered => self.failed[Cause::Unanswered as usize] += 1,
        }
        if matches!(fate, Fate::Written | Fate::Refreshed) {
            let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
            self.latency_us.saturating_record(us);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fate_has_its_counter() {
        let mut counts = UpdateCounts::none();
        let errnos = [Errno::PERM, Errno::NOMEM, Errno::NFILE, Errno::NOSPC, Errno::INVAL];
        let refused = errnos.map(|errno| Fate::Refused(errno.raw_os_error()));
        let fates = [
            Fate::Written,
            Fate::Refreshed,
            Fate::Kept,
            Fate::NotFound,
            Fate::OtherFamily,
            Fate::Unanswered,
        ];
        for fate in fates.into_iter().chain(refused) {
            counts.add(fate, Duration::from_micros(1500));
        }
        counts.asked = 14;
        counts.dropped = 1;
        let done = [counts.written, counts.refreshed, counts.kept];
        assert_eq!((done, counts.not_found, counts.other_family), ([1; 3], 1, 1));
        assert_eq!(Cause::ALL.map(|cause| counts.failed_by(cause)), [1; 6]);
        assert_eq!((counts.failed(), counts.waiting()), (6, 2));
        assert_eq!(counts.last_errno, Errno::INVAL.raw_os_error());
        assert_eq!(counts.latency_us.len(), 2);
        assert!((1490..=1520).contains(&counts.latency_us.max()));
    }
}
