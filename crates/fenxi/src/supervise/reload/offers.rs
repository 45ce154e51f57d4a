//! Candidates for a task's model: commands, and what [`Offers`] does with models. A candidate is
//! opened and asked on a helper's thread, as any model, with sessions of its own.

use std::path::Path;
use std::sync::Arc;

use accel::{Bundle, DeviceError};
use dataplane::swap::helpers::opening_model;
use dataplane::swap::{Prepared, Previous, Refusal as Stopped};
use flowmgr::record::Sample;
use tracing::warn;

use super::change::{Base, Change};
use super::{Reloader, answers};
use crate::protocol::{Body, Code, FlowTruth, Reply};
use learn::{Models, Offers, Outputs, Refusal, Session, ask};

/// Why offers come to nothing.
const NO_SAMPLES: &str = "this run gives no samples to learn from, so nothing can be judged: set \
    learn.socket and restart, or use `fenxi ctl model load`";

impl Reloader {
    pub(super) fn offer(&mut self, task: Option<&str>, dir: &Path) -> Reply {
        self.with_offers(task, |reloader, offers, task| {
            if let Some(under_way) = offers.under_way(task) {
                let why = format!("another candidate is under way, {under_way}; offer again later");
                return Reply::refused(Code::Conflict, why);
            }
            match offers.offer(task, dir, reloader) {
                Ok(judged) => Reply::ok(Body::Done(format!("{}: {judged}", dir.display()))),
                Err(Refusal { name, why }) => {
                    let why = format!("{}: {name}: {why}", dir.display());
                    Reply::refused(Code::Invalid, why)
                }
            }
        })
    }

    pub(super) fn truth(&mut self, task: Option<&str>, flows: &[FlowTruth]) -> Reply {
        self.with_offers(task, |reloader, offers, task| match offers.tell(task, flows, reloader) {
            Ok(told) => Reply::ok(Body::Done(told)),
            Err(why) => Reply::refused(Code::NotHere, why),
        })
    }

    pub(super) fn back(&mut self, task: Option<&str>) -> Reply {
        self.with_offers(task, |reloader, offers, task| match offers.back(task, reloader) {
            Ok(done) => Reply::ok(Body::Done(done)),
            Err(refusal) => Reply::refused(Code::Conflict, refusal.why),
        })
    }

    pub(super) fn look_at_offers(&mut self) {
        if let Some(mut offers) = self.offers.take() {
            offers.turn(self);
            self.offers = Some(offers);
        }
    }

    /// By task, the generation of the model in use.
    pub(super) fn generations(&self) -> Vec<u16> {
        let state = self.helpers.state().get();
        state.tasks.iter().map(|task| task.model.generation).collect()
    }

    /// A reload was undone: what was known of the models of these generations holds for those in
    /// use now.
    pub(super) fn note_returns(&mut self, generations: &[u16]) {
        let now = self.generations();
        let returned = generations.iter().zip(&now).enumerate();
        for (task, (&before, &now)) in returned.filter(|(_, (before, now))| before != now) {
            if let Some(offers) = &mut self.offers {
                offers.is_again(task, before, now);
            }
            if let Some((generation, _)) = &mut self.promoted[task]
                && *generation == before
            {
                *generation = now;
            }
        }
    }

    /// Offers work with the models of this reloader, so it lends them.
    fn with_offers(
        &mut self,
        task: Option<&str>,
        work: impl FnOnce(&mut Reloader, &mut Offers, usize) -> Reply,
    ) -> Reply {
        let task = match self.task_called(task) {
            Ok(task) => task,
            Err(why) => return Reply::refused(Code::Invalid, why),
        };
        let Some(mut offers) = self.offers.take() else {
            return Reply::refused(Code::NotHere, NO_SAMPLES);
        };
        let reply = work(self, &mut offers, task);
        self.offers = Some(offers);
        reply
    }

    /// Runs `work` on a helper's thread.
    fn beside<T: Send + 'static>(
        &self,
        task: usize,
        dir: &Path,
        work: impl FnOnce(&Base) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let limit = self.running.config.model.open_timeout;
        let done = self.open_model_in(task, &opening_model(dir), limit, move |base| Ok(work(base)));
        done.map_err(|why| failed(&why))?
    }
}

fn failed(why: &Stopped) -> Refusal {
    Refusal::new("failed", answers::refused(why).error.unwrap_or_default())
}

/// The sessions of a bundle, if it is still the one that was judged.
fn open(base: &Base, task: usize, judged: &Arc<Bundle>) -> Result<Prepared, Refusal> {
    let (opening, now) = (&base.openings[task], base.now.of_task(task));
    let bundle = opening.open(&now, judged.dir()).map_err(|why| failed(&why.into()))?;
    if bundle != *judged {
        return Err(Refusal::new("damaged", "it is not the bundle any more that was judged"));
    }
    base.open_sessions(opening, &now, bundle).map_err(|why| failed(&why))
}

