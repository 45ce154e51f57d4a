//! Queues of a port.

use std::sync::Arc;

use crate::mbuf::{Lent, Placed};
use crate::mempool::{Area, Mempool};
use crate::port::Port;
use crate::{sys, thread};

/// Maximum packets per burst.
pub const BURST_MAX: usize = 256;

/// A receive queue. It holds the packets of the last burst until the next poll.
#[derive(Debug)]
pub struct RxQueue {
    port: Arc<Port>,
    queue: u16,
    pool: Mempool,
    area: Area,
    mbufs: Vec<*mut sys::rte_mbuf>,
    frames: Vec<sys::fenxi_frame>,
    dropped: u64,
    gathered: u64,
}

// SAFETY: one thread at a time uses a queue; its packets go with it.
unsafe impl Send for RxQueue {}

impl RxQueue {
    /// The receiving side of a queue that was set up with this pool, used by no other queue; `area`
    /// is the memory of its packets.
    pub(crate) fn new(port: Arc<Port>, queue: u16, pool: Mempool, area: Area) -> RxQueue {
        RxQueue {
            port,
            queue,
            pool,
            area,
            mbufs: Vec::with_capacity(BURST_MAX),
            frames: vec![sys::fenxi_frame::default(); BURST_MAX],
            dropped: 0,
            gathered: 0,
        }
    }

    /// The port that it belongs to.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// Packets in several pieces, in foreign memory or without their VLAN tag, copied into one
    /// buffer.
    pub fn gathered(&self) -> u64 {
        self.gathered
    }

    /// Gathered packets that were dropped because they were too long or no buffer was free.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the last packets and polls the device for up to `max`. Returns their number.
    #[inline]
    pub fn poll(&mut self, max: usize) -> usize {
        thread::register();
        self.release();
        let max = max.clamp(1, BURST_MAX);
        // SAFETY: the port runs and only this object uses its queue. Both vectors have room for
        // `BURST_MAX` and are empty.
        let count = unsafe {
            let to = self.mbufs.as_mut_ptr();
            sys::fenxi_receive(self.port.id(), self.queue, to, self.frames.as_mut_ptr(), max as u16)
        };
        // SAFETY: the call has written `count` packets, which this object owns now.
        unsafe { self.mbufs.set_len(usize::from(count)) };
        let (pool, area) = (self.pool, self.area);
        let frames = &self.frames[..usize::from(count)];
        if !frames.iter().all(|frame| frame.is_plain != 0 && area.place(frame).is_some()) {
            self.gather(pool);
        }
        self.mbufs.len()
    }

    /// Copies the packets that are not contiguous in this queue's memory, or have other holders.
    #[cold]
    fn gather(&mut self, pool: Mempool) {
        let mut kept = 0;
        for i in 0..self.mbufs.len() {
            let (mut mbuf, mut frame) = (self.mbufs[i], self.frames[i]);
            if frame.is_plain == 0 || self.area.place(&frame).is_none() {
                self.gathered += 1;
                // SAFETY: this object owns the packet and gives it away; it owns what it gets back.
                mbuf = unsafe { sys::fenxi_gather(mbuf, pool.raw.as_ptr(), &mut frame) };
                if mbuf.is_null() {
                    self.dropped += 1;
                    continue;
                }
            }
            (self.mbufs[kept], self.frames[kept]) = (mbuf, frame);
            kept += 1;
        }
        self.mbufs.truncate(kept);
    }

    /// The packets of the last burst.
    #[inline]
    pub fn packets(&self) -> impl Iterator<Item = Placed> {
        let area = self.area;
        let has_hash = self.port.has_symmetric_hash();
        self.frames[..self.mbufs.len()].iter().map(move |frame| Placed {
            at: area.place(frame).unwrap_or(0),
            length: frame.length,
            rss: (has_hash && frame.has_rss != 0).then_some(frame.rss),
        })
    }

