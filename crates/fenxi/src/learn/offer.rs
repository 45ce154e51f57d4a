//! A candidate's way from the offer to its use, and back where it disappoints.
//!
//! 1. **Offered.** Its bundle is whole, signed if it has to be, means the same as the model in use,
//!    and gives its golden outputs; its training has settled. It is judged ([`super::judge`]) on
//!    the samples held.
//! 2. **In shadow.** It is judged again on flows that ended after the offer, with less confidence
//!    since they are fewer. A tuner that offers until one candidate is lucky fails here.
//! 3. **Promoted** by the ordinary swap in two phases. The sessions before are kept.
//! 4. **Watched.** A lower score than the model before on new flows, late labels, or another mix of
//!    labels than in shadow roll it back. Otherwise it is kept, and `fenxi ctl model back` still
//!    brings the model before back.
//!
//! A canary on a share of new flows has its place between 2 and 3. It needs analytics workers that
//! hold two models at once.
//!
//! The shadow costs the data path nothing: samples carry their series, so the candidate answers
//! them when their truth is known.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use accel::Bundle;
use dataplane::state::SharedState;
use flowmgr::Target;
use flowmgr::record::Sample;
use tracing::{info, warn};

use super::ask::Asked;
use super::held::{SharedHeld, question};
use super::judge::{self, Figures, Question, Rival, Trial};
use super::signature::Key;

/// Confidence of the judgement on the samples held.
const JUDGED: f64 = 0.95;

/// Confidence of the judgement in shadow.
const SHADOWED: f64 = 0.80;

/// Confidence with which a promoted model must be worse to be rolled back.
const RETURNED: f64 = 0.99;

/// Flows that a candidate stays in shadow for.
const SHADOW_FLOWS: usize = 300;

/// Flows that a promoted model is watched for, and after how many it is looked at each time.
const WATCHED_FLOWS: usize = 500;
const LOOK_FLOWS: usize = 100;

/// How long either may last.
const STAGE_WITHIN: Duration = Duration::from_secs(3600);

/// All outcomes, good ones first.
pub const OUTCOMES: [&str; 23] = [
    "judged",
    "promoted",
    "kept",
    "back",
    "rolled_back",
    "overtaken",
    "unsigned",
    "wrong_key",
    "forged",
    "damaged",
    "meaning",
    "golden",
    "failed",
    "no_truth",
    "unstable",
    "stale",
    "few_flows",
    "not_probabilities",
    "slow",
    "unneeded",
    "not_better",
    "counter",
    "servers",
];

/// Why a candidate is refused or returned.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// The outcome in metrics.
    pub name: &'static str,
    pub why: String,
}

impl Refusal {
    pub fn new(name: &'static str, why: impl ToString) -> Refusal {
        Refusal { name, why: why.to_string() }
    }
}

impl From<judge::Refused> for Refusal {
    fn from(refused: judge::Refused) -> Refusal {
        Refusal::new(refused.name(), refused)
    }
}

/// What offers do with models.
pub trait Models {
    /// The model of a task, and its generation.
    fn in_use(&self, task: usize) -> (Arc<Bundle>, u16);

    /// Opens a bundle that could replace it.
    fn open(&mut self, task: usize, dir: &Path) -> Result<Arc<Bundle>, Refusal>;

    /// Asks two models about samples.
    fn ask(
        &mut self,
        task: usize,
        pair: [&Arc<Bundle>; 2],
        samples: Vec<Sample>,
    ) -> Result<[Asked; 2], Refusal>;

    /// Brings a model into use, and keeps the one before.
    fn promote(&mut self, task: usize, bundle: &Arc<Bundle>) -> Result<(), Refusal>;

    /// Brings the one before back.
    fn back(&mut self, task: usize) -> Result<(), Refusal>;
}

/// The candidates of a run.
pub struct Offers {
    held: SharedHeld,
    /// Whose signature candidates need.
    key: Option<Key>,
    state: Arc<SharedState>,
    /// By task; the one under way.
    candidates: Vec<Option<Candidate>>,
}

