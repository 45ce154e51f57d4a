//! Packets in; verdicts, series and flow records out.
//!
//! The crate does no input or output and reads no clock. In the order in which a
//! packet meets them:
//!
//! | module | what |
//! |---|---|
//! | [`manager`](Manager) | the burst loop: the packet's walk, read it first |
//! | [`wire`] | checked headers, from link layer to ports |
//! | `key`, [`hash`] | the ordered 5-tuple and its hashes |
//! | [`Rss`] | which of several flow managers a packet is for, where no network card says it |
//! | `flows` | the flows: how they begin, are found and end |
//! | `table` | buckets of one cache line that point to entries |
//! | `entry` | the data array: hot line, cold line, label words |
//! | `expiry` | time, timeouts and the sweep |
//! | [`part`] | what is kept of a flow in addition to its entry, and when it is called |
//! | `series`, `labels`, `rules`, `behaviour`, `servers` | parts; so is `manager::counted` |
//! | `headers`, `measured`, `services` | more parts |
//! | `memory`, `prefetch`, `tags` | huge pages, prefetching, vector instructions |
//! | `task_config`, `tasks` | what the tasks ask at which depths, and when a series is due |
//! | `target`, `scores` | classes that are bands of what flows will do, and how they held |
//! | [`Actions`], [`tag`] | what happens to packets; DSCP and checksum |
//! | `outbox`, `manager::settle`, [`record`] | records of flows, and when they are written |
//! | `look` | the flows of the table, for people |
//! | [`BareTable`] | the table alone, for measuring |
//! | `counters` | everything that is counted |
//! | [`verdict`] | one per packet, summing up to the packets received |
//!
//! Series leave through a [`cring`] ring; labels come back in the label word of
//! the flow's entry.

#![deny(unsafe_code)]

mod action;
mod arrival;
mod asked;
mod bare_table;
mod behaviour;
mod config;
mod counters;
mod entry;
mod expiry;
mod flows;
pub mod hash;
mod headers;
mod ids;
mod kernel_counts;
mod key;
mod labels;
mod look;
mod manager;
mod measure;
mod measured;
mod memory;
mod outbox;
pub mod part;
mod prefetch;
pub mod record;
mod rss;
mod rules;
mod scores;
mod series;
mod servers;
mod services;
mod settings;
mod table;
pub mod tag;
mod tags;
mod target;
mod task_config;
mod tasks;
pub mod verdict;
pub mod wire;

pub use action::{Action, Actions};
pub use asked::{Asked, Direction, Inside};
pub use bare_table::BareTable;
pub use behaviour::{BEHAVIOUR_BYTES, Behaviour, Bounds};
pub use config::{
    BUCKETS_MAX, BURST_MAX, CLOSED_TIMEOUT_S, Config, ConfigError, DEPTHS_MAX, Effect,
    MAX_FLOWS_MAX, OTHERS_MAX, SERVERS_MAX, SeriesShare, TIMEOUT_S_MAX,
};
pub use counters::{
    BehaviourCounters, Counters, DepthCounters, Evictions, ExpiryLag, FlowsBegun, Merged, Volume,
};
pub use entry::Counts;
pub use headers::HeadersSeen;
pub use ids::TaskId;
pub use kernel_counts::Counted;
pub use key::Key;
pub use look::{
    CHAIN_FLOWS_MAX, FlowDetail, FlowLook, Found, OtherLabel, Standing, TaskDetail, Wanted,
};
pub use manager::{Fate, Given, Manager, Packet};
pub use measure::{RandomLines, hash_by};
pub use memory::Pages;
pub use outbox::LABELS_LOOKED_AT;
pub use part::{First, Part, Seen};
pub use rss::Rss;
pub use rules::{
    RULES_MAX, RuleAnswer, RuleMemory, RuleQuestion, RulesChange, VLAN_UNKNOWN, renewed_max,
};
pub use scores::{ModelScore, Score, TaskScores};
pub use servers::{CELL_BYTES, Cell as ServerCell, ServerCells, ServerCounters, minute};
pub use services::{
    EGRESSES_MAX, EgressBy, LabelTerm, RuleTerm, SERVICES_MAX, Service, ServiceFlows, Services,
    ServicesChange, name_hash,
};
pub use settings::Settings;
pub use target::{Came, Target, TargetOf};
pub use task_config::{DepthConfig, PortLabel, TaskConfig};
pub use wire::Gso;

