//! Sets of rules for classifiers, in the manner of ClassBench (Taylor and Turner, ToN 2007): forms
//! of rules drawn from a profile, addresses from trees of its shape, and no two rules alike.

pub mod command;
mod draw;
mod file;
mod profile;
mod tree;
mod v6;

use std::collections::HashSet;

use policy::{Filter, Ports, Rank};

use crate::rng::Rng;
use draw::{Form, Forms};
use fenxi::exit::Failure;
use profile::Profile;
use tree::Shape;

/// The profiles from which sets are made where no others are named: four each of access lists,
/// firewalls and IP chains.
pub const SEEDS: [&str; 12] =
    ["acl1", "acl2", "acl3", "acl4", "fw1", "fw2", "fw3", "fw4", "ipc1", "ipc2", "ipc3", "ipc4"];
/// How often more rules are drawn, until enough of them are distinct.
const TRIES: usize = 6;
/// Rules drawn for each that is asked for, at most.
const EXCESS_MAX: usize = 8;

/// Which set is made.
#[derive(Clone, Debug)]
pub struct Asked<'a> {
    /// Name of the profile.
    pub seed: &'a str,
    /// Distinct rules.
    pub rules: usize,
    /// The same number gives the same rules.
    pub random: u64,
}

/// A set: the most specific rules first, each with the number of its line, from 0.
///
/// # Errors
/// There is no such profile, or it does not give enough distinct rules.
pub fn generate(asked: &Asked<'_>) -> Result<Vec<Filter<u32>>, Failure> {
    let profile = profile::named(asked.seed)?;
    let forms = Forms::new(&profile)?;
    let name = asked.seed.bytes().fold(0, |sum: u64, byte| sum * 31 + u64::from(byte));
    let mut rng = Rng::new(asked.random ^ name << 32);
    let mut drawn = asked.rules + asked.rules / 50 + 4;
    let mut most = 0;
    for _ in 0..TRIES {
        let mut filters = draw(&profile, &forms, drawn, asked.rules, &mut rng);
        if filters.len() >= asked.rules {
            thin(&mut filters, asked.rules, &mut rng);
            return Ok(numbered(filters));
        }
        most = most.max(filters.len());
        let needed = drawn as f64 * asked.rules as f64 / filters.len().max(1) as f64 * 1.1;
        drawn = (needed as usize).clamp(drawn + 16, (EXCESS_MAX * asked.rules).max(drawn + 16));
    }
    Err(Failure::usage(format!(
        "--rules {}: {} gives at most {most} distinct rules; ask for fewer",
        asked.rules, asked.seed
    )))
}

/// Draws `drawn` rules for a set of `rules`, and returns the distinct ones.
fn draw(
    profile: &Profile,
    forms: &Forms,
    drawn: usize,
    rules: usize,
    rng: &mut Rng,
) -> Vec<Filter<u32>> {
    let growth = rules as f64 / profile.filters;
    let forms: Vec<Form> = (0..drawn).map(|_| forms.draw(rng)).collect();
    let lengths: Vec<u8> = forms.iter().map(|form| form.source_length).collect();
    let [nesting, destination_nesting] = profile.nesting;
    let shape = Shape::new(&profile.source_branching, &profile.source_skew, nesting, growth);
    let sources = tree::sources(&lengths, &shape, rng);
    let sources: Vec<(u32, u8)> = sources.into_iter().zip(lengths).collect();
    let lengths: Vec<u8> = forms.iter().map(|form| form.destination_length).collect();
    let (branching, skew) = (&profile.destination_branching, &profile.destination_skew);
    let shape = Shape::new(branching, skew, destination_nesting, growth);
    let destinations = tree::destinations(&lengths, &sources, &profile.correlation, &shape, rng);
    let mut seen = HashSet::with_capacity(drawn);
    let filters = forms.iter().zip(sources).zip(destinations);
    let filters = filters.map(|((form, (source, _)), destination)| Filter {
        source,
        destination,
        source_length: form.source_length,
        destination_length: form.destination_length,
        protocol: form.protocol,
        in_port: 0,
        source_ports: form.source_ports,
        destination_ports: form.destination_ports,
        rule: 0,
        is_conditional: false,
        rank: Rank::LAST,
    });
    filters.filter(|filter| seen.insert(identity(filter))).collect()
}

/// What makes a rule of a file another than the rules before it.
fn identity(filter: &Filter<u32>) -> (u64, u64, Option<u8>, u16) {
    let ports = |ports: Ports| u64::from(ports.first) << 16 | u64::from(ports.last);
    (
        u64::from(filter.source) << 32 | u64::from(filter.destination),
        ports(filter.source_ports) << 32 | ports(filter.destination_ports),
        filter.protocol,
        u16::from(filter.source_length) << 8 | u16::from(filter.destination_length),
    )
}

/// Removes rules at random until there are `rules`.
fn thin(filters: &mut Vec<Filter<u32>>, rules: usize, rng: &mut Rng) {
    while filters.len() > rules {
        let place = rng.below(filters.len() as u32) as usize;
        filters.swap_remove(place);
    }
}

/// In order: the most specific first, so that a rule within another comes before it. Rules of one
/// form stand together.
fn numbered(mut filters: Vec<Filter<u32>>) -> Vec<Filter<u32>> {
    // In thousandths of a bit: a range within another one has less, if only by a port.
    let bits = |ports: Ports| (f64::from(ports.last - ports.first).ln_1p() * 1443.0) as u32;
    filters.sort_by_cached_key(|filter| {
        let (source, destination) = (filter.source_length, filter.destination_length);
        let any = if filter.protocol.is_none() { 8 } else { 0 };
        let ports = (bits(filter.source_ports), bits(filter.destination_ports));
        let bits = 64 + any - u32::from(source) - u32::from(destination);
        (1000 * bits + ports.0 + ports.1, source, destination, ports, any)
    });
    for (number, filter) in filters.iter_mut().enumerate() {
        filter.rule = number as u32;
        filter.rank = Rank::new(0, number as u32);
    }
    filters
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(seed: &str, rules: usize, random: u64) -> Vec<Filter<u32>> {
        generate(&Asked { seed, rules, random }).unwrap()
    }

    #[test]
    fn sets_have_the_asked_number_of_distinct_rules_and_repeat() {
        for seed in SEEDS {
            let rules = set(seed, 1000, 1);
            assert_eq!(rules.len(), 1000, "{seed}");
            let distinct: HashSet<_> = rules.iter().map(identity).collect();
            assert_eq!(distinct.len(), 1000, "{seed}");
            assert_eq!(set(seed, 1000, 1), rules, "{seed}");
            assert_ne!(set(seed, 1000, 2), rules, "{seed}");
        }
    }

    #[test]
    fn no_rule_stands_behind_one_that_covers_it() {
        let rules = set("acl2", 1000, 1);
        for (place, rule) in rules.iter().enumerate() {
            let covering = rules[..place].iter().find(|before| before.covers(rule));
            assert_eq!(covering, None, "{rule:?}");
        }
    }
}
