//! The control thread of a live run: signals, the service manager and the control plane; on tokio, off the data path.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use accel::onnx;
use crossbeam_channel::{Sender, TrySendError};
use tokio::runtime::Runtime;
use tokio::signal::unix::Signal;
use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};

use super::lane::{LaneOutcome, Shared};
use super::notify::Notifier;
use super::ports::News;
use super::reload::{Errand, Order};
use super::series::{Left, Managers, Opening, Series, Starting, wait_until};
use crate::control::collector::Collector;
use crate::control::flows::FlowSample;
use crate::control::protocol::{Body, Code, Reply, Request};
use crate::control::{Call, Facts, Plane, Sockets};
use crate::exit::{self, Failure};
use crate::log::{self, Loss};
use crate::mark;
use crate::pipeline::helpers::RunLasts;
use crate::records::Reopener;
use crate::signals::{Signals, hangups};

/// Between two looks at what the data path does.
const TICK: Duration = Duration::from_millis(100);

/// Between two words to the service manager on how it goes.
const STATUS_EVERY: Duration = Duration::from_secs(10);

/// How long the end of a run waits for the thread for reloads, before the flow managers are told.
const RELOADS_WITHIN: Duration = Duration::from_millis(250);

/// How long flow managers may take to end, beyond what the kernel takes to hand over the last frames, and beyond
/// `records.drain_s`. They give the last frames half a second and the last labels one.
const LANES_WITHIN: Duration = Duration::from_millis(1600);

/// How long a run of a model may take once the run of the program ends.
const LAST_RUN_MAX: Duration = Duration::from_millis(250);

/// All that the thread works with.
pub struct Control {
    pub sockets: Sockets,
    pub facts: Facts,
    pub collector: Collector,
    pub sample: FlowSample,
    /// The first model, on its way.
    pub opening: Opening,
    /// What follows once it is open.
    pub series: Starting,
    /// Dropped so that nobody waits for helpers any more.
    pub run_lasts: RunLasts,
    /// How long flow managers wait at the end until their records find room.
    pub records_within: Duration,
    /// Where the file of records can be opened anew; `None`: there is none.
    pub records: Option<Reopener>,
    /// What the log is told of interfaces.
    pub news: mpsc::UnboundedReceiver<News>,
    pub signals: Signals,
    pub hangups: Signal,
    pub shared: Arc<Shared>,
    /// Mode mark: what writes them.
    pub marks: Option<Arc<mark::Writer>>,
    /// The run in some words, for the service manager.
    pub what: String,
}

/// The runtime of the thread.
///
/// # Errors
/// The system refuses.
pub fn runtime() -> Result<Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::unavailable(format!("no control thread: {error}")))
}

/// From now on signals wait for [`run`].
///
/// # Errors
/// The system refuses.
pub fn signals() -> Result<(Signals, Signal), Failure> {
    Ok((Signals::new()?, hangups()?))
}

/// What the threads of the data path left behind.
pub struct Ended {
    pub lanes: Vec<LaneOutcome>,
    pub series: Left,
    /// When the last label was given.
    pub at: Instant,
}

/// Serves until all lanes have ended, and the analytics threads after them; gives what they left behind. The first SIGINT or
/// SIGTERM, or `fenxi ctl drain`, asks them to.
///
/// # Errors
/// A socket that cannot be had, the first model cannot be opened, or a lane died.
pub fn run(
    runtime: &Runtime,
    control: Control,
    mut lanes: mpsc::Receiver<LaneOutcome>,
) -> Result<Ended, Failure> {
    let expected = control.shared.rounds.len();
    let ended = runtime.block_on(serve(control, &mut lanes))?;
    if ended.lanes.len() == expected {
        return Ok(ended);
    }
    // One that died has let go of its end of the channel; one that still has it is stuck.
    if !lanes.is_closed() {
        exit::leave_threads_behind();
        return Err(Failure::software("a flow-manager thread did not end"));
    }
    Err(Failure::software("a flow-manager thread died"))
}

