//! `fenxi ctl policy`: rules of a running instance.

use super::{absolute, read, table};
use crate::cli::{CtlPolicyCommand, Switch};
use crate::exit::Failure;
use crate::figures::{counted, grouped};
use crate::protocol::{CHANGES_MAX, PolicyChanged, PolicyShown, Request, RuleRow};

pub fn request(command: &CtlPolicyCommand) -> Result<Request, Failure> {
    let lines = |word: &str, rules: &[String]| {
        // Line feeds separate changes; within a rule they mean nothing.
        let line = |rule: &String| format!("{word} {}", rule.replace(['\n', '\r'], " "));
        let lines: Vec<String> = rules.iter().map(line).collect();
        Request::PolicyChange { changes: lines.join("\n") }
    };
    Ok(match command {
        CtlPolicyCommand::Load { file } => Request::PolicyLoad { file: absolute(file)? },
        CtlPolicyCommand::Add { rules } => lines("add", rules),
        CtlPolicyCommand::Delete { rules } => lines("delete", rules),
        CtlPolicyCommand::Change { file } => {
            let cure = "send several batches, or all rules by `fenxi ctl policy load`";
            Request::PolicyChange { changes: read(file, CHANGES_MAX, cure)? }
        }
        CtlPolicyCommand::Show { rule, counters, limit } => {
            Request::PolicyShow { rule: rule.clone(), counters: *counters, limit: *limit }
        }
        CtlPolicyCommand::Undo => Request::PolicyUndo {},
        CtlPolicyCommand::Profile { name, switch } => {
            Request::PolicyProfile { name: name.clone(), on: *switch == Switch::On }
        }
    })
}

pub fn changed_line(changed: &PolicyChanged) -> String {
    let mut parts = Vec::new();
    match (changed.first, changed.added) {
        (Some(first), 1) => parts.push(format!("rule {first} added")),
        (Some(first), added) => parts.push(format!("rules {first} to {} added", first + added - 1)),
        (None, _) => {}
    }
    if changed.deleted > 0 {
        parts.push(format!("{} deleted", counted(changed.deleted, "rule")));
    }
    parts.push(format!("{} in use", counted(changed.rules, "rule")));
    if changed.is_pending {
        parts.push("the change counts once an index is trained with it".to_owned());
    }
    parts.join("; ") + "\n"
}

pub fn page(shown: &PolicyShown) -> String {
    let mut page = String::new();
    let has_counters = shown.rows.iter().any(|row| row.flows.is_some());
    let header = match has_counters {
        true => "number|flows|packets|bytes|from|rule",
        false => "number|from|rule",
    };
    if !shown.rows.is_empty() {
        let rows = shown.rows.iter().map(|row| cells(row, has_counters));
        page += &table(header, rows);
    }
    page += &counted(shown.rules, "rule");
    if (shown.rows.len() as u64) < shown.rules {
        page += &format!(", {} shown", grouped(shown.rows.len() as u64));
    }
    if shown.changes > 0 {
        page += &format!("; changed {} times since they were read", shown.changes);
    }
    for profile in &shown.profiles {
        page += &format!("; profile {} is {}", profile.name, if profile.on { "on" } else { "off" });
    }
    if shown.is_pending {
        page += "; changes wait for a training before they count";
    }
    page + "\n"
}

fn cells(row: &RuleRow, has_counters: bool) -> Vec<String> {
    let mut cells = vec![row.number.to_string()];
    if has_counters {
        let counters = [row.flows, row.packets, row.bytes];
        cells.extend(counters.map(|count| count.map_or("-".to_owned(), grouped)));
    }
    cells.push(row.place.clone());
    cells.push(match &row.closed {
        Some(why) => format!("{} [{why}]", row.rule),
        None => row.rule.clone(),
    });
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_told_in_one_line() {
        let changed =
            PolicyChanged { first: Some(3), added: 2, deleted: 1, rules: 1, is_pending: true };
        assert_eq!(
            changed_line(&changed),
            "rules 3 to 4 added; 1 rule deleted; 1 rule in use; the change counts once an index is \
            trained with it\n"
        );
    }

    #[test]
    fn rules_on_the_command_line_are_lines() {
        let rules = ["drop = true".to_owned(), "dscp =\n\"CS1\"".to_owned()].to_vec();
        let request = request(&CtlPolicyCommand::Add { rules }).unwrap();
        let changes = "add drop = true\nadd dscp = \"CS1\"".to_owned();
        assert_eq!(request, Request::PolicyChange { changes });
    }
}
