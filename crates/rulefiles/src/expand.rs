//! Expands a rule's lists to filters: one per combination of prefixes and ports, by family.

use policy::rule::{Condition, RuleAction, Task};
use policy::{
    Address, FILTERS_MAX, Filter, ICMP, ICMPV6, Ports, Rank, RuleNumber, RuleSet, TCP, UDP,
};

use crate::draft::{Draft, Parts};
use crate::error::Problem;
use crate::limits::RULE_FILTERS_MAX;
use crate::values::Prefix;
use crate::warnings::{WarningKind, Warnings};

/// Common parts of a rule's filters.
#[derive(Clone, Copy)]
struct Common {
    protocol: Option<u8>,
    in_port: u8,
    rule: RuleNumber,
    is_conditional: bool,
    rank: Rank,
}

/// The prefixes of a rule in one family.
struct Sides<A> {
    sources: Vec<(A, u8)>,
    destinations: Vec<(A, u8)>,
}

impl<A: Address> Sides<A> {
    fn count(&self) -> usize {
        self.sources.len().saturating_mul(self.destinations.len())
    }
}

/// Adds a rule with its filters, or nothing on an error. `defaults` completes the rule's parts.
pub fn add(
    rules: &mut RuleSet,
    draft: Draft,
    defaults: &Parts,
    in_port: u8,
    origin: (u16, u32),
    warnings: &mut Warnings,
) -> Result<RuleNumber, Problem> {
    let v4 = sides(&draft, v4, (0, 0));
    let v6 = sides(&draft, v6, (0, 0));
    let is_any = draft.protocol.is_none();
    let [source_ports, destination_ports] = [draft.source_ports, draft.destination_ports]
        .map(merged)
        .map(|ports| if is_any { without_icmp(ports) } else { ports });
    let prefixes = v4.count().saturating_add(v6.count());
    let ports = source_ports.len() * destination_ports.len();
    let count = prefixes.saturating_mul(ports);
    if count > RULE_FILTERS_MAX {
        return Err(Problem::TooManyCombinations(count));
    }
    if rules.filters() + count > FILTERS_MAX {
        return Err(Problem::TooManyFilters);
    }
    if count == 0 {
        check_families(draft.source.as_deref(), draft.destination.as_deref())?;
        warnings.add(WarningKind::EmptySet, origin);
    }
    if draft.protocol.is_some_and(|protocol| ![TCP, UDP, ICMP, ICMPV6].contains(&protocol)) {
        warnings.add(WarningKind::Protocol, origin);
    }
    let parts = draft.parts.or(defaults);
    if parts.sample == Some(0) {
        warnings.add(WarningKind::SampleOfNone, origin);
    }
    let priority = parts.priority.unwrap_or(0);
    let condition = Condition {
        labels: draft.labels,
        behaviours: draft.behaviours,
        over: draft.over,
        hosts: draft.hosts,
        vlans: draft.vlans,
        dscps: draft.dscps,
        hours: draft.hours,
        profile: parts.profile.clone(),
    };
    let action = action(parts);
    let is_conditional = !condition.is_none() || action.sample.is_some();
    let pushed = rules.push(priority, condition, action, origin);
    let (rule, rank) = pushed.map_err(|_| Problem::TooManyRules)?;
    if let Some(name) = draft.name {
        rules.names.push((rule, name.into_boxed_str()));
    }
    let common = Common { protocol: draft.protocol, in_port, rule, is_conditional, rank };
    let ports = (&*source_ports, &*destination_ports);
    combine(&v4, ports, common, &mut rules.v4);
    // ICMP has another number in IPv6.
    let protocol = common.protocol.map(|it| if it == ICMP { ICMPV6 } else { it });
    combine(&v6, ports, Common { protocol, ..common }, &mut rules.v6);
    Ok(rule)
}

/// ICMP is asked about with ports of 0, and ranges of ports are not meant for it: they begin at 1.
fn without_icmp(mut ports: Vec<Ports>) -> Vec<Ports> {
    let ranges = ports.iter_mut().filter(|it| **it != Ports::ANY && it.last > 0);
    ranges.for_each(|it| it.first = it.first.max(1));
    ports
}

/// A share of all flows becomes none, so that the rule is unconditional.
fn action(parts: Parts) -> RuleAction {
    RuleAction {
        dscp: parts.dscp,
        mark: parts.mark,
        task: parts.task.unwrap_or(Task::AsConfigured),
        label: parts.label,
        sample: parts.sample.filter(|sample| *sample < 1 << 16),
        mirror: parts.mirror,
        drop: parts.drop.unwrap_or(false),
    }
}

fn v4(prefix: &Prefix) -> Option<(u32, u8)> {
    match *prefix {
        Prefix::V4(address, length) => Some((address, length)),
        Prefix::V6(..) => None,
    }
}

fn v6(prefix: &Prefix) -> Option<(u128, u8)> {
    match *prefix {
        Prefix::V6(address, length) => Some((address, length)),
        Prefix::V4(..) => None,
    }
}

/// The prefixes of one family; `any` for a side that was not set.
fn sides<A: Address>(
    draft: &Draft,
    of_family: impl Fn(&Prefix) -> Option<(A, u8)>,
    any: (A, u8),
) -> Sides<A> {
    let side = |said: &Option<Vec<Prefix>>| match said {
        Some(prefixes) => prefixes.iter().filter_map(&of_family).collect(),
        None => vec![any],
    };
    Sides { sources: side(&draft.source), destinations: side(&draft.destination) }
}

/// Source and destination, if both are set and not empty, must share a family.
fn check_families(
    source: Option<&[Prefix]>,
    destination: Option<&[Prefix]>,
) -> Result<(), Problem> {
    let family = |side: Option<&[Prefix]>| match side?.first()? {
        Prefix::V4(..) => Some("IPv4"),
        Prefix::V6(..) => Some("IPv6"),
    };
    match (family(source), family(destination)) {
        (Some(source_family), Some(destination_family)) => {
            Err(Problem::Families { source_family, destination_family })
        }
        _ => Ok(()),
    }
}

/// Sorts ports and merges ranges that touch or overlap.
fn merged(said: Option<Vec<Ports>>) -> Vec<Ports> {
    let Some(mut said) = said else { return vec![Ports::ANY] };
    said.sort_unstable();
    said.dedup_by(|next, before| {
        let touches = u32::from(next.first) <= u32::from(before.last) + 1;
        if touches {
            before.last = before.last.max(next.last);
        }
        touches
    });
    said
}

fn combine<A: Address>(
    sides: &Sides<A>,
    (source_ports, destination_ports): (&[Ports], &[Ports]),
    common: Common,
    filters: &mut Vec<Filter<A>>,
) {
    for &(source, source_length) in &sides.sources {
        for &(destination, destination_length) in &sides.destinations {
            for &source_ports in source_ports {
                for &destination_ports in destination_ports {
                    filters.push(Filter {
                        source,
                        destination,
                        source_length,
                        destination_length,
                        protocol: common.protocol,
                        in_port: common.in_port,
                        source_ports,
                        destination_ports,
                        rule: common.rule,
                        is_conditional: common.is_conditional,
                        rank: common.rank,
                    });
                }
            }
        }
    }
}
