//! The store of the flows' series, an array beside the entries.
//!
//! For each unit in use the store holds all features that tasks of that unit ask for, and as many
//! elements as the longest of their series. A feature that nobody asks for takes neither memory nor
//! time.
//!
//! A flow's part is a run of 16-bit words, for each unit:
//!
//! ```text
//! directions (2) │ elements seen │ flags │ previous time (4, if asked for) │ channel │ channel │ …
//! ```
//!
//! with the channels in the order of [`Feature::ALL`], K elements each. It is rounded up to 32
//! bytes, so signed lengths of up to 12 packets take half a cache line. Offsets in time are kept
//! only where the records ask for them.

use cring::{Feature, Features, Series, Unit};

use std::io;

use crate::memory::Array;
use crate::prefetch::prefetch;
use crate::task_config::TaskConfig;
pub(crate) use part::{Arrival, Asked, SeriesPart};

mod part;

/// Words at the head of a unit's part: directions (two), elements seen, flags.
const HEADER_WORDS: usize = 4;
/// Words for the time of the element before, for inter-arrival times.
const TIME_WORDS: usize = 4;
/// A flow's part is a multiple of this many words, 32 bytes.
const STRIDE_WORDS: usize = 16;
/// Where the flags of a flow stand: in its first unit.
const FLAGS: usize = 3;
const FLAG_MIDSTREAM: u16 = 1;
const FLAG_BOTH_WAYS: u16 = 2;

/// A packet as series see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Element {
    /// 0 for a forward packet, 1 for one in reverse.
    pub direction: usize,
    /// Bytes at the IP layer.
    pub length: u32,
    /// Bytes of layer-4 payload.
    pub payload: u32,
    pub tcp_flags: u8,
    pub time_us: i64,
    /// Time after the flow's first packet, where records ask for it.
    pub offset_us: i64,
}

/// Elements collected of each unit in use.
pub(crate) type SeenByUnit = [u8; Unit::ALL.len()];

/// What is collected of one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Collected {
    unit: Unit,
    features: Features,
    /// Elements, at most.
    k: usize,
    /// Bit i: the series of a task ends with element i.
    ends: u32,
    /// Where the unit's part begins among the words of a flow.
    at: usize,
}

impl Collected {
    /// Words before the channels.
    const fn header_words(self) -> usize {
        match self.features.contains(Feature::InterArrival) {
            true => HEADER_WORDS + TIME_WORDS,
            false => HEADER_WORDS,
        }
    }

    const fn words(self) -> usize {
        self.header_words() + self.features.words() * self.k
    }

    /// Where a channel begins among the unit's words.
    fn channel_at(self, feature: Feature) -> usize {
        self.header_words() + self.features.words_before(feature) * self.k
    }
}

/// What is collected for these tasks: one element for each unit in use, the first task's first.
fn collected(tasks: &[TaskConfig]) -> Vec<Collected> {
    let mut all: Vec<Collected> = Vec::with_capacity(Unit::ALL.len());
    for task in tasks {
        let at = match all.iter().position(|it| it.unit == task.unit) {
            Some(at) => at,
            None => {
                all.push(Collected {
                    unit: task.unit,
                    features: Features::NONE,
                    k: 0,
                    ends: 0,
                    at: 0,
                });
                all.len() - 1
            }
        };
        let it = &mut all[at];
        it.features = it.features.union(task.features);
        for k in task.depths.iter().map(|depth| depth.k).filter(|&k| k > 0) {
            it.k = it.k.max(k);
            it.ends |= 1 << (k - 1);
        }
    }
    all
}

/// The series of all flows, by entry index.
pub(crate) struct SeriesStore {
    units: Vec<Collected>,
    /// Only lengths of packets are collected: the usual case, which [`SeriesStore::add_length`]
    /// serves.
    is_lengths_only: bool,
    stride: usize,
    words: Array<u16>,
    /// For the first unit K times per flow, µs after the flow's first packet; empty if not asked.
    offsets_us: Array<i64>,
}

