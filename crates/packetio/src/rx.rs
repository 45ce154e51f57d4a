//! The receiving side of a port: where bursts come from.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::burst::{Burst, Frame};
use crate::error::RxError;

/// A source of frames: an interface, a capture, memory, a channel of batches, or a wrapper around
/// one of these.
///
/// A port belongs to one thread at a time. In the steady state its calls neither allocate nor
/// lock, and [`receive`](Self::receive) sleeps for a bounded time at most.
pub trait Rx: Send {
    /// The next 1 to `max` frames (a `max` of 0 counts as 1), valid until the next call.
    ///
    /// A port whose link goes down or away does not fail: it has no frames, reports that by
    /// [`link_event`](Self::link_event), and goes on by itself when the link is back.
    ///
    /// # Errors
    /// A capture is damaged, or the system cannot read on. All frames before it have been handed
    /// out; asked again, the port fails again.
    fn receive(&mut self, max: usize) -> Result<Received<'_>, RxError>;

    /// The worker is about to end, and asks for bursts until there are none: counts of flows ([`Burst::counts`]) come at once.
    fn drain(&mut self) {}

    /// The worker is about to end, and has processed all frames that it received. `true`: frames that come now, and those that
    /// wait, stay where the next process finds them; the port hands out no more.
    fn leave(&mut self) -> bool {
        false
    }

    /// The port's name for people: the interface, the file.
    fn name(&self) -> &str;

    /// Counts of received and lost frames since the port was opened. Live ports ask the kernel, which
    /// is a system call, so call it only for a snapshot.
    fn counts(&mut self) -> RxCounts;

    /// Whether frames carry the time of a live clock. Otherwise their times come from a recording.
    fn is_live(&self) -> bool {
        false
    }

    /// The next event of the link: each change once, on one of the ports that share an
    /// interface. Ask after a `receive` without frames and at least once a second. Asks the
    /// system once a second at most.
    fn link_event(&mut self) -> Option<LinkEvent> {
        None
    }

    /// Whether the link is gone, so that it may never come back.
    fn is_lost(&self) -> bool {
        false
    }

    /// Whether the link has failed for good. A port that has failed is lost, too.
    fn is_failed(&self) -> bool {
        false
    }

    /// Of the counts of the last burst ([`Burst::counts`]), those with these numbers are of flows that nobody knows: the port
    /// forgets them, so that their next packets are handed out.
    fn forget(&mut self, unknown: &[u32]) {
        let _ = unknown;
    }

    /// The handle on which a thread can sleep until the port has frames; see [`wait`].
    fn wait_handle(&self) -> WaitHandle<'_> {
        WaitHandle::InReceive
    }
}

/// The result of a receive call.
#[derive(Debug)]
pub enum Received<'a> {
    /// Frames, or counts of flows, or both.
    Burst(Burst<'a>),
    /// Nothing now; ask again.
    Nothing,
    /// Nothing any more. Live ports do not end.
    End,
}

impl<'a> Received<'a> {
    /// The frames, if there are any.
    pub fn burst(self) -> Option<Burst<'a>> {
        match self {
            Received::Burst(burst) => Some(burst),
            Received::Nothing | Received::End => None,
        }
    }
}

/// A change of a port's link, with a line for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// No frames come any more, and why.
    Down(String),
    /// Frames come again.
    Up(String),
    /// Frames come, but something about the link has to be fixed; the line says how.
    Warning(String),
}

/// Counts of a port since it was opened. Those that a backend cannot know are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxCounts {
    /// Frames handed out.
    pub received: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// Of the frames, those that are several packets merged into one, or longer than the
    /// interface's MTU; [`Frame::gso`] says of which packets.
    pub merged: u64,
    /// Live: frames that the kernel had for this port, received or not.
    pub offered: u64,
    /// Of these, frames that found the receive ring full, and the abandoned ones.
    pub dropped: u64,
    /// Of the dropped ones, those in a ring that was given up with its interface.
    pub abandoned: u64,
    /// Of the offered ones, frames that are still in the ring.
    pub waiting: u64,
    /// Frames that should have come out of the ring and did not (above 0), or that came out
    /// although nobody put them in (below 0).
    pub missing: i64,
    /// The link is down or gone.
    pub is_away: bool,
    /// Packets that the kernel counted by flow instead of handing them out.
    pub counted: u64,
    /// Bytes of their frames.
    pub counted_bytes: u64,
    /// Flows of which the kernel forgot the counts, because it had no room for them.
    pub forgotten: u64,
    /// Frames that another worker's flow manager should have had, and this one got, because there was no room to hand them over.
    pub strays: u64,
    /// The kernel hands out the first packets of each flow, and counts the others.
    pub counts_in_kernel: bool,
}

