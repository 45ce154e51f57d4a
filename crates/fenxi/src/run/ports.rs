//! The interfaces of a live run, opened as configured.
//!
//! Each interface has a receive ring for each flow worker; the kernel spreads frames over them. The
//! n-th rings of all interfaces belong to the n-th flow worker, so both directions of a flow meet
//! there.

use std::sync::Arc;
use std::time::Duration;

use config::checked::{Capture, Io, IoMode};
use config::{Config, nearest};
use cring::Unit;
use dataplane::clock::Clock;
use dataplane::egress::{Egress, Forward, Mirror};
use dataplane::flow_worker::Limits;
use dataplane::run::Run;
use dataplane::servers::Portion;
use dataplane::sink::Sink;
use dataplane::snapshot::Publisher;
use dataplane::tasks::OpenTask;
use flowmgr::record::{DecidedBy, LabelRecord, Record};
use flowmgr::{Rss, SeriesShare};
use packetio::sharded::{Owner, share};
use packetio::{
    Direction, Enough, FirstPackets, FrameBatch, KernelEditions, OpenError, Opened, PortSettings,
    Rx, Tx, interface,
};
use rustix::thread::CapabilitySet;
use tracing::{info, warn};

use super::kept::Kept;
use super::kernel_labels::kernel_labels;
use crate::exit::Failure;
use crate::service_unit::DropIn;
use crate::services;
use crate::sinks::Sinks;
use crate::workers::WorkerIo;

/// Packets of a flow that come up in addition to its longest series.
const MARGIN: u32 = 2;
/// Packets within which both sides of a connection have sent one, so that it is not half-open.
const ANSWERED_WITHIN: u32 = 6;

/// Kernels check blocks that are not full once per timeout; older kernels do so in ticks of up to
/// 10 ms.
const BLOCK_SLACK: Duration = Duration::from_millis(10);

/// What the kernel is to do for packets that come up, and what it cannot.
#[derive(Clone, Default)]
pub struct Wanted {
    /// The first packets of each flow that it sends up, and how it labels flows; `None`: all
    /// packets come up.
    pub first: Option<FirstPackets>,
    /// Why it cannot label, though it should.
    pub no_labels: Option<String>,
}

/// What `io.capture` asks of the kernel; `recorded` is the share of records with a series.
pub fn wanted(config: &Config, tasks: &[OpenTask], recorded: SeriesShare) -> Wanted {
    if config.io.capture == Capture::All || config.io.mode == IoMode::Inline {
        return Wanted::default();
    }
    let labels = (config.io.capture == Capture::Kernel)
        .then(|| kernel_labels(config, tasks, recorded))
        .transpose();
    let (labels, no_labels) = match labels {
        Ok(labels) => (labels, None),
        Err(why) => (None, Some(format!("the kernel cannot label flows: {why}"))),
    };
    let has_marks = labels.as_ref().is_some_and(|it| it.marks.is_some());
    let written = has_marks.then(Arc::default);
    let labels = labels.map(|it| Arc::new(KernelEditions::new(it)));
    let first = FirstPackets { labels, written, ..first_packets(config, tasks) };
    Wanted { first: Some(first), no_labels }
}

/// Adds to who labels for the first task, and why, what the kernel does about it.
pub fn note_kernel(wanted: &Wanted, tasks: &mut [OpenTask]) {
    let Some(task) = tasks.first_mut() else { return };
    let labels = wanted.first.as_ref().and_then(|it| it.labels.as_ref());
    let own = if task.labels_why.is_empty() { "by fenxi" } else { &task.labels_why };
    task.labels_why = match (&wanted.no_labels, labels) {
        (Some(no_labels), _) => format!("{own}; {no_labels}"),
        (None, Some(labels)) => {
            let is_marked = task.config.io.mode == IoMode::Mark;
            let is_by_fenxi = is_marked && labels.first().marks.is_none();
            let marks = if is_by_fenxi { ", marks by fenxi" } else { "" };
            format!("in the kernel{marks}; what it leaves, {own}")
        }
        (None, None) => return,
    };
}

