//! The terms of rules: names that they may use in a run, and actions that the run supports.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use config::Config;
use config::checked::{IoMode, MarkAs, PolicyUpdate};
use config::when::{Choice, Term};
use dataplane::Error;
use dataplane::rules::Unasked;
use policy::rule::{RuleAction, Task};
use policy::{Label, Mark, Names, RuleNumber, RuleSet, Update};
use rulefiles::{Options, Problem, ReadError};
use tracing::warn;

use super::LocalClock;

/// The kind of traffic that rules are for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    Live,
    /// A replay, which writes packets as mode inline would send them.
    Replay,
}

/// Names that rules may use, and the supported actions.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Labels of the tasks, tasks, the interface for copies.
    pub names: Names,
    pub update: Update,
    /// The interfaces that rules may name; any if empty.
    pub interfaces: Vec<String>,
    /// Whose time the hours of rules are.
    pub clock: LocalClock,
    /// Profiles that are on at the start.
    pub profiles: BTreeSet<String>,
    /// `None` if every action is allowed.
    mode: Option<IoMode>,
    /// Bits that rules may write into marks.
    mark_mask: u32,
    has_dscp_marks: bool,
    /// Rules that tasks name in `when`, with the numbers of the tasks.
    whens: Vec<(u8, Choice)>,
    /// Tasks that wait for the label of another, with the first such task.
    waiting: Vec<(String, String)>,
}

impl Terms {
    /// `labels` are by task.
    pub fn new(config: &Config, labels: &[Arc<[Label]>], traffic: Traffic) -> Terms {
        let is_live = traffic == Traffic::Live;
        let tasks = config.tasks.iter();
        let waiting = tasks.clone().filter_map(|task| {
            let before = *task.when.tasks().next()?;
            Some((task.name.clone(), config.tasks[before].name.clone()))
        });
        let whens = (0..).zip(tasks.clone()).flat_map(|(number, task)| {
            let terms = task.when.terms.iter();
            terms.filter_map(move |term| match term {
                Term::Rule(choice) => Some((number, choice.clone())),
                _ => None,
            })
        });
        Terms {
            names: Names {
                labels: labels.to_vec(),
                tasks: tasks.map(|task| task.name.clone()).collect(),
                mirrors: config.mirror().into_iter().map(str::to_owned).collect(),
            },
            update: match config.policy.update {
                PolicyUpdate::Instant => Update::Instant,
                PolicyUpdate::Delayed => Update::Delayed,
            },
            interfaces: if is_live { config.io.interfaces.to_vec() } else { Vec::new() },
            clock: LocalClock::of_machine(),
            profiles: config.policy.profiles.iter().cloned().collect(),
            mode: is_live.then_some(config.io.mode),
            mark_mask: config.mark.mask,
            has_dscp_marks: config.mark.holds == MarkAs::Dscp,
            whens: whens.collect(),
            waiting: waiting.collect(),
        }
    }

    pub fn is_replay(&self) -> bool {
        self.mode.is_none()
    }

    /// Tasks that are not asked about flows of these named rules, by rule.
    pub(super) fn unasked<'a>(
        &self,
        named: impl Iterator<Item = (RuleNumber, &'a str)>,
    ) -> Unasked {
        let of = |name: Option<&str>| {
            let refused = self.whens.iter().filter(|(_, choice)| {
                let is_named = name.is_some_and(|name| choice.names.iter().any(|it| it == name));
                !choice.holds(is_named)
            });
            refused.fold(0, |tasks, (task, _)| tasks | 1 << task)
        };
        let is_asked_for = |name: &str| {
            let mut names = self.whens.iter().flat_map(|(_, choice)| &choice.names);
            names.any(|it| it == name)
        };
        let named = named.filter(|(_, name)| is_asked_for(name));
        let mut by_rule: Vec<_> = named.map(|(rule, name)| (rule, of(Some(name)))).collect();
        by_rule.sort_unstable();
        Unasked { otherwise: of(None), by_rule }
    }

