//! Pacing a replay by its timestamps.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Longest rest between two looks at labels and at the stop flag.
const REST_MAX: Duration = Duration::from_millis(1);

/// When packets of which time are due. Clones share one clock, so that lanes keep step.
#[derive(Clone)]
pub struct Pace {
    /// Packet time per wall time.
    factor: f64,
    start: Arc<OnceLock<Start>>,
}

/// When which packet time was due.
struct Start {
    at: Instant,
    time_us: i64,
}

impl Pace {
    /// `factor` times as fast as the timestamps say.
    pub fn new(factor: f64) -> Pace {
        Pace {
            factor,
            start: Arc::default(),
        }
    }

    /// How long until a packet of this time is due; `None`: it is. The first packet
    /// asked for is due at once and starts the clock.
    pub fn rest(&self, time_us: i64) -> Option<Duration> {
        let start = self.start.get_or_init(|| Start {
            at: Instant::now(),
            time_us,
        });
        let after_us = time_us.saturating_sub(start.time_us).max(0);
        let due = Duration::try_from_secs_f64(after_us as f64 / 1e6 / self.factor);
        let wait = due
            .unwrap_or(Duration::MAX)
            .checked_sub(start.at.elapsed())?;
        (!wait.is_zero()).then(|| wait.min(REST_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_packet_and_earlier_ones_are_due_at_once() {
        let pace = Pace::new(1.0);
        assert_eq!(pace.rest(5_000_000), None);
        assert_eq!(pace.rest(4_000_000), None);
        assert_eq!(pace.rest(5_000_000 + 3_600_000_000), Some(REST_MAX));
        assert_eq!(pace.rest(i64::MAX), Some(REST_MAX));
    }

    #[test]
    fn clones_keep_step() {
        let pace = Pace::new(1.0);
        let other = pace.clone();
        assert_eq!(pace.rest(5_000_000), None);
        assert_eq!(other.rest(3_600_000_000), Some(REST_MAX));
    }

    #[test]
    fn a_high_factor_makes_an_hour_due_within_moments() {
        let pace = Pace::new(1e12);
        assert_eq!(pace.rest(0), None);
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(pace.rest(3_600_000_000), None);
    }
}