/// Enough first packets of each flow for the longest series of a task.
fn first_packets(config: &Config, tasks: &[OpenTask]) -> FirstPackets {
    let of = |unit| {
        let tasks = tasks.iter().map(|task| &task.series).filter(|it| it.unit == unit);
        let k = tasks.map(|it| it.k_max());
        k.max().map_or(0, |k| k as u32 + MARGIN)
    };
    let (packets, data_packets) = (of(Unit::Packet).max(ANSWERED_WITHIN), of(Unit::Data));
    FirstPackets {
        packets,
        data_packets,
        bulk_bytes: config.behaviour.in_use().map_or(0, |it| it.bulk_bytes),
        forget: config.flow.idle_timeout.unwrap_or_default(),
        flows: config.io.counted_flows,
        seed: config.flow.hash_seed.unwrap_or_default().wrapping_add(1),
        labels: None,
        written: None,
    }
}

/// Opens in the first way that the kernel takes: with labels, with first packets, with all
/// packets. Returns also why an earlier way is not taken, and what happens instead.
pub fn in_some_way<T>(
    wanted: &Wanted,
    open: impl Fn(Option<FirstPackets>) -> Result<T, OpenError>,
) -> Result<(T, Option<String>), OpenError> {
    const NO_LABELS: &str = "fenxi labels them instead, as with io.capture = \"first\"";
    const ALL: &str = "all packets come up instead, as with io.capture = \"all\"";
    let mut why = wanted.no_labels.as_ref().map(|why| format!("{why}; {NO_LABELS}"));
    let mut first = wanted.first.clone();
    loop {
        (first, why) = match (open(first.clone()), first) {
            (Err(refused @ OpenError::KernelLabels { .. }), Some(first)) => (
                Some(FirstPackets { labels: None, ..first }),
                Some(format!("{refused}; {NO_LABELS}")),
            ),
            (Err(refused @ OpenError::FirstPackets { .. }), Some(_)) => {
                (None, Some(format!("{refused}; {ALL}")))
            }
            (opened, _) => return opened.map(|opened| (opened, why)),
        }
    }
}

/// Checks whether the port of an interface could be opened, without watching the interface.
pub fn try_port(io: &Io, first: Option<FirstPackets>, interface: &str) -> Result<(), OpenError> {
    packetio::probe(io.backend, &settings(io, first, interface))
}

/// Opens all interfaces for `workers` flow workers, over the rings of the process before if they
/// fit. Returns the ports of each worker, in the order of the configuration. If the kernel cannot
/// do what is wanted, more packets come up; the log warns if `io.capture` was set.
///
/// # Errors
/// 69 if an interface is unavailable, 77 if a capability is missing, 78 without an interface or if
/// a setting does not suit one.
pub fn open(
    io: &Io,
    wanted: &Wanted,
    workers: usize,
    kept: Kept,
) -> Result<Vec<Vec<Opened>>, Failure> {
    check_named(io)?;
    let mut by_worker: Vec<Vec<Opened>> = (0..workers).map(|_| Vec::new()).collect();
    let keeper = kept.keeper();
    let interfaces = |first: Option<FirstPackets>| -> Vec<PortSettings> {
        let settings = io
            .interfaces
            .iter()
            .map(|it| PortSettings { keeper: keeper.clone(), ..settings(io, first.clone(), it) });
        settings.collect()
    };
    let open = |first| packetio::open(io.backend, &interfaces(first), workers as u16);
    let adopted = kept.adopt(&interfaces(None), workers as u16);
    let opened = match adopted {
        Some(opened) => Ok((opened, None)),
        None => in_some_way(wanted, open),
    };
    let (opened, why) = opened.map_err(|error| failure(io, "", &error))?;
    match why {
        Some(why) if io.capture_origin.is_default() => info!("{why}"),
        Some(why) => warn!("{why}"),
        None => {}
    }
    let rss = Rss::new();
    let owner: Owner =
        Arc::new(move |link, frame, workers| rss.unseen_by_cards(link, frame, workers));
    for mut rings in opened {
        if io.backend.takes_frames {
            // Cards spread the frames, and not always by flow, as the kernel does for copies.
            hand_over(&mut rings, &owner)?;
        }
        if let Some(how) = rings.first().and_then(|ring| ring.how.as_ref()) {
            info!("{how}");
        }
        for (ports, ring) in by_worker.iter_mut().zip(rings) {
            ports.push(ring);
        }
    }
    Ok(by_worker)
}