    /// Reads a file unless `stop` is set; `key` precedes the error if it cannot be opened.
    pub(super) fn read(&self, path: &Path, key: &str, stop: &AtomicBool) -> Result<RuleSet, Error> {
        let options =
            Options { interfaces: &self.interfaces, stop: Some(stop), ..Options::default() };
        let read = rulefiles::read(path, &options).map_err(|error| match error {
            ReadError::Open { .. } => Error::NoInput(format!("{key}{error}")),
            ReadError::Wrong { problem: Problem::NotRegular, .. } => {
                Error::Data(format!("{key}{error}"))
            }
            error => Error::Data(error.to_string()),
        })?;
        for warning in &read.warnings {
            warn!("{warning}");
        }
        let mut set = read.set;
        self.accept(&mut set)?;
        if let Some(warning) = self.idle(&set) {
            warn!("{warning}");
        }
        Ok(set)
    }

    /// Checks the actions of rules from a file, and confines them.
    pub fn accept(&self, set: &mut RuleSet) -> Result<(), Error> {
        for number in 0..set.actions.len() {
            let place = |set: &RuleSet| {
                let rule = set.rules.iter().find(|it| it.action as usize == number);
                rule.map_or_else(String::new, |rule| set.place_of(rule))
            };
            let action = &set.actions[number];
            if let Some(why) = self.not_in_this_mode(action) {
                return Err(Error::Config(format!("{}: {why}", place(set))));
            }
            if let Some(why) = self.wrong(action) {
                return Err(Error::Data(format!("{}: {why}", place(set))));
            }
            if let Some(action) = self.confined(action) {
                set.actions[number] = action;
            }
        }
        Ok(())
    }

    /// Checks the action of a rule that was added, and confines its mark.
    pub(super) fn fit(&self, set: &mut RuleSet, rule: RuleNumber) -> Result<(), String> {
        let action = set.action(rule);
        let why = self.not_in_this_mode(action);
        if let Some(why) = why.or_else(|| self.wrong(action)) {
            return Err(why);
        }
        if let Some(action) = self.confined(action) {
            set.set_action(rule, action);
        }
        Ok(())
    }

    /// Why the mode does not support an action.
    fn not_in_this_mode(&self, action: &RuleAction) -> Option<String> {
        self.not_inline(action).or_else(|| self.no_dscp(action))
    }

    /// Why the configuration does not fit an action.
    fn wrong(&self, action: &RuleAction) -> Option<String> {
        let why = self.no_mark(action).or_else(|| self.no_mirror(action));
        why.or_else(|| self.never_asked(action))
    }

    /// A line on rules without any effect in this mode. They are no error, because rules are tried
    /// in mode tap.
    pub fn idle(&self, set: &RuleSet) -> Option<String> {
        let mode = self.mode?;
        let is_idle = |action: &RuleAction| {
            let acts = match mode {
                IoMode::Tap => false,
                IoMode::Mark => action.mark.is_some(),
                IoMode::Inline => action.dscp.is_some() || action.drop || action.mirror.is_some(),
            };
            let asks = (action.dscp.is_some(), action.mark.is_some());
            (asks != (false, false) && !acts).then_some(if asks.0 { "dscp" } else { "mark" })
        };
        let idle: Vec<Option<&str>> = set.actions.iter().map(is_idle).collect();
        let of = |rule: &policy::rule::Rule| idle[rule.action as usize];
        let mut rules = set.rules.iter().filter(|rule| of(rule).is_some());
        let first = rules.next()?;
        let key = of(first)?;
        let more = match rules.count() {
            0 => String::new(),
            more => format!(" (and {more} more rules)"),
        };
        let place = set.place_of(first);
        let mode = mode.name();
        Some(format!("{place}: {key}: no effect in mode {mode}{more}"))
    }

