//! The keys of tables with names of the user's choice: `[device.NAME]`, `[nftset.NAME]` and `[[task]]`.
//!
//! They are set in a file or by `--set`, and have no variables, since a name may hold what a variable may not. The defaults
//! are what `configs/1-1-1.toml` shows; where they depend on other keys, the text says how.

pub use accel::PROVIDERS;
use cring::K_MAX;

use super::catalogue::{
    BATCH_SIZES, CACHE_ENTRIES, CACHE_PREFIX, DEVICES, KeyId, LATENCY_GOAL_MS, MARK_MASK,
    MAX_WAIT_MS, MIN_CONFIDENCE, SIMULATED_US, SLO_DELTA_SHARE, TIMEOUT_MS,
};
use super::{float, integer, keys};
use crate::checked::{DeviceThread, MAX_TASKS, NftSet};
use crate::draft::{self, DeviceDraft, PolicyName, TaskDraft};
use crate::kind::{Entry, Kind};

/// Depths of a model, each of which is a task of flow managers.
const DEPTHS: Kind = Kind::IntegerList {
    least: 0,
    min: 1,
    max: K_MAX as i64,
    most: MAX_TASKS,
};

#[rustfmt::skip] // As in the catalogue.
keys! {
    /// A key of a `[device.NAME]` table.
    DeviceKey of DEVICE_KEYS, stored in DeviceDraft {
        Provider: live "device.NAME.provider", Kind::OneOf(&PROVIDERS), "\"cpu\"", "",
            "what runs the model; may be left out where NAME is that of a provider"
            => |d, s| s.put(&mut d.provider);
        Plugin: live "device.NAME.plugin", Kind::Text, "\"\"", "path",
            "library of a plug-in provider; for plugin, and for qnn where it is installed as a plug-in"
            => |d, s| s.put_path(&mut d.plugin);
        Options: live "device.NAME.options", Kind::Map(Entry::Text), "{}", "",
            "options of the provider, passed on unchanged"
            => |d, s| draft::options(s, &mut d.options);
        BatchSizes: live "device.NAME.batch_sizes", BATCH_SIZES,
            "[8, 16, 32, 64, 128, 256]", "series",
            "batch sizes of this device; the default is analytics.batch_sizes"
            => |d, s| s.put(&mut d.batch_sizes);
        FixedSizes: live "device.NAME.fixed_sizes", Kind::Bool, "false", "",
            "whether the device takes only its batch_sizes; the default is accel.fixed_sizes, but true for qnn and tensorrt"
            => |d, s| s.put(&mut d.fixed_sizes);
        Thread: live "device.NAME.thread", Kind::OneOf(DeviceThread::NAMES), "\"shared\"", "",
            "own: a thread of its own, the default except for simulated, and for cpu where its analytics manager has no other \
             device; shared: inside the analytics thread, where the deadline can end a loop of the model but not every hang"
            => |d, s| s.put(&mut d.thread);
        DeadlineMs: live "device.NAME.deadline_ms", float(0.0, 3_600_000.0), "1000.0", "milliseconds, 0 = none",
            "a batch that takes longer has failed, and the device gets no more until it answers again"
            => |d, s| draft::deadline(s, &mut d.deadline);
        Profile: live "device.NAME.profile", Kind::Text, "\"\"", "path",
            "file of `fenxi profile`, for policies slo and on-off; empty: the one in accel.profiles, or a short one is measured at the \
             start"
            => |d, s| s.put_path(&mut d.profile);
        SimulatedT0Us: live "device.NAME.simulated_t0_us", SIMULATED_US, "100.0", "microseconds per batch",
            "the fixed part of a batch's latency; the default is accel.simulated_t0_us"
            => |d, s| s.put(&mut d.simulated_t0_us);
        SimulatedT1Us: live "device.NAME.simulated_t1_us", SIMULATED_US, "2.0", "microseconds per series",
            "what each series of a batch adds to its latency; the default is accel.simulated_t1_us"
            => |d, s| s.put(&mut d.simulated_t1_us);
        Faults: live "device.NAME.faults", Kind::Text, "\"\"", "",
            "faults to inject, for experiments, such as error=3,hang=5:200"
            => |d, s| draft::faults(s, &mut d.faults);
    }
}

