//! The report: what `--json` prints, and what text and plots are made of.

use std::collections::BTreeMap;

use accel::Bundle;
use serde::Serialize;

use labelled::answers::{Decider, Namer};
use labelled::baselines::{Folds, constant, port_table, prefix_table};
use labelled::flows::{Flows, RowCounts};
use labelled::scores::{
    Answer, Bin, ClassScore, DECIDED, Decided, Plain, by_class, calibration_error, decided, plain,
    reliability, share,
};

/// Everything that was measured.
#[derive(Serialize)]
pub struct Report {
    pub model: String,
    pub version: String,
    pub precision: String,
    pub sha256: String,
    pub device: String,
    pub effective: String,
    pub table: String,
    pub column: String,
    pub rows: RowCounts,
    /// The class that stands for labels that the bundle does not have.
    pub others_are: Option<String>,
    /// Those labels, the commonest first.
    pub other_labels: Vec<LabelCount>,
    pub depths: Vec<AtDepth>,
    pub names: Names,
    /// How the baselines were fitted; none if nothing could be held out.
    pub baselines: Option<Fitted>,
    pub speed: Speed,
}

#[derive(Serialize)]
pub struct LabelCount {
    pub label: String,
    pub flows: usize,
}

/// Scores of the answers after so many elements.
#[derive(Serialize)]
pub struct AtDepth {
    pub elements: usize,
    pub flows: usize,
    #[serde(flatten)]
    pub plain: Plain,
    pub ece: f64,
    /// From a probability at which models are compared.
    pub decided: Decided,
    /// From the bundle's confidence.
    pub sure: Decided,
    pub baselines: BTreeMap<&'static str, Plain>,
    pub classes: Vec<ClassScore>,
    pub reliability: Vec<Bin>,
}

/// The names that flows end with.
#[derive(Serialize)]
pub struct Names {
    /// Flows whose beginning was seen, short ones too.
    pub flows: usize,
    /// Share with a name other than that of the class for others.
    pub named: f64,
    /// Share right of those.
    pub right: f64,
    pub decided_by: Vec<DecidedBy>,
    pub classes: Vec<ClassScore>,
    /// Flows with another name than theirs, the commonest first.
    pub confusions: Vec<Confusion>,
    /// True class, name and flows, right ones too.
    #[serde(skip)]
    pub pairs: BTreeMap<(u16, u16), usize>,
}

#[derive(Serialize)]
pub struct DecidedBy {
    pub by: String,
    pub flows: f64,
    pub named: f64,
    pub right: f64,
}

#[derive(Serialize)]
pub struct Confusion {
    pub label: String,
    pub name: String,
    pub flows: usize,
}

/// How baselines were fitted.
#[derive(Serialize)]
pub struct Fitted {
    pub folds: usize,
    pub groups: usize,
}

/// The time of a batch.
#[derive(Serialize)]
pub struct Speed {
    pub batch: usize,
    pub batches: usize,
    pub median_us: f64,
    pub rows_per_second: f64,
}

