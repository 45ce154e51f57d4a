//! The tasks of a configuration: which model is asked about which flows, and where its labels go.
//! Drawn as a graph, in which a task stands below the one whose label it waits for.

use accel::Bundle;
use serde::Serialize;

use config::Config;
use config::checked::{Batching, IoMode, PolicyName, Task};
use config::when::{Term, shortened};
use dataplane::tasks::OpenTask;

use super::finding::Finding;
use crate::escape::escape;
use crate::rules::Rules;
use crate::sinks;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TaskRow {
    name: String,
    model: String,
    version: String,
    /// After how many elements the model is asked; the last is K.
    depths: Vec<usize>,
    /// Which flows it is asked about; empty: all.
    when: String,
    /// Numbers of the tasks whose labels it waits for.
    #[serde(skip)]
    needs: Vec<usize>,
    /// The names of these tasks.
    after: Vec<String>,
    /// Devices by name, one for each of the layout.
    devices: Vec<String>,
    /// Why these; empty where the configuration names them.
    devices_why: String,
    #[serde(skip)]
    shown_devices: String,
    /// Who labels, and why; empty where `pipeline.layout` says who.
    labelled: String,
    /// When a batch fires, with its goal or timeout; or inline.
    policy: String,
    /// The lowest is shed first.
    priority: u8,
    labels_to: Vec<String>,
}

pub fn rows(config: &Config, bundles: &[Bundle], open: &[OpenTask]) -> Vec<TaskRow> {
    let tasks = config.tasks.iter().zip(bundles).enumerate();
    let row = |(number, (task, bundle)): (usize, (&Task, &Bundle))| {
        let mut needs: Vec<usize> = task.when.tasks().copied().collect();
        needs.sort_unstable();
        needs.dedup();
        let name = |number: usize| config.tasks[number].name.as_str();
        TaskRow {
            name: task.name.clone(),
            model: bundle.name().to_owned(),
            version: bundle.version().to_owned(),
            depths: bundle.depths().iter().map(|it| it.elements).collect(),
            when: task.when.named(name).to_string(),
            after: needs.iter().map(|&at| name(at).to_owned()).collect(),
            needs,
            devices: task.devices.iter().map(|it| it.name.clone()).collect(),
            devices_why: task.devices_why.clone(),
            shown_devices: task.shown_devices(),
            labelled: open[number].labels_why.clone(),
            policy: match open[number].is_inline {
                true => "inline".to_owned(),
                false => policy(&task.batching),
            },
            priority: task.priority,
            labels_to: labels_to(config, number, task),
        }
    };
    tasks.map(row).collect()
}

/// A policy in two words.
fn policy(batching: &Batching) -> String {
    let name = batching.name.name();
    let time = match batching.name {
        PolicyName::None | PolicyName::Max => return name.to_owned(),
        PolicyName::CarryOver | PolicyName::Timeout => batching.timeout,
        PolicyName::Slo | PolicyName::OnOff => batching.latency_goal,
    };
    format!("{name} {} ms", time.as_secs_f64() * 1000.0)
}

/// Where the labels of a task have an effect in the mode that runs.
fn labels_to(config: &Config, number: usize, task: &Task) -> Vec<String> {
    let mut places = Vec::new();
    if config.io.mode == IoMode::Inline && config.tag.enabled && !task.dscp.is_empty() {
        places.push("dscp".to_owned());
    }
    if config.io.mode == IoMode::Mark && !task.mark.is_empty() {
        places.push(format!("mark {:#x}", task.mark_mask));
    }
    let of_sinks = sinks::places(config).filter(|(task, _)| *task == number);
    places.extend(of_sinks.map(|(_, place)| place));
    if task.records {
        places.push("records".to_owned());
    }
    places
}

/// Who labels, task by task, where that was left open.
pub fn labelled(rows: &[TaskRow]) -> String {
    let known = rows.iter().filter(|row| !row.labelled.is_empty());
    let lines = known.map(|row| format!("  {:<15} {}\n", row.name, row.labelled));
    let lines: String = lines.collect();
    match lines.is_empty() {
        true => lines,
        false => format!("\nwho labels\n{lines}"),
    }
}

