//! A candidate's way from the offer to its use, and back where it disappoints.
//!
//! 1. **Offered.** Its bundle is whole, signed if it has to be, means the same as the model in use,
//!    and gives its golden outputs; its training has settled. It is judged ([`super::judge`]) on
//!    the samples held.
//! 2. **In shadow.** It is judged again on flows that ended after the offer, with less confidence
//!    since they are fewer. A tuner that offers until one candidate is lucky fails here.
//! 3. **A canary.** It answers a share of new flows ([`analytics::CANARY_ONE_IN`]), each at all its
//!    depths, while the model in use answers the others. A device that fails, late labels, another
//!    mix of labels than in shadow, labels that it does not give when it is asked again, or a model
//!    in use that is shown to be better have it withdrawn. Where the kernel labels flows there is
//!    no canary.
//! 4. **Promoted.** The canary comes into use. The sessions before are kept.
//! 5. **Watched.** A lower score than the model before on new flows, late labels, or another mix of
//!    labels than in shadow roll it back. Otherwise it is kept, and `fenxi ctl model back` still
//!    brings the model before back.
//! 6. **Kept.** It is compared on new flows, now and then, with the model that the operator chose
//!    and with the tables. Once one of them is better, the operator's model comes back ([`kept`]).
//!
//! Where the classes are no bands, flows count once a teacher has told their truth
//! ([`Offers::tell`]), and all stages wait for that.
//!
//! The shadow costs the data path nothing: samples carry their series, so the candidate answers
//! them when their truth is known.

mod kept;
mod stages;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use accel::Bundle;
use dataplane::bundle::{OUTLIERS, classes, target};
use dataplane::state::SharedState;
use flowmgr::record::Sample;
use tracing::{info, warn};

use super::held::{HeldSample, SharedHeld, question, told_question};
use super::judge::{self, Figures, Outputs, Question, Rival, Trial};
use super::refusal::Refusal;
use super::signature::Key;
use console::protocol::FlowTruth;
use kept::Promoted;
use stages::{Expected, Stage};

/// Confidence of the judgement on the samples held.
const JUDGED: f64 = 0.99;

/// Confidence of the judgement in shadow, and with which the model in use must be better for a
/// canary to be withdrawn at the end.
const SHADOWED: f64 = 0.80;

/// Confidence with which a candidate that answers flows must be worse to be taken away at one of
/// several looks.
const RETURNED: f64 = 0.99;

/// Flows that a candidate stays in shadow for.
const SHADOW_FLOWS: usize = 300;

/// Held-out flows that a canary answers before it is promoted, after how many it is looked at each
/// time, and how many it must have answered where its stage ends for another reason.
const CANARY_FLOWS: usize = 60;
const CANARY_LOOK_FLOWS: usize = 20;
const CANARY_FLOWS_LEAST: usize = 30;

/// Flows that a promoted model is watched for, and after how many it is looked at each time.
const WATCHED_FLOWS: usize = 500;
const LOOK_FLOWS: usize = 100;

/// How long each stage may last.
const STAGE_WITHIN: Duration = Duration::from_secs(3600);

/// All outcomes, good ones first.
pub const OUTCOMES: [&str; 28] = [
    "judged",
    "canary",
    "promoted",
    "kept",
    "back",
    "withdrawn",
    "rolled_back",
    "fallen_back",
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
    "low_lift",
    "counter",
    "servers",
    "ports",
];

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
    ) -> Result<[Outputs; 2], Refusal>;

    /// Lets a model answer a share of new flows. Returns its generation; `None`: there can be no
    /// canary here.
    fn begin_canary(&mut self, task: usize, bundle: &Arc<Bundle>) -> Result<Option<u16>, Refusal>;

    /// The generation of the canary.
    fn canary(&self, task: usize) -> Option<u16>;

    /// Why a device of the canary has failed, if one has.
    fn canary_failure(&mut self, task: usize) -> Option<String>;

    /// Takes the canary away, if there is one.
    fn withdraw(&mut self, task: usize) -> Result<(), Refusal>;

    /// Brings the canary, or else this model, into use, and keeps the one before.
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
    /// By task; the last that was kept, while it is in use.
    promoted: Vec<Option<Promoted>>,
}

struct Candidate {
    bundle: Arc<Bundle>,
    /// The model that it replaces.
    before: Arc<Bundle>,
    /// The model that the operator chose.
    chosen: Arc<Bundle>,
    stage: Stage,
    expected: Expected,
    /// Generation of the model that is to be in use during this stage.
    generation: u16,
    /// Number of the first sample of this stage.
    from: u64,
    /// Flows after which it is looked at.
    flows: usize,
    until: Instant,
}

impl Offers {
    /// None yet; with a key, only what it signed is taken.
    pub fn new(held: SharedHeld, key: Option<Key>, state: Arc<SharedState>) -> Offers {
        let tasks = state.get().tasks.len();
        let candidates = (0..tasks).map(|_| None).collect();
        let promoted = (0..tasks).map(|_| None).collect();
        Offers { held, key, state, candidates, promoted }
    }

    /// Whether a model is looked at, so that [`Offers::turn`] is due now and then.
    pub fn have_work(&self) -> bool {
        self.candidates.iter().any(Option::is_some) || self.promoted.iter().any(Option::is_some)
    }

