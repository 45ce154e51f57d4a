//! What only the models can tell about the tasks of a configuration.
//!
//! The models stand in the order of [`Config::tasks`], as
//! [`open_bundles`](crate::opening::bundle::open_bundles) gives them. What the first task says of
//! labels is checked with the sections, by
//! [`check_labels`](crate::opening::label_map::check_labels).

use accel::Bundle;
use config::Config;
use config::checked::{TASKS_MAX, Task, needed};
use config::when::{Choice, Needed, Term, shortened};
use policy::{Label, listed};

use crate::Error;
use crate::opening::bundle::{labels, local_context};

#[cfg(test)]
mod tests;

/// Checks the tasks against their models.
///
/// # Errors
/// The models have too many depths together, or lack a label that some task names, or no flow can
/// have all labels that a task waits for.
pub fn check_tasks(config: &Config, bundles: &[Bundle]) -> Result<(), Error> {
    check_depths(config, bundles)?;
    check_servers(config, bundles)?;
    for number in 0..config.tasks.len() {
        check_when(config, number, bundles)?;
        if let (Some(bundle), true) = (bundles.get(number), number > 0) {
            policy::actions(&config.rules_of(number), &labels(bundle))
                .map_err(|error| Error::config(error.of_model(bundle.name()).to_string()))?;
        }
    }
    Ok(())
}

/// Local context comes from the memory of servers, which may be off.
fn check_servers(config: &Config, bundles: &[Bundle]) -> Result<(), Error> {
    let asked = bundles
        .iter()
        .find_map(|bundle| local_context(bundle).map(|number| (bundle.name(), number.name())));
    match asked {
        Some((model, number)) if config.servers.entries == 0 => Err(Error::config(format!(
            "servers.entries = 0: the model {model} reads {number}, which the memory of servers \
             gives; leave servers.entries out, or take another model"
        ))),
        _ => Ok(()),
    }
}

/// Each depth is an answer that a flow manager waits for.
fn check_depths(config: &Config, bundles: &[Bundle]) -> Result<(), Error> {
    let depths = |bundle: &Bundle| bundle.depths().len();
    let sum: usize = bundles.iter().map(depths).sum();
    if sum <= TASKS_MAX {
        return Ok(());
    }
    let tasks = || config.tasks.iter().zip(bundles);
    let each: Vec<String> =
        tasks().map(|(task, bundle)| format!("{} ({})", task.name, depths(bundle))).collect();
    let mut so_far = 0;
    let first_beyond = tasks().find(|(_, bundle)| {
        so_far += depths(bundle);
        so_far > TASKS_MAX
    });
    let place = first_beyond.map_or_else(String::new, |(task, _)| {
        format!("{}: task.{}.depths: ", task.depths_origin, task.name)
    });
    Err(Error::config(format!(
        "{place}the tasks have {sum} depths together, and at most {TASKS_MAX} are supported: {}; \
         name fewer with task.NAME.depths, or \
         leave a task out",
        each.join(", ")
    )))
}

/// The labels that a task waits for: each is there, and a flow can have them all, with those that
/// the tasks before it wait for.
fn check_when(config: &Config, number: usize, bundles: &[Bundle]) -> Result<(), Error> {
    let task = &config.tasks[number];
    let needed = needed(&config.tasks, number);
    for (other, bundle) in bundles.iter().enumerate() {
        let labels = labels(bundle);
        let terms: Vec<(&Needed<'_>, &Choice)> = needed
            .iter()
            .filter_map(|needed| match needed.term {
                Term::Label { task, labels } if *task == other => Some((needed, labels)),
                _ => None,
            })
            .collect();
        for (needed, choice) in terms.iter().filter(|(needed, _)| needed.task == number) {
            let unknown = choice.names.iter().find(|name| !is_known(&labels, name));
            if let Some(unknown) = unknown {
                return Err(Error::config(format!(
                    "{}: task.{}.when: {}: the model {} of task {} has no label \"{}\", and no \
                     taxonomy of that name; it has {}",
                    task.when_origin,
                    task.name,
                    shown(config, number, needed),
                    bundle.name(),
                    config.tasks[other].name,
                    shortened(unknown),
                    listed(&labels)
                )));
            }
        }
        // A flow without a label has none of them, so those that exclude hold for it.
        let needs_one = terms.iter().any(|(_, choice)| choice.is_one);
        let is_met = |label: &Label| {
            let mut terms = terms.iter();
            terms.all(|(_, choice)| choice.holds(names(choice, &labels, label)))
        };
        if needs_one && !labels.iter().any(is_met) {
            return Err(Error::config(never(config, task, number, &terms, bundle)));
        }
    }
    Ok(())
}

fn never(
    config: &Config,
    task: &Task,
    number: usize,
    terms: &[(&Needed<'_>, &Choice)],
    bundle: &Bundle,
) -> String {
    let shown = terms.iter().map(|(needed, _)| shown(config, number, needed));
    let shown: Vec<String> = shown.collect();
    format!(
        "{}: task.{}.when: {} never hold together: no label of the model {} satisfies all of them, \
         so the task could never run; \
         change the terms, or leave the task out",
        task.when_origin,
        task.name,
        shown.join(" and "),
        bundle.name()
    )
}

/// A term, with its task where that is another one.
fn shown(config: &Config, number: usize, needed: &Needed<'_>) -> String {
    let term = needed.term.named(|task| &config.tasks[task].name);
    let term = shortened(&term.to_string());
    match needed.task == number {
        true => term,
        false => format!("{term} (of task {})", config.tasks[needed.task].name),
    }
}

fn is_known(labels: &[Label], name: &str) -> bool {
    // The taxonomy of `unknown` is empty, and no label has the empty name.
    let is_it = |label: &Label| label.name == name || label.taxonomy == name;
    !name.is_empty() && labels.iter().any(is_it)
}

/// Whether a choice names a label of the model: by its name, or, where no label of the model has
/// the name, by its taxonomy.
pub fn names(choice: &Choice, labels: &[Label], label: &Label) -> bool {
    choice.names.iter().any(|name| {
        let is_label = labels.iter().any(|label| label.name == *name);
        match is_label {
            true => label.name == *name,
            false => !name.is_empty() && label.taxonomy == *name,
        }
    })
}
