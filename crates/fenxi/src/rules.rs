//! The rules of a run: read from `policy.rules`, and put in terms of the model, the tasks and the interfaces in use.
//!
//! This is the only place where files of rules become what flow workers look up. A start, `fenxi check`, a reload and a replay
//! come through here, so that they refuse the same files with the same words.

use std::path::Path;
use std::sync::Arc;

use config::Config;
use config::checked::IoMode;
use dataplane::Error;
use dataplane::rules::{COUNTED_MAX, RulesInForce, numbering};
use dataplane::state::RulesState;
use policy::{Label, Names, Policy, RuleNumber, RuleSet};
use rulefiles::{Options, ReadError};
use tracing::warn;

/// Rules in use.
#[derive(Clone)]
pub struct Rules {
    /// As they were written.
    pub set: Arc<RuleSet>,
    /// As flow workers use them.
    pub in_force: RulesInForce,
}

/// What traffic the rules are for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// A live run, in the mode of the configuration.
    Live,
    /// A replay, which writes packets as mode inline would send them.
    Replay,
}

impl Rules {
    /// The rules of a configuration, if it names a file; `labels` are those of the model.
    ///
    /// # Errors
    /// The file cannot be read; a line is wrong, or names what this run does not have.
    pub fn load(
        config: &Config,
        labels: &[Label],
        traffic: Traffic,
    ) -> Result<Option<Rules>, Error> {
        let Some(path) = &config.policy.rules else {
            return Ok(None);
        };
        let interfaces = match traffic {
            Traffic::Live => &*config.io.interfaces,
            Traffic::Replay => &[],
        };
        let mut set = read(path, interfaces)?;
        if traffic == Traffic::Live {
            check_drops(config, &set)?;
            confine_marks(config, &mut set)?;
        }
        let tasks: Vec<String> = config.tasks.iter().map(|task| task.name.clone()).collect();
        let names = Names {
            labels,
            tasks: &tasks,
            mirrors: &[],
        };
        Rules::of(set, &names).map(Some)
    }

    /// What metrics and status say of them.
    pub fn state(&self) -> RulesState {
        let name = |number: &RuleNumber| self.set.name(*number).unwrap_or_default().to_owned();
        RulesState {
            rules: Some(self.set.rules.len() as u64),
            counted: self.in_force.counted.iter().map(name).collect(),
        }
    }

    /// No rules, where there were some before.
    ///
    /// # Errors
    /// None: nothing is named.
    pub fn none() -> Result<Rules, Error> {
        Rules::of(RuleSet::default(), &Names::default())
    }

    fn of(set: RuleSet, names: &Names<'_>) -> Result<Rules, Error> {
        let policy = Policy::new(&set, names).map_err(|error| Error::Data(error.to_string()))?;
        let counted: Vec<RuleNumber> = set
            .names
            .iter()
            .map(|(number, _)| *number)
            .take(COUNTED_MAX)
            .collect();
        Ok(Rules {
            set: Arc::new(set),
            in_force: RulesInForce {
                policy: Arc::new(policy),
                counted: counted.into(),
                numbering: numbering(),
            },
        })
    }
}

fn read(path: &Path, interfaces: &[String]) -> Result<RuleSet, Error> {
    let options = Options {
        interfaces,
        format: None,
    };
    let read = rulefiles::read(path, &options).map_err(|error| match error {
        ReadError::Open { .. } => Error::NoInput(format!("policy.rules: {error}")),
        error => Error::Data(error.to_string()),
    })?;
    for warning in &read.warnings {
        warn!("{warning}");
    }
    Ok(read.set)
}

/// Mode mark: rules write the bits that `mark.mask` gives to fenxi, as labels do, and leave the others as they are.
fn confine_marks(config: &Config, set: &mut RuleSet) -> Result<(), Error> {
    let mask = config.mark.mask;
    for number in 0..set.actions.len() {
        let Some(mark) = &mut set.actions[number].mark else {
            continue;
        };
        if config.io.mode == IoMode::Mark && mark.bits & !mask != 0 {
            let bits = mark.bits;
            let rule = set.rules.iter().find(|it| it.action as usize == number);
            let place = rule.map_or_else(String::new, |rule| set.place_of(rule));
            return Err(Error::Data(format!(
                "{place}: mark: {bits:#x} has bits outside of mark.mask = {mask:#x}, which fenxi may not write; use others, or \
                 set mark.mask"
            )));
        }
        mark.mask &= mask;
    }
    Ok(())
}

/// Packets that fenxi does not forward cannot be dropped by it: such a rule would promise what nobody keeps.
fn check_drops(config: &Config, set: &RuleSet) -> Result<(), Error> {
    if config.io.mode == IoMode::Inline {
        return Ok(());
    }
    let drops = |rule: &&policy::rule::Rule| set.actions[rule.action as usize].drop;
    match set.rules.iter().find(drops) {
        None => Ok(()),
        Some(rule) => Err(Error::Config(format!(
            "{}: drop: only mode inline can drop packets, and io.mode is \"{}\"; set io.mode = \"inline\", or mark the \
             connections and drop them by a rule of nftables",
            set.place_of(rule),
            config.io.mode.name()
        ))),
    }
}
