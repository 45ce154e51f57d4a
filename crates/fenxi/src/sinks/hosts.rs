//! Hosts: what a device is, by the labels of its first flows.
//!
//! A bundle with a table `[hosts]` enables this. The run has one table. The thread that writes
//! records counts labels in it, so that a host's record follows the label that caused it; if no
//! records are written, a separate thread does ([`control`]). The data path does no extra work.

mod address;
mod control;
mod evidence;
mod table;
#[cfg(test)]
mod tests;

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use accel::{Bundle, HostLabels};
use config::{Config, Network};
use flowmgr::record::Record;

pub use address::host_of;
pub use control::Hosts;
pub use table::HostRecord;
use table::{HOSTS_MAX, HostFlow, HostTable};

/// The hosts of a run, shared by the thread that counts labels and the control thread.
#[derive(Clone, Debug)]
pub struct SharedHosts {
    table: Arc<Mutex<HostTable>>,
    networks: Arc<[Network]>,
}

impl SharedHosts {
    /// No hosts yet; `None`: the bundle does not ask for host labels.
    pub fn of(config: &Config, bundle: &Bundle) -> Option<SharedHosts> {
        let (labels, networks) = (bundle.labels().len(), &config.host_networks);
        let hosts = bundle.hosts();
        hosts.map(|hosts| SharedHosts::new(hosts, labels, networks, HOSTS_MAX))
    }

    fn new(
        rules: &HostLabels,
        labels: usize,
        networks: &[Network],
        most: NonZeroUsize,
    ) -> SharedHosts {
        let table = Arc::new(Mutex::new(HostTable::new(rules, labels, most)));
        SharedHosts { table, networks: networks.into() }
    }

    /// Counts what a record says of a host; returns the host if that changes its name.
    pub fn take(&self, record: &Record) -> Option<HostRecord> {
        let flow = self.flow_of(record)?;
        self.lock().take(&flow)
    }

    fn flow_of(&self, record: &Record) -> Option<HostFlow> {
        HostFlow::of(record, &self.networks)
    }

    fn lock(&self) -> MutexGuard<'_, HostTable> {
        // A table that a panic left half-changed has a wrong sum at worst.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
