//! The configuration of a flow manager, and its check.

use std::io;
use std::ops::RangeInclusive;

use cring::{K_MAX, TASKS_MAX, WORDS_MAX};
use thiserror::Error;

use crate::asked::Inside;
use crate::behaviour::Bounds;
use crate::hash::HashKind;
use crate::settings::Settings;
use crate::task_config::TaskConfig;

/// Packets in a burst, at most.
pub const BURST_MAX: usize = 256;
/// The longest timeout of a silent flow, s; 0 is none. Ages are kept in 16 bits of seconds.
pub const TIMEOUT_S_MAX: u16 = 32_000;
/// Timeouts of a flow that FIN or RST closed, s.
pub const CLOSED_TIMEOUT_S: RangeInclusive<u16> = 1..=300;
/// The most flows of a table. At 180 bytes or more each they take above 12 GB; a larger number is
/// taken for a typing error. Indices have 32 bits.
pub const MAX_FLOWS_MAX: usize = 1 << 26;
/// The most depths of a task: six of a model and one of its ports.
pub const DEPTHS_MAX: usize = 7;
/// The most tasks after the first.
pub const OTHERS_MAX: usize = TASKS_MAX - 1;
/// The most buckets of a table, of eight flows each: twice what [`MAX_FLOWS_MAX`] flows need.
pub const BUCKETS_MAX: usize = 1 << 24;

/// The most cells of the memory of servers: 2 GiB.
pub const SERVERS_MAX: usize = 1 << 26;

/// From when on a label counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// From the moment it is there: a live run.
    Arrival,
    /// From `delay_us` of packet time after the K-th packet, 0 including it, whenever it really
    /// comes: a replay that repeats. Records then wait for labels.
    PacketTime {
        /// µs.
        delay_us: i64,
    },
}

/// Configuration of a flow manager.
#[derive(Clone, Debug)]
pub struct Config {
    /// The tasks. They have 1 to [`TASKS_MAX`] depths with a series together.
    pub tasks: Vec<TaskConfig>,
    /// What is inside, for [`crate::Asked::directions`].
    pub inside: Inside,
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
    /// Of which flows the records have the series.
    pub record_series: SeriesShare,
    /// Which flows give samples, see [`crate::record::Sample`].
    pub samples: SeriesShare,
    /// Number of the first flow.
    pub flow_id_first: u64,
    /// Step between flow numbers: the number of flow managers.
    pub flow_id_step: u64,
    /// Packets of flows may be counted elsewhere and reported later, see [`crate::Manager::count`].
    pub expects_counts: bool,
    /// Where behaviours of flows begin and end; `None`: flows have none, which costs nothing.
    pub behaviour: Option<Bounds>,
    /// Cells of the memory of servers, for tasks that read local context; `None`: there is none,
    /// which costs nothing.
    pub servers: Option<usize>,
    /// What is measured of flows; without features nothing, which costs nothing.
    pub measured: measure::Features,
}

/// Which flows have the series in their records, or give samples: none, all, or a share that does
/// not depend on what the flows are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeriesShare(u32);

impl SeriesShare {
    /// Of no flow; nothing is kept for it.
    pub const NONE: SeriesShare = SeriesShare(0);
    /// Of every flow.
    pub const ALL: SeriesShare = SeriesShare(SeriesShare::WHOLE);
    const WHOLE: u32 = 1 << 16;

    /// A share from 0 to 1, in steps of 1/65,536; more than 0 is one step at least.
    pub fn new(share: f64) -> SeriesShare {
        let steps = (share.clamp(0.0, 1.0) * f64::from(SeriesShare::WHOLE)).ceil();
        SeriesShare(steps as u32)
    }

    /// Whether no flow has it.
    pub fn is_none(self) -> bool {
        self == SeriesShare::NONE
    }

