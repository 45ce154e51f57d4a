//! What the control thread has of a sink: how it is started, what it has counted, and how it ends.
//! The other half, [`Sink`], stands on the data path.
//!
//! A kind of sink is a [`SinkKind`], which knows the configuration and starts a [`SinkControl`]
//! where a run wants one. Everything but the start and the workers' halves has a default, so a sink
//! says only what it has.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use config::{Config, Section};
use dataplane::Error;
use dataplane::run::Run;
use dataplane::server_actions::ServerActions;
use dataplane::sink::Sink;
use dataplane::tasks::TaskNames;
use flowmgr::record::FlowName;
use netfilter::writer::StartError;
use packetio::WrittenMarks;
use policy::Label;
use rustix::thread::CapabilitySet;

use super::SharedHosts;
use super::flows::RecentFlows;
use super::interfaces::Interfaces;
use super::records::Kafka;
use super::reopen::Reopener;
use crate::exit::Failure;
use crate::metric::Family;
use crate::names;
use crate::protocol::{Reply, Request, Sums, Written};
use crate::servers::Memories;
use crate::services;
use crate::unix_socket::UnixSocket;
use learn::SharedHeld;

pub struct Start<'a> {
    pub config: &'a Config,
    pub names: &'a Arc<[TaskNames]>,
    pub labels: &'a [Arc<[Label]>],
    /// The hosts of the run, where the model names hosts.
    pub hosts: Option<&'a SharedHosts>,
    /// What hosts are called, and what reads it; nothing in a replay.
    pub host_names: &'a names::Opened,
    /// Where records go (`--flows`, or live `records.path`).
    pub records: Option<&'a Path>,
    /// Live: the socket on which readers get them.
    pub record_socket: Option<&'a Arc<UnixSocket>>,
    /// The socket on which programs that tune models get samples.
    pub learn_socket: Option<&'a Arc<UnixSocket>>,
    /// Where programs get memory for weights of servers, in the order of the tables.
    pub weight_sockets: &'a [Arc<UnixSocket>],
    /// Takes the actions that they give.
    pub by_server: Option<&'a Arc<ServerActions>>,
    /// Takes the samples that are held out.
    pub held: &'a SharedHeld,
    /// The workers' memories of servers, where they are kept.
    pub servers: &'a Memories,
    /// The services of the run, until their sink has started.
    pub services: &'a services::Opened,
    /// Flow records carry the series.
    pub record_series: bool,
    /// The recent flows for the control plane; `None`: the run has none.
    pub recent: Option<&'a RecentFlows>,
    /// The marks that the kernel's program writes; `None`: user space writes all.
    pub marks_by_kernel: Option<Arc<WrittenMarks>>,
    /// What only a replay has; `None`: the run is live.
    pub replay: Option<ReplayStart>,
}

impl Start<'_> {
    /// Where flows come in and leave; unknown in a replay.
    pub fn interfaces(&self) -> Interfaces {
        self.recent.map_or_else(Interfaces::default, |recent| recent.interfaces.clone())
    }

    /// Whether records are written anywhere as JSON Lines.
    pub fn has_lines(&self) -> bool {
        let kafka: Kafka = self.config.section();
        let has_topic = self.replay.is_none() && kafka.records_topic().is_some();
        self.records.is_some() || self.record_socket.is_some() || has_topic
    }
}

pub struct ReplayStart {
    /// A full queue holds up the replay.
    pub waits: bool,
    /// Stopped where an output fails, if the rest of the replay is of no use then.
    pub stopped: Option<Arc<Run>>,
}

/// A kind of sink, whether a run has one or not.
pub trait SinkKind: Sync {
    fn sections(&self) -> &'static [&'static Section] {
        &[]
    }

    /// Where it puts labels of which task, for `fenxi check`.
    fn places(&self, _config: &Config) -> Vec<(usize, String)> {
        Vec::new()
    }

    /// What it needs of the kernel, for `fenxi check`.
    fn kernel_parts(&self, _config: &Config) -> Vec<KernelPart> {
        Vec::new()
    }

    /// Starts the sink where this run wants one.
    ///
    /// # Errors
    /// It cannot be started.
    fn start(&self, start: &Start<'_>) -> Result<Option<Box<dyn SinkControl>>, Failure>;

    /// The rights that a live run keeps for the sink; all others are given up before it starts.
    /// `records` is where records go.
    fn rights(&self, _config: &Config, _records: Option<&Path>) -> Rights {
        Rights::none()
    }

    /// Whether a live run could start the sink, found without starting it and without leaving
    /// anything behind. Files that are `is_exempt` are not examined: a run writes them now, or the
    /// service's unit makes their folder.
    fn probe(&self, config: &Config, _is_exempt: &dyn Fn(&Path) -> bool) -> Result<(), Failure> {
        self.kernel_parts(config).into_iter().try_for_each(|part| Ok(part.probed?))
    }

    /// Checks the labels that the sink's keys name: a model of some task must have them.
    fn check_labels(&self, _config: &Config, _labels: &[Arc<[Label]>]) -> Result<(), Error> {
        Ok(())
    }

    /// The report of a run without this sink: the same metrics and sums, all 0.
    fn empty_report(&self) -> Report {
        Report::default()
    }

    /// The sink's line in `fenxi ctl status`, from the sums of [`Report::status`], where there is
    /// something to say.
    fn status_line(&self, _sums: &Sums) -> Option<String> {
        None
    }

    /// The name in [`Report::status`] of what the sink gave up, and the noun that follows the
    /// number on the line of losses.
    fn losses(&self) -> Option<(&'static str, &'static str)> {
        None
    }
}

