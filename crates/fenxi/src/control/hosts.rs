//! Hosts as they are known by name: for `fenxi ctl hosts` and the ends of an explained flow.

use std::cmp::Reverse;
use std::net::IpAddr;

use super::flow_tables::Picture;
use crate::names::{Host, Names, Snapshot};
use crate::protocol::{HOSTS_MAX, HostRow, KnownHost};

/// What is known of the host with this address; `None`: nothing.
pub fn known(names: &Names, address: IpAddr) -> Option<KnownHost> {
    known_by(names, &names.snapshot(), address)
}

fn known_by(names: &Names, snapshot: &Snapshot, address: IpAddr) -> Option<KnownHost> {
    let host = snapshot.host(address).map(|host| of_host(host));
    let name = names.name_by(snapshot, address).map(|name| name.to_string());
    match host {
        Some(host) => Some(KnownHost { name, ..host }),
        None => name.map(|name| KnownHost { name: Some(name), ..KnownHost::default() }),
    }
}

fn of_host(host: &Host) -> KnownHost {
    KnownHost {
        name: host.name.as_deref().map(str::to_owned),
        mac: host.mac.map(|mac| mac.to_string()),
        vendor: host.vendor.as_deref().map(str::to_owned),
        addresses: host.addresses.iter().map(IpAddr::to_string).collect(),
    }
}

/// Adds what is known to rows of hosts that the model has labelled.
pub fn add_known(rows: &mut [HostRow], names: &Names) {
    let snapshot = names.snapshot();
    for row in rows {
        let address = row.address.parse().ok();
        let known = address.and_then(|address| known_by(names, &snapshot, address));
        row.known = known.unwrap_or_default();
    }
}

/// All hosts that leases, files and neighbours know, those with the most flows first.
pub fn rows(names: &Names, picture: &Picture, top: usize) -> Vec<HostRow> {
    let snapshot = names.snapshot();
    let flows = |host: &Host| {
        let sums = host.addresses.iter().filter_map(|address| picture.hosts.get(address));
        sums.map(|(sum, ..)| sum.flows as usize).sum::<usize>()
    };
    let mut hosts: Vec<(usize, &Host)> =
        snapshot.hosts().iter().map(|host| (flows(host), host.as_ref())).collect();
    // Of hosts with as many flows, the order of names stays.
    hosts.sort_by_key(|(flows, _)| Reverse(*flows));
    let row = |(flows, host): (usize, &Host)| HostRow {
        address: host.addresses[0].to_string(),
        known: of_host(host),
        label: None,
        confidence: None,
        flows,
        last: None,
    };
    hosts.into_iter().take(top.min(HOSTS_MAX)).map(row).collect()
}
