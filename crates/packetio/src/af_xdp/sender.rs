//! The sending side of a port.
//!
//! A frame received by a port of the same thread is lent by that port and sent in place. Any other
//! frame is copied into one of the sender's own.

use std::io;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::xdp::{XdpDesc, XdpDescOptions};

use super::area::Region;
use super::loans::{Chain, Loans};
use super::shared::Partner;
use super::socket::Sending;
use crate::burst::{Burst, Frame};
use crate::error::{InterfaceErrorKind, TxError};
use crate::interface::Interface;
use crate::rx::LinkEvent;
use crate::tx::{Selection, Tx, TxCounts};

/// The sender's own frames.
pub(super) const OWN_FRAMES: u32 = 512;
/// Bytes before the payload of an untagged Ethernet frame.
const LINK_HEADER: u32 = 14;
const TAG: u32 = 4;
/// Calls within which the kernel sends a ring of frames, if it sends any.
const KICKS: u32 = 64;

/// A receive region whose frames can be sent as they are.
#[derive(Clone, Debug)]
pub(super) struct Lender {
    pub address: usize,
    pub offset: u64,
    pub bytes: u64,
    pub loans: Arc<Loans>,
}

impl Lender {
    /// `loans` tracks the region's frames.
    pub fn new(region: &Region, bytes: usize, loans: Arc<Loans>) -> Lender {
        Lender { address: region.address(), offset: region.offset(), bytes: bytes as u64, loans }
    }

    /// Whether a burst lies in the region.
    fn has(&self, burst: &Burst<'_>) -> bool {
        let memory = burst.memory();
        memory.as_ptr() as usize == self.address && memory.len() as u64 == self.bytes
    }
}

/// An interface to send on.
#[derive(Debug)]
pub(super) struct Sender {
    /// Number among the senders of the area.
    number: u16,
    interface: Interface,
    /// `None` while the interface is gone.
    sending: Option<Sending>,
    partner: Arc<Partner>,
    /// Version of the partner's socket that `sending` is of.
    known: u32,
    frame_shift: u32,
    lenders: Vec<Lender>,
    /// Its own frames, and the free ones of them.
    own: Region,
    free: Vec<u32>,
    counts: TxCounts,
    /// Whether the last burst failed, so the failure was reported.
    is_failed: bool,
    /// Whether this port reports for its interface.
    reports: bool,
    /// The last failure, until it is taken.
    event: Option<LinkEvent>,
}

/// What a sender is made of.
pub(super) struct Parts {
    pub number: u16,
    pub interface: Interface,
    pub partner: Arc<Partner>,
    pub frame_bytes: u32,
    pub lenders: Vec<Lender>,
    pub own: Region,
    pub reports: bool,
}

impl Sender {
    pub fn new(parts: Parts) -> Sender {
        let mut sender = Sender {
            number: parts.number,
            interface: parts.interface,
            sending: None,
            partner: parts.partner,
            known: 0,
            frame_shift: parts.frame_bytes.trailing_zeros(),
            lenders: parts.lenders,
            own: parts.own,
            free: (0..OWN_FRAMES).collect(),
            counts: TxCounts::default(),
            is_failed: false,
            reports: parts.reports,
            event: None,
        };
        sender.follow();
        sender
    }

    /// Takes a socket reopened by the receiving side, or drops one it has closed.
    fn follow(&mut self) {
        let Some(sending) = self.partner.follow(&mut self.known) else {
            return;
        };
        // The old socket is gone by now, or goes with this; it sends no more.
        self.sending = None;
        for lender in &self.lenders {
            lender.loans.give_all_back(self.number);
        }
        self.free.clear();
        self.free.extend(0..OWN_FRAMES);
        self.sending = sending;
    }

    /// Takes back sent frames; returns lent ones to their ports.
    fn reap(&mut self) {
        let Some(sending) = &mut self.sending else {
            return;
        };
        let (own, shift, number) = (self.own.offset(), self.frame_shift, self.number);
        let free = &mut self.free;
        let mut chain = Chain::default();
        let mut at = 0;
        let lenders = &self.lenders;
        sending.sent.take(u32::MAX, |address| {
            let is_in = |it: &Lender| (it.offset..it.offset + it.bytes).contains(&address);
            // Most come from one port, so check the previous lender first.
            if !lenders.get(at).is_some_and(is_in) {
                if let Some(lender) = lenders.get(at) {
                    lender.loans.give_back(&mut chain);
                }
                at = lenders.iter().position(is_in).unwrap_or(lenders.len());
            }
            match lenders.get(at) {
                Some(lender) => {
                    let frame = ((address - lender.offset) >> shift) as u32;
                    if lender.loans.is_lent(frame, number) {
                        chain.add(&lender.loans, frame);
                    }
                }
                None if address >= own && free.len() < OWN_FRAMES as usize => {
                    free.push(((address - own) >> shift) as u32);
                }
                None => {}
            }
        });
        if let Some(lender) = lenders.get(at) {
            lender.loans.give_back(&mut chain);
        }
    }