pub struct KernelPart {
    pub check: &'static str,
    pub subject: String,
    pub probed: Result<(), StartError>,
    /// What to say if it can.
    pub done: String,
}

pub struct Rights {
    pub capabilities: CapabilitySet,
    /// Files that are written, moved on, and reopened.
    pub written: Vec<PathBuf>,
    pub connects: Connects,
}

/// TCP ports that connections may be made to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Connects {
    Ports(Vec<u16>),
    /// All: a broker of Kafka names others.
    Any,
}

impl Connects {
    pub fn or(self, other: Connects) -> Connects {
        match (self, other) {
            (Connects::Ports(mut ports), Connects::Ports(more)) => {
                ports.extend(more);
                Connects::Ports(ports)
            }
            _ => Connects::Any,
        }
    }
}

impl Default for Connects {
    fn default() -> Connects {
        Connects::Ports(Vec::new())
    }
}

impl fmt::Display for Connects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Connects::Ports(ports) if ports.is_empty() => f.write_str("no new TCP"),
            Connects::Ports(ports) => {
                let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
                write!(f, "new TCP only to port {}", ports.join(", "))
            }
            Connects::Any => f.write_str("new TCP only outwards"),
        }
    }
}

impl Rights {
    /// No rights beyond what every run has.
    pub fn none() -> Rights {
        Rights {
            capabilities: CapabilitySet::empty(),
            written: Vec::new(),
            connects: Connects::default(),
        }
    }

    /// The right to change the kernel's netfilter, for a sink that is wanted.
    pub fn of_netfilter(is_wanted: bool) -> Rights {
        let capability = if is_wanted { CapabilitySet::NET_ADMIN } else { CapabilitySet::empty() };
        Rights { capabilities: capability, ..Rights::none() }
    }
}

/// A sink of this run. It is shared by the control thread, the thread for reloads and the end of
/// the run.
pub trait SinkControl: Send + Sync {
    /// The half of another flow worker; `None` once [`SinkControl::finish`] was called.
    fn worker_half(&self) -> Option<Box<dyn Sink>>;

    /// What the sink has counted, all of one moment. Asked with each scrape, and once a second.
    fn report(&self) -> Report {
        Report::default()
    }

    /// Called on the control thread every 100 ms.
    fn tick(&self) {}

    /// Answers a request of `fenxi ctl` that concerns this sink.
    fn answer(&self, _request: &Request) -> Option<Reply> {
        None
    }

    /// A host's name, where this sink names hosts and that one has a name.
    fn host_name(&self, _host: IpAddr) -> Option<String> {
        None
    }

    /// The weights of servers that are in use, where this sink writes them.
    fn server_weights(&self) -> Vec<(SocketAddr, f64)> {
        Vec::new()
    }

    /// What the sink has written about a flow whose labels are of these classes, by task, for
    /// `fenxi ctl explain`; why it has not.
    fn explain(&self, _flow: &FlowName, _classes: &[Option<u16>]) -> Vec<Written> {
        Vec::new()
    }

    /// What another configuration makes of the sink, prepared and without effect yet; `None`: it
    /// changes nothing here.
    fn prepare(&self, _now: &Config, _next: &Config) -> Result<Option<Commit>, Error> {
        Ok(None)
    }

    /// Reopens the sink's file, if it has one.
    fn reopener(&self) -> Option<Reopener> {
        None
    }

    /// The flow workers have ended and their halves are gone: waits until everything is written; a
    /// live run has a deadline. `ended` is when the last label was given.
    ///
    /// # Errors
    /// Writing broke off, or something was lost since the end began.
    fn finish(&self, _ended: Instant) -> Result<(), Failure> {
        Ok(())
    }
}

/// Brings into use what [`SinkControl::prepare`] has made. It cannot fail.
pub type Commit = Box<dyn FnOnce() + Send>;

#[derive(Debug, Clone, Default)]
pub struct Report {
    pub metrics: Vec<Family>,
    /// What it was asked for less what it accounts for, by name: above 0 is missing, below 0 is too
    /// much.
    pub balance: Option<(&'static str, i64)>,
    /// What people should know of as soon as it begins.
    pub losses: Vec<Lost>,
    /// Why the sink does not do what it is for, though nothing of it fails: degrades the run, and
    /// it is not ready. The name of the check, and the reason.
    pub fault: Option<(&'static str, String)>,
    /// Sums for `fenxi ctl status`.
    pub status: Vec<(&'static str, u64)>,
    /// Sums for the summary.
    pub summary: Vec<(&'static str, u64)>,
    /// A line of the text summary, where there is something to say.
    pub summary_text: Option<String>,
    /// Sums for the part `live` of the summary.
    pub live_summary: Vec<(&'static str, u64)>,
    /// The same in words.
    pub live_text: Option<String>,
}

impl Report {
    pub fn is_balanced(&self) -> bool {
        self.balance.is_none_or(|(_, missing)| missing == 0)
    }
}

#[derive(Debug, Clone)]
pub struct Lost {
    /// Reads "records are dropped".
    pub what: &'static str,
    pub count: u64,
    /// The reason, where it is known; or empty.
    pub why: String,
}

impl Lost {
    /// With no reason to give.
    pub fn new(what: &'static str, count: u64) -> Lost {
        Lost { what, count, why: String::new() }
    }
}
