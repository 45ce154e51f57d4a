//! Lifetimes without a scan: what is over, and a sweep in small steps.
//!
//! Time here follows the packets' own and never goes back, see [`Clock`]. A
//! flow is over when it was silent for longer than a timeout. That is noticed
//! when one of its packets comes, or by the sweep, which goes round the buckets
//! at a pace set by time alone, so that which flows end, when and in what order
//! does not depend on bursts or threads.
//!
//! Stamps in buckets are seconds in 16 bits. The sweep meets every bucket at least once in
//! [`Sweep::PERIOD_MAX_S`], so no stamp is older than the longest timeout plus this period, far
//! below the 65,536 s at which stamps repeat. After a jump of more than [`Clock::JUMP_US`]
//! everything older is over, and no stamp is asked.

use crate::Packet;
use crate::settings::Settings;
use crate::table::Occupant;

const SECOND_US: i64 = 1_000_000;

/// Time by the packets, which never goes back.
///
/// Packets carry the time of the clock that stamped them, and that clock may be
/// set back: by a day on a router, or after one packet of the year 2100 in a
/// capture. If time then stood still until the packets caught up, no flow would
/// end and the table would fill. So the clock keeps *flow time*, in which flows
/// age, apart from packet time: a packet that lies more than [`Clock::BOUND_US`]
/// behind re-bases the difference, and flow time goes on from where it was.
/// Packets that are late by less, as from several interfaces, leave time where it is.
///
/// Packets stamped by several clocks may alternate, as in a merged capture. The
/// differences of the last few are kept, and a packet that fits one of them does
/// not move flow time: otherwise each change of clocks would end all flows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// Flow time, µs.
    now_us: i64,
    /// The packet time that is now, µs.
    packet_us: i64,
    /// Flow time at which the next second begins.
    next_second_us: i64,
    second: u16,
    is_started: bool,
    /// Flow time minus packet time of the clocks before the current one, the newest first.
    others: [Option<i64>; 3],
}

/// How a packet moved the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// By little, or not at all.
    Near,
    /// So far forward that stamps say nothing.
    Jump,
    /// Packet time went back by more than the bound; flow time goes on from where it was.
    Rebased,
}

impl Clock {
    /// A packet within this of the last one, µs, is on the same clock. Late packets are late by
    /// milliseconds, or seconds where captures were merged badly.
    pub const BOUND_US: i64 = 60 * SECOND_US;
    /// A step forward beyond which stamps are not comparable: 2^15 s.
    const JUMP_US: i64 = SECOND_US << 15;
    /// The longest step forward of flow time. A longer one changes nothing, since all flows are
    /// over by then, and the absurd times that a file may have must not use up the range.
    const JUMP_MAX_US: i64 = SECOND_US << 17;

    pub const fn new() -> Clock {
        Clock {
            now_us: 0,
            // Far from any packet's time.
            packet_us: i64::MIN / 2,
            next_second_us: i64::MIN,
            second: 0,
            is_started: false,
            others: [None; 3],
        }
    }

    /// Goes on to the time of a packet, if that is at most the bound after the last one; otherwise
    /// returns `false`, and [`Clock::advance_far`] is needed.
    #[inline]
    pub fn advance_near(&mut self, time_us: i64) -> bool {
        let step_us = time_us.wrapping_sub(self.packet_us);
        // One comparison for both sides: what is negative is huge.
        if step_us as u64 > Clock::BOUND_US as u64 {
            return false;
        }
        self.go_on(step_us);
        true
    }

    /// Whether a packet of this time leaves the clock where it is, as nearly all do where many come
    /// in a µs.
    #[inline]
    pub fn is_now(&self, time_us: i64) -> bool {
        time_us == self.packet_us
    }

    /// Whether time would go on to `time_us` where no packet came.
    pub fn is_behind(&self, time_us: i64) -> bool {
        !self.is_started || time_us > self.packet_us
    }