    /// The candidate of a task, in words.
    pub fn under_way(&self, task: usize) -> Option<String> {
        let candidate = self.candidates[task].as_ref()?;
        let (stage, of) = match candidate.stage {
            Stage::Shadow => ("in shadow,", candidate.flows),
            Stage::Canary(_) => ("a canary, has answered", CANARY_FLOWS),
            Stage::Watched => ("in use and watched,", WATCHED_FLOWS),
        };
        let seen = self.seen(task, candidate).min(of);
        Some(format!("{}: {stage} {seen} of {of} flows", candidate.bundle.dir().display()))
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
        if bundle.shape().classes != before.shape().classes {
            let why = "it or the model in use has a column unknown, and the other has not";
            return Err(Refusal::new("meaning", why));
        }
        judge::check_claims(bundle.learned(), before.learned())?;
        let from = self.held.with(|held| held.pushed(task));
        let candidate = Candidate {
            bundle,
            chosen: self.chosen(task, &before, generation),
            before,
            stage: Stage::Shadow,
            expected: Expected::default(),
            generation,
            from,
            flows: SHADOW_FLOWS,
            until: Instant::now() + STAGE_WITHIN,
        };
        let (_, figures) = self.judge(task, &candidate, 0, JUDGED, models)?;
        self.candidates[task] = Some(candidate);
        Ok(in_words(&figures))
    }

    /// Takes what a teacher says of flows, by class: bands tell themselves. Returns in words what
    /// became of it.
    pub fn tell(
        &self,
        task: usize,
        flows: &[FlowTruth],
        models: &dyn Models,
    ) -> Result<String, &'static str> {
        let (bundle, _) = models.in_use(task);
        if bundle.target().is_some() {
            return Err("its labels are bands: flows tell the truth when they end");
        }
        let names = &classes(&bundle)[..bundle.shape().classes];
        let class_called = |label: &str| names.iter().position(|name| name == label);
        let outlier = OUTLIERS.iter().find_map(|label| class_called(label));
        let (mut by_flow, mut strange) = (HashMap::new(), Vec::new());
        for FlowTruth { proto, src_port, dst_port, first_us, label } in flows {
            let class = class_called(label);
            strange.extend(class.is_none().then_some(label));
            if let Some(class) = class.or(outlier) {
                by_flow.insert((*proto, [*src_port, *dst_port], *first_us), class as u16);
            }
        }
        let (told, waiting) =
            self.held.with(|held| (held.tell(task, &by_flow), held.flows_waiting(task)));
        let unheld = by_flow.len().saturating_sub(told);
        self.state.update(|state| {
            let counts = [told, unheld, strange.len()].map(|it| it as u64);
            let truths = state.tasks[task].offers.truths.iter_mut();
            truths.zip(counts).for_each(|(sum, count)| *sum += count);
        });
        let mut said = format!(
            "the truth of {told} held-out flows is taken, {waiting} wait for it; {unheld} others \
             are not held out, gone, or told before"
        );
        if let Some(label) = strange.first() {
            let fate = match outlier {
                Some(outlier) => format!("count as {}", names[outlier]),
                None => "are left out".to_owned(),
            };
            let count = strange.len();
            said += &format!(
                "; {count} with labels that the model does not have, such as {label}, {fate}"
            );
        }
        Ok(said)
    }

    /// Judges a candidate on the samples from this number on.
    fn judge(
        &self,
        task: usize,
        candidate: &Candidate,
        from: u64,
        confidence: f64,
        models: &mut dyn Models,
    ) -> Result<(Outputs, Figures), Refusal> {
        let Candidate { bundle, before, .. } = candidate;
        let (samples, questions) = self.known(task, from, bundle)?;
        let [own, in_use] = models.ask(task, [bundle, before], samples)?;
        let trial = Trial {
            questions: &questions,
            classes: bundle.shape().classes,
            candidate: &own,
            in_use: &in_use,
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
        let target = target(bundle);
        let known: (Vec<_>, Vec<_>) = self.held.with(|held| {
            let known = held.since(task, from).filter_map(|HeldSample { sample, told }| {
                let question = match &target {
                    Some(target) => question(sample, target),
                    None => told_question(sample, (*told)?, bundle),
                };
                Some((sample.clone(), question?))
            });
            known.unzip()
        });
        match &known {
            (samples, _) if samples.is_empty() && target.is_none() => {
                let why = "its labels are no bands, so no flow tells the truth, and no teacher \
                    has: give labels by `fenxi ctl model truth`, or use `fenxi ctl model load`";
                Err(Refusal::new("no_truth", why))
            }
            _ => Ok(known),
        }
    }

    /// Looks at all candidates, and models that were kept, that are due.
    pub fn turn(&mut self, models: &mut dyn Models) {
        for task in 0..self.candidates.len() {
            let Some(candidate) = self.candidates[task].take() else {
                self.look_at_promoted(task, models);
                continue;
            };
            self.candidates[task] = self.go_on(task, candidate, models);
            self.show(task);
        }
    }

    /// An operator wants the model before the last promotion, or no canary.
    pub fn back(&mut self, task: usize, models: &mut dyn Models) -> Result<String, Refusal> {
        if let Some(Candidate { stage: Stage::Canary(_), bundle, .. }) = &self.candidates[task] {
            models.withdraw(task)?;
            self.refuse(task, bundle.dir(), &Refusal::new("withdrawn", "back: by command"));
            let done = format!("{}: no canary any more", bundle.dir().display());
            self.candidates[task] = None;
            self.show(task);
            return Ok(done);
        }
        models.back(task)?;
        self.candidates[task] = None;
        // The operator chooses the one that comes back.
        self.promoted[task] = None;
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
