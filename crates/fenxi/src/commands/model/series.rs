//! Real series to compare models on: from captures, and from tables of labelled flows.

#[cfg(test)]
mod tests;

use std::num::NonZeroU32;
use std::path::Path;

use accel::Bundle;
use cring::{Feature, Series};
use flowmgr::hash::HashKind;
use flowmgr::{Actions, BURST_MAX, Config, Effect, Manager, Packet, Settings};
use packetio::{CaptureReader, Received, Rx};

use super::columns::Columns;
use super::table::Table;
use crate::exit::Failure;
use dataplane::bundle::{context, features, series_tasks};

/// Maximum number of concurrent flows of a capture; further flows have no series.
const CAPTURE_FLOWS_MAX: usize = 1 << 18;
/// Idle timeout of flows in a capture; the default of `flow.idle_timeout_s`.
const IDLE_TIMEOUT_S: u16 = 30;

/// The label that a model without a column "unknown" may use for everything without a label of its
/// own.
const OTHER: &str = "other";
/// The confidence of labels that were found in the flow's bytes and not guessed.
const CERTAIN: &str = "dpi";

/// Input rows, and the true class of each if known.
#[derive(Default)]
pub struct Samples {
    /// Channels × K numbers each, channel after channel in the order of the bundle's features.
    pub rows: Vec<Vec<f32>>,
    /// Context of each flow, the model's second input; empty rows if it has none.
    pub contexts: Vec<Vec<f32>>,
    /// One per row, or empty.
    pub classes: Vec<Option<usize>>,
}

/// The series of a capture's flows, without classes.
pub fn of_capture(path: &Path, bundle: &Bundle) -> Result<Samples, Failure> {
    let mut capture =
        CaptureReader::open(path).map_err(|error| Failure::no_input(error.to_string()))?;
    let (producer, mut ring) = cring::ring(2 * BURST_MAX);
    let (features, context) = (features(bundle), context(bundle));
    let mut manager = Manager::new(flow_config(bundle), producer)
        .map_err(|error| Failure::unavailable(error.to_string()))?;
    let mut fates = Vec::with_capacity(BURST_MAX);
    let mut samples = Samples::default();
    while let Received::Burst(mut burst) = capture.receive(BURST_MAX)? {
        let (data, frames) = burst.parts();
        let packets: Vec<Packet> = frames
            .iter()
            .map(|frame| Packet {
                at: frame.at,
                captured: frame.captured,
                wire: u32::MAX,
                link: frame.link,
                time_us: frame.time_us,
                rss: frame.rss.and_then(NonZeroU32::new),
                gso: flowmgr::Gso::from_bits(frame.gso.bits()),
            })
            .collect();
        manager.burst(data, &packets, 0, &mut fates);
        manager.discard_records(u64::MAX, 0);
        let waiting = ring.waiting();
        for series in (0..waiting).map(|at| &ring.get(at).series) {
            samples.rows.push(row(series, &features, bundle.k()));
            let numbers = context.iter().map(|number| number.value(series));
            samples.contexts.push(numbers.collect());
        }
        ring.release(waiting);
    }
    Ok(samples)
}

/// The flow settings that a replay has by default, without tagging.
fn flow_config(bundle: &Bundle) -> Config {
    Config {
        tasks: series_tasks(bundle),
        ports: Vec::new(),
        settings: Settings {
            idle_timeout_s: IDLE_TIMEOUT_S,
            closed_timeout_s: 5,
            half_open_timeout_s: 0,
            established_timeout_s: 0,
            active_timeout_s: 0,
            end_on_fin_rst: true,
            actions: Actions::of_dscp(&[]),
        },
        hash: HashKind::Keyed { seed: 0 },
        max_flows: CAPTURE_FLOWS_MAX,
        buckets: CAPTURE_FLOWS_MAX / 4,
        effect: Effect::Arrival,
        record_series: flowmgr::SeriesShare::NONE,
        flow_id_first: 0,
        flow_id_step: 1,
        asked: Vec::new(),
        inside: flowmgr::Inside::default(),
        expects_counts: false,
        behaviour: None,
    }
}

/// A series as a row of input, channel after channel of `k` numbers; 0 beyond its elements.
fn row(series: &Series, features: &[Feature], k: usize) -> Vec<f32> {
    let mut row = Vec::with_capacity(features.len() * k);
    for (at, &feature) in features.iter().enumerate() {
        match feature {
            Feature::SignedLength => row.extend(series.signed_lengths().map(|bytes| bytes as f32)),
            Feature::InterArrival => row.extend(series.inter_arrivals_us().map(|us| us as f32)),
            Feature::PayloadLength | Feature::TcpFlags => {
                row.extend(series.channel(feature).iter().copied().map(f32::from));
            }
        }
        row.resize((at + 1) * k, 0.0);
    }
    row
}

/// The flows of a table that have K elements.
pub fn of_table(path: &Path, bundle: &Bundle) -> Result<Samples, Failure> {
    let mut table = Table::open(path)?;
    let columns = Columns::find(&table, bundle)?;
    let (label, confidence) = (table.column("label"), table.column("confidence"));
    let mut samples = Samples::default();
    while let Some(row) = table.next_row()? {
        let (elements, series) = columns.series(&row)?;
        if elements < bundle.k() {
            continue;
        }
        samples.rows.push(series);
        samples.contexts.push(columns.context(&row)?);
        let confidence = confidence.map(|column| row.cell(Some(column)));
        let class = class_of(row.cell(label), confidence, bundle);
        samples.classes.push(class);
    }
    Ok(samples)
}

/// The bundle's class for the flow's label: its full name, the part before the first dot, "other",
/// or the column "unknown". `None` if the label was not found in the flow's bytes.
fn class_of(label: &str, confidence: Option<&str>, bundle: &Bundle) -> Option<usize> {
    if label.is_empty() || confidence.is_some_and(|confidence| confidence != CERTAIN) {
        return None;
    }
    let class = |name: &str| bundle.labels().iter().position(|label| label.name == name);
    let protocol = label.split('.').next().unwrap_or(label);
    let (labels, columns) = (bundle.labels().len(), bundle.shape().classes);
    class(label)
        .or_else(|| class(protocol))
        .or_else(|| class(OTHER))
        .or((columns > labels).then_some(labels))
}
