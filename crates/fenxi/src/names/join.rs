//! Joins what the sources say of addresses into hosts.
//!
//! Two addresses are one host's if they have one MAC address, by a lease of DHCPv4 or the kernel's
//! neighbours, or one name in `/etc/hosts`, unless their MAC addresses differ. Names and DUIDs of
//! leases join nothing: a client chooses them, and could send another's to get its rules. So an
//! address of DHCPv6 joins its host once the machine is a neighbour with it.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use super::{Host, Mac};

/// Hosts at most, in the order of their names.
const HOSTS_MAX: usize = 16_384;
/// Addresses of a host at most: a router that answers for others looks like one host of all.
const ADDRESSES_MAX: usize = 64;

/// What a line of a source says of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    pub address: IpAddr,
    pub mac: Option<Mac>,
    pub name: Option<Arc<str>>,
}

impl Fact {
    pub fn new(address: IpAddr) -> Fact {
        Fact { address: address.to_canonical(), mac: None, name: None }
    }
}

/// Whether a host could have the address for itself.
pub fn is_of_a_host(it: IpAddr) -> bool {
    let is_broadcast = matches!(it, IpAddr::V4(address) if address.is_broadcast());
    !(is_broadcast || it.is_loopback() || it.is_multicast() || it.is_unspecified())
}

/// What is known of an address.
struct Known {
    address: IpAddr,
    mac: Option<Mac>,
    name: Option<Arc<str>>,
    /// The source of the name, by its place among the sources; 0 is `/etc/hosts`.
    named_by: usize,
    /// Another address of the same host; its own place: none.
    joined: usize,
}

/// The hosts of these sources, of which the first is `/etc/hosts`, by name, those without one last.
/// Where sources disagree on an address, the first that says something counts.
pub fn hosts(sources: &[&[Fact]]) -> Vec<Host> {
    let mut all = Addresses::default();
    for (source, facts) in sources.iter().enumerate() {
        let usable = facts.iter().filter(|fact| is_of_a_host(fact.address));
        usable.for_each(|fact| all.add(fact, source));
    }
    all.join_by_mac();
    all.join_by_name(sources.first().copied().unwrap_or_default());
    all.hosts()
}

#[derive(Default)]
struct Addresses {
    known: Vec<Known>,
    places: HashMap<IpAddr, usize>,
}

impl Addresses {
    fn add(&mut self, fact: &Fact, source: usize) {
        let place = *self.places.entry(fact.address).or_insert_with(|| {
            let (address, joined) = (fact.address, self.known.len());
            self.known.push(Known { address, mac: None, name: None, named_by: source, joined });
            joined
        });
        let known = &mut self.known[place];
        known.mac = known.mac.or(fact.mac);
        if known.name.is_none() && fact.name.is_some() {
            (known.name, known.named_by) = (fact.name.clone(), source);
        }
    }

    /// The place that stands for the host of this one.
    fn root(&mut self, mut place: usize) -> usize {
        while self.known[place].joined != place {
            // Shortens the way for those who come later.
            self.known[place].joined = self.known[self.known[place].joined].joined;
            place = self.known[place].joined;
        }
        place
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.root(one), self.root(other));
        let (root, leaf) = (one.min(other), one.max(other));
        self.known[leaf].joined = root;
    }

    fn join_by_mac(&mut self) {
        let mut of_mac: HashMap<Mac, usize> = HashMap::new();
        for place in 0..self.known.len() {
            let Some(mac) = self.known[place].mac else { continue };
            let other = *of_mac.entry(mac).or_insert(place);
            self.join(place, other);
        }
    }

    fn join_by_name(&mut self, facts: &[Fact]) {
        let mut macs: HashMap<usize, Mac> = HashMap::new();
        for place in 0..self.known.len() {
            if let Some(mac) = self.known[place].mac {
                macs.insert(self.root(place), mac);
            }
        }
        let mut of_name: HashMap<&str, usize> = HashMap::new();
        for fact in facts {
            let (Some(name), Some(&place)) = (&fact.name, self.places.get(&fact.address)) else {
                continue;
            };
            let other = *of_name.entry(name).or_insert(place);
            let (one, other) = (self.root(place), self.root(other));
            let (first, second) = (macs.get(&one).copied(), macs.get(&other).copied());
            if one == other || (first.is_some() && second.is_some()) {
                continue;
            }
            self.join(one, other);
            macs.extend(first.or(second).map(|mac| (one.min(other), mac)));
        }
    }

    fn hosts(mut self) -> Vec<Host> {
        let mut by_root: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for place in 0..self.known.len() {
            let root = self.root(place);
            by_root.entry(root).or_default().push(place);
        }
        let hosts = by_root.into_values().map(|mut places| {
            places.sort_by_key(|&place| self.known[place].address);
            let of_host = || places.iter().map(|&place| &self.known[place]);
            let named = of_host().filter(|known| known.name.is_some());
            let named = named.min_by_key(|known| known.named_by);
            Host {
                name: named.and_then(|known| known.name.clone()),
                is_named_by_file: named.is_some_and(|known| known.named_by == 0),
                mac: of_host().find_map(|known| known.mac),
                vendor: None,
                addresses: of_host().map(|known| known.address).take(ADDRESSES_MAX).collect(),
            }
        });
        let mut hosts: Vec<Host> =
            hosts.filter(|host| host.name.is_some() || host.mac.is_some()).collect();
        hosts.sort_by_cached_key(|host| {
            let name = host.name.as_ref().map(|name| name.to_lowercase());
            (name.is_none(), name, host.addresses.clone())
        });
        hosts.truncate(HOSTS_MAX);
        hosts
    }
}

