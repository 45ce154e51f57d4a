//! The names of hosts as the control thread has them: `fenxi ctl hosts`, metrics, and the thread
//! that counts labels where no records are written.

use std::cmp::Reverse;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Sender, bounded};
use dataplane::sink::Sink;
use flowmgr::record::Record;

use super::SharedHosts;
use super::table::{HostFlow, HostState, HostSums};
use crate::exit::Failure;
use crate::figures::grouped;
use crate::label_names::LabelNames;
use crate::metric::{Family, count};
use crate::protocol::{Body, Code, HOSTS_MAX, HostRow, KnownHost, Reply, Request, Sums};
use crate::sinks::records::rfc3339;
use crate::sinks::{Lost, Report, SinkControl, SinkKind, Start};

/// Host labels, where the bundle asks for them; and their refusal, where it does not and somebody
/// may ask.
pub struct Hosts;

impl SinkKind for Hosts {
    fn start(&self, start: &Start<'_>) -> Result<Option<Box<dyn SinkControl>>, Failure> {
        let Some(hosts) = start.hosts else {
            let refusal = || Box::new(NoHosts) as Box<dyn SinkControl>;
            return Ok(start.recent.is_some().then(refusal));
        };
        let dropped = Arc::<AtomicU64>::default();
        let counter = match start.has_lines() {
            // The thread that writes records counts.
            true => None,
            false => Some(start_counter(hosts, start, dropped.clone())?),
        };
        Ok(Some(Box::new(HostControl {
            hosts: hosts.clone(),
            classes: start.names[hosts.task.index()].classes.clone(),
            dropped,
            counter: Mutex::new(counter),
        })))
    }

    fn empty_report(&self) -> Report {
        report(&HostSums::default(), 0, &[].into())
    }

    fn status_line(&self, sums: &Sums) -> Option<String> {
        let sum = |name: &str| sums.get(name).copied().unwrap_or_default();
        let (tracked, named) = (sum("hosts_tracked"), sum("hosts_named"));
        let line = || format!("hosts     {} named of {}", grouped(named), grouped(tracked));
        (tracked > 0).then(line)
    }
}

/// The answer of a run whose model names no hosts.
struct NoHosts;

impl SinkControl for NoHosts {
    fn worker_half(&self) -> Option<Box<dyn Sink>> {
        None
    }

    fn report(&self) -> Report {
        Hosts.empty_report()
    }

    fn answer(&self, request: &Request) -> Option<Reply> {
        let why = "this model does not name devices: its bundle has no table [hosts]; `fenxi top`, \
            key 3, lists hosts by traffic";
        matches!(request, Request::Hosts { .. }).then(|| Reply::refused(Code::NotHere, why))
    }
}

struct HostControl {
    hosts: SharedHosts,
    classes: Arc<[String]>,
    /// Labelled flows that found the queue of the thread full.
    dropped: Arc<AtomicU64>,
    /// `None`: the thread that writes records counts, or the end has begun.
    counter: Mutex<Option<Counter>>,
}

/// The thread that counts labels where no records are written, and the workers' end of its queue.
type Counter = (JoinHandle<()>, HostSender);

fn start_counter(
    hosts: &SharedHosts,
    start: &Start<'_>,
    dropped: Arc<AtomicU64>,
) -> Result<Counter, Failure> {
    let (sender, flows) = bounded::<HostFlow>(start.config.records.queue);
    let counted = hosts.clone();
    let work = move || {
        for flow in flows {
            counted.lock().take(&flow);
        }
    };
    let thread = std::thread::Builder::new().name("hosts".to_owned()).spawn(work);
    let thread = thread
        .map_err(|error| Failure::unavailable(format!("cannot start the hosts thread: {error}")))?;
    let waits = start.replay.as_ref().is_some_and(|replay| replay.waits);
    Ok((thread, HostSender { flows: sender, waits, hosts: hosts.clone(), dropped }))
}

impl HostControl {
    fn counter(&self) -> MutexGuard<'_, Option<Counter>> {
        // Taken out as a whole, so a panic elsewhere spoils nothing.
        self.counter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The most recently labelled hosts, all or with this label.
    fn list(&self, label: Option<&str>, top: usize) -> Reply {
        let classes = self.classes.iter();
        let named = label.map(|label| classes.clone().position(|class| class == label));
        if let (Some(label), Some(None)) = (label, named) {
            let why = format!("no label \"{label}\"; there are {}", self.classes.join(", "));
            return Reply::refused(Code::NotFound, why);
        }
        let is_wanted = |host: &HostState| match named.flatten() {
            Some(class) => host.name.is_some_and(|(name, _)| usize::from(name) == class),
            None => true,
        };
        let hosts = self.hosts.lock();
        let states = hosts.states().filter(is_wanted).take(top.min(HOSTS_MAX));
        Reply::ok(Body::Hosts(states.map(|host| self.row(&host)).collect()))
    }

