//! The descriptor store of a service manager of ours: what fenxi hands to it, and a next fenxi that
//! gets it, as sd_notify(3) and sd_listen_fds(3) say.
#![allow(clippy::unwrap_used, reason = "the helpers of tests may panic as the tests do")]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::Mutex;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// More than a test has.
const MOST: usize = 16;

/// A program of Python that receives descriptors by its standard input and becomes another program
/// that finds them from number 3 on. Only the process that starts can say its number in
/// `LISTEN_PID`.
const LAUNCHER: &str = "\
import os, socket, sys
names = sys.argv[1].split(':')
fds = socket.recv_fds(socket.socket(fileno=0), 1, len(names))[1]
fds = [os.dup2(os.dup2(fd, 100 + i), 100 + i) for i, fd in enumerate(fds)]
for i, fd in enumerate(fds):
    os.dup2(fd, 3 + i, inheritable=True)
    os.close(fd)
null = os.open('/dev/null', os.O_RDONLY)
os.dup2(null, 0, inheritable=True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(names)), \
LISTEN_FDNAMES=sys.argv[1])
os.execvp(sys.argv[2], sys.argv[2:])
";

/// Descriptors by name.
#[derive(Debug, Default)]
pub struct Store(Mutex<Vec<(String, OwnedFd)>>);

impl Store {
    /// The next message that is not for the store.
    pub fn hear(&self, manager: &UnixDatagram) -> io::Result<String> {
        loop {
            let (text, descriptor) = receive(manager, RecvFlags::empty())?;
            if !self.take(&text, descriptor) {
                return Ok(text);
            }
        }
    }

    /// Takes what is for the store and has come. Whether there is another message.
    pub fn take_all(&self, manager: &UnixDatagram) -> bool {
        while let Ok((text, _)) = receive(manager, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            if !is_for_store(&text) {
                return true;
            }
            let (text, descriptor) = receive(manager, RecvFlags::empty()).unwrap();
            self.take(&text, descriptor);
        }
        false
    }

    fn take(&self, text: &str, descriptor: Option<OwnedFd>) -> bool {
        if !is_for_store(text) {
            return false;
        }
        let name = text.lines().find_map(|line| line.strip_prefix("FDNAME="));
        let name = name.unwrap();
        assert!(name.len() <= 255 && !name.contains(':'), "{name}");
        assert!(name.bytes().all(|byte| (b' '..127).contains(&byte)), "{name}");
        let mut kept = self.0.lock().unwrap();
        match descriptor {
            Some(descriptor) => {
                assert_eq!(text, format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}"));
                kept.push((name.to_owned(), descriptor));
            }
            None => {
                assert_eq!(text, format!("FDSTOREREMOVE=1\nFDNAME={name}"));
                kept.retain(|(known, _)| known != name);
            }
        }
        true
    }

    /// The names of what is kept.
    pub fn names(&self) -> Vec<String> {
        let kept = self.0.lock().unwrap();
        kept.iter().map(|(name, _)| name.clone()).collect()
    }

    /// The launcher of a program that gets all of them, in another order, and its standard input.
    pub fn launcher(&self) -> (Vec<String>, UnixStream) {
        let kept = self.0.lock().unwrap();
        let names: Vec<&str> = kept.iter().rev().map(|(name, _)| name.as_str()).collect();
        let descriptors: Vec<_> = kept.iter().rev().map(|(_, it)| it.as_fd()).collect();
        let (ours, its) = UnixStream::pair().unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        let text = [IoSlice::new(b"x")];
        sendmsg(&ours, &text, &mut control, SendFlags::empty()).unwrap();
        let launcher = ["python3", "-c", LAUNCHER, &names.join(":")];
        (launcher.map(str::to_owned).into(), its)
    }
}

fn is_for_store(text: &str) -> bool {
    text.starts_with("FDSTORE")
}

fn receive(manager: &UnixDatagram, flags: RecvFlags) -> io::Result<(String, Option<OwnedFd>)> {
    let mut text = [0; 512];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = super::uninterrupted(|| {
        let into = &mut [IoSliceMut::new(&mut text)];
        Ok(recvmsg(manager, into, &mut control, flags)?)
    })?;
    let mut descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors.collect::<Vec<_>>()),
        _ => None,
    });
    let descriptor = descriptors.next().and_then(|mut all| all.pop());
    let text = String::from_utf8_lossy(&text[..received.bytes]).into_owned();
    Ok((text, descriptor))
}
