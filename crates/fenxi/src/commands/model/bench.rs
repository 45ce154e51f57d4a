//! `fenxi model bench`: names the flows of a labelled table as the data path would, and times the
//! model. `fenxi-train compare` scores bundles.

mod flows;

use std::fmt;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use accel::profile::{Point, measure};
use accel::{Bundle, Classification, Device, DeviceError, run_batch};
use cring::{Answers, Depth, Label, Source, in_words};
use flowmgr::{DepthConfig, TaskConfig};
use serde_json::json;

use self::flows::{Flow, Flows};
use crate::cli::BenchArgs;
use crate::commands::devices::config_for;
use crate::escape::escape;
use crate::exit::{Failure, print};
use crate::figures::grouped;
use dataplane::bundle::{UNKNOWN, task_config};
use dataplane::devices::for_model;
use dataplane::session::session;

const TIMED: Duration = Duration::from_millis(500);

const OTHERS_SHOWN: usize = 8;

struct Names {
    /// Flows whose beginning was seen, short ones too.
    flows: usize,
    /// Share with a name, which the class for others is not.
    named: f64,
    /// Share of the named flows whose name is right.
    right: f64,
}

/// Names the flows of the table, and prints how many get a name, how many names are right, and
/// how fast the model is. `--rows` has the name of each flow.
pub fn bench(args: &BenchArgs) -> Result<(), Failure> {
    let config = config_for(&args.config, &args.config.sets, args.device.as_deref())?;
    let bundle = super::open(&args.dir)?;
    let mut config = for_model(config, &bundle);
    let flows = Flows::read(&args.labels, &bundle, &args.column)?;
    let [device] = config.accel.devices.as_mut_slice() else {
        return Err(Failure::software("bench takes one device at a time"));
    };
    device.batch_sizes = vec![BATCH];
    let device = device.clone();
    let mut device = session(&config, &bundle, &device)?;
    let failed = |error: DeviceError| Failure::data(format!("{}: {error}", bundle.name()));
    let names = names(&flows, &bundle, device.as_mut()).map_err(failed)?;
    if let Some(path) = &args.rows {
        write_rows(path, &flows, &names)?;
    }
    let speed = measure(device.as_mut(), &[BATCH], &bundle.golden().inputs, TIMED);
    let speed = speed.map_err(failed)?.points()[0];
    let sums = sums(&names, bundle.labels().len(), flows.outlier);
    if args.json {
        let label = |(label, flows): &(&str, usize)| json!({ "label": label, "flows": flows });
        let report = json!({
            "model": bundle.name(),
            "version": bundle.version(),
            "precision": bundle.precision(),
            "sha256": bundle.sha256(),
            "device": device.requested(),
            "effective": device.effective(),
            "table": args.labels.display().to_string(),
            "column": args.column,
            "rows": flows.counts,
            "others_are": flows.other_class(),
            "other_labels": other_labels(&flows).iter().map(label).collect::<Vec<_>>(),
            "names": { "flows": sums.flows, "named": sums.named, "right": sums.right },
            "speed": {
                "batch": speed.rows,
                "batches": speed.runs,
                "median_us": speed.median_us,
                "rows_per_second": speed.throughput(),
            },
        });
        return print(&format!("{report}\n"));
    }
    let head = format!(
        "{} {} ({}) on device {} ({})\n{}, labels in `{}`\n\n",
        bundle.name(),
        bundle.version(),
        bundle.precision(),
        device.requested(),
        device.effective(),
        escape(&args.labels.display().to_string()),
        escape(&args.column)
    );
    print(&(head + &page(&flows, &sums, &speed)))
}

/// The flows that fenxi asks a model about, with their names.
fn names(
    flows: &Flows,
    bundle: &Bundle,
    device: &mut dyn Device,
) -> Result<Vec<(Flow, Name)>, DeviceError> {
    let mut depths = Vec::new();
    for depth in bundle.depths() {
        depths.push(at_depth(flows, depth.elements, bundle.k(), device)?);
    }
    let namer = Namer::new(bundle);
    let asked = flows.flows.iter().enumerate();
    let named = asked.filter(|(_, flow)| flow.is_asked).map(|(at, flow)| {
        let answers: Vec<_> = depths.iter().map(|answers| answers[at]).collect();
        (*flow, namer.name(flow, &answers))
    });
    Ok(named.collect())
}

