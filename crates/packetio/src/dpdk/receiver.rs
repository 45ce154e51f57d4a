//! A receive queue as a port.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dpdk::{Link, RxQueue};

use crate::burst::{Burst, Frame};
use crate::error::RxError;
use crate::interface::ETHERNET;
use crate::rx::{LinkEvent, Received, Rx, RxCounts, WaitHandle};

/// Interval of link checks.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Polls without frames before a thread sleeps between polls: some hundred microseconds, longer
/// than the gaps on a loaded link.
const POLLS_BEFORE_SLEEP: u32 = 1000;

/// A receive queue of a device.
#[derive(Debug)]
pub(crate) struct Receiver {
    queue: RxQueue,
    frames: Vec<Frame>,
    counts: RxCounts,
    /// Polls since the last frame.
    empty: u32,
    sleep: Duration,
    /// Whether this queue reports for its device.
    reports: bool,
    link: Link,
    checked: Instant,
}

impl Receiver {
    pub fn new(queue: RxQueue, reports: bool, sleep: Duration) -> Receiver {
        Receiver {
            link: queue.port().link(),
            queue,
            frames: Vec::with_capacity(dpdk::BURST_MAX),
            counts: RxCounts::default(),
            empty: 0,
            sleep,
            reports,
            checked: Instant::now(),
        }
    }

    /// Describes the frames of the last burst, which arrived just now.
    #[inline]
    fn describe(&mut self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let time = now.unwrap_or_default();
        let (time_us, time_sub_ns) = (time.as_micros() as i64, (time.subsec_nanos() % 1000) as u16);
        self.frames.clear();
        self.frames.extend(self.queue.packets().map(|packet| Frame {
            at: packet.at,
            captured: packet.length,
            wire: packet.length,
            time_us,
            time_sub_ns,
            link: ETHERNET,
            rss: packet.rss,
            ..Frame::default()
        }));
        self.counts.count(&self.frames);
    }
}

impl Rx for Receiver {
    fn receive(&mut self, max: usize) -> Result<Received<'_>, RxError> {
        if self.queue.poll(max) == 0 {
            self.empty = self.empty.saturating_add(1);
            return Ok(Received::Nothing);
        }
        self.empty = 0;
        self.describe();
        Ok(Received::Burst(Burst::lent(self.queue.lend(), &self.frames)))
    }

    fn name(&self) -> &str {
        self.queue.port().name()
    }

    fn counts(&mut self) -> RxCounts {
        let mut counts = self.counts;
        counts.dropped = self.queue.dropped();
        // The device counts for all its queues.
        if self.reports {
            counts.dropped += self.queue.port().lost();
        }
        counts.offered = counts.received + counts.dropped;
        counts.is_away = self.link != Link::Up;
        counts
    }

    fn is_live(&self) -> bool {
        true
    }

    fn link_event(&mut self) -> Option<LinkEvent> {
        if self.checked.elapsed() < CHECK_EVERY {
            return None;
        }
        self.checked = Instant::now();
        let link = self.queue.port().link();
        let before = std::mem::replace(&mut self.link, link);
        if link == before || !self.reports {
            return None;
        }
        let name = self.name();
        Some(match link {
            Link::Up => LinkEvent::Up(format!("{name}: the link is up")),
            Link::Down => LinkEvent::Down(format!(
                "{name}: the link is down; work on it goes on when it is up"
            )),
            Link::Removed => {
                LinkEvent::Down(format!("{name}: the device is gone; start again when it is back"))
            }
        })
    }

    fn is_lost(&self) -> bool {
        self.link == Link::Removed
    }

    fn is_failed(&self) -> bool {
        self.link == Link::Removed
    }

    fn wait_handle(&self) -> WaitHandle<'_> {
        match self.empty < POLLS_BEFORE_SLEEP {
            true => WaitHandle::Within(Duration::ZERO),
            false => WaitHandle::Within(self.sleep),
        }
    }
}
