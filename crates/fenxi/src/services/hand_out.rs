//! The socket on which programs get the memory of services: a line `NAME WORKER`, one answer.

use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use observe::{Allowed, hand_out};

use crate::unix_socket::UnixSocket;

/// Connections that are taken at a time; more wait in the kernel.
const ACCEPTED_MAX: usize = 64;
/// Programs that have connected and not asked yet, at most: then the first of them is let go, so
/// that those that say nothing keep nobody from asking.
const ASKING_MAX: usize = 16;
/// A program that has not asked by then is let go.
const ASKED_WITHIN: Duration = Duration::from_secs(1);
/// A name, a number and what is between.
const QUESTION_MAX: usize = 64;

/// The socket, looked at now and then by one thread.
pub struct HandOut {
    socket: UnixSocket,
    allowed: Allowed,
    asking: Vec<Asking>,
}

struct Asking {
    stream: UnixStream,
    since: Instant,
    question: Vec<u8>,
}

impl HandOut {
    /// # Errors
    /// The listener cannot be made not to wait.
    pub fn new(socket: UnixSocket, allowed: Allowed) -> std::io::Result<HandOut> {
        socket.listener.set_nonblocking(true)?;
        Ok(HandOut { socket, allowed, asking: Vec::new() })
    }

    /// Takes connections and answers questions with what `file` says, without waiting.
    pub fn serve<'a>(&mut self, file: impl Fn(&str, usize) -> Option<BorrowedFd<'a>>) {
        for _ in 0..ACCEPTED_MAX {
            let Ok((stream, _)) = self.socket.listener.accept() else { break };
            if stream.set_nonblocking(true).is_ok() {
                self.asking.push(Asking { stream, since: Instant::now(), question: Vec::new() });
            }
        }
        let allowed = &self.allowed;
        self.asking.retain_mut(|asking| match asking.question() {
            Some((name, worker)) => {
                // Who may not have it sees the connection close, as if there were no such service.
                let file = file(&name, worker);
                let _ = file.map(|file| hand_out(asking.stream.as_fd(), file, allowed));
                false
            }
            None => asking.may_still_ask(),
        });
        self.asking.drain(..self.asking.len().saturating_sub(ASKING_MAX));
    }
}

impl Asking {
    /// The name of a service and the number of a worker, once the line is complete.
    fn question(&mut self) -> Option<(String, usize)> {
        let mut bytes = [0; QUESTION_MAX];
        match self.stream.read(&mut bytes) {
            Ok(0) => self.question.resize(QUESTION_MAX + 1, 0),
            Ok(count) => self.question.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.question.resize(QUESTION_MAX + 1, 0),
        }
        let end = self.question.iter().position(|byte| *byte == b'\n')?;
        let line = String::from_utf8_lossy(&self.question[..end]).into_owned();
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or_default().to_owned();
        let worker = words.next().map_or(Some(0), |number| number.parse().ok());
        Some((name, worker.unwrap_or(usize::MAX)))
    }

    fn may_still_ask(&self) -> bool {
        self.question.len() <= QUESTION_MAX && self.since.elapsed() < ASKED_WITHIN
    }
}
