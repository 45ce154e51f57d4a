//! The stages of a candidate that has been judged: in shadow, as a canary, and in use and watched.

use std::collections::HashMap;
use std::time::Instant;

use analytics::CANARY_ONE_IN;
use tracing::warn;

use super::super::held::{HeldSample, KEPT};
use super::super::judge::{self, Refused, Trial};
use super::{
    CANARY_FLOWS, CANARY_FLOWS_LEAST, CANARY_LOOK_FLOWS, Candidate, LOOK_FLOWS, Models, Offers,
    RETURNED, Refusal, SHADOWED, STAGE_WITHIN, WATCHED_FLOWS, in_words,
};

/// What a candidate does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Shadow,
    /// It answers a share of new flows, under this generation.
    Canary(u16),
    /// It is in use and watched.
    Watched,
}

/// What was seen in shadow.
#[derive(Default)]
pub struct Expected {
    /// Labels by class that the candidate would have given.
    mix: Vec<usize>,
    /// Questions without an answer from the model in use, and all.
    late: (usize, usize),
}

impl Offers {
    /// What becomes of a candidate; `None` once it has come to its end.
    pub(super) fn go_on(
        &mut self,
        task: usize,
        candidate: Candidate,
        models: &mut dyn Models,
    ) -> Option<Candidate> {
        let is_there = match candidate.stage {
            Stage::Canary(generation) => models.canary(task) == Some(generation),
            Stage::Shadow | Stage::Watched => true,
        };
        if models.in_use(task).1 != candidate.generation || !is_there {
            let why = "another model came";
            self.refuse(task, candidate.bundle.dir(), &Refusal::new("overtaken", why));
            return None;
        }
        if let Stage::Canary(_) = candidate.stage
            && let Some(why) = models.canary_failure(task)
        {
            self.withdraw(task, &candidate, Refusal::new("failures", why), models);
            return None;
        }
        let (seen, is_over) = (self.seen(task, &candidate), self.is_over(task, &candidate));
        if seen < candidate.flows && !is_over {
            return Some(candidate);
        }
        match candidate.stage {
            Stage::Shadow => self.after_shadow(task, candidate, models),
            Stage::Canary(generation) => {
                let is_last = is_over || seen >= CANARY_FLOWS;
                let confidence = if is_last { SHADOWED } else { RETURNED };
                let looked = self.watch(task, &candidate, generation, confidence, models);
                let looked = looked.and_then(|()| match is_last && seen < CANARY_FLOWS_LEAST {
                    true => Err(Refused::FewAnswers(seen, CANARY_FLOWS_LEAST).into()),
                    false => Ok(is_last),
                });
                self.after_look(task, candidate, looked, models)
            }
            Stage::Watched => {
                let is_last = is_over || seen >= WATCHED_FLOWS;
                let watched = self.watch(task, &candidate, candidate.generation, RETURNED, models);
                self.watched(task, candidate, watched.map(|()| is_last), models)
            }
        }
    }

    /// Flows of a candidate's stage: that have ended, or that a canary has answered.
    pub(super) fn seen(&self, task: usize, candidate: &Candidate) -> usize {
        let from = candidate.from;
        self.held.with(|held| match candidate.stage {
            Stage::Canary(generation) => held.flows_by(task, from, generation),
            Stage::Shadow | Stage::Watched => held.flows_since(task, from),
        })
    }

    /// Whether a stage ends, whatever it has seen. A canary that hardly answers would otherwise
    /// stay for long.
    fn is_over(&self, task: usize, candidate: &Candidate) -> bool {
        let pushed = self.held.with(|held| held.pushed(task)) - candidate.from;
        let is_canary = matches!(candidate.stage, Stage::Canary(_));
        Instant::now() >= candidate.until || is_canary && pushed >= KEPT as u64
    }

    /// A candidate at the beginning of another stage.
    fn enter(&self, task: usize, stage: Stage, flows: usize, candidate: Candidate) -> Candidate {
        let from = self.held.with(|held| held.pushed(task));
        Candidate { stage, flows, from, until: Instant::now() + STAGE_WITHIN, ..candidate }
    }

    fn after_shadow(
        &mut self,
        task: usize,
        mut candidate: Candidate,
        models: &mut dyn Models,
    ) -> Option<Candidate> {
        let judged = self.judge(task, &candidate, candidate.from, SHADOWED, models);
        let begun = judged.and_then(|(asked, figures)| {
            candidate.expected = self.held.with(|held| Expected {
                mix: mix(asked.classes.iter().copied(), candidate.bundle.labels().len()),
                late: late(held.since(task, candidate.from)),
            });
            Ok((models.begin_canary(task, &candidate.bundle)?, in_words(&figures)))
        });
        match begun {
            Ok((Some(generation), figures)) => {
                let how = format!(
                    "in shadow {figures}; it answers one new flow in {CANARY_ONE_IN}, as \
                     generation {generation}"
                );
                self.note(task, "canary", candidate.bundle.dir(), &how);
                Some(self.enter(task, Stage::Canary(generation), CANARY_LOOK_FLOWS, candidate))
            }
            Ok((None, figures)) => {
                self.promote(task, candidate, &format!("in shadow {figures}"), models)
            }
            Err(refusal) => {
                self.refuse(task, candidate.bundle.dir(), &refusal);
                None
            }
        }
    }

