//! The control thread of a live run: signals, the service manager and the control plane; on tokio, off the data path.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, TrySendError};
use tokio::runtime::Runtime;
use tokio::signal::unix::Signal;
use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};

use super::lane::{LaneOutcome, Shared};
use super::notify::Notifier;
use super::ports::News;
use super::reload::{Errand, Order};
use crate::control::collector::Collector;
use crate::control::flows::FlowSample;
use crate::control::protocol::{Body, Code, Reply, Request};
use crate::control::{Call, Facts, Plane, Sockets};
use crate::exit::Failure;
use crate::log::{self, Loss};
use crate::mark;
use crate::records::Reopener;
use crate::signals::{Signals, hangups};

/// Between two looks at what the data path does.
const TICK: Duration = Duration::from_millis(100);

/// Between two words to the service manager on how it goes.
const STATUS_EVERY: Duration = Duration::from_secs(10);

/// All that the thread works with.
pub struct Control {
    pub sockets: Sockets,
    pub facts: Facts,
    pub collector: Collector,
    pub sample: FlowSample,
    /// Where reloads and models are ordered.
    pub errands: Sender<Errand>,
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

/// Serves until all lanes have ended; gives what they left behind. The first SIGINT or SIGTERM, or `fenxi ctl drain`, asks
/// them to.
///
/// # Errors
/// A socket that cannot be had, or a lane died.
pub fn run(
    runtime: &Runtime,
    control: Control,
    mut lanes: mpsc::Receiver<LaneOutcome>,
) -> Result<Vec<LaneOutcome>, Failure> {
    let expected = control.shared.rounds.len();
    let ended = runtime.block_on(serve(control, &mut lanes))?;
    if ended.len() < expected {
        return Err(Failure::software("a flow-manager thread died"));
    }
    Ok(ended)
}

async fn serve(
    control: Control,
    lanes: &mut mpsc::Receiver<LaneOutcome>,
) -> Result<Vec<LaneOutcome>, Failure> {
    let Control {
        sockets,
        facts,
        collector,
        mut sample,
        errands,
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
    notifier.say(&format!("READY=1\nSTATUS={what}"));
    info!("ready: {what}");
    let mut watchdog = Watchdog::new(&notifier, &shared);
    let mut trouble = marks.map(MarkTrouble::new);
    let mut tick = tokio::time::interval(TICK);
    let mut status = tokio::time::interval_at((Instant::now() + STATUS_EVERY).into(), STATUS_EVERY);
    let mut ended = Vec::new();
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
            () = signals.next() => {
                info!("a signal asks the run to come to its end");
                true
            }
            _ = hangups.recv() => {
                is_to_reload = !order_reload(&errands);
                false
            }
            Some(call) = calls.recv() => answer(call, &mut sample, &errands, records.as_ref()),
            Some(news) = news.recv() => {
                match news {
                    News::Trouble(line) => warn!("{line}"),
                    News::Back(line) => info!("{line}"),
                }
                false
            }
            _ = tick.tick() => {
                sample.take_in();
                watchdog.look();
                is_to_reload = is_to_reload && !order_reload(&errands);
                trouble.iter_mut().for_each(MarkTrouble::look);
                log::tick();
                false
            }
            _ = status.tick(), if !shared.stop.load(Ordering::Relaxed) => {
                notifier.say(&format!("STATUS={what}: {}", plane.overview().await));
                false
            }
        };
        if is_asked_to_end {
            notifier.say(&format!("STOPPING=1\nSTATUS={what}: comes to its end"));
            plane.drain();
            shared.stop.store(true, Ordering::Relaxed);
        }
    }
    plane.finish().await;
    Ok(ended)
}

/// By a signal, so nobody waits for the answer. False where other orders are under way: then it has to be tried again.
fn order_reload(errands: &Sender<Errand>) -> bool {
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
    errands: &Sender<Errand>,
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
fn pass_on(order: Order, answer: oneshot::Sender<Reply>, errands: &Sender<Errand>) -> bool {
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
