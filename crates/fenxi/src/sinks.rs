//! The sinks of a run. [`KINDS`] is the one place where they are listed: everything outside this
//! folder iterates.
//!
//! A sink has two halves. Each flow worker has one of [`dataplane::sink::Sink`], which it calls
//! between two bursts; the control thread has a [`SinkControl`], which knows the thread that
//! writes, the metrics, and the end.

pub mod broadcast;
mod connlabel;
mod control;
mod dscp;
mod flows;
#[cfg(feature = "history")]
mod history;
#[cfg(not(feature = "history"))]
#[path = "sinks/history/absent.rs"]
mod history;
mod hosts;
mod interfaces;
pub mod ipfix;
pub mod mark;
mod netfilter;
mod nft_set;
pub mod queue;
pub mod records;
mod reopen;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use config::{Config, Section, Sources};
use dataplane::Error;
use dataplane::sink::Sink;
use flowmgr::record::FlowName;
use policy::Label;

use crate::exit::Failure;
use crate::protocol::{Body, EgressRow, Reply, Request, ServiceRow, Sums, Written};

#[cfg(test)]
pub use connlabel::class_labels;
pub use control::{
    Commit, Connects, KernelPart, Lost, ReplayStart, Report, Rights, SinkControl, SinkKind, Start,
};
pub use flows::{Known, Recent, RecentFlows, add as add_counts};
pub use hosts::{SharedHosts, host_of};
pub use interfaces::{Dscps, Interfaces};
pub use queue::WritingThread;
pub use records::rfc3339;
pub use reopen::Answer;

/// Every kind of sink, in the order in which a flow worker calls them and in which they are
/// reported.
pub static KINDS: &[&dyn SinkKind] = &[
    &records::Records,
    &ipfix::Ipfix,
    &mark::Marks,
    &connlabel::Connlabels,
    &nft_set::NftSets,
    &flows::Flows,
    &dscp::DscpSums,
    &hosts::Hosts,
    &crate::names::Reading,
    &crate::learning::Learning,
    &crate::servers::Kept,
    &history::History,
    &crate::services::Observing,
    &crate::weights::WeightedServers,
];

/// The sections of the configuration that belong to sinks.
pub fn sections() -> impl Iterator<Item = &'static Section> {
    KINDS.iter().flat_map(|kind| kind.sections()).copied()
}

/// Sources that know the sections of sinks, too.
pub fn known(sources: Sources) -> Sources {
    sources.and(sections())
}

/// Where labels go besides packets, marks and records, with the number of their task.
pub fn places(config: &Config) -> impl Iterator<Item = (usize, String)> {
    KINDS.iter().flat_map(|kind| kind.places(config))
}

pub fn rights(config: &Config, records: Option<&Path>) -> Rights {
    let mut all = Rights::none();
    for kind in KINDS {
        let Rights { capabilities, written, connects } = kind.rights(config, records);
        all.capabilities |= capabilities;
        all.written.extend(written);
        all.connects = all.connects.or(connects);
    }
    all
}

/// Checks the labels that sinks' keys name: a model of some task must have them.
pub fn check_labels(config: &Config, labels: &[Arc<[Label]>]) -> Result<(), Error> {
    KINDS.iter().try_for_each(|kind| kind.check_labels(config, labels))
}

/// Reports of a run that has none of the sinks.
pub fn empty_reports() -> Vec<Report> {
    KINDS.iter().map(|kind| kind.empty_report()).collect()
}

/// A place for each task of these labels of a sink.
fn place_of<'a>(
    config: &Config,
    labels: impl Iterator<Item = &'a String>,
    place: &str,
) -> Vec<(usize, String)> {
    let tasks = labels.map(|label| config.named_task(label).map_or(0, |(task, _)| task));
    let tasks: BTreeSet<usize> = tasks.collect();
    tasks.into_iter().map(|task| (task, place.to_owned())).collect()
}

/// What keys may call the labels of a configuration's tasks: `task.label`.
fn task_names(config: &Config) -> Vec<String> {
    config.tasks.iter().map(|task| task.name.clone()).collect()
}

/// What the sinks of the run gave up, each sum with its noun: records, marks.
pub fn lost(sums: &Sums) -> impl Iterator<Item = (&'static str, u64)> {
    let losses = KINDS.iter().filter_map(|kind| kind.losses());
    losses.filter_map(|(name, noun)| Some((noun, *sums.get(name)?)))
}

