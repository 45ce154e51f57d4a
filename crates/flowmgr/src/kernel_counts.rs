//! The part that holds the counters of packets that the kernel counted.

use std::io;

use crate::config::Config;
use crate::key::Key;
use crate::memory::{Array, Zeroed};
use crate::part::{First, Part};

/// Counts come at most this many seconds after their packets. Flows live as much longer.
pub(crate) const LAG_S: u16 = 2;

/// What was counted of one flow, from the low end of its key and from the high one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The flow.
    pub key: Key,
    /// Packets since the counter began.
    pub packets: [u64; 2],
    /// Their bytes at the IP layer.
    pub bytes: [u64; 2],
    /// Which counter it is: a new number means that counting restarted. Not 0.
    pub generation: u32,
    /// Time of the last packet, µs of flow time, in the range of [`crate::Packet::time_us`].
    pub last_us: i64,
}

/// The counters of each flow as last reported.
pub(crate) struct CountedSoFar(Array<Told>);

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    pub packets: [u64; 2],
    pub bytes: [u64; 2],
    /// 0: nothing was reported of the flow.
    generation: u32,
}

#[expect(unsafe_code, reason = "a promise about a type of integers")]
mod zeroed {
    // SAFETY: integers only, and padding that nobody reads.
    unsafe impl super::Zeroed for super::Told {}
}

impl Config {
    /// Seconds that flows live longer, because packets are reported late.
    pub(crate) fn counts_lag_s(&self) -> u16 {
        match self.expects_counts {
            true => LAG_S,
            false => 0,
        }
    }
}

impl CountedSoFar {
    pub fn new(entries: usize) -> io::Result<CountedSoFar> {
        Ok(CountedSoFar(Array::new(entries)?))
    }

    /// What is new since the last time.
    pub fn update(&mut self, index: u32, counted: &Counted) -> Told {
        let now =
            Told { packets: counted.packets, bytes: counted.bytes, generation: counted.generation };
        debug_assert_ne!(now.generation, 0, "that is no counter");
        let told = &mut self.0[index as usize];
        if told.generation != now.generation {
            *told = now;
            return now;
        }
        // A counter only goes up. Lower counts were read earlier and came later: they hold nothing
        // new.
        let new = |now: [u64; 2], told: &mut [u64; 2]| {
            std::array::from_fn(|end| {
                let before = told[end];
                told[end] = now[end].max(before);
                told[end] - before
            })
        };
        Told {
            packets: new(now.packets, &mut told.packets),
            bytes: new(now.bytes, &mut told.bytes),
            ..now
        }
    }
}

impl Part for CountedSoFar {
    fn begin(&mut self, index: u32, _: &First<'_>) {
        self.0[index as usize] = Told::default();
    }
}
