//! Which flows belong to a service, apart from the addresses of its servers, and how its traffic is
//! divided.

use cring::TASKS_MAX;
use observe::Egress;

use super::egress;
use crate::ids::TaskId;
use crate::key::Key;

/// Which flows belong to a service, besides the address of the server. All conditions have to hold;
/// an empty list holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceFlows {
    /// Ports of the server.
    pub ports: Vec<u16>,
    /// IP protocol number; `None`: TCP and UDP.
    pub protocol: Option<u8>,
    /// Ports where the flow's first packet was seen, see [`crate::Manager::receive_from`].
    pub in_ports: Vec<u8>,
    /// VLANs of the outermost tag of the flow's first frame.
    pub vlans: Vec<u16>,
    /// Names of the flow's rule.
    pub rules: Vec<RuleTerm>,
    /// Labels of the flow.
    pub labels: Vec<LabelTerm>,
    /// How traffic is divided.
    pub egress: EgressBy,
}

/// How a service's traffic is divided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum EgressBy {
    /// By address of the server.
    #[default]
    Address,
    /// By address and port of the server.
    Socket,
    /// By the neighbour that the client's packets go to: the MAC address of the first such frame
    /// that counts.
    NextHop,
    /// By the interface that the client's packets leave by: the other one of two, whose indices
    /// are these, in the order of the ports; 0 where there is none.
    OutPort([u32; 2]),
}

/// A condition on the name of a flow's rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleTerm {
    /// Hashes of names, by [`name_hash`].
    pub names: Vec<u64>,
    /// Whether the rule has to have one of them, or none.
    pub is_one: bool,
}

/// A condition on the label of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelTerm {
    /// The task.
    pub task: TaskId,
    /// By class, whether it is wanted.
    pub is_wanted: Vec<bool>,
}

/// A hash of a rule's name (FNV-1a), by which the walk tells names apart.
pub fn name_hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Holds {
    Yes,
    /// It may, once more is known of the flow.
    NotYet,
    No,
}

impl Holds {
    fn of(holds: bool) -> Holds {
        if holds { Holds::Yes } else { Holds::No }
    }
}

/// What is known of a flow that waits for its service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub key: Key,
    /// Forward packets go from the key's low end.
    pub is_low_forward: bool,
    /// The flow may have begun before its first packet was seen.
    pub is_midstream: bool,
    pub in_port: u8,
    /// The hash of its rule's name, none without; `None`: not known yet.
    pub rule: Option<Option<u64>>,
    /// By task; `None`: not decided yet.
    pub classes: [Option<u16>; TASKS_MAX],
    /// The packet at hand; `None` at the flow's end.
    pub packet: Option<Hop>,
}

/// A packet of a flow that waits for its service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hop {
    pub direction: usize,
    pub packets: u64,
    pub bytes: u64,
    /// Its frame's VLAN, and where that goes; `None` without a frame.
    pub frame: Option<(Option<u16>, Option<[u8; 6]>)>,
}

impl ServiceFlows {
    pub(super) fn take(&self, protocol: u8, port: u16) -> bool {
        self.protocol.is_none_or(|it| it == protocol)
            && (self.ports.is_empty() || self.ports.contains(&port))
    }

    /// Whether what a flow's first packet says in its headers does not suffice.
    pub(super) fn has_more(&self) -> bool {
        self.has_conditions() || !matches!(self.egress, EgressBy::Address | EgressBy::Socket)
    }

    pub(super) fn has_conditions(&self) -> bool {
        !(self.in_ports.is_empty()
            && self.vlans.is_empty()
            && self.rules.is_empty()
            && self.labels.is_empty())
    }

    /// Whether a flow belongs to the service. `vlan`: its first frame's; `backward`: the server
    /// sent its first packet.
    pub(super) fn hold(&self, facts: &Facts, vlan: Option<u16>, backward: bool) -> Holds {
        let rules = self.rules.iter().map(|term| match facts.rule {
            None => Holds::NotYet,
            Some(name) => {
                let is_named = name.is_some_and(|name| term.names.contains(&name));
                Holds::of(is_named == term.is_one)
            }
        });
        let labels = self.labels.iter().map(|term| match facts.classes[term.task.index()] {
            None => Holds::NotYet,
            Some(class) => {
                let is_wanted = term.is_wanted.get(usize::from(class));
                Holds::of(is_wanted.copied().unwrap_or(false))
            }
        });
        let known = [
            Holds::of(self.in_ports.is_empty() || self.in_ports.contains(&facts.in_port)),
            Holds::of(self.vlans.is_empty() || vlan.is_some_and(|it| self.vlans.contains(&it))),
        ];
        let next_hop = match (&self.egress, facts.packet) {
            // Only a frame to the server says where the next hop is.
            (EgressBy::NextHop, Some(hop)) if hop.frame.is_none() => Holds::NotYet,
            (EgressBy::NextHop, Some(hop)) if (hop.direction == 1) != backward => Holds::NotYet,
            _ => Holds::Yes,
        };
        known.into_iter().chain(rules).chain(labels).fold(next_hop, Holds::max)
    }

    /// The egress of a flow; `None` where it is not known, which counts for all others.
    pub(super) fn egress(&self, facts: &Facts, backward: bool) -> Option<Egress> {
        match &self.egress {
            EgressBy::Address | EgressBy::Socket => {
                let to_server = facts.is_low_forward != backward;
                Some(egress(&facts.key, to_server, self.egress == EgressBy::Socket))
            }
            EgressBy::NextHop => {
                let (_, mac) = facts.packet?.frame?;
                mac.map(Egress::next_hop)
            }
            EgressBy::OutPort(interfaces) => {
                // The server's packet came in where the client's leave.
                let from = usize::from(facts.in_port.checked_sub(1)?);
                let to = if backward { from } else { from ^ 1 };
                let index = interfaces.get(to).filter(|index| **index != 0);
                index.map(|&index| Egress::out_port(index))
            }
        }
    }
}
