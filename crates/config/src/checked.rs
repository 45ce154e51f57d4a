//! The checked form: what the rest of the program uses. The types say what was checked.
//!
//! The `Default` of a part is blank, not the built-in defaults: it is what values are stored into while a configuration is
//! read. A [`Config`] has none, and comes from [`Config::load`] only.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use flowmgr::{Behaviour, Bounds};
use netfilter::nft_set::{Field, SetName};
use packetio::Backend;
use policy::{Action, Dscp, LabelRule};

mod analytics;
mod destination;
mod device;
mod task;
mod words;

use crate::layout::Layout;
use crate::network::Network;
use crate::origin::Origin;
use crate::when::When;

pub use analytics::{Analytics, BatchPolicy, Cache};
pub use destination::{Destination, Endpoint};
pub use device::{Accel, Device, DeviceThread};
pub use task::{DEFAULT_TASK, MAX_TASKS, Task, needed};
pub use words::{Capture, FlowHash, IoMode, LogTo, MarkAs, PolicyUpdate, XdpMode, ZeroCopy};

/// Rules by which something is done with flows, whatever a model says of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// The file of rules; `None`: there are none.
    pub rules: Option<PathBuf>,
    /// When changes of the rules of a run count.
    pub update: PolicyUpdate,
    /// The interface that packets are copied to by rules, in mode inline; `None`: there is none.
    pub mirror: Option<String>,
}

/// A configuration that holds together.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Packet input and output.
    pub io: Io,
    /// The flow manager.
    pub flow: Flow,
    /// What flows do, by their counts.
    pub behaviour: Behaviours,
    /// Marking of labelled packets.
    pub tag: Tag,
    /// Marks of connections, where the kernel forwards.
    pub mark: Mark,
    /// Labels of connections.
    pub connlabel: Connlabel,
    /// Sets of nftables that get the ends of flows.
    pub nft_sets: Vec<NftSet>,
    /// What is done with flows by rules.
    pub policy: Policy,
    /// The ring from flow manager to analytics manager.
    pub ring: Ring,
    /// What is asked of flows: 1 to [`MAX_TASKS`] tasks. What the first says also stands in `analytics`, `cache`, `accel`, `model`,
    /// `tag` and `mark`.
    pub tasks: Vec<Task>,
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
    /// Where hosts are whose flows name them; empty: their private addresses tell.
    pub host_networks: Vec<Network>,
    /// Records of flows, labels and hosts.
    pub records: Records,
    /// Records for a collector.
    pub ipfix: Ipfix,
    /// Records for a topic of Kafka.
    pub kafka: Kafka,
    /// Metrics, health and the control socket.
    pub control: Control,
    /// Whether a live run drops the rights that it no longer needs after its start.
    pub sandbox: bool,
    /// What a live run logs.
    pub log: Log,
}

impl Config {
    /// The places in [`Layout::sessions`] of the devices that have a thread of their own.
    pub fn device_threads(&self) -> Vec<usize> {
        let sessions = self.pipeline.layout.sessions();
        let own = sessions.iter().enumerate().filter(|(_, session)| {
            // The check reports where too few devices are named.
            let mut tasks = self.tasks.iter();
            tasks.any(|task| {
                let device = task.devices.get(session.device);
                device.is_some_and(|device| device.thread == DeviceThread::Own)
            })
        });
        own.map(|(place, _)| place).collect()
    }

    /// What labels ask for: DSCP where packets are marked, bits of the connection mark where the kernel forwards.
    pub fn rules(&self) -> Vec<LabelRule> {
        let mut rules = self.tag.rules();
        if self.io.mode == IoMode::Mark {
            rules.extend(self.mark.rules());
        }
        rules
    }

    /// What the labels of one task ask for; those of the first as [`Config::rules`] says.
    pub fn rules_of(&self, task: usize) -> Vec<LabelRule> {
        let Some(asked) = self.tasks.get(task).filter(|_| task > 0) else {
            return self.rules();
        };
        let mut rules = match self.tag.enabled {
            true => asked.dscp_rules(),
            false => Vec::new(),
        };
        if self.io.mode == IoMode::Mark {
            rules.extend(asked.mark_rules());
        }
        rules
    }

