//! Real series to compare models on: from captures, and from tables of labelled flows.

mod table;

use std::path::Path;

use accel::Bundle;
use flowmgr::hash::HashKind;
use flowmgr::{BURST_MAX, Config, Effect, Manager, Packet, SeriesTask};
use packetio::{CaptureReader, Port};

use crate::exit::Failure;

pub use table::of_table;

/// Flows that a capture may have open at once; more have no series.
const CAPTURE_FLOWS_MAX: usize = 1 << 18;
/// Silence that ends a flow, in a capture; as `flow.idle_timeout_s` by default.
const IDLE_TIMEOUT_S: u16 = 30;

/// Input rows, and the class that each ought to get where that is known.
#[derive(Default)]
pub struct Samples {
    /// Channels × K numbers each, channel after channel in the order of the bundle's features.
    pub rows: Vec<Vec<f32>>,
    /// As many, or none at all.
    pub classes: Vec<Option<usize>>,
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
        manager.settle_unsaid(u64::MAX, 0);
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
        dscp: Vec::new(),
        record_series: false,
        flow_id_first: 0,
        flow_id_step: 1,
    }
}

/// A length as a series holds it.
fn saturated(length: i32) -> f32 {
    const MAX: i32 = u16::MAX as i32;
    length.clamp(-MAX, MAX) as f32
}
