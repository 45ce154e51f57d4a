//! What readers of the socket get: the length of what follows in four bytes, the lowest first, and
//! an object of JSON.

use std::collections::BTreeMap;

use cring::Context;
use dataplane::tasks::TaskNames;
use flowmgr::record::Sample;
use serde::Serialize;

use crate::sinks::records::rounded;

/// Bytes of JSON in a frame, at most.
const FRAME_BYTES: usize = 1 << 20;
/// What the samples of a frame may take.
pub const SAMPLES_BYTES: usize = FRAME_BYTES - 128;
const VERSION: u32 = 1;

#[derive(Serialize)]
struct Frame<'a> {
    time_us: i64,
    samples: Vec<Line<'a>>,
}

#[derive(Serialize)]
struct Line<'a> {
    task: &'a str,
    labels: &'a [String],
    depth: u8,
    proto: u8,
    server_port: u16,
    began_us: i64,
    /// Signed length; µs since the first element, or 0 where the series has no times.
    elements: Vec<(i32, u64)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<BTreeMap<&'static str, f32>>,
    so_far: SoFar,
    output: Option<Output<'a>>,
    truth: Option<Truth<'a>>,
    weight: f64,
}

#[derive(Serialize)]
struct SoFar {
    bytes: u64,
    us: u64,
}

#[derive(Serialize)]
struct Output<'a> {
    label: Option<&'a str>,
    confidence: f64,
    generation: u16,
}

#[derive(Serialize)]
struct Truth<'a> {
    bytes_to_come: u64,
    us_to_come: u64,
    /// Without a target, nothing tells it.
    label: Option<&'a str>,
}

/// What all readers get of a frame.
pub fn text(time_us: i64, samples: &[(Sample, &TaskNames, f64)]) -> Vec<u8> {
    let samples = samples.iter().map(|(sample, names, weight)| line(sample, names, *weight));
    let text = serde_json::to_vec(&Frame { time_us, samples: samples.collect() });
    // Numbers, names and lists, which JSON has; `before` opens the object.
    text.unwrap_or_default().split_off(1)
}

/// What precedes it for a reader that has lost this number of samples.
pub fn before(lost: u64, text: &[u8]) -> Vec<u8> {
    let head = format!("{{\"version\":{VERSION},\"dropped\":{lost},");
    let length = (head.len() + text.len()) as u32;
    [&length.to_le_bytes(), head.as_bytes()].concat()
}

/// The message of Kafka with what all readers get, from this router, which has lost this number of
/// samples since the last one.
pub fn message(lost: u64, router: &str, text: &[u8]) -> Vec<u8> {
    let router = serde_json::Value::from(router);
    let head = format!("{{\"version\":{VERSION},\"dropped\":{lost},\"router\":{router},");
    [head.as_bytes(), text].concat()
}

/// Bytes that a sample of the task takes, at most.
pub fn bytes_max(names: &TaskNames) -> usize {
    // "[-65535,137438953440],"
    const ELEMENT: usize = 22;
    // Names of fields, and numbers: 470 where all are as long as they can be.
    const OTHERS: usize = 512;
    let json = |text: &str| serde_json::to_string(text).map_or(0, |json| json.len() + 1);
    let labels = names.classes.iter().map(|class| json(class));
    let longest = labels.clone().max().unwrap_or(0);
    let depth = names.depths.iter().max().copied().unwrap_or(0);
    json(&names.name) + labels.sum::<usize>() + 2 * longest + depth * ELEMENT + OTHERS
}

fn line<'a>(sample: &Sample, names: &'a TaskNames, weight: f64) -> Line<'a> {
    let bands = &names.classes[..names.classes.len().saturating_sub(1)];
    let label = |class: u16| names.classes.get(usize::from(class)).map(String::as_str);
    let series = &sample.series;
    let (mut lengths, mut gaps_us) = (series.signed_lengths(), series.inter_arrivals_us());
    let mut at_us = 0;
    let elements = (0..series.k()).map(|_| {
        at_us += u64::from(gaps_us.next().unwrap_or(0));
        (lengths.next().unwrap_or(0), at_us)
    });
    let local = Context::ALL.into_iter().filter(|context| context.is_local());
    let context = local.map(|context| (context.name(), context.value(series)));
    let band = names.target.as_ref().map(|target| target.band(sample.came));
    Line {
        task: &names.name,
        labels: bands,
        depth: sample.depth,
        proto: series.protocol,
        server_port: series.server_port,
        began_us: sample.began_us,
        elements: elements.collect(),
        context: series.local().map(|_| context.collect()),
        so_far: SoFar { bytes: sample.bytes_so_far, us: sample.asked_after_us },
        output: sample.answer.map(|answer| Output {
            label: label(answer.class),
            confidence: rounded(f64::from(answer.confidence) / f64::from(u16::MAX)),
            generation: answer.model,
        }),
        truth: (!sample.is_cut).then(|| Truth {
            bytes_to_come: sample.came.bytes,
            us_to_come: sample.came.us,
            label: band.and_then(label),
        }),
        weight,
    }
}

