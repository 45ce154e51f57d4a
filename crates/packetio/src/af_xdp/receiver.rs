//! The receiving side of a port: frames of the queues of an interface.

mod link;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::sockopt::xdp_statistics;
use rustix::net::xdp::XdpDesc;
use rustix::time::{ClockId, clock_gettime};

use super::area::Region;
use super::loans::Loans;
use super::place::Place;
use super::queues::{self, Effect};
use super::shared::{Partner, Shared};
use super::socket::Queue;
use crate::burst::{Burst, Frame, Gso};
use crate::error::{OpenError, RxError};
use crate::interface::Interface;
use crate::rx::{LinkEvent, Received, Rx, RxCounts, WaitHandle, wait};
use crate::settings::PortSettings;

/// Interval of link checks without frames: XDP does not report a link that goes down.
const CHECK_EVERY: Duration = Duration::from_millis(100);
/// Interval of checks of MTU and name with frames.
const CHECK_EVERY_BUSY: Duration = Duration::from_secs(1);

/// The queues of an interface that belong to one port.
#[derive(Debug)]
pub(super) struct Receiver {
    settings: PortSettings,
    interface: Interface,
    place: Place,
    shared: Arc<Shared>,
    partner: Arc<Partner>,
    region: Region,
    loans: Arc<Loans>,
    frame_shift: u32,
    /// The sockets; empty while the interface is gone.
    queues: Vec<Queue>,
    /// The queue to read first.
    first: usize,
    /// Readable if any of several sockets is.
    epoll: Option<OwnedFd>,
    /// Keeps the interface promiscuous.
    promiscuous: Option<OwnedFd>,
    /// Frames of the last burst.
    frames: Vec<Frame>,
    state: PortState,
    checked: Instant,
    counts: RxCounts,
    /// Link events until they are taken, the oldest first.
    events: Vec<LinkEvent>,
    is_rename_known: bool,
    is_mtu_known: bool,
    /// The last reported reason why it could not be reopened.
    complaint: Option<String>,
}

/// State of the interface.
#[derive(Debug, PartialEq)]
enum PortState {
    Up,
    Down,
    /// Gone; next attempt at `retry`.
    Gone {
        retry: Instant,
    },
}

/// What a receiver is made of.
pub(super) struct Parts {
    pub settings: PortSettings,
    pub interface: Interface,
    pub place: Place,
    pub shared: Arc<Shared>,
    pub partner: Arc<Partner>,
    pub region: Region,
    pub loans: Arc<Loans>,
    /// Warnings for the operator at the start.
    pub warnings: Vec<String>,
}

impl Receiver {
    /// Opens the queues.
    pub fn open(parts: Parts) -> Result<(Receiver, Effect), OpenError> {
        let is_up = parts.interface.link.is_up;
        let mut receiver = Receiver {
            frame_shift: parts.settings.own.xdp.frame_bytes.trailing_zeros(),
            settings: parts.settings,
            interface: parts.interface,
            place: parts.place,
            shared: parts.shared,
            partner: parts.partner,
            region: parts.region,
            loans: parts.loans,
            queues: Vec::new(),
            first: 0,
            epoll: None,
            promiscuous: None,
            frames: Vec::new(),
            state: if is_up { PortState::Up } else { PortState::Down },
            checked: Instant::now(),
            counts: RxCounts::default(),
            events: Vec::new(),
            is_rename_known: false,
            is_mtu_known: false,
            complaint: None,
        };
        let warnings = parts.warnings.into_iter();
        receiver.events.extend(warnings.map(LinkEvent::Warning));
        let effect = receiver.open_queues(true)?;
        Ok((receiver, effect))
    }

    /// Opens the sockets and gives the kernel all frames.
    fn open_queues(&mut self, waits: bool) -> Result<Effect, OpenError> {
        let Receiver { settings, interface, place, shared, region, .. } = self;
        let opened = queues::open(settings, interface, place, &region.area, shared, waits)?;
        self.queues = opened.queues;
        self.epoll = opened.epoll;
        self.promiscuous = opened.promiscuous;
        let Receiver { queues, loans, .. } = self;
        let give = giver(&self.region, self.frame_shift, self.settings.own.xdp.frames);
        loans.take_all(|frame| give(queues, frame));
        queues.iter_mut().for_each(|queue| queue.fill.submit());
        self.partner.set_mtu(self.interface.link.mtu);
        self.partner.hand_over(opened.sending);
        self.is_mtu_known = false;
        Ok(opened.effect)
    }

    /// Gives the kernel the last burst's frames that were not lent, and the returned ones.
    #[inline]
    fn recycle(&mut self) {
        let Receiver { queues, loans, .. } = self;
        let give = giver(&self.region, self.frame_shift, self.settings.own.xdp.frames);
        for frame in &self.frames {
            let index = (frame.at >> self.frame_shift) as u32;
            if loans.recycle(index) {
                give(queues, index);
            }
        }
        loans.take_returned(|index| give(queues, index));
        self.frames.clear();
        for queue in queues {
            queue.fill.submit();
            if queue.fill.needs_wakeup() {
                queue.kick();
            }
        }
    }

