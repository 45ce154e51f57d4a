//! A rule as it is read, key by key, before it is expanded to filters.

use std::ops::RangeInclusive;

use policy::hours::Hours;
use policy::rule::{Hosts, Over, Task};
use policy::{Dscp, Mark, Ports};

use crate::error::{self, Problem};
use crate::limits::HOSTS_MAX;
use crate::nearest::suggest;
use crate::sets::{Members, Sets};
use crate::values::{self, BYTES, Prefix, RATES, TIMES};

/// Declares the keys, and their names in the same order.
macro_rules! keys {
    ($($key:ident $name:literal,)*) => {
        /// The keys of a rule, the same in all formats.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Key { $($key,)* }

        /// Keys by name. In TOML, keys of `over` are in a table of that name.
        pub const KEYS: &[(Key, &str)] = &[$((Key::$key, $name),)*];
    };
}

keys! {
    Name "name",
    Priority "priority",
    Source "source",
    Destination "destination",
    SourcePort "source_port",
    DestinationPort "destination_port",
    Protocol "protocol",
    InPort "in_port",
    Host "host",
    Vlan "vlan",
    DscpSeen "dscp_seen",
    App "app",
    Volume "volume",
    Duration "duration",
    Rate "rate",
    Behaviour "behaviour",
    OverBytes "over.bytes",
    OverPackets "over.packets",
    OverAge "over.age",
    OverRate "over.rate",
    When "when",
    Profile "profile",
    Dscp "dscp",
    Mark "mark",
    Task "task",
    Label "label",
    Sample "sample",
    Mirror "mirror",
    Drop "drop",
}

impl Key {
    pub fn parse(what: &'static str, name: &str) -> Result<Key, Problem> {
        let found = KEYS.iter().find(|(_, known)| *known == name);
        found.map(|(key, _)| *key).ok_or_else(|| Problem::UnknownKey {
            what,
            key: error::shown(name),
            near: suggest(name, KEYS.iter().map(|(_, known)| *known)),
        })
    }

    pub fn name(self) -> &'static str {
        KEYS[self as usize].1
    }

    pub fn takes_list(self) -> bool {
        matches!(
            self,
            Key::Source
                | Key::Destination
                | Key::SourcePort
                | Key::DestinationPort
                | Key::Host
                | Key::Vlan
                | Key::DscpSeen
                | Key::App
                | Key::Volume
                | Key::Duration
                | Key::Rate
                | Key::Behaviour
                | Key::When
        )
    }

    /// Whether an include may set it for all rules of a file.
    pub fn is_part(self) -> bool {
        self == Key::Priority || self as usize >= Key::Profile as usize
    }
}

/// Priority, profile and parts of the action; `None`: not set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parts {
    pub priority: Option<u32>,
    pub profile: Option<String>,
    pub dscp: Option<Dscp>,
    pub mark: Option<Mark>,
    pub task: Option<Task>,
    pub label: Option<String>,
    pub sample: Option<u32>,
    pub mirror: Option<String>,
    pub drop: Option<bool>,
}

impl Parts {
    pub fn or(self, other: &Parts) -> Parts {
        Parts {
            priority: self.priority.or(other.priority),
            profile: self.profile.or_else(|| other.profile.clone()),
            dscp: self.dscp.or(other.dscp),
            mark: self.mark.or(other.mark),
            task: self.task.or_else(|| other.task.clone()),
            label: self.label.or_else(|| other.label.clone()),
            sample: self.sample.or(other.sample),
            mirror: self.mirror.or_else(|| other.mirror.clone()),
            drop: self.drop.or(other.drop),
        }
    }
}

/// A rule. A list that is `None` was not set and matches everything.
#[derive(Clone, Debug, Default)]
pub struct Draft {
    pub name: Option<String>,
    pub source: Option<Vec<Prefix>>,
    pub destination: Option<Vec<Prefix>>,
    pub source_ports: Option<Vec<Ports>>,
    pub destination_ports: Option<Vec<Ports>>,
    pub protocol: Option<u8>,
    pub in_port: Option<String>,
    pub labels: Vec<String>,
    pub hosts: Hosts,
    pub vlans: Vec<RangeInclusive<u16>>,
    pub dscps: u64,
    pub behaviours: u8,
    pub over: Over,
    pub hours: Vec<Hours>,
    pub parts: Parts,
}

impl Draft {
    pub fn set(&mut self, key: Key, texts: &[&str], sets: &Sets) -> Result<(), Problem> {
        let name = key.name();
        if key.takes_list() {
            return self.set_list(key, texts, sets);
        }
        let &[text] = texts else {
            return Err(match texts.len() {
                0 => Problem::value(name, "[]", "one value"),
                count => Problem::OneValue { key: name, count },
            });
        };
        let parts = &mut self.parts;
        match key {
            Key::Name => self.name = Some(word(name, text)?),
            Key::Protocol => self.protocol = Some(values::protocol(text)?),
            Key::InPort => self.in_port = Some(word(name, text)?),
            Key::OverBytes => self.over.bytes = Some(values::quantity(name, text, BYTES)?),
            Key::OverPackets => {
                self.over.packets = Some(values::number(name, text, "a number of packets")?);
            }
            Key::OverAge => self.over.age_ms = Some(values::quantity(name, text, TIMES)?),
            Key::OverRate => self.over.bits_per_s = Some(values::quantity(name, text, RATES)?),
            Key::Priority => {
                let expected = "a whole number from 0 to 4294967295; the greater wins";
                parts.priority = Some(values::number(name, text, expected)?);
            }
            Key::Profile => parts.profile = Some(word(name, text)?),
            Key::Dscp => parts.dscp = Some(values::dscp(name, text)?),
            Key::Mark => parts.mark = Some(values::mark(text)?),
            Key::Task => {
                parts.task = Some(match text {
                    "none" => Task::None,
                    _ => Task::Named(word(name, text)?),
                });
            }
            Key::Label => parts.label = Some(word(name, text)?),
            Key::Sample => parts.sample = Some(values::sample(text)?),
            Key::Mirror => parts.mirror = Some(word(name, text)?),
            Key::Drop => parts.drop = Some(values::truth(name, text)?),
            Key::Source
            | Key::Destination
            | Key::SourcePort
            | Key::DestinationPort
            | Key::Host
            | Key::Vlan
            | Key::DscpSeen
            | Key::App
            | Key::Volume
            | Key::Duration
            | Key::Rate
            | Key::Behaviour
            | Key::When => {}
        }
        Ok(())
    }