    #[inline]
    fn go_on(&mut self, step_us: i64) {
        debug_assert!(step_us >= 0, "flow time never goes back");
        self.packet_us += step_us;
        self.now_us += step_us;
        if self.now_us >= self.next_second_us {
            self.set_second();
        }
    }

    fn set_second(&mut self) {
        let second = self.now_us.div_euclid(SECOND_US);
        self.second = second as u16;
        self.next_second_us = (second + 1).saturating_mul(SECOND_US);
    }

    /// Goes on to the time of a packet that is late, or far from the one before.
    #[cold]
    pub fn advance_far(&mut self, time_us: i64) -> Step {
        // So that differences do not overflow.
        let time_us = Packet::clamp_time(time_us);
        if !self.is_started {
            (self.is_started, self.now_us, self.packet_us) = (true, time_us, time_us);
            self.set_second();
            return Step::Near;
        }
        let step_us = time_us - self.packet_us;
        if step_us.abs() <= Clock::BOUND_US {
            self.go_on(step_us.max(0));
            return Step::Near;
        }
        let is_back = step_us < 0;
        if !self.switch(time_us) {
            // Flow time follows a step forward. The clocks known so far keep their distance to it,
            // so that their packets, should more of them come, are no step again.
            let forward_us = step_us.clamp(0, Clock::JUMP_MAX_US);
            let difference_us = self.now_us - self.packet_us;
            self.others.rotate_right(1);
            self.others[0] = Some(difference_us);
            for other in self.others.iter_mut().flatten() {
                *other = other.saturating_add(forward_us);
            }
            self.packet_us = time_us;
            // Not to the end of the range, which small steps do not look for.
            self.now_us = self.now_us.saturating_add(forward_us).min(i64::MAX / 2);
            self.set_second();
            if step_us >= Clock::JUMP_US {
                return Step::Jump;
            }
        }
        match is_back {
            true => Step::Rebased,
            false => Step::Near,
        }
    }

    /// Goes on by an earlier clock's difference, if one of them makes `time_us` near to now.
    fn switch(&mut self, time_us: i64) -> bool {
        let is_near = |other: &Option<i64>| {
            other.is_some_and(|difference_us| {
                let at_us = time_us.saturating_add(difference_us);
                at_us.abs_diff(self.now_us) <= Clock::BOUND_US as u64
            })
        };
        let Some(place) = self.others.iter().position(is_near) else {
            return false;
        };
        let current_us = self.now_us - self.packet_us;
        self.others[..=place].rotate_right(1);
        if let Some(difference_us) = self.others[0].replace(current_us) {
            self.packet_us = self.now_us - difference_us;
            self.go_on((time_us - self.packet_us).max(0));
        }
        true
    }

    /// Flow time, µs: the packets' own until these first step back.
    pub fn now_us(self) -> i64 {
        self.now_us
    }

    /// What the clock that stamps packets would say now, µs since the epoch.
    pub fn packet_us(self) -> i64 {
        self.packet_us
    }

    /// Flow time of a packet that the clock has advanced to, µs; before now where the packet is
    /// late.
    #[inline]
    pub fn flow_us(self, time_us: i64) -> i64 {
        let late_us = self.packet_us.saturating_sub(time_us).max(0);
        self.now_us.saturating_sub(late_us)
    }

    /// Flow time at which the next second begins.
    pub fn next_second_us(self) -> i64 {
        self.next_second_us
    }

    /// The current second of flow time, wrapping.
    #[inline]
    pub fn second(self) -> u16 {
        self.second
    }
}

/// When a silent flow is over: seconds of silence after which it has ended, 0 for never.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifetimes {
    idle_s: u16,
    /// For a flow that FIN or RST closed.
    closed_s: u16,
    /// For a half-open flow; never longer than `idle_s`.
    half_open_s: u16,
    /// For an established connection; never shorter than `idle_s`.
    established_s: u16,
    /// The shortest of them that is not 0.
    shortest_s: u16,
}

