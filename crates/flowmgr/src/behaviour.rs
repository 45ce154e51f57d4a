//! The behaviour of a flow: what its counts show it to do, regardless of its label. A part of a
//! flow with its own array.
//!
//! `bulk` is set with the very packet that crosses the bound, because the hot line's byte counters
//! run ahead so that they carry there ([`crate::entry`]): it costs the walk nothing. The others are
//! judged from *samples*: once a second, between bursts, a flow's counts are compared with its last
//! sample. Only flows that have had packets since are sampled, and a sample covers the time since
//! the one before. A behaviour that comes from samples must be seen in [`Bounds::hold_s`] of them
//! in a row before it is taken.
//!
//! By packet time all flows are sampled at each full second, before the first later packet, so that
//! bursts and the layout change nothing. Live, the sweep samples each bucket once a second.

use std::io;

use crate::entry::Counts;
use crate::memory::{Array, Zeroed};
use crate::part::{First, Part};

mod sampling;

pub(crate) use sampling::LOOK_AGAIN_S;

/// What a flow does, by its counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Behaviour {
    /// None of the others, or not seen for long enough.
    #[default]
    None,
    /// It has had more bytes than [`Bounds::bulk_bytes`], while it was neither `interactive` nor
    /// `realtime`.
    Bulk,
    /// Small packets both ways, at a low rate.
    Interactive,
    /// Small packets of UDP both ways, at a steady rate.
    Realtime,
    /// Silent for [`Bounds::idle_s`], after packets both ways.
    Idle,
}

impl Behaviour {
    /// The number of behaviours.
    pub const COUNT: usize = 5;

    /// All, in the order of their numbers.
    pub const ALL: [Behaviour; Behaviour::COUNT] = [
        Behaviour::None,
        Behaviour::Bulk,
        Behaviour::Interactive,
        Behaviour::Realtime,
        Behaviour::Idle,
    ];

    /// The name in rules, records and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Behaviour::None => "none",
            Behaviour::Bulk => "bulk",
            Behaviour::Interactive => "interactive",
            Behaviour::Realtime => "realtime",
            Behaviour::Idle => "idle",
        }
    }

    fn of_number(number: u8) -> Behaviour {
        let found = Behaviour::ALL.get(usize::from(number));
        found.copied().unwrap_or_default()
    }
}

/// Bounds between behaviours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// A flow with more bytes, in both directions together at the IP layer, is `bulk`. At most
    /// [`Bounds::BULK_BYTES_MAX`].
    pub bulk_bytes: u32,
    /// Packets are small if their mean length is at most this, in each direction.
    pub small_bytes: u32,
    /// The most packets per second of an `interactive` flow, in each direction.
    pub interactive_packets_max: u32,
    /// The fewest packets per second of a `realtime` flow, in each direction.
    pub realtime_packets_min: u32,
    /// Samples in a row, a second each, that must show a behaviour other than `bulk` and `idle`.
    pub hold_s: u8,
    /// Seconds of silence after which a flow is `idle`.
    pub idle_s: u16,
}

impl Bounds {
    /// The hot line's counters have 24 bits.
    pub const BULK_BYTES_MAX: u32 = (1 << 24) - 1;

    /// What a sample alone shows: `Interactive`, `Realtime` or `None`.
    fn shape(&self, sample: &Sample) -> Behaviour {
        let each = |fits: &dyn Fn(u64, u64) -> bool| {
            (0..2).all(|direction| fits(sample.packets[direction], sample.bytes[direction]))
        };
        let seconds = u64::from(sample.seconds);
        let small = u64::from(self.small_bytes);
        if !each(&|packets, bytes| packets > 0 && bytes <= packets * small) {
            return Behaviour::None;
        }
        let least = u64::from(self.realtime_packets_min) * seconds;
        let most = u64::from(self.interactive_packets_max) * seconds;
        if sample.is_udp && each(&|packets, _| packets >= least) {
            Behaviour::Realtime
        } else if each(&|packets, _| packets <= most) {
            Behaviour::Interactive
        } else {
            Behaviour::None
        }
    }
}

/// What a flow has received since its last sample.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    packets: [u64; 2],
    bytes: [u64; 2],
    /// At least 1.
    seconds: u16,
    is_udp: bool,
}

/// What is kept of a flow.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct State {
    /// Counts at the last sample, since the flow's last record; after a record negative, wrapping.
    bytes: [u64; 2],
    packets: [u32; 2],
    /// The second at which the next sample begins.
    second: u16,
    /// The behaviour, and the one before it fell silent if it is `Idle`.
    now: u8,
    before_idle: u8,
    /// What the last samples showed instead of the behaviour, and how many did.
    shown: u8,
    held: u8,
    /// It has been `Bulk`, and is so again when it is nothing else.
    is_big: u8,
}

/// Bytes that a flow takes for its behaviour.
pub const BEHAVIOUR_BYTES: usize = size_of::<State>() + size_of::<[u32; 2]>();

#[expect(unsafe_code, reason = "a promise about a type of integers")]
mod zeroed {
    // SAFETY: integers only, and padding that nobody reads.
    unsafe impl super::Zeroed for super::State {}
}

impl State {
    fn now(&self) -> Behaviour {
        Behaviour::of_number(self.now)
    }

    /// The behaviour, silence apart.
    fn active(&self) -> Behaviour {
        match self.now() {
            Behaviour::Idle => Behaviour::of_number(self.before_idle),
            now => now,
        }
    }

