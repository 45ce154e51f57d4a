//! The configuration of a flow manager, and its check.

use std::io;
use std::ops::RangeInclusive;

use cring::{Features, K_MAX, TASKS_MAX, Unit};
use thiserror::Error;

use crate::hash::HashKind;
use crate::settings::Settings;

/// The longest timeout of a silent flow, s; 0 is none. Ages are kept in 16 bits of seconds.
pub const TIMEOUT_S_MAX: u16 = 32_000;
/// Timeouts of a flow that FIN or RST closed, s.
pub const CLOSED_TIMEOUT_S: RangeInclusive<u16> = 1..=300;
/// The most flows of a table: at 172 bytes a flow and more, above 11 GB; more is taken for a slip of the keyboard. Indices
/// have 32 bits.
pub const MAX_FLOWS_MAX: usize = 1 << 26;
/// The most buckets of a table, of eight flows each: twice what [`MAX_FLOWS_MAX`] flows need.
pub const BUCKETS_MAX: usize = 1 << 24;

/// From when on a label counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// From the moment it is there: a live run.
    Arrival,
    /// From `delay_us` of packet time after the K-th packet, whenever it really
    /// comes: a replay that repeats. Records then wait for labels.
    PacketTime {
        /// µs.
        delay_us: i64,
    },
}

/// What one task asks of a flow's first packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesTask {
    /// Elements in a series, 1 to [`K_MAX`].
    pub k: usize,
    /// Which packets are elements.
    pub unit: Unit,
    /// What is collected of each element; at least one.
    pub features: Features,
    /// Flows of TCP that begin mid-stream are asked about too: the model was trained for them. Otherwise they give no
    /// series, since the first packets seen are not those that the model knows.
    pub midstream: bool,
    /// Classes that labels of this task have, `unknown` among them; counters have a place for each.
    pub classes: usize,
}

impl SeriesTask {
    /// The usual task: signed lengths of the first `k` packets, of TCP flows that are seen from their beginning.
    #[must_use]
    pub const fn lengths(k: usize, classes: usize) -> SeriesTask {
        SeriesTask {
            k,
            unit: Unit::Packet,
            features: Features::LENGTHS,
            midstream: false,
            classes,
        }
    }
}

/// Configuration of a flow manager.
#[derive(Clone, Debug)]
pub struct Config {
    /// What is asked of flows: 1 to [`TASKS_MAX`] tasks. The first one's label says what becomes of packets.
    pub tasks: Vec<SeriesTask>,
    /// What may change while the manager works.
    pub settings: Settings,
    /// Bucket hash.
    pub hash: HashKind,
    /// Flows in the table, at most.
    pub max_flows: usize,
    /// Hashed buckets, a power of two; at least an eighth of `max_flows`.
    pub buckets: usize,
    /// From when on a label counts.
    pub effect: Effect,
    /// Flow records carry the series.
    pub record_series: bool,
    /// Number of the first flow.
    pub flow_id_first: u64,
    /// Step between flow numbers: the number of flow managers.
    pub flow_id_step: u64,
}

/// Why there is no flow manager.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// A setting is out of its range.
    #[error("{setting} = {value} is out of range: {range}")]
    Range {
        /// The setting.
        setting: &'static str,
        /// As configured.
        value: u64,
        /// What it may be.
        range: &'static str,
    },
    /// The system has not enough memory.
    #[error(
        "no memory for a table of {max_flows} flows, {mib} MiB: {cause}; lower flow.max_flows or \
         flow.buckets"
    )]
    Memory {
        /// As configured.
        max_flows: usize,
        /// What the table takes.
        mib: usize,
        /// What the system said.
        cause: io::Error,
    },
}

impl Config {
    /// `rings` says how many there are for each task.
    pub(crate) fn check(&self, rings: &[usize]) -> Result<(), ConfigError> {
        let in_range = |setting, value: u64, holds: bool, range| match holds {
            true => Ok(()),
            false => Err(ConfigError::Range {
                setting,
                value,
                range,
            }),
        };
        let tasks = self.tasks.len();
        let holds = (1..=TASKS_MAX).contains(&tasks);
        in_range("tasks", tasks as u64, holds, "1 to 8")?;
        let holds = rings.len() == tasks && rings.iter().all(|&rings| rings > 0);
        let least = rings.iter().min().copied().unwrap_or(0);
        in_range("rings", least as u64, holds, "at least 1 for each task")?;
        for task in &self.tasks {
            let k = task.k;
            in_range("k", k as u64, (1..=K_MAX).contains(&k), "1 to 32")?;
            let features = task.features.iter().count() as u64;
            in_range("features", features, features > 0, "1 upwards")?;
        }
        let silence = |setting, timeout_s: u16| {
            let holds = timeout_s <= TIMEOUT_S_MAX;
            in_range(setting, timeout_s.into(), holds, "0 to 32,000")
        };
        silence("idle_timeout_s", self.settings.idle_timeout_s)?;
        silence("half_open_timeout_s", self.settings.half_open_timeout_s)?;
        silence("established_timeout_s", self.settings.established_timeout_s)?;
        let closed = self.settings.closed_timeout_s;
        let holds = CLOSED_TIMEOUT_S.contains(&closed);
        in_range("closed_timeout_s", closed.into(), holds, "1 to 300")?;
        let flows = self.max_flows;
        let holds = (1..=MAX_FLOWS_MAX).contains(&flows);
        in_range("max_flows", flows as u64, holds, "1 to 2^26")?;
        let buckets = self.buckets;
        let holds = buckets.is_power_of_two()
            && buckets <= BUCKETS_MAX
            && buckets.saturating_mul(8) >= flows;
        let range = "a power of two up to 2^24, at least an eighth of max_flows";
        in_range("buckets", buckets as u64, holds, range)
    }
}
