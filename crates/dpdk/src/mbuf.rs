//! Received packets, lent by the queue that received them.

use std::cell::Cell;

use crate::sys;

/// A received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Offset of its first byte in the bytes of [`Lent`].
    pub at: usize,
    /// Bytes of the packet, all of them present.
    pub length: u32,
    /// The device's symmetric hash of addresses and ports.
    pub rss: Option<u32>,
}

/// Received packets and their memory, until the next poll of their queue.
///
/// A packet can be sent without a copy. From then on the device reads the buffer, too, perhaps long
/// after the call. Both hold it, so it is not reused while it is lent, and its bytes become
/// read-only.
#[derive(Debug)]
pub struct Lent<'a> {
    memory: &'a mut [u8],
    pub(crate) mbufs: &'a [*mut sys::rte_mbuf],
    is_sent: Cell<bool>,
}

// SAFETY: the pointers are to packets of the queue, which one thread at a time may use, and this
// borrows the queue.
unsafe impl Send for Lent<'_> {}

impl<'a> Lent<'a> {
    pub(crate) fn new(memory: &'a mut [u8], mbufs: &'a [*mut sys::rte_mbuf]) -> Lent<'a> {
        Lent { memory, mbufs, is_sent: Cell::new(false) }
    }

    /// The memory of all packets of the queue. Bytes outside these packets are undefined.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.memory
    }

    /// As [`Self::bytes`], mutable; empty once a packet was sent.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self.is_sent.get() {
            true => &mut [],
            false => self.memory,
        }
    }

    /// As [`Self::bytes_mut`], for as long as the queue is borrowed.
    pub fn into_bytes(self) -> &'a mut [u8] {
        match self.is_sent.get() {
            true => &mut [],
            false => self.memory,
        }
    }

    /// Notes that the device reads the packets from now on.
    pub(crate) fn note_sent(&self) {
        self.is_sent.set(true);
    }
}
