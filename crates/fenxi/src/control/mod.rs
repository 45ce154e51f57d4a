//! The control plane of a run: metrics, health and the control socket, on the control thread and off the data path.
//!
//! ```text
//! data path ── snapshots ──► collector ──► view ──► catalogue ──► /metrics
//!                                │           │          └───────► fenxi ctl status
//!                                └─► health ─┴─► /livez, /readyz
//! fenxi ctl ── request ──► what only looks is answered here;
//!                          what concerns flows or changes something goes as a Call to whoever drives the run
//! ```
//!
//! Whoever drives a run binds [`Sockets`] before its first packet, gives each thread of the data path its
//! [`Publisher`](dataplane::snapshot::Publisher), starts the [`Plane`] inside its tokio runtime and answers the [`Call`]s. Requests that come in
//! cannot touch the data path: a thread of it gives a snapshot at most every 20 ms, however many ask.

mod catalogue;
pub mod collector;
mod cpu;
mod ctl;
mod drift;
pub mod explain;
mod exposition;
mod flow_rows;
pub mod flow_tables;
mod goals;
mod health;
mod host;
mod http;
pub mod overview;
mod room;
mod rows;
mod sockets;
mod top;
mod view;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use analytics::Counters;
use config::Config;
use dataplane::rules::RuleTotals;
use tokio::sync::{Mutex, MutexGuard, RwLock, mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::exit::Failure;
use crate::label_names::LabelNames;
use crate::metric::Value;
use crate::protocol::{
    Body, CheckRow, Code, DeviceRow, Figure, FlowQuery, Reply, Request, RuleRow, Status, ThreadRow,
    Top,
};
use collector::{Collector, STALLED_AFTER, Watched};
use dataplane::counters::{AnalyticsSnapshot, TaskSnapshot};
use dataplane::state::SharedState;
use dataplane::tasks::TaskNames;
use drift::Drifts;
use explain::Explainer;
use flow_rows::Filter;
use flow_tables::FlowTables;
use goals::Goals;
use health::Health;
use top::History;
use view::View;
use watch::Watch;

pub use host::{HostStats, NicDrops};
pub use sockets::Sockets;

/// Snapshots are taken this often even if nobody asks, so that a thread that stalls is noticed.
const COLLECT_EVERY: Duration = Duration::from_secs(1);

/// How long whoever drives the run may think about a call: a model may have to be loaded.
const CALL_MAX: Duration = Duration::from_secs(120);

/// How long the end of a run waits for those who take their replies.
const FINISH_WITHIN: Duration = Duration::from_millis(250);

/// Calls that may wait for whoever drives the run.
const CALLS: usize = 16;

/// What a run comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Not all threads have been heard of.
    Starting,
    /// All is well.
    Ready,
    /// Traffic flows, but a device is down, a thread has stalled, or a sum does not add up.
    Degraded,
    /// It comes to its end, or has.
    Draining,
}

impl State {
    /// All of them.
    pub const ALL: [State; 4] = [
        State::Starting,
        State::Ready,
        State::Degraded,
        State::Draining,
    ];

    /// The name in metrics and on pages.
    pub const fn name(self) -> &'static str {
        match self {
            State::Starting => "starting",
            State::Ready => "ready",
            State::Degraded => "degraded",
            State::Draining => "draining",
        }
    }
}

/// What does not change during a run.
#[derive(Debug)]
pub struct Facts {
    /// Of the program.
    pub version: &'static str,
    /// Where it is noted what does.
    pub state: Arc<SharedState>,
    /// The configuration at the start.
    pub config: Arc<Config>,
    /// Whether the run is live; otherwise it is a replay.
    pub is_live: bool,
    /// Names of the tasks and of the classes of their models.
    pub names: Arc<[TaskNames]>,
    /// How metrics name the classes of each task.
    pub labels: Vec<LabelNames>,
    /// The ports, each read by all flow managers.
    pub ports: Vec<String>,
    /// How many of them must be up for the run to be ready; `None`: they are no interfaces.
    pub ports_up_least: Option<usize>,
    /// Flows that each table has room for.
    pub table_entries: u64,
    /// Slots of all rings of one pipeline.
    pub ring_slots: u64,
    /// The clock of the run.
    pub started: Instant,
}

