//! Converts rules to text that parses to the same rules.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use policy::hours::Hours;
use policy::rule::{Hosts, Task, behaviour_names};
use policy::{Address, Dscp, Filter, ICMP, Ports, RuleNumber, RuleSet, TCP, UDP};

use crate::draft::Key;
use crate::values::{BYTES, RATES, TIMES, Units, quantity_text};

/// A key with the texts of its values.
type Field = (Key, Vec<String>);

/// A rule as [`crate::parse_one`] takes it: `source = "10.0.0.0/8", drop = true`. Shows at most
/// `most` values of a list and the number of others; `None`: all, so that the text can be parsed.
/// Exception: an empty set becomes `[]`, which cannot.
pub fn one(rules: &RuleSet, rule: RuleNumber, most: Option<usize>) -> String {
    let fields = fields(rules, rule);
    let is_over = |field: &&Field| OVER.contains(&field.0);
    let plain = fields
        .iter()
        .filter(|field| !is_over(field))
        .map(|(key, values)| format!("{} = {}", key.name(), toml_value(*key, values, most)));
    let mut parts: Vec<String> = plain.collect();
    let bounds = fields.iter().filter(is_over).map(|(key, values)| {
        let name = key.name().trim_start_matches("over.");
        format!("{name} = {}", toml_value(*key, values, most))
    });
    let bounds: Vec<String> = bounds.collect();
    if !bounds.is_empty() {
        parts.push(format!("over = {{ {} }}", bounds.join(", ")));
    }
    parts.join(", ")
}

const OVER: [Key; 4] = [Key::OverBytes, Key::OverPackets, Key::OverAge, Key::OverRate];

/// The keys that a rule sets, in order.
fn fields(rules: &RuleSet, rule: RuleNumber) -> Vec<Field> {
    let mut fields = Vec::new();
    let mut add = |key, values: Vec<String>| fields.push((key, values));
    if let Some(name) = rules.name(rule) {
        add(Key::Name, vec![name.to_owned()]);
    }
    let priority = rules.rules[rule as usize].rank.priority();
    if priority != 0 {
        add(Key::Priority, vec![priority.to_string()]);
    }
    let (v4, v6) = (rules.v4_of(rule), rules.v6_of(rule));
    boxes(rules, v4, v6, &mut add);
    let condition = rules.condition(rule);
    if !condition.labels.is_empty() {
        let (key, values) = labels(&condition.labels);
        add(key, values);
    }
    if condition.behaviours != 0 {
        let names = behaviour_names(condition.behaviours);
        add(Key::Behaviour, names.map(str::to_owned).collect());
    }
    if !condition.hosts.is_empty() {
        add(Key::Host, hosts(&condition.hosts).collect());
    }
    if !condition.vlans.is_empty() {
        add(Key::Vlan, condition.vlans.iter().map(vlans).collect());
    }
    if condition.dscps != 0 {
        add(Key::DscpSeen, dscps(condition.dscps).collect());
    }
    if !condition.hours.is_empty() {
        add(Key::When, condition.hours.iter().map(Hours::to_string).collect());
    }
    if let Some(profile) = &condition.profile {
        add(Key::Profile, vec![profile.clone()]);
    }
    let over = condition.over;
    let mut bound = |key, value: Option<u64>, units: Units| {
        if let Some(value) = value {
            add(key, vec![quantity_text(value, units)]);
        }
    };
    bound(Key::OverBytes, over.bytes, BYTES);
    bound(Key::OverAge, over.age_ms, TIMES);
    bound(Key::OverRate, over.bits_per_s, RATES);
    if let Some(packets) = over.packets {
        add(Key::OverPackets, vec![packets.to_string()]);
    }
    action(rules, rule, &mut add);
    fields
}

/// Labels under their key: `volume = "huge"` for `volume.huge`.
fn labels(labels: &[String]) -> (Key, Vec<String>) {
    let bands_of = |key: Key| {
        let band =
            |label: &String| label.strip_prefix(key.name())?.strip_prefix('.').map(str::to_owned);
        Some((key, labels.iter().map(band).collect::<Option<Vec<_>>>()?))
    };
    let targets = [Key::Volume, Key::Duration, Key::Rate];
    targets.into_iter().find_map(bands_of).unwrap_or_else(|| (Key::App, labels.to_vec()))
}

fn action(rules: &RuleSet, rule: RuleNumber, add: &mut impl FnMut(Key, Vec<String>)) {
    let action = rules.action(rule);
    let mut text = |key, value: Option<String>| {
        if let Some(value) = value {
            add(key, vec![value]);
        }
    };
    text(Key::Dscp, action.dscp.map(dscp));
    let mark = action.mark.map(|mark| format!("{:#x}/{:#x}", mark.bits, mark.mask));
    text(Key::Mark, mark);
    let task = match &action.task {
        Task::AsConfigured => None,
        Task::None => Some("none".to_owned()),
        Task::Named(name) => Some(name.clone()),
    };
    text(Key::Task, task);
    text(Key::Label, action.label.clone());
    let sample = action.sample.map(|share| (f64::from(share) / 65_536.0).to_string());
    text(Key::Sample, sample);
    text(Key::Mirror, action.mirror.clone());
    text(Key::Drop, action.drop.then(|| "true".to_owned()));
}

fn dscp(dscp: Dscp) -> String {
    dscp.name().map_or_else(|| dscp.code_point().to_string(), str::to_owned)
}