impl RxCounts {
    /// Bytes on the wire of all packets, handed out or counted by the kernel.
    pub fn bytes_seen(&self) -> u64 {
        self.bytes + self.counted_bytes
    }

    /// Adds those of another port.
    pub fn merge(&mut self, other: &RxCounts) {
        *self = RxCounts {
            received: self.received + other.received,
            bytes: self.bytes + other.bytes,
            merged: self.merged + other.merged,
            offered: self.offered + other.offered,
            dropped: self.dropped + other.dropped,
            abandoned: self.abandoned + other.abandoned,
            waiting: self.waiting + other.waiting,
            missing: self.missing + other.missing,
            is_away: self.is_away || other.is_away,
            counted: self.counted + other.counted,
            counted_bytes: self.counted_bytes + other.counted_bytes,
            forgotten: self.forgotten + other.forgotten,
            strays: self.strays + other.strays,
            counts_in_kernel: self.counts_in_kernel || other.counts_in_kernel,
        };
    }

    /// Counts frames handed out.
    #[inline]
    pub(crate) fn count(&mut self, frames: &[Frame]) {
        self.received += frames.len() as u64;
        self.bytes += frames.iter().map(|it| u64::from(it.wire)).sum::<u64>();
    }
}

/// How a thread waits for a port's frames.
#[derive(Clone, Copy, Debug)]
pub enum WaitHandle<'a> {
    /// The descriptor is readable when there are frames or the link has changed.
    Fd(BorrowedFd<'a>),
    /// One of the two is.
    Either(BorrowedFd<'a>, BorrowedFd<'a>),
    /// Nothing announces frames: the port is to be asked again after this time, at once if it is zero.
    Within(Duration),
    /// [`Rx::receive`] itself waits.
    InReceive,
    /// The link is away: nothing announces frames, so the port is asked again later.
    Away,
}

/// Ports that [`wait`] watches; the frames of any beyond may wait for the whole timeout.
const WATCHED: usize = 16;

/// Sleeps until one of the ports has frames or its link changes, for at most `timeout`: for a
/// thread that found all of them empty; `event` ends the sleep once it can be read. Returns at once if a port waits by itself.
pub fn wait<'a>(
    ports: impl IntoIterator<Item = &'a dyn Rx>,
    event: Option<BorrowedFd<'a>>,
    timeout: Duration,
) {
    let event = event.map(WaitHandle::Fd);
    let handles = ports.into_iter().map(Rx::wait_handle);
    wait_for(event.into_iter().chain(handles), timeout);
}

/// [`wait`] for the ports with these handles.
pub(crate) fn wait_for<'a>(
    handles: impl IntoIterator<Item = WaitHandle<'a>>,
    mut timeout: Duration,
) {
    let mut fds = [const { None }; WATCHED];
    let mut count = 0;
    for handle in handles {
        let found = match handle {
            WaitHandle::InReceive | WaitHandle::Within(Duration::ZERO) => return,
            WaitHandle::Within(time) => {
                timeout = timeout.min(time);
                [None, None]
            }
            // Its descriptor may be readable for ever, which would keep the thread awake.
            WaitHandle::Away => [None, None],
            WaitHandle::Fd(fd) => [Some(fd), None],
            WaitHandle::Either(one, other) => [Some(one), Some(other)],
        };
        for fd in found.into_iter().flatten().take(WATCHED - count) {
            fds[count] = Some(fd);
            count += 1;
        }
    }
    let Some(first) = fds[0] else {
        return std::thread::sleep(timeout);
    };
    let mut polled: [PollFd<'_>; WATCHED] =
        std::array::from_fn(|i| PollFd::from_borrowed_fd(fds[i].unwrap_or(first), PollFlags::IN));
    let timeout = Timespec::try_from(timeout).unwrap_or_default();
    // If it fails, nothing was slept, and the next `receive` finds out why.
    let _ = poll(&mut polled[..count], Some(&timeout));
}