#[cfg(test)]
mod tests {
    use super::super::host::name;
    use super::*;

    const MAC: &str = "00:16:3e:00:00:05";
    const OTHER: &str = "00:16:3e:00:00:06";

    fn fact(address: &str, mac: &str, name_: &str) -> Fact {
        Fact { mac: mac.parse().ok(), name: name(name_), ..Fact::new(address.parse().unwrap()) }
    }

    /// `laptop 00:16:3e:00:00:05 10.0.0.5 fd00::5`.
    fn shown(sources: &[&[Fact]]) -> Vec<String> {
        let row = |host: Host| {
            let mut row = format!("{} ", host.name.as_deref().unwrap_or("-"));
            row += &host.mac.map_or("-".to_owned(), |mac| mac.to_string());
            host.addresses.iter().for_each(|address| row += &format!(" {address}"));
            row
        };
        hosts(sources).into_iter().map(row).collect()
    }

    #[test]
    fn leases_and_neighbours_of_a_mac_address_are_one_host() {
        let leases = [fact("10.0.0.5", MAC, "laptop"), fact("10.0.0.6", OTHER, "")];
        let neighbours = [
            fact("fe80::5", MAC, ""),
            fact("fd00::5", MAC, ""),
            fact("fe80::6", OTHER, ""),
            fact("10.0.0.1", "", ""),
        ];
        assert_eq!(
            shown(&[&[], &leases, &neighbours]),
            [
                "laptop 00:16:3e:00:00:05 10.0.0.5 fd00::5 fe80::5",
                "- 00:16:3e:00:00:06 10.0.0.6 fe80::6"
            ]
        );
    }

    #[test]
    fn a_lease_of_dhcpv6_joins_its_host_once_the_machine_is_a_neighbour_with_it() {
        let leases = [fact("10.0.0.5", MAC, "laptop"), fact("fd00::5", "", "laptop")];
        assert_eq!(shown(&[&[], &leases]).len(), 2);
        let neighbours = [fact("10.0.0.5", MAC, ""), fact("fd00::5", MAC, "")];
        assert_eq!(
            shown(&[&[], &leases, &neighbours]),
            ["laptop 00:16:3e:00:00:05 10.0.0.5 fd00::5"]
        );
    }

    #[test]
    fn nobody_joins_a_host_by_its_name() {
        let file = [fact("10.0.0.5", "", "nas"), fact("fd00::5", "", "nas")];
        let leases = [
            fact("10.0.0.5", MAC, "laptop"),
            // Two that forge the names, one of them before it is a neighbour.
            fact("10.0.0.6", OTHER, "nas"),
            fact("fd00::6", "", "laptop"),
        ];
        let neighbours = [fact("fe80::6", OTHER, "")];
        assert_eq!(
            shown(&[&file, &leases, &neighbours]),
            [
                "laptop - fd00::6",
                "nas 00:16:3e:00:00:05 10.0.0.5 fd00::5",
                "nas 00:16:3e:00:00:06 10.0.0.6 fe80::6"
            ]
        );
        let by_file = hosts(&[&file, &leases, &neighbours]);
        let by_file: Vec<bool> = by_file.iter().map(|host| host.is_named_by_file).collect();
        assert_eq!(by_file, [false, true, false]);
        let split = [fact("10.0.0.5", MAC, ""), fact("fd00::5", OTHER, "")];
        assert_eq!(shown(&[&file, &split]).len(), 2);
    }

    #[test]
    fn the_first_source_names_and_a_lease_outdoes_a_neighbour() {
        let file = [fact("10.0.0.5", "", "nas"), fact("127.0.0.1", "", "localhost")];
        let leases = [fact("10.0.0.4", MAC, "DESKTOP-1"), fact("10.0.0.5", MAC, "")];
        // A repeater answers for stations behind it.
        let neighbours = [fact("10.0.0.5", OTHER, ""), fact("10.0.0.9", OTHER, "")];
        assert_eq!(
            shown(&[&file, &leases, &neighbours]),
            ["nas 00:16:3e:00:00:05 10.0.0.4 10.0.0.5", "- 00:16:3e:00:00:06 10.0.0.9"]
        );
    }

    #[test]
    fn hosts_and_their_addresses_are_bounded() {
        let address = |number: u32| IpAddr::from(std::net::Ipv4Addr::from_bits(number));
        let facts = (1..30_000).map(|number| Fact {
            mac: Some(Mac([0, 22, 62, 1, 2, (number % 2) as u8])),
            ..Fact::new(address(number))
        });
        let facts: Vec<Fact> = facts.collect();
        let joined = hosts(&[&facts]);
        assert_eq!(joined.iter().map(|host| host.addresses.len()).collect::<Vec<_>>(), [64, 64]);
        let facts = (1..30_000).map(|number| Fact {
            name: name(&format!("host{number}")),
            ..Fact::new(address(number))
        });
        let facts: Vec<Fact> = facts.collect();
        assert_eq!(hosts(&[&facts]).len(), HOSTS_MAX);
    }
}