#[rustfmt::skip] // As in the catalogue.
keys! {
    /// A key of a `[nftset.NAME]` table.
    NftSetKey of NFT_SET_KEYS, stored in NftSet {
        Set: restart "nftset.NAME.set", Kind::Text, "\"inet fw4 ssh\"", "family, table and set",
            "the set, which must be there with flags timeout; its type must be that of key"
            => |d, s| draft::nft_set(s, d);
        Labels: live "nftset.NAME.labels", Kind::TextList { least: 1 }, "[\"SSH\"]", "",
            "labels, or taxonomies, whose flows are added to the set"
            => |d, s| s.put(&mut d.labels);
        Key: restart "nftset.NAME.key", Kind::TextList { least: 1 }, "[\"originator_address\"]", "",
            "what an element is made of, in the order of the set's type: originator_address, originator_port, \
             responder_address, responder_port, protocol"
            => |d, s| draft::nft_set_key(s, d);
        TimeoutS: restart "nftset.NAME.timeout_s", integer(0, 31_536_000), "300", "seconds, 0 = the timeout of the set",
            "how long an element stays after the last label that put it there"
            => |d, s| s.put_seconds(&mut d.timeout);
        Queue: restart "nftset.NAME.queue", integer(64, 1 << 20), "4096", "elements",
            "how many elements may wait to be written; more are dropped and counted"
            => |d, s| s.put(&mut d.queue);
    }
}

#[rustfmt::skip] // As in the catalogue.
keys! {
    /// A key of a `[[task]]` table.
    TaskKey of TASK_KEYS, stored in TaskDraft {
        Name: restart "task.NAME.name", Kind::Text, "\"default\"", "letters, digits, - and _",
            "name of the task; no two tasks have the same"
            => |d, s| draft::task_name(s, &d.name);
        Model: live "task.NAME.model", Kind::Text, "\"\"", "path",
            "folder of the model bundle; the default is model.path"
            => |d, s| s.put_path(&mut d.model);
        Depths: restart "task.NAME.depths", DEPTHS, "[]", "packets, [] = all",
            "depths at which the model runs, ascending; each counts as a task"
            => |d, s| draft::task_depths(s, &mut d.depths);
        When: restart "task.NAME.when", Kind::Text, "\"\"", "terms joined by and, empty = always",
            "on which flows the model runs, such as port = 443 and other.confidence < 0.9, where all terms hold \
             (configs/1-1-1.toml lists them)"
            => |d, s| draft::task_when(s, &mut d.when);
        Devices: live "task.NAME.devices", DEVICES, "[\"cpu\"]", "",
            "where the model runs; the default is accel.devices"
            => |d, s| s.put(&mut d.devices);
        Policy: live "task.NAME.policy", Kind::OneOf(PolicyName::NAMES), "\"carry-over\"", "",
            "when a batch fires; the default is analytics.policy"
            => |d, s| s.put(&mut d.batching.policy);
        LatencyGoalMs: live "task.NAME.latency_goal_ms", LATENCY_GOAL_MS, "2.0", "milliseconds",
            "policies slo and on-off: the latency goal; the default is analytics.latency_goal_ms"
            => |d, s| s.put_milliseconds(&mut d.batching.latency_goal);
        SloDelta: live "task.NAME.slo_delta", SLO_DELTA_SHARE, "0.05", "share of the goal",
            "policies slo and on-off: what is kept in reserve; the default is analytics.slo_delta"
            => |d, s| s.put(&mut d.batching.slo_delta);
        TimeoutMs: live "task.NAME.timeout_ms", TIMEOUT_MS, "10.0", "milliseconds",
            "how long the oldest series waits before a batch is composed; the default is analytics.timeout_ms"
            => |d, s| s.put_milliseconds(&mut d.batching.timeout);
        MaxWaitMs: live "task.NAME.max_wait_ms", MAX_WAIT_MS, "50.0", "milliseconds",
            "no series is carried over for longer than this; the default is analytics.max_wait_ms"
            => |d, s| s.put_milliseconds(&mut d.batching.max_wait);
        BatchSizes: live "task.NAME.batch_sizes", BATCH_SIZES,
            "[8, 16, 32, 64, 128, 256]", "series",
            "batch sizes to choose from, ascending; the default is analytics.batch_sizes"
            => |d, s| s.put(&mut d.batching.batch_sizes);
        CachePrefix: live "task.NAME.cache_prefix", CACHE_PREFIX, "0", "packets, 0 = off",
            "length of the prefix; the default is cache.prefix"
            => |d, s| s.put(&mut d.cache.prefix);
        CacheEntries: live "task.NAME.cache_entries", CACHE_ENTRIES, "65536", "prefixes, 0 = off",
            "size of the prefix cache; the default is cache.entries"
            => |d, s| s.put(&mut d.cache.entries);
        Priority: live "task.NAME.priority", integer(0, 9), "5", "",
            "where devices cannot keep up, series of the task with the lowest priority are shed first"
            => |d, s| s.put(&mut d.priority);
        MinConfidence: live "task.NAME.min_confidence", MIN_CONFIDENCE, "-1.0", "probability, negative = as the bundle says",
            "a flow whose likeliest class is less likely than this gets the label unknown; the default of the first task is \
             model.min_confidence"
            => |d, s| draft::min_confidence(s, &mut d.labels.min_confidence);
        Dscp: live "task.NAME.dscp", Kind::Map(Entry::Dscp), "{}", "DSCP: a name or 0 to 63",
            "label or taxonomy of this task to DSCP; the default of the first task is tag.dscp"
            => |d, s| draft::dscp_rules(s, &mut d.labels.dscp);
        Mark: live "task.NAME.mark", Kind::Map(Entry::Mark), "{}", "bits of the connection mark, within mark_mask",
            "mode mark: label or taxonomy of this task to bits of the connection mark; the default of the first task is mark.class"
            => |d, s| draft::mark_rules(s, &mut d.labels.mark);
        MarkMask: live "task.NAME.mark_mask", MARK_MASK, "0xff000000", "bits of the connection mark",
            "mode mark: the bits that labels of this task may write, which no other task has; the default is all bits of mark, and \
             mark.mask for the first task"
            => |d, s| s.put(&mut d.labels.mark_mask);
        Records: restart "task.NAME.records", Kind::Bool, "true", "",
            "whether labels of this task appear in records"
            => |d, s| s.put(&mut d.records);
    }
}

