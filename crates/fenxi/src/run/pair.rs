//! Locks the two interfaces of mode inline: two runs between the same pair would send every frame
//! twice.
//!
//! A run claims the pair with listening Unix sockets that have abstract names. Such a name belongs
//! to the network namespace, like the interfaces, and disappears with the process, however it ends.
//! If the name is taken, the kernel knows which process listens.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netdevice::{index_to_name, name_to_index};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use tokio::net::UnixStream;
use tokio::net::unix::UCred;
use tokio::runtime::Builder;
use tracing::warn;

use crate::exit::Failure;
use config::checked::{Io, IoMode};

/// Backlog of connections that query the listener's credentials; they are never accepted.
const BACKLOG: i32 = 4096;

/// Claims the pair until it is dropped.
pub struct Pair(#[expect(dead_code, reason = "held, not used")] Vec<OwnedFd>);

/// Claims the pair of interfaces for this run; does nothing in other modes.
///
/// # Errors
/// 69: another run has claimed it.
pub fn hold(io: &Io) -> Result<Option<Pair>, Failure> {
    let [one, other] = io.interfaces.as_slice() else { return Ok(None) };
    // A device that is no interface belongs to one process, whatever its name.
    if io.mode != IoMode::Inline || io.backend.devices.is_some() {
        return Ok(None);
    }
    let mut held = Vec::new();
    for name in names(one, other) {
        match take(&name) {
            Ok(socket) => held.push(socket),
            Err(Errno::ADDRINUSE) => {
                let holder = holder(&name);
                if let Some(stranger) = holder.filter(|it| !may_hold(it)) {
                    // Any user may take such a name; that must not keep this run from starting.
                    let user = stranger.uid();
                    warn!(
                        "{one} and {other}: ignoring a claim on this pair by user {user}, who is \
                        not fenxi's user"
                    );
                    continue;
                }
                return Err(taken(one, other, holder));
            }
            // The lock only protects against a mistake, so the run starts without it.
            Err(error) => warn!("{one} and {other}: cannot lock the pair: {error}"),
        }
    }
    Ok(Some(Pair(held)))
}

/// The pair by its interfaces' names, because one that goes and comes back has another number; and
/// by their numbers, because an interface may have several names.
fn names(one: &str, other: &str) -> Vec<String> {
    let number = |name: &str| {
        let (kind, flags) = (SocketType::DGRAM, SocketFlags::CLOEXEC);
        let query = socket_with(AddressFamily::INET, kind, flags, None).ok()?;
        let index = name_to_index(&query, name).ok()?;
        let name = index_to_name(&query, index).ok()?;
        Some((index.to_string(), name))
    };
    match (number(one), number(other)) {
        (Some((one, first)), Some((other, second))) => {
            vec![pair("name", first, second), pair("number", one, other)]
        }
        // The open that follows reports the error.
        _ => vec![pair("name", one.to_owned(), other.to_owned())],
    }
}

fn pair(by: &str, one: String, other: String) -> String {
    let mut pair = [one, other];
    pair.sort();
    let [one, other] = pair;
    format!("fenxi inline by {by}: {one} {other}")
}

fn take(name: &str) -> Result<OwnedFd, Errno> {
    let socket = unix()?;
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// The process that listens, if known. By tokio, which handles that a process in another PID
/// namespace has no number here (rustix 1.1 does not).
fn holder(name: &str) -> Option<UCred> {
    let socket = unix().ok()?;
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?;
    connect(&socket, &address).ok()?;
    let runtime = Builder::new_current_thread().enable_io().build().ok()?;
    let _inside = runtime.enter();
    let stream = UnixStream::from_std(socket.into()).ok()?;
    stream.peer_cred().ok()
}

fn unix() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn may_hold(holder: &UCred) -> bool {
    holder.uid() == 0 || holder.uid() == rustix::process::geteuid().as_raw()
}

fn taken(one: &str, other: &str, holder: Option<UCred>) -> Failure {
    let twice = "and two instances would send every frame twice";
    Failure::unavailable(match holder.and_then(|holder| holder.pid()) {
        Some(pid) => format!(
            "{one} and {other}: process {pid} already runs fenxi inline between them, {twice}; \
            stop it first: kill {pid}"
        ),
        // The process is in another PID namespace.
        None => format!(
            "{one} and {other}: another process already runs fenxi inline between them, {twice}; \
            stop it first"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_has_one_name_whatever_its_order() {
        let names = names("no such b", "no such a");
        assert_eq!(names, ["fenxi inline by name: no such a no such b"]);
        assert_eq!(names, super::names("no such a", "no such b"));
        assert_eq!(
            super::names("lo", "lo"),
            ["fenxi inline by name: lo lo", "fenxi inline by number: 1 1"]
        );
    }

    #[test]
    fn a_name_is_held_until_its_socket_goes() {
        let name = format!("fenxi test {}", std::process::id());
        let held = take(&name).unwrap();
        assert_eq!(take(&name).err(), Some(Errno::ADDRINUSE));
        let holder = holder(&name).unwrap();
        assert_eq!(holder.pid(), Some(std::process::id() as i32));
        assert!(may_hold(&holder));
        let failure = taken("l", "r", Some(holder));
        assert_eq!(failure.code(), 69);
        drop(held);
        take(&name).unwrap();
    }
}
