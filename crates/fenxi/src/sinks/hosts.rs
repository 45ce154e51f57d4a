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

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use accel::HostLabels;
use config::{Config, Network};
use dataplane::tasks::OpenTask;
use flowmgr::TaskId;
use flowmgr::record::Record;

pub use address::host_of;
pub use control::Hosts;
pub use table::HostRecord;
use table::{HOSTS_MAX, HostFlow, HostState, HostSums, HostTable};

/// The hosts of a run, shared by the thread that counts labels and the control thread.
#[derive(Clone, Debug)]
pub struct SharedHosts {
    table: Arc<Mutex<HostTable>>,
    /// The task whose labels count.
    task: TaskId,
    /// Where hosts are, if that is configured.
    networks: Arc<[Network]>,
    /// Labelled flows that found the queue of the thread full.
    dropped: Arc<AtomicU64>,
}

impl SharedHosts {
    /// No hosts yet; `None`: the bundle of the task does not ask for host labels.
    pub fn of(config: &Config, tasks: &[OpenTask]) -> Option<SharedHosts> {
        let number = config.task_number(config.host_task.as_deref());
        let (bundle, networks) = (&tasks.get(number)?.bundle, &config.host_networks);
        let labels = bundle.labels().len();
        let hosts = SharedHosts::new(bundle.hosts()?, labels, networks, HOSTS_MAX);
        Some(SharedHosts { task: TaskId(number as u8), ..hosts })
    }

    fn new(
        rules: &HostLabels,
        labels: usize,
        networks: &[Network],
        most: NonZeroUsize,
    ) -> SharedHosts {
        let table = HostTable::new(rules, labels, most);
        SharedHosts {
            table: Arc::new(Mutex::new(table)),
            task: TaskId::FIRST,
            networks: networks.into(),
            dropped: Arc::default(),
        }
    }

    /// Counts what a record says of a host; returns the host if that changes its name.
    pub fn take(&self, record: &Record) -> Option<HostRecord> {
        let flow = self.flow_of(record)?;
        self.lock().take(&flow)
    }

    fn flow_of(&self, record: &Record) -> Option<HostFlow> {
        HostFlow::of(record, self.task, &self.networks)
    }

    fn take_flow(&self, flow: &HostFlow) {
        self.lock().take(flow);
    }

    fn drop_flow(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// The task whose labels count.
    pub fn task(&self) -> TaskId {
        self.task
    }

    fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn sums(&self) -> HostSums {
        self.lock().sums()
    }

    fn name(&self, host: IpAddr) -> Option<u16> {
        self.lock().name(host)
    }

    /// Those that `is_wanted`, latest labels first.
    fn states(&self, is_wanted: impl Fn(&HostState) -> bool, most: usize) -> Vec<HostState> {
        let table = self.lock();
        let states = table.states().filter(is_wanted);
        states.take(most).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HostTable> {
        // A table that a panic left half-changed has a wrong sum at worst.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
