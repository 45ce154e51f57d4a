//! A series: features of the first K elements of a flow.
//!
//! Numbers are 16-bit words, channel after channel in the order of [`Feature::ALL`], K elements
//! each. So lengths alone are K words, and each further feature appends to the array. Lengths are
//! unsigned with directions in a bitmap, because an IP packet of 65,535 bytes exceeds a signed
//! 16-bit number.

use crate::{Feature, Features, LOCAL};

/// Maximum elements of a series.
pub const K_MAX: usize = 32;

/// 16-bit words of a series with all features and [`K_MAX`] elements.
pub const SERIES_WORDS_MAX: usize = Features::ALL.words() * K_MAX;

/// Words copied at a time: two registers, instead of a call for a variable length.
const COPIED_WORDS: usize = 16;
const _: () = assert!(SERIES_WORDS_MAX.is_multiple_of(COPIED_WORDS));

/// Features of the first elements of a flow, in order of arrival.
///
/// It is `Copy` for ring slots, but large: [`Series::copy_from`] copies only what is used.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Series {
    /// IP protocol number of the flow (6 TCP, 17 UDP).
    pub protocol: u8,
    k: u8,
    features: Features,
    /// Number of the task to be asked, below [`WORDS_MAX`](crate::WORDS_MAX).
    pub task: u8,
    /// Bit i is set if element i went against the flow's first packet.
    pub directions: u32,
    /// Destination port of the flow's first packet: the server's. 0 if the flow began mid-stream
    /// and the server is unknown.
    pub server_port: u16,
    has_local: bool,
    words: [u16; SERIES_WORDS_MAX],
    /// Valid if `has_local`.
    local: [f32; LOCAL],
}

impl Series {
    /// A series of `k` elements with these features, all 0, for the first task.
    ///
    /// # Panics
    /// `k` exceeds [`K_MAX`].
    pub fn new(protocol: u8, k: usize, features: Features) -> Series {
        let mut series = Series::default();
        series.begin(protocol, k, features);
        series
    }

    /// Becomes a series of `k` elements with these features, without local context. The caller sets
    /// numbers and directions; the task stays.
    ///
    /// # Panics
    /// `k` exceeds [`K_MAX`].
    #[inline]
    pub fn begin(&mut self, protocol: u8, k: usize, features: Features) {
        assert!(k <= K_MAX, "a series has at most {K_MAX} elements, not {k}");
        (self.protocol, self.k, self.features) = (protocol, k as u8, features);
        self.has_local = false;
    }

    /// What the memory of servers says, for the contexts that are
    /// [local](crate::Context::is_local), in their order.
    #[inline]
    pub fn local(&self) -> Option<&[f32; LOCAL]> {
        self.has_local.then_some(&self.local)
    }

    /// Sets [`Self::local`].
    #[inline]
    pub fn set_local(&mut self, local: &[f32; LOCAL]) {
        (self.has_local, self.local) = (true, *local);
    }

    /// Number of elements, at most [`K_MAX`].
    #[inline]
    pub fn k(&self) -> usize {
        usize::from(self.k)
    }

    /// The features of each element.
    #[inline]
    pub fn features(&self) -> Features {
        self.features
    }

    /// The words of one feature: [`Feature::words`] per element, the low one first; empty if the
    /// series lacks the feature. Lengths are unsigned.
    #[inline]
    pub fn channel(&self, feature: Feature) -> &[u16] {
        let (from, to) = self.place(feature);
        &self.words[from..to]
    }

    /// As [`Self::channel`], mutable.
    #[inline]
    pub fn channel_mut(&mut self, feature: Feature) -> &mut [u16] {
        let (from, to) = self.place(feature);
        &mut self.words[from..to]
    }

    #[inline]
    fn place(&self, feature: Feature) -> (usize, usize) {
        let k = self.k();
        let from = self.features.words_before(feature) * k;
        let words = match self.features.contains(feature) {
            true => feature.words() * k,
            false => 0,
        };
        (from, from + words)
    }

    /// Length of element `i` in bytes, negative if it went against the flow's first packet.
    ///
    /// # Panics
    /// The series has no element `i`, or no lengths.
    #[inline]
    pub fn signed(&self, i: usize) -> i32 {
        with_sign(self.channel(Feature::SignedLength)[i], self.directions, i)
    }

    /// The signed lengths of the elements; empty if the series lacks them.
    #[inline]
    pub fn signed_lengths(&self) -> impl ExactSizeIterator<Item = i32> + '_ {
        let lengths = self.channel(Feature::SignedLength).iter().enumerate();
        lengths.map(|(i, &length)| with_sign(length, self.directions, i))
    }

    /// The inter-arrival times of the elements, µs; empty if the series lacks them.
    #[inline]
    pub fn inter_arrivals_us(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        let words = self.channel(Feature::InterArrival).chunks_exact(2);
        words.map(|word| u32::from(word[0]) | u32::from(word[1]) << 16)
    }

    /// Sets the inter-arrival time of element `i`.
    ///
    /// # Panics
    /// The series has no element `i`, or no inter-arrival times.
    #[inline]
    pub fn set_inter_arrival_us(&mut self, i: usize, us: u32) {
        let words = self.channel_mut(Feature::InterArrival);
        (words[2 * i], words[2 * i + 1]) = (us as u16, (us >> 16) as u16);
    }

    /// Sets the length of element `i` in bytes, saturated at 65,535, and its direction by the sign.
    ///
    /// # Panics
    /// The series has no element `i`, or no lengths.
    #[inline]
    pub fn set_signed(&mut self, i: usize, length: i32) {
        let size = length.unsigned_abs().min(u32::from(u16::MAX));
        self.channel_mut(Feature::SignedLength)[i] = size as u16;
        self.directions = self.directions & !(1 << i) | u32::from(length < 0) << i;
    }

    /// Becomes a copy of `other`; touches only the words that `other` uses and fewer than
    /// `COPIED_WORDS` more.
    #[inline]
    pub fn copy_from(&mut self, other: &Series) {
        self.begin(other.protocol, other.k(), other.features);
        (self.task, self.directions) = (other.task, other.directions);
        self.server_port = other.server_port;
        if let Some(local) = other.local() {
            self.set_local(local);
        }
        let (into, _) = self.words.as_chunks_mut::<COPIED_WORDS>();
        let (from, _) = other.words.as_chunks::<COPIED_WORDS>();
        let chunks = other.words_used().div_ceil(COPIED_WORDS);
        for (into, from) in into.iter_mut().zip(from).take(chunks) {
            *into = *from;
        }
    }

    #[inline]
    fn words_used(&self) -> usize {
        self.features.words() * self.k()
    }

    /// The words of all channels.
    #[inline]
    pub fn words(&self) -> &[u16] {
        &self.words[..self.words_used()]
    }
}