impl Lifetimes {
    /// `lag_s`: a flow's packets may be reported this many seconds late, so it ends as much later.
    pub fn new(settings: &Settings, lag_s: u16) -> Lifetimes {
        let later = |timeout_s: u16| match timeout_s {
            0 => 0,
            _ => timeout_s + lag_s,
        };
        let idle_s = later(settings.idle_timeout_s);
        let closed_s = later(settings.closed_timeout_s);
        let half_open_s = match (later(settings.half_open_timeout_s), idle_s) {
            (0, _) => idle_s,
            (half_open_s, 0) => half_open_s,
            (half_open_s, _) => half_open_s.min(idle_s),
        };
        // Never shorter than the idle timeout, so 0 is as that.
        let established_s = match idle_s {
            0 => 0,
            _ => later(settings.established_timeout_s).max(idle_s),
        };
        let timeouts = [idle_s, closed_s, half_open_s];
        Lifetimes {
            idle_s,
            closed_s,
            half_open_s,
            established_s,
            shortest_s: timeouts.into_iter().filter(|&it| it != 0).min().unwrap_or(0),
        }
    }

    /// In whole seconds, so a flow ends up to one second after its timeout.
    #[inline]
    pub fn is_over(self, occupant: Occupant, now: u16) -> bool {
        self.may_be_over(occupant.stamp, now)
            && exceeds(self.silence(occupant, now), self.timeout_s(occupant))
    }

    /// Whether a flow that was last heard of in second `stamp` can be over.
    #[inline]
    pub fn may_be_over(self, stamp: u16, now: u16) -> bool {
        now.wrapping_sub(stamp) > self.shortest_s
    }

    /// The shortest silence, in seconds, beyond which a flow that is open, and one that is closed,
    /// can be over.
    pub fn least_s(self) -> (u16, u16) {
        // 0 is never, which no silence exceeds.
        let or_never = |timeout_s: u16| if timeout_s == 0 { u16::MAX } else { timeout_s };
        let open_s = or_never(self.idle_s).min(or_never(self.half_open_s));
        (open_s, or_never(self.shortest_s))
    }

    fn silence(self, occupant: Occupant, now: u16) -> u16 {
        now.wrapping_sub(occupant.stamp)
    }

    /// Whether the silence exceeds the idle timeout, which an established connection may.
    pub fn is_idle(self, occupant: Occupant, now: u16) -> bool {
        exceeds(self.silence(occupant, now), self.idle_s)
    }

    /// Whether a flow may be evicted when the table is full.
    pub fn may_be_evicted(self, occupant: Occupant, now: u16) -> bool {
        occupant.is_half_open || occupant.is_closed || self.is_idle(occupant, now)
    }

    /// Seconds of silence that end the flow; 0 for never.
    pub fn timeout_s(self, occupant: Occupant) -> u16 {
        let timeout_s = match occupant {
            Occupant { is_half_open: true, .. } => self.half_open_s,
            Occupant { is_lasting: true, .. } => self.established_s,
            _ => self.idle_s,
        };
        match (occupant.is_closed, timeout_s) {
            (false, _) => timeout_s,
            (true, 0) => self.closed_s,
            (true, _) => timeout_s.min(self.closed_s),
        }
    }

    /// When a flow that was last heard of at `last_us` is over; `None`: never.
    pub fn over_us(self, last_us: i64, occupant: Occupant) -> Option<i64> {
        let timeout_s = self.timeout_s(occupant);
        (timeout_s != 0).then(|| last_us.saturating_add(i64::from(timeout_s) * SECOND_US))
    }

    /// Whether a flow is over after a jump in time.
    pub fn is_over_after_jump(self, occupant: Occupant) -> bool {
        self.timeout_s(occupant) != 0
    }
}

fn exceeds(silent_s: u16, timeout_s: u16) -> bool {
    timeout_s != 0 && silent_s > timeout_s
}

