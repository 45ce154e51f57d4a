//! `fenxi policy check`: what is wrong with a file of rules, and what is remarkable.

use std::path::Path;

use config::Sources;
use dataplane::tasks::OpenTask;
use policy::analysis::{Cause, Report, Unreachable};
use policy::rule::{RuleAction, Task};
use policy::{Names, Policy, RuleSet};
use rulefiles::Rules;
use serde_json::{Value, json};

use super::{labels, read, title};
use crate::cli::PolicyCheckArgs;
use crate::exit::{Failure, print};
use crate::figures::{counted, grouped};
use crate::rules::{Terms, Traffic};
use crate::sinks;

/// Reads the rules and prints what was found.
///
/// # Errors
/// The file is missing or wrong, or a rule names a label that the model does not have. Rules that
/// never win are no error.
pub fn check(args: &PolicyCheckArgs) -> Result<(), Failure> {
    let terms = terms(args)?;
    let interfaces = terms.as_ref().map_or(&[][..], |terms| &terms.interfaces);
    let mut rules = read(&args.rules, interfaces)?;
    if let Some(terms) = &terms {
        terms.accept(&mut rules.set)?;
        check_names(&rules.set, &terms.names)?;
    } else if let Some(dir) = &args.model {
        check_labels(&rules.set, dir)?;
    }
    let idle = terms.as_ref().and_then(|terms| terms.idle(&rules.set));
    let report = policy::analysis::check(&rules.set, args.top);
    if args.json {
        let mut json = as_json(&rules, &report);
        json["without_effect"] = json!(idle);
        return print(&format!("{json}\n"));
    }
    let mut page = page(&rules, &report, args.rules.file.as_path());
    if let Some(idle) = idle {
        page += &format!("warning: {idle}\n");
    }
    if terms.is_none() {
        page += assumed(&rules.set, args.model.is_some());
    }
    print(&page)
}

/// What a run has that rules may name, and what it can do; `None`: no configuration is named.
fn terms(args: &PolicyCheckArgs) -> Result<Option<Terms>, Failure> {
    if args.config.is_none() && args.sets.is_empty() {
        return Ok(None);
    }
    let sources = sinks::known(Sources::of_service(args.config.as_deref(), &args.sets));
    let config = sources.load()?.config;
    let labels = match &args.model {
        Some(dir) => vec![labels(dir)?],
        None => OpenTask::all_labels(&OpenTask::open_all(&config, None)?),
    };
    Ok(Some(Terms::new(&config, &labels, Traffic::Live)))
}

/// What was not checked, if some rule has it.
fn assumed(rules: &RuleSet, has_model: bool) -> &'static str {
    let acts = rules.actions.iter().any(|action| *action != RuleAction::default());
    let names = rules.conditions.iter().any(|it| !it.labels.is_empty());
    match (acts || names || !rules.interfaces.is_empty(), has_model) {
        (false, _) => "",
        (true, true) => {
            "not checked: mode, mark.mask, tasks and interfaces; --config FILE checks them\n"
        }
        (true, false) => {
            "not checked: mode, mark.mask, labels, tasks and interfaces; --config FILE checks \
             them\n"
        }
    }
}

/// Checks that the model has the labels and taxonomies that rules name. Tasks and mirrors are
/// checked with the configuration.
fn check_labels(rules: &RuleSet, dir: &Path) -> Result<(), Failure> {
    let labels = [labels(dir)?];
    let task = |task: &Task| match task {
        Task::Named(name) => Some(name.clone()),
        Task::AsConfigured | Task::None => None,
    };
    let tasks = rules.actions.iter().filter_map(|action| task(&action.task)).collect();
    let mirrors = rules.actions.iter().filter_map(|action| action.mirror.clone()).collect();
    check_names(rules, &Names { labels: labels.to_vec(), tasks, mirrors })
}

fn check_names(rules: &RuleSet, names: &Names) -> Result<(), Failure> {
    Policy::check_all(rules, names).map_err(|error| Failure::data(error.to_string()))
}