/// A length, negative if bit `i` of the directions is set. Branchless: directions are hard to
/// predict.
#[inline]
fn with_sign(length: u16, directions: u32, i: usize) -> i32 {
    let sign = -((directions >> i & 1) as i32);
    (i32::from(length) ^ sign) - sign
}

impl Default for Series {
    /// A series without elements and features.
    fn default() -> Series {
        Series {
            protocol: 0,
            k: 0,
            features: Features::NONE,
            task: 0,
            directions: 0,
            server_port: 0,
            has_local: false,
            words: [0; SERIES_WORDS_MAX],
            local: [0.0; LOCAL],
        }
    }
}

impl PartialEq for Series {
    /// Whether all used parts are equal.
    fn eq(&self, other: &Series) -> bool {
        let header = |series: &Series| {
            let &Series { protocol, k, features, task, directions, server_port, .. } = series;
            (protocol, k, features, task, directions, server_port)
        };
        // By bits, so that equality is total.
        let local = |series: &Series| series.local().map(|local| local.map(f32::to_bits));
        header(self) == header(other)
            && local(self) == local(other)
            && self.words() == other.words()
    }
}

impl Eq for Series {}

impl std::fmt::Debug for Series {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Series")
            .field("protocol", &self.protocol)
            .field("k", &self.k)
            .field("features", &self.features)
            .field("task", &self.task)
            .field("directions", &self.directions)
            .field("server_port", &self.server_port)
            .field("words", &self.words())
            .field("local", &self.local())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Context, NOTHING_KNOWN};

    #[test]
    fn a_reverse_packet_is_negative() {
        let mut series = Series::new(6, 3, Features::LENGTHS);
        series.directions = 0b110;
        series.channel_mut(Feature::SignedLength).copy_from_slice(&[60, u16::MAX, 1500]);
        assert_eq!(series.signed_lengths().collect::<Vec<_>>(), [60, -65_535, -1500]);
        assert_eq!(series.signed_lengths().len(), 3);
    }

    #[test]
    fn the_last_packet_has_its_own_direction_bit() {
        let mut series = Series::new(6, K_MAX, Features::LENGTHS);
        series.directions = 1 << 31;
        series.channel_mut(Feature::SignedLength).fill(7);
        assert_eq!(series.signed(30), 7);
        assert_eq!(series.signed(31), -7);
        series.set_signed(31, 70_000);
        assert_eq!(series.signed(31), 65_535);
    }

    #[test]
    fn channels_neither_overlap_nor_leave_a_gap() {
        let all = Features::ALL;
        for k in [1, 3, K_MAX] {
            let mut series = Series::new(17, k, all);
            for (number, feature) in all.iter().enumerate() {
                series.channel_mut(feature).fill(number as u16 + 1);
            }
            let words: Vec<u16> = all
                .iter()
                .enumerate()
                .flat_map(|(number, feature)| vec![number as u16 + 1; feature.words() * k])
                .collect();
            assert_eq!(series.words(), words);
            series.set_inter_arrival_us(k - 1, 0x0001_0002);
            assert_eq!(series.inter_arrivals_us().last(), Some(0x0001_0002));
        }
    }

    #[test]
    fn a_copy_has_what_is_used_and_a_missing_feature_no_words() {
        let mut series = Series::new(6, 2, Features::LENGTHS.with(Feature::TcpFlags));
        series.task = 3;
        series.set_signed(0, 60);
        series.set_signed(1, -52);
        series.channel_mut(Feature::TcpFlags).copy_from_slice(&[2, 18]);
        assert!(series.channel(Feature::PayloadLength).is_empty());
        assert_eq!(series.inter_arrivals_us().len(), 0);
        let mut copy = Series::new(17, K_MAX, Features::ALL);
        copy.channel_mut(Feature::TcpFlags).fill(7);
        copy.copy_from(&series);
        assert_eq!(copy, series);
        assert_eq!(copy.words(), [60, 52, 2, 18]);
        let values = |series: &Series| Context::ALL.map(|it| it.value(series));
        assert_eq!(values(&copy)[2..], NOTHING_KNOWN);
        series.set_local(&[1.5, 2.0, 3.0, 4.0, 5.0]);
        assert_ne!(copy, series);
        copy.copy_from(&series);
        assert_eq!(copy, series);
        assert_eq!(values(&copy), [6.0, 0.0, 1.5, 2.0, 3.0, 4.0, 5.0]);
        copy.copy_from(&Series::new(6, 1, Features::LENGTHS));
        assert_eq!(copy.local(), None);
    }
}
