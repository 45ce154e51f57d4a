//! The threads of a live run's two sides: what they start with, and what their ends are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use accel::Bundle;
use analytics::Counters;
use tokio::sync::mpsc;

use super::lane::{self, Lane, LaneOutcome, Shared};
use super::ports::{LanePorts, News};
use super::series::Managers;
use super::settings::{SettingsSender, settings};
use crate::config::Config;
use crate::control::collector::{AnalyticsSnapshot, FlowSnapshot, Watched};
use crate::control::flows::{FlowSample, FlowTap, flow_sample};
use crate::exit::Failure;
use crate::mark;
use crate::pipeline::bell::Bell;
use crate::pipeline::exchange::Exchange;
use crate::pipeline::helpers::Helpers;
use crate::pipeline::threads::{Cores, Thread, pin};
use crate::pipeline::worker::{self, Run};
use crate::recording::{Recorder, Walker};
use crate::records::RecordSender;
use crate::replay::LaneEnd;

/// The kernel looks at blocks that are not full once per timeout, older ones in ticks of up to 10 ms.
const BLOCK_SLACK: Duration = Duration::from_millis(10);

/// The running packets' side.
pub struct Lanes {
    pub outcomes: mpsc::Receiver<LaneOutcome>,
    pub watched: Vec<Watched<FlowSnapshot>>,
    pub sample: FlowSample,
    pub news: mpsc::UnboundedReceiver<News>,
    pub settings: Vec<SettingsSender>,
    pub shared: Arc<Shared>,
}

/// The running series' side.
pub struct Labelling {
    pub threads: Vec<JoinHandle<Counters>>,
    pub watched: Vec<Watched<AnalyticsSnapshot>>,
    pub exchange: Exchange,
}

/// How long flow managers may take for their first turn; those that are later forward later, no more.
const MOVING_WITHIN: Duration = Duration::from_secs(1);

/// What the lanes start with.
pub struct Starting<'a> {
    pub config: &'a Config,
    pub cores: &'a Cores,
    pub classes: Arc<[String]>,
    pub recorder: Option<&'a Recorder>,
}

impl Starting<'_> {
    /// The flow managers' threads, which work from now on.
    ///
    /// # Errors
    /// The system has no thread.
    pub fn lanes(
        &self,
        managers: Vec<(Thread, flowmgr::Manager)>,
        ports: Vec<LanePorts>,
        marks: Option<Arc<mark::Writer>>,
        records: RecordSender,
    ) -> Result<Lanes, Failure> {
        let (news, told) = mpsc::unbounded_channel();
        let (ended, outcomes) = mpsc::channel(managers.len());
        let interfaces = self.config.io.interfaces.iter();
        let layout = &self.config.pipeline.layout;
        let shared = Arc::new(Shared {
            run: Arc::new(Run {
                bell: Bell::new(layout.analytics_managers * self.config.pipeline.instances),
                ..Run::new(managers.len())
            }),
            // The analytics side makes room once a ring is three quarters full.
            burst: self.config.io.burst.min(self.config.ring.slots / 4),
            block_timeout: BLOCK_SLACK
                + 2 * Duration::from_millis(self.config.io.block_timeout_ms.into()),
            merged: lane::Merged {
                is_known: interfaces.map(|_| AtomicBool::new(false)).collect(),
                is_known_unsplit: AtomicBool::new(false),
            },
            give_up_after: self.config.io.give_up_after,
            stop: AtomicBool::new(false),
            rounds: managers.iter().map(|_| AtomicU64::new(0)).collect(),
            news,
        });
        let (tap, sample) = flow_sample(self.classes.clone());
        let (mut watched, mut senders) = (Vec::new(), Vec::new());
        for (number, ((thread, manager), ports)) in managers.into_iter().zip(ports).enumerate() {
            let core = self.cores.of_thread(&thread);
            let (end, watch) = watch(&thread, core, &manager, ports.receivers.len(), &tap);
            watched.push(watch);
            let (records, shared) = (records.another(), shared.clone());
            let (sender, port) = settings();
            senders.push(sender);
            let marks = marks.clone();
            let manager = Walker::new(manager, number, self.recorder);
            let lane = Lane::new(number, ports, manager, marks, records, end, port, shared);
            let ended = ended.clone();
            spawn(&thread, move || {
                pin(core);
                // The other side only goes away with the whole program.
                let _ = ended.blocking_send(lane.run());
            })?;
        }
        Ok(Lanes {
            outcomes,
            watched,
            sample,
            news: told,
            settings: senders,
            shared,
        })
    }
}

fn watch(
    thread: &Thread,
    core: Option<usize>,
    manager: &flowmgr::Manager,
    ports: usize,
    tap: &FlowTap,
) -> (LaneEnd, Watched<FlowSnapshot>) {
    let empty = || FlowSnapshot::of(manager.counters(), ports);
    let (publisher, watched) = Watched::new(thread.clone(), core, empty);
    let tap = tap.clone();
    (LaneEnd { publisher, tap }, watched)
}

fn spawn<T: Send + 'static>(
    thread: &Thread,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Failure> {
    std::thread::Builder::new()
        .name(thread.to_string())
        .spawn(work)
        .map_err(|error| Failure::unavailable(format!("no thread {thread}: {error}")))
}

impl Lanes {
    /// Waits until each of them has had a turn, before a library is loaded: while glibc does that, it holds a lock which a
    /// thread's start takes, too, for its first `__cxa_thread_atexit_impl`. Nothing would be forwarded meanwhile.
    pub fn wait_until_moving(&self) {
        let began = Instant::now();
        let moves = |rounds: &AtomicU64| rounds.load(Ordering::Relaxed) > 0;
        while !self.shared.rounds.iter().all(moves) && began.elapsed() < MOVING_WITHIN {
            std::thread::sleep(worker::REST);
        }
    }
}

impl Labelling {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system has none.
    pub fn start(
        helpers: &Helpers,
        bundle: &Bundle,
        managers: Managers,
        run: &Arc<Run>,
        recorder: Option<&Recorder>,
    ) -> Result<Labelling, Failure> {
        let (exchange, ports) = Exchange::new(helpers, bundle, &managers);
        let exchange = exchange.recorded_by(recorder.cloned());
        let (mut threads, mut watched) = (Vec::new(), Vec::new());
        for (number, ((thread, manager), port)) in managers.into_iter().zip(ports).enumerate() {
            let core = helpers.cores().of_thread(&thread);
            let empty = || AnalyticsSnapshot::of(&manager);
            let (publisher, watch) = Watched::new(thread.clone(), core, empty);
            watched.push(watch);
            let ends = worker::Ends {
                port: Some(port),
                publisher: Some(publisher),
                seat: recorder.map(|recorder| recorder.series_seat(number)),
            };
            let run = run.clone();
            threads.push(spawn(&thread, move || {
                pin(core);
                worker::work(manager, false, run, ends)
            })?);
        }
        Ok(Labelling {
            threads,
            watched,
            exchange,
        })
    }
}
