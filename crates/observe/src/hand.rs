//! Hands a file to a process at the other end of a Unix socket, if its user may have it.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::cmsg_space;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Who gets a file over a socket.
#[derive(Clone, Debug, Default)]
pub struct Allowed {
    /// Users, by number. Root may always.
    pub users: Vec<u32>,
    /// Groups. Only a process's primary group counts, which is what the kernel tells.
    pub groups: Vec<u32>,
}

impl Allowed {
    /// Whether the peer's user or group, as the kernel knows them from the time of connecting, is
    /// allowed.
    pub fn admits(&self, socket: impl AsFd) -> io::Result<bool> {
        let peer = socket_peercred(&socket)?;
        let user = peer.uid.as_raw();
        let groups = &self.groups;
        Ok(user == 0 || self.users.contains(&user) || groups.contains(&peer.gid.as_raw()))
    }
}

/// Sends `file` with one byte, without waiting.
///
/// # Errors
/// `PermissionDenied` if the peer is not [allowed](Allowed::admits); else what the socket says.
pub fn hand_out(socket: impl AsFd, file: impl AsFd, allowed: &Allowed) -> io::Result<()> {
    if !allowed.admits(&socket)? {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let files = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&files));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(b"F")], &mut control, flags)?;
    Ok(())
}

/// Receives a file that [`hand_out`] sent.
///
/// # Errors
/// `UnexpectedEof` if the peer sent none; else what the socket says.
pub fn receive(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [IoSliceMut::new(&mut byte)];
    recvmsg(socket, &mut bytes, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    files.flatten().next().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
