//! Rules of the kernel that collide with bits of the connection mark: those that write these bits,
//! and those that compare a mark as a whole and no longer match once the bits are set.
//!
//! The rules come as the programs print them: `nft -j list ruleset`, `iptables-save`, `ip -j
//! rule`. Rules that match the bits in order to act on them are what the bits are for, and are no
//! conflict.
//!
//! Nothing here runs a program.

mod ip_rule;
mod iptables;
mod nft;
#[cfg(test)]
mod tests;

/// The bits in question.
/// The bits of connection marks that the labels of a task write.
pub struct Bits {
    /// The key of the configuration that names them.
    pub key: String,
    pub mask: u32,
    /// The values that they take.
    pub values: Vec<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// Where the rule stands: table, chain and handle.
    pub place: String,
    pub cause: String,
    /// A command that mends the rule, or shows it.
    pub remedy: String,
}

#[derive(Debug, Clone, Default)]
pub struct Ruleset {
    rules: Vec<Rule>,
    routes: Vec<ip_rule::IpRule>,
    /// Whether a rule of nftables makes the kernel track connections.
    pub tracks: bool,
    /// Rules of iptables that concern marks, of which nft prints no more than the name.
    pub unread: usize,
}

/// What a rule does with marks.
#[derive(Debug, Clone, Default)]
struct Rule {
    place: String,
    /// A command that shows it.
    show: String,
    /// What it writes to the connection's mark.
    to_connection: Vec<Written>,
    /// What it writes to the packet's mark.
    to_packet: Vec<Written>,
    /// With what it compares the connection's mark.
    connection: Vec<Compared>,
    /// With what it compares the packet's mark.
    packet: Vec<Compared>,
    /// It sees only the first packets of connections.
    is_first: bool,
}

impl Ruleset {
    /// Adds what `nft -j list ruleset` prints. Text that is no JSON has no rules.
    pub fn add_nft(&mut self, json: &str) {
        nft::read(json, self);
    }

    /// Adds what `iptables-save` prints, or another program of its family. The rules of iptables
    /// that nft could not read are then known.
    pub fn add_iptables(&mut self, program: &str, text: &str) {
        let rules = iptables::read(program, text);
        self.unread = 0;
        self.rules.extend(rules);
    }

    /// Adds what `ip -j rule` prints; `ip` is that command without the last word.
    pub fn add_ip_rules(&mut self, ip: &str, json: &str) {
        self.routes.extend(ip_rule::read(ip, json));
    }

    /// Bits of packets' marks that rules copy to connections.
    pub fn copied(&self) -> u32 {
        let of = |rule: &Rule| {
            let found = rule.found();
            let written = rule.to_connection.iter();
            written.fold(0, |all, it| all | it.packet | it.ones & found)
        };
        self.rules.iter().map(of).fold(0, |all, bits| all | bits)
    }

    pub fn conflicts(&self, bits: &Bits) -> Vec<Conflict> {
        // Bits that packets may have, and which of our bits may be among them.
        let (mut packet, mut ours) = (0, 0);
        for written in self.rules.iter().flat_map(|rule| &rule.to_packet) {
            packet |= written.ones;
            ours |= (written.ones | written.connection) & bits.mask;
        }
        let mut conflicts: Vec<Conflict> = self
            .rules
            .iter()
            .filter_map(|rule| {
                let cause = rule.writes(bits, packet).or_else(|| rule.misses(bits, ours))?;
                Some(Conflict { place: rule.place.clone(), cause, remedy: rule.show.clone() })
            })
            .collect();
        let routes = self.routes.iter();
        conflicts.extend(routes.filter_map(|route| route.conflict(bits, ours)));
        conflicts
    }
}

impl Rule {
    /// Bits of the packet's mark that are 1 where the rule applies: it compares them with 1, or a
    /// single one with 0 by `!=`.
    fn found(&self) -> u32 {
        let of = |it: &Compared| match it.value {
            0 if it.mask.is_power_of_two() => it.mask,
            value => value,
        };
        self.packet.iter().map(of).fold(0, |all, bits| all | bits)
    }

    fn writes(&self, bits: &Bits, packet: u32) -> Option<String> {
        let (mask, key) = (bits.mask, &bits.key);
        self.to_connection.iter().find_map(|written| {
            let copied = written.ones & self.found();
            let changed = !written.connection & !copied & mask;
            let set = (written.ones | written.packet & packet) & mask;
            if self.is_first && set != 0 {
                return Some(format!(
                    "sets the bits {set:#x} of new connections, within {key} = {mask:#x}: fenxi \
                     takes them for a mark that \
                     is there and leaves it; let the rule set other bits, or choose another {key}"
                ));
            }
            (!self.is_first && changed != 0).then(|| {
                format!(
                    "writes the bits {changed:#x} of connections at any time, within {key} = \
                     {mask:#x}, and with them \
                     the marks of fenxi; let the rule keep them (ct mark set ct mark & {mask:#x} | \
                     ...), or match ct state new"
                )
            })
        })
    }

    /// The rule compares the bits, but not with one of our values. `ours`: the bits that are
    /// copied into packets.
    fn misses(&self, bits: &Bits, ours: u32) -> Option<String> {
        let missed = |compared: &[Compared], reach: u32| {
            let mut compared = compared.iter();
            compared.find(|it| it.is_missed(reach)).copied()
        };
        let (what, compared) = match missed(&self.connection, bits.mask) {
            Some(compared) => ("connection", compared),
            None => ("packet", missed(&self.packet, ours)?),
        };
        Some(format!(
            "compares bits of the {what}'s mark that fenxi writes with {:#x}, which never matches \
             once a connection has a label; \
             compare under the mask {:#x}",
            compared.value,
            compared.mask & !bits.mask
        ))
    }
}

/// A value that is written to a mark. A bit that is in none of these is written as 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Bits copied from the connection's mark, in their places.
    pub connection: u32,
    /// Bits copied from the packet's mark, in their places.
    pub packet: u32,
    /// Bits that may be 1 for another reason.
    pub ones: u32,
}

impl Written {
    /// Nothing is known of the value.
    pub const ANYTHING: Written = Written::constant(u32::MAX);
    /// The connection's mark as it is.
    pub const CONNECTION: Written = Written { connection: u32::MAX, packet: 0, ones: 0 };
    /// The packet's mark as it is.
    pub const PACKET: Written = Written { connection: 0, packet: u32::MAX, ones: 0 };

    pub const fn constant(ones: u32) -> Written {
        Written { connection: 0, packet: 0, ones }
    }

    pub fn and(self, mask: u32) -> Written {
        Written {
            connection: self.connection & mask,
            packet: self.packet & mask,
            ones: self.ones & mask,
        }
    }

    /// Sets or flips bits, which are then nobody else's.
    pub fn or(self, bits: u32) -> Written {
        Written { ones: self.ones | bits, ..self.and(!bits) }
    }
}

/// Bits of a mark that are compared with a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compared {
    pub mask: u32,
    pub value: u32,
}

impl Compared {
    /// Whether the comparison looks at bits of `ours` and expects all of them to be 0. A
    /// comparison with 0 as a whole asks whether there is any mark, and is meant so.
    pub fn is_missed(&self, ours: u32) -> bool {
        self.mask & ours != 0 && self.value != 0 && self.value & ours == 0
    }

    /// Whether it holds only while all bits of `ours` are 0.
    pub fn is_unset(&self, ours: u32) -> bool {
        self.mask & ours == ours && self.value == 0
    }
}
