//! The keys of `model.toml` that a bundle may leave out: depths, context and ports.

use std::collections::{HashMap, HashSet};

use serde::Deserialize;

use super::{LabelInfo, Problem, Tensor, UNKNOWN, check_range, check_text};

/// Names of the numbers of a flow as a whole that a bundle may ask for. They are the row of a second input.
pub const CONTEXT: [&str; 2] = ["protocol", "server_port"];

/// The most depths a bundle may have.
const DEPTHS_MAX: usize = 6;

/// Transport protocols by name, with their IP protocol numbers.
const PROTOCOLS: [(&str, u8); 2] = [("tcp", 6), ("udp", 17)];

/// A number of elements after which the model may be asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Depth {
    /// Elements of the series that the model gets, 1 to K; the others are 0.
    pub elements: usize,
    /// An answer at this depth is sure if its confidence is at least this number, 0 to 1.
    pub confidence: f32,
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

/// An entry of `[[ports]]` as it is in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPort {
    protocol: String,
    port: i64,
    label: String,
    precision: f64,
}

/// Checks `depths` against `confidence` and `k`. Without the two keys the model is asked once, after `k` elements.
pub(super) fn depths(
    depths: Option<&[i64]>,
    confidence: Option<&[f64]>,
    k: usize,
) -> Result<Vec<Depth>, Problem> {
    let refuse = |key: &str, problem: String| Err((key.to_owned(), problem));
    let (depths, confidence) = match (depths, confidence) {
        (Some(depths), Some(confidence)) => (depths, confidence),
        (None, None) => {
            let (elements, confidence) = (k, 0.0);
            return Ok(vec![Depth {
                elements,
                confidence,
            }]);
        }
        (Some(_), None) => {
            let problem = "is missing, but depths need it; give a number, 0 to 1, for each depth";
            return refuse("confidence", problem.to_owned());
        }
        (None, Some(_)) => {
            let problem = "is given without depths; name the depths that it belongs to, or remove it (min_confidence \
                           needs no depths)";
            return refuse("confidence", problem.to_owned());
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
        })
        .collect())
}

/// Checks `context` against `[context_input]` and the name of the first input. Returns the names of the numbers and of
/// the input; no names and none where the model has no context.
pub(super) fn context(
    context: Option<Vec<String>>,
    input: Option<Tensor>,
    series_input: &str,
) -> Result<(Vec<String>, Option<String>), Problem> {
    let refuse = |key: &str, problem: String| Err((key.to_owned(), problem));
    let (context, name) = match (context, input) {
        (None, None) => return Ok((Vec::new(), None)),
        (Some(context), Some(input)) => (context, input.name),
        (Some(_), None) => {
            let problem =
                "is missing, but context needs it; name the model's input for the context";
            return refuse("context_input", problem.to_owned());
        }
        (None, Some(_)) => {
            let problem = format!(
                "is given without context; name the numbers that the input takes (of {CONTEXT:?}), or remove it"
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
    let by_name: HashMap<&str, usize> = labels
        .iter()
        .enumerate()
        .map(|(at, label)| (label.name.as_str(), at))
        .collect();
    let mut seen = HashSet::new();
    let mut ports = Vec::with_capacity(raw.len());
    for (at, entry) in raw.iter().enumerate() {
        let refuse = |key: &str, problem: String| Err((format!("ports[{at}]{key}"), problem));
        let known = PROTOCOLS.iter().find(|(name, _)| *name == entry.protocol);
        let Some(&(name, protocol)) = known else {
            let problem = format!("is {:?}, but must be \"tcp\" or \"udp\"", entry.protocol);
            return refuse(".protocol", problem);
        };
        let Some(port) = u16::try_from(entry.port).ok().filter(|&port| port > 0) else {
            let problem = format!("is {}, but must be 1 to {}", entry.port, u16::MAX);
            return refuse(".port", problem);
        };
        if !seen.insert((protocol, port)) {
            let problem = format!("names {name} port {port}, which an earlier entry names already");
            return refuse("", problem);
        }
        if entry.label == UNKNOWN {
            let problem = format!("is {UNKNOWN:?}, which says nothing about a port; name a label");
            return refuse(".label", problem);
        }
        let Some(&label) = by_name.get(entry.label.as_str()) else {
            let problem = format!(
                "is {:?}, which no label is called; name one of [[labels]]",
                entry.label
            );
            return refuse(".label", problem);
        };
        check_range(|| format!("ports[{at}].precision"), entry.precision)?;
        ports.push(PortLabel {
            protocol,
            port,
            label,
            precision: entry.precision as f32,
        });
    }
    Ok(ports)
}
