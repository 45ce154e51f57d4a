//! Everything that a new configuration changes in a running instance, prepared and ready to be
//! applied.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use accel::Bundle;
use config::Config;
use dataplane::Error;
use dataplane::bundle::{self, find_bundle, thresholds};
use dataplane::devices::for_model;
use dataplane::label_map;
use dataplane::pipelines::flow_settings;
use dataplane::swap::{Opening, Prepared, Previous, Refusal};
use dataplane::tasks::{OpenTask, actions};
use flowmgr::SeriesShare;
use packetio::{KernelEditions, KernelLabels};
use recording::Recorder;

use crate::rules::{Rules, Traffic};
use crate::run::kernel_labels::kernel_labels;
use crate::sinks::{self, Commit, Sinks};
use crate::weights;

/// A prepared change; parts that stay the same are `None` or empty.
pub struct Change {
    /// For the analytics workers, by task; `None`: the task stays as it is.
    pub prepared: Vec<Option<Prepared>>,
    /// For the kernel, where it labels flows.
    pub kernel: Option<KernelLabels>,
    pub flow: Option<flowmgr::Settings>,
    /// For the flow workers, other rules.
    pub rules: RulesChange,
    pub sinks: Vec<Commit>,
    pub log_level: Option<String>,
}

pub enum RulesChange {
    None,
    /// These, read again, replace them.
    To(Box<Rules>),
    /// Those come back that were last replaced.
    Back,
}

/// Which sessions the devices use after the change.
pub enum Sessions {
    /// Those that the configuration asks for; the ones in use where they already match.
    AsConfigured,
    /// By task, sessions that were in use before and are still warm; `None`: those in use.
    Again(Vec<Option<Previous>>),
}

/// What a change starts from. It is sent to a helper's thread, because opening a model may hang.
pub struct Base {
    /// One per task.
    pub openings: Vec<Opening>,
    pub now: Config,
    pub sinks: Arc<Sinks>,
    /// The task whose model is being opened.
    pub at: Arc<AtomicUsize>,
    /// Records the answers of new devices.
    pub recorder: Option<Recorder>,
    /// What the kernel labels flows by, if it does.
    pub kernel: Option<Arc<KernelEditions>>,
}

impl Base {
    /// The openings with the numbers of their tasks; notes which task it has come to.
    pub fn openings(&self) -> impl Iterator<Item = (usize, &Opening)> {
        let openings = self.openings.iter().enumerate();
        openings.inspect(|(number, _)| self.at.store(*number, Ordering::Relaxed))
    }

    /// Opens the sessions of a model, whose answers are recorded if the run is.
    pub fn open_sessions(
        &self,
        opening: &Opening,
        config: &Config,
        bundle: Arc<Bundle>,
    ) -> Result<Prepared, Refusal> {
        let mut prepared = opening.prepare(config, bundle)?;
        if let Some(recorder) = &self.recorder {
            let accelerators = prepared.accelerators_mut().iter_mut();
            accelerators.for_each(|accelerators| recorder.wrap(accelerators));
        }
        Ok(prepared)
    }
}

impl Change {
    /// Prepares the change from the configuration in use to `next`. Opens, tests and warms what is
    /// new, and applies nothing yet.
    pub fn prepare(base: &Base, next: &Config, sessions: Sessions) -> Result<Change, Refusal> {
        let (is_undone, mut before) = match sessions {
            Sessions::AsConfigured => (false, Vec::new()),
            Sessions::Again(before) => (true, before),
        };
        before.resize_with(base.openings.len(), || None);
        let mut prepared = Vec::new();
        for ((number, opening), before) in base.openings().zip(before) {
            let (now, next) = (base.now.of_task(number), next.of_task(number));
            let task = match before {
                Some(before) => again(base, opening, &next, before)?,
                None if is_undone => opening.keep(&next),
                None => as_configured(base, opening, &now, &next)?,
            };
            prepared.push(Some(task));
        }
        let mut change = Change::around(prepared, base, next)?;
        change.rules = match is_undone {
            // Their file may be another by now.
            true => RulesChange::Back,
            false => {
                let tasks = 0..base.openings.len();
                let labels = tasks.map(|task| bundle::labels(&change.bundle_of(base, task)));
                let labels: Vec<_> = labels.collect();
                RulesChange::To(Box::new(Rules::load(next, &labels, Traffic::Live)?))
            }
        };
        Ok(change)
    }

    /// Prepares a swap of one task to the model of another bundle; everything else stays.
    pub fn model(base: &Base, task: usize, dir: &Path) -> Result<Change, Refusal> {
        let (opening, now) = (&base.openings[task], base.now.of_task(task));
        let bundle = opening.open(&now, dir)?;
        let prepared = base.open_sessions(opening, &now, bundle)?;
        Ok(Change::of_task(base, task, prepared)?)
    }

    /// One task changes; everything else stays.
    pub fn of_task(base: &Base, task: usize, change: Prepared) -> Result<Change, Error> {
        let mut prepared: Vec<Option<Prepared>> = base.openings.iter().map(|_| None).collect();
        prepared[task] = Some(change);
        Change::around(prepared, base, &base.now)
    }

    /// Prepares the return of one task to a model that was in use before, with its sessions if they
    /// can work again.
    pub fn back(base: &Base, task: usize, before: Previous) -> Result<Change, Refusal> {
        let prepared = again(base, &base.openings[task], &base.now.of_task(task), before)?;
        Ok(Change::of_task(base, task, prepared)?)
    }

    /// Whether devices are replaced, for another model or the same one.
    pub fn has_model(&self) -> bool {
        let tasks = self.prepared.iter().flatten();
        tasks.into_iter().any(Prepared::has_model)
    }

