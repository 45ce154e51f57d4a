//! The keys of tables with names of the user's choice: `[device.NAME]` and `[[task]]`.
//!
//! They are set in a file or by `--set`, and have no variables, since a name may hold what a variable may not. The defaults
//! are what `configs/1-1-1.toml` shows; where they depend on other keys, the text says how.

use super::catalogue::{
    BATCH_SIZES, CACHE_ENTRIES, CACHE_PREFIX, DEVICES, LATENCY_GOAL_MS, SIMULATED_US,
};
use super::{float, keys};
use crate::checked::DeviceThread;
use crate::draft::{self, DeviceDraft, PolicyName, TaskDraft};
use crate::kind::{Entry, Kind};

/// Providers that a device may name.
pub const PROVIDERS: [&str; 8] = [
    "cpu",
    "openvino",
    "cuda",
    "tensorrt",
    "cann",
    "qnn",
    "plugin",
    "simulated",
];

#[rustfmt::skip] // As in the catalogue.
keys! {
    /// A key of a `[device.NAME]` table.
    DeviceKey of DEVICE_KEYS, stored in DeviceDraft {
        Provider: live "device.NAME.provider", Kind::OneOf(&PROVIDERS), "\"cpu\"", "",
            "what runs the model; may be left out where NAME is a provider's"
            => |d, s| s.put(&mut d.provider);
        Plugin: live "device.NAME.plugin", Kind::Text, "\"\"", "path",
            "library of a plug-in provider; for plugin, and for qnn where it comes as one"
            => |d, s| s.put_path(&mut d.plugin);
        Options: live "device.NAME.options", Kind::Map(Entry::Text), "{}", "",
            "options of the provider, handed over as they are"
            => |d, s| draft::options(s, &mut d.options);
        BatchSizes: live "device.NAME.batch_sizes", BATCH_SIZES,
            "[8, 16, 32, 64, 128, 256]", "series",
            "as analytics.batch_sizes, which is the default"
            => |d, s| s.put(&mut d.batch_sizes);
        FixedSizes: live "device.NAME.fixed_sizes", Kind::Bool, "false", "",
            "as accel.fixed_sizes, which is the default; qnn and tensorrt have true"
            => |d, s| s.put(&mut d.fixed_sizes);
        Thread: live "device.NAME.thread", Kind::OneOf(DeviceThread::NAMES), "\"shared\"", "",
            "shared: works inside its analytics thread, where its deadline can end a loop of the model but not every hang; own: the default but for simulated, \
             and for cpu where its analytics manager has no other device"
            => |d, s| s.put(&mut d.thread);
        DeadlineMs: live "device.NAME.deadline_ms", float(0.0, 3_600_000.0), "1000.0", "milliseconds, 0 = none",
            "a batch that is not back by then has failed, and the device is left alone until it answers again"
            => |d, s| draft::deadline(s, &mut d.deadline);
        Profile: live "device.NAME.profile", Kind::Text, "\"\"", "path",
            "file of `fenxi profile`, for policy slo; empty: a short profile is measured at the start"
            => |d, s| s.put_path(&mut d.profile);
        SimulatedT0Us: live "device.NAME.simulated_t0_us", SIMULATED_US, "100.0", "microseconds per batch",
            "as accel.simulated_t0_us, which is the default"
            => |d, s| s.put(&mut d.simulated_t0_us);
        SimulatedT1Us: live "device.NAME.simulated_t1_us", SIMULATED_US, "2.0", "microseconds per series",
            "as accel.simulated_t1_us, which is the default"
            => |d, s| s.put(&mut d.simulated_t1_us);
        Faults: live "device.NAME.faults", Kind::Text, "\"\"", "",
            "faults to inject, for experiments, such as error=3,hang=5:200"
            => |d, s| draft::faults(s, &mut d.faults);
    }
}

#[rustfmt::skip] // As in the catalogue.
keys! {
    /// A key of a `[[task]]` table.
    TaskKey of TASK_KEYS, stored in TaskDraft {
        Name: restart "task.NAME.name", Kind::Text, "\"default\"", "letters, digits, - and _",
            "name of the task; each task has another one"
            => |d, s| draft::task_name(s, &d.name);
        Model: live "task.NAME.model", Kind::Text, "\"\"", "path",
            "folder of the model bundle, as model.path, which is the default"
            => |d, s| s.put_path(&mut d.model);
        Devices: live "task.NAME.devices", DEVICES, "[\"cpu\"]", "",
            "where the model runs, as accel.devices, which is the default"
            => |d, s| s.put(&mut d.devices);
        Policy: live "task.NAME.policy", Kind::OneOf(PolicyName::NAMES), "\"carry-over\"", "",
            "when a batch fires, as analytics.policy, which is the default"
            => |d, s| s.put(&mut d.batching.policy);
        LatencyGoalMs: live "task.NAME.latency_goal_ms", LATENCY_GOAL_MS, "2.0", "milliseconds",
            "policy slo: the latency goal, as analytics.latency_goal_ms, which is the default"
            => |d, s| s.put_milliseconds(&mut d.batching.latency_goal);
        CachePrefix: live "task.NAME.cache_prefix", CACHE_PREFIX, "0", "packets, 0 = off",
            "length of the prefix, as cache.prefix, which is the default"
            => |d, s| s.put(&mut d.cache.prefix);
        CacheEntries: live "task.NAME.cache_entries", CACHE_ENTRIES, "65536", "prefixes, 0 = off",
            "size of the prefix cache, as cache.entries, which is the default"
            => |d, s| s.put(&mut d.cache.entries);
    }
}