/// Whether the kernel labels flows at a port.
pub fn label_in_kernel(ports: &mut [Vec<Opened>]) -> bool {
    ports.iter_mut().flatten().any(|port| port.rx.counts().labels_in_kernel)
}

/// Opens the interface for copies once for each of `workers` flow workers, if one is configured.
pub fn open_mirror(config: &Config, workers: usize) -> Result<Vec<Box<dyn Tx>>, Failure> {
    let Some(mirror) = config.mirror() else { return Ok(Vec::new()) };
    let opened = packetio::open_copies(mirror, workers);
    let opened = opened.map_err(|error| failure(&config.io, "policy.mirror: ", &error))?;
    let mut interfaces = config.io.interfaces.iter();
    match interfaces.find(|it| interface::are_one(it, mirror)) {
        Some(same) => Err(Failure::config(format!(
            "policy.mirror: {mirror} is another name of {same}, where copies would go out among \
            the packets that are forwarded; name another interface"
        ))),
        None => Ok(opened),
    }
}

/// Makes the ports of an interface pass frames that the card steered to a wrong worker on to the
/// owner of their flow.
fn hand_over(rings: &mut [Opened], owner: &Owner) -> Result<(), Failure> {
    let away = || Box::new(FrameBatch::new()) as Box<dyn Rx>;
    let ports = rings.iter_mut().map(|ring| std::mem::replace(&mut ring.rx, away()));
    let shared = share(ports.collect(), owner).map_err(|error| {
        Failure::unavailable(format!("cannot make an event for each flow worker: {error}"))
    })?;
    for (ring, rx) in rings.iter_mut().zip(shared) {
        ring.rx = rx;
    }
    Ok(())
}

/// Capabilities that reopen an interface that was gone.
pub fn capabilities(io: &Io) -> CapabilitySet {
    let names = (io.backend.capabilities)(&settings(io, None, "")).iter();
    let known = names.filter_map(|name| CapabilitySet::from_name(name.strip_prefix("CAP_")?));
    known.fold(CapabilitySet::empty(), |all, one| all | one)
}

/// Checks what [`open`] would refuse, without binding to an interface.
pub fn probe(config: &Config) -> Result<(), Failure> {
    let io = &config.io;
    check_named(io)?;
    for interface in &io.interfaces {
        try_port(io, None, interface).map_err(|error| failure(io, "", &error))?;
    }
    open_mirror(config, 1).map(drop)
}

fn check_named(io: &Io) -> Result<(), Failure> {
    match io.interfaces.is_empty() {
        true => Err(Failure::config(
            "io.interfaces = []: name the interfaces to run on, as in `-i eth0`",
        )),
        false => Ok(()),
    }
}

/// How the port of an interface is opened.
pub fn settings(io: &Io, first: Option<FirstPackets>, interface: &str) -> PortSettings {
    let is_inline = io.mode == IoMode::Inline;
    let defaults = PortSettings::new(interface);
    PortSettings {
        direction: if is_inline { Direction::Incoming } else { Direction::Both },
        is_promiscuous: io.promiscuous || is_inline,
        // Forwarded packets must be complete.
        snap_length: if is_inline { defaults.snap_length } else { io.snap_length },
        block_bytes: io.block_bytes,
        blocks: io.blocks,
        block_timeout_ms: io.block_timeout_ms,
        // A worker waits for all its rings at once.
        wait: Duration::ZERO,
        completes_checksums: is_inline,
        sends: is_inline,
        first,
        own: io.own.clone(),
        ..defaults
    }
}

/// By flow worker: what copies its memory of servers, where that is kept, and what brings services.
pub type Memories = (Vec<Publisher<Portion>>, services::Ports);