async fn serve(
    control: Control,
    lanes: &mut mpsc::Receiver<LaneOutcome>,
) -> Result<Ended, Failure> {
    let Control {
        sockets,
        facts,
        collector,
        mut sample,
        opening,
        series,
        run_lasts,
        records_within,
        records,
        mut news,
        mut signals,
        mut hangups,
        shared,
        marks,
        what,
    } = control;
    let (plane, mut calls) = Plane::start(sockets, facts, collector)?;
    let notifier = Notifier::from_environment();
    let mut watchdog = Watchdog::new(&notifier, &shared);
    let mut trouble = marks.map(MarkTrouble::new);
    let mut tick = tokio::time::interval(TICK);
    let mut status = tokio::time::interval_at((Instant::now() + STATUS_EVERY).into(), STATUS_EVERY);
    let mut side = Side {
        opening: Some(opening),
        starting: Some(series),
        running: None,
        run_lasts: Some(run_lasts),
    };
    let (mut ended, mut failure) = (Vec::new(), None);
    let mut lanes_until: Option<Instant> = None;
    let mut is_to_reload = false;
    loop {
        let is_asked_to_end = tokio::select! {
            outcome = lanes.recv() => match outcome {
                Some(outcome) => {
                    ended.push(outcome);
                    false
                }
                None => break,
            },
            opened = side.opened() => match side.start(opened, &plane).await {
                Ok(()) => {
                    notifier.say(&format!("READY=1\nSTATUS={what}"));
                    info!("ready: {what}");
                    false
                }
                Err(why) => {
                    failure = Some(why);
                    true
                }
            },
            () = signals.next() => {
                info!("a signal asks the run to come to its end");
                true
            }
            _ = hangups.recv() => {
                is_to_reload = !order_reload(side.errands());
                false
            }
            Some(call) = calls.recv() => answer(call, &mut sample, side.errands(), records.as_ref()),
            Some(news) = news.recv() => {
                match news {
                    News::Trouble(line) => warn!("{line}"),
                    News::Back(line) => info!("{line}"),
                }
                false
            }
            _ = tick.tick() => {
                sample.take_in();
                // A service manager that waits to hear that we are ready wants to hear nothing else.
                if side.opening.is_none() {
                    watchdog.look();
                }
                is_to_reload = is_to_reload && !order_reload(side.errands());
                trouble.iter_mut().for_each(MarkTrouble::look);
                log::tick();
                onnx::stop_late_runs(lanes_until.map(|_| LAST_RUN_MAX));
                if lanes_until.is_some_and(|until| Instant::now() >= until) {
                    break;
                }
                false
            }
            _ = status.tick(), if side.running.is_some() && !shared.stop.load(Ordering::Relaxed) => {
                notifier.say(&format!("STATUS={what}: {}", plane.overview().await));
                false
            }
        };
        if is_asked_to_end && lanes_until.is_none() {
            notifier.say(&format!("STOPPING=1\nSTATUS={what}: comes to its end"));
            plane.drain();
            // While packets still pass: all that may hang.
            side.leave_helpers().await;
            if side.running.is_none() || plane.has_stalled_analytics().await {
                // There will be no labels to wait for.
                shared.run.analytics_died.store(true, Ordering::Release);
            }
            shared.stop.store(true, Ordering::Relaxed);
            let within = shared.block_timeout + LANES_WITHIN + records_within;
            lanes_until = Some(Instant::now() + within);
        }
    }
    side.leave_helpers().await;
    let series = match side.running {
        Some(running) => running.end(&plane).await,
        None => Left::nothing(),
    };
    let at = Instant::now();
    plane.finish().await;
    match failure {
        Some(failure) => Err(failure),
        None => Ok(Ended {
            lanes: ended,
            series,
            at,
        }),
    }
}

/// The series' side, from the first model on.
struct Side {
    opening: Option<Opening>,
    starting: Option<Starting>,
    running: Option<Series>,
    run_lasts: Option<RunLasts>,
}

impl Side {
    /// Waits until the first model is open; for ever once it is, or is no longer wanted.
    async fn opened(&mut self) -> Result<Managers, Failure> {
        match &mut self.opening {
            Some(opening) => opening.opened().await,
            None => std::future::pending().await,
        }
    }

    /// Starts the threads, where the model is open.
    async fn start(
        &mut self,
        opened: Result<Managers, Failure>,
        plane: &Plane,
    ) -> Result<(), Failure> {
        self.opening = None;
        let managers = opened?;
        let Some(starting) = self.starting.take() else {
            return Err(Failure::software("the series' side was started twice"));
        };
        let in_use = starting.helpers.in_use().clone();
        let (running, watched) = starting.start(managers)?;
        self.running = Some(running);
        plane.add_analytics(watched).await;
        in_use.note(|standing| standing.opening = None);
        Ok(())
    }

    /// Where reloads and models are ordered; `None` until the first model is open.
    fn errands(&self) -> Option<&Sender<Errand>> {
        self.running
            .as_ref()
            .map(|running| running.reloads.errands())
    }

    /// Waits for no helper any more, and a moment for the thread for reloads, which notices that.
    async fn leave_helpers(&mut self) {
        if self.opening.take().is_some() {
            exit::leave_threads_behind();
        }
        self.run_lasts = None;
        let running = self.running.as_ref();
        wait_until(RELOADS_WITHIN, || {
            running.is_none_or(|running| running.reloads.has_ended())
        })
        .await;
    }
}

/// By a signal, so nobody waits for the answer. False where other orders are under way: then it has to be tried again.
fn order_reload(errands: Option<&Sender<Errand>>) -> bool {
    let Some(errands) = errands else { return false };
    let order = Order::Reload {
        confirm_within: None,
    };
    let answer = Box::new(|_| {});
    errands.try_send(Errand { order, answer }).is_ok()
}