impl Reloader {
    /// Brings a model of before back, with its sessions if they can work again.
    fn back_to(&mut self, task: usize, before: Previous) -> Result<(), Refusal> {
        let dir = before.bundle().dir().to_owned();
        let change = self.beside(task, &dir, move |base| {
            Change::back(base, task, before).map_err(|why| failed(&why))
        })?;
        self.apply(change).map(drop).map_err(|why| failed(&why))
    }
}

impl Models for Reloader {
    fn in_use(&self, task: usize) -> (Arc<Bundle>, u16) {
        let generation = self.helpers.state().get().tasks[task].model.generation;
        (self.swappers[task].opening().bundle().clone(), generation)
    }

    fn open(&mut self, task: usize, dir: &Path) -> Result<Arc<Bundle>, Refusal> {
        let path = dir.to_owned();
        self.beside(task, dir, move |base| {
            let opening = &base.openings[task];
            let bundle = opening.read(&base.now.of_task(task), &path);
            let bundle = bundle.map_err(|why| Refusal::new("damaged", why))?;
            opening.check(&bundle).map_err(|why| Refusal::new("meaning", why))?;
            Ok(Arc::new(bundle))
        })
    }

    fn ask(
        &mut self,
        task: usize,
        pair: [&Arc<Bundle>; 2],
        samples: Vec<Sample>,
    ) -> Result<[Outputs; 2], Refusal> {
        let pair = pair.map(Arc::clone);
        let dir = pair[0].dir().to_owned();
        self.beside(task, &dir, move |base| {
            let (opening, now) = (&base.openings[task], base.now.of_task(task));
            let open = |bundle: &Arc<Bundle>| opening.session(&now, bundle);
            let [candidate, in_use] = &pair;
            let mut first = open(candidate).map_err(|why| failed(&why))?;
            let golden = opening.golden_test(&now, candidate, first.as_mut());
            golden.map_err(|why| Refusal::new("golden", why))?;
            let mut second = open(in_use).map_err(|why| failed(&why))?;
            let mut sessions = [
                Session { bundle: candidate, device: first.as_mut() },
                Session { bundle: in_use, device: second.as_mut() },
            ];
            ask(&mut sessions, &samples).map_err(|(_, why)| match why {
                DeviceError::NotAProbability { .. } => Refusal::new("not_probabilities", why),
                why => Refusal::new("failed", why),
            })
        })
    }

    fn begin_canary(&mut self, task: usize, bundle: &Arc<Bundle>) -> Result<Option<u16>, Refusal> {
        if self.kernel.is_some() {
            return Ok(None);
        }
        let judged = bundle.clone();
        let prepared = self.beside(task, bundle.dir(), move |base| open(base, task, &judged))?;
        let canary = &mut self.swappers[task];
        canary.swap(prepared.as_canary()).map_err(|why| failed(&why))?;
        Ok(canary.canary())
    }

    fn canary(&self, task: usize) -> Option<u16> {
        self.swappers[task].canary()
    }

    fn canary_failure(&mut self, task: usize) -> Option<String> {
        // At the end of the run nothing is withdrawn.
        self.swappers[task].canary_failure().ok().flatten()
    }

    fn withdraw(&mut self, task: usize) -> Result<(), Refusal> {
        self.swappers[task].withdraw().map_err(|why| failed(&why))
    }

    fn promote(&mut self, task: usize, bundle: &Arc<Bundle>) -> Result<(), Refusal> {
        let judged = bundle.clone();
        let change = self.beside(task, bundle.dir(), move |base| {
            let prepared = match base.openings[task].promote(&base.now.of_task(task)) {
                Some(canary) => canary,
                None => open(base, task, &judged)?,
            };
            Change::of_task(base, task, prepared).map_err(|why| failed(&why.into()))
        })?;
        let applied = self.apply(change).map_err(|why| failed(&why))?;
        let generation = self.in_use(task).1;
        let before = applied.before.into_iter().nth(task).flatten();
        self.promoted[task] = before.map(|before| (generation, before));
        Ok(())
    }

    fn back(&mut self, task: usize) -> Result<(), Refusal> {
        let generation = self.in_use(task).1;
        let promoted = self.promoted[task].clone().filter(|(of, _)| *of == generation);
        let Some((_, before)) = promoted else {
            let why = "the model in use is no promoted candidate, or the one before is gone";
            return Err(Refusal::new("failed", why));
        };
        let afresh = before.afresh();
        // The model before stays known until it is back, so that a failure can be tried again.
        self.back_to(task, before).or_else(|why| match afresh {
            Some(before) => {
                warn!("{}; its model is opened again", why.why);
                self.back_to(task, before)
            }
            None => Err(why),
        })?;
        self.promoted[task] = None;
        Ok(())
    }
}
