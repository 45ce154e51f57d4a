//! Real series to compare models on: from captures, and from tables of labelled flows.
//!
//! A table is CSV, gzipped or not, with a header. Three of its columns are read: `lengths`, signed lengths with spaces
//! between; `label`, such as `TLS.Google`; and `confidence`, how the label was found. Only the first must be there.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use accel::Bundle;
use flate2::read::MultiGzDecoder;
use flowmgr::hash::HashKind;
use flowmgr::{Actions, BURST_MAX, Config, Effect, Manager, Packet, SeriesTask};
use packetio::{CaptureReader, Port};
use serde::Deserialize;

use crate::exit::Failure;

/// Flows that a capture may have open at once; more have no series.
const CAPTURE_FLOWS_MAX: usize = 1 << 18;
/// Silence that ends a flow, in a capture; as `flow.idle_timeout_s` by default.
const IDLE_TIMEOUT_S: u16 = 30;

/// The label under which a model puts all that it has no name for, if it has such a label.
const OTHER: &str = "other";
/// The confidence of labels that were found in the flow's bytes and not guessed.
const CERTAIN: &str = "dpi";

/// Input rows, and the class that each ought to get where that is known.
#[derive(Default)]
pub struct Samples {
    /// K signed lengths each.
    pub rows: Vec<Vec<f32>>,
    /// As many, or none at all.
    pub classes: Vec<Option<usize>>,
}

/// A line of a table.
#[derive(Deserialize)]
struct Flow {
    lengths: String,
    label: Option<String>,
    confidence: Option<String>,
}

/// The flows of a table that have K lengths.
///
/// # Errors
/// The file cannot be read, or is no such table.
pub fn of_table(path: &Path, bundle: &Bundle) -> Result<Samples, Failure> {
    let bad =
        |problem: &dyn std::fmt::Display| Failure::data(format!("{}: {problem}", path.display()));
    let file = File::open(path).and_then(gunzipped).map_err(|error| {
        Failure::no_input(format!("{}: cannot be read: {error}", path.display()))
    })?;
    let mut samples = Samples::default();
    let mut table = csv::Reader::from_reader(file);
    for (at, flow) in table.deserialize().enumerate() {
        let flow: Flow = flow.map_err(|error| bad(&error))?;
        let lengths: Result<Vec<i32>, _> = flow
            .lengths
            .split(' ')
            .take(bundle.k())
            .map(str::parse)
            .collect();
        let lengths =
            lengths.map_err(|error| bad(&format!("flow {at}: \"{}\": {error}", flow.lengths)))?;
        if lengths.len() == bundle.k() {
            samples
                .rows
                .push(lengths.into_iter().map(saturated).collect());
            samples.classes.push(class_of(&flow, bundle));
        }
    }
    Ok(samples)
}

/// The file's bytes, unpacked where they begin as gzip does.
fn gunzipped(mut file: File) -> io::Result<Box<dyn Read>> {
    let mut first = Vec::new();
    file.by_ref().take(2).read_to_end(&mut first)?;
    let is_gzip = first == [0x1f, 0x8b];
    let whole = io::Cursor::new(first).chain(file);
    Ok(match is_gzip {
        true => Box::new(MultiGzDecoder::new(whole)),
        false => Box::new(whole),
    })
}

/// A length as a series holds it.
fn saturated(length: i32) -> f32 {
    const MAX: i32 = u16::MAX as i32;
    length.clamp(-MAX, MAX) as f32
}

/// The bundle's class of the flow's label: its whole name, or what stands before the first dot, or "other". None where
/// the label was not found in the flow's bytes.
fn class_of(flow: &Flow, bundle: &Bundle) -> Option<usize> {
    let label = flow.label.as_deref().filter(|label| !label.is_empty())?;
    if flow
        .confidence
        .as_deref()
        .is_some_and(|confidence| confidence != CERTAIN)
    {
        return None;
    }
    let class = |name: &str| bundle.labels().iter().position(|label| label.name == name);
    let protocol = label.split('.').next().unwrap_or(label);
    class(label)
        .or_else(|| class(protocol))
        .or_else(|| class(OTHER))
}

