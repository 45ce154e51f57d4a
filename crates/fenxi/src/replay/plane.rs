//! What `--control` adds to a replay: the sockets, and how its threads are watched.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::Plan;
use crate::control::beside::Beside;
use crate::control::collector::{AnalyticsSnapshot, Collector, FlowSnapshot, Watched};
use crate::control::flows::{FlowSample, FlowTap, flow_sample};
use crate::control::in_use::InUse;
use crate::control::protocol::{Body, Code, Reply, Request};
use crate::control::snapshot::Publisher;
use crate::control::{Call, Facts, LabelNames, Plane, Sockets};
use crate::exit::Failure;
use crate::pipeline::Pipelines;
use crate::pipeline::threads::Cores;
use crate::records::RecordCounts;

/// A flow manager's end.
pub struct LaneEnd {
    /// For its counters.
    pub publisher: Publisher<FlowSnapshot>,
    /// For its records.
    pub tap: FlowTap,
}

/// The ends of the data path's threads, in the order of the managers; `None`: nobody watches.
#[derive(Default)]
pub struct Ends {
    /// The flow managers'.
    pub lanes: Vec<Option<LaneEnd>>,
    /// The analytics managers'.
    pub analytics: Vec<Option<Publisher<AnalyticsSnapshot>>>,
}

/// The control thread's end, until its runtime is there.
pub struct Prepared {
    sockets: Sockets,
    facts: Facts,
    collector: Collector,
    sample: FlowSample,
    /// Whether the replay stays when all is done.
    pub holds: bool,
}

/// Binds the sockets where `--control` asks for them, and makes the ends.
///
/// # Errors
/// A socket that cannot be had.
pub fn prepare(
    plan: &Plan<'_>,
    in_use: &Arc<InUse>,
    cores: &Cores,
    pipelines: &Pipelines,
    records: Arc<RecordCounts>,
) -> Result<(Option<Prepared>, Ends), Failure> {
    let mut ends = Ends::default();
    if !plan.args.control {
        ends.lanes
            .resize_with(pipelines.flow_managers.len(), || None);
        ends.analytics
            .resize_with(pipelines.analytics.len(), || None);
        return Ok((None, ends));
    }
    let sockets = Sockets::bind(&plan.config.control)?;
    let (tap, sample) = flow_sample(pipelines.classes.clone());
    let mut flows = Vec::new();
    for (thread, manager) in &pipelines.flow_managers {
        let core = cores.of_thread(thread);
        let (publisher, watched) = Watched::new(thread.clone(), core, || {
            FlowSnapshot::of(manager.counters(), 1)
        });
        flows.push(watched);
        let tap = tap.clone();
        ends.lanes.push(Some(LaneEnd { publisher, tap }));
    }
    let mut analytics = Vec::new();
    for (thread, manager) in &pipelines.analytics {
        let core = cores.of_thread(thread);
        let (publisher, watched) =
            Watched::new(thread.clone(), core, || AnalyticsSnapshot::of(manager));
        analytics.push(watched);
        ends.analytics.push(Some(publisher));
    }
    let prepared = Prepared {
        sockets,
        facts: facts(plan, in_use, pipelines, records),
        collector: Collector::new(flows, analytics, Arc::new(Beside::new(&[], None))),
        sample,
        holds: plan.args.hold,
    };
    Ok((Some(prepared), ends))
}

fn facts(
    plan: &Plan<'_>,
    in_use: &Arc<InUse>,
    pipelines: &Pipelines,
    records: Arc<RecordCounts>,
) -> Facts {
    let config = plan.config;
    let rings = config.pipeline.layout.rings().len();
    Facts {
        version: env!("CARGO_PKG_VERSION"),
        in_use: in_use.clone(),
        labels: LabelNames::new(&pipelines.classes),
        ports: vec!["capture".to_owned()],
        ports_up_least: None,
        table_entries: config.flow.max_flows as u64,
        ring_slots: (rings * config.ring.slots) as u64,
        records,
        started: std::time::Instant::now(),
    }
}

/// The running control plane, as the replay's control thread drives it.
pub struct Driven {
    plane: Arc<Plane>,
    calls: mpsc::Receiver<Call>,
    sample: FlowSample,
    /// As prepared.
    pub holds: bool,
}

impl Prepared {
    /// Begins to serve; called inside the runtime.
    ///
    /// # Errors
    /// A socket that the runtime cannot take.
    pub fn start(self) -> Result<Driven, Failure> {
        let (plane, calls) = Plane::start(self.sockets, self.facts, self.collector)?;
        Ok(Driven {
            plane,
            calls,
            sample: self.sample,
            holds: self.holds,
        })
    }
}

impl Driven {
    /// The next call.
    pub async fn call(&mut self) -> Option<Call> {
        self.calls.recv().await
    }

    /// Answers it; true where it asks the replay to come to its end.
    pub fn answer(&mut self, Call { request, answer }: Call) -> bool {
        let drains = request == Request::Drain {};
        let reply = match request {
            Request::Flows { label, top } => self.sample.largest(label.as_deref(), top),
            Request::Drain {} => Reply::ok(Body::Done("the replay comes to its end".to_owned())),
            _ => Reply::refused(Code::NotHere, "a replay cannot do that"),
        };
        // Whoever asked may have gone.
        let _ = answer.send(reply);
        drains
    }

    /// Between two looks at the progress.
    pub fn tick(&mut self) {
        self.sample.take_in();
    }

    /// Lets those who have asked get their replies.
    pub async fn finish(self) {
        self.plane.finish().await;
    }

    /// The replay comes to its end.
    pub fn drain(&self) {
        self.plane.drain();
    }
}
