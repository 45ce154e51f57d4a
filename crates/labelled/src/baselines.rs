//! What a model has to beat: tables that a few lines of a script could fit. Each guess for a flow comes from a table that was
//! fitted on flows of other groups.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use crate::flows::{Flow, Flows};
use crate::scores::NONE;

/// Folds, if there are as many groups.
const FOLDS: usize = 5;

/// A part of the flows, held out together.
pub struct Folds {
    /// The fold of each flow.
    pub places: Vec<usize>,
    /// Number of folds.
    pub count: usize,
    /// Number of groups.
    pub groups: usize,
}

impl Folds {
    /// Puts groups, the largest first, each in the fold that has fewest flows of its classes so far. None for a table without
    /// groups, and where all flows belong to one.
    pub fn of(flows: &Flows) -> Option<Folds> {
        let names = flows.groups.as_ref()?;
        let mut sizes: HashMap<usize, Votes> = HashMap::new();
        let mut total = vec![0; flows.classes.len()];
        for flow in &flows.flows {
            sizes.entry(flow.group).or_default().add(flow.class);
            total[usize::from(flow.class)] += 1;
        }
        let mut groups: Vec<usize> = sizes.keys().copied().collect();
        if groups.len() < 2 {
            return None;
        }
        groups.sort_by(|a, b| names[*a].cmp(&names[*b]));
        let count = groups.len().min(FOLDS);
        let mut filled = vec![(0, vec![0; total.len()]); count];
        let mut place = HashMap::new();
        if groups.len() > FOLDS {
            groups.sort_by_key(|group| std::cmp::Reverse(sizes[group].total()));
        }
        for (at, group) in groups.iter().enumerate() {
            let cost = |(all, by_class): &(usize, Vec<usize>)| {
                let own = sizes[group].0.iter();
                let of_class = |(class, count): &(u16, usize)| {
                    let class = usize::from(*class);
                    (count * by_class[class]) as f64 / f64::from(total[class])
                };
                own.map(of_class).sum::<f64>() + *all as f64 / flows.flows.len() as f64
            };
            let costs: Vec<f64> = filled.iter().map(cost).collect();
            let least = (0..count).fold(
                0,
                |best, it| if costs[it] < costs[best] { it } else { best },
            );
            let fold = if groups.len() > FOLDS { least } else { at };
            place.insert(*group, fold);
            filled[fold].0 += sizes[group].total();
            for (class, count) in &sizes[group].0 {
                filled[fold].1[usize::from(*class)] += count;
            }
        }
        Some(Folds {
            places: flows.flows.iter().map(|flow| place[&flow.group]).collect(),
            count,
            groups: groups.len(),
        })
    }

    /// The guess for each flow with `depth` elements.
    fn guesses(
        &self,
        flows: &Flows,
        depth: usize,
        fit: impl Fn(&[usize], &[usize], &mut [u16]),
    ) -> Vec<u16> {
        let mut guesses = vec![NONE; flows.flows.len()];
        for fold in 0..self.count {
            let all = 0..flows.flows.len();
            let (held_out, others): (Vec<usize>, Vec<usize>) =
                all.partition(|&at| self.places[at] == fold);
            let is_long = |at: &usize| flows.flows[*at].elements >= depth;
            let held_out: Vec<usize> = held_out.into_iter().filter(is_long).collect();
            fit(&others, &held_out, &mut guesses);
        }
        guesses
    }
}

/// Votes for classes, in the order of the first vote for each.
#[derive(Clone, Debug, Default)]
struct Votes(Vec<(u16, usize)>);

impl Votes {
    fn add(&mut self, class: u16) {
        match self.0.iter_mut().find(|(voted, _)| *voted == class) {
            Some((_, count)) => *count += 1,
            None => self.0.push((class, 1)),
        }
    }

    fn total(&self) -> usize {
        self.0.iter().map(|(_, count)| count).sum()
    }

    /// The class with most votes; of equal ones that of the earliest vote.
    fn commonest(&self) -> Option<u16> {
        let best = self.0.iter().rev().max_by_key(|(_, count)| *count);
        best.map(|(class, _)| *class)
    }
}

/// The commonest class of flows with as many elements.
pub fn constant(flows: &Flows, folds: &Folds, depth: usize) -> Vec<u16> {
    folds.guesses(flows, depth, |others, held_out, guesses| {
        let Some(class) = commonest(flows, others, depth) else {
            return;
        };
        for &at in held_out {
            guesses[at] = class;
        }
    })
}

fn commonest(flows: &Flows, of: &[usize], depth: usize) -> Option<u16> {
    let mut votes = Votes::default();
    let own = of
        .iter()
        .map(|&at| flows.flows[at])
        .filter(|flow| flow.elements >= depth);
    own.for_each(|flow: Flow| votes.add(flow.class));
    votes.commonest()
}