impl SeriesStore {
    /// For `entries` flows and these tasks, whose K lies in 1 to [`cring::K_MAX`]. Where records
    /// carry the series, lengths are collected whether a task asks for them or not.
    pub fn new(entries: usize, tasks: &[TaskConfig], for_records: bool) -> io::Result<SeriesStore> {
        let mut units = collected(tasks);
        if for_records && let Some(first) = units.first_mut() {
            first.features = first.features.with(Feature::SignedLength);
        }
        let stride = place(&mut units);
        let k = units.first().map_or(0, |first| first.k);
        let is_lengths_only = matches!(
            units[..],
            [Collected { unit: Unit::Packet, features: Features::LENGTHS, .. }]
        );
        Ok(SeriesStore {
            stride,
            is_lengths_only: is_lengths_only && !for_records,
            units,
            words: Array::new(entries * stride)?,
            offsets_us: Array::new(if for_records { entries * k } else { 0 })?,
        })
    }

    /// Bytes that a flow's series take, without what records ask for.
    pub fn bytes_per_flow(tasks: &[TaskConfig]) -> usize {
        place(&mut collected(tasks)) * size_of::<u16>()
    }

    /// Prefetches the series of a flow.
    #[inline]
    pub fn prefetch(&self, index: u32) {
        prefetch(&self.words, index as usize * self.stride);
    }

    /// Begins the series of a new flow.
    #[inline]
    pub fn begin(&mut self, index: u32, midstream: bool) {
        let at = index as usize * self.stride;
        let flow = &mut self.words[at..at + self.stride];
        // The first unit's part begins at 0; most stores have no other.
        flow[..HEADER_WORDS].fill(0);
        for unit in self.units.iter().skip(1) {
            flow[unit.at..unit.at + HEADER_WORDS].fill(0);
        }
        flow[FLAGS] = if midstream { FLAG_MIDSTREAM } else { 0 };
    }

    /// Number of units in use; they are numbered from 0.
    #[inline]
    pub fn units(&self) -> usize {
        self.units.len()
    }

    /// The unit of the first task.
    pub fn first_unit(&self) -> Unit {
        self.units[0].unit
    }

    /// The number of a unit in use.
    pub fn number_of(&self, unit: Unit) -> usize {
        let at = self.units.iter().position(|it| it.unit == unit);
        at.unwrap_or(0)
    }

    /// Whether a packet with `payload` bytes is an element of the unit.
    #[inline]
    pub fn counts(&self, unit: usize, payload: u32) -> bool {
        payload != 0 || self.units[unit].unit == Unit::Packet
    }

    /// Whether only [`SeriesStore::add_length`] is needed.
    #[inline]
    pub fn is_lengths_only(&self) -> bool {
        self.is_lengths_only
    }

    /// [`SeriesStore::add`] where only lengths of packets are collected.
    #[inline]
    pub fn add_length(&mut self, index: u32, direction: usize, length: u32) -> bool {
        let Some(&Collected { k, ends, .. }) = self.units.first() else {
            return false;
        };
        let at = index as usize * self.stride;
        let flow = &mut self.words[at..at + self.stride];
        let seen = usize::from(flow[2]);
        debug_assert!(seen <= k && direction < 2);
        if seen >= k {
            return false;
        }
        flow[seen / 16] |= (direction as u16) << (seen % 16);
        flow[2] += 1;
        flow[HEADER_WORDS + seen] = saturated(length);
        ends >> seen & 1 == 1
    }

    /// Adds an element while fewer than K are there; returns whether a task's series ends with it.
    /// Lengths above 65,535 are kept as 65,535.
    #[inline]
    pub fn add(&mut self, index: u32, unit: usize, element: &Element) -> bool {
        let it = self.units[unit];
        let at = index as usize * self.stride + it.at;
        let flow = &mut self.words[at..at + it.words()];
        let seen = usize::from(flow[2]);
        debug_assert!(seen <= it.k && element.direction < 2);
        // With several tasks packets still come here when all series of a unit are complete.
        if seen >= it.k {
            return false;
        }
        flow[seen / 16] |= (element.direction as u16) << (seen % 16);
        flow[2] += 1;
        if it.features == Features::LENGTHS {
            // The usual case, without a look at each feature.
            flow[HEADER_WORDS + seen] = saturated(element.length);
        } else {
            write_features(it, flow, seen, element);
        }
        if unit == 0 && !self.offsets_us.is_empty() {
            self.offsets_us[index as usize * it.k + seen] = element.offset_us;
        }
        it.ends >> seen & 1 == 1
    }