impl Facts {
    /// Of a run that begins now. `ports_up_least`: how many ports must be up for it to be ready; `None`: they are no
    /// interfaces.
    pub fn new(
        config: &Config,
        state: Arc<SharedState>,
        names: &Arc<[TaskNames]>,
        ports: Vec<String>,
        ports_up_least: Option<usize>,
    ) -> Facts {
        let rings = config.pipeline.layout.rings().len() * names.len();
        let labels = names.iter().map(|task| LabelNames::new(&task.classes));
        Facts {
            version: crate::version::VERSION,
            state,
            config: Arc::new(config.clone()),
            is_live: ports_up_least.is_some(),
            names: names.clone(),
            labels: labels.collect(),
            ports,
            ports_up_least,
            table_entries: config.flow.max_flows as u64,
            ring_slots: (rings * config.ring.slots) as u64,
            started: Instant::now(),
        }
    }
}

/// A request for whoever drives the run, who has to answer it.
#[derive(Debug)]
pub struct Call {
    /// What is wanted: [`Request::Hosts`], or something that changes the run.
    pub request: Request,
    /// Where the answer goes; nobody minds if the other side has gone.
    pub answer: oneshot::Sender<Reply>,
}

/// The control plane while a run lasts.
pub struct Plane {
    facts: Facts,
    collector: Mutex<Collector>,
    tables: Mutex<FlowTables>,
    history: Mutex<History>,
    explainer: Explainer,
    calls: mpsc::Sender<Call>,
    is_draining: AtomicBool,
    /// Held for reading by whoever writes a reply.
    replying: RwLock<()>,
}

impl Plane {
    /// Begins to serve on the sockets, as tasks of the runtime that it is called in; they end with it. The calls are for
    /// whoever drives the run.
    ///
    /// # Errors
    /// A socket that the runtime cannot take.
    pub fn start(
        sockets: Sockets,
        facts: Facts,
        collector: Collector,
        tables: FlowTables,
    ) -> Result<(Arc<Plane>, mpsc::Receiver<Call>), Failure> {
        let (calls, called) = mpsc::channel(CALLS);
        let plane = Arc::new(Plane {
            facts,
            collector: Mutex::new(collector),
            tables: Mutex::new(tables),
            history: Mutex::default(),
            explainer: Explainer::default(),
            calls,
            is_draining: AtomicBool::new(false),
            replying: RwLock::new(()),
        });
        let Sockets { http, ctl } = sockets;
        if let Some(listener) = http {
            http::start(listener, plane.clone()).map_err(no_socket)?;
        }
        if let Some(listener) = ctl {
            ctl::start(listener, plane.clone()).map_err(no_socket)?;
        }
        tokio::spawn(keep_collecting(plane.clone()));
        Ok((plane, called))
    }

    /// From now on the run comes to its end, and is not ready any more.
    pub fn drain(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
    }

    /// The analytics threads, once the first model is open.
    pub async fn add_analytics(&self, analytics: Vec<Watched<AnalyticsSnapshot>>) {
        self.collector.lock().await.add_analytics(analytics);
    }

    /// Whether an analytics thread has stalled: a device that works inside it does not come back.
    pub async fn has_stalled_analytics(&self) -> bool {
        let collector = self.collector.lock().await;
        let mut analytics = collector.analytics.iter();
        analytics.any(|it| it.owes() > STALLED_AFTER)
    }

    /// What each analytics thread had counted when it last answered, by task.
    pub async fn last_counters(&self) -> Vec<Vec<Counters>> {
        let collector = self.collector.lock().await;
        let analytics = collector.analytics.iter();
        let of_task = |it: &TaskSnapshot| it.counters.clone();
        analytics
            .map(|it| it.latest.tasks.iter().map(of_task).collect())
            .collect()
    }

    /// Before the runtime goes, and the connections with it: waits a moment until replies under way are written.
    pub async fn finish(&self) {
        let _ = timeout(FINISH_WITHIN, self.replying.write()).await;
    }

    /// The page of all metrics.
    pub async fn metrics(&self) -> String {
        let in_tables = self.rule_totals().await;
        let collector = self.collected().await;
        let mut view = self.view(&collector);
        view.rules_in_tables = in_tables;
        let mut page = String::new();
        for family in catalogue::families(&view) {
            exposition::write(&mut page, &family);
        }
        page
    }

    /// The run in a few figures, in one line.
    pub async fn status_line(&self) -> String {
        let collector = self.collected().await;
        overview::line(&overview::of(&self.view(&collector)))
    }

    /// How the run is.
    pub async fn health(&self) -> Health {
        let collector = self.collected().await;
        self.health_of(&collector, &view::pipelines(&collector, &self.facts.names))
    }

