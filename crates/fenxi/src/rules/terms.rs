//! What rules are read by: what a run has that they may name, and what it can do for them.

use std::path::Path;

use config::Config;
use config::checked::{IoMode, PolicyUpdate};
use dataplane::Error;
use policy::rule::RuleAction;
use policy::{Label, OwnedNames, RuleNumber, RuleSet, Update};
use rulefiles::{Options, ReadError};
use tracing::warn;

/// What traffic the rules are for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// A live run, in the mode of the configuration.
    Live,
    /// A replay, which writes packets as mode inline would send them.
    Replay,
}

/// What rules may name, and what is made of their actions.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Labels of the model, tasks.
    pub names: OwnedNames,
    /// When changes count.
    pub update: Update,
    interfaces: Vec<String>,
    /// `None`: any action will do.
    mode: Option<IoMode>,
    /// Bits that rules may write into marks.
    mark_mask: u32,
}

impl Terms {
    /// Those of a configuration; `labels` are those of the model.
    pub fn of(config: &Config, labels: &[Label], traffic: Traffic) -> Terms {
        let is_live = traffic == Traffic::Live;
        let tasks = config.tasks.iter().map(|task| task.name.clone());
        Terms {
            names: OwnedNames {
                labels: labels.to_vec(),
                tasks: tasks.collect(),
                mirrors: Vec::new(),
            },
            update: match config.policy.update {
                PolicyUpdate::Instant => Update::Instant,
                PolicyUpdate::Delayed => Update::Delayed,
            },
            interfaces: match is_live {
                true => config.io.interfaces.to_vec(),
                false => Vec::new(),
            },
            mode: is_live.then_some(config.io.mode),
            mark_mask: config.mark.mask,
        }
    }

    /// Reads a file; `key` stands before the error where it cannot be opened.
    pub(super) fn read(&self, path: &Path, key: &str) -> Result<RuleSet, Error> {
        let options = Options {
            interfaces: &self.interfaces,
            format: None,
        };
        let read = rulefiles::read(path, &options).map_err(|error| match error {
            ReadError::Open { .. } => Error::NoInput(format!("{key}{error}")),
            error => Error::Data(error.to_string()),
        })?;
        for warning in &read.warnings {
            warn!("{warning}");
        }
        let mut set = read.set;
        for number in 0..set.actions.len() {
            let place = |set: &RuleSet| {
                let rule = set.rules.iter().find(|it| it.action as usize == number);
                rule.map_or_else(String::new, |rule| set.place_of(rule))
            };
            let action = &set.actions[number];
            if let Some(why) = self.no_drop(action) {
                return Err(Error::Config(format!("{}: {why}", place(&set))));
            }
            if let Some(why) = self.no_mark(action) {
                return Err(Error::Data(format!("{}: {why}", place(&set))));
            }
            if let Some(action) = self.confined(action) {
                set.actions[number] = action;
            }
        }
        Ok(set)
    }

    /// Checks the action of a rule that was added, and confines its mark.
    pub(super) fn fit(&self, set: &mut RuleSet, rule: RuleNumber) -> Result<(), String> {
        let action = set.action(rule);
        if let Some(why) = self.no_drop(action).or_else(|| self.no_mark(action)) {
            return Err(why);
        }
        if let Some(action) = self.confined(action) {
            set.set_action(rule, action);
        }
        Ok(())
    }

    /// Packets that fenxi does not forward cannot be dropped by it: such a rule would promise what nobody keeps.
    fn no_drop(&self, action: &RuleAction) -> Option<String> {
        let mode = self.mode.filter(|mode| *mode != IoMode::Inline)?;
        action.drop.then(|| {
            format!(
                "drop: only mode inline can drop packets, and io.mode is \"{}\"; set io.mode = \"inline\", or mark the \
                 connections and drop them by a rule of nftables",
                mode.name()
            )
        })
    }

    /// Mode mark: rules write the bits that `mark.mask` gives to fenxi.
    fn no_mark(&self, action: &RuleAction) -> Option<String> {
        let mark = action.mark.filter(|_| self.mode == Some(IoMode::Mark))?;
        let (bits, mask) = (mark.bits, self.mark_mask);
        (bits & !mask != 0).then(|| {
            format!(
                "mark: {bits:#x} has bits outside of mark.mask = {mask:#x}, which fenxi may not write; use others, or set mark.mask"
            )
        })
    }

    /// The same action with a mark that leaves all bits alone that `mark.mask` does not give to fenxi; `None`: it is as it is.
    fn confined(&self, action: &RuleAction) -> Option<RuleAction> {
        let mut mark = action.mark.filter(|_| self.mode.is_some())?;
        mark.mask &= self.mark_mask;
        (action.mark != Some(mark)).then(|| RuleAction {
            mark: Some(mark),
            ..action.clone()
        })
    }
}