/// The series of a capture's flows, without classes.
///
/// # Errors
/// The capture cannot be opened or is damaged.
pub fn of_capture(path: &Path, bundle: &Bundle) -> Result<Samples, Failure> {
    let mut capture =
        CaptureReader::open(path).map_err(|error| Failure::no_input(error.to_string()))?;
    let (producer, mut ring) = cring::ring(2 * BURST_MAX);
    let mut manager = Manager::new(flow_config(bundle.k(), bundle.midstream()), producer)
        .map_err(|error| Failure::unavailable(error.to_string()))?;
    let mut fates = Vec::with_capacity(BURST_MAX);
    let mut samples = Samples::default();
    while let Some(mut burst) = capture.receive(BURST_MAX)? {
        let (data, frames) = burst.parts();
        let packets: Vec<Packet> = frames
            .iter()
            .map(|frame| Packet {
                at: frame.at,
                captured: frame.captured,
                link: frame.link,
                time_us: frame.time_us,
                rss: frame.rss,
            })
            .collect();
        manager.burst(data, &packets, 0, &mut fates);
        manager.discard_records(u64::MAX, 0);
        let waiting = ring.waiting();
        let series = (0..waiting).map(|at| &ring.get(at).series);
        samples
            .rows
            .extend(series.map(|series| series.signed_lengths().map(saturated).collect()));
        ring.release(waiting);
    }
    Ok(samples)
}

/// Flows as a replay has them by default, but for what becomes of their labels.
fn flow_config(k: usize, midstream: bool) -> Config {
    Config {
        tasks: vec![SeriesTask {
            midstream,
            ..SeriesTask::lengths(k, 0)
        }],
        idle_timeout_s: IDLE_TIMEOUT_S,
        closed_timeout_s: 5,
        half_open_timeout_s: 0,
        established_timeout_s: 0,
        active_timeout_s: 0,
        end_on_fin_rst: true,
        hash: HashKind::Keyed { seed: 0 },
        max_flows: CAPTURE_FLOWS_MAX,
        buckets: CAPTURE_FLOWS_MAX / 4,
        effect: Effect::Arrival,
        actions: Actions::of_dscp(&[]),
        record_series: false,
        flow_id_first: 0,
        flow_id_step: 1,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn bundle() -> Bundle {
        Bundle::open(Path::new(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../models/app-id-k10"
        )))
        .unwrap()
    }

    fn table(bytes: &[u8]) -> Result<Samples, Failure> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        of_table(file.path(), &bundle())
    }

    const TEN: &str = "52 -52 52 -52 52 -52 52 -52 52 -52";

    #[test]
    fn labels_become_classes_where_they_are_certain() {
        let class = |name: &str| {
            bundle()
                .labels()
                .iter()
                .position(|label| label.name == name)
        };
        for (label, confidence, expected) in [
            ("TLS", "dpi", class("TLS")),
            ("TLS.Google", "dpi", class("TLS")),
            ("DNS", "dpi", class("other")),
            ("TLS", "port", None),
            ("", "dpi", None),
        ] {
            let text = format!("label,lengths,confidence\n{label},{TEN},{confidence}\n");
            assert_eq!(
                table(text.as_bytes()).unwrap().classes,
                [expected],
                "{label} {confidence}"
            );
        }
        assert_eq!(
            table(format!("lengths\n{TEN}\n").as_bytes())
                .unwrap()
                .classes,
            [None]
        );
        assert_eq!(
            table(format!("lengths,label\n{TEN},QUIC\n").as_bytes())
                .unwrap()
                .classes,
            [class("QUIC")]
        );
    }

    #[test]
    fn series_have_k_saturated_lengths_and_shorter_flows_none() {
        let text = format!("lengths\n1 2 3\n70000 -70000 {TEN}\n");
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(text.as_bytes()).unwrap();
        for bytes in [text.into_bytes(), packed.finish().unwrap()] {
            let samples = table(&bytes).unwrap();
            assert_eq!((samples.rows.len(), samples.classes.len()), (1, 1));
            assert_eq!(samples.rows[0][..3], [65_535.0, -65_535.0, 52.0]);
            assert_eq!(samples.rows[0].len(), 10);
        }
    }

    #[test]
    fn what_is_no_such_table_is_refused() {
        for (text, named) in [
            ("length\n1 2\n", "lengths"),
            ("lengths\n52 x\n", "flow 0"),
            ("lengths,label\n1 2\n", "record 1"),
        ] {
            let message = table(text.as_bytes()).err().unwrap().to_string();
            assert!(
                message.contains(named) && message.lines().count() == 1,
                "{message}"
            );
        }
        assert_eq!(
            of_table(Path::new("/nowhere.csv"), &bundle())
                .err()
                .unwrap()
                .code(),
            66
        );
    }
}