    /// Whether this flow has it; the same each time.
    pub(crate) fn has(self, flow_id: u64) -> bool {
        // The top bits of the product go up and down from one number to the next (Fibonacci
        // hashing, Knuth, TAOCP 6.4).
        let place = flow_id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        self.takes(place as u16)
    }

    /// Whether the share takes a flow of this hash.
    pub(crate) fn takes(self, hash: u16) -> bool {
        u32::from(hash) < self.0
    }
}

/// Why a flow manager is refused.
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
    /// `rings`: how many rings each task has.
    pub(crate) fn check(&self, rings: &[usize]) -> Result<(), ConfigError> {
        let in_range = |setting, value: u64, holds: bool, range| match holds {
            true => Ok(()),
            false => Err(ConfigError::Range { setting, value, range }),
        };
        let depths = || self.tasks.iter().flat_map(|task| &task.depths);
        let asked = depths().filter(|depth| depth.k > 0).count();
        let holds = (1..=TASKS_MAX).contains(&asked) && depths().count() <= WORDS_MAX;
        in_range("tasks", asked as u64, holds, "1 to 8")?;
        let holds = rings.len() == self.tasks.len();
        in_range("rings", rings.len() as u64, holds, "a list for each task")?;
        for task in &self.tasks {
            let depths = task.depths.len();
            in_range("depths", depths as u64, (1..=DEPTHS_MAX).contains(&depths), "1 to 7")?;
            let of_ports = usize::from(task.is_ports_first() && depths > 1);
            for depth in &task.depths[of_ports..] {
                let holds = (1..=K_MAX).contains(&depth.k);
                in_range("k", depth.k as u64, holds, "1 to 32, or 0 before a deeper one")?;
            }
            let rises = task.depths.is_sorted_by(|before, next| before.k < next.k);
            in_range("depth", task.k_max() as u64, rises, "above the one before")?;
            let features = task.features.iter().count() as u64;
            in_range("features", features, features > 0, "1 upwards")?;
        }
        self.check_after()?;
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
        in_range("buckets", buckets as u64, holds, range)?;
        let bulk_bytes = self.behaviour.map_or(1, |bounds| bounds.bulk_bytes);
        let holds = (1..=Bounds::BULK_BYTES_MAX).contains(&bulk_bytes);
        in_range("bulk_bytes", bulk_bytes.into(), holds, "1 to 2^24 - 1")?;
        let cells = self.servers.unwrap_or(1);
        let holds = (1..=SERVERS_MAX).contains(&cells);
        in_range("servers", cells as u64, holds, "1 to 2^26")
    }

    /// A task comes only after other tasks, and no cycle leads back to it.
    fn check_after(&self) -> Result<(), ConfigError> {
        let tasks = self.tasks.len();
        for (number, task) in self.tasks.iter().enumerate() {
            // What is still reached after as many steps as there are tasks is on a cycle, or before
            // one.
            let mut reached = vec![number];
            for _ in 0..tasks {
                let next = reached.iter().flat_map(|&task| &self.tasks[task].asked.after);
                reached = next.map(|task| task.index()).filter(|&task| task < tasks).collect();
                reached.sort_unstable();
                reached.dedup();
            }
            let exist = task.asked.after.iter().all(|before| before.index() < tasks);
            if !exist || !reached.is_empty() {
                return Err(ConfigError::Range {
                    setting: "after",
                    value: number as u64,
                    range: "tasks that there are, without a cycle",
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_flows_has_its_series_recorded() {
        let of = |share: f64| (0..100_000).filter(|id| SeriesShare::new(share).has(*id)).count();
        assert_eq!((of(0.0), of(1.0)), (0, 100_000));
        for share in [0.001, 0.1, 0.5] {
            let expected = share * 1e5;
            assert!((of(share) as f64 - expected).abs() < 0.02 * expected, "{share}");
        }
        assert!(!SeriesShare::new(1e-9).is_none(), "a little is not nothing");
    }
}
