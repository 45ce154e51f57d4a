//! Explains which rule applies to a flow, and which ones lost.

use std::ops::RangeInclusive;

use crate::hours::Hours;
use crate::rule::{Condition, Hosts, Over, behaviour_names};
use crate::{Facts, Filter, Key, Label, Moment, Rank, RuleNumber, RuleSet, Tuple};

/// What a flow lacks for a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lack {
    /// One of these labels or taxonomies.
    Label(Vec<String>),
    /// One of these behaviours.
    Behaviour(Vec<&'static str>),
    /// One of these hosts as an end.
    Host(Hosts),
    /// A first packet in one of these VLANs.
    Vlan {
        /// The VLANs.
        wanted: Vec<RangeInclusive<u16>>,
        /// The flow's.
        has: u16,
    },
    /// A first packet with one of these code points: bit n for n.
    Dscp {
        /// The code points.
        wanted: u64,
        /// The flow's.
        has: u8,
    },
    /// It is outside these hours.
    Hours(Vec<Hours>),
    /// This profile is off.
    Profile(String),
    /// More of `what` than the bound.
    Over {
        /// `bytes`, `packets`, `age`, `rate`.
        what: &'static str,
        /// `bytes`, `packets`, `ms`, `bit/s`.
        unit: &'static str,
        /// The bound.
        bound: u64,
        /// What the flow has.
        has: u64,
    },
}

/// The result of a rule whose box contains the flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It applies.
    Wins,
    /// It applies if the flow is in its share, of 65,536.
    Share(u32),
    /// It would apply, but an earlier rule wins.
    Loses,
    /// Its condition does not hold.
    Lacks(Vec<Lack>),
}

/// A rule whose box contains the flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// The rule.
    pub rule: RuleNumber,
    /// The result.
    pub verdict: Verdict,
}

/// All rules whose boxes contain a flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// By rank.
    pub matches: Vec<Match>,
}

impl Explanation {
    /// The flow's rule, unless a rule with a share takes the flow.
    pub fn winner(&self) -> Option<RuleNumber> {
        let won = self.matches.iter().find(|found| found.verdict == Verdict::Wins);
        won.map(|found| found.rule)
    }
}

/// Finds the rule of a flow at a moment, with these facts and with a label that rules may call by
/// any of `labels`. `facts.classes` and `facts.sample` are not used, so no model is needed.
pub fn explain(
    rules: &RuleSet,
    tuple: &Tuple,
    labels: &[Label],
    facts: &Facts,
    moment: &Moment,
) -> Explanation {
    let mut ranks = match tuple {
        Tuple::V4(key) => with_key(&rules.v4, key),
        Tuple::V6(key) => with_key(&rules.v6, key),
    };
    ranks.sort_unstable();
    ranks.dedup();
    let mut is_won = false;
    let verdict = |(_, rule): (Rank, RuleNumber)| {
        let condition = rules.condition(rule);
        let mut lacks = lacks(condition, labels, facts, moment);
        if !moment.has_host(&condition.hosts, tuple) {
            lacks.push(Lack::Host(condition.hosts.clone()));
        }
        let sample = rules.action(rule).sample;
        let verdict = match (lacks.is_empty(), is_won, sample) {
            (false, ..) => Verdict::Lacks(lacks),
            (true, true, _) => Verdict::Loses,
            (true, false, Some(share)) => Verdict::Share(share),
            (true, false, None) => {
                is_won = true;
                Verdict::Wins
            }
        };
        Match { rule, verdict }
    };
    Explanation { matches: ranks.into_iter().map(verdict).collect() }
}

fn with_key<A: crate::Address>(filters: &[Filter<A>], key: &Key<A>) -> Vec<(Rank, RuleNumber)> {
    let having = filters.iter().filter(|filter| filter.has(key));
    having.map(|filter| (filter.rank, filter.rule)).collect()
}

/// What the flow lacks for a condition.
fn lacks(condition: &Condition, labels: &[Label], facts: &Facts, moment: &Moment) -> Vec<Lack> {
    let is_meant = |label: &Label| condition.labels.iter().any(|name| label.is_called(name));
    let mut lacks = Vec::new();
    if !condition.labels.is_empty() && !labels.iter().any(is_meant) {
        lacks.push(Lack::Label(condition.labels.clone()));
    }
    let behaviours = condition.behaviours;
    if behaviours != 0 && behaviours >> facts.behaviour & 1 == 0 {
        lacks.push(Lack::Behaviour(behaviour_names(behaviours).collect()));
    }
    let vlans = &condition.vlans;
    if !vlans.is_empty() && !vlans.iter().any(|vlans| vlans.contains(&facts.vlan)) {
        lacks.push(Lack::Vlan { wanted: vlans.clone(), has: facts.vlan });
    }
    let (dscps, dscp) = (condition.dscps, facts.dscp);
    if dscps != 0 && dscps >> (dscp & 63) & 1 == 0 {
        lacks.push(Lack::Dscp { wanted: dscps, has: dscp });
    }
    if !moment.is_within(condition) {
        lacks.push(Lack::Hours(condition.hours.clone()));
    }
    if !moment.has_profile(condition) {
        lacks.extend(condition.profile.clone().map(Lack::Profile));
    }
    let Over { bytes, packets, age_ms, bits_per_s } = condition.over;
    // As in `Policy::holds`: bytes · 8 / age > bound, without a division.
    let bits = u128::from(facts.bytes) * 8 * 1_000_000;
    let age_us = u128::from(facts.age_us.max(1));
    let rate = u64::try_from(bits / age_us).unwrap_or(u64::MAX);
    let is_slow = |bound: u64| bits <= u128::from(bound) * age_us;
    let age = facts.age_us / 1000;
    let bounds = [
        ("bytes", "bytes", bytes.filter(|bound| facts.bytes <= *bound), facts.bytes),
        ("packets", "packets", packets.filter(|bound| facts.packets <= *bound), facts.packets),
        ("age", "ms", age_ms.filter(|bound| age <= *bound), age),
        ("rate", "bit/s", bits_per_s.filter(|bound| is_slow(*bound)), rate),
    ];
    for (what, unit, bound, has) in bounds {
        if let Some(bound) = bound {
            lacks.push(Lack::Over { what, unit, bound, has });
        }
    }
    lacks
}