    /// Whether a flow's series are complete, so that no packet adds to them.
    pub fn is_complete(&self, index: u32) -> bool {
        let mut units = (0..self.units.len()).zip(&self.units);
        units.all(|(unit, it)| self.seen(index, unit) >= it.k)
    }

    /// Elements of a unit collected, up to K.
    pub fn seen(&self, index: u32, unit: usize) -> usize {
        let at = self.units[unit].at;
        usize::from(self.flow(index)[at + 2])
    }

    /// The same for each unit in use, by its number.
    pub fn seen_by_unit(&self, index: u32) -> SeenByUnit {
        let mut seen = SeenByUnit::default();
        for (unit, seen) in seen.iter_mut().enumerate().take(self.units.len()) {
            *seen = self.seen(index, unit) as u8;
        }
        seen
    }

    /// The flow is TCP and its first packet was not the SYN that opens a connection.
    pub fn is_midstream(&self, index: u32) -> bool {
        self.flow(index)[FLAGS] & FLAG_MIDSTREAM != 0
    }

    /// Notes that packets went both ways before counts start again.
    pub fn note_both_ways(&mut self, index: u32) {
        let at = index as usize * self.stride;
        self.words[at + FLAGS] |= FLAG_BOTH_WAYS;
    }

    /// What [`Self::note_both_ways`] noted.
    pub fn went_both_ways(&self, index: u32) -> bool {
        self.flow(index)[FLAGS] & FLAG_BOTH_WAYS != 0
    }

    /// Writes what was collected for a task into a ring slot's series: its features, and at most
    /// `k` elements.
    #[inline]
    pub fn read(
        &self,
        index: u32,
        (task, k): (&TaskConfig, usize),
        protocol: u8,
        series: &mut Series,
    ) {
        let it = self.units[self.number_of(task.unit)];
        self.read_unit(index, it, (task.features, k), protocol, series);
    }

    /// The same for all that was collected of the first task's unit.
    pub fn read_all(&self, index: u32, protocol: u8, series: &mut Series) {
        let it = self.units[0];
        self.read_unit(index, it, (it.features, it.k), protocol, series);
    }

    fn read_unit(
        &self,
        index: u32,
        it: Collected,
        (features, k): (Features, usize),
        protocol: u8,
        series: &mut Series,
    ) {
        let at = index as usize * self.stride + it.at;
        let flow = &self.words[at..at + it.words()];
        let k = usize::from(flow[2]).min(k);
        series.begin(protocol, k, features);
        let directions = u32::from(flow[0]) | u32::from(flow[1]) << 16;
        // 64 bits, because a series of 32 elements shifts by 32.
        series.directions = directions & ((1_u64 << k) - 1) as u32;
        for feature in features.iter() {
            let at = it.channel_at(feature);
            let channel = series.channel_mut(feature);
            channel.copy_from_slice(&flow[at..at + channel.len()]);
        }
    }

    /// Times of the first unit's elements, µs after the flow's first packet; empty if not kept.
    pub fn offsets_us(&self, index: u32) -> &[i64] {
        if self.offsets_us.is_empty() {
            return &[];
        }
        let at = index as usize * self.units[0].k;
        &self.offsets_us[at..at + self.seen(index, 0)]
    }

    #[inline]
    fn flow(&self, index: u32) -> &[u16] {
        let at = index as usize * self.stride;
        &self.words[at..at + self.stride]
    }
}

/// Gives each unit its place among the words of a flow; returns the number of words.
fn place(units: &mut [Collected]) -> usize {
    let mut words = 0;
    for unit in units {
        unit.at = words;
        words += unit.words();
    }
    words.next_multiple_of(STRIDE_WORDS)
}

