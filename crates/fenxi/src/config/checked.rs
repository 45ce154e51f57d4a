//! The checked form: what the rest of the program uses. The types say what was checked;
//! [`super::check`] builds them.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::keys::nearest;
use super::layers::Origin;

/// A configuration that holds together.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Packet input and output.
    pub io: Io,
    /// The flow manager.
    pub flow: Flow,
    /// Marking of labelled packets.
    pub tag: Tag,
    /// The ring from flow manager to analytics manager.
    pub ring: Ring,
    /// Batching.
    pub analytics: Analytics,
    /// The prefix cache; `None`: off.
    pub cache: Option<Cache>,
    /// Threads.
    pub pipeline: Pipeline,
    /// Devices that run the model.
    pub accel: Accel,
    /// The model bundle.
    pub model: Model,
    /// Flow and label records.
    pub records: Records,
}

/// Packet input and output.
#[derive(Debug, Clone, PartialEq)]
pub struct Io {
    /// Frames per burst.
    pub burst: usize,
}

/// The flow manager.
#[derive(Debug, Clone, PartialEq)]
pub struct Flow {
    /// Packets in a series.
    pub k: usize,
    /// A flow ends after this long without a packet; `None`: never.
    pub idle_timeout: Option<Duration>,
    /// A lasting flow is recorded this often; `None`: only at its end.
    pub active_timeout: Option<Duration>,
    /// How long a flow that ended by FIN or RST takes in stragglers.
    pub closed_timeout: Duration,
    /// Whether FIN and RST end a flow.
    pub end_on_fin_rst: bool,
    /// The bucket hash.
    pub hash: FlowHash,
    /// Key of the bucket hash; `None`: the program chooses, fixed in replay and random live.
    pub hash_seed: Option<u64>,
    /// Flows held at a time.
    pub max_flows: usize,
    /// Buckets of the table, a power of two, worked out where the user left it open.
    pub buckets: usize,
}

/// How a flow's bucket is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowHash {
    /// By a keyed hash over the ordered tuple.
    Keyed,
    /// By the paper's `rss ^ src ^ dst`.
    Fenxi,
}

/// Marking of labelled packets.
#[derive(Debug, Clone, PartialEq)]
pub struct Tag {
    /// Whether packets are marked at all.
    pub enabled: bool,
    /// Label to DSCP, by label.
    pub dscp: Vec<DscpMapping>,
}

/// One entry of `tag.dscp`.
#[derive(Debug, Clone, PartialEq)]
pub struct DscpMapping {
    /// Label of the model.
    pub label: String,
    /// Code point, 0 to 63.
    pub dscp: u8,
    /// Whether a model without this label is an error: the user asked for it, and not merely by
    /// repeating a default.
    pub required: bool,
    /// Where the entry was set.
    pub origin: Origin,
}

/// The ring from flow manager to analytics manager.
#[derive(Debug, Clone, PartialEq)]
pub struct Ring {
    /// Slots, a power of two. A replay takes bursts of a quarter of it at most.
    pub slots: usize,
}

/// Batching.
#[derive(Debug, Clone, PartialEq)]
pub struct Analytics {
    /// When a batch fires.
    pub policy: BatchPolicy,
    /// T of Alg. 1 and 2.
    pub timeout: Duration,
    /// Φ of Alg. 2: greatest share of padding in a batch.
    pub phi: f64,
    /// The set of batch sizes, ascending, none twice.
    pub batch_sizes: Vec<usize>,
    /// No series is carried over for longer; at least `timeout`.
    pub max_wait: Duration,
}

/// When a batch fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchPolicy {
    /// At the timeout, leaving the newest series over where padding would exceed Φ (Alg. 2).
    CarryOver,
    /// At the timeout, padded (Alg. 1).
    Timeout,
    /// Whenever the device is free.
    None,
}

/// The prefix cache (Alg. 3).
#[derive(Debug, Clone, PartialEq)]
pub struct Cache {
    /// δ: lengths that make the key, 1 to k.
    pub prefix: usize,
    /// Prefixes remembered, at least 1.
    pub entries: usize,
    /// Share of hits that is inferred as well.
    pub audit: f64,
}

/// Threads.
#[derive(Debug, Clone, PartialEq)]
pub struct Pipeline {
    /// Flow managers : analytics managers : devices.
    pub layout: String,
    /// Pipelines side by side.
    pub instances: usize,
}

/// Devices that run the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Accel {
    /// One per device of the layout.
    pub devices: Vec<DeviceName>,
    /// The ONNX Runtime library; `None`: search.
    pub library: Option<PathBuf>,
    /// T₀ of device simulated, µs per batch.
    pub simulated_t0_us: f64,
    /// T₁ of device simulated, µs per series.
    pub simulated_t1_us: f64,
    /// Whether devices take only [`Analytics::batch_sizes`].
    pub fixed_sizes: bool,
}

/// A device of this release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceName {
    /// ONNX Runtime on the CPU.
    Cpu,
    /// A latency profile without a model.
    Simulated,
}

impl DeviceName {
    const ALL: [DeviceName; 2] = [DeviceName::Cpu, DeviceName::Simulated];
    /// Devices of the design that are still to come.
    const PLANNED: [&str; 5] = ["openvino", "cuda", "tensorrt", "cann", "qnn"];

    /// The name as the user writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            DeviceName::Cpu => "cpu",
            DeviceName::Simulated => "simulated",
        }
    }

    /// The device called `name`, or why there is none.
    pub(super) fn parse(name: &str) -> Result<DeviceName, String> {
        if let Some(device) = Self::ALL.into_iter().find(|device| device.as_str() == name) {
            return Ok(device);
        }
        let supported = "this release has cpu and simulated";
        if Self::PLANNED.contains(&name) {
            return Err(format!(
                "device \"{name}\" is not supported yet; {supported}"
            ));
        }
        let near = nearest(
            name,
            Self::ALL.into_iter().map(Self::as_str).chain(Self::PLANNED),
        );
        let near = near.map_or(String::new(), |near| format!("; did you mean \"{near}\"?"));
        Err(format!("unknown device \"{name}\"; {supported}{near}"))
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The model bundle.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Its folder; `None`: the bundle that ships with the program.
    pub path: Option<PathBuf>,
}

/// Flow and label records.
#[derive(Debug, Clone, PartialEq)]
pub struct Records {
    /// Records that may wait for the writer.
    pub queue: usize,
}