    /// Answers a request: at once where it only looks, else through whoever drives the run.
    pub async fn answer(&self, request: Request) -> Reply {
        match request {
            Request::Status {} => Reply::ok(Body::Status(Box::new(self.status().await))),
            Request::Threads {} => Reply::ok(Body::Threads(self.threads().await)),
            Request::Devices {} => Reply::ok(Body::Devices(self.devices().await)),
            Request::Metrics {} => Reply::ok(Body::Metrics(self.metrics().await)),
            Request::Top { rows } => Reply::ok(Body::Top(Box::new(self.top(rows).await))),
            Request::Explain { flow } => self.explain(&flow).await,
            Request::Flows { label, host, top } => {
                let mut tables = self.tables.lock().await;
                let filter = Filter { label, host, top };
                flow_rows::reply(&mut tables, &self.facts.names, &filter).await
            }
            Request::PolicyShow { counters: true, .. } => {
                let mut reply = self.call(request).await;
                if let Some(Body::Policy(shown)) = &mut reply.body {
                    self.add_counters(&mut shown.rows).await;
                }
                reply
            }
            request => self.call(request).await,
        }
    }

    /// Adds what rules have counted, where they have counters of their own.
    async fn add_counters(&self, rows: &mut [RuleRow]) {
        let in_tables = self.rule_totals().await;
        let collector = self.collected().await;
        let mut view = self.view(&collector);
        view.rules_in_tables = in_tables;
        let volumes = catalogue::rule_volumes(&view);
        for row in rows {
            let volume = row.name.as_deref().and_then(|name| volumes.get(name));
            if let Some(volume) = volume {
                row.flows = Some(volume.flows);
                row.packets = Some(volume.packets);
                row.bytes = Some(volume.bytes);
            }
        }
    }

    /// What rules have counted, with the flows that go on. Before the collector is locked, as in [`Plane::top`].
    async fn rule_totals(&self) -> RuleTotals {
        if self.facts.state.get().rules.counted.is_empty() {
            return RuleTotals::default();
        }
        self.tables.lock().await.picture().await.rules.clone()
    }

    /// The live view, with at most so many flows and hosts.
    pub async fn top(&self, rows: usize) -> Top {
        let mut tables = self.tables.lock().await;
        // Before the collector is locked, which health needs: with a stalled worker this takes seconds.
        tables.picture().await;
        let collector = self.collected().await;
        let view = self.view(&collector);
        let checks = check_rows(self.health_of(&collector, &view.pipelines));
        let history = self.history.lock().await;
        let names = &self.facts.names;
        top::of(&view, checks, &mut tables, &history, names, rows).await
    }

    /// Why a flow has its label, or none.
    async fn explain(&self, text: &str) -> Reply {
        let query: FlowQuery = match text.parse() {
            Ok(query) => query,
            Err(error) => return Reply::refused(Code::Malformed, error.to_string()),
        };
        let found = {
            let mut tables = self.tables.lock().await;
            explain::find(&mut tables, &query, &self.facts.names).await
        };
        let Some((subject, others)) = found else {
            let collector = self.collected().await;
            let overview = overview::of(&self.view(&collector));
            return Reply::refused(Code::NotFound, explain::nowhere(&query, &overview));
        };
        let written = {
            let collector = self.collector.lock().await;
            let classes = subject.classes();
            collector.run_sinks().explain(&subject.name, &classes)
        };
        let rule = match subject.rule {
            Some(number) => Some(self.rule(number).await),
            None => None,
        };
        self.explainer
            .explain(&self.facts, &subject, others, written, rule)
            .await
    }

    /// A rule by its number: where it stands, and what it says.
    async fn rule(&self, number: u64) -> String {
        let request = Request::PolicyShow {
            rule: Some(number.to_string()),
            counters: false,
            limit: 1,
        };
        let shown = match self.call(request).await.body {
            Some(Body::Policy(shown)) => shown.rows.into_iter().next(),
            _ => None,
        };
        // Deleted, and the flow has not looked again since.
        let Some(RuleRow { place, rule, .. }) = shown else {
            return format!("{number}, which is deleted");
        };
        format!("{number}, {place}: {rule}")
    }

