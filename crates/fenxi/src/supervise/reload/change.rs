//! What another configuration comes to: everything that live keys reach, made and ready to be brought into use.

use std::path::Path;
use std::sync::Arc;

use accel::Bundle;
use config::Config;
use config::checked::BatchPolicy;
use dataplane::Error;
use dataplane::bundle::{dscp_by_class, find_bundle};
use dataplane::devices::thresholds;
use dataplane::pipelines::flow_settings;
use dataplane::swap::{Opening, Prepared, Previous, Refusal};

use crate::sinks::{self, Commit, Sinks};

/// What is to be brought into use; nothing where nothing changes.
pub struct Change {
    /// For the analytics threads.
    pub prepared: Prepared,
    /// For the flow managers.
    pub flow: Option<flowmgr::Settings>,
    /// For the sinks.
    pub sinks: Vec<Commit>,
    /// For the log.
    pub log_level: Option<String>,
}

/// Which sessions the devices are to have.
pub enum Sessions {
    /// As the configuration says: those in use, unless it wants others.
    AsConfigured,
    /// These, which were in use before.
    Again(Previous),
    /// Those in use.
    AsTheyAre,
}

/// What a change begins with, for the thread of a helper: to open a model may take for ever.
pub struct Base {
    pub opening: Opening,
    /// What the run works by.
    pub now: Config,
    pub sinks: Arc<Sinks>,
}

impl Change {
    /// From what the run works by to `next`. Opens, tests and warms what is new, and changes nothing yet.
    ///
    /// # Errors
    /// Something cannot be used, or does not fit.
    pub fn prepare(base: &Base, next: &Config, sessions: Sessions) -> Result<Change, Refusal> {
        let Base { opening, now, .. } = base;
        let is_return = matches!(sessions, Sessions::Again(_));
        let at_hand = match sessions {
            Sessions::AsConfigured => None,
            Sessions::Again(before) => opening.again(next, before),
            Sessions::AsTheyAre => Some(opening.keep(next)),
        };
        let mut prepared = match at_hand {
            Some(prepared) => prepared,
            None => as_configured(opening, now, next)?,
        };
        prepared.is_return = is_return;
        Ok(Change::around(prepared, base, next)?)
    }

    /// The model of another bundle, and nothing else.
    ///
    /// # Errors
    /// As above.
    pub fn model(base: &Base, dir: &Path) -> Result<Change, Refusal> {
        let Base { opening, now, .. } = base;
        let bundle = opening.open(now, dir)?;
        Ok(Change::around(opening.prepare(now, bundle)?, base, now)?)
    }

    fn around(prepared: Prepared, base: &Base, next: &Config) -> Result<Change, Error> {
        let now = &base.now;
        let bundle = prepared.bundle().clone();
        Ok(Change {
            prepared: prepared.with_settings(now, next)?,
            flow: changed(now, next, |config| flow(config, &bundle))?,
            sinks: base.sinks.prepare(now, next)?,
            log_level: changed(now, next, |config| Ok(config.log.level.clone()))?,
        })
    }
}

/// Labels that `config` names and the model lacks.
///
/// # Errors
/// The first of them.
pub fn check_labels(config: &Config, bundle: &Bundle, classes: &[String]) -> Result<(), Error> {
    flow(config, bundle)?;
    sinks::check_labels(config, classes)?;
    thresholds(config, bundle).map(drop)
}

/// What `of` makes of the next configuration, where it is something else than of the one now.
fn changed<T: PartialEq>(
    now: &Config,
    next: &Config,
    of: impl Fn(&Config) -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    let (now, next) = (of(now)?, of(next)?);
    Ok((now != next).then_some(next))
}

/// What flow managers make of it.
pub fn flow(config: &Config, bundle: &Bundle) -> Result<flowmgr::Settings, Error> {
    Ok(flow_settings(config, dscp_by_class(config, bundle)?))
}

/// The sessions that `next` asks for. Those in use stay where it asks for nothing else: to open a session can take long,
/// and what the cache knows is lost with the old ones.
fn as_configured(opening: &Opening, now: &Config, next: &Config) -> Result<Prepared, Refusal> {
    let dir = find_bundle(next, None)?;
    let bundle = opening.open(next, &dir)?;
    match wants_sessions(now, next, opening.bundle(), &bundle)? {
        true => opening.prepare(next, bundle),
        false => Ok(opening.keep(next)),
    }
}

/// Whether the sessions in use, which have the model `before`, are not those that `next` asks for.
pub fn wants_sessions(
    now: &Config,
    next: &Config,
    before: &Bundle,
    bundle: &Bundle,
) -> Result<bool, Error> {
    let plans = |config: &Config| matches!(config.analytics.policy, BatchPolicy::Slo { .. });
    Ok(before != bundle
        || now.accel.devices != next.accel.devices
        || thresholds(now, bundle)? != thresholds(next, bundle)?
        // The policy plans by a profile, which is measured when a session is opened.
        || (plans(next) && !plans(now)))
}
