//! Properties of network interfaces, whatever the backend: existence, link, offloads, queues.

mod offloads;
mod queues;

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::netdevice::{index_to_name, name_to_index};

pub use offloads::{MERGE_INCOMING, Offload, Offloads, SPLIT_OUTGOING};
pub use queues::{Queues, ReceiveHash};

use crate::error::{InterfaceErrorKind, OpenError, TxError};
use crate::sys::{self, Link};

/// `LINKTYPE_ETHERNET` and `LINKTYPE_RAW`.
pub(crate) const ETHERNET: u16 = 1;
pub(crate) const RAW: u16 = 101;

/// Bare IP, as of modems; libc lacks the constant.
const ARPHRD_RAWIP: u16 = 519;

/// The names of all interfaces; empty if the system does not list them.
pub fn names() -> Vec<String> {
    sys::interfaces()
}

/// Whether two names are of one interface, which may have several; `false` if either does not
/// exist.
pub fn are_one(one: &str, other: &str) -> bool {
    index_of(one).is_some_and(|it| index_of(other) == Some(it))
}

/// The number of an interface (`ifIndex`); `None` if it does not exist.
pub fn index_of(name: &str) -> Option<u32> {
    Interface::open(name).ok().map(|it| it.index)
}

/// An existing interface, and a socket for further queries.
#[derive(Debug)]
pub(crate) struct Interface {
    pub name: String,
    pub index: u32,
    pub query: OwnedFd,
    /// As last queried.
    pub link: Link,
    /// `LINKTYPE_` number of its frames.
    pub link_type: u16,
}

impl Interface {
    pub fn open(name: &str) -> Result<Self, OpenError> {
        let failed = |source: io::Error| match source.raw_os_error() {
            Some(libc::ENODEV | libc::ENXIO) => {
                OpenError::NoSuchInterface { interface: name.to_owned(), known: sys::interfaces() }
            }
            _ => system(name, "cannot be queried")(source),
        };
        let query = sys::query_socket().map_err(failed)?;
        let link = sys::link(query.as_fd(), name).map_err(failed)?;
        let index = name_to_index(&query, name).map_err(|error| failed(error.into()))?;
        let link_type = match link.hardware {
            libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => ETHERNET,
            libc::ARPHRD_NONE | ARPHRD_RAWIP => RAW,
            libc::ARPHRD_TUNNEL | libc::ARPHRD_TUNNEL6 | libc::ARPHRD_SIT => RAW,
            hardware => {
                let interface = name.to_owned();
                return Err(OpenError::UnsupportedLink { interface, hardware });
            }
        };
        Ok(Self { name: name.to_owned(), index, query, link, link_type })
    }

    /// Queries the link again. If the name now has another index, this interface is gone.
    pub fn refresh(&mut self) -> Result<Link, InterfaceErrorKind> {
        match name_to_index(&self.query, &self.name) {
            Ok(index) if index == self.index => {}
            _ => return Err(InterfaceErrorKind::Gone),
        }
        self.link =
            sys::link(self.query.as_fd(), &self.name).map_err(|_| InterfaceErrorKind::Gone)?;
        Ok(self.link)
    }

    /// The interface's new name, if it was renamed since it was opened.
    pub fn new_name(&self) -> Option<String> {
        let is_ours = name_to_index(&self.query, &self.name).is_ok_and(|it| it == self.index);
        // It may have been opened by an alternative name (`altname`), which is no rename.
        let name = index_to_name(&self.query, self.index).ok();
        name.filter(|name| !is_ours && *name != self.name)
    }

    /// A packet socket that receives nothing and keeps the interface promiscuous while it is open.
    pub fn hold_promiscuous(&self) -> Result<OwnedFd, OpenError> {
        let refused = system(&self.name, "the promiscuous mode is refused");
        let socket = sys::packet_socket().map_err(&refused)?;
        sys::be_promiscuous(socket.as_fd(), self.index).map_err(&refused)?;
        Ok(socket)
    }

    pub fn is_loopback(&self) -> bool {
        self.link.hardware == libc::ARPHRD_LOOPBACK
    }

    /// An error of sending, or the message of a receiving side that is away.
    pub fn error(&self, kind: InterfaceErrorKind) -> TxError {
        TxError { line: format!("{}: {kind}", self.name), kind }
    }
}

/// Adds the interface and the step to a system error.
pub(crate) fn system(interface: &str, step: &'static str) -> impl Fn(io::Error) -> OpenError {
    move |source| OpenError::System { interface: interface.to_owned(), step, source }
}