/// Answers a call; true where it asks the run to come to its end.
fn answer(
    call: Call,
    sample: &mut FlowSample,
    errands: Option<&Sender<Errand>>,
    records: Option<&Reopener>,
) -> bool {
    let Call { request, answer } = call;
    let drains = request == Request::Drain {};
    let reply = match request {
        Request::Flows { label, top } => sample.largest(label.as_deref(), top),
        Request::Drain {} => {
            info!("fenxi ctl asks the run to come to its end");
            Reply::ok(Body::Done("the run comes to its end".to_owned()))
        }
        Request::Log { level } => set_level(&level),
        Request::Reopen {} => match records {
            Some(records) => {
                records.reopen(Box::new(move |opened| {
                    let _ = answer.send(match opened {
                        Ok(()) => Reply::ok(Body::Done("the file was opened anew".to_owned())),
                        Err(why) => Reply::refused(Code::NotHere, why),
                    });
                }));
                return false;
            }
            None => Reply::refused(Code::NotHere, "this run writes no records"),
        },
        Request::ModelLoad { dir } => return pass_on(Order::LoadModel(dir), answer, errands),
        Request::Confirm {} => return pass_on(Order::Confirm, answer, errands),
        Request::Reload { confirm_within_s } => {
            let confirm_within = confirm_within_s.map(|s| Duration::from_secs(s.into()));
            return pass_on(Order::Reload { confirm_within }, answer, errands);
        }
        _ => Reply::refused(Code::NotHere, "a live run cannot do that yet"),
    };
    // Whoever asked may have gone.
    let _ = answer.send(reply);
    drains
}

/// What takes its time is done, and answered, by the thread for reloads. No reason to end.
fn pass_on(order: Order, answer: oneshot::Sender<Reply>, errands: Option<&Sender<Errand>>) -> bool {
    let Some(errands) = errands else {
        let why = "starting: the first model is being opened; ask again";
        let _ = answer.send(Reply::refused(Code::Busy, why));
        return false;
    };
    let answer = Box::new(move |reply| {
        // As above.
        let _ = answer.send(reply);
    });
    if let Err(TrySendError::Full(errand) | TrySendError::Disconnected(errand)) =
        errands.try_send(Errand { order, answer })
    {
        let why = "another reload or model is under way; ask again";
        (errand.answer)(Reply::refused(Code::Busy, why));
    }
    false
}

fn set_level(level: &str) -> Reply {
    match log::set_level(level) {
        Ok(()) => {
            info!("logs at {level} from now on");
            Reply::ok(Body::Done(format!("logs at {level} from now on")))
        }
        Err(error) => Reply::refused(Code::Malformed, error.to_string()),
    }
}

/// Marks that do not reach the kernel.
struct MarkTrouble {
    marks: Arc<mark::Writer>,
    looked: Instant,
    failed: Loss,
    dropped: Loss,
}

impl MarkTrouble {
    fn new(marks: Arc<mark::Writer>) -> MarkTrouble {
        MarkTrouble {
            marks,
            looked: Instant::now(),
            failed: Loss::new("marks are refused by the kernel"),
            dropped: Loss::new("marks are dropped, their queue is full; see mark.queue"),
        }
    }

    /// Once a second: it copies a histogram.
    fn look(&mut self) {
        if self.looked.elapsed() < Duration::from_secs(1) {
            return;
        }
        self.looked = Instant::now();
        let counts = self.marks.counts();
        let failed = counts.failed_by_cause().map(|(_, marks)| marks).sum();
        let why = || std::io::Error::from_raw_os_error(counts.last_errno).to_string();
        self.failed.look(self.looked, failed, why);
        self.dropped.look(self.looked, counts.dropped, String::new);
    }
}

/// Tells the service manager that the data path moves: only when each of its lanes has gone round since it was last told.
struct Watchdog<'a> {
    notifier: &'a Notifier,
    shared: &'a Shared,
    /// Rounds of the lanes when it was last told.
    rounds: Vec<u64>,
    told: Instant,
}

impl<'a> Watchdog<'a> {
    fn new(notifier: &'a Notifier, shared: &'a Shared) -> Watchdog<'a> {
        Watchdog {
            notifier,
            shared,
            rounds: vec![0; shared.rounds.len()],
            told: Instant::now(),
        }
    }

    fn look(&mut self) {
        let Some(limit) = self.notifier.watchdog else {
            return;
        };
        let now = self
            .shared
            .rounds
            .iter()
            .map(|rounds| rounds.load(Ordering::Relaxed));
        let now: Vec<u64> = now.collect();
        let all_move = now
            .iter()
            .zip(&self.rounds)
            .all(|(now, before)| now != before);
        if all_move && self.told.elapsed() >= limit / 4 {
            self.notifier.say("WATCHDOG=1");
            (self.rounds, self.told) = (now, Instant::now());
        }
    }
}
