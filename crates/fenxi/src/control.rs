//! The control plane of a run: metrics, health and the control socket, on the control thread and
//! off the data path.
//!
//! ```text
//! data path ── snapshots ──► collector ──► view ──► catalogue ──► /metrics
//!                                │           │          └───────► fenxi ctl status
//!                                └─► health ─┴─► /livez, /readyz
//! fenxi ctl ── request ──► queries are answered here;
//!                          hosts, rules and changes go as a Call to the run's supervisor
//! ```
//!
//! The supervisor of a run binds [`Sockets`] before the first packet, gives each thread of the data
//! path its [`Publisher`](dataplane::snapshot::Publisher), starts the [`Plane`] inside its tokio
//! runtime and answers the [`Call`]s. Requests do not slow the data path: a thread gives a snapshot
//! at most every 20 ms, whatever their number.

mod catalogue;
pub mod collector;
mod cpu;
mod ctl;
mod drift;
pub mod explain;
mod exposition;
mod flow_order;
mod flow_rows;
pub mod flow_tables;
mod goals;
mod health;
#[cfg(feature = "history")]
mod history;
mod host;
mod hosts;
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
use console::page::Orders;
use cring::Counter as _;
use dataplane::rules::RuleTotals;
use flowmgr::TaskScores;
use tokio::sync::{Mutex, MutexGuard, RwLock, mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::exit::Failure;
use crate::label_names::LabelNames;
use crate::metric::Value;
use crate::names::{Names, NamesKeys};
use crate::protocol::{
    Body, Code, Figure, FlowFilter, FlowQuery, HostRate, OfferedTask, Order, Reply, Request,
    RuleRow, Status, Top,
};
use crate::scores;
use collector::{Collector, STALLED_AFTER, Watched};
use dataplane::counters::{AnalyticsSnapshot, TaskSnapshot};
use dataplane::state::{SharedState, TaskState};
use dataplane::tasks::TaskNames;
use drift::Drifts;
use explain::Explainer;
use flow_order::Filter;
use flow_tables::FlowTables;
use goals::Goals;
use health::Health;
use top::History;
use view::View;
use watch::Watch;

pub use host::{HostStats, NicDrops};
pub use sockets::Sockets;

/// Snapshots are taken this often without requests too, so that a stalled thread is noticed.
const COLLECT_EVERY: Duration = Duration::from_secs(1);

/// Time limit of a call: a model may have to be loaded.
const CALL_MAX: Duration = Duration::from_secs(120);

/// How long the end of a run waits until replies are taken.
const FINISH_WITHIN: Duration = Duration::from_millis(250);

/// Maximum calls that wait for the supervisor.
const CALLS: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Not all threads have answered yet.
    Starting,
    Ready,
    /// Traffic flows, but a device is down, a thread has stalled, or a sum does not close.
    Degraded,
    /// It ends, or has ended.
    Draining,
}

impl State {
    pub const ALL: [State; 4] = [State::Starting, State::Ready, State::Degraded, State::Draining];

    pub const fn name(self) -> &'static str {
        match self {
            State::Starting => "starting",
            State::Ready => "ready",
            State::Degraded => "degraded",
            State::Draining => "draining",
        }
    }
}

/// Properties of a run that do not change.
#[derive(Debug)]
pub struct Facts {
    pub version: &'static str,
    /// State that does change.
    pub state: Arc<SharedState>,
    pub config: Arc<Config>,
    /// Whether the run is live; otherwise it is a replay.
    pub is_live: bool,
    /// Names of the tasks and of the classes of their models.
    pub names: Arc<[TaskNames]>,
    /// Names of the classes of each task in metrics.
    pub labels: Vec<LabelNames>,
    /// The ports, each read by all flow managers.
    pub ports: Vec<String>,
    /// Number of ports that must be up for the run to be ready; `None` if they are no interfaces.
    pub ports_up_least: Option<usize>,
    /// Whether the kernel labels flows.
    pub labels_in_kernel: bool,
    /// Capacity of each table, flows.
    pub table_entries: u64,
    pub ring_slots: u64,
    pub started: Instant,
}

impl Facts {
    /// A run that begins now. `ports_up_least`: as the field.
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
            labels_in_kernel: false,
            table_entries: config.flow.max_flows as u64,
            ring_slots: (rings * config.ring.slots) as u64,
            started: Instant::now(),
        }
    }
}