    /// This configuration with one of its tasks as the only one, asked about every flow, for what works on one model.
    pub fn of_task(&self, number: usize) -> Config {
        let mut config = self.clone();
        let Some(task) = self.tasks.get(number) else {
            return config;
        };
        config.analytics = task.batching.clone();
        config.cache = task.cache.clone();
        config.accel.devices = task.devices.clone();
        config.model.path = task.model.clone();
        config.model.min_confidence = task.min_confidence;
        config.tag.dscp = task.dscp.clone();
        if number > 0 {
            config.model.class_confidence.clear();
            config.mark.class = task.mark.clone();
            config.mark.mask = task.mark_mask;
            // A DSCP in the mark is the first task's.
            config.mark.holds = MarkAs::Label;
        }
        config.tasks = vec![Task {
            when: When::default(),
            ..task.clone()
        }];
        config
    }

    /// The interface that packets are copied to where rules ask for it; only mode inline copies.
    pub fn mirror(&self) -> Option<&str> {
        let mirror = self.policy.mirror.as_deref();
        mirror.filter(|_| self.io.mode == IoMode::Inline)
    }

    /// How many threads the data path has, in all pipelines.
    pub fn thread_count(&self) -> usize {
        let layout = &self.pipeline.layout;
        let managers = layout.flow_managers + layout.analytics_managers;
        self.pipeline.instances * (managers + self.device_threads().len())
    }
}

/// Packet input and output.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Io {
    /// How frames are received and sent.
    pub backend: Backend,
    /// Frames per burst.
    pub burst: usize,
    /// What is done with live traffic.
    pub mode: IoMode,
    /// Which packets come up from the kernel, in modes that send none.
    pub capture: Capture,
    /// Where that was set.
    pub capture_origin: Origin,
    /// Flows that the kernel counts, for each interface and flow manager.
    pub counted_flows: u32,
    /// Names of the interfaces; two where the mode is inline.
    pub interfaces: Vec<String>,
    /// Whether frames for other machines are received.
    pub promiscuous: bool,
    /// The most bytes captured of a frame, in modes that send none.
    pub snap_length: u32,
    /// Bytes of a block of a receive ring.
    pub block_bytes: u32,
    /// Blocks of a receive ring.
    pub blocks: u32,
    /// A block that is not full is handed over this long after its first frame.
    pub block_timeout_ms: u32,
    /// How long a run waits while all its interfaces are gone.
    pub give_up_after: Duration,
    /// What only the backend `af_xdp` wants to know.
    pub xdp: Xdp,
    /// What only the backend `dpdk` wants to know.
    pub dpdk: Dpdk,
}

/// The section `[dpdk]`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Dpdk {
    /// Arguments that DPDK is started with.
    pub args: Vec<String>,
    /// Packet buffers of each receive queue.
    pub mbufs: u32,
    /// How long a flow manager sleeps between its looks at an idle port; zero: not at all.
    pub sleep: Duration,
}

/// The section `[xdp]`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Xdp {
    /// Where frames are taken.
    pub mode: XdpMode,
    /// Whether the card writes into this program's memory.
    pub zero_copy: ZeroCopy,
    /// Whether the kernel says when it needs a system call.
    pub need_wakeup: bool,
    /// How long a flow manager asks the driver, µs; 0: never.
    pub busy_poll_us: u32,
    /// Frames that may wait in a queue.
    pub frames: u32,
    /// Bytes of memory of each.
    pub frame_bytes: u32,
    /// Addresses whose frames go to the kernel.
    pub to_host: Vec<IpAddr>,
}