#[cfg(test)]
pub mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::Arc;

    use cring::{Feature, Features, K_MAX, Series};
    use flowmgr::record::SampleAnswer;
    use flowmgr::{Came, Target, TargetOf, TaskId};
    use serde_json::{Value, json};

    use super::*;

    /// One task of two bands.
    pub fn names() -> Arc<[TaskNames]> {
        let target = Target { of: TargetOf::Volume, edges: vec![1000] };
        let classes = ["small", "large", "unknown"].map(str::to_owned);
        let (name, depths) = ("volume".into(), vec![3, 10]);
        [TaskNames { name, classes: classes.into(), depths, target: Some(target) }].into()
    }

    pub fn sample() -> Sample {
        let mut series = Series::new(6, 3, Features::LENGTHS.with(Feature::InterArrival));
        series.server_port = 443;
        for (at, (length, gap_us)) in [(583, 0), (-1400, 22_000), (99, 5)].into_iter().enumerate() {
            series.set_signed(at, length);
            series.set_inter_arrival_us(at, gap_us);
        }
        Sample {
            flow_id: 5,
            task: TaskId::FIRST,
            depth: 3,
            ports: [40_000, 443],
            began_us: 1_700_000_000_000_000,
            asked_after_us: 22_005,
            bytes_so_far: 2082,
            series,
            answer: Some(SampleAnswer { class: 1, confidence: 59_637, model: 4 }),
            came: Came { bytes: 500, us: 30 },
            is_cut: false,
        }
    }

    /// One that takes as many bytes as a sample of a task can.
    pub fn largest(task: usize, class: usize, names: &TaskNames) -> Sample {
        let k = names.depths.iter().max().copied().unwrap_or(K_MAX);
        let mut series = Series::new(255, k, Features::ALL);
        series.server_port = u16::MAX;
        series.set_local(&[-1.234_567_9e-30; cring::LOCAL]);
        for at in 0..k {
            series.set_signed(at, -65_535);
            series.set_inter_arrival_us(at, u32::MAX);
        }
        let class = (class % names.classes.len()) as u16;
        Sample {
            task: TaskId(task as u8),
            depth: k as u8,
            began_us: i64::MIN,
            asked_after_us: u64::MAX,
            bytes_so_far: u64::MAX,
            series,
            answer: Some(SampleAnswer { class, confidence: 12_345, model: 255 }),
            came: Came { bytes: if class == 0 { 0 } else { u64::MAX }, us: u64::MAX },
            is_cut: names.target.is_some() && usize::from(class) + 1 == names.classes.len(),
            ..sample()
        }
    }

    /// The object of a frame, after its length was checked.
    fn read(lost: u64, text: &[u8]) -> Value {
        let frame = [before(lost, text), text.to_vec()].concat();
        let (length, object) = frame.split_at(4);
        assert_eq!(u32::from_le_bytes(length.try_into().unwrap()) as usize, object.len());
        serde_json::from_slice(object).unwrap()
    }

    #[test]
    fn a_sample_is_told_in_names_and_an_empty_frame_is_one() {
        let names = &names()[0];
        let mut cut = Sample { answer: None, is_cut: true, ..sample() };
        cut.series.set_local(&[12.0, 11.5, 20.0, 3.0, 31.5]);
        let samples = [(sample(), names, 3.5), (cut, names, 1.0)];
        let frame = read(12, &text(9, &samples));
        assert_eq!(
            (&frame["version"], &frame["dropped"], &frame["time_us"]),
            (&json!(1), &json!(12), &json!(9))
        );
        let expected = json!({
            "task": "volume", "labels": ["small", "large"], "depth": 3, "proto": 6,
            "server_port": 443, "began_us": 1_700_000_000_000_000_i64,
            "elements": [[583, 0], [-1400, 22_000], [99, 22_005]],
            "so_far": {"bytes": 2082, "us": 22_005},
            "output": {"label": "large", "confidence": 0.91, "generation": 4},
            "truth": {"bytes_to_come": 500, "us_to_come": 30, "label": "small"},
            "weight": 3.5,
        });
        assert_eq!(frame["samples"][0], expected);
        let cut = &frame["samples"][1];
        assert_eq!((&cut["output"], &cut["truth"]), (&Value::Null, &Value::Null));
        let local = json!({
            "server_volume": 12.0, "server_log_volume": 11.5, "server_duration": 20.0,
            "server_flows": 3.0, "server_gap": 31.5,
        });
        assert_eq!(cut["context"], local);
        assert_eq!(read(0, &text(9, &[]))["samples"], json!([]));
        let message = message(12, "edge \"7\"", &text(9, &samples));
        let mut message: Value = serde_json::from_slice(&message).unwrap();
        let router = message.as_object_mut().unwrap().remove("router");
        assert_eq!((router, message), (Some(json!("edge \"7\"")), frame));
    }
}