    async fn call(&self, request: Request) -> Reply {
        let (answer, answered) = oneshot::channel();
        let call = Call { request, answer };
        if self.calls.try_send(call).is_err() {
            return Reply::refused(
                Code::Busy,
                "too many requests are waiting, or the run has ended",
            );
        }
        match timeout(CALL_MAX, answered).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(_)) => Reply::refused(Code::Busy, "the run has ended"),
            Err(_) => Reply::refused(
                Code::TimedOut,
                "no answer in time; the request may still take effect",
            ),
        }
    }

    async fn collected(&self) -> MutexGuard<'_, Collector> {
        let mut collector = self.collector.lock().await;
        collector.collect().await;
        collector
    }

    fn health_of(&self, collector: &Collector, pipelines: &[view::PipelineSums]) -> Health {
        Health::of(
            collector,
            pipelines,
            &self.facts,
            self.is_draining.load(Ordering::Relaxed),
            &self.facts.state.get(),
        )
    }

    fn view<'a>(&'a self, collector: &'a Collector) -> View<'a> {
        let pipelines = view::pipelines(collector, &self.facts.names);
        View {
            facts: &self.facts,
            run_state: self.facts.state.get(),
            state: self.health_of(collector, &pipelines).state,
            collector,
            pipelines,
            rules_in_tables: RuleTotals::default(),
            threads: cpu::thread_times(),
            uptime: self.facts.started.elapsed(),
        }
    }

    async fn status(&self) -> Status {
        let in_tables = self.rule_totals().await;
        let collector = self.collected().await;
        let mut view = self.view(&collector);
        view.rules_in_tables = in_tables;
        let health = self.health_of(&collector, &view.pipelines);
        Status {
            state: view.state.name().to_owned(),
            version: self.facts.version.to_owned(),
            pid: std::process::id(),
            uptime_s: view.uptime.as_secs_f64(),
            unconfirmed_s: view.run_state.unconfirmed().map(|left| left.as_secs_f64()),
            checks: check_rows(health),
            overview: overview::of(&view),
            figures: figures(&view),
        }
    }

    async fn threads(&self) -> Vec<ThreadRow> {
        let collector = self.collected().await;
        let times = cpu::thread_times();
        let cpu_s = |name: &str| {
            let time = times.iter().find(|time| time.name == name);
            time.map(|time| time.seconds)
        };
        let flows = collector.flows.iter().map(|flow| ThreadRow {
            packets: Some(flow.latest.port_counters().rx.received),
            ..rows::thread(flow)
        });
        let analytics = collector.analytics.iter().map(|analytics| ThreadRow {
            series: Some(analytics.latest.counters().series),
            ..rows::thread(analytics)
        });
        let rows = flows.chain(analytics);
        rows.map(|row| ThreadRow {
            cpu_s: cpu_s(&row.name),
            ..row
        })
        .collect()
    }

    async fn devices(&self) -> Vec<DeviceRow> {
        let collector = self.collected().await;
        let managers = collector.analytics.iter();
        let names = &self.facts.names;
        managers.flat_map(|it| rows::devices(it, names)).collect()
    }
}

/// The checks of `/readyz`.
fn check_rows(health: Health) -> Vec<CheckRow> {
    let checks = health.ready.into_iter().map(|check| CheckRow {
        name: check.name.to_owned(),
        holds: check.holds,
        reason: check.reason,
    });
    checks.collect()
}

/// The metrics that are single numbers and not 0.
fn figures(view: &View<'_>) -> Vec<Figure> {
    let mut figures = Vec::new();
    for family in catalogue::families(view) {
        let metric = family.metric;
        for sample in family.samples {
            let value = match sample.value {
                Value::Count(count) if count > 0 => serde_json::Number::from(count),
                Value::Number(number) if number != 0.0 => {
                    let Some(number) = serde_json::Number::from_f64(number) else {
                        continue;
                    };
                    number
                }
                _ => continue,
            };
            let names = metric.labels.iter().map(|label| (*label).to_owned());
            figures.push(Figure {
                name: metric.name.to_owned(),
                labels: names.zip(sample.labels).collect::<BTreeMap<_, _>>(),
                value,
                unit: metric.unit.to_owned(),
            });
        }
    }
    figures
}

async fn keep_collecting(plane: Arc<Plane>) {
    let (mut watch, mut drifts, mut goals) =
        (Watch::default(), Drifts::default(), Goals::default());
    let mut tick = interval(COLLECT_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let collector = plane.collected().await;
        watch.look(&collector);
        drifts.look(&collector, &plane.facts.state);
        goals.look(&collector, &plane.facts.state);
        plane.history.lock().await.tick(&collector, &plane.facts);
    }
}

fn no_socket(error: std::io::Error) -> Failure {
    Failure::unavailable(format!("cannot start the control plane: {error}"))
}
