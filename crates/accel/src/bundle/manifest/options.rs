//! The keys of `model.toml` that a bundle may leave out: depths, contradiction, context, ports and
//! hosts.

use std::collections::{HashMap, HashSet};

use serde::Deserialize;

use super::{LabelInfo, Problem, Tensor, UNKNOWN, check_range, check_text, refuse};

/// Names of the numbers of a flow as a whole that a bundle may ask for. They are the row of a
/// second input.
pub const CONTEXT: [&str; 7] = [
    "protocol",
    "server_port",
    "server_volume",
    "server_log_volume",
    "server_duration",
    "server_flows",
    "server_gap",
];

/// The most depths a bundle may have.
const DEPTHS_MAX: usize = 6;

/// The most flows of a host that may count.
const HOST_FLOWS_MAX: i64 = 256;

/// By how much a sum of rounded shares may be above 1.
const SUM_TOLERANCE: f64 = 1e-3;

/// Transport protocols by name, with their IP protocol numbers.
const PROTOCOLS: [(&str, u8); 2] = [("tcp", 6), ("udp", 17)];

/// A number of elements after which the model may be asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Depth {
    /// Elements of the series that the model gets, 1 to K; the others are 0.
    pub elements: usize,
    /// An answer at this depth is sure if its confidence is at least this number, 0 to 1.
    pub confidence: f32,
    /// Where ports name flows with their first packets, an answer of another class contradicts the
    /// port if its confidence is at least this number, 0 to 1; none does if it is 1.
    pub contradiction: Option<f32>,
}

/// What flows to a port are, where the model has no sure answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PortLabel {
    /// IP protocol number: 6 for TCP, 17 for UDP.
    pub protocol: u8,
    /// Port of the server, 1 to 65,535.
    pub port: u16,
    /// Index into the bundle's labels.
    pub label: usize,
    /// Share of the flows to this port that have the label, 0 to 1.
    pub precision: f32,
}

/// How hosts are named by the labels of their first flows.
#[derive(Clone, Debug, PartialEq)]
pub struct HostLabels {
    /// How many first flows of a host count, at least 1.
    pub flows: usize,
    /// How many of them a host needs before it is named, 1 to `flows`.
    pub min_flows: usize,
    /// A host is named if the probability of its likeliest class is at least this number, 0 to 1.
    pub confidence: f32,
    /// What flows are that get a wrong label. No pair of labels occurs twice.
    pub confusions: Vec<Confusion>,
}

/// How often flows of a label are among those that wrongly get another one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Confusion {
    /// The label that the flows get, as an index into the bundle's labels.
    pub named: usize,
    /// The label that they should have.
    pub label: usize,
    /// Their share of all flows that wrongly get the label `named`; the shares of one such label
    /// add up to 1 at most.
    pub share: f32,
}

/// `[hosts]` as it is in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawHosts {
    flows: i64,
    min_flows: i64,
    confidence: f64,
    #[serde(default)]
    confusions: Vec<RawConfusion>,
}

/// An entry of `[[hosts.confusions]]` as it is in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawConfusion {
    named: String,
    label: String,
    share: f64,
}

/// An entry of `[[ports]]` as it is in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPort {
    protocol: String,
    port: i64,
    label: String,
    precision: f64,
}

/// Adds `contradiction`, a number for each of the depths that the bundle names.
pub(super) fn contradiction(
    depths: &mut [Depth],
    are_named: bool,
    contradiction: Option<&[f64]>,
) -> Result<(), Problem> {
    let Some(contradiction) = contradiction else {
        return Ok(());
    };
    if !are_named {
        let problem = "is given without depths; name the depths that it belongs to, or remove it";
        return refuse("contradiction", problem);
    }
    if contradiction.len() != depths.len() {
        let (found, expected) = (contradiction.len(), depths.len());
        let problem = format!("has {found} entries, but must have {expected}, one for each depth");
        return refuse("contradiction", problem);
    }
    for (at, (depth, &least)) in depths.iter_mut().zip(contradiction).enumerate() {
        check_range(|| format!("contradiction[{at}]"), least)?;
        depth.contradiction = Some(least as f32);
    }
    Ok(())
}