/// The graph: a line for each task, below the first whose label it waits for. `is_deep`: with
/// depths, batching and priorities.
pub fn graph(rows: &[TaskRow], is_deep: bool) -> String {
    let mut page = "\ntasks\n".to_owned();
    let roots: Vec<usize> = children(rows, None);
    for root in roots {
        page += &format!("  {}\n", line(&rows[root], is_deep));
        below(rows, root, "  ", is_deep, &mut page);
    }
    page
}

/// The tasks that wait for `parent`, and first of all for it.
fn children(rows: &[TaskRow], parent: Option<usize>) -> Vec<usize> {
    let numbers = 0..rows.len();
    numbers.filter(|&at| rows[at].needs.first().copied() == parent).collect()
}

fn below(rows: &[TaskRow], parent: usize, indent: &str, is_deep: bool, page: &mut String) {
    let children = children(rows, Some(parent));
    for (at, &child) in children.iter().enumerate() {
        let is_last = at + 1 == children.len();
        let (branch, more) = match is_last {
            true => ("└─► ", "    "),
            false => ("├─► ", "│   "),
        };
        *page += &format!("{indent}{branch}{}\n", line(&rows[child], is_deep));
        below(rows, child, &format!("{indent}{more}"), is_deep, page);
    }
}

fn line(row: &TaskRow, is_deep: bool) -> String {
    let TaskRow { name, model, version, shown_devices, policy, priority, .. } = row;
    let mut line = match is_deep {
        true => {
            let depths: Vec<String> = row.depths.iter().map(ToString::to_string).collect();
            let k = depths.join(", ");
            format!(
                "{name} ({model} {version}; K {k}; {shown_devices}; {policy}; priority {priority})"
            )
        }
        false => format!("{name} ({model} {version}; {shown_devices})"),
    };
    // It stands below the first of the tasks that it waits for.
    if let [_, others @ ..] = row.after.as_slice()
        && !others.is_empty()
    {
        line = format!("{line}, also after {}", others.join(", "));
    }
    if !row.when.is_empty() {
        line = format!("{line} when {}", row.when);
    }
    let to = match row.labels_to.is_empty() {
        true => String::new(),
        false => format!(" ─► {}", row.labels_to.join(", ")),
    };
    escape(&(line + &to)).into_owned()
}

/// Rules that `when` of a task names and no file has: no error, because rules may be added later.
pub fn missing_rules(config: &Config, rules: &Rules) -> Vec<Finding> {
    const CHECK: &str = "when";
    let mut findings = Vec::new();
    for task in &config.tasks {
        let choices = task.when.terms.iter().filter_map(|term| match term {
            Term::Rule(choice) => Some(choice),
            _ => None,
        });
        let names = choices.flat_map(|choice| &choice.names);
        for name in names.filter(|name| !rules.has(name)) {
            let cause = format!("{}: {}", task.when_origin, missing(config, rules, name));
            findings.push(Finding::warning(CHECK, &task.name, cause));
        }
    }
    findings
}

