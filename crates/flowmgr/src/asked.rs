//! Which flows a task is asked about, as far as the flow itself tells.
//!
//! This is looked up once for each task and flow, when the series is complete. By then it is all
//! fixed: the flow's first packet gives the ends, the protocol and the interface. Rules are left to
//! [`crate::RuleAnswer`], labels of other tasks to the analytics side, which has them first.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use crate::ids::TaskId;

/// Which flows a task is asked about. All conditions must hold; an empty list, or `None`, means
/// every flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// IP protocol numbers.
    pub protocols: Vec<u8>,
    /// Ports of the server, which is the receiver of the first packet.
    pub ports: Vec<RangeInclusive<u16>>,
    /// Ports where the first packet was seen, see [`crate::Manager::receive_from`].
    pub in_ports: Vec<u8>,
    /// By where the ends of the flow are.
    pub directions: Vec<Direction>,
    /// A share of the flows by a hash of the tuple, 0 to 65,536 for 0 to 1.
    pub sample: Option<u32>,
    /// Only flows whose rule says so; none while there are no rules.
    pub by_rule: bool,
    /// Tasks whose labels say, later, whether this one is asked. These tasks must be asked about
    /// the flow too, and its series must be complete for them.
    pub after: Vec<TaskId>,
}

/// Where the ends of a flow are: in the networks of [`crate::Config::inside`] or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Begun inside, to the outside.
    Out,
    /// Begun outside, to the inside.
    In,
    /// Both ends are inside.
    Inside,
    /// Both ends are outside.
    Outside,
}

impl Direction {
    fn from_ends(source_is_in: bool, destination_is_in: bool) -> Direction {
        match (source_is_in, destination_is_in) {
            (true, false) => Direction::Out,
            (false, true) => Direction::In,
            (true, true) => Direction::Inside,
            (false, false) => Direction::Outside,
        }
    }
}

/// Networks that are inside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inside(pub Vec<(IpAddr, u8)>);

impl Inside {
    /// Whether an address lies in one of the networks; where there are none, whether it is private
    /// (RFC 1918, RFC 4193), link local or loopback.
    pub fn has(&self, address: IpAddr) -> bool {
        match self.0.as_slice() {
            [] => is_private(address),
            networks => {
                networks.iter().any(|&(network, length)| is_within(address, network, length))
            }
        }
    }
}

fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            address.is_private() || address.is_link_local() || address.is_loopback()
        }
        IpAddr::V6(address) => {
            address.is_unique_local() || address.is_unicast_link_local() || address.is_loopback()
        }
    }
}

fn is_within(address: IpAddr, network: IpAddr, length: u8) -> bool {
    let (bits, differing) = match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            (32, u128::from(address.to_bits() ^ network.to_bits()))
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => (128, address.to_bits() ^ network.to_bits()),
        _ => return false,
    };
    // A shift by all bits clears everything.
    differing.checked_shr(u32::from(bits - length.min(bits))).unwrap_or(0) == 0
}

/// What a flow is, for [`Asked::holds`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject {
    pub protocol: u8,
    pub source: (IpAddr, u16),
    pub destination: (IpAddr, u16),
    pub in_port: u8,
    /// A hash of the tuple.
    pub sample: u16,
    /// TCP that was not seen from its first SYN on.
    pub is_midstream: bool,
    /// There are rules.
    pub has_rules: bool,
    /// Tasks that a rule keeps from being asked, bit n for task n; `None` without an answer.
    pub unasked: Option<u8>,
}

impl Asked {
    /// Whether the task is asked about every flow and waits for no label.
    pub fn is_always(&self) -> bool {
        *self == Asked::default()
    }

    /// Whether the flow meets the conditions, except labels of other tasks.
    pub(crate) fn holds(&self, flow: &Subject, inside: &Inside) -> bool {
        let any = |is_empty: bool, holds: &dyn Fn() -> bool| is_empty || holds();
        let (_, port) = flow.destination;
        any(self.protocols.is_empty(), &|| self.protocols.contains(&flow.protocol))
            && any(self.ports.is_empty(), &|| self.ports.iter().any(|ports| ports.contains(&port)))
            && any(self.in_ports.is_empty(), &|| self.in_ports.contains(&flow.in_port))
            && any(self.directions.is_empty(), &|| {
                let is_in = |(address, _)| inside.has(address);
                let direction = Direction::from_ends(is_in(flow.source), is_in(flow.destination));
                self.directions.contains(&direction)
            })
            && self.sample.is_none_or(|share| u32::from(flow.sample) < share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow() -> Subject {
        Subject {
            protocol: 6,
            source: ("192.168.1.7".parse().unwrap(), 40_000),
            destination: ("203.0.113.9".parse().unwrap(), 443),
            in_port: 1,
            sample: 6_553,
            is_midstream: false,
            has_rules: false,
            unasked: None,
        }
    }

    fn holds(asked: Asked) -> bool {
        asked.holds(&flow(), &Inside::default())
    }

    #[test]
    fn each_condition_alone_and_all_together() {
        assert!(holds(Asked::default()) && Asked::default().is_always());
        let yes = Asked {
            protocols: vec![17, 6],
            ports: vec![80..=80, 400..=500],
            in_ports: vec![1],
            directions: vec![Direction::Out],
            sample: Some(6_554),
            by_rule: false,
            after: Vec::new(),
        };
        assert!(holds(yes.clone()));
        let no: [fn(&mut Asked); 5] = [
            |it| it.protocols = vec![17],
            |it| it.ports = vec![444..=65_535],
            |it| it.in_ports = vec![2],
            |it| it.directions = vec![Direction::In, Direction::Inside],
            |it| it.sample = Some(6_553),
        ];
        for change in no {
            let mut asked = yes.clone();
            change(&mut asked);
            assert!(!holds(asked.clone()), "{asked:?}");
        }
    }

    #[test]
    fn networks_decide_what_is_inside_and_without_any_private_addresses() {
        let has = |networks: &[(&str, u8)], address: &str| {
            let networks = networks.iter();
            let networks = networks.map(|(network, length)| (network.parse().unwrap(), *length));
            Inside(networks.collect()).has(address.parse().unwrap())
        };
        assert!(has(&[], "10.1.2.3") && has(&[], "fd00::1") && !has(&[], "8.8.8.8"));
        let some = [("100.64.0.0", 10), ("2001:db8::", 32)];
        assert!(has(&some, "100.127.255.255") && has(&some, "2001:db8:ffff::1"));
        assert!(!has(&some, "100.128.0.0") && !has(&some, "10.0.0.1") && !has(&some, "2001:db9::"));
        assert!(has(&[("0.0.0.0", 0)], "8.8.8.8") && !has(&[("0.0.0.0", 0)], "::1"));
        assert!(has(&[("8.8.8.8", 32)], "8.8.8.8") && !has(&[("8.8.8.8", 32)], "8.8.8.9"));
    }
}
