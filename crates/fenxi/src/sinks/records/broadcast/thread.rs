//! The thread that accepts readers and writes to them.

use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use super::Shared;
use super::reader::Reader;

/// Pause when no connection can be taken, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Until the end: waits for readers that come, go, or can take more.
pub(super) fn serve(shared: &Shared, listener: &UnixListener) {
    while !shared.is_ending.load(Ordering::Acquire) {
        wait(shared, listener);
        let _ = rustix::io::read(&shared.wake, &mut [0_u8; 8]);
        accept(shared, listener);
        write(shared);
    }
    let left: u64 = shared.readers().drain(..).map(|it| it.unread()).sum();
    shared.lost.fetch_add(left, Ordering::Relaxed);
}

/// Sleeps until something is to be done. The sockets are polled by copies, since readers are
/// shared while this sleeps.
fn wait(shared: &Shared, listener: &UnixListener) {
    let copy =
        |reader: &Reader| Some((reader.as_fd().try_clone_to_owned().ok()?, reader.is_idle()));
    let readers: Vec<(OwnedFd, bool)> = shared.readers().iter().filter_map(copy).collect();
    let mut polled = vec![
        PollFd::from_borrowed_fd(shared.wake.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
    ];
    polled.extend(readers.iter().map(|(socket, is_idle)| {
        let events = match is_idle {
            // That the reader is gone is reported in any case.
            true => PollFlags::empty(),
            false => PollFlags::OUT,
        };
        PollFd::from_borrowed_fd(socket.as_fd(), events)
    }));
    // A signal that interrupts it is no reason to stop.
    let _ = poll(&mut polled, None);
}

/// Takes all readers that wait; those beyond the bound are turned away.
fn accept(shared: &Shared, listener: &UnixListener) {
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                let mut readers = shared.readers();
                if readers.len() < shared.limits.readers {
                    readers.push(Reader::new(stream));
                } else {
                    shared.refused.fetch_add(1, Ordering::Relaxed);
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => {
                std::thread::sleep(ACCEPT_PAUSE);
                return;
            }
        }
    }
}

/// Writes to all readers what they take, and lets go of those that are gone.
fn write(shared: &Shared) {
    let (mut sent, mut lost) = (0, 0);
    shared.readers().retain_mut(|reader| {
        match reader.write() {
            Ok(lines) => sent += lines,
            Err(_) => {
                lost += reader.unread();
                return false;
            }
        }
        let is_there = !is_gone(reader);
        lost += if is_there { 0 } else { reader.unread() };
        is_there
    });
    shared.sent.fetch_add(sent, Ordering::Relaxed);
    shared.lost.fetch_add(lost, Ordering::Relaxed);
}

/// Whether the other end is closed, rather than only done with sending.
fn is_gone(reader: &Reader) -> bool {
    let mut polled = [PollFd::new(reader, PollFlags::empty())];
    let found = poll(&mut polled, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }));
    found.is_ok_and(|found| found > 0)
        && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}