/// Writes element `seen` into the channels of all features that are collected.
fn write_features(it: Collected, flow: &mut [u16], seen: usize, element: &Element) {
    let mut at = it.header_words();
    if it.features.contains(Feature::SignedLength) {
        flow[at + seen] = saturated(element.length);
        at += it.k;
    }
    if it.features.contains(Feature::PayloadLength) {
        flow[at + seen] = saturated(element.payload);
        at += it.k;
    }
    if it.features.contains(Feature::InterArrival) {
        let since_us = since_before(&mut flow[HEADER_WORDS..HEADER_WORDS + TIME_WORDS], element);
        // The first element has no predecessor.
        let since_us = if seen == 0 { 0 } else { since_us };
        flow[at + 2 * seen] = since_us as u16;
        flow[at + 2 * seen + 1] = (since_us >> 16) as u16;
        at += 2 * it.k;
    }
    if it.features.contains(Feature::TcpFlags) {
        flow[at + seen] = u16::from(element.tcp_flags);
    }
}

/// µs since the element before, whose time in `before` is replaced; 0 if time steps back.
fn since_before(before: &mut [u16], element: &Element) -> u32 {
    let words = [before[0], before[1], before[2], before[3]];
    let before_us =
        words.iter().rev().fold(0u64, |time, &word| time << 16 | u64::from(word)) as i64;
    for (word, shift) in before.iter_mut().zip([0, 16, 32, 48]) {
        *word = (element.time_us >> shift) as u16;
    }
    let since_us = element.time_us.saturating_sub(before_us);
    since_us.clamp(0, i64::from(u32::MAX)) as u32
}

