//! The time of a live flow manager: monotonic for flows, wall time for records.
//!
//! The kernel stamps packets with the wall clock, which may be set: by an administrator, by NTP at
//! boot, after a battery ran empty. Flows must age by a clock that cannot be set. So packets and
//! pauses reach the flow manager in *flow time*, `CLOCK_BOOTTIME` plus the lead of the wall clock
//! at the start, and records leave it in wall time. While nobody sets the clock, both are the same.
//! `CLOCK_BOOTTIME` is used instead of `CLOCK_MONOTONIC` because it goes on while the machine is
//! suspended: flows have ended after that, and the two clocks stay together.
//!
//! NTP slews both clocks alike, so they differ only once the wall clock is set (or a leap second is
//! inserted). Packets stamped before that may still wait in a ring. Two times are then possible;
//! the one that makes the packet younger is taken.
//!
//! No packet costs a system call. A round of the flow worker reads one clock; both are read once a
//! second, and whenever a stamp does not fit.

use rustix::time::{ClockId, clock_gettime};

/// If wall time and flow time differ by more than this, µs, the wall clock was set.
const STEP_US: i64 = 100_000;
/// A packet within this of now, µs, was stamped by the wall clock as it is: frames wait for
/// milliseconds only.
const NEAR_US: i64 = 1_000_000;
/// No packet waits longer than this, µs. If one seems to, its stamp is useless.
const WAIT_MAX_US: i64 = 30_000_000;
/// Two readings of one clock around a reading of the other are this close, µs, unless the thread
/// was interrupted.
const LOOK_US: i64 = 1000;

/// Both clocks at one moment, µs.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    /// `CLOCK_BOOTTIME`.
    pub boot_us: i64,
    /// `CLOCK_REALTIME`.
    pub wall_us: i64,
}

impl Reading {
    /// Reads both. A thread that is interrupted meanwhile tries again, a few times.
    pub fn take() -> Reading {
        let mut best: Option<(i64, Reading)> = None;
        for _ in 0..4 {
            let (before_us, wall_us) = (boot_us(), us(ClockId::Realtime));
            let took_us = boot_us() - before_us;
            let reading = Reading { boot_us: before_us + took_us / 2, wall_us };
            if best.is_none_or(|(least_us, _)| took_us < least_us) {
                best = Some((took_us, reading));
            }
            if took_us < LOOK_US {
                break;
            }
        }
        best.map_or(Reading { boot_us: 0, wall_us: 0 }, |(_, reading)| reading)
    }
}

/// Time since the machine started, µs, with the time that it was suspended.
pub fn boot_us() -> i64 {
    us(ClockId::Boottime)
}

fn us(clock: ClockId) -> i64 {
    let now = clock_gettime(clock);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1000
}

/// The relation of flow time to wall time. Reads no clock.
#[derive(Debug, Clone, Copy)]
pub struct LiveClock {
    /// Flow time less boot time, µs: the lead of the wall clock at the start.
    base_us: i64,
    /// Wall time less flow time, µs; 0 until the clock is set.
    ahead_us: i64,
    /// `ahead_us` before the clock was last set.
    before_us: i64,
    /// How often it was set.
    steps: u64,
}

impl LiveClock {
    /// A clock that starts now; flow time equals wall time.
    pub fn new(now: Reading) -> LiveClock {
        LiveClock { base_us: now.wall_us - now.boot_us, ahead_us: 0, before_us: 0, steps: 0 }
    }

    /// Flow time, µs.
    pub fn flow_time(&self, boot_us: i64) -> i64 {
        boot_us + self.base_us
    }

    /// Compares both clocks. Returns by how much the wall clock was set since the last call, µs, if
    /// it was.
    pub fn read(&mut self, now: Reading) -> Option<i64> {
        let ahead_us = now.wall_us - self.flow_time(now.boot_us);
        let by_us = ahead_us - self.ahead_us;
        if by_us.abs() <= STEP_US {
            return None;
        }
        (self.before_us, self.ahead_us) = (self.ahead_us, ahead_us);
        self.steps += 1;
        Some(by_us)
    }

    /// Whether the wall clock as it was last seen may have stamped a packet that is here at
    /// `now_us` of flow time. If not, it may have been set since: then [`LiveClock::read`] before
    /// [`LiveClock::flow_time_of`].
    #[inline]
    pub fn fits(&self, stamp_us: i64, now_us: i64) -> bool {
        let age_us = now_us.wrapping_sub(stamp_us.wrapping_sub(self.ahead_us));
        age_us.wrapping_add(NEAR_US) as u64 <= 2 * NEAR_US as u64
    }

    /// Flow time of a packet that is here at `now_us` of flow time, µs; within `WAIT_MAX_US` before
    /// it.
    #[inline]
    pub fn flow_time_of(&self, stamp_us: i64, now_us: i64) -> i64 {
        match self.fits(stamp_us, now_us) {
            true => stamp_us.wrapping_sub(self.ahead_us),
            false => self.nearest(stamp_us, now_us),
        }
    }

    /// Flow time by the clock as it is or as it was, whichever makes the packet younger without
    /// placing it in the future.
    #[cold]
    fn nearest(&self, stamp_us: i64, now_us: i64) -> i64 {
        let of = [self.ahead_us, self.before_us].map(|ahead_us| stamp_us.saturating_sub(ahead_us));
        let past = of.into_iter().filter(|at_us| *at_us <= now_us + NEAR_US);
        past.max().unwrap_or(now_us).clamp(now_us - WAIT_MAX_US, now_us)
    }

    /// Wall time less flow time, µs.
    pub fn ahead_us(&self) -> i64 {
        self.ahead_us
    }

    /// How often the wall clock was set.
    pub fn steps(&self) -> u64 {
        self.steps
    }
}

#[cfg(test)]
mod tests;
