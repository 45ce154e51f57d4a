//! The hosts that labelled flows speak for, and what they are called.

use std::net::IpAddr;
use std::num::NonZeroUsize;

use accel::HostLabels;
use config::Network;
use cring::MODELS_MAX;
use flowmgr::TaskId;
use flowmgr::record::{DecidedBy, Decision, Record};
use lru::LruCache;

use super::evidence::{Evidence, Scores};
use super::host_of;

/// Hosts that are kept; the one whose last label is the oldest makes room for a new one.
pub const HOSTS_MAX: NonZeroUsize = NonZeroUsize::MIN.saturating_add(16_383);

/// A flow got the label that may count for its host.
#[derive(Clone, Copy, Debug)]
pub struct HostFlow {
    address: IpAddr,
    decision: Decision,
    time_us: i64,
}

impl HostFlow {
    /// What a record says about a host: a label record of this task, or the last record of a flow
    /// that got its label only then or keeps its port's label. `None`: nothing, or nothing new.
    /// `networks` are where the hosts are, if configured.
    pub fn from_record(record: &Record, task: TaskId, networks: &[Network]) -> Option<HostFlow> {
        let (flow, decision, time_us) = match record {
            Record::Label(label)
                if label.task == task && label.decision.decided_by != DecidedBy::Port =>
            {
                (&label.flow, label.decision, label.time_us)
            }
            Record::Flow(flow) if flow.is_final() => {
                let at_end = |it: &Decision| {
                    it.time_to_label_us.is_none() || it.decided_by == DecidedBy::Port
                };
                let decision = flow.decisions[task.index()].filter(at_end)?;
                (&flow.flow, decision, flow.last_us)
            }
            _ => return None,
        };
        Some(HostFlow {
            address: host_of(flow.source.0, flow.destination.0, networks)?,
            decision,
            time_us,
        })
    }
}

/// A host was named, or got another name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostRecord {
    pub address: IpAddr,
    /// Time of the label that brought it about, µs since the epoch.
    pub time_us: i64,
    pub class: u16,
    /// 0 to 1.
    pub confidence: f64,
    pub flows: usize,
    /// Generation of the model.
    pub model: u16,
}

/// A host with at least one flow that counts.
#[derive(Debug, Default)]
struct Host {
    flows: usize,
    scores: Scores,
    name: Option<u16>,
    last_us: i64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostState {
    pub address: IpAddr,
    /// Its class and the probability of it; `None`: no class is likely enough yet.
    pub name: Option<(u16, f64)>,
    pub flows: usize,
    /// Time of its last label, µs since the epoch.
    pub last_us: i64,
}

#[derive(Clone, Debug, Default)]
pub struct HostSums {
    /// Hosts with at least one flow that counts.
    pub tracked: u64,
    /// Named hosts, by class.
    pub named: Vec<u64>,
    pub evicted: u64,
    pub counted: u64,
    /// Labelled flows that did not count because their hosts had enough.
    pub beyond: u64,
}

#[derive(Debug)]
pub struct HostTable {
    hosts: LruCache<IpAddr, Host>,
    evidence: Evidence,
    flows_max: usize,
    flows_min: usize,
    confidence: f64,
    /// Generation of the model whose labels count.
    model: u16,
    sums: HostSums,
}

impl HostTable {
    /// An empty table; `labels` is the number of the model's labels without `unknown`.
    pub fn new(rules: &HostLabels, labels: usize, most: NonZeroUsize) -> HostTable {
        HostTable {
            hosts: LruCache::new(most),
            evidence: Evidence::new(rules, labels),
            flows_max: rules.flows,
            flows_min: rules.min_flows,
            confidence: f64::from(rules.confidence),
            model: 0,
            sums: HostSums { named: vec![0; labels], ..HostSums::default() },
        }
    }

    /// Counts a flow; returns the host if that changes its name.
    pub fn take(&mut self, flow: &HostFlow) -> Option<HostRecord> {
        let decision = &flow.decision;
        let is_unknown = usize::from(decision.class) >= self.evidence.classes();
        if is_unknown || !self.is_of_this_model(decision) {
            return None;
        }
        self.make_room(flow.address);
        let host = self.hosts.get_or_insert_mut(flow.address, Host::default);
        host.last_us = flow.time_us;
        if host.flows == self.flows_max {
            self.sums.beyond += 1;
            return None;
        }
        host.flows += 1;
        self.sums.counted += 1;
        let confidence = f64::from(decision.confidence) / f64::from(u16::MAX);
        self.evidence.add(&mut host.scores, decision.class, confidence);
        let (class, confidence) = self.evidence.likeliest(&host.scores)?;
        let is_sure = host.flows >= self.flows_min && confidence >= self.confidence;
        if !is_sure || host.name == Some(class) {
            return None;
        }
        if let Some(before) = host.name.replace(class) {
            self.sums.named[usize::from(before)] -= 1;
        }
        self.sums.named[usize::from(class)] += 1;
        Some(HostRecord {
            address: flow.address,
            time_us: flow.time_us,
            class,
            confidence,
            flows: host.flows,
            model: self.model,
        })
    }

    /// Whether a label counts: not if it comes from an earlier model. The first one of a later
    /// model restarts all sums.
    fn is_of_this_model(&mut self, decision: &Decision) -> bool {
        if matches!(decision.decided_by, DecidedBy::Port | DecidedBy::Rule) {
            return true;
        }
        let models = MODELS_MAX as u16;
        match (decision.model + models - self.model) % models {
            0 => true,
            ahead if ahead < models / 2 => {
                self.model = decision.model;
                self.hosts.clear();
                self.sums.named.fill(0);
                true
            }
            _ => false,
        }
    }

    fn make_room(&mut self, address: IpAddr) {
        if self.hosts.contains(&address) || self.hosts.len() < self.hosts.cap().get() {
            return;
        }
        let Some((_, evicted)) = self.hosts.pop_lru() else {
            return;
        };
        self.sums.evicted += 1;
        if let Some(name) = evicted.name {
            self.sums.named[usize::from(name)] -= 1;
        }
    }

    /// All hosts, those with the latest labels first.
    pub fn states(&self) -> impl Iterator<Item = HostState> {
        self.hosts.iter().map(|(&address, host)| {
            let probability = |class| (class, self.evidence.probability(&host.scores, class));
            HostState {
                address,
                name: host.name.map(probability),
                flows: host.flows,
                last_us: host.last_us,
            }
        })
    }

    pub fn name(&self, host: IpAddr) -> Option<u16> {
        self.hosts.peek(&host)?.name
    }

    pub fn sums(&self) -> HostSums {
        HostSums { tracked: self.hosts.len() as u64, ..self.sums.clone() }
    }
}