    fn set_list(&mut self, key: Key, texts: &[&str], sets: &Sets) -> Result<(), Problem> {
        let name = key.name();
        if texts.is_empty() {
            return Err(Problem::EmptyList { key: name });
        }
        let ports = || texts.iter().map(|text| values::ports(name, text)).collect::<Result<_, _>>();
        match key {
            Key::Source => self.source = Some(prefixes(name, texts, sets)?),
            Key::Destination => self.destination = Some(prefixes(name, texts, sets)?),
            Key::SourcePort => self.source_ports = Some(ports()?),
            Key::DestinationPort => self.destination_ports = Some(ports()?),
            Key::Host => self.hosts = hosts(name, texts, sets)?,
            Key::Vlan => {
                let vlans = texts.iter().map(|text| values::vlans(name, text));
                self.vlans = vlans.collect::<Result<_, _>>()?;
                self.vlans.sort_unstable_by_key(|vlans| (*vlans.start(), *vlans.end()));
                self.vlans.dedup();
            }
            Key::DscpSeen => {
                for text in texts {
                    self.dscps |= 1 << values::dscp(name, text)?.code_point();
                }
            }
            Key::When => {
                let hours = texts.iter().map(|text| values::hours(name, text));
                self.hours = hours.collect::<Result<_, _>>()?;
            }
            Key::Behaviour => {
                for text in texts {
                    self.behaviours |= values::behaviour(name, text)?;
                }
            }
            _ if !self.labels.is_empty() => return Err(Problem::AppTwice),
            _ => {
                let labels = texts.iter().map(|text| {
                    let label = word(name, text)?;
                    Ok(match key {
                        Key::App => label,
                        // A band.
                        target => format!("{}.{label}", target.name()),
                    })
                });
                self.labels = labels.collect::<Result<_, _>>()?;
                self.labels.sort_unstable();
                self.labels.dedup();
            }
        }
        Ok(())
    }
}

/// Hosts by name or address, and the members of sets.
fn hosts(key: &'static str, texts: &[&str], sets: &Sets) -> Result<Hosts, Problem> {
    let mut members = Members::default();
    for text in texts {
        match text.strip_prefix('@') {
            Some(name) => members.extend(sets.get(key, name)?),
            None => members.add(key, text)?,
        }
    }
    let mut hosts = Hosts {
        prefixes: members.prefixes.iter().map(|prefix| prefix.parts()).collect(),
        names: members.names,
    };
    hosts.prefixes.sort_unstable();
    hosts.prefixes.dedup();
    hosts.names.sort_unstable();
    hosts.names.dedup();
    match hosts.prefixes.len() + hosts.names.len() <= HOSTS_MAX {
        true => Ok(hosts),
        false => Err(Problem::TooManyHosts),
    }
}

fn prefixes(key: &'static str, texts: &[&str], sets: &Sets) -> Result<Vec<Prefix>, Problem> {
    let mut found = Vec::with_capacity(texts.len());
    for text in texts {
        match text.strip_prefix('@') {
            Some(name) => {
                let Members { prefixes, names } = sets.get(key, name)?;
                if let Some(host) = names.first() {
                    let (key, set, host) = (key, name.to_owned(), host.clone());
                    return Err(Problem::NamesInSet { key, set, host });
                }
                found.extend_from_slice(prefixes);
            }
            None => found.push(values::prefix(key, text)?),
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// A name that can be a value in a CSV cell.
pub fn word(key: &'static str, text: &str) -> Result<String, Problem> {
    const MOST: usize = 100;
    let has_length = !text.is_empty() && text.len() <= MOST && text.trim() == text;
    match has_length && !text.contains(|c: char| c.is_control() || c == ';') {
        true => Ok(text.to_owned()),
        false => {
            let expected =
                "a name of 1 to 100 bytes, without spaces around it, control characters and ;";
            Err(Problem::value(key, text, expected))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stands_at_its_place() {
        for (place, (key, name)) in KEYS.iter().copied().enumerate() {
            assert_eq!((key as usize, key.name()), (place, name));
            assert_eq!(Key::parse("key", name), Ok(key));
        }
        let parts = KEYS.iter().filter(|(key, _)| key.is_part()).map(|(_, name)| *name);
        assert_eq!(
            parts.collect::<Vec<_>>(),
            ["priority", "profile", "dscp", "mark", "task", "label", "sample", "mirror", "drop"]
        );
    }
}
