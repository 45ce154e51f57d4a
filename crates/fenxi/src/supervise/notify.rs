//! Messages to the service manager: datagrams to `$NOTIFY_SOCKET`, as sd_notify(3) describes them.
//!
//! Without a socket nothing is sent, and errors are ignored: the traffic matters more.

use std::ffi::OsStr;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, sendmsg_addr,
};

/// Attempts to send a descriptor while the service manager's queue is full, and the pause between.
const OFFERS: u32 = 20;
const BETWEEN_OFFERS: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub struct Notifier {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// The service manager kills the process if it gets no `WATCHDOG=1` for this long.
    pub watchdog: Option<Duration>,
}

impl Notifier {
    /// Reads `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`.
    pub fn from_environment() -> Notifier {
        let socket = std::env::var_os("NOTIFY_SOCKET").and_then(|name| open(&name));
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|us| *us > 0 && is_ours);
        Notifier { socket, watchdog: watchdog.map(Duration::from_micros) }
    }

    /// Reports the start of a reload; `READY=1` reports its end. Units of type `notify-reload` need
    /// the time.
    pub fn reloading(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let us = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={us}"));
    }

    /// Sends one message, such as `READY=1`.
    pub fn say(&self, state: &str) {
        if let Some((socket, to)) = &self.socket {
            let _ = socket.send_to_addr(state.as_bytes(), to);
        }
    }

    /// Whether there is a service manager.
    pub fn is_heard(&self) -> bool {
        self.socket.is_some()
    }

    /// Sends a message together with a descriptor.
    pub fn pass(&self, state: &str, descriptor: BorrowedFd<'_>) {
        let Some((socket, to)) = &self.socket else { return };
        let to = match (to.as_pathname(), to.as_abstract_name()) {
            (Some(path), _) => SocketAddrUnix::new(path),
            (None, name) => SocketAddrUnix::new_abstract_name(name.unwrap_or_default()),
        };
        let Ok(to) = to else { return };
        for _ in 0..OFFERS {
            let descriptors = [descriptor];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
            let text = [IoSlice::new(state.as_bytes())];
            match sendmsg_addr(socket, &to, &text, &mut control, SendFlags::NOSIGNAL) {
                Err(Errno::AGAIN) => std::thread::sleep(BETWEEN_OFFERS),
                _ => return,
            }
        }
    }
}

/// Opens the socket `name`: a path, or an abstract name after an `@`.
fn open(name: &OsStr) -> Option<(UnixDatagram, SocketAddr)> {
    let to = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(name),
    };
    let socket = UnixDatagram::unbound().ok()?;
    socket.set_nonblocking(true).ok()?;
    Some((socket, to.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(to: &SocketAddr, name: &OsStr) -> String {
        let manager = UnixDatagram::bind_addr(to).unwrap();
        let notifier = Notifier { socket: open(name), watchdog: None };
        notifier.say("READY=1");
        let mut text = [0; 16];
        let bytes = manager.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..bytes]).into_owned()
    }

    #[test]
    fn by_path_and_by_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let to = SocketAddr::from_pathname(&path).unwrap();
        assert_eq!(said(&to, path.as_os_str()), "READY=1");
        let name = format!("fenxi-notify-{}", std::process::id());
        let to = SocketAddr::from_abstract_name(&name).unwrap();
        assert_eq!(said(&to, OsStr::new(&format!("@{name}"))), "READY=1");
    }
}