/// A request that the supervisor has to answer.
#[derive(Debug)]
pub struct Call {
    /// [`Request::Hosts`], [`Request::PolicyShow`], or a change of the run.
    pub request: Request,
    /// Takes the answer; the other side may have gone.
    pub answer: oneshot::Sender<Reply>,
}

impl Call {
    /// Sends the answer; the client may have disconnected.
    pub fn reply(self, reply: Reply) {
        let _ = self.answer.send(reply);
    }
}

/// The control plane at work, and the requests that the supervisor answers.
pub struct Serving {
    pub plane: Arc<Plane>,
    pub calls: mpsc::Receiver<Call>,
}

pub struct Plane {
    facts: Facts,
    collector: Mutex<Collector>,
    tables: Mutex<FlowTables>,
    history: Mutex<History>,
    /// What hosts are called.
    names: Names,
    explainer: Explainer,
    /// Held while the history is read.
    #[cfg(feature = "history")]
    reporting: Arc<Mutex<()>>,
    calls: mpsc::Sender<Call>,
    is_draining: AtomicBool,
    /// Held for reading while a reply is written.
    replying: RwLock<()>,
}

impl Plane {
    /// Begins to serve on the sockets, as tasks of the current runtime, which end with it.
    pub fn start(
        sockets: Sockets,
        facts: Facts,
        collector: Collector,
        tables: FlowTables,
    ) -> Result<Serving, Failure> {
        let (sender, calls) = mpsc::channel(CALLS);
        let plane = Arc::new(Plane {
            facts,
            collector: Mutex::new(collector),
            names: tables.names.clone(),
            tables: Mutex::new(tables),
            history: Mutex::default(),
            explainer: Explainer::default(),
            #[cfg(feature = "history")]
            reporting: Arc::default(),
            calls: sender,
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
        Ok(Serving { plane, calls })
    }

    /// Marks the run as ending: it is no longer ready.
    pub fn drain(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
    }

    /// Adds the analytics threads, once the first model is open.
    pub async fn add_analytics(&self, analytics: Vec<Watched<AnalyticsSnapshot>>) {
        self.collector.lock().await.add_analytics(analytics);
    }

    /// Whether an analytics thread has stalled: a device that runs inside it hangs.
    pub async fn has_stalled_analytics(&self) -> bool {
        let collector = self.collector.lock().await;
        let mut analytics = collector.analytics.iter();
        analytics.any(|it| it.owes() > STALLED_AFTER)
    }

    /// Counters of each analytics thread when it last answered, by task.
    pub async fn last_counters(&self) -> Vec<Vec<Counters>> {
        let collector = self.collector.lock().await;
        let analytics = collector.analytics_threads();
        let of_task = |it: &TaskSnapshot| it.counters.clone();
        analytics.map(|it| it.latest.tasks.iter().map(of_task).collect()).collect()
    }

    /// Waits a moment until replies are written, before the runtime ends with its connections.
    pub async fn finish(&self) {
        let _ = timeout(FINISH_WITHIN, self.replying.write()).await;
    }

    pub async fn metrics(&self) -> String {
        let in_tables = self.rule_totals().await;
        let busiest = self.busiest().await;
        let collector = self.collected().await;
        let view = View { busiest, ..self.view(&collector, in_tables) };
        let mut page = String::new();
        for family in catalogue::families(&view) {
            exposition::write(&mut page, &family);
        }
        page
    }

    /// The run in a few figures, in one line.
    pub async fn status_line(&self) -> String {
        let collector = self.collected().await;
        overview::line(&overview::build(&self.view(&collector, RuleTotals::default())))
    }

    pub async fn health(&self) -> Health {
        let collector = self.collected().await;
        self.health_of(&collector, &view::pipelines(&collector, &self.facts.names))
    }

    /// Answers a query itself; passes other requests to the supervisor.
    pub async fn answer(&self, request: Request) -> Reply {
        match request {
            Request::Status {} => Reply::ok(Body::Status(Box::new(self.status().await))),
            Request::Threads {} => {
                Reply::ok(Body::Threads(rows::threads(&*self.collected().await)))
            }
            Request::Devices {} => {
                let collector = self.collected().await;
                Reply::ok(Body::Devices(rows::devices(&collector, &self.facts.names)))
            }
            Request::ModelScores {} => {
                let mut sums: Vec<TaskScores> = Vec::new();
                for watched in &self.collected().await.flows {
                    sums.merge(&watched.latest.counters.scores);
                }
                Reply::ok(Body::Scores(scores::of_tasks(&self.facts.names, &sums)))
            }
            Request::ModelOffers {} => {
                let tasks = self.facts.state.get().tasks.into_iter();
                Reply::ok(Body::Offers(tasks.map(offered).collect()))
            }
            Request::Metrics {} => Reply::ok(Body::Metrics(self.metrics().await)),
            Request::Top { rows } => {
                let top = self.top(&Filter::default(), Orders::default(), rows).await;
                Reply::ok(Body::Top(Box::new(top)))
            }
            Request::Explain { flow } => self.explain(&flow).await,
            Request::Flows { label, host, port, dscp_seen, dscp_set, sort, reverse, top } => {
                let wanted = FlowFilter { label, host, port, dscp_seen, dscp_set };
                let filter = match self.filter(&wanted).await {
                    Ok(filter) => filter,
                    Err(why) => return Reply::refused(Code::NotFound, why),
                };
                let order = Order { by: sort, is_reversed: reverse };
                let mut tables = self.tables.lock().await;
                flow_rows::reply(&mut tables, &self.facts.names, &filter, order, top).await
            }
            Request::Hosts { label, top } => self.hosts(label, top).await,
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

    /// The hosts that the model has labelled, or, if it labels none, all that are known.
    async fn hosts(&self, label: Option<String>, top: usize) -> Reply {
        let is_any = label.is_none();
        let mut reply = self.call(Request::Hosts { label, top }).await;
        if let Some(Body::Hosts(rows)) = &mut reply.body {
            hosts::add_known(rows, &self.names);
        } else if is_any && reply.code == Code::NotHere as u16 {
            let mut tables = self.tables.lock().await;
            let rows = hosts::rows(&self.names, tables.picture().await, top);
            if !rows.is_empty() {
                return Reply::ok(Body::Hosts(rows));
            }
        }
        reply
    }

    /// The busiest hosts, as many as have metrics of their own. Called before the collector is
    /// locked, as in [`Plane::top`].
    async fn busiest(&self) -> Vec<HostRate> {
        let most = self.facts.config.section::<NamesKeys>().metrics;
        if most == 0 {
            return Vec::new();
        }
        let mut tables = self.tables.lock().await;
        tables.picture().await;
        let collector = self.collector.lock().await;
        let classes = &self.facts.names[0].classes;
        let names = (&*collector.run_sinks, &self.names);
        top::hosts(tables.picture().await, names, classes, (Order::default(), most))
    }

    /// Adds the counters of rules that have some of their own.
    async fn add_counters(&self, rows: &mut [RuleRow]) {
        let in_tables = self.rule_totals().await;
        let collector = self.collected().await;
        let view = self.view(&collector, in_tables);
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

    /// Counters of rules, with live flows. Called before the collector is locked, as in
    /// [`Plane::top`].
    async fn rule_totals(&self) -> RuleTotals {
        if self.facts.state.get().rules.counted.is_empty() {
            return RuleTotals::default();
        }
        self.tables.lock().await.picture().await.rules.clone()
    }

    /// # Errors
    /// There is no such label, host or DSCP.
    async fn filter(&self, wanted: &FlowFilter) -> Result<Filter, String> {
        Filter::new(&self.facts.names, &self.tables.lock().await.names, wanted)
    }

    /// The live view of flows that the filter takes, with at most `rows` flows and hosts.
    async fn top(&self, filter: &Filter, orders: Orders, rows: usize) -> Top {
        let mut tables = self.tables.lock().await;
        // With a stalled worker this takes seconds, so it comes before the collector, which health
        // needs, is locked.
        tables.picture().await;
        let collector = self.collected().await;
        let view = self.view(&collector, RuleTotals::default());
        let history = self.history.lock().await;
        top::build(&view, &mut tables, &history, (filter, orders, rows)).await
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
            let overview = overview::build(&self.view(&collector, RuleTotals::default()));
            return Reply::refused(Code::NotFound, explain::nowhere(&query, &overview));
        };
        let written = {
            let collector = self.collector.lock().await;
            let classes = subject.classes();
            collector.run_sinks.explain(&subject.name, &classes)
        };
        let rule = match subject.rule {
            Some(number) => Some(self.rule(number).await),
            None => None,
        };
        let mut reply = self.explainer.explain(&self.facts, &subject, others, written, rule).await;
        if let Some(Body::Explained(explained)) = &mut reply.body {
            let [client, server] = [subject.name.source.0, subject.name.destination.0];
            explained.client = hosts::known(&self.names, client);
            explained.server = hosts::known(&self.names, server);
            if self.facts.is_live {
                explained.closed_rules = self.closed_rules(&subject).await;
            }
        }
        reply
    }

    /// Rules that count for no flow now and would come before the flow's own, with the reason.
    async fn closed_rules(&self, subject: &explain::Subject) -> Vec<String> {
        let name = &subject.name;
        let flow =
            FlowQuery::Ends { protocol: Some(name.protocol), a: name.source, b: name.destination };
        let request = Request::PolicyClosed { flow: flow.to_string(), before: subject.rule };
        let rows = match self.call(request).await.body {
            Some(Body::Policy(shown)) => shown.rows,
            _ => Vec::new(),
        };
        let line = |RuleRow { number, place, closed, .. }: RuleRow| {
            Some(format!("{number}, {place}: {}", closed?))
        };
        rows.into_iter().filter_map(line).collect()
    }

    /// Number, place and text of a rule.
    async fn rule(&self, number: u64) -> String {
        let request =
            Request::PolicyShow { rule: Some(number.to_string()), counters: false, limit: 1 };
        let shown = match self.call(request).await.body {
            Some(Body::Policy(shown)) => shown.rows.into_iter().next(),
            _ => None,
        };
        // The flow has had no packet since the rule was deleted.
        let Some(RuleRow { place, rule, .. }) = shown else {
            return format!("{number}, which is deleted");
        };
        format!("{number}, {place}: {rule}")
    }

    async fn call(&self, request: Request) -> Reply {
        let (answer, answered) = oneshot::channel();
        let call = Call { request, answer };
        if self.calls.try_send(call).is_err() {
            let why = "too many requests are waiting, or the run has ended";
            return Reply::refused(Code::Busy, why);
        }
        match timeout(CALL_MAX, answered).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(_)) => Reply::refused(Code::Busy, "the run has ended"),
            Err(_) => {
                let why = "no answer in time; the request may still take effect";
                Reply::refused(Code::TimedOut, why)
            }
        }
    }

    async fn collected(&self) -> MutexGuard<'_, Collector> {
        let mut collector = self.collector.lock().await;
        collector.collect().await;
        collector
    }

    fn health_of(&self, collector: &Collector, pipelines: &[view::PipelineSums]) -> Health {
        Health::new(
            collector,
            pipelines.iter().all(|sums| sums.balance.is_closed()),
            &self.facts,
            self.is_draining.load(Ordering::Relaxed),
            &self.facts.state.get(),
        )
    }

    /// `rules_in_tables`: counters of rules in the last picture of the tables, if they are needed.
    fn view<'a>(&'a self, collector: &'a Collector, rules_in_tables: RuleTotals) -> View<'a> {
        let pipelines = view::pipelines(collector, &self.facts.names);
        View {
            facts: &self.facts,
            run_state: self.facts.state.get(),
            health: self.health_of(collector, &pipelines),
            collector,
            pipelines,
            rules_in_tables,
            busiest: Vec::new(),
            threads: cpu::thread_times(),
            uptime: self.facts.started.elapsed(),
        }
    }

    async fn status(&self) -> Status {
        let in_tables = self.rule_totals().await;
        let collector = self.collected().await;
        let view = self.view(&collector, in_tables);
        Status {
            state: view.health.state.name().to_owned(),
            version: self.facts.version.to_owned(),
            pid: std::process::id(),
            uptime_s: view.uptime.as_secs_f64(),
            unconfirmed_s: view.run_state.unconfirmed().map(|left| left.as_secs_f64()),
            checks: view.health.ready.clone(),
            overview: overview::build(&view),
            figures: figures(&view),
        }
    }
}

fn offered(task: TaskState) -> OfferedTask {
    let TaskState { name, offers, .. } = task;
    let named = |(name, count): (&str, u64)| (name.to_owned(), count);
    OfferedTask {
        task: name,
        stands: offers.stands,
        outcomes: offers.outcomes.into_iter().map(named).collect(),
        last_refusal: offers.last_refusal.map(|(name, why)| (name.to_owned(), why)),
    }
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
                    match serde_json::Number::from_f64(number) {
                        Some(number) => number,
                        None => continue,
                    }
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
        watch.poll(&collector);
        drifts.poll(&collector, &plane.facts.state);
        goals.poll(&collector, &plane.facts.state);
        plane.history.lock().await.tick(&collector, &plane.facts);
    }
}

fn no_socket(error: std::io::Error) -> Failure {
    Failure::unavailable(format!("cannot start the control plane: {error}"))
}