    pub fn bundle_of(&self, base: &Base, task: usize) -> Arc<Bundle> {
        let prepared = self.prepared[task].as_ref().map(Prepared::bundle);
        prepared.unwrap_or(base.openings[task].bundle()).clone()
    }

    fn around(
        prepared: Vec<Option<Prepared>>,
        base: &Base,
        next: &Config,
    ) -> Result<Change, Error> {
        let now = &base.now;
        weights::check_change(now, next)?;
        let mut change = Change {
            prepared,
            kernel: None,
            flow: None,
            rules: RulesChange::None,
            sinks: base.sinks.prepare(now, next)?,
            log_level: changed(now, next, |config| Ok(config.log.level.clone()))?,
        };
        for number in 0..base.openings.len() {
            let bundle = change.bundle_of(base, number);
            let [now, next] = [now, next].map(|config| config.of_task(number));
            check_labels(&next, &bundle, number)?;
            let task = change.prepared[number].take();
            let task = task.map(|task| task.with_settings(&now, &next));
            change.prepared[number] = task.transpose()?;
        }
        let bundles = (0..base.openings.len()).map(|task| change.bundle_of(base, task));
        let bundles: Vec<_> = bundles.collect();
        let labels: Vec<_> = bundles.iter().map(|bundle| bundle::labels(bundle)).collect();
        sinks::check_labels(next, &labels)?;
        change.flow = changed(now, next, |config| flow(config, &bundles))?;
        if let Some(editions) = &base.kernel {
            let has_model = change.prepared[0].as_ref().is_some_and(Prepared::has_model);
            change.kernel = for_kernel(base, editions, next, &bundles, has_model)?;
        }
        Ok(change)
    }
}

/// What the kernel labels flows by from now on, if that changes with the model or without.
///
/// # Errors
/// It cannot, or its program is loaded for something else.
fn for_kernel(
    base: &Base,
    editions: &KernelEditions,
    next: &Config,
    bundles: &[Arc<Bundle>],
    has_model: bool,
) -> Result<Option<KernelLabels>, Error> {
    let of = |config: &Config, bundles: &mut dyn Iterator<Item = &Arc<Bundle>>| {
        let bundles: Vec<Bundle> = bundles.map(|it| (**it).clone()).collect();
        kernel_labels(config, &OpenTask::all_of(config, &bundles), SeriesShare::NONE)
    };
    let refused = |why: &dyn Display| {
        Error::Config(format!("io.capture = \"kernel\": {why}; restart fenxi to change that"))
    };
    let labels = of(next, &mut bundles.iter()).map_err(|why| refused(&why))?;
    let now = &mut base.openings.iter().map(Opening::bundle);
    if !has_model && of(&base.now, now).as_ref() == Ok(&labels) {
        return Ok(None);
    }
    if !base.openings[0].is_inline() {
        return Err(refused(&"analytics managers, which answer some flows, may change earlier"));
    }
    editions.check(&labels).map_err(|why| refused(&why))?;
    Ok(Some(labels))
}

/// Checks that the model of the task of this number has all labels that the configuration of that
/// task names; of the first task also that something is done about one of them.
pub fn check_labels(config: &Config, bundle: &Bundle, number: usize) -> Result<(), Error> {
    if number > 0 {
        return thresholds(config, bundle).map(drop);
    }
    let sinks_act = sinks::places(config).next().is_some();
    label_map::check_labels(config, bundle, sinks_act).map(drop)
}

/// What `of` makes of the next configuration, if that differs from what it makes of the current
/// one.
fn changed<T: PartialEq>(
    now: &Config,
    next: &Config,
    of: impl Fn(&Config) -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    let (now, next) = (of(now)?, of(next)?);
    Ok((now != next).then_some(next))
}

/// The settings of the flow managers; the bundles are in the order of the tasks.
pub fn flow(config: &Config, bundles: &[Arc<Bundle>]) -> Result<flowmgr::Settings, Error> {
    let actions = actions(config, bundles.iter().map(|bundle| &**bundle))?;
    Ok(flow_settings(config, actions))
}

/// A model that was in use before, with its sessions if they can work again.
fn again(
    base: &Base,
    opening: &Opening,
    config: &Config,
    before: Previous,
) -> Result<Prepared, Refusal> {
    let bundle = before.bundle().clone();
    let mut again = match opening.again(config, before) {
        Some(again) => again,
        None => base.open_sessions(opening, config, bundle)?,
    };
    again.is_return = true;
    Ok(again)
}

/// The sessions that `next` asks for. Those in use stay if they match: opening a session can take
/// long, and the cache's content is lost with the old sessions.
fn as_configured(
    base: &Base,
    opening: &Opening,
    now: &Config,
    next: &Config,
) -> Result<Prepared, Refusal> {
    let dir = find_bundle(next, None)?;
    let bundle = opening.open(next, &dir)?;
    match wants_sessions(now, next, opening.bundle(), &bundle)? {
        true => base.open_sessions(opening, next, bundle),
        false => Ok(opening.keep(next)),
    }
}

/// Whether `next` asks for other sessions than those in use, which run the model `before`.
pub fn wants_sessions(
    now: &Config,
    next: &Config,
    before: &Bundle,
    bundle: &Bundle,
) -> Result<bool, Error> {
    let plans = |config: &Config| config.analytics.name.has_goal();
    let devices = |config: &Config, bundle| for_model(config.clone(), bundle).accel.devices;
    Ok(before != bundle
        || devices(now, before) != devices(next, bundle)
        || thresholds(now, bundle)? != thresholds(next, bundle)?
        // The policy plans by a profile, which is measured when a session is opened.
        || (plans(next) && !plans(now)))
}
