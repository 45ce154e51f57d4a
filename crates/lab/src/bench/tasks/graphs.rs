//! Graphs of tasks, as Batchy's pipelines are graphs of network functions: chains, splits, and a
//! split that joins again.
//!
//! A flow has a class. It says which tasks are asked about the flow at all, as a filter by ports
//! would, and it is the label that each task gives, so the share of flows on each path is known.

use std::time::Duration;

use accel::Profile;

/// What batches take. These are assumed figures, of the order of the shipped models on one CPU
/// core (docs/devices.md): the same on every machine, and so are the results. A row in a batch of
/// 32 takes 0.28, 0.46, 0.52 and 0.23 of what it takes alone.
const PROFILES: [Profile; 4] = [
    Profile { t0_us: 5.0, t1_us: 1.7 },
    Profile { t0_us: 5.0, t1_us: 4.0 },
    Profile { t0_us: 2.0, t1_us: 2.0 },
    Profile { t0_us: 12.0, t1_us: 3.0 },
];
/// The part of a chain's flows that each task leaves to the next.
const UNSURE: f64 = 0.6;

/// Flows a second, with which 16 tasks are busy all of the time without batches.
const BUSY_RATE: f64 = 220_000.0;
/// Overload, as a multiple of the rate that the largest batches sustain.
const TOO_MANY: f64 = 1.2;

/// One task of a graph.
#[derive(Clone, Debug)]
pub struct Node {
    pub profile: Profile,
    /// By class: whether series of such a flow come down the task's ring.
    pub emitted: Vec<bool>,
    /// The tasks that must have labelled a flow before, each with the classes that it must have
    /// given.
    pub after: Vec<(usize, Vec<bool>)>,
}

/// Tasks on one thread, and the flows that come.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    /// Where it is on the plot, if it is there.
    pub x: Option<f64>,
    pub nodes: Vec<Node>,
    /// By class: the share of flows.
    pub shares: Vec<f64>,
    /// The largest batch.
    pub cap: usize,
    /// Flows a second.
    pub rate: f64,
}

impl Case {
    /// Whether it is this graph, whatever the largest batch.
    pub fn is_of(&self, graph: &str) -> bool {
        let rest = self.name.strip_prefix(graph);
        rest.is_some_and(|rest| rest.starts_with(", "))
    }

    /// How long all tasks take with their largest batches.
    pub fn turnaround(&self) -> Duration {
        self.nodes.iter().map(|node| node.profile.latency(self.cap)).sum()
    }

    /// The same with more flows than even the largest batches keep up with, so that no goal can be
    /// kept.
    pub fn saturated(&self) -> Case {
        let cap = self.cap as f64;
        let tasks = self.nodes.iter().enumerate();
        let us_per_flow = tasks.map(|(number, node)| {
            self.asked(number) * (node.profile.t0_us / cap + node.profile.t1_us)
        });
        Case {
            name: format!("{}, saturated", self.name),
            x: None,
            rate: TOO_MANY * 1e6 / us_per_flow.sum::<f64>(),
            ..self.clone()
        }
    }

    /// The share of flows that a task is asked about.
    pub fn asked(&self, task: usize) -> f64 {
        let classes = (0..self.shares.len()).filter(|class| self.is_asked(task, *class));
        classes.map(|class| self.shares[class]).sum()
    }

    /// Whether a task is asked about flows of a class: so are all that it follows, and they gave
    /// the label.
    fn is_asked(&self, task: usize, class: usize) -> bool {
        let node = &self.nodes[task];
        let mut after = node.after.iter();
        node.emitted[class]
            && after.all(|(before, wanted)| wanted[class] && self.is_asked(*before, class))
    }
}

fn profile(number: usize) -> Profile {
    PROFILES[number % PROFILES.len()]
}

/// A cascade: each task is asked about the flows that the one before left open. The class of a
/// flow is the last task that is asked.
fn chain(tasks: usize) -> (Vec<Node>, Vec<f64>) {
    let nodes = (0..tasks).map(|number| Node {
        profile: profile(number),
        emitted: vec![true; tasks],
        after: match number.checked_sub(1) {
            Some(before) => vec![(before, (0..tasks).map(|class| class >= number).collect())],
            None => Vec::new(),
        },
    });
    let reached = |number: usize| UNSURE.powi(number as i32);
    let shares = (0..tasks).map(|class| match class + 1 == tasks {
        true => reached(class),
        false => reached(class) - reached(class + 1),
    });
    (nodes.collect(), shares.collect())
}

/// Tasks that have nothing to do with each other; each is asked about its part of the flows.
fn split(tasks: usize) -> (Vec<Node>, Vec<f64>) {
    let nodes = (0..tasks).map(|number| Node {
        profile: profile(number),
        emitted: (0..tasks).map(|class| class == number).collect(),
        after: Vec::new(),
    });
    (nodes.collect(), vec![1.0 / tasks as f64; tasks])
}

/// One task, two branches by its label, and one that needs the labels of both: classes 0 and 1 go
/// to one branch, class 2 to both.
fn join() -> (Vec<Node>, Vec<f64>) {
    let node = |number, after| Node { profile: profile(number), emitted: vec![true; 3], after };
    let is = |wanted: [bool; 3]| wanted.to_vec();
    let nodes = vec![
        node(0, Vec::new()),
        node(1, vec![(0, is([true, false, true]))]),
        node(2, vec![(0, is([false, true, true]))]),
        node(3, vec![(1, is([true; 3])), (2, is([true; 3]))]),
    ];
    (nodes, vec![0.25, 0.25, 0.5])
}

/// The graphs, each with batches of up to 32, as Batchy's, and 256; rates are such that the device
/// is busy for 0.8 to 0.95 of the time without batching. The largest one again with more flows, so
/// that it is always busy.
pub fn cases() -> Vec<Case> {
    let graphs = [
        ("chain of 2", chain(2), 96_000.0),
        ("chain of 3", chain(3), 80_000.0),
        ("chain of 4", chain(4), 67_000.0),
        ("split of 2", split(2), 150_000.0),
        ("split of 4", split(4), 118_000.0),
        ("split of 8", split(8), 112_000.0),
        ("split of 16", split(16), 107_000.0),
        ("split and join", join(), 50_000.0),
    ];
    let mut cases = Vec::new();
    for cap in [32, 256] {
        for (name, (nodes, shares), rate) in &graphs {
            let is_plotted = name.starts_with("split of") && cap == 32;
            cases.push(Case {
                name: format!("{name}, batches to {cap}"),
                x: is_plotted.then_some(nodes.len() as f64),
                nodes: nodes.clone(),
                shares: shares.clone(),
                cap,
                rate: *rate,
            });
        }
    }
    let (nodes, shares) = split(16);
    cases.push(Case {
        name: "busy split of 16, batches to 256".to_owned(),
        x: None,
        nodes,
        shares,
        cap: 256,
        rate: BUSY_RATE,
    });
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_all_flows() {
        for case in cases() {
            assert!((case.shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        }
    }
}
