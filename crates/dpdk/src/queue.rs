//! Queues of a port: bursts in and out.

use std::sync::Arc;

use crate::error::{Error, ErrorKind};
use crate::mbuf::{Lent, Placed};
use crate::mempool::{Area, Mempool};
use crate::port::Port;
use crate::{sys, thread};

/// The most packets of one burst.
pub const BURST_MAX: usize = 256;

/// A receive queue. It holds the packets of the last burst until it is asked for the next.
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

// SAFETY: a queue may be used by one thread at a time, which may change; the packets go with it.
unsafe impl Send for RxQueue {}

impl RxQueue {
    /// The receiving side of a queue that is set up with this pool, which no other queue has.
    pub(crate) fn new(port: Arc<Port>, queue: u16, pool: Mempool) -> Result<RxQueue, Error> {
        let nothing = || Error::new(ErrorKind::Refused, "a pool that nothing can be lent from");
        let area = pool.area().ok_or_else(nothing)?;
        Ok(RxQueue {
            port,
            queue,
            pool,
            area,
            mbufs: Vec::with_capacity(BURST_MAX),
            frames: vec![sys::fenxi_frame::default(); BURST_MAX],
            dropped: 0,
            gathered: 0,
        })
    }

    /// The port that it belongs to.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// Packets that came in several pieces, in foreign memory or without their VLAN tag, and were
    /// copied into one buffer.
    pub fn gathered(&self) -> u64 {
        self.gathered
    }

    /// Of these, packets that were dropped because they were too long for a buffer or none was
    /// free.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Asks the device for up to `max` packets; gives the last ones back. Returns how many there
    /// are.
    #[inline]
    pub fn poll(&mut self, max: usize) -> usize {
        thread::register();
        self.release();
        let max = max.clamp(1, BURST_MAX);
        // SAFETY: the port runs and only this object uses its queue. Both vectors have room for
        // `BURST_MAX`, and no packet is in them.
        let count = unsafe {
            let to = self.mbufs.as_mut_ptr();
            sys::fenxi_receive(
                self.port.id(),
                self.queue,
                to,
                self.frames.as_mut_ptr(),
                max as u16,
            )
        };
        // SAFETY: the call has written so many, and they belong to this object now.
        unsafe { self.mbufs.set_len(usize::from(count)) };
        let (pool, area) = (self.pool, self.area);
        let frames = &self.frames[..usize::from(count)];
        if !frames
            .iter()
            .all(|frame| frame.is_plain != 0 && area.place(frame).is_some())
        {
            self.gather(pool);
        }
        self.mbufs.len()
    }

    /// Copies the packets that are not one piece of this queue's memory, or that others hold.
    #[cold]
    fn gather(&mut self, pool: Mempool) {
        let mut kept = 0;
        for i in 0..self.mbufs.len() {
            let (mut mbuf, mut frame) = (self.mbufs[i], self.frames[i]);
            if frame.is_plain == 0 || self.area.place(&frame).is_none() {
                self.gathered += 1;
                // SAFETY: the packet is this object's, and is given away; what comes back is this
                // object's.
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
        self.frames[..self.mbufs.len()]
            .iter()
            .map(move |frame| Placed {
                at: area.place(frame).unwrap_or(0),
                length: frame.length,
                rss: (has_hash && frame.has_rss != 0).then_some(frame.rss),
            })
    }

    /// Lends the packets of the last burst.
    #[inline]
    pub fn lend(&mut self) -> Lent<'_> {
        // SAFETY: the area lives as long as the environment, which the port holds, and holds bytes
        // of packets only, all initialised. No other slice of it exists: the queue is borrowed for
        // as long as this one does, no other queue receives into it, and C code touches it through
        // the queue (not while it is borrowed), or reads packets that are sent (then `Lent` gives
        // out bytes to be read only). What a network card writes are packets that it has not handed
        // over yet; they are none of those that are lent.
        let memory =
            unsafe { std::slice::from_raw_parts_mut(self.area.start.as_ptr(), self.area.length) };
        Lent::new(memory, &self.mbufs)
    }

    /// Gives the packets of the last burst back.
    fn release(&mut self) {
        if !self.mbufs.is_empty() {
            // SAFETY: they belong to this object and are forgotten with the next line.
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
    /// Where a packet lies, if it lies here.
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

// SAFETY: as of `RxQueue`.
unsafe impl Send for TxQueue {}

impl TxQueue {
    pub(crate) fn new(port: Arc<Port>, queue: u16, pool: Mempool) -> TxQueue {
        TxQueue {
            port,
            queue,
            pool,
            mbufs: Vec::with_capacity(BURST_MAX),
        }
    }

    /// The port that it belongs to.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// Sends the lent packets of these numbers, in this order and without a copy. Numbers of
    /// packets that are not there are passed over. Returns how many the device took; they are the
    /// first ones.
    pub fn send(&mut self, lent: &Lent<'_>, which: impl Iterator<Item = usize>) -> usize {
        let chosen = which.filter_map(|i| lent.mbufs.get(i)).take(BURST_MAX);
        self.mbufs.extend(chosen);
        lent.note_sent();
        // SAFETY: the packets are alive, since they are lent. Each gets another holder, the device.
        unsafe { sys::fenxi_share(self.mbufs.as_mut_ptr(), self.mbufs.len() as u16) };
        self.transmit()
    }

    /// Sends copies of these packets, up to [`BURST_MAX`] of them, in this order. Returns how many
    /// the device took; they are the first ones.
    pub fn send_copies<'a>(&mut self, packets: impl Iterator<Item = &'a [u8]>) -> usize {
        for packet in packets.take(BURST_MAX) {
            let length = u32::try_from(packet.len()).unwrap_or(u32::MAX);
            // SAFETY: reads the packet's bytes. Nothing else knows the buffer yet, and nothing is
            // ever lent from this pool.
            let copy = unsafe { sys::fenxi_copy(self.pool.raw.as_ptr(), packet.as_ptr(), length) };
            if copy.is_null() {
                break; // All buffers are with the device, so it would not take this one either.
            }
            self.mbufs.push(copy);
        }
        self.transmit()
    }

    /// Hands the packets to the device; those that it does not take lose their holder.
    fn transmit(&mut self) -> usize {
        thread::register();
        let all = self.mbufs.len();
        // SAFETY: the port runs and only this object uses its queue. Of each packet one holder goes
        // over to the device.
        let taken = unsafe {
            sys::fenxi_send(
                self.port.id(),
                self.queue,
                self.mbufs.as_mut_ptr(),
                all as u16,
            )
        };
        let taken = usize::from(taken);
        if taken < all {
            let rest = &mut self.mbufs[taken..];
            // SAFETY: the device did not take these, so their holder is still this object.
            unsafe { sys::rte_pktmbuf_free_bulk(rest.as_mut_ptr(), rest.len() as u32) };
        }
        self.mbufs.clear();
        taken
    }
}