    fn take(&mut self, behaviour: Behaviour) {
        (self.now, self.shown, self.held) = (behaviour as u8, behaviour as u8, 0);
    }

    /// Takes a sample with packets.
    fn see(&mut self, sample: &Sample, bounds: &Bounds) {
        // Any packet contradicts `Idle`.
        self.now = self.active() as u8;
        let shape = match bounds.shape(sample) {
            Behaviour::None if self.is_big != 0 => Behaviour::Bulk,
            shape => shape,
        };
        if shape as u8 == self.now {
            self.held = 0;
            return;
        }
        self.held = match self.shown == shape as u8 {
            true => self.held.saturating_add(1),
            false => 1,
        };
        self.shown = shape as u8;
        if self.held >= bounds.hold_s {
            self.take(shape);
        }
    }

    fn fall_silent(&mut self) {
        if self.now() != Behaviour::Idle {
            self.before_idle = self.now;
            self.take(Behaviour::Idle);
        }
    }

    fn cross(&mut self) {
        self.is_big = 1;
        self.take(Behaviour::Bulk);
    }

    /// What came since the last sample.
    fn since(&self, counts: &Counts) -> ([u64; 2], [u64; 2]) {
        let packets = |direction: usize| {
            (counts.packets[direction] as u32).wrapping_sub(self.packets[direction])
        };
        let bytes = |direction: usize| counts.bytes[direction].wrapping_sub(self.bytes[direction]);
        (std::array::from_fn(|direction| u64::from(packets(direction))), std::array::from_fn(bytes))
    }

    fn note(&mut self, counts: &Counts) {
        self.packets = counts.packets.map(|packets| packets as u32);
        self.bytes = counts.bytes;
    }
}

/// A change, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub before: Behaviour,
    pub now: Behaviour,
    /// The behaviour for which the packets and bytes since the last sample count.
    pub counts_for: Behaviour,
    pub packets: u64,
    pub bytes: u64,
}

/// The behaviours of a table's flows.
pub(crate) struct Behaviours {
    bounds: Bounds,
    states: Array<State>,
    /// By packet time, the second up to which flows were sampled.
    sampled: Option<u16>,
    /// Flows whose behaviour has changed since the last [`Self::take_changed`].
    changed: Vec<u32>,
}

impl Behaviours {
    pub fn new(entries: usize, bounds: Bounds) -> io::Result<Behaviours> {
        Ok(Behaviours {
            bounds,
            states: Array::new(entries)?,
            sampled: None,
            changed: Vec::with_capacity(sampling::CHANGED_MAX),
        })
    }

    /// A flow begins in this second.
    fn begin_in(&mut self, index: u32, second: u16) {
        self.states[index as usize] = State { second, ..State::default() };
    }

    pub fn now(&self, index: u32) -> Behaviour {
        self.states[index as usize].now()
    }

    /// The behaviour before the flow fell silent, for the record of its end.
    pub fn active(&self, index: u32) -> Behaviour {
        self.states[index as usize].active()
    }

    /// Samples a flow up to this second; `None` if nothing came since the last sample.
    fn sample(&mut self, index: u32, counts: &Counts, until: u16, is_udp: bool) -> Option<Step> {
        let state = &mut self.states[index as usize];
        let (packets, bytes) = state.since(counts);
        if packets == [0; 2] {
            return None;
        }
        let seconds = until.wrapping_sub(state.second).max(1);
        let (before, counts_for) = (state.now(), state.active());
        let sample = Sample { packets, bytes, seconds, is_udp };
        state.see(&sample, &self.bounds);
        state.note(counts);
        state.second = until;
        Some(Step {
            before,
            now: state.now(),
            counts_for,
            packets: packets.iter().sum(),
            bytes: bytes.iter().sum(),
        })
    }

    /// The flow has crossed the bound of `Bulk`, or its counts have come to an end.
    fn account(&mut self, index: u32, counts: &Counts, change: impl FnOnce(&mut State)) -> Step {
        let state = &mut self.states[index as usize];
        let (packets, bytes) = state.since(counts);
        let (before, counts_for) = (state.now(), state.active());
        change(state);
        state.note(counts);
        Step {
            before,
            now: state.now(),
            counts_for,
            packets: packets.iter().sum(),
            bytes: bytes.iter().sum(),
        }
    }

    /// The flow has crossed the bound of `Bulk`.
    fn cross(&mut self, index: u32, counts: &Counts) -> Step {
        self.account(index, counts, State::cross)
    }

    /// The flow was silent for as long as `Idle` takes.
    fn fall_silent(&mut self, index: u32, counts: &Counts) -> Step {
        self.account(index, counts, State::fall_silent)
    }

    /// The flow ends.
    fn end(&mut self, index: u32, counts: &Counts) -> Step {
        self.account(index, counts, |_| {})
    }
}

impl Part for Behaviours {
    fn begin(&mut self, index: u32, first: &First<'_>) {
        self.begin_in(index, first.second);
    }

    fn report(&mut self, index: u32, reported: &Counts) {
        let state = &mut self.states[index as usize];
        for direction in 0..2 {
            let packets = &mut state.packets[direction];
            *packets = packets.wrapping_sub(reported.packets[direction] as u32);
            let bytes = &mut state.bytes[direction];
            *bytes = bytes.wrapping_sub(reported.bytes[direction]);
        }
    }

    fn prefetch(&self, index: u32) {
        crate::prefetch::prefetch(&self.states, index as usize);
    }
}

#[cfg(test)]
mod tests;