    /// What becomes of a canary, and whether this look was the last.
    fn after_look(
        &mut self,
        task: usize,
        candidate: Candidate,
        looked: Result<bool, Refusal>,
        models: &mut dyn Models,
    ) -> Option<Candidate> {
        match looked {
            Ok(true) => {
                let seen = self.seen(task, &candidate);
                let how = format!("it has answered {seen} held-out flows as expected");
                self.promote(task, candidate, &how, models)
            }
            Ok(false) => {
                Some(Candidate { flows: candidate.flows + CANARY_LOOK_FLOWS, ..candidate })
            }
            Err(refusal) => {
                self.withdraw(task, &candidate, refusal, models);
                None
            }
        }
    }

    fn promote(
        &mut self,
        task: usize,
        candidate: Candidate,
        how: &str,
        models: &mut dyn Models,
    ) -> Option<Candidate> {
        match models.promote(task, &candidate.bundle) {
            Ok(()) => {
                self.note(task, "promoted", candidate.bundle.dir(), how);
                let generation = models.in_use(task).1;
                let candidate = Candidate { generation, ..candidate };
                Some(self.enter(task, Stage::Watched, LOOK_FLOWS, candidate))
            }
            Err(refusal) => {
                self.withdraw(task, &candidate, refusal, models);
                None
            }
        }
    }

    /// Refuses a candidate, and takes it away where it is a canary.
    fn withdraw(
        &self,
        task: usize,
        candidate: &Candidate,
        refusal: Refusal,
        models: &mut dyn Models,
    ) {
        let Refusal { name, why } = &refusal;
        let refusal = match (candidate.stage, models.withdraw(task)) {
            (_, Err(failed)) => {
                let why = format!("{why}; it goes on to answer flows, because {}", failed.why);
                Refusal::new("failed", why)
            }
            (Stage::Canary(_), Ok(())) => Refusal::new("withdrawn", format!("{name}: {why}")),
            (_, Ok(())) => refusal,
        };
        self.refuse(task, candidate.bundle.dir(), &refusal);
    }

    /// Whether a candidate that answers flows, under generation `by`, still does what it did in
    /// shadow, and the other model isn't shown to be better.
    fn watch(
        &self,
        task: usize,
        candidate: &Candidate,
        by: u16,
        confidence: f64,
        models: &mut dyn Models,
    ) -> Result<(), Refusal> {
        let Candidate { bundle, before, from, expected, .. } = candidate;
        let labels = bundle.labels().len();
        let late = self.held.with(|held| late(held.since(task, *from)));
        judge::check_late(late, expected.late)?;
        let (samples, questions) = match self.known(task, *from, bundle) {
            // No teacher has said anything against it.
            Err(Refusal { name: "no_truth", .. }) if candidate.stage == Stage::Watched => {
                return Ok(());
            }
            known => known?,
        };
        let answers: Vec<_> = samples.iter().map(|it| it.answer).collect();
        // As in shadow, of flows whose truth is known.
        let own = answers.iter().flatten().filter(|it| it.model == by).map(|it| it.class);
        judge::check_mix(&mix(own, labels), &expected.mix)?;
        let [own, other] = match models.ask(task, [bundle, before], samples) {
            Ok(asked) => asked,
            // A tuner may have removed the old bundle; labels still come.
            Err(Refusal { why, .. }) if candidate.stage == Stage::Watched => {
                warn!("model {}: not compared with the one before: {why}", bundle.dir().display());
                return Ok(());
            }
            Err(refusal) => return Err(refusal),
        };
        if let Stage::Canary(_) = candidate.stage {
            let both = answers.into_iter().flatten().zip(&own.classes);
            let own = both.filter(|(answer, _)| answer.model == by);
            let count = own.fold((0, 0), |(others, all), (answer, class)| {
                (others + usize::from(answer.class != *class), all + 1)
            });
            judge::check_others(count)?;
        }
        let (candidate, in_use) = (&own, &other);
        let classes = bundle.shape().classes;
        let trial = Trial { questions: &questions, classes, candidate, in_use };
        Ok(judge::check_answering(&trial, confidence)?)
    }

    /// What becomes of a promoted model, and whether this look was the last.
    fn watched(
        &mut self,
        task: usize,
        candidate: Candidate,
        watched: Result<bool, Refusal>,
        models: &mut dyn Models,
    ) -> Option<Candidate> {
        let dir = candidate.bundle.dir().to_owned();
        match watched {
            Ok(true) => {
                self.note(task, "kept", &dir, "it has held what it promised");
                self.keep(task, candidate);
                None
            }
            Ok(false) => Some(Candidate { flows: candidate.flows + LOOK_FLOWS, ..candidate }),
            Err(Refusal { name, why }) => {
                let refusal = match models.back(task) {
                    Ok(()) => {
                        self.is_back(task, models);
                        Refusal::new("rolled_back", format!("{name}: {why}"))
                    }
                    Err(failed) => {
                        let why = format!("{why}; it stays in use, because {}", failed.why);
                        Refusal::new("failed", why)
                    }
                };
                self.refuse(task, &dir, &refusal);
                None
            }
        }
    }
}

/// Labels by class; the last class is `unknown`.
fn mix(classes: impl Iterator<Item = u16>, labels: usize) -> Vec<usize> {
    let mut counts: HashMap<usize, usize> = HashMap::new();
    classes.for_each(|class| *counts.entry(usize::from(class).min(labels)).or_default() += 1);
    (0..=labels).map(|class| counts.get(&class).copied().unwrap_or(0)).collect()
}

/// Samples without an answer, and all.
fn late<'a>(samples: impl Iterator<Item = &'a HeldSample>) -> (usize, usize) {
    let is_late = |it: &HeldSample| usize::from(it.sample.answer.is_none());
    samples.fold((0, 0), |(late, all), it| (late + is_late(it), all + 1))
}