pub fn worker_io(
    ports: Vec<Vec<Opened>>,
    mirrors: Vec<Box<dyn Tx>>,
    config: &Config,
    run: &Arc<Run>,
    sinks: &Sinks,
    records_series: bool,
    (servers, services): Memories,
) -> Vec<WorkerIo> {
    // A router's packet comes in by one interface and leaves by another. In mode tap each interface
    // has a part of the traffic.
    let is_seen_twice = config.io.mode == IoMode::Mark && config.io.interfaces.len() > 1;
    let (mut mirrors, mut servers) = (mirrors.into_iter(), servers.into_iter());
    let mut services = services.into_iter();
    let parts = ports.into_iter().enumerate().map(|(number, ports)| {
        let mut enough: Vec<Enough> = ports.iter().filter_map(|it| it.enough.clone()).collect();
        if records_series || config.tasks.len() > 1 {
            // The rest of the series is still needed after a label: by records, or by another task.
            enough.clear();
        }
        let (rx, tx): (Vec<_>, Vec<_>) = ports.into_iter().map(|port| (port.rx, port.tx)).unzip();
        let tx: Vec<Box<dyn Tx>> = tx.into_iter().flatten().collect();
        // Only mode inline sends, and it has exactly two interfaces.
        let egress = <[Box<dyn Tx>; 2]>::try_from(tx).ok();
        let egress = egress.filter(|_| config.io.mode == IoMode::Inline);
        let mirror = mirrors.next().map(|port| Mirror::new(port, run.clone()));
        let forward = |ports| {
            let forward = Forward::new(ports, mirror, run.clone(), number);
            Box::new(forward) as Box<dyn Egress>
        };
        WorkerIo {
            ports: rx,
            egress: egress.map(forward),
            flows_belong_to_ports: is_seen_twice,
            clock: Clock::live(),
            sinks: with_kernel(sinks.worker_halves(), enough),
            servers: servers.next(),
            services: services.next(),
        }
    });
    parts.collect()
}

/// Tells the kernel which flows have their label, so that it sends up no more of their packets.
struct ToKernel(Vec<Enough>);

impl Sink for ToKernel {
    fn record(&mut self, record: &Record) {
        // After a label by port the model is still to be asked.
        if let Record::Label(LabelRecord { flow, decision, .. }) = record
            && decision.decided_by != DecidedBy::Port
        {
            let ends = [flow.source, flow.destination];
            self.0.iter().for_each(|it| it.note(flow.protocol, ends));
        }
    }
}

fn with_kernel(mut sinks: Vec<Box<dyn Sink>>, enough: Vec<Enough>) -> Vec<Box<dyn Sink>> {
    if !enough.is_empty() {
        sinks.push(Box::new(ToKernel(enough)));
    }
    sinks
}

pub fn limits(config: &Config) -> Limits {
    Limits {
        burst: config.io.burst.min(config.ring.slots / 4),
        handover: BLOCK_SLACK + 2 * Duration::from_millis(config.io.block_timeout_ms.into()),
        give_up_after: config.io.give_up_after,
    }
}

/// The failure, with `key` before the interface's name.
fn failure(io: &Io, key: &str, error: &OpenError) -> Failure {
    let line = format!("{key}{error}");
    match error {
        OpenError::NoSuchInterface { interface, known } => {
            let near = nearest(interface, known.iter().map(String::as_str));
            let near = near.map(|near| format!("; did you mean {near}?"));
            Failure::unavailable(format!("{line}{}", near.unwrap_or_default()))
        }
        // The unit itself grants CAP_NET_RAW.
        OpenError::MissingCapability { capability, .. } if *capability != "CAP_NET_RAW" => {
            let drop_in = DropIn::of_backend(io.backend);
            let cure = drop_in.and_then(|it| it.cure()).map(|cure| format!("; {cure}"));
            Failure::not_allowed(line + &cure.unwrap_or_default())
        }
        OpenError::MissingCapability { .. }
        | OpenError::LockedMemory { .. }
        | OpenError::NotAllowed { .. } => Failure::not_allowed(line),
        OpenError::BadSetting { .. } | OpenError::Unsuitable { .. } => Failure::config(line),
        _ => Failure::unavailable(line),
    }
}
