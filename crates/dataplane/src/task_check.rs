//! What only the models can tell about the tasks of a configuration.
//!
//! The models stand in the order of [`Config::tasks`], as [`open_bundles`](crate::bundle::open_bundles) gives them. What the
//! first task says of labels is checked with the sections, by [`check_labels`](crate::bundle::check_labels).

use accel::Bundle;
use config::Config;
use config::checked::{MAX_TASKS, Task};
use config::origin::Origin;
use config::when::{Choice, Term};
use policy::{Label, listed};

use crate::Error;
use crate::bundle::labels;

#[cfg(test)]
mod tests;

/// Refuses what a run cannot do yet: flow managers and analytics managers are built for the first task only, which is asked
/// about every flow, and whose labels always stand in records.
///
/// # Errors
/// There are several tasks, or the only one asks for what is not there.
pub fn can_run(config: &Config) -> Result<(), Error> {
    let refuse = |origin: &Origin, key: &str, what: &str| {
        Err(Error::config(format!(
            "{origin}: task.{key}: {what} cannot run yet, only be checked"
        )))
    };
    let Some(first) = config.tasks.first() else {
        return Ok(());
    };
    if let Some(second) = config.tasks.get(1) {
        return refuse(&second.origin, &second.name, "several tasks");
    }
    if !first.when.is_always() {
        let key = format!("{}.when", first.name);
        return refuse(&first.when_origin, &key, "a task for some flows");
    }
    if !first.records {
        let key = format!("{}.records", first.name);
        return refuse(&first.origin, &key, "a task without records");
    }
    Ok(())
}

/// Checks the tasks against their models.
///
/// # Errors
/// The models have too many depths together, or lack a label that some task names, or no flow can have all labels that a task
/// waits for.
pub fn check_tasks(config: &Config, bundles: &[Bundle]) -> Result<(), Error> {
    check_depths(config, bundles)?;
    for (number, task) in config.tasks.iter().enumerate() {
        check_when(config, task, bundles)?;
        if let (Some(bundle), true) = (bundles.get(number), number > 0) {
            policy::actions(&config.rules_of(number), &labels(bundle))
                .map_err(|error| Error::config(error.of_model(bundle.name()).to_string()))?;
        }
    }
    Ok(())
}

/// Each depth is an answer that a flow manager waits for.
fn check_depths(config: &Config, bundles: &[Bundle]) -> Result<(), Error> {
    let depths = |bundle: &Bundle| bundle.depths().len();
    let sum: usize = bundles.iter().map(depths).sum();
    if sum <= MAX_TASKS {
        return Ok(());
    }
    let tasks = config.tasks.iter().zip(bundles);
    let each: Vec<String> = tasks
        .map(|(task, bundle)| format!("{} ({})", task.name, depths(bundle)))
        .collect();
    Err(Error::config(format!(
        "the tasks have {sum} depths together, of which flow managers take {MAX_TASKS} at most: {}; name fewer with task.NAME.depths, \
         or leave a task out",
        each.join(", ")
    )))
}

/// The labels that a task waits for: each is there, and a flow can have them all.
fn check_when(config: &Config, task: &Task, bundles: &[Bundle]) -> Result<(), Error> {
    let (origin, name) = (&task.when_origin, &task.name);
    for (other, bundle) in bundles.iter().enumerate() {
        let terms = || {
            task.when.terms.iter().filter_map(move |term| match term {
                Term::Label { task, labels } if *task == other => Some((term, labels)),
                _ => None,
            })
        };
        let shown = |term: &Term| term.named(|task| &config.tasks[task].name).to_string();
        let labels = labels(bundle);
        for (term, choice) in terms() {
            let unknown = choice.names.iter().find(|name| !is_known(&labels, name));
            if let Some(unknown) = unknown {
                return Err(Error::config(format!(
                    "{origin}: task.{name}.when: {}: the model {} of task {} has no label \"{unknown}\", and no taxonomy of that \
                     name; it has {}",
                    shown(term),
                    bundle.name(),
                    config.tasks[other].name,
                    listed(&labels)
                )));
            }
        }
        // A flow without a label has none of them, so those that exclude hold for it.
        let needs_one = terms().any(|(_, choice)| choice.is_one);
        let is_met =
            |label: &Label| terms().all(|(_, choice)| choice.holds(names(choice, &labels, label)));
        if needs_one && !labels.iter().any(is_met) {
            let terms: Vec<String> = terms().map(|(term, _)| shown(term)).collect();
            return Err(Error::config(format!(
                "{origin}: task.{name}.when: {} never hold together: no label of the model {} has all of it, so the task could \
                 never run; change the terms, or leave the task out",
                terms.join(" and "),
                bundle.name()
            )));
        }
    }
    Ok(())
}

fn is_known(labels: &[Label], name: &str) -> bool {
    let is_it = |label: &Label| label.name == name || label.taxonomy == name;
    labels.iter().any(is_it)
}

/// Whether a choice names a label of the model: by its name, or, where no label of the model has the name, by its taxonomy.
pub fn names(choice: &Choice, labels: &[Label], label: &Label) -> bool {
    choice.names.iter().any(|name| {
        let is_label = labels.iter().any(|label| label.name == *name);
        match is_label {
            true => label.name == *name,
            false => !name.is_empty() && label.taxonomy == *name,
        }
    })
}