/// Checks `depths` against `confidence` and `k`. Without the two keys the model is asked once,
/// after `k` elements.
pub(super) fn depths(
    depths: Option<&[i64]>,
    confidence: Option<&[f64]>,
    k: usize,
) -> Result<Vec<Depth>, Problem> {
    let (depths, confidence) = match (depths, confidence) {
        (Some(depths), Some(confidence)) => (depths, confidence),
        (None, None) => {
            let (elements, confidence) = (k, 0.0);
            return Ok(vec![Depth { elements, confidence, contradiction: None }]);
        }
        (Some(_), None) => {
            let problem = "is missing, but depths need it; give a number, 0 to 1, for each depth";
            return refuse("confidence", problem);
        }
        (None, Some(_)) => {
            let problem = "is given without depths; name the depths that it belongs to, or remove \
                it (min_confidence needs no depths)";
            return refuse("confidence", problem);
        }
    };
    if depths.is_empty() || depths.len() > DEPTHS_MAX {
        let found = depths.len();
        let problem = format!("has {found} entries, but must have 1 to {DEPTHS_MAX}");
        return refuse("depths", problem);
    }
    if !depths.is_sorted_by(|a, b| a < b) || depths[0] < 1 {
        let problem = format!("is {depths:?}, but must be numbers of elements that rise from 1");
        return refuse("depths", problem);
    }
    if depths.last().map(|&last| usize::try_from(last)) != Some(Ok(k)) {
        let problem = format!("is {depths:?}, but must end with k, which is {k}");
        return refuse("depths", problem);
    }
    if confidence.len() != depths.len() {
        let (found, expected) = (confidence.len(), depths.len());
        let problem = format!("has {found} entries, but must have {expected}, one for each depth");
        return refuse("confidence", problem);
    }
    for (at, &confidence) in confidence.iter().enumerate() {
        check_range(|| format!("confidence[{at}]"), confidence)?;
    }
    let depths = depths.iter().zip(confidence);
    Ok(depths
        .map(|(&elements, &confidence)| Depth {
            elements: elements as usize,
            confidence: confidence as f32,
            contradiction: None,
        })
        .collect())
}

/// Checks `context` against `[context_input]` and the name of the first input. Returns the names of
/// the numbers and of the input; no names and none where the model has no context.
pub(super) fn context(
    context: Option<Vec<String>>,
    input: Option<Tensor>,
    series_input: &str,
) -> Result<(Vec<String>, Option<String>), Problem> {
    let (context, name) = match (context, input) {
        (None, None) => return Ok((Vec::new(), None)),
        (Some(context), Some(input)) => (context, input.name),
        (Some(_), None) => {
            let problem =
                "is missing, but context needs it; name the model's input for the context";
            return refuse("context_input", problem);
        }
        (None, Some(_)) => {
            let problem = format!(
                "is given without context; name the numbers that the input takes (of {CONTEXT:?}), \
                 or remove it"
            );
            return refuse("context_input", problem);
        }
    };
    if context.is_empty() {
        let problem =
            format!("is empty, but must name at least one of {CONTEXT:?}, or be left out");
        return refuse("context", problem);
    }
    for (at, number) in context.iter().enumerate() {
        if !CONTEXT.contains(&number.as_str()) {
            let problem = format!(
                "asks for {number:?}, which this program does not have (it has {CONTEXT:?})"
            );
            return refuse("context", problem);
        }
        if context[..at].contains(number) {
            return refuse("context", format!("names {number:?} twice"));
        }
    }
    check_text("context_input.name", &name)?;
    if name == series_input {
        let problem = format!("is {name:?}, which input.name is already; the two inputs differ");
        return refuse("context_input.name", problem);
    }
    Ok((context, Some(name)))
}