struct Candidate {
    bundle: Arc<Bundle>,
    /// The model that it replaces.
    before: Arc<Bundle>,
    stage: Stage,
    /// Generation of the model that is to be in use during this stage.
    generation: u16,
    /// Number of the first sample of this stage.
    from: u64,
    /// Flows after which it is looked at.
    flows: usize,
    until: Instant,
}

enum Stage {
    Shadow,
    Watched(Expected),
}

/// What was seen in shadow.
struct Expected {
    /// Labels by class that the candidate would have given.
    mix: Vec<usize>,
    /// Questions without an answer from the model in use, and all.
    late: (usize, usize),
}

impl Offers {
    pub fn new(held: SharedHeld, key: Option<Key>, state: Arc<SharedState>) -> Offers {
        let candidates = state.get().tasks.iter().map(|_| None).collect();
        Offers { held, key, state, candidates }
    }

    /// Whether a candidate is under way, so that [`Offers::turn`] is due now and then.
    pub fn are_under_way(&self) -> bool {
        self.candidates.iter().any(Option::is_some)
    }

    /// The candidate of a task, in words.
    pub fn under_way(&self, task: usize) -> Option<String> {
        let Candidate { bundle, stage, from, flows, .. } = self.candidates[task].as_ref()?;
        let (stage, of) = match stage {
            Stage::Shadow => ("in shadow", *flows),
            Stage::Watched(_) => ("in use and watched", WATCHED_FLOWS),
        };
        let ended = self.held.with(|held| held.flows_since(task, *from)).min(of);
        Some(format!("{}: {stage}, {ended} of {of} flows", bundle.dir().display()))
    }

    /// Judges a candidate. Returns what is known of it and what comes next.
    pub fn offer(
        &mut self,
        task: usize,
        dir: &Path,
        models: &mut dyn Models,
    ) -> Result<String, Refusal> {
        let judged = self.judge_offer(task, dir, models);
        match &judged {
            Ok(figures) => self.note(task, "judged", dir, figures),
            Err(refusal) => self.refuse(task, dir, refusal),
        }
        self.show(task);
        let figures = judged?;
        Ok(format!("{figures}; in shadow for the next {SHADOW_FLOWS} held-out flows"))
    }

    fn judge_offer(
        &mut self,
        task: usize,
        dir: &Path,
        models: &mut dyn Models,
    ) -> Result<String, Refusal> {
        let (before, generation) = models.in_use(task);
        let bundle = models.open(task, dir)?;
        if let Some(key) = &self.key {
            key.check(&bundle)?;
        }
        judge::check_claims(bundle.learned(), before.learned())?;
        let from = self.held.with(|held| held.pushed(task));
        let candidate = Candidate {
            bundle,
            before,
            stage: Stage::Shadow,
            generation,
            from,
            flows: SHADOW_FLOWS,
            until: Instant::now() + STAGE_WITHIN,
        };
        let (_, figures) = self.judge(task, &candidate, 0, JUDGED, models)?;
        self.candidates[task] = Some(candidate);
        Ok(in_words(&figures))
    }

    /// Judges a candidate on the samples from this number on.
    fn judge(
        &self,
        task: usize,
        candidate: &Candidate,
        from: u64,
        confidence: f64,
        models: &mut dyn Models,
    ) -> Result<(Asked, Figures), Refusal> {
        let Candidate { bundle, before, .. } = candidate;
        let (samples, questions) = self.known(task, from, bundle)?;
        let [own, in_use] = models.ask(task, [bundle, before], samples)?;
        let trial = Trial {
            questions: &questions,
            bands: bundle.labels().len(),
            candidate: &own.outputs,
            in_use: &in_use.outputs,
        };
        let figures = judge::judge(&trial, confidence)?;
        Ok((own, figures))
    }

