//! What became of the marks, for metrics and the summary.

use std::time::Duration;

use hdrhistogram::Histogram;
use rustix::io::Errno;

use netfilter::socket::Outcome;

/// Why an update failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
enum Cause {
    /// The capability is gone.
    Permission,
    /// The kernel had no memory, or the socket no room.
    NoMemory,
    /// The kernel's answer was lost; the mark may be written.
    Unanswered,
    /// Any other error number; the newest is [`Counts::last_errno`].
    Other,
}

impl Cause {
    /// All causes, in the order of their counters.
    const ALL: [Cause; 4] = [
        Cause::Permission,
        Cause::NoMemory,
        Cause::Unanswered,
        Cause::Other,
    ];

    /// The name in metrics and summaries.
    const fn name(self) -> &'static str {
        match self {
            Cause::Permission => "permission",
            Cause::NoMemory => "no_memory",
            Cause::Unanswered => "unanswered",
            Cause::Other => "other",
        }
    }

    fn of(errno: i32) -> Cause {
        match Errno::from_raw_os_error(errno) {
            Errno::PERM | Errno::ACCESS => Cause::Permission,
            Errno::NOMEM | Errno::NOBUFS => Cause::NoMemory,
            _ => Cause::Other,
        }
    }
}

/// Updates by what became of them.
#[derive(Debug, Clone)]
pub struct Counts {
    /// Asked for: written, or any of the following, or waiting.
    pub asked: u64,
    /// The connection has the mark.
    pub written: u64,
    /// The connection had a mark already, the same or another, and keeps it.
    pub kept: u64,
    /// No connection has the tuple, either way round: it is over, or conntrack does not see it.
    pub not_found: u64,
    /// In the order of [`Cause::ALL`].
    failed: [u64; Cause::ALL.len()],
    /// The newest error number behind a failure, 0 before the first.
    pub last_errno: i32,
    /// Updates that found the queue full.
    pub dropped: u64,
    /// From the label to the kernel's answer, of marks written, µs.
    pub latency_us: Histogram<u64>,
}

impl Counts {
    /// Nothing yet.
    #[expect(
        clippy::expect_used,
        reason = "two digits are among the one to five that a histogram may have"
    )]
    pub fn none() -> Counts {
        Counts {
            asked: 0,
            written: 0,
            kept: 0,
            not_found: 0,
            failed: [0; Cause::ALL.len()],
            last_errno: 0,
            dropped: 0,
            latency_us: Histogram::new(2).expect("a histogram of two digits"),
        }
    }

    /// Updates that failed, by the name of the cause; every cause is there, with 0 too.
    pub fn failed_by_cause(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Cause::ALL.iter().map(|cause| cause.name()).zip(self.failed)
    }

    /// Updates that failed.
    pub fn failed(&self) -> u64 {
        self.failed.iter().sum()
    }

    /// Updates that have met no fate yet. Below 0: more met one than there were.
    pub fn waiting(&self) -> i64 {
        let fates = self.written + self.kept + self.not_found + self.failed() + self.dropped;
        self.asked as i64 - fates as i64
    }

    pub(super) fn add(&mut self, outcome: Outcome, latency: Duration) {
        match outcome {
            Outcome::Written => {
                self.written += 1;
                let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
                self.latency_us.saturating_record(us);
            }
            Outcome::Found(_) => self.kept += 1,
            Outcome::NotFound => self.not_found += 1,
            Outcome::Refused(errno) => {
                self.failed[Cause::of(errno) as usize] += 1;
                self.last_errno = errno;
            }
            Outcome::Unanswered => self.failed[Cause::Unanswered as usize] += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netfilter::conntrack::Connection;

    #[test]
    fn each_outcome_has_its_counter() {
        let mut counts = Counts::none();
        let outcomes = [
            Outcome::Written,
            Outcome::Found(Connection::default()),
            Outcome::NotFound,
            Outcome::NotFound,
            Outcome::Unanswered,
            Outcome::Refused(Errno::PERM.raw_os_error()),
            Outcome::Refused(Errno::NOBUFS.raw_os_error()),
            Outcome::Refused(Errno::INVAL.raw_os_error()),
        ];
        for outcome in outcomes {
            counts.add(outcome, Duration::from_micros(40));
        }
        assert_eq!((counts.written, counts.kept, counts.not_found), (1, 1, 2));
        assert_eq!(
            (counts.failed, counts.waiting()),
            ([1; 4], -8),
            "none was asked for"
        );
        assert_eq!(counts.last_errno, Errno::INVAL.raw_os_error());
        assert_eq!((counts.latency_us.len(), counts.latency_us.max()), (1, 40));
        let by_cause: Vec<_> = counts.failed_by_cause().collect();
        assert_eq!(by_cause[..2], [("permission", 1), ("no_memory", 1)]);
    }

    #[test]
    fn counters_stand_in_the_order_of_the_names() {
        for (place, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, place, "{}", cause.name());
        }
    }
}
