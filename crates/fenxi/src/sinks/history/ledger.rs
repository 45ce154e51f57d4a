//! Sums since the last write, by hour, label, host and service.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use config::checked::Named;
use config::{Config, Network};
use flowmgr::record::FlowRecord;
use flowmgr::wire::{ICMP, ICMPV6, TCP, UDP};

use crate::report::Volume;
use crate::services::ServiceKeys;
use crate::sinks::host_of;

/// Rows that are told apart. Beyond them a flow counts for its label only.
const ROWS_MAX: usize = 8192;
const HOUR_US: i64 = 3600 * 1_000_000;

/// What the sums of a row are of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Hours since the epoch.
    pub hour: i64,
    /// Class of the first task's model.
    pub class: Option<u16>,
    /// `None`: the hosts and services that are not told apart.
    pub of: Option<(IpAddr, Service)>,
}

/// What a host uses, or serves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// `[service.NAME]` of the configuration.
    Named(Arc<str>),
    /// Protocol, and port of the server.
    Port(u8, u16),
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Service::Named(name) => f.write_str(name),
            Service::Port(TCP, port) => write!(f, "{port}/tcp"),
            Service::Port(UDP, port) => write!(f, "{port}/udp"),
            Service::Port(ICMP | ICMPV6, _) => f.write_str("icmp"),
            Service::Port(protocol, _) => write!(f, "protocol {protocol}"),
        }
    }
}

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It counts for its host and service.
    Summed,
    /// It counts for its label only: there was no room.
    Other,
    /// There was no room for that either.
    Lost,
}

/// The hour of a time; of one before the epoch, which only a damaged capture has, the first.
pub fn hour(time_us: i64) -> i64 {
    time_us.max(0) / HOUR_US
}

pub struct Ledger {
    pub rows: HashMap<Key, Volume>,
    networks: Vec<Network>,
    services: Services,
}

impl Ledger {
    pub fn new(config: &Config, services: Services) -> Ledger {
        Ledger { rows: HashMap::new(), networks: config.host_networks.clone(), services }
    }

    pub fn take_services(&mut self, services: Services) {
        self.services = services;
    }

    /// Whether a write now would keep more rows apart.
    pub fn is_full(&self) -> bool {
        self.rows.len() >= ROWS_MAX
    }

    /// Adds what a record counts.
    pub fn add(&mut self, flow: &FlowRecord) -> Fate {
        let (key, volume) = self.row(flow);
        let other = Key { of: None, ..key };
        // While nothing can be written, hours and labels add up, too.
        let (key, fate) = match self.rows.contains_key(&key) {
            true => (key, Fate::Summed),
            false if self.rows.len() < ROWS_MAX => (key, Fate::Summed),
            false if self.rows.contains_key(&other) => (other, Fate::Other),
            false if self.rows.len() < 2 * ROWS_MAX => (other, Fate::Other),
            false => return Fate::Lost,
        };
        let sum = self.rows.entry(key).or_default();
        sum.flows += volume.flows;
        sum.packets_up += volume.packets_up;
        sum.packets_down += volume.packets_down;
        sum.bytes_up += volume.bytes_up;
        sum.bytes_down += volume.bytes_down;
        fate
    }

    fn row(&self, flow: &FlowRecord) -> (Key, Volume) {
        let (source, destination) = (flow.flow.source, flow.flow.destination);
        let host = host_of(source.0, destination.0, &self.networks).unwrap_or(source.0);
        let [up, down] = match host == source.0 {
            true => [0, 1],
            false => [1, 0],
        };
        let (packets, bytes) = (flow.counts.packets, flow.counts.bytes);
        let volume = Volume {
            flows: u64::from(flow.is_final()),
            packets_up: packets[up],
            packets_down: packets[down],
            bytes_up: bytes[up],
            bytes_down: bytes[down],
        };
        // A flow that was not seen from its beginning may have begun at either end.
        let server = match flow.midstream && source.1 < destination.1 {
            true => source,
            false => destination,
        };
        let service = self.services.of(flow.flow.protocol, server);
        let class = flow.decisions[0].map(|decision| decision.class);
        (Key { hour: hour(flow.last_us), class, of: Some((host, service)) }, volume)
    }
}

/// The services that the configuration names.
#[derive(Clone, Default)]
pub struct Services(Vec<(Arc<str>, Named<ServiceKeys>)>);

impl Services {
    pub fn from_config(config: &Config) -> Services {
        let named = crate::services::services(config).into_iter();
        Services(named.map(|it| (it.name.as_str().into(), it)).collect())
    }

    /// The service of a server; where several name it, the one with the longest prefix.
    fn of(&self, protocol: u8, server: (IpAddr, u16)) -> Service {
        let bits = |keys: &ServiceKeys| {
            let is_any = matches!(protocol, TCP | UDP);
            let is_protocol = keys.protocol.map_or(is_any, |it| it == protocol);
            let is_port = keys.ports.is_empty() || keys.ports.contains(&server.1);
            let networks = keys.servers.iter().filter(|it| it.contains(server.0));
            networks.map(Network::bits).max().filter(|_| is_protocol && is_port)
        };
        let found = self.0.iter().filter_map(|(name, it)| Some((bits(&it.keys)?, name)));
        let longest = found.max_by_key(|(bits, _)| *bits);
        longest.map_or(Service::Port(protocol, server.1), |(_, name)| Service::Named(name.clone()))
    }
}

#[cfg(test)]
mod tests;
