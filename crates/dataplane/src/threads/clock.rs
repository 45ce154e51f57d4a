//! The clock of a flow worker: the machine's clocks, or the times of the packets.

mod live;
mod pace;

use std::time::Duration;

use flowmgr::Packet;
use packetio::Frame;

pub use live::{LiveClock, Reading};
pub use pace::{Pace, PacedRx};

/// The clock of a flow worker.
pub enum Clock {
    /// Live: packets are stamped by the wall clock, which may be set. Flows age by a clock that
    /// cannot be set.
    Live(LiveClock),
    /// A replay: the packets give the time.
    Packets,
}

impl Clock {
    /// A clock for live packets that starts now.
    pub fn live() -> Clock {
        Clock::Live(LiveClock::new(Reading::take()))
    }

    /// Flow time now, µs; `None` in a replay, where only packets have a time.
    pub fn now_us(&self) -> Option<i64> {
        match self {
            Clock::Live(clock) => Some(clock.flow_time(live::boot_us())),
            Clock::Packets => None,
        }
    }

    /// Reads both clocks and returns by how much the wall clock was set since the last call, µs, if
    /// it was.
    pub fn check(&mut self) -> Option<i64> {
        match self {
            Clock::Live(clock) => clock.read(Reading::take()),
            Clock::Packets => None,
        }
    }

    /// Whether the stamps of these frames fit the wall clock as it was last seen. If not, call
    /// [`Clock::check`] before [`Clock::flow_time_of`].
    #[inline]
    pub fn fits(&self, frames: &[Frame], now_us: i64) -> bool {
        match self {
            Clock::Live(clock) => frames.iter().all(|it| clock.fits(it.time_us, now_us)),
            Clock::Packets => true,
        }
    }

    /// Flow time of a packet with this stamp, µs.
    #[inline]
    pub fn flow_time_of(&self, stamp_us: i64, now_us: i64) -> i64 {
        match self {
            Clock::Live(clock) => clock.flow_time_of(stamp_us, now_us),
            Clock::Packets => Packet::clamp_time(stamp_us),
        }
    }

    /// Wall time less flow time, µs.
    pub fn ahead_us(&self) -> i64 {
        match self {
            Clock::Live(clock) => clock.ahead_us(),
            Clock::Packets => 0,
        }
    }

    /// How often the wall clock was set.
    pub fn steps(&self) -> u64 {
        match self {
            Clock::Live(clock) => clock.steps(),
            Clock::Packets => 0,
        }
    }
}

/// The warning that the wall clock was set, by `by_us` µs.
pub fn clock_set(by_us: i64) -> String {
    let by = Duration::from_micros(by_us.unsigned_abs()).as_secs_f64();
    let direction = if by_us > 0 { "forward" } else { "back" };
    format!(
        "the system clock was set {direction} by {by:.1} s; flows age as before, and records have \
         the new time"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_times_of_a_capture_are_clamped() {
        let of = |stamp_us| Clock::Packets.flow_time_of(stamp_us, 0);
        let max_us = Packet::TIME_MAX_US;
        assert_eq!([i64::MIN, 5, i64::MAX].map(of), [-max_us, 5, max_us]);
    }
}