/// The pace of the sweep over the buckets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sweep {
    buckets: u32,
    period_us: i64,
    started_us: i64,
    next_us: i64,
    /// Buckets due since the start, as a running total.
    done: u64,
    at: u32,
    /// Buckets that were due and were put off.
    owed: u32,
}

impl Sweep {
    /// The longest time for one round over all buckets.
    const PERIOD_MAX_S: i64 = 60;
    /// The sweep goes on at most once in this time.
    const TICK_US: i64 = 1000;

    /// One round takes the shortest timeout, so a flow is found to be over at the
    /// latest that long after it was.
    pub fn new(buckets: u32, period_us: i64) -> Sweep {
        Sweep {
            buckets,
            period_us,
            started_us: i64::MIN,
            next_us: i64::MIN,
            done: 0,
            at: 0,
            owed: 0,
        }
    }

    pub fn period_us(lifetimes: Lifetimes) -> i64 {
        let period_us = i64::from(lifetimes.shortest_s) * SECOND_US;
        period_us.clamp(SECOND_US, Sweep::PERIOD_MAX_S * SECOND_US)
    }

    /// Goes on from the same bucket at another pace.
    pub fn set_pace(&mut self, period_us: i64) {
        // Without a change nothing restarts; otherwise frequent changes of settings would stop the
        // sweep.
        if period_us != self.period_us {
            (self.period_us, self.started_us, self.done) = (period_us, i64::MIN, 0);
        }
    }

    /// Puts buckets off. Beyond one round nothing is owed: a bucket is looked at once, however long
    /// it was due.
    pub fn put_off(&mut self, due: u32) {
        self.owed = self.owed.saturating_add(due).min(self.buckets);
    }

    pub fn owed(&self) -> u32 {
        self.owed
    }

    /// Takes some of the buckets that are owed, at most `most` and up to the last one.
    pub fn take_owed(&mut self, most: u32) -> std::ops::Range<u32> {
        let heads = self.take(self.owed.min(most));
        self.owed -= heads.len() as u32;
        heads
    }

    /// Whether [`Sweep::due`] is to be asked.
    #[inline]
    pub fn is_due(&self, now_us: i64) -> bool {
        now_us >= self.next_us
    }

    /// Buckets that are due at `now_us`, at most all of them. The caller asks again at `again_us`,
    /// if not before.
    pub fn due(&mut self, now_us: i64, again_us: i64) -> u32 {
        if !self.is_due(now_us) {
            return 0;
        }
        if self.started_us == i64::MIN {
            self.started_us = now_us;
        }
        self.next_us = now_us.saturating_add(Sweep::TICK_US).min(again_us);
        let elapsed_us = now_us.saturating_sub(self.started_us) as u128;
        let total = (elapsed_us * u128::from(self.buckets) / self.period_us as u128) as u64;
        debug_assert!(total >= self.done, "flow time never goes back");
        let due = (total - self.done).min(u64::from(self.buckets)) as u32;
        self.done = total;
        due
    }

    /// Takes the next buckets, at most `due` and up to the last one.
    pub fn take(&mut self, due: u32) -> std::ops::Range<u32> {
        let from = self.at;
        let to = self.buckets.min(from + due);
        debug_assert!(from <= to, "a sweep that goes back");
        self.at = if to == self.buckets { 0 } else { to };
        from..to
    }
}

/// When an ongoing flow is reported.
///
/// An entry's hot line has room for only eight bits: the tick of its last report, where a tick is a
/// sixteenth of the timeout. Once fifteen ticks have passed, the exact time in the cold line
/// decides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActiveTimeout {
    /// 0: off.
    timeout_us: i64,
    tick_us: i64,
}

impl ActiveTimeout {
    pub fn new(timeout_s: u32) -> ActiveTimeout {
        let timeout_us = i64::from(timeout_s) * SECOND_US;
        ActiveTimeout { timeout_us, tick_us: (timeout_us / 16).max(1) }
    }

