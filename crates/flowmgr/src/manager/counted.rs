//! Packets that were counted where they passed, in the kernel, and not walked: their counts belong
//! to their flows.

use std::io;

use super::walk::Walk;
use crate::config::Config;
use crate::entry::STATE_EMITTED;
use crate::flows::Flows;
use crate::key::Key;
use crate::memory::{Array, Zeroed};
use crate::part::{First, Part};
use crate::table::Place;

/// Counts come so many seconds after their packets, at most. Flows live as much longer.
const LAG_S: u16 = 2;

/// What was counted of one flow, from the low end of its key and from the high one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The flow.
    pub key: Key,
    /// Packets since the counter began.
    pub packets: [u64; 2],
    /// Their bytes at the IP layer.
    pub bytes: [u64; 2],
    /// Which counter it is: another one than before began anew. Not 0.
    pub generation: u32,
    /// Time of the last packet, µs of flow time.
    pub last_us: i64,
}

/// The counters of each flow as they were last told.
pub(crate) struct CountedSoFar(Array<Told>);

#[derive(Clone, Copy, Debug, Default)]
struct Told {
    packets: [u64; 2],
    bytes: [u64; 2],
    /// 0: nothing was told of the flow.
    generation: u32,
}

#[expect(unsafe_code, reason = "a promise about a type of integers")]
mod zeroed {
    // SAFETY: integers only, and padding that nobody reads.
    unsafe impl super::Zeroed for super::Told {}
}

impl Config {
    /// Seconds by which flows live longer because of packets that are told of later.
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
    fn update(&mut self, index: u32, counted: &Counted) -> Told {
        let now = Told {
            packets: counted.packets,
            bytes: counted.bytes,
            generation: counted.generation,
        };
        debug_assert_ne!(now.generation, 0, "that is no counter");
        let told = &mut self.0[index as usize];
        if told.generation != now.generation {
            *told = now;
            return now;
        }
        // A counter goes up only. Lower counts were read earlier, and came on a longer way: they
        // hold nothing new.
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

impl<P: Part> Walk<P> {
    /// See [`crate::Manager::count`].
    pub fn count(&mut self, counted: &Counted) -> bool {
        let hash = self.flows.hash(&counted.key, None);
        let Some(place) = self.flows.find(&counted.key, hash, None) else {
            return false;
        };
        let index = self.flows.table.occupant(place).index;
        if self.port != 0 && self.series.store.port(index) != self.port {
            return true;
        }
        let Some(so_far) = &mut self.counted else {
            return true;
        };
        let new = so_far.update(index, counted);
        if new.packets == [0; 2] {
            return true;
        }
        if self.flows.active.is_on()
            && self.report_if_due(index, counted.last_us)
            && self.flows.table.occupant(place).is_half_open
        {
            // As for packets that are walked: see `Flows::establish_answered`.
            self.flows.establish(place, false);
        }
        self.add(index, &new);
        note_last(&mut self.flows, place, index, counted.last_us);
        note_answer(&mut self.flows, place, index, &new);
        let cause = self.rules.cause_by_counts(&self.flows, index);
        self.ask_now(index, cause);
        true
    }

    fn add(&mut self, index: u32, new: &Told) {
        for (end, from_low) in [true, false].into_iter().enumerate() {
            let direction = self.flows.entries.hot(index).direction(from_low);
            let (packets, bytes) = (new.packets[end], new.bytes[end]);
            self.count_sum(index, direction, packets, bytes);
        }
        let (packets, bytes) = (new.packets.iter().sum(), new.bytes.iter().sum());
        self.flows.counters.flow_bytes += bytes;
        // What is counted is counted live, where a label counts from when it is there.
        let class = match self.rules.is_on() {
            // The action waits for the answer.
            true => self.labels.class_of(&mut self.flows, index),
            false if self.flows.entries.hot(index).has(STATE_EMITTED) => self
                .labels
                .look_up_action(&mut self.flows, index)
                .map(|(class, _)| class),
            false => None,
        };
        if let Some(class) = class {
            self.flows.counters.labelled_bytes += bytes;
            if let Some(volume) = self
                .flows
                .counters
                .labelled_by_class
                .get_mut(usize::from(class))
            {
                volume.add(packets, bytes);
            }
        }
    }
}

/// The flow was last heard of at that time, unless packets came since.
fn note_last(flows: &mut Flows, place: Place, index: u32, last_us: i64) {
    let hot = flows.entries.hot_mut(index);
    if last_us <= hot.last_us {
        return;
    }
    hot.last_us = last_us;
    let late_us = flows.clock.packet_us().saturating_sub(last_us).max(0);
    let late_s = (late_us / 1_000_000).min(i64::from(LAG_S)) as u16;
    let second = flows.clock.second().wrapping_sub(late_s);
    flows.table.touch_if(place, second, |_| true);
}

/// As [`crate::flows::Flows::look_at_answer`]: those packets open and reset nothing, for such ones
/// are walked.
fn note_answer(flows: &mut Flows, place: Place, index: u32, new: &Told) {
    let forward = usize::from(!flows.entries.hot(index).is_low_forward());
    let is_udp = flows.entries.hot(index).key().protocol() == crate::key::UDP;
    let is_answered = flows.entries.hot(index).has_reverse_packets();
    if flows.table.occupant(place).is_half_open
        && is_answered
        && (is_udp || new.packets[forward] != 0)
    {
        flows.establish(place, !is_udp);
    }
}
