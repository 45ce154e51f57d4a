//! The exchange of the model under way.
//!
//! A thread of its own loads the other bundle beside the running one, checks that its labels mean the same, opens and warms
//! a session for each that is in use, and hands them to the analytics threads. Those change over between two batches and
//! hand the old sessions back, to be dropped here, off the data path. Whatever fails, the old model goes on.
//!
//! ```text
//! swap thread: open ─ check ─ golden test ─ warm ─┐                            ┌─ drop
//!                                                 ▼ standby          retired ──┘
//! analytics thread:             round, round, stand_by, round … round, take_retired
//! ```
//!
//! Source: active and standby snapshot, LiteFlow §3.4.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use accel::Bundle;
use analytics::{Accelerator, Manager, Refused, Standby};
use cring::MODELS_MAX;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use super::threads::{Cores, Role, Thread};
use super::{Opener, open_bundle};
use crate::config::Config;
use crate::exit::Failure;

/// What an analytics thread hands back.
enum Back {
    Retired(Vec<Accelerator>),
    Refused(Box<Refused>),
}

/// An analytics thread's end.
pub struct SwapPort {
    standby: Receiver<Standby>,
    back: Sender<Back>,
}

impl SwapPort {
    /// Between two rounds: takes what stands by, and hands back what is no longer in use. Costs two looks where there is
    /// neither.
    pub fn exchange(&self, manager: &mut Manager) {
        if let Some(retired) = manager.take_retired() {
            // The other side waits for this before it sends again, so there is room; if it has gone, all ends soon.
            let _ = self.back.try_send(Back::Retired(retired));
        }
        if let Ok(standby) = self.standby.try_recv()
            && let Err(refused) = manager.stand_by(standby)
        {
            let _ = self.back.try_send(Back::Refused(Box::new(refused)));
        }
    }
}

/// The swap thread's end of one analytics thread.
struct Target {
    thread: Thread,
    standby: Sender<Standby>,
    back: Receiver<Back>,
}

/// Which model comes in, and when.
pub enum Plan {
    /// Always the same, so long after the last exchange.
    Every {
        /// Folder of its bundle.
        bundle: PathBuf,
        /// Between the end of one exchange and the beginning of the next.
        every: Duration,
    },
    /// What [`Swapper::orders`] asks for.
    Ordered,
}

/// Somebody wants another model.
pub struct Order {
    /// Folder of its bundle.
    pub bundle: PathBuf,
    /// Takes what came of it; Err: why the old one goes on.
    pub answer: Box<dyn FnOnce(Result<(), String>) + Send>,
}

/// What came of the exchanges.
#[derive(Debug, Default)]
pub struct Swaps {
    /// All analytics managers have changed over.
    pub done: u64,
    /// The old model went on.
    pub refused: u64,
    /// Why, the last time.
    pub last_refusal: Option<String>,
}

/// The swap thread.
pub struct Swapper {
    thread: JoinHandle<Swaps>,
    /// Dropped to end it.
    orders: Sender<Order>,
}

/// All that the swap thread works with.
struct Work {
    plan: Plan,
    config: Config,
    cores: Cores,
    /// Of the model in use at the start; all that follow must say the same.
    labels: Vec<String>,
    features: Vec<String>,
    targets: Vec<Target>,
}

impl Swapper {
    /// Starts the thread, for these analytics threads; each is given its end.
    ///
    /// # Errors
    /// No thread.
    pub fn start(
        plan: Plan,
        config: &Config,
        cores: &Cores,
        bundle: &Bundle,
        analytics: &[(Thread, Manager)],
    ) -> Result<(Swapper, Vec<SwapPort>), Failure> {
        let ends = analytics.iter().map(|(thread, _)| {
            let (standby, standbys) = bounded(1);
            let (backs, back) = bounded(1);
            let thread = thread.clone();
            let target = Target {
                thread,
                standby,
                back,
            };
            let port = SwapPort {
                standby: standbys,
                back: backs,
            };
            (target, port)
        });
        let (targets, ports) = ends.unzip();
        let work = Work {
            plan,
            config: config.clone(),
            cores: cores.clone(),
            labels: labels(bundle),
            features: bundle.features().to_vec(),
            targets,
        };
        let (orders, ordered) = bounded(1);
        let thread = std::thread::Builder::new()
            .name("swap".to_owned())
            .spawn(move || work.run(&ordered))
            .map_err(|error| Failure::unavailable(format!("no thread for models: {error}")))?;
        Ok((Swapper { thread, orders }, ports))
    }

