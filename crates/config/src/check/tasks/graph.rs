//! Tasks that need the labels of others: no name without a task, no cycle, and none that could
//! never run.

use std::collections::BTreeSet;

use crate::checked::{Task, needed};
use crate::suggest;
use crate::when::never::contradiction;
use crate::when::{Needed, Term, When, shortened};

use super::Asked;

/// When each task is asked, with numbers for the tasks that it names. Where a name is unknown, the
/// text has no effect.
pub(super) fn resolve(asked: &[Asked<'_>], problems: &mut Vec<String>) -> Vec<When> {
    let names: Vec<&str> = asked.iter().map(|task| task.name).collect();
    let mut whens = Vec::new();
    for task in asked {
        let own = task.name;
        let number = |name: &String| match names.iter().position(|known| known == name) {
            Some(_) if name == own => {
                Err("a task cannot wait for itself; name another task".to_owned())
            }
            Some(number) => Ok(number),
            None => Err(unknown(name, names.iter().copied().filter(|other| *other != own))),
        };
        let when = task.keys.when.try_map(|term, name| {
            number(name).map_err(|why| format!("{}: {why}", shortened(&term.to_string())))
        });
        whens.push(when.unwrap_or_else(|why| {
            let origin = task.origin("when");
            problems.push(format!("{origin}: task.{own}.when: {why}"));
            When::default()
        }));
    }
    whens
}

fn unknown<'a>(name: &str, others: impl Iterator<Item = &'a str> + Clone) -> String {
    let near = suggest(name, others.clone());
    let others: Vec<&str> = others.collect();
    let name = shortened(name);
    match others.is_empty() {
        true => format!("unknown task {name}; there is no other task"),
        false => format!("unknown task {name}; the others are {}{near}", others.join(", ")),
    }
}

/// Reports cycles; where there are none, tasks that can never run.
pub(super) fn check(tasks: &[Task], problems: &mut Vec<String>) {
    let cycles: Vec<Vec<usize>> =
        (0..tasks.len()).filter_map(|start| cycle(tasks, start)).collect();
    for cycle in &cycles {
        problems.push(cycle_line(tasks, cycle));
    }
    if cycles.is_empty() {
        never(tasks, problems);
    }
}

/// The tasks of a cycle from `start` back to it, if one leads through no task before it. So no
/// cycle is found twice. Of several with the same first task one is found; once it is gone, the
/// next check finds another.
fn cycle(tasks: &[Task], start: usize) -> Option<Vec<usize>> {
    let mut seen = BTreeSet::from([start]);
    let mut path = vec![start];
    // Which of the tasks that one needs is looked at next.
    let mut next = vec![0];
    while let (Some(&at), Some(place)) = (path.last(), next.last_mut()) {
        let needed = tasks.get(at).and_then(|task| task.when.tasks().nth(*place));
        *place += 1;
        match needed {
            Some(&needed) if needed == start => return Some(path),
            Some(&needed) if needed > start && seen.insert(needed) => {
                path.push(needed);
                next.push(0);
            }
            Some(_) => {}
            None => {
                path.pop();
                next.pop();
            }
        }
    }
    None
}

fn cycle_line(tasks: &[Task], cycle: &[usize]) -> String {
    let first = &tasks[cycle[0]];
    let back = || cycle.iter().chain(&cycle[..1]);
    let names = back().map(|&at| tasks[at].name.as_str());
    let steps = cycle.iter().zip(back().skip(1));
    let terms = steps.map(|(&task, &needed)| terms_on(tasks, task, needed));
    format!(
        "{}: task.{}.when: the tasks {} wait for each other, so none would ever be asked; leave \
         one of these terms out: {}",
        first.when_origin,
        first.name,
        names.collect::<Vec<_>>().join(" -> "),
        terms.collect::<Vec<_>>().join(", ")
    )
}

/// The terms by which one task waits for another.
fn terms_on(tasks: &[Task], task: usize, needed: usize) -> String {
    let terms = tasks[task].when.terms.iter();
    let terms = terms.filter(|term| term.task() == Some(&needed));
    let terms: Vec<String> = terms.map(|term| text(tasks, term)).collect();
    format!("{} (of task {})", terms.join(" and "), tasks[task].name)
}

/// Tasks that can never run: no flow meets all their terms and the terms of the tasks they need.
fn never(tasks: &[Task], problems: &mut Vec<String>) {
    // A task that needs one of these is not reported by itself.
    let mut reported = BTreeSet::new();
    for number in in_order(tasks) {
        let task = &tasks[number];
        let start = format!("{}: task.{}.when", task.when_origin, task.name);
        let dead = task.when.tasks().find(|needed| reported.contains(*needed));
        if let Some(&dead) = dead {
            reported.insert(number);
            let name = &tasks[dead].name;
            problems.push(format!("{start}: it needs task {name}, which can never run"));
            continue;
        }
        let needed = needed(tasks, number);
        let Some(positions) = contradiction(&needed) else {
            continue;
        };
        reported.insert(number);
        let shown = positions.iter().map(|&at| shown(tasks, number, needed[at]));
        let shown: Vec<String> = shown.collect();
        let what = match shown.len() {
            1 => "never holds",
            _ => "never hold together",
        };
        problems.push(format!(
            "{start}: {} {what}, so the task could never run; change the terms, or leave the task \
             out",
            shown.join(" and ")
        ));
    }
}

/// The tasks, each after those that it needs.
fn in_order(tasks: &[Task]) -> Vec<usize> {
    let mut order: Vec<usize> = Vec::new();
    // There is no cycle, so each pass finds one at least.
    while order.len() < tasks.len() {
        let ready = |number: &usize| {
            let is_there = |needed: &usize| order.contains(needed);
            !order.contains(number) && tasks[*number].when.tasks().all(is_there)
        };
        match (0..tasks.len()).find(ready) {
            Some(number) => order.push(number),
            None => break,
        }
    }
    order
}

/// A term, with its task where that is another one.
fn shown(tasks: &[Task], of: usize, needed: Needed<'_>) -> String {
    let term = text(tasks, needed.term);
    match needed.task == of {
        true => term,
        false => format!("{term} (of task {})", tasks[needed.task].name),
    }
}

fn text(tasks: &[Task], term: &Term) -> String {
    shortened(&term.named(|task| &tasks[task].name).to_string())
}