/// The commonest class of the protocol and destination port, in flows of any length; for a new port the class of others, or the
/// commonest of all.
pub fn port_table(flows: &Flows, folds: &Folds, depth: usize) -> Vec<u16> {
    folds.guesses(flows, depth, |others, held_out, guesses| {
        let mut table: HashMap<(u8, u16), Votes> = HashMap::new();
        for flow in others.iter().map(|&at| &flows.flows[at]) {
            if let Some(port) = flow.port {
                table.entry(port).or_default().add(flow.class);
            }
        }
        let Some(spare) = flows.outlier.or_else(|| commonest(flows, others, 0)) else {
            return;
        };
        for &at in held_out {
            let votes = flows.flows[at].port.and_then(|port| table.get(&port));
            guesses[at] = votes.and_then(Votes::commonest).unwrap_or(spare);
        }
    })
}

/// The commonest class of flows that begin with the same elements, as many as were seen in other groups.
pub fn prefix_table(flows: &Flows, folds: &Folds, depth: usize) -> Vec<u16> {
    folds.guesses(flows, depth, |others, held_out, guesses| {
        let mut open = held_out.to_vec();
        for elements in (0..=depth).rev() {
            let mut table: HashMap<u64, Votes> = HashMap::new();
            for &at in others
                .iter()
                .filter(|&&at| flows.flows[at].elements >= depth)
            {
                let votes = table.entry(prefix(flows, at, elements)).or_default();
                votes.add(flows.flows[at].class);
            }
            open.retain(|&at| {
                let votes = table.get(&prefix(flows, at, elements));
                let Some(class) = votes.and_then(Votes::commonest) else {
                    return true;
                };
                guesses[at] = class;
                false
            });
            if open.is_empty() {
                return;
            }
        }
    })
}

/// The first elements of a flow as a hash of 64 bits, which in some 10^5 flows are as good as the elements.
fn prefix(flows: &Flows, at: usize, elements: usize) -> u64 {
    let mut hasher = DefaultHasher::new();
    for channel in flows.series(at).chunks_exact(flows.k) {
        channel[..elements]
            .iter()
            .for_each(|number| number.to_bits().hash(&mut hasher));
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flows::tests::read;

    const HEAD: &str = "capture,proto,dport,data_lengths,label\n";

    fn table(rows: &[(&str, u16, &str, &str)]) -> Flows {
        let line = |(capture, port, lengths, label): &(&str, u16, &str, &str)| {
            format!("{capture},17,{port},{lengths},{label}\n")
        };
        let rows: String = rows.iter().map(line).collect();
        read(&format!("{HEAD}{rows}"), "label").unwrap()
    }

    fn names(flows: &Flows, guesses: &[u16]) -> Vec<String> {
        let name = |&guess: &u16| flows.classes.get(usize::from(guess)).cloned();
        guesses
            .iter()
            .map(|guess| name(guess).unwrap_or_default())
            .collect()
    }

    #[test]
    fn guesses_come_from_other_groups() {
        let flows = table(&[
            ("a", 53, "60 -70", "DNS"),
            ("a", 53, "60 -70", "DNS"),
            ("a", 80, "90 -70", "HTTP"),
            ("b", 53, "60 -80", "TLS"),
            ("b", 80, "90 -80", "TLS"),
            ("b", 99, "95", "HTTP"),
        ]);
        let folds = Folds::of(&flows).unwrap();
        assert_eq!(
            (folds.count, folds.groups, folds.places.as_slice()),
            (2, 2, &[0, 0, 0, 1, 1, 1][..])
        );
        let guessed = |guesses: Vec<u16>| names(&flows, &guesses);
        // Of equally common classes the first; the last flow has one element only.
        assert_eq!(
            guessed(constant(&flows, &folds, 2)),
            ["TLS", "TLS", "TLS", "DNS", "DNS", ""]
        );
        assert_eq!(
            guessed(constant(&flows, &folds, 1)),
            ["TLS", "TLS", "TLS", "DNS", "DNS", "DNS"]
        );
        // Nobody saw port 99 before.
        assert_eq!(
            guessed(port_table(&flows, &folds, 1)),
            ["TLS", "TLS", "TLS", "DNS", "HTTP", "unknown"]
        );
        // The first element was seen, the second was not; of 95 not even the first.
        assert_eq!(
            guessed(prefix_table(&flows, &folds, 2)),
            ["TLS", "TLS", "TLS", "DNS", "HTTP", ""]
        );
        assert_eq!(guessed(prefix_table(&flows, &folds, 1))[5], "DNS");
    }

    #[test]
    fn folds_are_alike_and_groups_stay_whole() {
        let captures = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
        let rows: Vec<_> = captures
            .iter()
            .flat_map(|name| [(*name, 53, "60", "DNS"), (*name, 80, "90", "HTTP")])
            .collect();
        let flows = table(&rows);
        let folds = Folds::of(&flows).unwrap();
        assert_eq!((folds.count, folds.groups), (5, 10));
        assert!(folds.places.chunks(2).all(|pair| pair[0] == pair[1]));
        for fold in 0..5 {
            assert_eq!(
                folds.places.iter().filter(|&&place| place == fold).count(),
                4
            );
        }
    }

    #[test]
    fn nothing_can_be_held_out_of_one_group() {
        let flows = table(&[("a", 53, "60", "DNS"), ("a", 80, "90", "HTTP")]);
        assert!(Folds::of(&flows).is_none());
    }
}
