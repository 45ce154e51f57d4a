//! The checked form: what the rest of the program uses. The types say what was checked;
//! [`super::check`] builds them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use accel::{Faults, Profile, onnx};

use super::layers::Origin;
use crate::pipeline::layout::Layout;

/// A configuration that holds together.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Packet input and output.
    pub io: Io,
    /// The flow manager.
    pub flow: Flow,
    /// Marking of labelled packets.
    pub tag: Tag,
    /// Marks of connections, where the kernel forwards.
    pub mark: Mark,
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
    /// How others look in.
    pub control: Control,
    /// Whether a live run gives up the rights that it does not need any more.
    pub sandbox: bool,
    /// What a live run logs.
    pub log: Log,
}

/// Packet input and output.
#[derive(Debug, Clone, PartialEq)]
pub struct Io {
    /// Frames per burst.
    pub burst: usize,
    /// What is done with live traffic.
    pub mode: IoMode,
    /// Names of the interfaces; two where the mode is inline.
    pub interfaces: Vec<String>,
    /// Whether frames for other machines are received.
    pub promiscuous: bool,
    /// The most bytes kept of a frame, where none is sent.
    pub snap_length: u32,
    /// Bytes of a block of a receive ring.
    pub block_bytes: u32,
    /// Blocks of a receive ring.
    pub blocks: u32,
    /// A block is handed over so long after its first frame, though not full.
    pub block_timeout_ms: u32,
    /// A run whose interfaces are all gone for so long has nothing to wait for.
    pub give_up_after: Duration,
}

/// What is done with live traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoMode {
    /// It is a copy; nothing is sent.
    Tap,
    /// The kernel forwards it and is told the labels.
    Mark,
    /// What comes in on one interface leaves by the other.
    Inline,
}

impl IoMode {
    /// As the user writes it.
    pub fn name(self) -> &'static str {
        match self {
            IoMode::Tap => "tap",
            IoMode::Mark => "mark",
            IoMode::Inline => "inline",
        }
    }
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
    /// The same where the traffic is live.
    pub active_timeout_live: Option<Duration>,
    /// A flow that nobody has answered ends after this long; `None`: as any other.
    pub half_open_timeout: Option<Duration>,
    /// The same where the traffic is live.
    pub half_open_timeout_live: Option<Duration>,
    /// An established connection ends after this long; `None`: as any other flow.
    pub established_timeout: Option<Duration>,
    /// The same where the traffic is live.
    pub established_timeout_live: Option<Duration>,
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

/// Marks of connections, where the kernel forwards.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    /// The bits that are written.
    pub mask: u32,
    /// Whether those give way that are set.
    pub overwrite: bool,
    /// Label to bits, by label.
    pub class: Vec<MarkMapping>,
    /// Updates that may wait for the writer.
    pub queue: usize,
}

/// One entry of `mark.class`.
#[derive(Debug, Clone, PartialEq)]
pub struct MarkMapping {
    /// Label of the model.
    pub label: String,
    /// Bits, within the mask.
    pub mark: u32,
    /// As in [`DscpMapping`].
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
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum BatchPolicy {
    /// At the timeout, leaving the newest series over where padding would exceed Φ (Alg. 2).
    CarryOver,
    /// At the timeout, padded (Alg. 1).
    Timeout,
    /// Whenever the device is free.
    None,
    /// As late as 99 of 100 labels can come in time (Batchy).
    Slo {
        /// Time from a series' emission to its label.
        latency_goal: Duration,
        /// Share of the goal that is kept in reserve.
        delta: f64,
    },
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
    pub layout: Layout,
    /// Pipelines side by side.
    pub instances: usize,
    /// CPU numbers for the threads, at least one each; empty: automatic.
    pub cores: Vec<usize>,
}

/// Devices that run the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Accel {
    /// One per device of the layout, in its order.
    pub devices: Vec<Device>,
    /// The ONNX Runtime library; `None`: search.
    pub library: Option<PathBuf>,
}

