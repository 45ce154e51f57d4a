//! Loss, logged when it begins and when it is over, not for each packet or record.

use std::time::{Duration, Instant};

use tracing::{info, warn};

/// Loss is over once nothing was lost for this long.
const QUIET: Duration = Duration::from_secs(10);

/// A counter of losses that is polled.
pub struct Loss {
    what: &'static str,
    count: u64,
    going_on: Option<Going>,
}

struct Going {
    count_before: u64,
    last: Instant,
}

#[derive(Debug, PartialEq, Eq)]
enum Change {
    None,
    Begins,
    Over { lost: u64 },
}

impl Loss {
    /// Nothing is lost yet. `what` reads "packets are lost".
    pub fn new(what: &'static str) -> Loss {
        Loss { what, count: 0, going_on: None }
    }

    /// Logs changes, given the total `count` so far. `why` is called when loss begins, and may
    /// return an empty text.
    pub fn poll(&mut self, now: Instant, count: u64, why: impl FnOnce() -> String) {
        let what = self.what;
        match self.step(now, count) {
            Change::None => {}
            Change::Begins => {
                let why = why();
                let gap = if why.is_empty() { "" } else { ": " };
                warn!("{what}{gap}{why}");
            }
            Change::Over { lost } => {
                info!("over for {} s: {what}; {lost} in total", QUIET.as_secs())
            }
        }
    }

    fn step(&mut self, now: Instant, count: u64) -> Change {
        let before = std::mem::replace(&mut self.count, count);
        match &mut self.going_on {
            None if count > before => {
                self.going_on = Some(Going { count_before: before, last: now });
                Change::Begins
            }
            Some(going) if count > before => {
                going.last = now;
                Change::None
            }
            Some(going) if now.duration_since(going.last) >= QUIET => {
                // A count may fall when packets thought lost turn up.
                let lost = count.saturating_sub(going.count_before);
                self.going_on = None;
                Change::Over { lost }
            }
            _ => Change::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begin_and_end_are_said_once() {
        let mut loss = Loss::new("packets are lost");
        let began = Instant::now();
        let mut at = |seconds: u64, count| loss.step(began + Duration::from_secs(seconds), count);
        assert_eq!(at(0, 0), Change::None);
        assert_eq!(at(1, 3), Change::Begins);
        assert_eq!(at(2, 7), Change::None);
        assert_eq!(at(11, 7), Change::None);
        assert_eq!(at(11, 8), Change::None);
        assert_eq!(at(20, 8), Change::None);
        assert_eq!(at(21, 8), Change::Over { lost: 8 });
        assert_eq!(at(40, 8), Change::None);
        assert_eq!(at(41, 9), Change::Begins);
    }
}
