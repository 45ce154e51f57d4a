//! For tests: the configuration of a flow manager with a small table.

use flowmgr::hash::HashKind;
use flowmgr::{Actions, Config, Effect, Settings, TaskConfig};

/// One task of two classes, K = 10, without timeouts of its own for half-open and established
/// flows.
pub fn config(max_flows: usize) -> Config {
    Config {
        tasks: vec![TaskConfig::lengths(10, 2)],
        settings: Settings {
            idle_timeout_s: 30,
            closed_timeout_s: 5,
            half_open_timeout_s: 0,
            established_timeout_s: 0,
            active_timeout_s: 0,
            end_on_fin_rst: true,
            actions: Actions::of_dscp(&[None, None]),
        },
        hash: HashKind::Keyed { seed: 1 },
        max_flows,
        buckets: max_flows / 4,
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