    /// In mode mark a DSCP is written into the marks of connections, if these have bits for it.
    fn no_dscp(&self, action: &RuleAction) -> Option<String> {
        let is_refused = self.mode == Some(IoMode::Mark)
            && !self.has_dscp_marks
            && action.dscp.is_some()
            && action.mark.is_none();
        is_refused.then(|| {
            "dscp: in mode mark a DSCP is written into the connection's mark, and mark.as is \
            \"label\"; set mark.as = \"dscp\", or give the rule a mark"
                .to_owned()
        })
    }

    /// Only packets that fenxi forwards can be dropped or copied.
    fn not_inline(&self, action: &RuleAction) -> Option<String> {
        let mode = self.mode.filter(|mode| *mode != IoMode::Inline)?;
        let (key, does, dup) = match (action.drop, &action.mirror) {
            (true, _) => ("drop", "drop", ""),
            (false, Some(_)) => ("mirror", "copy", " (dup)"),
            (false, None) => return None,
        };
        Some(format!(
            "{key}: only mode inline can {does} packets, and io.mode is \"{}\"; set io.mode = \
            \"inline\", or mark the connections and {does} them by a rule of nftables{dup}",
            mode.name()
        ))
    }

    /// A rule that asks one task alone, which waits for another, would ask no task.
    fn never_asked(&self, action: &RuleAction) -> Option<String> {
        let Task::Named(name) = &action.task else { return None };
        let (_, before) = self.waiting.iter().find(|(task, _)| task == name)?;
        Some(format!(
            "task: task {name} waits for the label of task {before}, and this rule asks {name} \
            alone, so no task would be asked; write task = \"{before}\", or take the term on \
            {before} out of task.{name}.when"
        ))
    }

    /// There is at most one interface for copies.
    fn no_mirror(&self, action: &RuleAction) -> Option<String> {
        let name = action.mirror.as_ref().filter(|_| self.mode.is_some())?;
        match self.names.mirrors.as_slice() {
            [] => Some(format!(
                "there is no mirror \"{name}\", because policy.mirror is empty; name the interface \
                that gets the copies there"
            )),
            known if known.contains(name) => None,
            known => {
                let known = known.join(", ");
                Some(format!(
                    "there is no mirror \"{name}\"; there is {known}, of policy.mirror; write \
                    mirror = \"{known}\", or set policy.mirror = \"{name}\" and restart"
                ))
            }
        }
    }

    /// In mode mark, rules may only write the bits of `mark.mask`.
    fn no_mark(&self, action: &RuleAction) -> Option<String> {
        let mark = action.mark.filter(|_| self.mode == Some(IoMode::Mark))?;
        let own = self.mark_mask;
        let beyond = "outside of mark.mask";
        let cure = "which fenxi may not write; use others, or set mark.mask";
        if mark.bits & !own != 0 {
            let bits = mark.bits;
            return Some(format!("mark: {bits:#x} has bits {beyond} = {own:#x}, {cure}"));
        }
        // A mark without its own mask uses `mark.mask`.
        (mark.mask != u32::MAX && mark.mask & !own != 0).then(|| {
            let Mark { bits, mask } = mark;
            format!("mark: the mask of {bits:#x}/{mask:#x} has bits {beyond} = {own:#x}, {cure}")
        })
    }

    /// The action with its mark confined to `mark.mask`, or with a mark for its DSCP; in a replay,
    /// which copies nothing, without its mirror. `None` if nothing changes.
    fn confined(&self, action: &RuleAction) -> Option<RuleAction> {
        if self.mode.is_none() {
            action.mirror.as_ref()?;
            return Some(RuleAction { mirror: None, ..action.clone() });
        }
        let of_dscp = action.dscp.filter(|_| self.mode == Some(IoMode::Mark));
        let mut mark = action.mark.or_else(|| of_dscp.map(Mark::of_dscp))?;
        mark.mask &= self.mark_mask;
        (action.mark != Some(mark)).then(|| RuleAction { mark: Some(mark), ..action.clone() })
    }
}
