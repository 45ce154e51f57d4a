//! Names of hosts: what the machines behind addresses are called.
//!
//! A thread reads DHCP leases, `/etc/hosts` and the kernel's table of neighbours, and joins what
//! they say into [`Host`]s: the IPv4 and IPv6 addresses of a machine are one host. It publishes
//! each change as a [`Snapshot`], which everybody else only reads. Names that answers on the wire
//! give to addresses are kept apart ([`Seen`]): anybody can forge them, so they are shown, and
//! rules never use them.

mod host;
mod hosts_file;
mod join;
mod leases;
mod reader;
mod section;
mod seen;
mod snapshot;
mod source;
mod vendors;
mod wire;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use host::{Host, Mac};
pub use reader::{Opened, Reading, open};
pub use section::NamesKeys;
pub use seen::Seen;
pub use snapshot::Snapshot;

/// The names that a run knows, shared by the thread that reads them and everybody who asks. A run
/// that reads none, such as a replay, has an empty one.
#[derive(Clone, Debug, Default)]
pub struct Names(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    snapshot: Mutex<Arc<Snapshot>>,
    seen: Mutex<Seen>,
}

impl Names {
    /// What leases, files and neighbours say now.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        locked(&self.0.snapshot).clone()
    }

    /// What to call an address: the name of its host, else the name that an answer on the wire gave
    /// it.
    pub fn name(&self, address: IpAddr) -> Option<Arc<str>> {
        self.name_by(&self.snapshot(), address)
    }

    /// As [`Names::name`], with the hosts of this snapshot: for tables.
    pub fn name_by(&self, snapshot: &Snapshot, address: IpAddr) -> Option<Arc<str>> {
        let host = snapshot.host(address);
        host.and_then(|host| host.name.clone()).or_else(|| self.seen().name(address))
    }

    /// The names that answers on the wire gave.
    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        locked(&self.0.seen)
    }

    /// Makes these the hosts, if they differ from those before; whether they do. One thread does
    /// so, and others wait only while it exchanges the snapshots.
    pub fn publish(&self, hosts: Vec<Host>) -> bool {
        let Some(next) = self.snapshot().next(hosts) else { return false };
        let next = Arc::new(next);
        let old = std::mem::replace(&mut *locked(&self.0.snapshot), next);
        drop(old);
        true
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Replaced as a whole, so a panic elsewhere spoils nothing.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