    /// The samples of a task whose truth is known, with the questions that they are.
    fn known(
        &self,
        task: usize,
        from: u64,
        bundle: &Bundle,
    ) -> Result<(Vec<Sample>, Vec<Question>), Refusal> {
        let target = dataplane::bundle::target(bundle).ok_or_else(|| {
            let why = "its labels are no bands of what flows will do, so no flow tells the truth; \
                use `fenxi ctl model load`";
            Refusal::new("no_truth", why)
        })?;
        Ok(self.held.with(|held| known(held.since(task, from), &target)))
    }

    /// Looks at all candidates that are due.
    pub fn turn(&mut self, models: &mut dyn Models) {
        for task in 0..self.candidates.len() {
            let Some(candidate) = self.candidates[task].take() else { continue };
            self.candidates[task] = self.go_on(task, candidate, models);
            self.show(task);
        }
    }

    /// What becomes of a candidate; `None` once it has come to its end.
    fn go_on(
        &mut self,
        task: usize,
        candidate: Candidate,
        models: &mut dyn Models,
    ) -> Option<Candidate> {
        if models.in_use(task).1 != candidate.generation {
            let why = "another model came into use";
            self.refuse(task, candidate.bundle.dir(), &Refusal::new("overtaken", why));
            return None;
        }
        let ended = self.held.with(|held| held.flows_since(task, candidate.from));
        if ended < candidate.flows && Instant::now() < candidate.until {
            return Some(candidate);
        }
        match &candidate.stage {
            Stage::Shadow => self.promote(task, candidate, models),
            Stage::Watched(expected) => {
                let watched = self.watch(task, &candidate, expected, models);
                self.watched(task, candidate, watched, models)
            }
        }
    }

    fn promote(
        &mut self,
        task: usize,
        candidate: Candidate,
        models: &mut dyn Models,
    ) -> Option<Candidate> {
        let judged = self.judge(task, &candidate, candidate.from, SHADOWED, models);
        let promoted = judged.and_then(|(asked, figures)| {
            let expected = self.held.with(|held| Expected {
                mix: mix(asked.classes.iter().copied(), candidate.bundle.labels().len()),
                late: late(held.since(task, candidate.from)),
            });
            models.promote(task, &candidate.bundle)?;
            Ok((expected, figures))
        });
        let dir = candidate.bundle.dir().to_owned();
        match promoted {
            Ok((expected, figures)) => {
                self.note(task, "promoted", &dir, &format!("in shadow {}", in_words(&figures)));
                Some(Candidate {
                    stage: Stage::Watched(expected),
                    generation: models.in_use(task).1,
                    from: self.held.with(|held| held.pushed(task)),
                    flows: LOOK_FLOWS,
                    until: Instant::now() + STAGE_WITHIN,
                    ..candidate
                })
            }
            Err(refusal) => {
                self.refuse(task, &dir, &refusal);
                None
            }
        }
    }

    /// Whether a promoted model still does what it did in shadow.
    fn watch(
        &self,
        task: usize,
        candidate: &Candidate,
        expected: &Expected,
        models: &mut dyn Models,
    ) -> Result<(), Refusal> {
        let Candidate { bundle, before, generation, from, .. } = candidate;
        let bands = bundle.labels().len();
        let (late, given) = self.held.with(|held| {
            let answers = held.since(task, *from).filter_map(|it| it.answer);
            let own = answers.filter(|it| it.model == *generation).map(|it| it.class);
            (late(held.since(task, *from)), mix(own, bands))
        });
        judge::check_late(late, expected.late)?;
        judge::check_mix(&given, &expected.mix)?;
        let (samples, questions) = self.known(task, *from, bundle)?;
        let [own, before] = match models.ask(task, [bundle, before], samples) {
            Ok(asked) => asked,
            // A tuner may have removed the old bundle; labels still come.
            Err(Refusal { why, .. }) => {
                warn!("model {}: not compared with the one before: {why}", bundle.dir().display());
                return Ok(());
            }
        };
        let (candidate, in_use) = (&own.outputs, &before.outputs);
        let trial = Trial { questions: &questions, bands, candidate, in_use };
        Ok(judge::check_promoted(&trial, RETURNED)?)
    }

