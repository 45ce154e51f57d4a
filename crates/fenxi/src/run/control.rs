//! The control thread of a live run: signals, the service manager and the control plane; on tokio, off the data path.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, TrySendError};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use super::lane::{LaneOutcome, Shared};
use super::notify::Notifier;
use crate::control::collector::Collector;
use crate::control::flows::FlowSample;
use crate::control::protocol::{Body, Code, Reply, Request};
use crate::control::{Call, Facts, Plane, Sockets};
use crate::exit::{Failure, remark};
use crate::pipeline::swap::Order;
use crate::signals::Signals;

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
    /// Where models are ordered.
    pub orders: Sender<Order>,
    /// What people should know.
    pub news: mpsc::UnboundedReceiver<String>,
    pub signals: Signals,
    pub shared: Arc<Shared>,
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
pub fn signals() -> Result<Signals, Failure> {
    Signals::new()
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
        orders,
        mut news,
        mut signals,
        shared,
        what,
    } = control;
    let (plane, mut calls) = Plane::start(sockets, facts, collector)?;
    let notifier = Notifier::from_environment();
    notifier.say(&format!("READY=1\nSTATUS={what}"));
    let mut watchdog = Watchdog::new(&notifier, &shared);
    let mut tick = tokio::time::interval(TICK);
    let mut status = tokio::time::interval_at((Instant::now() + STATUS_EVERY).into(), STATUS_EVERY);
    let mut ended = Vec::new();
    loop {
        let is_asked_to_end = tokio::select! {
            outcome = lanes.recv() => match outcome {
                Some(outcome) => {
                    ended.push(outcome);
                    false
                }
                None => break,
            },
            () = signals.next() => true,
            Some(call) = calls.recv() => answer(call, &mut sample, &orders),
            Some(line) = news.recv() => {
                let _ = remark(&format!("fenxi: {line}\n"));
                false
            }
            _ = tick.tick() => {
                sample.take_in();
                watchdog.look();
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

/// Answers a call; true where it asks the run to come to its end.
fn answer(call: Call, sample: &mut FlowSample, orders: &Sender<Order>) -> bool {
    let Call { request, answer } = call;
    let drains = request == Request::Drain {};
    let reply = match request {
        Request::Flows { label, top } => sample.largest(label.as_deref(), top),
        Request::Drain {} => Reply::ok(Body::Done("the run comes to its end".to_owned())),
        Request::ModelLoad { dir } => {
            let done = format!("{}: in use from now on", dir.display());
            let order = Order {
                bundle: dir,
                answer: Box::new(move |swapped| {
                    let _ = answer.send(match swapped {
                        Ok(()) => Reply::ok(Body::Done(done)),
                        Err(why) => Reply::refused(Code::NotHere, why),
                    });
                }),
            };
            if let Err(TrySendError::Full(order) | TrySendError::Disconnected(order)) =
                orders.try_send(order)
            {
                (order.answer)(Err("another model is being loaded; ask again".to_owned()));
            }
            return false;
        }
        Request::Reload {} => Reply::refused(
            Code::NotHere,
            "not supported yet: `fenxi ctl model load DIR` exchanges the model, all else needs a restart",
        ),
        _ => Reply::refused(Code::NotHere, "a live run cannot do that yet"),
    };
    // Whoever asked may have gone.
    let _ = answer.send(reply);
    drains
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