/// The weight of a server that is an address, or an address and port; the sum, if it has several.
fn weight_of(row: &EgressRow, weights: &[(SocketAddr, f64)]) -> Option<f64> {
    let is_it = |server: &SocketAddr| {
        row.egress == server.ip().to_string() || row.egress == server.to_string()
    };
    let own = weights.iter().filter(|(server, _)| is_it(server));
    own.map(|(_, weight)| *weight).reduce(|one, other| one + other)
}

/// The sinks of this run, for everybody off the data path.
pub struct Sinks(Vec<(&'static dyn SinkKind, Started)>);

/// A sink, where the run has one of this kind.
type Started = Option<Box<dyn SinkControl>>;

impl Sinks {
    pub fn start(start: &Start<'_>) -> Result<Arc<Sinks>, Failure> {
        Sinks::start_of(KINDS, start)
    }

    fn start_of(kinds: &[&'static dyn SinkKind], start: &Start<'_>) -> Result<Arc<Sinks>, Failure> {
        let sinks = kinds.iter().map(|&kind| Ok((kind, kind.start(start)?)));
        let sinks: Result<Vec<_>, Failure> = sinks.collect();
        Ok(Arc::new(Sinks(sinks?)))
    }

    fn running(&self) -> impl Iterator<Item = &dyn SinkControl> {
        self.0.iter().filter_map(|(_, control)| control.as_deref())
    }

    /// Whether the run has none.
    pub fn is_empty(&self) -> bool {
        self.running().next().is_none()
    }

    pub fn worker_halves(&self) -> Vec<Box<dyn Sink>> {
        self.running().filter_map(|sink| sink.worker_half()).collect()
    }

    /// What each kind of sink has counted. One that this run does not have has no metrics, and sums
    /// of 0.
    pub fn reports(&self) -> Vec<Report> {
        let reports = self.0.iter().map(|(kind, control)| match control {
            Some(control) => control.report(),
            None => Report { metrics: Vec::new(), ..kind.empty_report() },
        });
        reports.collect()
    }

    pub fn tick(&self) {
        self.running().for_each(|sink| sink.tick());
    }

    pub fn answer(&self, request: &Request) -> Option<Reply> {
        let mut reply = self.running().find_map(|sink| sink.answer(request))?;
        if let Some(Body::Services(services)) = &mut reply.body {
            let weights: Vec<_> = self.running().flat_map(|sink| sink.server_weights()).collect();
            for row in services.iter_mut().flat_map(|service| &mut service.egresses) {
                row.weight = weight_of(row, &weights);
            }
        }
        Some(reply)
    }

    /// The services of the run, as `fenxi ctl services` has them.
    pub fn services(&self) -> Vec<ServiceRow> {
        match self.answer(&Request::Services { service: None }).and_then(|reply| reply.body) {
            Some(Body::Services(services)) => services,
            _ => Vec::new(),
        }
    }

    /// A host's name, as `fenxi ctl hosts` has it.
    pub fn host_name(&self, host: IpAddr) -> Option<String> {
        self.running().find_map(|sink| sink.host_name(host))
    }

    pub fn explain(&self, flow: &FlowName, classes: &[Option<u16>]) -> Vec<Written> {
        if flow.is_icmp() {
            return Vec::new(); // netfilter's writers leave it out
        }
        self.running().flat_map(|sink| sink.explain(flow, classes)).collect()
    }

    /// What another configuration makes of the sinks, prepared and without effect yet.
    pub fn prepare(&self, now: &Config, next: &Config) -> Result<Vec<Commit>, Error> {
        let commits = self.running().map(|sink| sink.prepare(now, next));
        commits.filter_map(Result::transpose).collect()
    }

    /// Whether a sink writes a file that can be opened again.
    pub fn has_files(&self) -> bool {
        self.running().any(|sink| sink.reopener().is_some())
    }

    /// Reopens all files of sinks by name, after the old ones were moved away.
    pub fn reopen(&self, answer: Answer) {
        let reopeners = self.running().filter_map(|sink| sink.reopener());
        reopen::reopen_all(&reopeners.collect::<Vec<_>>(), answer);
    }

    /// The flow workers have ended: waits until everything is written, but not without a deadline
    /// live. `ended` is when the last label was given.
    pub fn finish(&self, ended: Instant) -> Result<(), Failure> {
        Failure::all(self.running().map(|sink| sink.finish(ended).err()))
    }
}