/// The flow manager.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Flow {
    /// Packets in a series.
    pub k: usize,
    /// Where that was set.
    pub k_origin: Origin,
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
    /// How long late packets still count for a flow that ended by FIN or RST.
    pub closed_timeout: Duration,
    /// Whether FIN and RST end a flow.
    pub end_on_fin_rst: bool,
    /// The bucket hash.
    pub hash: FlowHash,
    /// Key of the bucket hash; `None`: the program chooses, fixed in replay and random live.
    pub hash_seed: Option<u64>,
    /// Flows held by each flow manager.
    pub max_flows: usize,
    /// Buckets of the table, a power of two; computed from `max_flows` where the user left it open.
    pub buckets: usize,
}

/// What flows do, by their counts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Behaviours {
    /// Whether flows have a behaviour.
    pub enabled: bool,
    /// Where behaviours begin and end.
    pub bounds: Bounds,
}

impl Behaviours {
    /// The bounds, unless flows have no behaviour.
    pub fn in_use(&self) -> Option<Bounds> {
        self.enabled.then_some(self.bounds)
    }
}

/// Marking of labelled packets.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tag {
    /// Whether packets are marked at all.
    pub enabled: bool,
    /// Label to DSCP, by label.
    pub dscp: Vec<DscpMapping>,
}

/// One entry of `tag.dscp`.
#[derive(Debug, Clone, PartialEq)]
pub struct DscpMapping {
    /// Label or taxonomy of the model.
    pub label: String,
    /// Code point of the packets.
    pub dscp: Dscp,
    /// Whether a model without this label is an error: the user named it, with another value than the
    /// built-in one.
    pub required: bool,
    /// Where the entry was set.
    pub origin: Origin,
}

/// Marks of connections, where the kernel forwards.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Mark {
    /// What a mark holds.
    pub holds: MarkAs,
    /// The bits that the program may write.
    pub mask: u32,
    /// Whether bits that are set already are replaced.
    pub overwrite: bool,
    /// The zone of conntrack that has the connections.
    pub zone: u16,
    /// Label to bits, by label: `mark.class`, or what `tag.dscp` comes to.
    pub class: Vec<MarkMapping>,
    /// How many updates may wait for the writer.
    pub queue: usize,
    /// Behaviour to bits, outside of the mask.
    pub behaviour: Vec<BehaviourMark>,
}

/// One entry of `mark.behaviour`.
#[derive(Debug, Clone, PartialEq)]
pub struct BehaviourMark {
    /// What the flow does.
    pub behaviour: Behaviour,
    /// Bits of the connection mark.
    pub mark: u32,
}

impl Mark {
    /// The bits that behaviours may write.
    pub fn behaviour_mask(&self) -> u32 {
        self.behaviour.iter().fold(0, |mask, row| mask | row.mark)
    }
}

/// One entry of `mark.class`.
#[derive(Debug, Clone, PartialEq)]
pub struct MarkMapping {
    /// Label or taxonomy of the model.
    pub label: String,
    /// Bits, within the mask.
    pub mark: u32,
    /// As in [`DscpMapping`].
    pub required: bool,
    /// Where the entry was set.
    pub origin: Origin,
}

impl Tag {
    /// The rules for packets; none where packets are not marked at all.
    pub fn rules(&self) -> Vec<LabelRule> {
        let rows = self.dscp.iter().filter(|_| self.enabled);
        let rule = |row: &DscpMapping| LabelRule {
            label: row.label.clone(),
            action: Action {
                dscp: Some(row.dscp),
                mark: None,
            },
            required: row.required,
            origin: format!("{}: tag.dscp", row.origin),
        };
        rows.map(rule).collect()
    }
}

impl Mark {
    /// The key that gives labels their bits.
    pub fn table(&self) -> &'static str {
        match self.holds {
            MarkAs::Label => "mark.class",
            MarkAs::Dscp => "tag.dscp",
        }
    }

    /// The rules for connections.
    pub fn rules(&self) -> Vec<LabelRule> {
        let rule = |row: &MarkMapping| LabelRule {
            label: row.label.clone(),
            action: Action {
                dscp: None,
                mark: Some(policy::Mark {
                    bits: row.mark,
                    mask: self.mask,
                }),
            },
            required: row.required,
            origin: format!("{}: {}", row.origin, self.table()),
        };
        self.class.iter().map(rule).collect()
    }
}