fn page(rules: &Rules, report: &Report, file: &Path) -> String {
    let set = &rules.set;
    let mut page = format!(
        "{}: {} from {}\n",
        file.display(),
        counted(set.rules.len() as u64, "rule"),
        counted(set.files.len() as u64, "file"),
    );
    let mut line = |text: String| {
        page += &format!("{text}\n");
    };
    for warning in &rules.warnings {
        line(format!("warning: {warning}"));
    }
    let unreachable = report.duplicates + report.contradictions + report.shadowed + report.empty;
    match unreachable {
        0 if report.crossings == 0 => line("no conflict".to_owned()),
        0 => line("every rule can win".to_owned()),
        count => line(format!(
            "{} can never win: {} duplicate, {} contradict an earlier one, {} covered by a wider \
             one, {} of an empty set",
            counted(count as u64, "rule"),
            grouped(report.duplicates as u64),
            grouped(report.contradictions as u64),
            grouped(report.shadowed as u64),
            grouped(report.empty as u64),
        )),
    }
    for found in &report.unreachable {
        line(format!("  {}", why(set, *found)));
    }
    more(&mut line, unreachable, report.unreachable.len());
    if report.idle_filters > 0 {
        let count = counted(report.idle_filters as u64, "filter");
        line(format!("{count} of other rules can never win"));
    }
    if report.crossings > 0 {
        line(format!(
            "{} of rules with different actions; the first one decides",
            counted(report.crossings, "overlap")
        ));
        for (first, second) in &report.crossing {
            line(format!("  {} before {}", title(set, *first), title(set, *second)));
        }
    }
    for (count, what) in [(report.not_compared, "covers"), (report.not_overlapped, "overlaps")] {
        if count > 0 {
            let verb = if count == 1 { "was" } else { "were" };
            let count = counted(count as u64, "filter");
            line(format!(
                "{count} {verb} not compared with all others for {what}: it would have taken too \
                 long"
            ));
        }
    }
    page
}

fn why(set: &RuleSet, found: Unreachable) -> String {
    let title_of_rule = title(set, found.rule);
    let by = found.by.map_or_else(String::new, |by| title(set, by));
    match found.cause {
        Cause::Duplicate => format!("{title_of_rule} says the same as {by}"),
        Cause::Contradiction => {
            format!("{title_of_rule} has the box of {by}, which comes first, and another action")
        }
        Cause::Shadowed => format!("{title_of_rule} is covered by {by}"),
        Cause::Empty => format!("{title_of_rule} is of an empty set"),
    }
}

fn more(line: &mut impl FnMut(String), all: usize, listed: usize) {
    if all > listed && listed > 0 {
        line(format!("  and {} more", grouped((all - listed) as u64)));
    }
}

fn as_json(rules: &Rules, report: &Report) -> Value {
    let set = &rules.set;
    let unreachable = report.unreachable.iter().map(|found| {
        json!({
            "rule": title(set, found.rule),
            "by": found.by.map(|by| title(set, by)),
            "cause": match found.cause {
                Cause::Duplicate => "duplicate",
                Cause::Contradiction => "contradiction",
                Cause::Shadowed => "covered",
                Cause::Empty => "empty",
            },
        })
    });
    let crossing = report.crossing.iter();
    let crossing = crossing.map(|(first, second)| json!([title(set, *first), title(set, *second)]));
    let warnings = rules.warnings.iter();
    let warnings =
        warnings.map(|warning| json!({"text": warning.to_string(), "count": warning.count}));
    json!({
        "rules": set.rules.len(),
        "files": set.files.len(),
        "v4_filters": set.v4.len(),
        "v6_filters": set.v6.len(),
        "conditions": set.conditions.iter().filter(|it| !it.is_none()).count(),
        "actions": set.actions.len(),
        "bytes": set.bytes(),
        "warnings": warnings.collect::<Vec<_>>(),
        "duplicates": report.duplicates,
        "contradictions": report.contradictions,
        "covered": report.shadowed,
        "empty": report.empty,
        "unreachable": unreachable.collect::<Vec<_>>(),
        "idle_filters": report.idle_filters,
        "crossings": report.crossings,
        "crossing": crossing.collect::<Vec<_>>(),
        "exceptions": report.exceptions,
        "not_compared": report.not_compared,
        "not_overlapped": report.not_overlapped,
    })
}
