//! Compares two models on the same series: how often they agree on the class, how far apart their
//! probabilities are and, if the true class is known, their accuracies.
//!
//! The class is the likeliest one, regardless of `min_confidence`: this compares models, not
//! thresholds.

#[cfg(test)]
mod tests;

use std::num::NonZeroU32;
use std::path::Path;

use accel::{Bundle, Device, argmax, run_batch};
use cring::{Feature, Series};
use flowmgr::hash::HashKind;
use flowmgr::{Actions, BURST_MAX, Config, Effect, Manager, Packet, Settings, TaskConfig};
use packetio::{CaptureReader, Received, Rx};
use serde_json::{Value, json};

use super::columns::Columns;
use super::table::Table;
use crate::exit::Failure;
use dataplane::bundle::{context, features, task_config};

/// Rows per batch.
pub const BATCH: usize = 256;

pub struct Model {
    pub bundle: Bundle,
    pub device: Box<dyn Device>,
}

impl Model {
    fn probabilities(&mut self, samples: &Samples) -> Result<Vec<f32>, Failure> {
        let rows = &samples.rows;
        let mut probabilities = Vec::with_capacity(rows.len() * self.bundle.shape().classes);
        for (batch, context) in rows.chunks(BATCH).zip(samples.contexts.chunks(BATCH)) {
            run_batch(self.device.as_mut(), batch, context)
                .map_err(|error| Failure::data(format!("{}: {error}", self.bundle.name())))?;
            probabilities.extend_from_slice(self.device.probabilities());
        }
        Ok(probabilities)
    }
}

#[derive(Debug, Default, PartialEq)]
pub struct Comparison {
    pub source: String,
    pub rows: usize,
    /// Series that get the same class from both models.
    pub same_class: usize,
    pub max_difference: f32,
    /// The mean difference over all probabilities of all rows.
    pub mean_difference: f64,
    pub labelled: usize,
    /// Labelled series that the model gets right.
    pub right: usize,
    /// Labelled series that the other model gets right.
    pub right_against: usize,
}

impl Comparison {
    /// Runs both models on the samples. Both must have the same labels and take the same series.
    pub fn measure(
        source: String,
        samples: &Samples,
        model: &mut Model,
        against: &mut Model,
    ) -> Result<Comparison, Failure> {
        if samples.rows.is_empty() {
            let k = model.bundle.k();
            let elements = match model.bundle.unit() {
                "data" => "packets with payload",
                _ => "packets",
            };
            return Err(Failure::data(format!(
                "{source}: no flow with {k} {elements} to compare on"
            )));
        }
        let classes = model.bundle.shape().classes;
        let ours = model.probabilities(samples)?;
        let theirs = against.probabilities(samples)?;
        let mut comparison = Comparison::between(&ours, &theirs, classes, &samples.classes);
        comparison.source = source;
        Ok(comparison)
    }

    fn between(
        ours: &[f32],
        theirs: &[f32],
        classes: usize,
        truth: &[Option<usize>],
    ) -> Comparison {
        let mut comparison = Comparison::default();
        for (our, their) in ours.iter().zip(theirs) {
            let difference = (our - their).abs();
            comparison.max_difference = comparison.max_difference.max(difference);
            comparison.mean_difference += f64::from(difference) / ours.len() as f64;
        }
        let rows = ours.chunks_exact(classes).zip(theirs.chunks_exact(classes));
        let truth = truth.iter().copied().chain(std::iter::repeat(None));
        for ((our, their), class) in rows.zip(truth) {
            let (our, their) = (argmax(our), argmax(their));
            comparison.rows += 1;
            comparison.same_class += usize::from(our == their);
            if let Some(class) = class {
                comparison.labelled += 1;
                comparison.right += usize::from(our == class);
                comparison.right_against += usize::from(their == class);
            }
        }
        comparison
    }

    /// Share of the series that get the same class from both, 0 to 1.
    fn share(&self) -> f64 {
        self.same_class as f64 / self.rows as f64
    }

    /// Accuracy of the model and of the other, 0 to 1, where labels are known.
    fn accuracies(&self) -> Option<(f64, f64)> {
        let all = self.labelled as f64;
        (self.labelled > 0).then(|| (self.right as f64 / all, self.right_against as f64 / all))
    }

    pub fn as_text(&self) -> String {
        let mut text = format!(
            "  {}: same class for {} of {} series ({:.2} %); probabilities differ by {:.4} on \
             average, {:.4} at most\n",
            self.source,
            self.same_class,
            self.rows,
            100.0 * self.share(),
            self.mean_difference,
            self.max_difference,
        );
        if let Some((accuracy, against)) = self.accuracies() {
            text += &format!(
                "  {}: of {} with a known class {:.2} % right, against {:.2} %: a loss of {:.2} \
                 points\n",
                self.source,
                self.labelled,
                100.0 * accuracy,
                100.0 * against,
                100.0 * (against - accuracy),
            );
        }
        text
    }

    /// The comparison as JSON; shares and accuracies are 0 to 1.
    pub fn as_json(&self) -> Value {
        let accuracies = self.accuracies();
        json!({
            "source": self.source,
            "series": self.rows,
            "same_class": self.share(),
            "mean_difference": self.mean_difference,
            "max_difference": self.max_difference,
            "labelled": self.labelled,
            "accuracy": accuracies.map(|(accuracy, _)| accuracy),
            "accuracy_against": accuracies.map(|(_, against)| against),
            "accuracy_loss": accuracies.map(|(accuracy, against)| against - accuracy),
        })
    }
}

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
                time_us: Packet::clamp_time(frame.time_us),
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
        tasks: vec![TaskConfig { ports: Vec::new(), ..task_config(bundle) }],
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
        inside: flowmgr::Inside::default(),
        expects_counts: false,
        behaviour: None,
        servers: None,
        samples: flowmgr::SeriesShare::NONE,
        measured: Default::default(),
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
