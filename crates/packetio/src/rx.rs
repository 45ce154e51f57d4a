//! The receiving side of a port: where bursts come from.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::burst::{Burst, Frame};
use crate::error::RxError;

/// A source of frames: an interface, a capture, memory, a channel, or a wrapper around one.
///
/// A port belongs to one thread at a time. After warm-up its calls neither allocate nor lock, and
/// [`receive`](Self::receive) sleeps for a bounded time at most.
pub trait Rx: Send {
    /// The next 1 to `max` frames (a `max` of 0 counts as 1), valid until the next call.
    ///
    /// While its link is down or gone, a port has no frames and reports so by
    /// [`link_event`](Self::link_event); it resumes by itself when the link is back.
    ///
    /// # Errors
    /// A capture is damaged, or the system cannot read on. All frames before the error have been
    /// handed out; a further call fails again.
    fn receive(&mut self, max: usize) -> Result<Received<'_>, RxError>;

    /// Passes a notice to the port. `true` if the port acts on it; most ports ignore all notices.
    fn notify(&mut self, notice: Notice<'_>) -> bool {
        let _ = notice;
        false
    }

    /// The port's name for people: the interface, the file.
    fn name(&self) -> &str;

    /// Frames received and lost since the port was opened. Live ports make a system call, so call
    /// it only for a snapshot.
    fn counts(&mut self) -> RxCounts;

    /// Whether frames carry the current time rather than a recorded one.
    fn is_live(&self) -> bool {
        false
    }

    /// The next link event: each once, on one of the ports that share an interface. Call it after a
    /// `receive` without frames and at least once a second; it makes a system call at most once a
    /// second.
    fn link_event(&mut self) -> Option<LinkEvent> {
        None
    }

    /// Whether the link is gone, maybe for good.
    fn is_lost(&self) -> bool {
        false
    }

    /// Whether the link has failed for good; implies [`is_lost`](Self::is_lost).
    fn is_failed(&self) -> bool {
        false
    }

    /// The handle on which a thread can sleep until the port has frames; see [`wait`].
    fn wait_handle(&self) -> WaitHandle<'_> {
        WaitHandle::InReceive
    }
}

/// A worker's notice to its port.
#[derive(Clone, Copy, Debug)]
pub enum Notice<'a> {
    /// The worker shuts down and receives until nothing is left: report all flow counts
    /// ([`Burst::counts`]) now.
    Drain,
    /// The worker shuts down and has processed all frames received. A port that acts on this hands
    /// out no more: frames from now on stay in its ring for the next process.
    Leave,
    /// No worker knows the flows with these indices in the last [`Burst::counts`]: stop counting
    /// them, so that their next packets are handed out.
    Forget(&'a [u32]),
}

/// The result of a receive call.
#[derive(Debug)]
pub enum Received<'a> {
    /// Frames, flow counts, or both.
    Burst(Burst<'a>),
    /// Nothing now; try again.
    Nothing,
    /// The end. Live ports never return it.
    End,
}

impl<'a> Received<'a> {
    /// The burst, if there is one.
    pub fn burst(self) -> Option<Burst<'a>> {
        match self {
            Received::Burst(burst) => Some(burst),
            Received::Nothing | Received::End => None,
        }
    }
}

/// A change of a port's link, with a message for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// Frames stopped, and why.
    Down(String),
    /// Frames come again.
    Up(String),
    /// Frames come, but the link needs fixing; the message says how.
    Warning(String),
}

/// Counts of a port since it was opened; 0 where the backend does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxCounts {
    /// Frames handed out.
    pub received: u64,
    /// Bytes of these frames on the wire.
    pub bytes: u64,
    /// Frames that are several packets merged into one, or longer than the MTU; see [`Frame::gso`].
    pub merged: u64,
    /// Live: frames that the kernel had for this port, received or not.
    pub offered: u64,
    /// Offered frames that found the receive ring full, plus `abandoned`.
    pub dropped: u64,
    /// Dropped frames that were in a ring given up with its interface.
    pub abandoned: u64,
    /// Offered frames still in the ring.
    pub waiting: u64,
    /// Frames that went into the ring and did not come out (positive), or the reverse (negative).
    pub missing: i64,
    /// The link is down or gone.
    pub is_away: bool,
    /// Packets that the kernel counted by flow instead of handing them out.
    pub counted: u64,
    /// Bytes of these packets' frames.
    pub counted_bytes: u64,
    /// Flows whose counts the kernel dropped for lack of room.
    pub forgotten: u64,
    /// Frames kept although another worker owns their flow, because no batch was free.
    pub strays: u64,
    /// The kernel hands out the first packets of each flow and counts the others.
    pub counts_in_kernel: bool,
    /// The kernel labels flows, too.
    pub labels_in_kernel: bool,
}

impl RxCounts {
    /// Bytes on the wire of all packets, handed out or counted by the kernel.
    pub fn bytes_seen(&self) -> u64 {
        self.bytes + self.counted_bytes
    }

    /// Adds another port's counts.
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
            labels_in_kernel: self.labels_in_kernel || other.labels_in_kernel,
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
    /// As [`Self::Fd`], with two descriptors.
    Either(BorrowedFd<'a>, BorrowedFd<'a>),
    /// No descriptor: poll again after this interval, at once if zero.
    Within(Duration),
    /// [`Rx::receive`] itself waits.
    InReceive,
    /// The link is away: no descriptor, poll again after the timeout.
    Away,
}

/// Maximum descriptors that [`wait`] polls; frames on any beyond may wait for the whole timeout.
const WATCHED: usize = 16;

/// Sleeps until a port has frames, its link changes, `event` is readable, or `timeout` is over.
/// Call it after all ports were found empty. Returns at once if a port waits by itself.
pub fn wait<'a>(
    ports: impl IntoIterator<Item = &'a dyn Rx>,
    event: Option<BorrowedFd<'a>>,
    mut timeout: Duration,
) {
    let mut fds = [const { None }; WATCHED];
    let mut count = 0;
    let event = event.map(WaitHandle::Fd);
    for handle in event.into_iter().chain(ports.into_iter().map(Rx::wait_handle)) {
        let found = match handle {
            WaitHandle::InReceive | WaitHandle::Within(Duration::ZERO) => return,
            WaitHandle::Within(time) => {
                timeout = timeout.min(time);
                [None, None]
            }
            // Its descriptor may stay readable, which would keep the thread awake.
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
    // On failure nothing was slept; the next `receive` reports why.
    let _ = poll(&mut polled[..count], Some(&timeout));
}
