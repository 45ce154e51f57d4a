//! What the ring carries: the series of one flow, with the reference by which its label finds the way back.
//!
//! A slot is two cache lines, and its fields stand in the order in which they are wanted: 32 bytes of header, then the
//! lengths, so that a series of up to 16 packets (the usual K is 10) lies in the first line and the second is never
//! touched. Lengths are `u16` with the directions in a bitmap, because an IP packet can have 65,535 bytes and a signed
//! 16-bit number cannot.

use std::mem::{align_of, offset_of, size_of};

/// The longest series a slot holds, in packets.
pub const K_MAX: usize = 32;

/// Names one flow: an entry of the flow table and which of its owners, one after another, is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct FlowRef {
    /// The entry's place in the table's entry array.
    pub index: u32,
    /// The entry's generation while this flow owned it; see [`LabelWord`](crate::LabelWord).
    pub generation: u32,
}

/// The first K packets of a flow: their lengths and directions, in order of arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Series {
    /// IP protocol number of the flow (6 TCP, 17 UDP).
    pub protocol: u8,
    /// How many packets the series has, at most [`K_MAX`]; what lies beyond them in the other fields has no meaning.
    pub k: u8,
    /// Bit i is set when packet i went against the flow's first packet.
    pub directions: u32,
    /// Length of packet i in bytes, saturated at 65,535.
    pub lengths: [u16; K_MAX],
}

impl Series {
    /// Length of packet `i` in bytes, negative when it went against the flow's first packet.
    ///
    /// # Panics
    /// When `i` is [`K_MAX`] or more.
    #[inline]
    #[must_use]
    pub fn signed(&self, i: usize) -> i32 {
        let length = i32::from(self.lengths[i]);
        if self.directions >> i & 1 == 1 {
            -length
        } else {
            length
        }
    }

    /// The signed lengths of the series' packets, in order.
    #[inline]
    pub fn signed_lengths(&self) -> impl ExactSizeIterator<Item = i32> + '_ {
        (0..usize::from(self.k).min(K_MAX)).map(|i| self.signed(i))
    }
}

/// One place in the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Slot {
    /// The flow that asks for a label.
    pub flow: FlowRef,
    /// Capture time of the K-th packet, µs since the epoch.
    pub kth_us: i64,
    /// When the slot was pushed, ns on the clock that the caller's threads share; the time to the label starts here.
    pub emitted_ns: u64,
    /// What is to be classified.
    pub series: Series,
}

const _: () = {
    assert!(size_of::<Slot>() == 128);
    assert!(align_of::<Slot>() == 64);
    assert!(offset_of!(Slot, series) + offset_of!(Series, lengths) == 32);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reverse_packet_is_negative() {
        let mut series = Series {
            k: 3,
            directions: 0b110,
            ..Series::default()
        };
        series.lengths[..3].copy_from_slice(&[60, u16::MAX, 1500]);
        assert_eq!(
            series.signed_lengths().collect::<Vec<_>>(),
            [60, -65_535, -1500]
        );
        assert_eq!(series.signed_lengths().len(), 3);
    }

    #[test]
    fn the_last_packet_has_its_own_direction_bit() {
        let mut series = Series {
            k: 32,
            directions: 1 << 31,
            ..Series::default()
        };
        series.lengths = [7; K_MAX];
        assert_eq!(series.signed(30), 7);
        assert_eq!(series.signed(31), -7);
    }
}
