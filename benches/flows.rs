//! A flow manager in memory, and labels for the flows that ask.

use cring::{Consumer, Label, Labels, Slot, Source};
use flowmgr::hash::HashKind;
use flowmgr::{Actions, Config, Effect, Settings, TaskConfig};

/// The label of every series.
pub const LABEL: Label =
    Label::Class { class: 0, confidence: 60_000, source: Source::Model, model: 0 };
/// DSCP of the label's class.
pub const DSCP: u8 = 46;

/// A flow manager for series of `k` packets with `entries` entries, a quarter as many buckets, and
/// a fixed hash key. Flows end after 30 s of silence.
pub fn config(k: usize, entries: usize) -> Config {
    Config {
        tasks: vec![TaskConfig { midstream: true, ..TaskConfig::lengths(k, 2) }],
        settings: Settings {
            idle_timeout_s: 30,
            closed_timeout_s: 5,
            half_open_timeout_s: 0,
            established_timeout_s: 0,
            active_timeout_s: 0,
            end_on_fin_rst: true,
            actions: Actions::of_dscp(&[Some(DSCP), None]),
        },
        hash: HashKind::Keyed { seed: 1 },
        max_flows: entries,
        buckets: (entries / 4).next_power_of_two(),
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

/// Gives [`LABEL`] to the flows of all series in the ring and frees the slots. Returns the number
/// of series, and how many of their flows still waited for a label.
pub fn label_all(ring: &mut Consumer<Slot>, labels: &dyn Labels) -> (usize, usize) {
    let waiting = ring.waiting();
    let mut labelled = 0;
    for slot in (0..waiting).map(|i| ring.get(i)) {
        let (depth, flow) = (slot.series.task, slot.flow);
        let decided = labels.word(depth, flow.index).decide(flow.generation, LABEL);
        labelled += usize::from(decided.is_ok());
    }
    ring.release(waiting);
    (waiting, labelled)
}