fn sums(names: &[(Flow, Name)], labels: usize, outlier: Option<u16>) -> Names {
    let share = |part: usize, whole: usize| part as f64 / whole.max(1) as f64;
    let is_named = |name: &Name| usize::from(name.class) < labels && Some(name.class) != outlier;
    let named = || names.iter().filter(|(_, name)| is_named(name));
    let right = named().filter(|(flow, name)| flow.class == name.class);
    Names {
        flows: names.len(),
        named: share(named().count(), names.len()),
        right: share(right.count(), named().count()),
    }
}

/// Writes a row for each flow: its line in the table, truth, name, confidence and what decided.
fn write_rows(path: &Path, flows: &Flows, names: &[(Flow, Name)]) -> Result<(), Failure> {
    let file = File::create(path).map_err(|error| Failure::creating(path, &error))?;
    let mut rows = csv::Writer::from_writer(file);
    let class = |class: u16| match class {
        NONE => "",
        class => flows.classes.get(usize::from(class)).map_or(UNKNOWN, String::as_str),
    };
    let mut write = || {
        rows.write_record(["line", "truth", "label", "confidence", "decided_by"])?;
        for (flow, name) in names {
            rows.write_record([
                &flow.line.to_string(),
                class(flow.class),
                class(name.class),
                &format!("{:.6}", name.confidence),
                &name.by.to_string(),
            ])?;
        }
        rows.flush()
    };
    write().map_err(|error| Failure::writing(&path.display().to_string(), &error))
}

/// Labels that the bundle does not have, the commonest first, with their flows.
fn other_labels(flows: &Flows) -> Vec<(&str, usize)> {
    let mut labels: Vec<(&str, usize)> =
        flows.other_labels.iter().map(|(label, flows)| (label.as_str(), *flows)).collect();
    labels.sort_by_key(|(_, flows)| std::cmp::Reverse(*flows));
    labels
}

fn page(flows: &Flows, names: &Names, speed: &Point) -> String {
    let mut page = String::new();
    let (rows, labels) = (&flows.counts, other_labels(flows));
    let others = others(&labels);
    let (missing, as_other, other) = match flows.other_class() {
        Some(class) => (0, labels.iter().map(|(_, flows)| flows).sum(), class),
        None => (rows.not_in_bundle, 0, ""),
    };
    for (count, what) in [
        (rows.rows, "flows in the table"),
        (rows.scored, "asked about at one depth or more"),
        (rows.short, "not asked about: fewer elements than the first depth"),
        (rows.midstream, "left out: began mid-stream"),
        (rows.unlabelled, "left out: no label"),
        (rows.uncertain, "left out: the label was guessed (column `confidence`)"),
        (missing, &format!("left out: the bundle does not have the label: {others}")),
        (
            as_other,
            &format!("count as {other}, because the bundle does not have the label: {others}"),
        ),
    ] {
        if count > 0 {
            page += &format!("{:>9}  {what}\n", grouped(count as u64));
        }
    }
    page += &format!(
        "\n{:.1} % of {} flows get a name, {:.3} of those are right; of flows that the model was \
         trained on, that says little.\n{} rows per second in batches of {}\n",
        100.0 * names.named,
        grouped(names.flows as u64),
        names.right,
        grouped(speed.throughput() as u64),
        speed.rows
    );
    page
}

fn others(labels: &[(&str, usize)]) -> String {
    let shown = labels.iter().take(OTHERS_SHOWN);
    let mut names: Vec<String> =
        shown.map(|(label, flows)| format!("{} {flows}", escape(label))).collect();
    if labels.len() > OTHERS_SHOWN {
        names.push(format!("and {} more labels", labels.len() - OTHERS_SHOWN));
    }
    names.join(", ")
}

/// Rows per batch.
pub const BATCH: usize = 256;

/// The answer to each flow that is asked at a depth; none to the others.
pub fn at_depth(
    flows: &Flows,
    depth: usize,
    k: usize,
    device: &mut dyn Device,
) -> Result<Vec<Option<Classification>>, DeviceError> {
    let mut answers = vec![None; flows.flows.len()];
    let is_asked = |at: &usize| flows.flows[*at].is_asked && flows.flows[*at].elements >= depth;
    let asked: Vec<usize> = (0..flows.flows.len()).filter(is_asked).collect();
    for batch in asked.chunks(BATCH) {
        let series: Vec<Vec<f32>> =
            batch.iter().map(|&at| until(&flows.series[at], depth, k)).collect();
        let contexts: Vec<&[f32]> = batch.iter().map(|&at| &*flows.contexts[at]).collect();
        let results = run_batch(device, &series, &contexts)?;
        for (&at, result) in batch.iter().zip(results) {
            answers[at] = Some(result);
        }
    }
    Ok(answers)
}

