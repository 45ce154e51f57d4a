//! The tasks of a run, with their bundles open, and what their `when` means to flow managers and
//! analytics managers.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use accel::Bundle;
use analytics::{After, Need, Test};
use config::Config;
use config::when::{Direction, Term, When};
use cring::TaskWords;
use flowmgr::{Actions, Asked, Target, TaskConfig, TaskId};
use policy::Label;

use crate::Error;
use crate::opening::bundle::{
    classes, dscp_by_class, find_bundle, labels, open_bundle, open_bundles, servers, target,
    task_config,
};
use crate::opening::devices::for_model;
use crate::opening::task_check::{check_tasks, names};

/// Shares of flows are in parts of this.
const WHOLE: f64 = 65_536.0;
/// A number that no interface has.
const NO_PORT: u8 = u8::MAX;

/// A task whose bundle is open.
#[derive(Debug, Clone)]
pub struct OpenTask {
    /// Its name in the configuration.
    pub name: String,
    /// The configuration of the run, with this task as the only one: its sections say what the task
    /// says.
    pub config: Config,
    /// The model.
    pub bundle: Bundle,
    /// What flow managers collect for it, and of which flows, as far as the flow itself tells.
    pub series: TaskConfig,
    /// What labels of other tasks have to say.
    pub after: After,
    /// Number of the label word of its first depth.
    pub word: u8,
    /// Its series are answered at once, by the flow managers.
    pub is_inline: bool,
    /// Who labels, and why; empty where `pipeline.layout` says who.
    pub labels_why: String,
}

impl OpenTask {
    /// All tasks of a configuration, in its order. `model` is the bundle that the command line
    /// names, for the only task.
    ///
    /// # Errors
    /// A bundle that is missing, damaged, or contradicts the configuration or another task; several
    /// tasks and a `model`.
    pub fn open_all(config: &Config, model: Option<&Path>) -> Result<Vec<OpenTask>, Error> {
        let bundles = match (model, config.tasks.len()) {
            (Some(_), 2..) => {
                return Err(Error::config(
                    "--model names one bundle, and the configuration has several tasks; set \
                     task.NAME.model instead",
                ));
            }
            (None, 2..) => open_bundles(config)?,
            _ => vec![open_bundle(config, &find_bundle(config, model)?)?],
        };
        check_tasks(config, &bundles)?;
        Ok(OpenTask::all_of(config, &bundles))
    }

    /// All tasks of a configuration, with these bundles.
    pub fn all_of(config: &Config, bundles: &[Bundle]) -> Vec<OpenTask> {
        let words = words(bundles);
        let both = config.tasks.iter().zip(bundles).enumerate();
        let of = |(number, (task, bundle)): (usize, (&config::checked::Task, &Bundle))| OpenTask {
            name: task.name.clone(),
            config: for_model(config.of_task(number), bundle),
            bundle: bundle.clone(),
            series: TaskConfig { asked: asked(config, &task.when), ..task_config(bundle) },
            after: After { needs: needs(config, bundles, &words, &task.when) },
            word: words[number].first,
            is_inline: false,
            labels_why: String::new(),
        };
        both.map(of).collect()
    }

    /// The configuration of the run, with the devices on which the models of these tasks run.
    pub fn with_devices(mut config: Config, tasks: &[OpenTask]) -> Config {
        for (task, open) in config.tasks.iter_mut().zip(tasks) {
            task.devices.clone_from(&open.config.accel.devices);
            open.devices_why().clone_into(&mut task.devices_why);
        }
        if let Some(first) = config.tasks.first() {
            config.accel.devices.clone_from(&first.devices);
        }
        config
    }

    /// Why its model runs on its devices; empty where the configuration names them.
    pub fn devices_why(&self) -> &str {
        self.config.tasks.first().map_or("", |task| &task.devices_why)
    }

    /// What flow managers collect for all tasks.
    pub fn series(tasks: &[OpenTask]) -> Vec<TaskConfig> {
        tasks.iter().map(|task| task.series.clone()).collect()
    }

    /// Cells of the memory of servers in each flow manager; `None` where no task reads it.
    pub fn servers(config: &Config, tasks: &[OpenTask]) -> Option<usize> {
        servers(config, tasks.iter().map(|task| &task.bundle))
    }

    /// The classes of each task, with their taxonomies.
    pub fn all_labels(tasks: &[OpenTask]) -> Vec<Arc<[Label]>> {
        tasks.iter().map(|task| labels(&task.bundle)).collect()
    }

    /// The task as records and metrics know it.
    pub fn names(&self) -> TaskNames {
        TaskNames {
            name: self.name.as_str().into(),
            classes: classes(&self.bundle),
            depths: depths(&self.bundle),
            target: target(&self.bundle),
        }
    }
}

/// What a task and its classes are called.
#[derive(Debug, Clone)]
pub struct TaskNames {
    /// Its name in the configuration.
    pub name: Arc<str>,
    /// Names of the classes in the order of the model's outputs, then `unknown`.
    pub classes: Arc<[String]>,
    /// After how many elements its model is asked; 0 in front of them where ports name flows with
    /// their first packets.
    pub depths: Vec<usize>,
    /// What the classes are bands of, if they are.
    pub target: Option<Target>,
}

/// [`TaskNames::depths`] of a bundle.
pub fn depths(bundle: &Bundle) -> Vec<usize> {
    task_config(bundle).depths.iter().map(|depth| depth.k).collect()
}