    fn watched(
        &mut self,
        task: usize,
        candidate: Candidate,
        watched: Result<(), Refusal>,
        models: &mut dyn Models,
    ) -> Option<Candidate> {
        let dir = candidate.bundle.dir().to_owned();
        if let Err(Refusal { name, why }) = watched {
            let refusal = match models.back(task) {
                Ok(()) => Refusal::new("rolled_back", format!("{name}: {why}")),
                Err(failed) => Refusal::new(
                    "failed",
                    format!("{why}; it stays in use, because {}", failed.why),
                ),
            };
            self.refuse(task, &dir, &refusal);
            return None;
        }
        if candidate.flows < WATCHED_FLOWS && Instant::now() < candidate.until {
            return Some(Candidate { flows: candidate.flows + LOOK_FLOWS, ..candidate });
        }
        self.note(task, "kept", &dir, "it has held what it promised");
        None
    }

    /// An operator wants the model before the last promotion.
    pub fn back(&mut self, task: usize, models: &mut dyn Models) -> Result<String, Refusal> {
        models.back(task)?;
        self.candidates[task] = None;
        let (bundle, _) = models.in_use(task);
        self.note(task, "back", bundle.dir(), "in use again");
        self.show(task);
        Ok(format!("{}: in use again", bundle.dir().display()))
    }

    /// Notes a good outcome.
    fn note(&self, task: usize, outcome: &'static str, dir: &Path, how: &str) {
        info!("model {}: {outcome}: {how}", dir.display());
        self.state.update(|state| state.tasks[task].offers.count(outcome));
    }

    /// Notes a bad one.
    fn refuse(&self, task: usize, dir: &Path, refusal: &Refusal) {
        let Refusal { name, why } = refusal;
        warn!("model {}: {name}: {why}", dir.display());
        let why = format!("{}: {why}", dir.display());
        self.state.update(|state| {
            let offers = &mut state.tasks[task].offers;
            offers.count(name);
            offers.last_refusal = Some((name, why));
        });
    }

    fn show(&self, task: usize) {
        let stands = self.under_way(task);
        self.state.update(|state| state.tasks[task].offers.stands = stands);
    }
}

fn known<'a>(
    samples: impl Iterator<Item = &'a Sample>,
    target: &Target,
) -> (Vec<Sample>, Vec<Question>) {
    samples.filter_map(|it| Some((it.clone(), question(it, target)?))).unzip()
}

/// Labels by class; the last class is `unknown`.
fn mix(classes: impl Iterator<Item = u16>, bands: usize) -> Vec<usize> {
    let mut counts: HashMap<usize, usize> = HashMap::new();
    classes.for_each(|class| *counts.entry(usize::from(class).min(bands)).or_default() += 1);
    (0..=bands).map(|class| counts.get(&class).copied().unwrap_or(0)).collect()
}

/// Samples without an answer, and all.
fn late<'a>(samples: impl Iterator<Item = &'a Sample>) -> (usize, usize) {
    samples.fold((0, 0), |(late, all), it| (late + usize::from(it.answer.is_none()), all + 1))
}

fn in_words(figures: &Figures) -> String {
    let Figures { questions, flows, candidate, rivals, differs } = figures;
    let of = |rival: &(Rival, judge::Score)| {
        let (rival, score) = rival;
        format!("{} {:.3} and {:.3}", rival.name(), score.log_loss, score.merit)
    };
    format!(
        "on {questions} questions of {flows} flows log loss {:.3} and merit {:.3}; {}; differs by \
         {:.3} on average, {:.3} at least",
        candidate.log_loss,
        candidate.merit,
        rivals.iter().map(of).collect::<Vec<_>>().join("; "),
        differs[0],
        differs[1]
    )
}

#[cfg(test)]
mod tests;
