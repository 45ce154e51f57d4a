//! The netlink socket: sends a batch of requests, receives an answer for each.
//!
//! The kernel handles a batch within `send`, in order, and queues the answers before it returns. So
//! nothing here waits: after a send the answers are there, or were lost for lack of room and are
//! reported as missing. The socket is connected to the kernel (port 0), which excludes messages of
//! other processes. It needs `CAP_NET_ADMIN` in the user namespace of the network namespace, on
//! opening and on every send.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::netlink::{Answer, answers};

/// Requests per send. Answers to updates, some 800 bytes of socket memory each, fill a quarter of
/// Linux' default receive buffer; answers to queries are up to twice as large.
pub const BATCH: usize = 64;

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply<Found = ()> {
    /// Applied.
    Done,
    /// The queried object.
    Found(Found),
    /// There is no such object.
    NotFound,
    /// The kernel refused with this error number.
    Refused(i32),
    /// No answer came.
    Unanswered,
}

/// The socket and its buffers, which only grow during the first batch.
pub struct Socket {
    fd: OwnedFd,
    sequence: u32,
    requests: Vec<u8>,
    received: Box<[u8]>,
}

/// Appends a message with this sequence number.
type Append<'a> = &'a dyn Fn(&mut Vec<u8>, u32);

impl Socket {
    /// Opens the socket in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The kernel has no netfilter, or no room.
    pub fn open() -> io::Result<Socket> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let family = AddressFamily::NETLINK;
        let fd = rustix::net::socket_with(family, SocketType::RAW, flags, Some(NETFILTER))?;
        rustix::net::connect(&fd, &SocketAddrNetlink::new(0, 0))?;
        Ok(Socket { fd, sequence: 0, requests: Vec::new(), received: vec![0; 8192].into() })
    }

    /// Sends the messages that `push` builds from at most [`BATCH`] requests; `outcomes` gets the
    /// result of each, and `found` reads queried objects.
    pub(crate) fn exchange<Request, Found: Clone>(
        &mut self,
        requests: &[Request],
        outcomes: &mut Vec<Reply<Found>>,
        push: impl Fn(&mut Vec<u8>, u32, &Request),
        found: impl Fn(&Answer<'_>) -> Option<Found>,
    ) {
        let frame = |_: &mut Vec<u8>, _: u32| {};
        self.exchange_between([&frame, &frame], requests, outcomes, push, found);
    }

    /// As [`Self::exchange`], with a message before and after the others, whose answers are
    /// ignored.
    pub(crate) fn exchange_between<Request, Found: Clone>(
        &mut self,
        [begin, end]: [Append<'_>; 2],
        requests: &[Request],
        outcomes: &mut Vec<Reply<Found>>,
        push: impl Fn(&mut Vec<u8>, u32, &Request),
        found: impl Fn(&Answer<'_>) -> Option<Found>,
    ) {
        debug_assert!(requests.len() <= BATCH);
        outcomes.clear();
        outcomes.resize(requests.len(), Reply::Unanswered);
        self.requests.clear();
        begin(&mut self.requests, self.sequence);
        let first = self.sequence.wrapping_add(1);
        let mut sequence = first;
        for request in requests {
            push(&mut self.requests, sequence, request);
            sequence = sequence.wrapping_add(1);
        }
        end(&mut self.requests, sequence);
        self.sequence = sequence.wrapping_add(1);
        match rustix::net::send(&self.fd, &self.requests, SendFlags::empty()) {
            Ok(_) => self.collect(first, outcomes, found),
            Err(errno) => outcomes.fill(Reply::Refused(errno.raw_os_error())),
        }
    }

    fn collect<Found: Clone>(
        &mut self,
        first: u32,
        outcomes: &mut [Reply<Found>],
        found: impl Fn(&Answer<'_>) -> Option<Found>,
    ) {
        let mut open = outcomes.len();
        while open > 0 {
            let received = &mut self.received[..];
            let length = match rustix::net::recv(&self.fd, received, RecvFlags::empty()) {
                Ok((length, _)) => length,
                // Reported once when answers found no room; the others are still to be read.
                Err(Errno::NOBUFS | Errno::INTR) => continue,
                Err(_) => return,
            };
            for answer in answers(&self.received[..length]) {
                // Late answers to an earlier batch are out of range.
                let place = answer.sequence.wrapping_sub(first) as usize;
                if let Some(outcome) = outcomes.get_mut(place) {
                    *outcome = outcome_of(&answer, &found);
                    open = open.saturating_sub(1);
                }
                // Without the capability the kernel only answers the first request, for the whole
                // batch.
                if answer.errno == Errno::PERM.raw_os_error() {
                    outcomes.fill(outcome_of(&answer, &found));
                    return;
                }
            }
        }
    }
}

fn outcome_of<Found>(
    answer: &Answer<'_>,
    found: impl Fn(&Answer<'_>) -> Option<Found>,
) -> Reply<Found> {
    match answer.errno {
        0 => found(answer).map_or(Reply::Done, Reply::Found),
        errno if errno == Errno::NOENT.raw_os_error() => Reply::NotFound,
        errno => Reply::Refused(errno),
    }
}