/// Labels of connections.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Connlabel {
    /// Label to label of the connection, by label; empty: none is written.
    pub class: Vec<ConnlabelMapping>,
    /// The file that names labels of connections; `None`: that of nft or iptables.
    pub file: Option<PathBuf>,
    /// Whether another label of `class` that is set already is replaced.
    pub overwrite: bool,
    /// How many updates may wait for the writer.
    pub queue: usize,
}

/// One entry of `connlabel.class`.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnlabelMapping {
    /// Label of the model, or a taxonomy.
    pub label: String,
    /// Label of the connection: its name or its number.
    pub connlabel: String,
    /// Where the entry was set.
    pub origin: Origin,
}

/// A set of nftables that gets the ends of flows.
#[derive(Debug, Clone, PartialEq)]
pub struct NftSet {
    /// Name of the table in the configuration.
    pub name: String,
    /// Where the table was first named.
    pub origin: Origin,
    /// The set; `None` only while the configuration is read.
    pub set: Option<SetName>,
    /// Labels, or taxonomies, whose flows are added.
    pub labels: Vec<String>,
    /// What an element is made of.
    pub key: Vec<Field>,
    /// How long an element stays; 0: as long as the set says.
    pub timeout: Duration,
    /// How many elements may wait for the writer.
    pub queue: usize,
}

/// The ring from flow manager to analytics manager.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ring {
    /// Slots, a power of two. A replay takes bursts of an eighth of it at most.
    pub slots: usize,
}

/// Threads.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pipeline {
    /// Flow managers : analytics managers : devices.
    pub layout: Layout,
    /// Pipelines side by side.
    pub instances: usize,
    /// CPU numbers for the threads, at least one each; empty: automatic.
    pub cores: Vec<usize>,
}

/// The model bundle.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Model {
    /// Its folder; `None`: the bundle that ships with the program.
    pub path: Option<PathBuf>,
    /// Least confidence of a label; `None`: as the bundle says.
    pub min_confidence: Option<f32>,
    /// Least confidence of single labels, which overrides `min_confidence`.
    pub class_confidence: Vec<ClassConfidence>,
    /// How long the model may take to open, warm up and pass its test.
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

/// Records of flows, labels and hosts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Records {
    /// Where a live run writes them; `None`: nowhere.
    pub path: Option<PathBuf>,
    /// When a live run begins a new file; `None`: never.
    pub rotate: Option<Rotate>,
    /// The Unix socket on which a live run gives them to readers; `None`: none.
    pub socket: Option<PathBuf>,
    /// How far a reader of the socket may fall behind, bytes.
    pub socket_backlog: usize,
    /// Share of the flows whose records have the series.
    pub series: f64,
    /// How many records may wait for the writer.
    pub queue: usize,
    /// How long a live run may take at its end to write the records that are left.
    pub drain_within: Duration,
}

/// Flow records for a collector.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ipfix {
    /// Where they go; `None`: nowhere.
    pub to: Option<Destination>,
    /// The observation domain of this exporter.
    pub domain: u32,
    /// How often templates are sent again over UDP.
    pub template_every: Duration,
    /// How many records may wait.
    pub queue: usize,
}

/// Records for a topic of Kafka.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Kafka {
    /// Brokers to begin with; empty: records do not go to Kafka.
    pub brokers: Vec<Endpoint>,
    /// The topic.
    pub topic: String,
    /// Properties of librdkafka by name.
    pub options: Vec<(String, String)>,
}

/// When a new file of records begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rotate {
    /// The most bytes of a file.
    pub bytes: u64,
    /// How many old files are kept, at least one.
    pub files: usize,
}

/// What a live run logs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Log {
    /// A level, or levels by target; checked.
    pub level: String,
    /// Where to.
    pub to: LogTo,
}

/// Metrics, health and the control socket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Control {
    /// Address of metrics and health; `None`: off.
    pub http: Option<HttpPlace>,
    /// Socket of `fenxi ctl`; `None`: off.
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