#[inline]
fn saturated(bytes: u32) -> u16 {
    bytes.min(u32::from(u16::MAX)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::UDP;
    use proptest::prelude::*;

    fn lengths(k: usize) -> [TaskConfig; 1] {
        [TaskConfig::lengths(k, 1)]
    }

    fn element(number: usize) -> Element {
        Element {
            direction: number % 2,
            length: 100 + number as u32,
            payload: 0,
            tcp_flags: 0,
            time_us: 0,
            offset_us: number as i64 * 7,
        }
    }

    #[test]
    fn collects_lengths_directions_and_offsets_up_to_k() {
        for k in [1, 10, 17, cring::K_MAX] {
            let tasks = lengths(k);
            let mut store = SeriesStore::new(3, &tasks, true).unwrap();
            for index in 0..3 {
                store.begin(index, index == 1);
            }
            for packet in 0..k {
                let done = store.add(1, 0, &element(packet));
                assert_eq!(done, packet + 1 == k);
            }
            assert!(!store.add(1, 0, &element(k)));
            let mut series = Series::default();
            store.read(1, (&tasks[0], k), UDP, &mut series);
            assert_eq!(series.k(), k);
            for packet in 0..k {
                let sign = if packet % 2 == 1 { -1 } else { 1 };
                assert_eq!(series.signed(packet), sign * (100 + packet as i32));
                assert_eq!(store.offsets_us(1)[packet], packet as i64 * 7);
            }
            assert!(store.is_midstream(1) && !store.is_midstream(0));
            assert_eq!((store.seen(0, 0), store.seen(2, 0)), (0, 0));
        }
    }

    #[test]
    fn lengths_saturate_and_a_new_flow_starts_empty() {
        let tasks = lengths(2);
        let mut store = SeriesStore::new(1, &tasks, false).unwrap();
        store.begin(0, false);
        let jumbo = Element { direction: 1, length: 70_000, ..element(0) };
        store.add(0, 0, &jumbo);
        let mut series = Series::default();
        store.read(0, (&tasks[0], 2), UDP, &mut series);
        assert_eq!(series.signed(0), -65_535);
        store.begin(0, false);
        store.read(0, (&tasks[0], 2), UDP, &mut series);
        assert_eq!((series.k(), series.directions), (0, 0));
        assert!(store.offsets_us(0).is_empty());
    }

    #[test]
    fn memory_is_only_for_what_is_asked() {
        let with = |features: &[Feature]| {
            let features = features.iter().copied().collect();
            let task = TaskConfig { features, ..TaskConfig::lengths(10, 1) };
            SeriesStore::bytes_per_flow(&[task])
        };
        assert_eq!(with(&[Feature::SignedLength]), 32);
        assert_eq!(with(&[Feature::SignedLength, Feature::TcpFlags]), 64);
        assert_eq!(with(&[Feature::SignedLength, Feature::InterArrival]), 96);
        assert_eq!(with(&Feature::ALL), 128);
        let data = TaskConfig { unit: Unit::Data, ..TaskConfig::lengths(3, 1) };
        let [packets] = lengths(10);
        assert_eq!(SeriesStore::bytes_per_flow(&[packets.clone(), data]), 64);
        let shorter = TaskConfig::lengths(3, 1);
        assert_eq!(SeriesStore::bytes_per_flow(&[packets, shorter]), 32);
    }

    /// A task of some unit, features and K.
    fn task() -> impl Strategy<Value = TaskConfig> {
        let features = prop::sample::subsequence(&Feature::ALL[..], 1..=4);
        (1..=cring::K_MAX, any::<bool>(), features).prop_map(|(k, is_data, features)| TaskConfig {
            unit: if is_data { Unit::Data } else { Unit::Packet },
            features: features.into_iter().collect(),
            ..TaskConfig::lengths(k, 1)
        })
    }

    fn packet() -> impl Strategy<Value = Element> {
        let time_us =
            prop_oneof![-10i64..1000, Just(1 << 40), Just(i64::MAX), Just(i64::MIN), any::<i64>()];
        let payload = prop_oneof![Just(0), 1..70_000u32];
        (0..2usize, 0..80_000u32, payload, any::<u8>(), time_us).prop_map(
            |(direction, length, payload, tcp_flags, time_us)| Element {
                direction,
                length,
                payload,
                tcp_flags,
                time_us,
                offset_us: 0,
            },
        )
    }

    proptest! {
        #[test]
        fn each_task_reads_what_a_list_of_packets_has(
            tasks in prop::collection::vec(task(), 1..4),
            packets in prop::collection::vec(packet(), 0..80),
        ) {
            let mut store = SeriesStore::new(2, &tasks, false).unwrap();
            store.begin(1, false);
            for packet in &packets {
                for unit in 0..store.units() {
                    if store.counts(unit, packet.payload) {
                        store.add(1, unit, packet);
                    }
                }
            }
            for task in &tasks {
                let elements = packets
                    .iter()
                    .filter(|packet| task.unit == Unit::Packet || packet.payload != 0);
                let elements: Vec<&Element> = elements.take(task.k_max()).collect();
                let mut series = Series::default();
                store.read(1, (task, task.k_max()), UDP, &mut series);
                prop_assert_eq!((series.k(), series.features()), (elements.len(), task.features));
                let short = |bytes: u32| bytes.min(65_535) as u16;
                for feature in task.features.iter() {
                    let expected = elements.iter().enumerate().map(|(i, it)| match feature {
                        Feature::SignedLength if it.direction == 1 => -i64::from(short(it.length)),
                        Feature::SignedLength => short(it.length).into(),
                        Feature::PayloadLength => short(it.payload).into(),
                        Feature::TcpFlags => it.tcp_flags.into(),
                        Feature::InterArrival if i == 0 => 0,
                        Feature::InterArrival => {
                            let before_us = i128::from(elements[i - 1].time_us);
                            let since = i128::from(it.time_us) - before_us;
                            since.clamp(0, u32::MAX.into()) as i64
                        }
                    });
                    let expected: Vec<i64> = expected.collect();
                    let found: Vec<i64> = match feature {
                        Feature::SignedLength => series.signed_lengths().map(i64::from).collect(),
                        Feature::InterArrival => {
                            series.inter_arrivals_us().map(i64::from).collect()
                        }
                        _ => series.channel(feature).iter().map(|&word| word.into()).collect(),
                    };
                    prop_assert_eq!(found, expected, "{:?}", feature);
                }
            }
        }
    }
}