    /// Puts one frame into the ring; `false` if there is no room.
    fn put(&mut self, burst: &Burst<'_>, i: usize, lender: Option<usize>) -> bool {
        let frame = &burst.frames()[i];
        let Some(sending) = &mut self.sending else {
            return false;
        };
        let lent = lender.map(|at| &self.lenders[at]).filter(|lender| {
            let index = (frame.at >> self.frame_shift) as u32;
            lender.loans.lend(index, self.number)
        });
        let (addr, copied) = match lent {
            Some(lender) => (lender.offset + frame.at as u64, None),
            None => {
                let bytes = burst.bytes(i);
                let Some(free) = self.free.pop() else {
                    return false;
                };
                let at = (free as usize) << self.frame_shift;
                let place = self.own.bytes().get_mut(at..at + bytes.len());
                let Some(place) = place else {
                    self.free.push(free);
                    return false;
                };
                place.copy_from_slice(bytes);
                (self.own.offset() + at as u64, Some(free))
            }
        };
        let is_in = sending.send.put(XdpDesc {
            addr,
            len: frame.captured,
            options: XdpDescOptions::empty(),
        });
        if !is_in {
            match (lent, copied) {
                (Some(lender), _) => {
                    let mut chain = Chain::default();
                    chain.add(&lender.loans, (frame.at >> self.frame_shift) as u32);
                    lender.loans.give_back(&mut chain);
                }
                (None, Some(free)) => self.free.push(free),
                (None, None) => {}
            }
        }
        is_in
    }

    /// Makes the kernel send the ring's frames; takes back those sent. Frames that a card does not
    /// take now stay in the ring.
    fn push(&mut self) -> Result<(), Errno> {
        let Some(sending) = &mut self.sending else {
            return Err(Errno::NODEV);
        };
        sending.send.submit();
        let mut pending = sending.send.pending();
        for _ in 0..KICKS {
            let Some(sending) = &mut self.sending else {
                break;
            };
            if pending == 0 {
                break;
            }
            sending.kick()?;
            let left = sending.send.pending();
            self.reap();
            if left == pending {
                break;
            }
            pending = left;
        }
        Ok(())
    }

    /// As [`Self::push`]; counts the frames in `put` as sent, unless it fails.
    fn push_all(&mut self, put: &mut TxCounts) -> Result<(), Errno> {
        self.push()?;
        self.counts.merge(&std::mem::take(put));
        Ok(())
    }

    /// Whether a frame exceeds the MTU or the memory of a frame.
    fn is_too_long(&self, burst: &Burst<'_>, i: usize, frame: &Frame, mtu: u32) -> bool {
        let over = frame.captured.saturating_sub(mtu + LINK_HEADER);
        let is_tagged = || matches!(burst.bytes(i).get(12..14), Some([0x81, 0x00] | [0x88, 0xa8]));
        let is_beyond = frame.captured > 1 << self.frame_shift;
        is_beyond || (over > 0 && !(over <= TAG && is_tagged()))
    }

    fn failure(&mut self, errno: Errno) -> TxError {
        let kind = match (errno, self.interface.refresh()) {
            (Errno::NODEV, _) | (_, Err(_)) => InterfaceErrorKind::Gone,
            (Errno::NETDOWN | Errno::NXIO, Ok(_)) => InterfaceErrorKind::Down,
            (errno, Ok(_)) => InterfaceErrorKind::System(io::Error::from(errno)),
        };
        self.interface.error(kind)
    }
}

impl Tx for Sender {
    fn send(&mut self, burst: &Burst<'_>, which: Selection<'_>) -> Result<(), TxError> {
        self.follow();
        self.reap();
        let lender = self.lenders.iter().position(|it| it.has(burst));
        let mtu = self.partner.mtu();
        // Frames that a link which is down does not take must not be sent late.
        let mut failure = match self.is_failed {
            true => self.push().err(),
            false => None,
        };
        let mut put = TxCounts::default();
        for (i, frame) in burst.frames().iter().enumerate() {
            if !which.has(i) {
                continue;
            }
            if frame.captured < frame.wire {
                self.counts.cut += 1;
                continue;
            }
            if self.is_too_long(burst, i, frame, mtu) {
                self.counts.too_long += 1;
                continue;
            }
            let mut is_put = failure.is_none() && self.put(burst, i, lender);
            if !is_put && failure.is_none() {
                // Room is made once; then the frame must fit.
                failure = self.push_all(&mut put).err();
                is_put = failure.is_none() && self.put(burst, i, lender);
            }
            match is_put {
                true => {
                    put.sent += 1;
                    put.sent_bytes += u64::from(frame.captured);
                }
                false => self.counts.refused += 1,
            }
        }
        failure = failure.or_else(|| self.push_all(&mut put).err());
        self.counts.refused += put.sent;
        let Some(errno) = failure else {
            self.is_failed = false;
            return Ok(());
        };
        if std::mem::replace(&mut self.is_failed, true) {
            return Ok(());
        }
        let error = self.failure(errno);
        if self.reports && !error.kind.is_recoverable() {
            self.event = Some(LinkEvent::Warning(format!("sending: {error}")));
        }
        Err(error)
    }

    fn name(&self) -> &str {
        &self.interface.name
    }

    fn counts(&self) -> TxCounts {
        self.counts
    }

    fn flush(&mut self) -> Result<(), TxError> {
        self.follow();
        self.reap();
        // The next frame to be sent reports a failure.
        let _ = self.push();
        Ok(())
    }

    fn link_event(&mut self) -> Option<LinkEvent> {
        self.event.take()
    }
}