    /// Takes up to `max` frames from the rings; `false` if there are none.
    #[inline]
    fn fetch(&mut self, max: usize) -> bool {
        let Receiver { queues, frames, .. } = self;
        let reading = Reading {
            offset: self.region.offset(),
            bytes: u64::from(self.loans.len()) << self.frame_shift,
            snap_length: self.settings.snap_length,
            link: self.interface.link_type,
        };
        let count = queues.len();
        for at in 0..count {
            let most = max.saturating_sub(frames.len()) as u32;
            let queue = &mut queues[(self.first + at) % count];
            queue.received.take(most, |desc| frames.extend(reading.frame(&desc)));
        }
        self.first = (self.first + 1) % count.max(1);
        if frames.is_empty() {
            return false;
        }
        let now = clock_gettime(ClockId::Realtime);
        let (time_us, time_sub_ns) =
            (now.tv_sec * 1_000_000 + now.tv_nsec / 1000, now.tv_nsec % 1000);
        for frame in frames.iter_mut() {
            (frame.time_us, frame.time_sub_ns) = (time_us, time_sub_ns as u16);
            self.loans.hold((frame.at >> self.frame_shift) as u32);
        }
        self.counts.count(frames);
        true
    }

    /// Polls the driver, or waits, depending on the settings.
    fn wait(&self) {
        if self.settings.own.xdp.busy_poll_us > 0 {
            self.queues.iter().for_each(Queue::kick);
        }
        if !self.settings.wait.is_zero() {
            wait([self as &dyn Rx], None, self.settings.wait);
        }
    }

    /// Frames dropped by the kernel, and frames waiting, of the open sockets.
    fn in_queues(&self) -> (u64, u64) {
        let of = |queue: &Queue| {
            let dropped = xdp_statistics(&queue.socket)
                .map_or(0, |it| it.rx_dropped + it.rx_ring_full.unwrap_or(0));
            (dropped, u64::from(queue.received.available()))
        };
        let all = self.queues.iter().map(of);
        all.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}

/// A function that gives the kernel a frame of a region through its queue, of `frames` frames each.
fn giver(region: &Region, frame_shift: u32, frames: u32) -> impl Fn(&mut [Queue], u32) {
    let (offset, queue_shift) = (region.offset(), frames.trailing_zeros());
    move |queues, frame| {
        if let Some(queue) = queues.get_mut((frame >> queue_shift) as usize) {
            // A fill ring has room for each frame of its queue twice. A frame that found none would
            // be lost for good.
            let has_room = queue.fill.put(offset + (u64::from(frame) << frame_shift));
            debug_assert!(has_room, "frame {frame}");
        }
    }
}

/// Converts descriptors to frames.
struct Reading {
    offset: u64,
    bytes: u64,
    snap_length: u32,
    link: u16,
}

impl Reading {
    /// `None` if the kernel names bytes outside of the region.
    #[inline]
    fn frame(&self, desc: &XdpDesc) -> Option<Frame> {
        let at = desc.addr.checked_sub(self.offset)?;
        let end = at.checked_add(u64::from(desc.len))?;
        (end <= self.bytes).then(|| Frame {
            at: at as usize,
            captured: desc.len.min(self.snap_length),
            wire: desc.len,
            link: self.link,
            rss: None,
            gso: Gso::NONE,
            ..Frame::default()
        })
    }
}

impl Rx for Receiver {
    fn receive(&mut self, max: usize) -> Result<Received<'_>, RxError> {
        self.recycle();
        let max = max.max(1);
        let is_there = !self.queues.is_empty();
        let has_frames = is_there
            && (self.fetch(max) || {
                self.wait();
                self.fetch(max)
            });
        if has_frames {
            let burst = Burst::new(self.region.bytes(), &self.frames);
            return Ok(Received::Burst(burst));
        }
        if self.checked.elapsed() >= CHECK_EVERY {
            self.check_link();
        }
        Ok(Received::Nothing)
    }

    fn name(&self) -> &str {
        &self.settings.interface
    }

    fn is_live(&self) -> bool {
        true
    }

    fn link_event(&mut self) -> Option<LinkEvent> {
        if self.checked.elapsed() >= CHECK_EVERY_BUSY {
            self.check_link();
        }
        if !self.place.reports() {
            self.events.clear();
        }
        match self.events.is_empty() {
            true => None,
            false => Some(self.events.remove(0)),
        }
    }

    fn counts(&mut self) -> RxCounts {
        let (dropped, waiting) = self.in_queues();
        let counts = self.counts;
        let dropped = counts.dropped + dropped + counts.abandoned;
        RxCounts {
            // The kernel counts only drops, so nothing can be found missing.
            offered: counts.received + waiting + dropped,
            dropped,
            waiting,
            is_away: self.state != PortState::Up,
            ..counts
        }
    }

    fn is_lost(&self) -> bool {
        matches!(self.state, PortState::Gone { .. })
    }

    fn wait_handle(&self) -> WaitHandle<'_> {
        match (&self.epoll, self.queues.first(), &self.state) {
            (Some(epoll), _, PortState::Up) => WaitHandle::Fd(epoll.as_fd()),
            (None, Some(queue), PortState::Up) => WaitHandle::Fd(queue.socket.as_fd()),
            _ => WaitHandle::Away,
        }
    }
}