    /// Where a model can be ordered; while one is under way, one more. The thread goes on as long as this is there.
    pub fn orders(&self) -> Sender<Order> {
        self.orders.clone()
    }

    /// Ends the thread when it has finished what it is at.
    ///
    /// # Errors
    /// It died.
    pub fn finish(self) -> Result<Swaps, Failure> {
        drop(self.orders);
        let died = |_| Failure::software("the thread that exchanges models died");
        self.thread.join().map_err(died)
    }
}

impl Work {
    fn run(&self, orders: &Receiver<Order>) -> Swaps {
        let mut swaps = Swaps::default();
        let mut generation = 0;
        while let Some(Order { bundle, answer }) = self.next(orders) {
            let next = (generation + 1) % MODELS_MAX as u16;
            let swapped = self
                .standbys(&bundle, next)
                .map_err(|failure| Some(failure.to_string()))
                .and_then(|standbys| self.exchange(standbys));
            match swapped {
                Ok(()) => {
                    generation = next;
                    swaps.done += 1;
                    answer(Ok(()));
                }
                Err(Some(reason)) => {
                    swaps.refused += 1;
                    swaps.last_refusal = Some(reason.clone());
                    answer(Err(reason));
                }
                Err(None) => break,
            }
        }
        swaps
    }

    /// The next exchange; `None` where there will be none any more.
    fn next(&self, orders: &Receiver<Order>) -> Option<Order> {
        match &self.plan {
            Plan::Ordered => orders.recv().ok(),
            Plan::Every { bundle, every } => match orders.recv_timeout(*every) {
                Err(RecvTimeoutError::Timeout) => Some(Order {
                    bundle: bundle.clone(),
                    answer: Box::new(|_| {}),
                }),
                Ok(order) => Some(order),
                Err(RecvTimeoutError::Disconnected) => None,
            },
        }
    }

    /// Sessions with the other model, for each analytics thread.
    fn standbys(&self, dir: &Path, generation: u16) -> Result<Vec<Standby>, Failure> {
        let bundle = open_bundle(&self.config, dir)?;
        check_meaning(dir, "features", bundle.features(), &self.features)?;
        check_meaning(dir, "labels", &labels(&bundle), &self.labels)?;
        let opener = Opener {
            config: &self.config,
            bundle: &bundle,
            cores: &self.cores,
            golden_test: true,
        };
        let standby = |target: &Target| {
            let Role::Analytics(manager) = target.thread.role else {
                return Err(Failure::software("a model for a thread that has none"));
            };
            Ok(Standby {
                accelerators: opener.accelerators(target.thread.instance, manager)?,
                generation,
            })
        };
        self.targets.iter().map(standby).collect()
    }

    /// Hands them over and waits for the old ones, which are dropped here. Err: why not; `None` where the run has ended.
    fn exchange(&self, standbys: Vec<Standby>) -> Result<(), Option<String>> {
        for (target, standby) in self.targets.iter().zip(standbys) {
            target.standby.send(standby).map_err(|_| None)?;
        }
        let mut refusal = None;
        for target in &self.targets {
            match target.back.recv().map_err(|_| None)? {
                Back::Retired(accelerators) => drop(accelerators),
                Back::Refused(refused) => {
                    refusal = Some(format!("{}: {}", target.thread, refused.error));
                }
            }
        }
        refusal.map_or(Ok(()), |reason| Err(Some(reason)))
    }
}

fn labels(bundle: &Bundle) -> Vec<String> {
    let labels = bundle.labels().iter();
    labels.map(|label| label.name.clone()).collect()
}

/// A class is a number on its way to the flow, and must mean the same before and after.
fn check_meaning(
    dir: &Path,
    what: &str,
    found: &[String],
    in_use: &[String],
) -> Result<(), Failure> {
    if found == in_use {
        return Ok(());
    }
    Err(Failure::data(format!(
        "{}: the {what} are {}, but those of the model in use are {}; a model that is exchanged under way has the same, in \
         the same order",
        dir.display(),
        found.join(", "),
        in_use.join(", ")
    )))
}
