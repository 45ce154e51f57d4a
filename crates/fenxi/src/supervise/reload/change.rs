//! Everything that a new configuration changes in a running instance, prepared and ready to be applied.

use std::path::Path;
use std::sync::Arc;

use accel::Bundle;
use config::Config;
use dataplane::Error;
use dataplane::bundle::{self, dscp_by_class, find_bundle};
use dataplane::devices::thresholds;
use dataplane::pipelines::flow_settings;
use dataplane::swap::{Opening, Prepared, Previous, Refusal};

use crate::rules::{Rules, Traffic};
use crate::sinks::{self, Commit, Sinks};

/// A prepared change; parts that stay the same are `None` or empty.
pub struct Change {
    /// For the analytics workers.
    pub prepared: Prepared,
    /// For the flow workers.
    pub flow: Option<flowmgr::Settings>,
    /// For the flow workers, other rules.
    pub rules: RulesChange,
    /// For the sinks.
    pub sinks: Vec<Commit>,
    /// For the log.
    pub log_level: Option<String>,
}

/// What becomes of the rules.
pub enum RulesChange {
    /// They stay.
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
    /// These sessions, which were in use before and are still warm.
    Again(Previous),
    /// The sessions in use.
    AsTheyAre,
}

/// What a change starts from. It is sent to a helper's thread, because opening a model may hang.
pub struct Base {
    pub opening: Opening,
    /// The configuration in use.
    pub now: Config,
    pub sinks: Arc<Sinks>,
}

impl Change {
    /// Prepares the change from the configuration in use to `next`. Opens, tests and warms what is new, and applies nothing
    /// yet.
    ///
    /// # Errors
    /// Something cannot be used, or does not fit.
    pub fn prepare(base: &Base, next: &Config, sessions: Sessions) -> Result<Change, Refusal> {
        let Base { opening, now, .. } = base;
        let is_return = matches!(sessions, Sessions::Again(_));
        let is_undone = !matches!(sessions, Sessions::AsConfigured);
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
        let mut change = Change::around(prepared, base, next)?;
        change.rules = match is_undone {
            // Their file may be another by now.
            true => RulesChange::Back,
            false => {
                let labels = bundle::labels(change.prepared.bundle());
                RulesChange::To(Box::new(Rules::load(next, &labels, Traffic::Live)?))
            }
        };
        Ok(change)
    }

    /// Prepares a swap to the model of another bundle; everything else stays.
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
        check_labels(next, &bundle)?;
        Ok(Change {
            prepared: prepared.with_settings(now, next)?,
            flow: changed(now, next, |config| flow(config, &bundle))?,
            rules: RulesChange::None,
            sinks: base.sinks.prepare(now, next)?,
            log_level: changed(now, next, |config| Ok(config.log.level.clone()))?,
        })
    }
}

/// Checks that the model has all labels that `config` names, and that something is done about one of them.
///
/// # Errors
/// The first label that it does not have, or that nothing is done.
pub fn check_labels(config: &Config, bundle: &Bundle) -> Result<(), Error> {
    bundle::check_labels(config, bundle)?;
    sinks::check_labels(config, &bundle::labels(bundle))
}

/// What `of` makes of the next configuration, if that differs from what it makes of the current one.
fn changed<T: PartialEq>(
    now: &Config,
    next: &Config,
    of: impl Fn(&Config) -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    let (now, next) = (of(now)?, of(next)?);
    Ok((now != next).then_some(next))
}

/// The settings of the flow managers.
pub fn flow(config: &Config, bundle: &Bundle) -> Result<flowmgr::Settings, Error> {
    Ok(flow_settings(config, dscp_by_class(config, bundle)?))
}

/// The sessions that `next` asks for. Those in use stay if they match: opening a session can take long, and the cache's
/// content is lost with the old sessions.
fn as_configured(opening: &Opening, now: &Config, next: &Config) -> Result<Prepared, Refusal> {
    let dir = find_bundle(next, None)?;
    let bundle = opening.open(next, &dir)?;
    match wants_sessions(now, next, opening.bundle(), &bundle)? {
        true => opening.prepare(next, bundle),
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
    let plans = |config: &Config| config.analytics.policy.plans();
    Ok(before != bundle
        || now.accel.devices != next.accel.devices
        || thresholds(now, bundle)? != thresholds(next, bundle)?
        // The policy plans by a profile, which is measured when a session is opened.
        || (plans(next) && !plans(now)))
}
