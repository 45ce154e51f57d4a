//! What conditions depend on besides the flow: the time, which profiles are on, and the addresses
//! that names of hosts stand for.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::hours::LocalTime;
use crate::rule::{Condition, Hosts};
use crate::{Address, Tuple};

/// The time in the router's place, what people have switched, and which hosts there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// The time.
    pub time: LocalTime,
    /// Profiles that are on.
    pub profiles: BTreeSet<String>,
    /// Addresses by name of a host.
    pub hosts: BTreeMap<String, Vec<IpAddr>>,
}

/// What a moment means for the conditions of rules. Without any, all count and none has hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gates {
    /// Bits by number of the condition: it holds for no flow.
    closed: Box<[u64]>,
    /// By number of the condition: the addresses of its hosts. `None`: any.
    hosts: Box<[Option<Ranges>]>,
}

/// First and last addresses, sorted and apart; IPv4 comes before IPv6.
type Ranges = Box<[(IpAddr, IpAddr)]>;

impl Moment {
    /// Whether it is within the condition's hours.
    pub fn is_within(&self, condition: &Condition) -> bool {
        let hours = &condition.hours;
        hours.is_empty() || hours.iter().any(|hours| hours.has(self.time))
    }

    /// Whether the condition's profile is on.
    pub fn has_profile(&self, condition: &Condition) -> bool {
        condition.profile.as_ref().is_none_or(|name| self.profiles.contains(name))
    }

    /// Whether an end of a flow is one of these hosts.
    pub fn has_host(&self, hosts: &Hosts, tuple: &Tuple) -> bool {
        hosts.is_empty() || is_in(&self.ranges(hosts), tuple)
    }

    fn ranges(&self, hosts: &Hosts) -> Ranges {
        let named = hosts.names.iter().filter_map(|name| self.hosts.get(name)).flatten();
        let named = named.map(|&address| range(address, 128));
        let mut ranges: Vec<_> =
            hosts.prefixes.iter().map(|&(it, length)| range(it, length)).collect();
        ranges.extend(named);
        ranges.sort_unstable();
        // A range that begins within the one before is part of it.
        ranges.dedup_by(|next, before| {
            let is_part = next.0 <= before.1;
            if is_part {
                before.1 = before.1.max(next.1);
            }
            is_part
        });
        ranges.into()
    }
}

impl Gates {
    /// The gates of conditions, which are in the order of their numbers.
    pub fn new(conditions: &[Condition], moment: &Moment) -> Gates {
        let mut closed = vec![0; conditions.len().div_ceil(64)];
        for (number, condition) in conditions.iter().enumerate() {
            if !moment.is_within(condition) || !moment.has_profile(condition) {
                closed[number / 64] |= 1 << (number % 64);
            }
        }
        let of = |condition: &Condition| {
            (!condition.hosts.is_empty()).then(|| moment.ranges(&condition.hosts))
        };
        let mut hosts: Vec<Option<Ranges>> = conditions.iter().map(of).collect();
        // Most rules have none of all this.
        closed.truncate(closed.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1));
        hosts.truncate(hosts.iter().rposition(Option::is_some).map_or(0, |last| last + 1));
        Gates { closed: closed.into(), hosts: hosts.into() }
    }

    /// Whether a condition lets a flow with this tuple in.
    #[inline]
    pub(crate) fn has(&self, condition: u32, tuple: &Tuple) -> bool {
        let word = self.closed.get(condition as usize / 64);
        let is_closed = word.is_some_and(|word| word >> (condition % 64) & 1 != 0);
        let hosts = self.hosts.get(condition as usize).and_then(Option::as_ref);
        !is_closed && hosts.is_none_or(|ranges| is_in(ranges, tuple))
    }
}

/// The addresses of a prefix.
fn range(address: IpAddr, length: u8) -> (IpAddr, IpAddr) {
    let last = match address {
        IpAddr::V4(address) => v4(address.to_bits().last(length)),
        IpAddr::V6(address) => v6(address.to_bits().last(length)),
    };
    (address, last)
}

fn v4(bits: u32) -> IpAddr {
    Ipv4Addr::from_bits(bits).into()
}

fn v6(bits: u128) -> IpAddr {
    Ipv6Addr::from_bits(bits).into()
}

fn is_in(ranges: &[(IpAddr, IpAddr)], tuple: &Tuple) -> bool {
    let ends = match *tuple {
        Tuple::V4(key) => [key.source, key.destination].map(v4),
        Tuple::V6(key) => [key.source, key.destination].map(v6),
    };
    ends.into_iter().any(|end| {
        let behind = ranges.partition_point(|&(first, _)| first <= end);
        behind.checked_sub(1).is_some_and(|place| end <= ranges[place].1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(source: &str, destination: &str) -> Tuple {
        let end = |text: &str| (text.parse().unwrap(), 1);
        Tuple::new(6, end(source), end(destination), 0).unwrap()
    }

    #[test]
    fn a_flow_is_of_a_host_whichever_side_began_it() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let hosts = Hosts {
            prefixes: vec![(address("10.0.0.0"), 30), (address("10.0.0.2"), 32)],
            names: vec!["laptop".to_owned(), "nobody".to_owned()],
        };
        let laptop = vec![address("10.0.0.9"), address("2001:db8::9")];
        let moment = Moment { hosts: [("laptop".to_owned(), laptop)].into(), ..Moment::default() };
        let with = Condition { hosts, ..Condition::default() };
        let gates = Gates::new(&[Condition::default(), with.clone()], &moment);
        for (source, destination, expected) in [
            ("10.0.0.3", "192.0.2.1", true),
            ("192.0.2.1", "10.0.0.9", true),
            ("2001:db8::1", "2001:db8::9", true),
            ("10.0.0.4", "10.0.0.8", false),
            ("::ffff:a00:9", "2001:db8::1", false),
            ("2001:db8::8", "2001:db8::a", false),
        ] {
            let tuple = tuple(source, destination);
            assert_eq!(gates.has(1, &tuple), expected, "{source} {destination}");
            assert_eq!(moment.has_host(&with.hosts, &tuple), expected);
            assert!(gates.has(0, &tuple) && gates.has(2, &tuple), "rules without hosts");
        }
        let all = |network: &str| {
            let prefixes = vec![(address(network), 0)];
            let hosts = Hosts { prefixes, names: Vec::new() };
            Gates::new(&[Condition { hosts, ..Condition::default() }], &moment)
        };
        let (v4, v6) = (tuple("10.0.0.3", "192.0.2.1"), tuple("2001:db8::8", "::"));
        for (network, expected) in [("::", [false, true]), ("0.0.0.0", [true, false])] {
            assert_eq!([v4, v6].map(|it| all(network).has(0, &it)), expected, "{network}/0");
        }
        let nobody = Gates::new(&[Condition::default(), with], &Moment::default());
        assert!(!nobody.has(1, &tuple("10.0.0.9", "10.0.0.8")));
    }
}
