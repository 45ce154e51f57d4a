//! Counts rules of each kind.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::rule::Task;
use crate::{Address, Filter, Ports, RuleSet};

/// Kinds of port ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortClass {
    /// Every port.
    Any,
    /// One port.
    One,
    /// 0 to 1023.
    Low,
    /// 1024 to 65535.
    High,
    /// Another range.
    Range,
}

impl PortClass {
    /// The kind of a range.
    pub fn new(ports: Ports) -> PortClass {
        match (ports.first, ports.last) {
            (0, u16::MAX) => PortClass::Any,
            (0, 1023) => PortClass::Low,
            (1024, u16::MAX) => PortClass::High,
            (first, last) if first == last => PortClass::One,
            _ => PortClass::Range,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            PortClass::Any => "any",
            PortClass::One => "one port",
            PortClass::Low => "0-1023",
            PortClass::High => "1024-65535",
            PortClass::Range => "range",
        }
    }
}

/// Figures of a set of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Rules.
    pub rules: usize,
    /// Filters of IPv4.
    pub v4_filters: usize,
    /// Filters of IPv6.
    pub v6_filters: usize,
    /// Distinct priorities.
    pub priorities: usize,
    /// Rules with a name.
    pub named: usize,
    /// Rules by part of their action, `none` for those without; also rules with a share.
    pub by_action: BTreeMap<&'static str, usize>,
    /// Distinct actions.
    pub actions: usize,
    /// Rules by part of their condition, `none` for those without.
    pub by_condition: BTreeMap<&'static str, usize>,
    /// Distinct conditions.
    pub conditions: usize,
    /// Filters of IPv4 by length of source and destination, most first.
    pub v4_lengths: Vec<((u8, u8), usize)>,
    /// Filters of IPv6 by length of source and destination, most first.
    pub v6_lengths: Vec<((u8, u8), usize)>,
    /// Filters by source and destination ports, most first.
    pub ports: Vec<((PortClass, PortClass), usize)>,
    /// Filters by protocol, most first.
    pub protocols: Vec<(Option<u8>, usize)>,
    /// Filters by number of the interface (0: any), most first.
    pub in_ports: Vec<(u8, usize)>,
}

#[derive(Default)]
struct FilterCounts {
    ports: HashMap<(PortClass, PortClass), usize>,
    protocols: HashMap<Option<u8>, usize>,
    in_ports: HashMap<u8, usize>,
}

/// Counts these rules.
pub fn stats(rules: &RuleSet) -> Stats {
    let mut stats = Stats {
        rules: rules.rules.len(),
        v4_filters: rules.v4.len(),
        v6_filters: rules.v6.len(),
        named: rules.names.len(),
        actions: rules.actions.len(),
        conditions: rules.conditions.iter().filter(|it| !it.is_none()).count(),
        ..Stats::default()
    };
    let priorities: BTreeSet<u32> = rules.rules.iter().map(|rule| rule.rank.priority()).collect();
    stats.priorities = priorities.len();
    count_parts(rules, &mut stats);
    let mut counts = FilterCounts::default();
    stats.v4_lengths = count_filters(&rules.v4, &mut counts);
    stats.v6_lengths = count_filters(&rules.v6, &mut counts);
    stats.ports = most_first(counts.ports);
    stats.protocols = most_first(counts.protocols);
    stats.in_ports = most_first(counts.in_ports);
    stats
}

/// Counts rules by parts of condition and action, evaluating each distinct one once.
fn count_parts(rules: &RuleSet, stats: &mut Stats) {
    let mut by_action = vec![0; rules.actions.len()];
    let mut by_condition = vec![0; rules.conditions.len()];
    for rule in &rules.rules {
        by_action[rule.action as usize] += 1;
        by_condition[rule.condition as usize] += 1;
    }
    for (action, count) in rules.actions.iter().zip(by_action) {
        let parts = [
            ("dscp", action.dscp.is_some()),
            ("mark", action.mark.is_some()),
            ("task", action.task != Task::AsConfigured),
            ("label", action.label.is_some()),
            ("sample", action.sample.is_some()),
            ("mirror", action.mirror.is_some()),
            ("drop", action.drop),
        ];
        add_parts(&mut stats.by_action, &parts, count);
    }
    for (condition, count) in rules.conditions.iter().zip(by_condition) {
        let over = condition.over;
        let parts = [
            ("app", !condition.labels.is_empty()),
            ("behaviour", condition.behaviours != 0),
            ("host", !condition.hosts.is_empty()),
            ("vlan", !condition.vlans.is_empty()),
            ("dscp_seen", condition.dscps != 0),
            ("when", !condition.hours.is_empty()),
            ("profile", condition.profile.is_some()),
            ("over.bytes", over.bytes.is_some()),
            ("over.packets", over.packets.is_some()),
            ("over.age", over.age_ms.is_some()),
            ("over.rate", over.bits_per_s.is_some()),
        ];
        add_parts(&mut stats.by_condition, &parts, count);
    }
}

fn add_parts(
    counts: &mut BTreeMap<&'static str, usize>,
    parts: &[(&'static str, bool)],
    count: usize,
) {
    let mut is_none = true;
    for (name, _) in parts.iter().filter(|(_, is_there)| *is_there) {
        *counts.entry(name).or_default() += count;
        is_none = false;
    }
    if is_none && count > 0 {
        *counts.entry("none").or_default() += count;
    }
}

fn count_filters<A: Address>(
    filters: &[Filter<A>],
    counts: &mut FilterCounts,
) -> Vec<((u8, u8), usize)> {
    let mut lengths: HashMap<(u8, u8), usize> = HashMap::new();
    for filter in filters {
        *lengths.entry((filter.source_length, filter.destination_length)).or_default() += 1;
        let ports = (PortClass::new(filter.source_ports), PortClass::new(filter.destination_ports));
        *counts.ports.entry(ports).or_default() += 1;
        *counts.protocols.entry(filter.protocol).or_default() += 1;
        *counts.in_ports.entry(filter.in_port).or_default() += 1;
    }
    most_first(lengths)
}

fn most_first<T: Ord + Copy>(counts: HashMap<T, usize>) -> Vec<(T, usize)> {
    let mut counts: Vec<(T, usize)> = counts.into_iter().collect();
    counts.sort_unstable_by_key(|(item, count)| (std::cmp::Reverse(*count), *item));
    counts
}