/// The baselines by name.
type Baseline = (&'static str, fn(&Flows, &Folds, usize) -> Vec<u16>);
const BASELINES: [Baseline; 3] = [
    ("constant", constant),
    ("port_table", port_table),
    ("prefix_table", prefix_table),
];

/// The scores of each depth that has flows.
pub fn depths(
    flows: &Flows,
    bundle: &Bundle,
    answers: &[Vec<Option<Answer>>],
    folds: Option<&Folds>,
) -> Vec<AtDepth> {
    let depths = bundle.depths().iter().zip(answers);
    let at_depth = |(depth, answers): (&accel::Depth, &Vec<Option<Answer>>)| {
        let places: Vec<usize> = (0..answers.len())
            .filter(|&at| answers[at].is_some())
            .collect();
        if places.is_empty() {
            return None;
        }
        let truth: Vec<u16> = places.iter().map(|&at| flows.flows[at].class).collect();
        let answers: Vec<Answer> = answers.iter().copied().flatten().collect();
        let guess: Vec<u16> = answers.iter().map(|answer| answer.class).collect();
        let bins = reliability(&truth, &answers);
        // A bundle without depths has one confidence for all.
        let level = match bundle.depths().len() {
            1 => bundle.min_confidence(),
            _ => depth.confidence,
        };
        let baseline = |(name, guesses): Baseline| {
            let guesses = guesses(flows, folds?, depth.elements);
            let guesses: Vec<u16> = places.iter().map(|&at| guesses[at]).collect();
            Some((name, plain(&truth, &guesses, &flows.classes)))
        };
        Some(AtDepth {
            elements: depth.elements,
            flows: truth.len(),
            plain: plain(&truth, &guess, &flows.classes),
            ece: calibration_error(&bins),
            decided: decided(&truth, &answers, DECIDED),
            sure: decided(&truth, &answers, level),
            baselines: BASELINES.into_iter().filter_map(baseline).collect(),
            classes: by_class(&truth, &guess, &flows.classes),
            reliability: bins,
        })
    };
    depths.filter_map(at_depth).collect()
}

/// A name, and what decided it.
struct Named {
    class: u16,
    name: u16,
    by: Decider,
}

impl Names {
    /// The names of all flows that the model may be asked about.
    pub fn of(flows: &Flows, bundle: &Bundle, answers: &[Vec<Option<Answer>>]) -> Names {
        let namer = Namer::of(bundle);
        let asked = flows
            .flows
            .iter()
            .enumerate()
            .filter(|(_, flow)| flow.is_asked);
        let named = asked.map(|(at, flow)| {
            let answers: Vec<Option<Answer>> = answers.iter().map(|depth| depth[at]).collect();
            let (name, by) = namer.name(flow, &answers);
            Named {
                class: flow.class,
                name,
                by,
            }
        });
        let named: Vec<Named> = named.collect();
        let is_named = |it: &&Named| {
            usize::from(it.name) < bundle.labels().len() && Some(it.name) != flows.outlier
        };
        let right =
            |of: &[&Named]| share(of.iter().filter(|it| it.name == it.class).count(), of.len());
        let mut by: BTreeMap<Decider, Vec<&Named>> = BTreeMap::new();
        let mut pairs = BTreeMap::new();
        for it in &named {
            by.entry(it.by).or_default().push(it);
            *pairs.entry((it.class, it.name)).or_default() += 1;
        }
        let decided_by = by.into_iter().map(|(by, own)| {
            let with_name: Vec<&Named> = own.iter().copied().filter(is_named).collect();
            DecidedBy {
                by: by.to_string(),
                flows: share(own.len(), named.len()),
                named: share(with_name.len(), named.len()),
                right: right(&with_name),
            }
        });
        let with_name: Vec<&Named> = named.iter().filter(is_named).collect();
        let (truth, names): (Vec<u16>, Vec<u16>) =
            named.iter().map(|it| (it.class, it.name)).unzip();
        Names {
            flows: named.len(),
            named: share(with_name.len(), named.len()),
            right: right(&with_name),
            decided_by: decided_by.collect(),
            classes: by_class(&truth, &names, &flows.classes),
            confusions: confusions(
                &pairs,
                &flows.classes[..bundle.labels().len()],
                &flows.classes,
            ),
            pairs,
        }
    }
}

/// Pairs of a class and another name, the commonest first.
fn confusions(
    pairs: &BTreeMap<(u16, u16), usize>,
    names: &[String],
    classes: &[String],
) -> Vec<Confusion> {
    let wrong = pairs
        .iter()
        .filter(|((class, name), _)| class != name && usize::from(*name) < names.len());
    let confusion = |((class, name), flows): (&(u16, u16), &usize)| Confusion {
        label: classes[usize::from(*class)].clone(),
        name: names[usize::from(*name)].clone(),
        flows: *flows,
    };
    let mut found: Vec<Confusion> = wrong.map(confusion).collect();
    found.sort_by_key(|it| std::cmp::Reverse(it.flows));
    found
}

/// Labels with their flows, the commonest first.
pub fn label_counts(flows: &Flows) -> Vec<LabelCount> {
    let count = |(label, flows): (&String, &usize)| LabelCount {
        label: label.clone(),
        flows: *flows,
    };
    let mut counts: Vec<LabelCount> = flows.other_labels.iter().map(count).collect();
    counts.sort_by_key(|it| std::cmp::Reverse(it.flows));
    counts
}