/// Checks `[[ports]]` against the labels, which are without "unknown".
pub(super) fn ports(raw: &[RawPort], labels: &[LabelInfo]) -> Result<Vec<PortLabel>, Problem> {
    let by_name = numbers(labels);
    let mut seen = HashSet::new();
    let mut ports = Vec::with_capacity(raw.len());
    for (at, entry) in raw.iter().enumerate() {
        let key = |key: &str| format!("ports[{at}]{key}");
        let known = PROTOCOLS.iter().find(|(name, _)| *name == entry.protocol);
        let Some(&(name, protocol)) = known else {
            let problem = format!("is {:?}, but must be \"tcp\" or \"udp\"", entry.protocol);
            return refuse(key(".protocol"), problem);
        };
        let Some(port) = u16::try_from(entry.port).ok().filter(|&port| port > 0) else {
            let problem = format!("is {}, but must be 1 to {}", entry.port, u16::MAX);
            return refuse(key(".port"), problem);
        };
        if !seen.insert((protocol, port)) {
            let problem = format!("names {name} port {port}, which an earlier entry names already");
            return refuse(key(""), problem);
        }
        if entry.label == UNKNOWN {
            let problem = format!("is {UNKNOWN:?}, which says nothing about a port; name a label");
            return refuse(key(".label"), problem);
        }
        let Some(&label) = by_name.get(entry.label.as_str()) else {
            return refuse(key(".label"), no_label(&entry.label));
        };
        check_range(|| key(".precision"), entry.precision)?;
        ports.push(PortLabel { protocol, port, label, precision: entry.precision as f32 });
    }
    Ok(ports)
}

/// Checks `[hosts]` against the labels, which are without "unknown".
pub(super) fn hosts(raw: &RawHosts, labels: &[LabelInfo]) -> Result<HostLabels, Problem> {
    let (flows, min_flows) = (raw.flows, raw.min_flows);
    if !(1..=HOST_FLOWS_MAX).contains(&flows) {
        let problem = format!("is {flows}, but must be 1 to {HOST_FLOWS_MAX} flows");
        return refuse("hosts.flows", problem);
    }
    if !(1..=flows).contains(&min_flows) {
        let problem = format!("is {min_flows}, but must be 1 to hosts.flows, which is {flows}");
        return refuse("hosts.min_flows", problem);
    }
    check_range(|| "hosts.confidence".to_owned(), raw.confidence)?;
    Ok(HostLabels {
        flows: flows as usize,
        min_flows: min_flows as usize,
        confidence: raw.confidence as f32,
        confusions: confusions(&raw.confusions, labels)?,
    })
}

/// Checks `[[hosts.confusions]]`.
fn confusions(raw: &[RawConfusion], labels: &[LabelInfo]) -> Result<Vec<Confusion>, Problem> {
    let by_name = numbers(labels);
    let mut sums: HashMap<usize, f64> = HashMap::new();
    let mut found: Vec<Confusion> = Vec::with_capacity(raw.len());
    for (at, entry) in raw.iter().enumerate() {
        let key = |key: &str| format!("hosts.confusions[{at}]{key}");
        let number = |name: &String| by_name.get(name.as_str()).copied();
        let Some(named) = number(&entry.named) else {
            return refuse(key(".named"), no_label(&entry.named));
        };
        let Some(label) = number(&entry.label) else {
            return refuse(key(".label"), no_label(&entry.label));
        };
        if named == label {
            let problem = format!("is {:?}, which named is already; name another", entry.label);
            return refuse(key(".label"), problem);
        }
        if found.iter().any(|it| (it.named, it.label) == (named, label)) {
            let problem = "has the labels of an earlier entry; remove one of the two";
            return refuse(key(""), problem);
        }
        check_range(|| key(".share"), entry.share)?;
        let sum = sums.entry(named).or_default();
        *sum += entry.share;
        if *sum > 1.0 + SUM_TOLERANCE {
            let problem = format!(
                "is {}, which makes the shares of {:?} add up to {sum:.4}, but 1 is all of them",
                entry.share, entry.named
            );
            return refuse(key(".share"), problem);
        }
        found.push(Confusion { named, label, share: entry.share as f32 });
    }
    Ok(found)
}

/// The index of each label by its name.
fn numbers(labels: &[LabelInfo]) -> HashMap<&str, usize> {
    let labels = labels.iter().enumerate();
    labels.map(|(at, label)| (label.name.as_str(), at)).collect()
}

fn no_label(name: &str) -> String {
    format!("is {name:?}, which no label is called; name one of [[labels]] that is not {UNKNOWN:?}")
}