    fn row(&self, host: &HostState) -> HostRow {
        let label = |(class, _)| self.classes.get(usize::from(class)).cloned();
        HostRow {
            address: host.address.to_string(),
            known: KnownHost::default(),
            label: host.name.and_then(label),
            confidence: host.name.map(|(_, confidence)| confidence),
            flows: host.flows,
            last: Some(rfc3339(host.last_us)),
        }
    }
}

impl SinkControl for HostControl {
    fn worker_half(&self) -> Option<Box<dyn Sink>> {
        let half = self.counter().as_ref()?.1.clone();
        Some(Box::new(half))
    }

    fn report(&self) -> Report {
        let dropped = self.dropped.load(Ordering::Relaxed);
        report(&self.hosts.lock().sums(), dropped, &self.classes)
    }

    fn answer(&self, request: &Request) -> Option<Reply> {
        match request {
            Request::Hosts { label, top } => Some(self.list(label.as_deref(), *top)),
            _ => None,
        }
    }

    fn host_name(&self, host: IpAddr) -> Option<String> {
        self.classes.get(usize::from(self.hosts.class_of(host)?)).cloned()
    }

    fn finish(&self, _: Instant) -> Result<(), Failure> {
        // Waits until all labels are counted; the halves of all workers are gone.
        let Some((thread, half)) = self.counter().take() else {
            return Ok(());
        };
        drop(half);
        thread.join().map_err(|_| Failure::software("the thread that names hosts died"))
    }
}

/// The data path's end.
#[derive(Clone)]
struct HostSender {
    flows: Sender<HostFlow>,
    /// A full queue holds up a replay; live, the flow does not count.
    waits: bool,
    hosts: SharedHosts,
    dropped: Arc<AtomicU64>,
}

impl Sink for HostSender {
    fn record(&mut self, record: &Record) {
        let Some(flow) = self.hosts.flow_of(record) else {
            return;
        };
        let is_sent = match self.waits {
            true => self.flows.send(flow).is_ok(),
            false => self.flows.try_send(flow).is_ok(),
        };
        if !is_sent {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn report(sums: &HostSums, dropped: u64, classes: &Arc<[String]>) -> Report {
    let named = sums.named.iter().sum();
    let totals = vec![
        ("hosts_tracked", sums.tracked),
        ("hosts_named", named),
        ("hosts_evicted", sums.evicted),
    ];
    let text = (sums.tracked > 0).then(|| summary_line(sums, named, classes));
    Report {
        metrics: metrics(sums, dropped, classes),
        losses: vec![Lost::new(
            "labelled flows do not count for their hosts because the queue is full; see \
             records.queue",
            dropped,
        )],
        status: totals[..2].to_vec(),
        summary: totals,
        summary_text: text,
        ..Report::default()
    }
}

fn metrics(sums: &HostSums, dropped: u64, classes: &Arc<[String]>) -> Vec<Family> {
    // No host is unknown, which is the last class.
    let names = LabelNames::new(&classes[..sums.named.len().min(classes.len())].into());
    let mut by_name = vec![0; names.shown().len()];
    for (class, hosts) in sums.named.iter().enumerate() {
        by_name[names.place_of(class)] += hosts;
    }
    let labels = names.shown().iter().zip(by_name);
    vec![
        Family::gauge(
            "fenxi_hosts",
            "hosts",
            &["label"],
            "Hosts that are named now, by label; none where the model names no hosts.",
            labels.map(|(label, hosts)| count(&[label], hosts)),
        ),
        Family::gauge(
            "fenxi_hosts_tracked",
            "hosts",
            &[],
            "Hosts of which at least one labelled flow counts, named or not.",
            [count(&[], sums.tracked)],
        ),
        Family::counter(
            "fenxi_hosts_evicted_total",
            "hosts",
            &[],
            "Hosts that were forgotten to make room for others.",
            [count(&[], sums.evicted)],
        ),
        Family::counter(
            "fenxi_host_flows_total",
            "flows",
            &["outcome"],
            "Labelled flows of hosts: counted; beyond, enough flows of the host had counted \
             before; dropped, the queue was full.",
            [
                count(&["counted"], sums.counted),
                count(&["beyond"], sums.beyond),
                count(&["dropped"], dropped),
            ],
        ),
    ]
}

fn summary_line(sums: &HostSums, named: u64, classes: &[String]) -> String {
    let mut labels: Vec<_> = sums.named.iter().zip(classes).collect();
    labels.retain(|(hosts, _)| **hosts > 0);
    labels.sort_by_key(|&(hosts, label)| (Reverse(*hosts), label));
    let labels = labels.iter().map(|(hosts, label)| format!("{label} {hosts}"));
    let labels: Vec<String> = labels.collect();
    let colon = if labels.is_empty() { "" } else { ": " };
    format!("hosts     {named} named of {}{colon}{}", sums.tracked, labels.join(", "))
}
