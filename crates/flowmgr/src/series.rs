//! Where the series of the flows are collected: the lengths and directions of
//! the first K packets, in an array beside the entries.
//!
//! A flow's part of it is `4 + K` 16-bit words, rounded up to 32 bytes, so K up
//! to 12 takes half a cache line. Offsets in time are kept only where the
//! records ask for them.

use cring::Series;

use std::io;

use crate::memory::Array;
use crate::prefetch::prefetch;

/// Words before the lengths: directions (two), packets seen, flags.
const HEADER_WORDS: usize = 4;
/// A flow's part is a multiple of this many words, 32 bytes.
const STRIDE_WORDS: usize = 16;
const FLAG_MIDSTREAM: u16 = 1;
const FLAG_BOTH_WAYS: u16 = 2;

/// The series of all flows, by entry index.
pub(crate) struct SeriesStore {
    k: usize,
    stride: usize,
    words: Array<u16>,
    /// K times per flow, µs after the flow's first packet; empty if not asked.
    offsets_us: Array<i64>,
}

impl SeriesStore {
    /// For `entries` flows of `k` packets (1 to [`cring::K_MAX`]).
    pub fn new(entries: usize, k: usize, with_offsets: bool) -> io::Result<SeriesStore> {
        let stride = SeriesStore::bytes_per_flow(k) / size_of::<u16>();
        Ok(SeriesStore {
            k,
            stride,
            words: Array::new(entries * stride)?,
            offsets_us: Array::new(if with_offsets { entries * k } else { 0 })?,
        })
    }

    /// Bytes that a flow's series takes, without offsets.
    pub const fn bytes_per_flow(k: usize) -> usize {
        (HEADER_WORDS + k).next_multiple_of(STRIDE_WORDS) * size_of::<u16>()
    }

    /// Asks for the series of a flow.
    #[inline]
    pub fn prefetch(&self, index: u32) {
        prefetch(&self.words, index as usize * self.stride);
    }

    /// Begins the series of a new flow.
    #[inline]
    pub fn begin(&mut self, index: u32, midstream: bool) {
        let flow = self.flow_mut(index);
        flow[..HEADER_WORDS].fill(0);
        flow[3] = if midstream { FLAG_MIDSTREAM } else { 0 };
    }

    /// Adds a packet while the series is incomplete; true for the K-th.
    /// Lengths above 65,535 are kept as 65,535.
    #[inline]
    pub fn add(&mut self, index: u32, direction: usize, length: u32, offset_us: i64) -> bool {
        let k = self.k;
        let flow = self.flow_mut(index);
        let seen = usize::from(flow[2]);
        flow[HEADER_WORDS + seen] = length.min(u32::from(u16::MAX)) as u16;
        flow[seen / 16] |= (direction as u16) << (seen % 16);
        flow[2] += 1;
        if !self.offsets_us.is_empty() {
            self.offsets_us[index as usize * k + seen] = offset_us;
        }
        seen + 1 == k
    }

    /// Packets collected, up to K.
    pub fn seen(&self, index: u32) -> usize {
        usize::from(self.flow(index)[2])
    }

    /// The flow is TCP and its first packet was not the SYN that opens a connection.
    pub fn is_midstream(&self, index: u32) -> bool {
        self.flow(index)[3] & FLAG_MIDSTREAM != 0
    }

    /// Notes that packets went both ways before counts start anew.
    pub fn note_both_ways(&mut self, index: u32) {
        self.flow_mut(index)[3] |= FLAG_BOTH_WAYS;
    }

    /// What [`Self::note_both_ways`] noted.
    pub fn went_both_ways(&self, index: u32) -> bool {
        self.flow(index)[3] & FLAG_BOTH_WAYS != 0
    }

    /// Writes what was collected into a ring slot's series.
    #[inline]
    pub fn read(&self, index: u32, protocol: u8, series: &mut Series) {
        let flow = self.flow(index);
        let seen = self.seen(index);
        series.protocol = protocol;
        series.k = seen as u8;
        series.directions = u32::from(flow[0]) | u32::from(flow[1]) << 16;
        series.lengths[..seen].copy_from_slice(&flow[HEADER_WORDS..HEADER_WORDS + seen]);
    }

    /// Times of the collected packets, µs after the first; empty if not kept.
    pub fn offsets_us(&self, index: u32) -> &[i64] {
        if self.offsets_us.is_empty() {
            return &[];
        }
        let at = index as usize * self.k;
        &self.offsets_us[at..at + self.seen(index)]
    }

    #[inline]
    fn flow(&self, index: u32) -> &[u16] {
        let at = index as usize * self.stride;
        &self.words[at..at + self.stride]
    }

    #[inline]
    fn flow_mut(&mut self, index: u32) -> &mut [u16] {
        let at = index as usize * self.stride;
        &mut self.words[at..at + self.stride]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::UDP;

    #[test]
    fn collects_lengths_directions_and_offsets_up_to_k() {
        for k in [1, 10, 17, cring::K_MAX] {
            let mut store = SeriesStore::new(3, k, true).unwrap();
            for index in 0..3 {
                store.begin(index, index == 1);
            }
            for packet in 0..k {
                let done = store.add(1, packet % 2, 100 + packet as u32, packet as i64 * 7);
                assert_eq!(done, packet + 1 == k);
            }
            let mut series = Series::default();
            store.read(1, UDP, &mut series);
            assert_eq!(usize::from(series.k), k);
            for packet in 0..k {
                let sign = if packet % 2 == 1 { -1 } else { 1 };
                assert_eq!(series.signed(packet), sign * (100 + packet as i32));
                assert_eq!(store.offsets_us(1)[packet], packet as i64 * 7);
            }
            assert!(store.is_midstream(1) && !store.is_midstream(0));
            assert_eq!((store.seen(0), store.seen(2)), (0, 0));
        }
    }

    #[test]
    fn lengths_saturate_and_a_new_flow_starts_empty() {
        let mut store = SeriesStore::new(1, 2, false).unwrap();
        store.begin(0, false);
        store.add(0, 1, 70_000, 0);
        let mut series = Series::default();
        store.read(0, UDP, &mut series);
        assert_eq!(series.signed(0), -65_535);
        store.begin(0, false);
        store.read(0, UDP, &mut series);
        assert_eq!((series.k, series.directions), (0, 0));
        assert!(store.offsets_us(0).is_empty());
    }
}