/// What labels of all tasks do to packets; the bundles are in the order of the tasks.
///
/// # Errors
/// The configuration names a label that a model does not have.
pub fn actions<'a>(
    config: &Config,
    bundles: impl IntoIterator<Item = &'a Bundle>,
) -> Result<Actions, Error> {
    let dscp = bundles.into_iter().enumerate();
    let dscp = dscp.map(|(number, bundle)| dscp_by_class(&config.of_task(number), bundle));
    Ok(Actions::of_tasks(dscp.collect::<Result<Vec<_>, _>>()?))
}

/// Where the label words of each task are.
fn words(bundles: &[Bundle]) -> Vec<TaskWords> {
    let mut first = 0;
    let of = |bundle: &Bundle| {
        let words = TaskWords { first, depths: task_config(bundle).sure() };
        first += words.depths.len() as u8;
        words
    };
    bundles.iter().map(of).collect()
}

/// The terms on the flow itself. What other tasks ask for is left to those: [`Asked::after`] names
/// them.
fn asked(config: &Config, when: &When) -> Asked {
    let mut asked = Asked::default();
    for term in &when.terms {
        match term {
            Term::Protocol(protocols) => {
                let numbers = protocols.iter().map(|protocol| protocol.number());
                narrow(&mut asked.protocols, numbers.collect());
            }
            Term::Port(ports) => {
                let ranges = ports.iter().map(|ports| ports.first..=ports.last);
                asked.ports = both(&asked.ports, ranges.collect());
            }
            Term::InPort(names) => {
                let interfaces = config.io.interfaces.iter().zip(1..);
                let named = interfaces.filter(|(interface, _)| names.contains(interface));
                let mut numbers: Vec<u8> = named.map(|(_, number)| number).collect();
                // A replay needs no interfaces, and an empty list would mean all of them.
                if numbers.is_empty() {
                    numbers.push(NO_PORT);
                }
                narrow(&mut asked.in_ports, numbers);
            }
            Term::Direction(directions) => {
                narrow(&mut asked.directions, directions.iter().map(direction).collect());
            }
            Term::Sample(share) => {
                let share = (share * WHOLE).ceil() as u32;
                asked.sample = Some(asked.sample.map_or(share, |least| least.min(share)));
            }
            Term::Label { task, .. } | Term::Confidence { task, .. } => {
                asked.after.push(TaskId(*task as u8));
            }
            // Tasks do not have it.
            Term::Vlan(_) => {}
            // Which rule it is, is answered with the flow's rule.
            Term::Rule(choice) => asked.by_rule |= choice.is_one,
        }
    }
    asked.after.sort_unstable();
    asked.after.dedup();
    asked
}

fn direction(direction: &Direction) -> flowmgr::Direction {
    match direction {
        Direction::Out => flowmgr::Direction::Out,
        Direction::In => flowmgr::Direction::In,
        Direction::Inside => flowmgr::Direction::Inside,
        Direction::Outside => flowmgr::Direction::Outside,
    }
}

/// Keeps of a list, which is everything while it is empty, what is in the other one. The check has
/// refused what leaves nothing.
fn narrow<T: PartialEq>(list: &mut Vec<T>, to: Vec<T>) {
    match list.is_empty() {
        true => *list = to,
        false => list.retain(|it| to.contains(it)),
    }
}

/// The ports that are in a range of both lists; an empty list means all.
fn both(
    some: &[RangeInclusive<u16>],
    others: Vec<RangeInclusive<u16>>,
) -> Vec<RangeInclusive<u16>> {
    if some.is_empty() {
        return others;
    }
    let pairs = some.iter().flat_map(|range| others.iter().map(move |other| (range, other)));
    let common = pairs.map(|(range, other)| {
        let (first, last) = (range.start().max(other.start()), range.end().min(other.end()));
        *first..=*last
    });
    common.filter(|range| !range.is_empty()).collect()
}

/// The terms on labels of other tasks, including the terms of the tasks that they name: a task is
/// asked only if those tasks were.
fn needs(config: &Config, bundles: &[Bundle], words: &[TaskWords], when: &When) -> Vec<Need> {
    let mut needs: Vec<Need> = Vec::new();
    for term in &when.terms {
        let (task, test) = match term {
            Term::Label { task, labels: choice } => {
                let labels = labels(&bundles[*task]);
                let classes =
                    labels.iter().map(|label| choice.holds(names(choice, &labels, label)));
                let test =
                    Test::Class { is_wanted: classes.collect(), without: choice.holds(false) };
                (*task, test)
            }
            Term::Confidence { task, comparison, bound } => {
                (*task, Test::Confidence(comparison.steps(*bound)))
            }
            _ => continue,
        };
        let words_of = words[task].clone();
        needs.push(Need { words: words_of, test });
        needs.extend(self::needs(config, bundles, words, &config.tasks[task].when));
    }
    needs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A capture does not say by which interface its packets came in.
    #[test]
    fn without_interfaces_no_flow_came_in_by_one() {
        let asked = |sets: &[&str]| {
            let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
            let config = Config::load(None, &sets).unwrap();
            asked(&config, &config.tasks[0].when).in_ports
        };
        let when = "task.a.when=in_port = eth1";
        assert_eq!(asked(&[when]), [NO_PORT]);
        assert_eq!(asked(&[when, "io.interfaces=[\"eth0\", \"eth1\"]"]), [2]);
    }

    #[test]
    fn lists_of_two_terms_are_narrowed_to_what_both_have() {
        let mut protocols = Vec::new();
        narrow(&mut protocols, vec![6, 17]);
        narrow(&mut protocols, vec![17]);
        assert_eq!(protocols, [17]);
        let ports = both(&both(&[], vec![80..=90, 400..=500]), vec![85..=443]);
        assert_eq!(ports, [85..=90, 400..=443]);
    }
}