/// Hosts as text.
pub fn hosts(hosts: &Hosts) -> impl Iterator<Item = String> {
    let prefixes = hosts.prefixes.iter().map(|&(address, length)| {
        prefix(address, length, if address.is_ipv4() { 32 } else { 128 })
    });
    hosts.names.iter().cloned().chain(prefixes)
}

/// VLANs as text.
pub fn vlans(vlans: &RangeInclusive<u16>) -> String {
    port_text(Ports { first: *vlans.start(), last: *vlans.end() })
}

/// The code points of a set of bits, as text.
pub fn dscps(bits: u64) -> impl Iterator<Item = String> {
    let has = move |code_point: &u8| bits >> code_point & 1 != 0;
    (0..=Dscp::MAX).filter(has).filter_map(Dscp::new).map(dscp)
}

/// The lists whose combinations are the filters.
fn boxes(
    rules: &RuleSet,
    v4: &[Filter<u32>],
    v6: &[Filter<u128>],
    add: &mut impl FnMut(Key, Vec<String>),
) {
    let v4_text = |(address, length): (u32, u8)| prefix(Ipv4Addr::from_bits(address), length, 32);
    let v6_text = |(address, length): (u128, u8)| prefix(Ipv6Addr::from_bits(address), length, 128);
    let mut sources: Vec<String> =
        distinct(v4, |it| (it.source, it.source_length)).map(v4_text).collect();
    sources.extend(distinct(v6, |it| (it.source, it.source_length)).map(v6_text));
    let mut destinations: Vec<String> =
        distinct(v4, |it| (it.destination, it.destination_length)).map(v4_text).collect();
    destinations.extend(distinct(v6, |it| (it.destination, it.destination_length)).map(v6_text));
    let any_source =
        v4.iter().all(|it| it.source_length == 0) && v6.iter().all(|it| it.source_length == 0);
    let any_destination = v4.iter().all(|it| it.destination_length == 0)
        && v6.iter().all(|it| it.destination_length == 0);
    // A side that matches everything is left out, unless it alone tells the rule's family.
    let says_family = any_destination && (v4.is_empty() || v6.is_empty());
    if !any_source || says_family {
        add(Key::Source, sources);
    }
    if !any_destination {
        add(Key::Destination, destinations);
    }
    let mut ports = |key,
                     v4_ports: &dyn Fn(&Filter<u32>) -> Ports,
                     v6_ports: &dyn Fn(&Filter<u128>) -> Ports| {
        let mut ports: Vec<Ports> =
            v4.iter().map(v4_ports).chain(v6.iter().map(v6_ports)).collect();
        ports.sort_unstable();
        ports.dedup();
        if !ports.is_empty() && ports != [Ports::ANY] {
            add(key, ports.into_iter().map(port_text).collect());
        }
    };
    ports(Key::SourcePort, &|it| it.source_ports, &|it| it.source_ports);
    ports(Key::DestinationPort, &|it| it.destination_ports, &|it| it.destination_ports);
    let first = v4.first().map(|it| (it.protocol, it.in_port));
    let Some((protocol, in_port)) = first.or(v6.first().map(|it| (it.protocol, it.in_port))) else {
        return;
    };
    if let Some(protocol) = protocol {
        add(Key::Protocol, vec![protocol_text(protocol)]);
    }
    let name = in_port.checked_sub(1).and_then(|place| rules.interfaces.get(usize::from(place)));
    if let Some(name) = name {
        add(Key::InPort, vec![name.clone()]);
    }
}

fn distinct<A: Address>(
    filters: &[Filter<A>],
    part: impl Fn(&Filter<A>) -> (A, u8),
) -> impl Iterator<Item = (A, u8)> {
    let mut parts: Vec<(A, u8)> = filters.iter().map(part).collect();
    parts.sort_unstable();
    parts.dedup();
    parts.into_iter()
}

/// A prefix as text; single addresses without a length.
fn prefix(address: impl std::fmt::Display, length: u8, most: u8) -> String {
    if length == most { address.to_string() } else { format!("{address}/{length}") }
}

/// Ports as text.
pub fn port_text(ports: Ports) -> String {
    match ports.first == ports.last {
        true => ports.first.to_string(),
        false => format!("{}-{}", ports.first, ports.last),
    }
}

/// The name of a protocol, or its number.
pub fn protocol_text(protocol: u8) -> String {
    match protocol {
        TCP => "tcp".to_owned(),
        UDP => "udp".to_owned(),
        ICMP => "icmp".to_owned(),
        number => number.to_string(),
    }
}

fn toml_value(key: Key, values: &[String], most: Option<usize>) -> String {
    let is_bare = |value: &str| match key {
        Key::Priority
        | Key::OverPackets
        | Key::Sample
        | Key::Drop
        | Key::Vlan
        | Key::SourcePort
        | Key::DestinationPort => !value.contains('-'),
        _ => false,
    };
    let text = |value: &String| if is_bare(value) { value.clone() } else { quoted(value) };
    if let [value] = values {
        return text(value);
    }
    let most = most.unwrap_or(values.len());
    let mut shown: Vec<String> = values.iter().take(most).map(text).collect();
    if values.len() > most {
        shown.push(format!("and {} more", values.len() - most));
    }
    format!("[{}]", shown.join(", "))
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                // Writing to a String cannot fail.
                let _ = write!(quoted, "\\u{:04x}", c as u32);
            }
            c => quoted.push(c),
        }
    }
    quoted + "\""
}
