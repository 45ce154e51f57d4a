//! Hosts: what a device is, by the labels of its first flows.
//!
//! A bundle with a table `[hosts]` enables this. The run has one table. The thread that writes
//! records counts labels in it, so that a host's record follows the label that caused it; if no
//! records are written, a separate thread does ([`control`]). The data path does no extra work.

mod control;
mod evidence;
mod table;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use accel::HostLabels;
use config::{Config, Network};
use dataplane::tasks::OpenTask;
use flowmgr::TaskId;
use flowmgr::record::Record;

pub use control::Hosts;
pub use table::HostRecord;
use table::{HOSTS_MAX, HostFlow, HostTable};

/// The hosts of a run, shared by the thread that counts labels and the control thread.
#[derive(Clone, Debug)]
pub struct SharedHosts {
    table: Arc<Mutex<HostTable>>,
    /// The task whose labels count.
    pub task: TaskId,
    networks: Arc<[Network]>,
}

impl SharedHosts {
    /// No hosts yet; `None`: the bundle of the task does not ask for host labels.
    pub fn from_config(config: &Config, tasks: &[OpenTask]) -> Option<SharedHosts> {
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
        SharedHosts {
            table: Arc::new(Mutex::new(HostTable::new(rules, labels, most))),
            task: TaskId::FIRST,
            networks: networks.into(),
        }
    }

    /// Counts what a record says of a host; returns the host if that changes its name.
    pub fn take(&self, record: &Record) -> Option<HostRecord> {
        let flow = self.flow_of(record)?;
        self.lock().take(&flow)
    }

    /// The class of a host, where it has one.
    pub fn class_of(&self, host: IpAddr) -> Option<u16> {
        self.lock().name(host)
    }

    fn flow_of(&self, record: &Record) -> Option<HostFlow> {
        HostFlow::from_record(record, self.task, &self.networks)
    }

    fn lock(&self) -> MutexGuard<'_, HostTable> {
        // A table that a panic left half-changed has a wrong sum at worst.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The host of a flow. Where `networks` are configured, its originator if that is in one of them,
/// else its responder if that is. Where none are, its originator; or its responder, if that has a
/// private address and the originator does not. So a connection from outside speaks for the host
/// inside. `None`: neither end is in a network, or the originator has no address of its own, as
/// before DHCP has given it one.
pub fn host_of(originator: IpAddr, responder: IpAddr, networks: &[Network]) -> Option<IpAddr> {
    if !is_of_a_host(originator) {
        return None;
    }
    let is_inside = |address: &IpAddr| {
        let is_listed = || networks.iter().any(|network| network.contains(*address));
        let is_private = || networks.is_empty() && is_private(*address);
        is_of_a_host(*address) && (is_private() || is_listed())
    };
    let inside = [originator, responder].into_iter().find(is_inside);
    inside.or(networks.is_empty().then_some(originator))
}

/// Not so groups, broadcast and the address of those that have none.
fn is_of_a_host(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !(is_broadcast || address.is_multicast() || address.is_unspecified())
}

/// Private, link-local or behind a carrier's NAT (RFC 1918, 3927, 6598, 4193, 4291).
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let [first, second, ..] = address.octets();
            let is_shared = first == 100 && second & 0xc0 == 64;
            address.is_private() || address.is_link_local() || is_shared
        }
        IpAddr::V6(address) => address.is_unique_local() || address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests_of_addresses {
    use super::*;

    fn host(originator: &str, responder: &str) -> Option<String> {
        let [originator, responder] = [originator, responder].map(|it| it.parse().unwrap());
        host_of(originator, responder, &[]).map(|address| address.to_string())
    }

    #[test]
    fn the_private_end_is_the_host() {
        for private in [
            "10.1.2.3",
            "172.31.0.1",
            "192.168.0.9",
            "169.254.7.7",
            "100.127.0.1",
            "fd00::1",
            "fe80::1",
        ] {
            let outside = if private.contains(':') { "2001:db8::1" } else { "203.0.113.1" };
            assert_eq!(host(private, outside).as_deref(), Some(private));
            assert_eq!(host(outside, private).as_deref(), Some(private));
        }
    }

    #[test]
    fn of_two_alike_it_is_the_originator() {
        let first = |originator, responder| host(originator, responder).unwrap();
        assert_eq!(first("192.168.0.9", "192.168.0.1"), "192.168.0.9");
        assert_eq!(first("203.0.113.1", "198.51.100.1"), "203.0.113.1");
        assert_eq!(first("100.128.0.1", "100.63.0.1"), "100.128.0.1");
    }

    #[test]
    fn configured_networks_decide_alone() {
        let networks = ["203.0.113.0/24", "2001:db8::/48"].map(|it| it.parse().unwrap());
        let host = |originator: &str, responder: &str| {
            let [originator, responder] = [originator, responder].map(|it| it.parse().unwrap());
            host_of(originator, responder, &networks).map(|address| address.to_string())
        };
        let inside = "203.0.113.5";
        assert_eq!(host(inside, "198.51.100.1").as_deref(), Some(inside));
        assert_eq!(host("10.0.0.1", inside).as_deref(), Some(inside));
        assert_eq!(host(inside, "203.0.113.6").as_deref(), Some(inside));
        assert_eq!(host("2001:db8:1::1", "2001:db8::1").as_deref(), Some("2001:db8::1"));
        assert_eq!(host("10.0.0.1", "198.51.100.1"), None);
    }

    #[test]
    fn groups_and_those_without_an_address_are_no_hosts() {
        assert_eq!(host("192.168.0.9", "239.255.255.250").unwrap(), "192.168.0.9");
        assert_eq!(host("fe80::1", "ff02::fb").unwrap(), "fe80::1");
        assert_eq!(host("203.0.113.1", "255.255.255.255").unwrap(), "203.0.113.1");
        assert_eq!(host("0.0.0.0", "192.168.0.1"), None);
        assert_eq!(host("::", "fe80::1"), None);
        assert_eq!(host("224.0.0.1", "192.168.0.1"), None);
    }
}