/// A minute, µs. By packet time, rules with hours are looked up again in each.
pub const MINUTE_US: i64 = 60_000_000;

/// Bytes that a table takes for these tasks, for behaviours, for a memory of this many servers, for
/// samples and for measured features, if there are any, without the memory for `record_series`.
pub fn table_bytes(
    max_flows: usize,
    buckets: usize,
    tasks: &[TaskConfig],
    behaviour: Option<Bounds>,
    servers: Option<usize>,
    samples: SeriesShare,
    measured: ::measure::Features,
) -> usize {
    let behaviours = behaviour.map_or(0, |_| BEHAVIOUR_BYTES);
    let of_servers = servers.map_or(0, |_| servers::FLOW_BYTES);
    let of_samples = match samples.is_none() {
        true => 0,
        false => labels::SAMPLE_BYTES + truth_bytes(tasks.iter().filter(|it| it.target.is_none())),
    };
    let of_measured = measured::bytes_per_flow(measured);
    max_flows * (bytes_per_flow(tasks) + behaviours + of_servers + of_samples + of_measured)
        + servers.map_or(0, |cells| cells.next_power_of_two() * CELL_BYTES)
        + buckets * 64
}

/// Bytes of memory per flow that the table may hold, without its behaviour, its share of the
/// buckets (64 bytes each) and the memory for `record_series`. Live it is 16 bytes
/// less for each depth of the first task behind its second.
pub fn bytes_per_flow(tasks: &[TaskConfig]) -> usize {
    const CHAINED_BUCKET_SHARE: usize = 64 / 8;
    const FREE_LIST: usize = size_of::<u32>();
    let depths: usize = tasks.iter().map(|task| task.depths.len()).sum();
    let deeper = tasks.first().map_or(0, |first| first.depths.len().saturating_sub(1));
    2 * 64
        + depths.saturating_sub(1) * labels::OTHER_DEPTH_BYTES
        + deeper * labels::DEEPER_BYTES
        + truth_bytes(tasks.iter().filter(|task| task.target.is_some()))
        + series::SeriesStore::bytes_per_flow(tasks)
        + headers::FLOW_BYTES
        + CHAINED_BUCKET_SHARE
        + FREE_LIST
}

/// Bytes of memory per flow for the truths of these tasks.
fn truth_bytes<'a>(tasks: impl Iterator<Item = &'a TaskConfig>) -> usize {
    tasks.map(|task| task.depths.len() * labels::TRUTH_BYTES).sum()
}

#[cfg(test)]
mod tests {
    use ::measure::Features;

    use super::{SeriesShare, TaskConfig};

    /// The figure that the documents name: 180 bytes at K = 10.
    #[test]
    fn a_flow_takes_the_documented_memory() {
        let mut tasks = [TaskConfig::lengths(10, 1)];
        assert_eq!(super::bytes_per_flow(&tasks), 64 + 64 + 32 + 8 + 8 + 4);
        assert_eq!(super::bytes_per_flow(&tasks), 180);
        // 4 Mi flows with a quarter as many buckets.
        let mib = |measured| {
            let samples = SeriesShare::NONE;
            super::table_bytes(1 << 22, 1 << 20, &tasks, None, None, samples, measured) >> 20
        };
        assert_eq!(mib(Features::NONE), 784);
        // 192 and 256 bytes more per flow.
        assert_eq!(mib(Features::DEFAULT) - 784, 768);
        assert_eq!(mib(Features::ALL) - 784, 1024);
        // Five depths, as the shipped model has.
        let depth = |k| super::DepthConfig { k, ..tasks[0].depths[0] };
        tasks[0].depths = [1, 2, 3, 5, 10].map(depth).to_vec();
        assert_eq!(super::bytes_per_flow(&tasks), 340);
    }
}