/// A series as it was at this depth.
fn until(series: &[f32], depth: usize, k: usize) -> Vec<f32> {
    let mut series = series.to_vec();
    series.chunks_exact_mut(k).for_each(|channel| channel[depth..].fill(0.0));
    series
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Decider {
    Depth(usize),
    Port,
    LastAnswer,
    /// Nothing: the flow ended before the first depth, and its port is not in the table.
    Nothing,
}

impl fmt::Display for Decider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Decider::Depth(elements) => write!(f, "depth {elements}"),
            Decider::Port => f.write_str("port"),
            Decider::LastAnswer => f.write_str("last answer"),
            Decider::Nothing => f.write_str("nothing"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Name {
    /// The class; the number of labels for unknown, [`NONE`] for none.
    pub class: u16,
    /// The probability of the likeliest class, or the precision of the port.
    pub confidence: f32,
    pub by: Decider,
}

pub const NONE: u16 = u16::MAX;

const NO_NAME: Name = Name { class: NONE, confidence: 0.0, by: Decider::Nothing };

pub struct Namer {
    task: TaskConfig,
    /// When answers are sure, by depth.
    sure: Vec<Depth>,
    /// Ports name flows with their first packets.
    is_ports_first: bool,
    /// Number of labels, which stands for unknown.
    unknown: u16,
}

impl Namer {
    pub fn new(bundle: &Bundle) -> Namer {
        let task = task_config(bundle);
        Namer {
            sure: task.sure(),
            is_ports_first: task.is_ports_first(),
            task,
            unknown: bundle.labels().len() as u16,
        }
    }

    /// The name of a flow by the rule of the data path; `answers` are by depth.
    pub fn name(&self, flow: &Flow, answers: &[Option<Classification>]) -> Name {
        let by_port = self.by_port(flow);
        // The ports are the depth before the model's depths.
        let answer = |depth: u8| {
            let at = usize::from(depth).checked_sub(usize::from(self.is_ports_first))?;
            answers.get(at).copied().flatten()
        };
        let label = |depth| {
            if self.is_ports_first && depth == 0 {
                return Some(self.label_by_port(by_port));
            }
            let answer = answer(depth)?;
            let (class, confidence) = (answer.class, in_words(answer.confidence.min(1.0)));
            let (source, model) = (Source::Model, 0);
            Some(Label::Class { class, confidence, source, model })
        };
        let by_model = |depth, by| {
            answer(depth).map_or(NO_NAME, |answer| Name {
                class: answer.class,
                confidence: answer.confidence,
                by,
            })
        };
        match cring::resolve(&self.sure, self.sure.len() as u8, label) {
            Answers::Decided { depth: 0 } if self.is_ports_first => by_port.unwrap_or(NO_NAME),
            Answers::ByPort => by_port.unwrap_or(NO_NAME),
            Answers::Decided { depth } => {
                let DepthConfig { k, sure: least, .. } = self.task.depths[usize::from(depth)];
                let sure = by_model(depth, Decider::Depth(k));
                if self.is_ports_first && by_port.is_some() {
                    return sure;
                }
                let last = by_model(depth, Decider::LastAnswer);
                if sure.class == self.unknown {
                    // With a single depth the model's answer stands, even if it is unknown.
                    return by_port.filter(|_| self.sure.len() > 1).unwrap_or(last);
                }
                match in_words(sure.confidence.min(1.0)) >= least {
                    true => sure,
                    false => last,
                }
            }
            Answers::Unsure { best: Some(depth) } => {
                by_port.unwrap_or_else(|| by_model(depth, Decider::LastAnswer))
            }
            Answers::Unsure { best: None } | Answers::Pending => by_port.unwrap_or(NO_NAME),
        }
    }

    fn label_by_port(&self, by_port: Option<Name>) -> Label {
        match by_port {
            Some(name) => Label::Class {
                class: name.class,
                confidence: u16::MAX,
                source: Source::Port,
                model: 0,
            },
            None => Label::Unlabelled,
        }
    }

    /// What the bundle says of the flow's port. At a flow's end a port says nothing if the flow
    /// has no element, and nobody knows which end is the server of a flow that began mid-stream.
    fn by_port(&self, flow: &Flow) -> Option<Name> {
        let port = flow
            .port
            .filter(|_| (flow.elements > 0 || self.is_ports_first) && !flow.is_midstream)?;
        let named = self.task.ports.iter().find(|it| (it.protocol, it.port) == port)?;
        Some(Name {
            class: named.class,
            confidence: f32::from(named.precision) / f32::from(u16::MAX),
            by: Decider::Port,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A namer for the shipped bundle, in which ports name flows at once. With
    /// `is_ports_first = false`, as if they did not.
    fn namer(is_ports_first: bool) -> Namer {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/protocol");
        let bundle = Bundle::open(Path::new(dir)).unwrap();
        let namer = Namer::new(&bundle);
        assert!(namer.is_ports_first);
        if is_ports_first {
            return namer;
        }
        let mut task = namer.task.clone();
        task.depths.remove(0);
        Namer { sure: task.sure(), task, is_ports_first, ..namer }
    }

    fn answer(class: u16, confidence: f32) -> Option<Classification> {
        Some(Classification { class, confidence })
    }

    /// Elements of a flow, the class of its port, the answers by depth, and the name that it ends
    /// with.
    type Case = (usize, u16, Vec<Option<Classification>>, (u16, Decider));

    fn assert_names(namer: &Namer, cases: &[Case]) {
        for (elements, port, answers, expected) in cases {
            let mut answers = answers.clone();
            answers.resize(5, None);
            let found = namer.name(&flow(*elements, *port), &answers);
            assert_eq!((found.class, found.by), *expected, "{elements} {port} {answers:?}");
        }
        let midstream = Flow { is_asked: false, is_midstream: true, ..flow(3, 53) };
        assert_eq!(namer.name(&midstream, &[None; 5]), NO_NAME);
    }

    fn flow(elements: usize, port: u16) -> Flow {
        let (class, port, line) = (0, Some((17, port)), 2);
        Flow { class, elements, is_asked: true, is_midstream: false, port, line }
    }

    const DNS: (u16, Decider) = (2, Decider::Port);

    /// Depths 1, 2, 3, 5, 10 with the confidences 0.95 and 0.93.
    #[test]
    fn names_follow_the_rule_of_the_data_path() {
        let namer = namer(false);
        let (sure, weak) = (answer(4, 0.96), answer(5, 0.8));
        let unknown = answer(namer.unknown, 0.4);
        let none = (namer.unknown, Decider::LastAnswer);
        let cases = [
            (1, 9999, vec![sure], (4, Decider::Depth(1))),
            (2, 53, vec![weak, sure], (4, Decider::Depth(2))),
            (2, 53, vec![weak, weak], DNS),
            (2, 9999, vec![weak, weak], (5, Decider::LastAnswer)),
            (10, 53, vec![weak; 5], (5, Decider::LastAnswer)),
            (10, 53, vec![unknown; 5], DNS),
            (10, 9999, vec![unknown; 5], none),
            (0, 53, vec![], (NONE, Decider::Nothing)),
        ];
        assert_names(&namer, &cases);
    }

    /// An answer contradicts a port from 0.93 on after 2 and 10 elements, and never after the
    /// others.
    #[test]
    fn a_port_names_a_flow_unless_an_answer_contradicts_it() {
        let namer = namer(true);
        let (sure, weak) = (answer(4, 0.96), answer(5, 0.8));
        let unknown = answer(namer.unknown, 0.96);
        let cases = [
            (0, 53, vec![], DNS),
            (1, 53, vec![sure], DNS),
            (2, 53, vec![weak, weak], DNS),
            (2, 53, vec![weak, sure], (4, Decider::Depth(2))),
            (2, 53, vec![weak, unknown], (namer.unknown, Decider::Depth(2))),
            (10, 53, vec![weak; 5], DNS),
            (1, 9999, vec![sure], (4, Decider::Depth(1))),
            (2, 9999, vec![weak, weak], (5, Decider::LastAnswer)),
        ];
        assert_names(&namer, &cases);
    }
}
