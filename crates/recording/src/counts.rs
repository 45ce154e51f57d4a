//! The counters of managers by name, by which a recording is compared with its replay.
//!
//! Durations are among them: a replay takes them from the recorded clocks, so they come out the
//! same.

use analytics::{FailureKind, Trigger};
use cring::Counter;
use flowmgr::record::EndReason;
use flowmgr::verdict::Verdict;

use super::event::CountsByName;

/// A manager whose counters are recorded.
pub trait Counting {
    /// Its counters by name; `classes` are the first task's.
    fn counts(&self, classes: &[String]) -> CountsByName;
}

impl Counting for dataplane::inline::FlowManager {
    fn counts(&self, classes: &[String]) -> CountsByName {
        of_flows(self.counters(), classes)
    }
}

impl Counting for analytics::Manager {
    fn counts(&self, _: &[String]) -> CountsByName {
        let tasks = self.tasks().iter().enumerate();
        let of_task = |(number, task): (usize, &analytics::Task)| {
            let counts = of_series(task.counters()).into_iter();
            counts.map(move |(name, count)| (format!("tasks.{number}.{name}"), count))
        };
        tasks.flat_map(of_task).collect()
    }
}

fn of_flows(counters: &flowmgr::Counters, classes: &[String]) -> CountsByName {
    let classes: Vec<&str> = classes.iter().map(String::as_str).collect();
    let kinds = ["4.tcp", "4.udp", "6.tcp", "6.udp", "4.icmp", "6.icmp"];
    by_name(
        counters,
        &[
            ("verdicts.packets", &Verdict::ALL.map(Verdict::name)),
            ("labelled_by_class", &classes),
            ("flows_begun.kinds", &kinds),
            ("flows_ended", &EndReason::ALL.map(EndReason::name)),
            ("tasks.0.labels_given", &classes),
            ("tasks.0.flows_labelled", &classes),
        ],
    )
}

fn of_series(counters: &analytics::Counters) -> CountsByName {
    let failures = FailureKind::ALL.map(FailureKind::name);
    let lists = (0..counters.devices.len()).map(|at| format!("devices.{at}.failures"));
    let lists: Vec<String> = lists.collect();
    let mut names: Vec<(&str, &[&str])> = lists.iter().map(|it| (&**it, &failures[..])).collect();
    let triggers = Trigger::ALL.map(Trigger::name);
    names.push(("batches", &triggers));
    by_name(counters, &names)
}

/// All counters that are not 0. `names` has lists of counters by their names, and the name of each
/// element, which stands for its index.
fn by_name(counters: &impl Counter, names: &[(&str, &[&str])]) -> CountsByName {
    let named = |name: &str| {
        let (list, names) = names.iter().find(|(list, _)| {
            let rest = name.strip_prefix(list);
            rest.is_some_and(|rest| rest.starts_with('.'))
        })?;
        let path = &name[list.len() + 1..];
        let end = path.find('.').unwrap_or(path.len());
        let element = names.get(path[..end].parse::<usize>().ok()?)?;
        Some(format!("{list}.{element}{}", &path[end..]))
    };
    let mut counts = CountsByName::new();
    counters.list("", &mut |name, count| {
        if count != 0 {
            counts.insert(named(name).unwrap_or_else(|| name.to_owned()), count);
        }
    });
    counts
}

/// The first of the counters that differ, and how many do.
pub fn difference(
    recorded: &CountsByName,
    replayed: &CountsByName,
) -> Option<(String, u64, u64, usize)> {
    let of = |counts: &CountsByName, name: &String| counts.get(name).copied().unwrap_or(0);
    let mut names: Vec<&String> = recorded.keys().chain(replayed.keys()).collect();
    names.sort();
    names.dedup();
    names.retain(|name| of(recorded, name) != of(replayed, name));
    let first = *names.first()?;
    let (was, is) = (of(recorded, first), of(replayed, first));
    Some((first.clone(), was, is, names.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_of_lists_have_names() {
        let classes = ["web".to_owned(), "unknown".to_owned()];
        let mut counters = flowmgr::Counters::new(&[flowmgr::TaskConfig::lengths(10, 2)]);
        counters.flows_short = 1;
        counters.labelled_by_class[1].bytes = 2;
        counters.flows_ended[EndReason::Idle as usize] = 3;
        let counts: Vec<_> = of_flows(&counters, &classes).into_iter().collect();
        let expected =
            [("flows_ended.idle", 3), ("flows_short", 1), ("labelled_by_class.unknown.bytes", 2)];
        assert_eq!(counts, expected.map(|(name, count)| (name.to_owned(), count)));
    }

    #[test]
    fn a_counter_that_is_left_out_is_0() {
        let counts = |pairs: &[(&str, u64)]| -> CountsByName {
            let pairs = pairs.iter().map(|(name, count)| ((*name).to_owned(), *count));
            pairs.collect()
        };
        let recorded = counts(&[("b", 2), ("c", 0), ("d", 1)]);
        assert_eq!(difference(&recorded, &recorded), None);
        assert_eq!(difference(&recorded, &counts(&[("b", 2), ("d", 1)])), None);
        let other = counts(&[("a", 7), ("b", 2), ("d", 3)]);
        let found = difference(&recorded, &other);
        assert_eq!(found, Some(("a".to_owned(), 0, 7, 2)));
    }
}