fn missing(config: &Config, rules: &Rules, name: &str) -> String {
    let shown = shortened(name);
    match &config.policy.rules {
        None => format!(
            "there is no rule {shown}, because policy.rules names no file; name one, or add the \
            rule to the run with fenxi ctl policy add"
        ),
        Some(file) => {
            let near = rules.nearest(name);
            let near = near.map_or(String::new(), |near| format!("; did you mean {near}?"));
            format!("there is no rule {shown} in {}{near}", file.display())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, needs: &[usize]) -> TaskRow {
        let names = ["a", "b", "c"];
        TaskRow {
            name: name.to_owned(),
            model: "m".to_owned(),
            version: "1".to_owned(),
            depths: vec![3, 10],
            when: String::new(),
            needs: needs.to_vec(),
            after: needs.iter().map(|&at| names[at].to_owned()).collect(),
            devices: vec!["cpu".to_owned(), "cpu".to_owned()],
            devices_why: String::new(),
            shown_devices: "cpu".to_owned(),
            labelled: String::new(),
            policy: "none".to_owned(),
            priority: 5,
            labels_to: Vec::new(),
        }
    }

    #[test]
    fn a_task_stands_below_the_first_that_it_waits_for() {
        let rows =
            [row("a", &[]), row("b", &[0]), row("c", &[]), row("d", &[1, 2]), row("e", &[0])];
        let drawn = graph(&rows, true);
        let lines: Vec<&str> = drawn.lines().collect();
        let starts = [
            "",
            "tasks",
            "  a (m 1; K 3, 10; cpu; none; priority 5)",
            "  ├─► b (",
            "  │   └─► d (m 1; K 3, 10; cpu; none; priority 5), also after c",
            "  └─► e (",
            "  c (",
        ];
        assert_eq!(lines.len(), starts.len(), "{drawn}");
        for (line, start) in lines.iter().zip(starts) {
            assert!(line.starts_with(start), "{drawn}");
        }
    }

    #[test]
    fn a_line_says_when_and_where_to() {
        let shown = TaskRow {
            when: "a.confidence < 0.9".to_owned(),
            labels_to: vec!["dscp".to_owned(), "records".to_owned()],
            name: "x\ny".to_owned(),
            ..row("x", &[0])
        };
        let line = line(&shown, false);
        assert!(line.ends_with(" when a.confidence < 0.9 ─► dscp, records"), "{line}");
        assert!(!line.contains('\n'), "{line}");
    }

    #[test]
    fn labels_go_where_the_mode_takes_them() {
        let to = |sets: &[&str]| {
            let own = ["task.a.name=a", "task.b.mark={ x = 0x10 }", "task.b.dscp={ x = 1 }"];
            let sets = own.iter().chain(sets);
            let sets: Vec<String> = sets.map(|set| (*set).to_owned()).collect();
            let config = Config::load(None, &sets).unwrap();
            let tasks = config.tasks.iter().enumerate();
            let to = tasks.map(|(number, task)| labels_to(&config, number, task).join(", "));
            to.collect::<Vec<_>>()
        };
        assert_eq!(to(&[]), ["records", "records"]);
        let mark = to(&["io.mode=mark", "task.b.records=false"]);
        assert_eq!(mark, ["mark 0xff000000, records", "mark 0x10"]);
        let inline = to(&["io.mode=inline", "io.interfaces=[\"a\", \"b\"]"]);
        assert_eq!(inline, ["dscp, records", "dscp, records"]);
    }

    #[test]
    fn a_policy_has_its_goal_or_its_timeout() {
        let shown = |sets: &[&str]| {
            let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
            policy(&Config::load(None, &sets).unwrap().analytics)
        };
        assert_eq!(shown(&[]), "carry-over 10 ms");
        assert_eq!(shown(&["analytics.policy=max"]), "max");
        let goal = ["analytics.policy=on-off", "analytics.latency_goal_ms=2.5"];
        assert_eq!(shown(&goal), "on-off 2.5 ms");
    }
}

#[cfg(test)]
mod tests_of_whens {
    use super::*;
    use crate::rules::Traffic;

    #[test]
    fn a_rule_that_is_missing_is_named_with_a_near_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("r.toml");
        std::fs::write(&file, "[[rule]]\nname = \"guests\"\n").unwrap();
        let rules = format!("policy.rules={}", file.display());
        let causes = |sets: &[&str]| {
            let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
            let config = Config::load(None, &sets).unwrap();
            let rules = Rules::load(&config, &[], Traffic::Live).unwrap();
            let found = missing_rules(&config, &rules);
            found.into_iter().map(|it| it.cause).collect::<Vec<_>>()
        };
        assert!(causes(&["task.a.when=rule = guests", &rules]).is_empty());
        let cause = causes(&["task.a.when=rule = guest", &rules]).join("\n");
        assert!(cause.starts_with("--set: there is no rule guest in "), "{cause}");
        assert!(cause.ends_with("r.toml; did you mean guests?"), "{cause}");
        let cause = causes(&["task.a.when=rule != guests"]).join("\n");
        assert!(cause.contains("because policy.rules names no file"), "{cause}");
    }
}