/// A device as it is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// As `accel.devices` names it.
    pub name: String,
    /// What runs the model.
    pub provider: Provider,
    /// Library of a plug-in provider.
    pub plugin: Option<PathBuf>,
    /// Handed to the provider as they are.
    pub options: Vec<(String, String)>,
    /// The set of batch sizes, ascending, none twice.
    pub batch_sizes: Vec<usize>,
    /// Whether it takes only these; else any up to the largest of them.
    pub fixed_sizes: bool,
    /// Where it works.
    pub thread: DeviceThread,
    /// A batch has failed that is not back by then.
    pub deadline: Option<Duration>,
    /// File of a measured profile.
    pub profile: Option<PathBuf>,
    /// Latency of [`Provider::Simulated`].
    pub simulated: Profile,
    /// Faults to inject.
    pub faults: Option<Faults>,
}

/// What runs the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provider {
    /// ONNX Runtime with this execution provider.
    Onnx(onnx::Provider),
    /// A latency profile without a model.
    Simulated,
}

impl Provider {
    /// The provider called `name` by the user.
    pub fn parse(name: &str) -> Option<Provider> {
        let onnx = onnx::Provider::parse(name).map(Provider::Onnx);
        onnx.or_else(|| (name == "simulated").then_some(Provider::Simulated))
    }

    /// The name as the user writes it.
    pub fn name(self) -> &'static str {
        match self {
            Provider::Onnx(provider) => provider.name(),
            Provider::Simulated => "simulated",
        }
    }
}

/// Where a device works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceThread {
    /// On a thread of its own.
    Own,
    /// Inside its analytics thread.
    Shared,
}

/// The model bundle.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Its folder; `None`: the bundle that ships with the program.
    pub path: Option<PathBuf>,
    /// Least confidence of a label; `None`: as the bundle says.
    pub min_confidence: Option<f32>,
    /// The same for single labels.
    pub class_confidence: Vec<ClassConfidence>,
    /// How long it may take to open, warm and test it.
    pub open_timeout: Duration,
}

/// One entry of `model.class_confidence`.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassConfidence {
    /// Label of the model.
    pub label: String,
    /// Least confidence, 0 to 1.
    pub confidence: f32,
    /// Where the entry was set.
    pub origin: Origin,
}

/// Flow and label records.
#[derive(Debug, Clone, PartialEq)]
pub struct Records {
    /// Where a live run writes them; `None`: nowhere.
    pub path: Option<PathBuf>,
    /// When a live run begins a new file; `None`: never.
    pub rotate: Option<Rotate>,
    /// Records that may wait for the writer.
    pub queue: usize,
    /// How long the end of a live run goes on writing what is left.
    pub drain_within: Duration,
}

/// When a file of records makes room for a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotate {
    /// Before it grows beyond this.
    pub bytes: u64,
    /// Old files kept, at least one.
    pub files: usize,
}

/// What a live run logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// A level, or levels by target; checked.
    pub level: String,
    /// Where to.
    pub to: LogTo,
}

/// Where the log goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogTo {
    /// To the journal where stderr leads there, else to stderr.
    Auto,
    /// To the journal.
    Journald,
    /// To stderr.
    Stderr,
}

/// How others look in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Control {
    /// Where metrics and health are served; `None`: nowhere.
    pub http: Option<HttpPlace>,
    /// Socket of `fenxi ctl`; `None`: there is none.
    pub socket: Option<PathBuf>,
    /// Whether `/readyz` is 200 while no interface is up.
    pub ready_without_interfaces: bool,
}

/// An address to serve HTTP on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HttpPlace {
    /// TCP, on loopback unless the user allowed more.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl HttpPlace {
    /// Reads `ADDRESS:PORT` or `unix:PATH`; `resolve` says which file a path means.
    pub fn parse(text: &str, resolve: impl FnOnce(&str) -> PathBuf) -> Option<HttpPlace> {
        match text.strip_prefix("unix:") {
            Some("") => None,
            Some(path) => Some(HttpPlace::Unix(resolve(path))),
            None => text.parse().ok().map(HttpPlace::Tcp),
        }
    }
}
