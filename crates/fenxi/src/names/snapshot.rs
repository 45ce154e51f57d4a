//! The hosts at one moment.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::{Host, Mac};

/// What leases, files and neighbours said at one moment. It never changes, so a thread may hold it
/// while the next one is made.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Grows with each change.
    pub version: u64,
    hosts: Vec<Arc<Host>>,
    by_address: HashMap<IpAddr, usize>,
    /// By name in lower case, whole and up to its first dot.
    by_name: HashMap<String, Vec<usize>>,
}

impl Snapshot {
    /// The snapshot of these hosts; `None`: they are the same.
    pub(super) fn next(&self, hosts: Vec<Host>) -> Option<Snapshot> {
        if self.hosts.iter().map(Arc::as_ref).eq(&hosts) {
            return None;
        }
        let mut next = Snapshot { version: self.version + 1, ..Snapshot::default() };
        for (number, host) in hosts.iter().enumerate() {
            next.by_address.extend(host.addresses.iter().map(|address| (*address, number)));
            let Some(name) = &host.name else { continue };
            let name = name.to_lowercase();
            if let Some((first, _)) = name.split_once('.') {
                next.by_name.entry(first.to_owned()).or_default().push(number);
            }
            next.by_name.entry(name).or_default().push(number);
        }
        next.hosts = hosts.into_iter().map(Arc::new).collect();
        Some(next)
    }

    /// All hosts, by name, those without one last.
    pub fn hosts(&self) -> &[Arc<Host>] {
        &self.hosts
    }

    /// The host with this address.
    pub fn host(&self, address: IpAddr) -> Option<&Arc<Host>> {
        self.by_address.get(&address).map(|&number| &self.hosts[number])
    }

    /// The addresses of a host by its name or by its MAC address.
    pub fn addresses_of(&self, host: &str) -> Vec<IpAddr> {
        match host.parse::<Mac>() {
            Ok(mac) if host.contains(':') => {
                let hosts = self.hosts.iter().filter(|host| host.mac == Some(mac));
                hosts.flat_map(|host| host.addresses.iter().copied()).collect()
            }
            _ => self.addresses(host),
        }
    }

    /// The addresses of all hosts called so, in upper or lower case; the first label of a name with
    /// dots is enough. Hosts that `/etc/hosts` calls so keep out others, since a client can choose
    /// the name in its lease.
    fn addresses(&self, name: &str) -> Vec<IpAddr> {
        let numbers = self.by_name.get(&name.to_lowercase());
        let hosts = || numbers.into_iter().flatten().map(|&number| &self.hosts[number]);
        let is_in_file = hosts().any(|host| host.is_named_by_file);
        let hosts = hosts().filter(|host| host.is_named_by_file == is_in_file);
        hosts.flat_map(|host| host.addresses.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, addresses: &[&str]) -> Host {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        Host { name: super::super::host::name(name), addresses, ..Host::default() }
    }

    #[test]
    fn a_client_does_not_take_a_name_of_etc_hosts() {
        let nas = Host { is_named_by_file: true, ..host("nas.lan", &["10.0.0.9", "fd00::9"]) };
        let forged = [host("nas", &["10.0.0.66"]), host("nas.lan", &["10.0.0.67"])];
        let hosts = [vec![nas.clone()], forged.to_vec()].concat();
        let snapshot = Snapshot::default().next(hosts).unwrap();
        for name in ["nas", "NAS.lan"] {
            assert_eq!(snapshot.addresses_of(name), nas.addresses, "{name}");
        }
    }

    #[test]
    fn hosts_are_found_by_address_and_by_name() {
        let hosts = vec![
            host("Laptop.lan", &["10.0.0.5", "fd00::5"]),
            host("laptop.guests", &["10.1.0.5"]),
            host("", &["10.0.0.7"]),
        ];
        let first = Snapshot::default().next(hosts.clone()).unwrap();
        assert_eq!(first.version, 1);
        let laptop = first.host("fd00::5".parse().unwrap()).unwrap();
        assert_eq!(laptop.addresses.len(), 2);
        assert!(first.host("10.0.0.9".parse().unwrap()).is_none());
        assert_eq!(first.addresses("LAPTOP.LAN"), laptop.addresses);
        assert_eq!(first.addresses("laptop").len(), 3);
        assert_eq!(first.addresses("lan"), Vec::<IpAddr>::new());
        assert!(first.next(hosts).is_none(), "nothing has changed");
        let none = first.next(Vec::new()).unwrap();
        assert_eq!((none.version, none.hosts().len()), (2, 0));
    }
}
