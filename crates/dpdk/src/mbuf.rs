//! Received packets, lent by the queue that received them.

use std::cell::Cell;

use crate::sys;

/// A received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Where its first byte lies in the bytes of [`Lent`].
    pub at: usize,
    /// Its bytes, all of which are there.
    pub length: u32,
    /// The hash that the device computed of addresses and ports, the same for both directions.
    pub rss: Option<u32>,
}

/// Received packets and the memory that they lie in, until their queue is asked for the next ones.
///
/// A packet can be sent without copying it. From then on the device reads the buffer, too, perhaps
/// long after the call. Both hold it, so it is not used for anything else as long as it is lent,
/// and it is only read: the bytes can no longer be changed.
#[derive(Debug)]
pub struct Lent<'a> {
    memory: &'a mut [u8],
    pub(crate) mbufs: &'a [*mut sys::rte_mbuf],
    is_sent: Cell<bool>,
}

// SAFETY: the pointers are to packets of the queue, which may be used by one thread at a time, and
// this borrows the queue.
unsafe impl Send for Lent<'_> {}

impl<'a> Lent<'a> {
    pub(crate) fn new(memory: &'a mut [u8], mbufs: &'a [*mut sys::rte_mbuf]) -> Lent<'a> {
        Lent {
            memory,
            mbufs,
            is_sent: Cell::new(false),
        }
    }

    /// The memory of all packets of the queue. Bytes that belong to none of these packets mean
    /// nothing.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.memory
    }

    /// The same, to be changed; empty once a packet was sent.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self.is_sent.get() {
            true => &mut [],
            false => self.memory,
        }
    }

    /// The same for as long as the queue is borrowed; empty once a packet was sent.
    pub fn into_bytes(self) -> &'a mut [u8] {
        match self.is_sent.get() {
            true => &mut [],
            false => self.memory,
        }
    }

    /// From now on others read the packets, too.
    pub(crate) fn note_sent(&self) {
        self.is_sent.set(true);
    }
}