/// The keys of a task that only policies with a goal read.
pub const GOAL_KEYS: [TaskKey; 2] = [TaskKey::LatencyGoalMs, TaskKey::SloDelta];

impl TaskKey {
    /// The key of a section that holds where a task leaves its own key out. The sections describe the labels of the first task.
    pub fn section_key(self, is_first: bool) -> Option<KeyId> {
        match self {
            TaskKey::Name
            | TaskKey::Depths
            | TaskKey::When
            | TaskKey::Priority
            | TaskKey::Records => None,
            TaskKey::Model => Some(KeyId::ModelPath),
            TaskKey::Devices => Some(KeyId::AccelDevices),
            TaskKey::Policy => Some(KeyId::AnalyticsPolicy),
            TaskKey::LatencyGoalMs => Some(KeyId::AnalyticsLatencyGoalMs),
            TaskKey::SloDelta => Some(KeyId::AnalyticsSloDelta),
            TaskKey::TimeoutMs => Some(KeyId::AnalyticsTimeoutMs),
            TaskKey::MaxWaitMs => Some(KeyId::AnalyticsMaxWaitMs),
            TaskKey::BatchSizes => Some(KeyId::AnalyticsBatchSizes),
            TaskKey::CachePrefix => Some(KeyId::CachePrefix),
            TaskKey::CacheEntries => Some(KeyId::CacheEntries),
            TaskKey::MinConfidence => is_first.then_some(KeyId::ModelMinConfidence),
            TaskKey::Dscp => is_first.then_some(KeyId::TagDscp),
            TaskKey::Mark => is_first.then_some(KeyId::MarkClass),
            TaskKey::MarkMask => is_first.then_some(KeyId::MarkMask),
        }
    }
}