    /// Lends the packets of the last burst.
    #[inline]
    pub fn lend(&mut self) -> Lent<'_> {
        // SAFETY: the area lives as long as the environment, which the port holds, and only
        // contains bytes of packets, all initialised. No other slice of it exists: the queue is
        // borrowed as long as this one lives, no other queue receives into it, and C code touches
        // it through the queue (not while borrowed) or reads sent packets (then `Lent` only gives
        // out shared slices). Network cards only write to packets not handed over yet, none of
        // which is lent.
        let memory =
            unsafe { std::slice::from_raw_parts_mut(self.area.start.as_ptr(), self.area.length) };
        Lent::new(memory, &self.mbufs)
    }

    /// Frees the packets of the last burst.
    fn release(&mut self) {
        if !self.mbufs.is_empty() {
            // SAFETY: this object owns them and forgets them with the next line.
            unsafe {
                sys::rte_pktmbuf_free_bulk(self.mbufs.as_mut_ptr(), self.mbufs.len() as u32);
            }
            self.mbufs.clear();
        }
    }
}

impl Drop for RxQueue {
    fn drop(&mut self) {
        self.release();
    }
}

impl Area {
    /// Offset of a packet in this area, if it is inside.
    #[inline]
    fn place(&self, frame: &sys::fenxi_frame) -> Option<usize> {
        let at = (frame.data as usize).wrapping_sub(self.start.as_ptr() as usize);
        (at < self.length && frame.length as usize <= self.length - at).then_some(at)
    }
}

/// A send queue.
#[derive(Debug)]
pub struct TxQueue {
    port: Arc<Port>,
    queue: u16,
    /// Buffers for copies.
    pool: Mempool,
    mbufs: Vec<*mut sys::rte_mbuf>,
}

// SAFETY: as `RxQueue`.
unsafe impl Send for TxQueue {}

impl TxQueue {
    pub(crate) fn new(port: Arc<Port>, queue: u16, pool: Mempool) -> TxQueue {
        TxQueue { port, queue, pool, mbufs: Vec::with_capacity(BURST_MAX) }
    }

    /// The port that it belongs to.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// Sends the lent packets with these numbers in order, without a copy. Skips numbers without a
    /// packet. Returns how many the device took, from the first on.
    pub fn send(&mut self, lent: &Lent<'_>, which: impl Iterator<Item = usize>) -> usize {
        let chosen = which.filter_map(|i| lent.mbufs.get(i)).take(BURST_MAX);
        self.mbufs.extend(chosen);
        lent.note_sent();
        // SAFETY: the packets are alive, since they are lent. Each gets another holder, the device.
        unsafe { sys::fenxi_share(self.mbufs.as_mut_ptr(), self.mbufs.len() as u16) };
        self.transmit()
    }

    /// Sends copies of up to [`BURST_MAX`] packets in order. Returns how many the device took, from
    /// the first on.
    pub fn send_copies<'a>(&mut self, packets: impl Iterator<Item = &'a [u8]>) -> usize {
        for packet in packets.take(BURST_MAX) {
            let length = u32::try_from(packet.len()).unwrap_or(u32::MAX);
            // SAFETY: reads the packet's bytes. Nothing else knows the buffer yet, and this pool is
            // not lent from.
            let copy = unsafe { sys::fenxi_copy(self.pool.raw.as_ptr(), packet.as_ptr(), length) };
            if copy.is_null() {
                break; // all buffers are with the device, so its queue is full
            }
            self.mbufs.push(copy);
        }
        self.transmit()
    }

    /// Sends the packets; frees those that the device does not take.
    fn transmit(&mut self) -> usize {
        thread::register();
        let all = self.mbufs.len();
        debug_assert!(all <= BURST_MAX);
        // SAFETY: the port runs and only this object uses its queue. One holder of each packet
        // passes to the device.
        let taken = unsafe {
            sys::fenxi_send(self.port.id(), self.queue, self.mbufs.as_mut_ptr(), all as u16)
        };
        let taken = usize::from(taken);
        if taken < all {
            let rest = &mut self.mbufs[taken..];
            // SAFETY: the device did not take these, so this object still holds them.
            unsafe { sys::rte_pktmbuf_free_bulk(rest.as_mut_ptr(), rest.len() as u32) };
        }
        self.mbufs.clear();
        taken
    }
}