    pub fn is_on(self) -> bool {
        self.timeout_us != 0
    }

    /// The tick of a time, wrapping.
    pub fn tick(self, time_us: i64) -> u8 {
        time_us.div_euclid(self.tick_us) as u8
    }

    /// Whether the exact time has to be looked at.
    pub fn may_be_due(self, reported_tick: u8, time_us: i64) -> bool {
        self.tick(time_us).wrapping_sub(reported_tick) >= 15
    }

    pub fn is_due(self, reported_us: i64, time_us: i64) -> bool {
        time_us.saturating_sub(reported_us) >= self.timeout_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFETIMES: Lifetimes =
        Lifetimes { idle_s: 30, closed_s: 5, half_open_s: 30, established_s: 30, shortest_s: 5 };

    fn occupant(stamp: u16, is_closed: bool) -> Occupant {
        Occupant { index: 0, stamp, is_closed, is_half_open: false, is_lasting: false }
    }

    #[test]
    fn silence_is_measured_across_the_wrap_of_the_stamps() {
        let now = 10u16;
        assert!(!LIFETIMES.is_over(occupant(now.wrapping_sub(30), false), now));
        assert!(LIFETIMES.is_over(occupant(now.wrapping_sub(31), false), now));
        assert!(!LIFETIMES.is_over(occupant(now.wrapping_sub(5), true), now));
        assert!(LIFETIMES.is_over(occupant(now.wrapping_sub(6), true), now));
        let never = Lifetimes { idle_s: 0, ..LIFETIMES };
        assert!(!never.is_over(occupant(now.wrapping_sub(40_000), false), now));
        assert!(never.is_over(occupant(now.wrapping_sub(40_000), true), now));
    }

    impl Clock {
        pub(crate) fn advance(&mut self, time_us: i64) -> Step {
            match self.advance_near(time_us) {
                true => Step::Near,
                false => self.advance_far(time_us),
            }
        }
    }

    fn clock_at(time_us: i64) -> Clock {
        let mut clock = Clock::new();
        assert_eq!(clock.advance(time_us), Step::Near);
        clock
    }

    #[test]
    fn late_packets_leave_the_clock_and_jumps_are_told() {
        let mut clock = clock_at(100 * SECOND_US);
        for late_s in [1, 59, 60] {
            let time_us = (100 - late_s) * SECOND_US;
            assert_eq!(clock.advance(time_us), Step::Near);
            assert_eq!(clock.now_us(), 100 * SECOND_US);
            assert_eq!(clock.flow_us(time_us), time_us);
        }
        assert_eq!(clock.advance(101 * SECOND_US), Step::Near);
        assert_eq!(clock.advance((101 + (1 << 15)) * SECOND_US), Step::Jump);
        assert_eq!(clock.now_us(), (101 + (1 << 15)) * SECOND_US);
    }

    #[test]
    fn after_a_step_back_time_goes_on_from_where_it_was() {
        let day_us = 86_400 * SECOND_US;
        let mut clock = clock_at(0);
        assert_eq!(clock.advance(day_us), Step::Jump);
        // The clock of the first packet goes on.
        assert_eq!(clock.advance(SECOND_US), Step::Rebased);
        assert_eq!(clock.now_us(), day_us + SECOND_US);
        assert_eq!(clock.packet_us(), SECOND_US);
        assert_eq!(clock.advance(3 * SECOND_US), Step::Near);
        assert_eq!(clock.now_us(), day_us + 3 * SECOND_US);
        assert_eq!(clock.flow_us(2 * SECOND_US), day_us + 2 * SECOND_US);
        assert_eq!(clock.second(), (86_403 % 65_536) as u16);
        // One that was never seen.
        assert_eq!(clock.advance(-day_us), Step::Rebased);
        assert_eq!(clock.now_us(), day_us + 3 * SECOND_US);
        assert_eq!(clock.packet_us(), -day_us);
    }

    #[test]
    fn where_no_packet_came_an_earlier_time_changes_nothing() {
        let clock = clock_at(1000 * SECOND_US);
        assert!(!clock.is_behind(0) && !clock.is_behind(1000 * SECOND_US));
        assert!(clock.is_behind(1001 * SECOND_US));
        assert!(Clock::new().is_behind(i64::MIN));
    }

    /// Four clocks, days apart, whose packets alternate.
    #[test]
    fn clocks_that_alternate_move_flow_time_once() {
        let mut clock = clock_at(0);
        let (mut jumps, mut rebased) = (0, 0);
        for second in 1..1000 {
            for day in [0, 3, 1, -2] {
                match clock.advance((day * 86_400 + second) * SECOND_US) {
                    Step::Near => {}
                    Step::Jump => jumps += 1,
                    Step::Rebased => rebased += 1,
                }
            }
        }
        assert_eq!((jumps, rebased), (1, 2 * 999));
        assert_eq!(clock.now_us(), Clock::JUMP_MAX_US + 999 * SECOND_US);
    }

    #[test]
    fn absurd_times_neither_overflow_nor_stop_the_clock() {
        let mut clock = clock_at(i64::MAX);
        for time_us in [i64::MIN, i64::MAX, 0, i64::MAX, i64::MIN, i64::MAX, 5] {
            let before_us = clock.now_us();
            clock.advance(time_us);
            assert!(clock.now_us() >= before_us);
        }
        let before_us = clock.now_us();
        clock.advance(30 * SECOND_US);
        clock.advance(90 * SECOND_US);
        assert_eq!(clock.now_us() - before_us, 90 * SECOND_US - 5);
    }

    #[test]
    fn seconds_before_the_epoch_go_on_counting() {
        let second = |now_us| clock_at(now_us).second();
        assert_eq!(second(0).wrapping_sub(second(-1)), 1);
    }

    #[test]
    fn a_period_of_time_sweeps_every_bucket_once_however_it_is_cut() {
        for step_us in [1, 999, 1000, 77_777, 2_500_000] {
            let mut sweep = Sweep::new(1000, Sweep::period_us(LIFETIMES));
            assert_eq!(sweep.due(0, i64::MAX), 0);
            let (mut now_us, mut swept) = (0, 0);
            while now_us < 5_000_000 {
                now_us = (now_us + step_us).min(5_000_000);
                swept += sweep.due(now_us, i64::MAX);
            }
            assert!((999..=1000).contains(&swept), "{swept} for steps of {step_us}");
        }
    }

    #[test]
    fn what_is_put_off_is_one_round_at_most_and_is_all_taken() {
        let mut sweep = Sweep::new(1000, Sweep::period_us(LIFETIMES));
        sweep.put_off(700);
        sweep.put_off(700);
        let mut taken = 0;
        while sweep.owed() > 0 {
            taken += sweep.take_owed(64).len();
        }
        assert_eq!(taken, 1000);
        assert!(sweep.take_owed(64).is_empty());
    }

    #[test]
    fn a_jump_sweeps_everything_once_and_not_more() {
        let mut sweep = Sweep::new(1000, Sweep::period_us(LIFETIMES));
        sweep.due(0, i64::MAX);
        assert_eq!(sweep.due(i64::MAX, i64::MAX), 1000);
        assert_eq!(sweep.due(i64::MAX, i64::MAX), 0);
    }

    #[test]
    fn the_coarse_tick_never_misses_an_active_timeout() {
        let active = ActiveTimeout::new(2);
        for start_us in [0, 1, 124_999, 125_000, -3] {
            let tick = active.tick(start_us);
            for later_us in [2_000_000, 2_000_001, 3_999_999] {
                let time_us = start_us + later_us;
                assert!(active.may_be_due(tick, time_us));
                assert!(active.is_due(start_us, time_us));
            }
            assert!(!active.is_due(start_us, start_us + 1_999_999));
        }
    }
}
