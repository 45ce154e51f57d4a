//! `fenxi policy stats`: how many rules there are of each kind.

use std::fmt::Write as _;

use policy::RuleSet;
use policy::analysis::{PortClass, Stats};
use rulefiles::write::protocol_text;
use serde_json::{Value, json};

use super::index::{self, bytes};
use super::read;
use crate::cli::PolicyStatsArgs;
use crate::exit::{Failure, print};
use crate::figures::grouped;

/// Maximum rows of a table on the page.
const ROWS: usize = 10;

pub fn stats(args: &PolicyStatsArgs) -> Result<(), Failure> {
    let rules = read(&args.rules, &[])?.set;
    let stats = policy::analysis::stats(&rules);
    let index = index::describe(&rules)?;
    match args.json {
        true => {
            let mut json = as_json(&rules, &stats);
            json["bytes"] = json!(rules.bytes());
            json["index"] = index::as_json(&index);
            print(&format!("{json}\n"))
        }
        false => {
            let memory = format!("{} of memory for rules and filters\n", bytes(rules.bytes()));
            let found = index::page(&index, rules.rules.len());
            print(&(page(&rules, &stats) + &memory + &found))
        }
    }
}

fn page(rules: &RuleSet, stats: &Stats) -> String {
    let mut page = String::new();
    let mut line = |name: &str, count: usize| {
        // Writing to a string cannot fail.
        let _ = writeln!(page, "{name:28} {:>12}", grouped(count as u64));
    };
    line("rules", stats.rules);
    line("filters of IPv4", stats.v4_filters);
    line("filters of IPv6", stats.v6_filters);
    line("priorities", stats.priorities);
    line("rules with a name", stats.named);
    line("distinct actions", stats.actions);
    for (part, count) in &stats.by_action {
        line(&format!("  rules with {}", or_nothing(part)), *count);
    }
    line("distinct conditions", stats.conditions);
    for (part, count) in &stats.by_condition {
        line(&format!("  rules with {}", or_nothing(part)), *count);
    }
    let mut table = |title: &str, rows: Vec<(String, usize)>| {
        if rows.is_empty() {
            return;
        }
        line(title, rows.len());
        for (name, count) in rows.iter().take(ROWS) {
            line(&format!("  {name}"), *count);
        }
        if rows.len() > ROWS {
            let others = rows[ROWS..].iter().map(|(_, count)| count);
            line("  others", others.sum());
        }
    };
    table("prefix lengths, IPv4", lengths(&stats.v4_lengths));
    table("prefix lengths, IPv6", lengths(&stats.v6_lengths));
    table("source and destination ports", ports(&stats.ports));
    table("protocols", protocols(&stats.protocols));
    table("interfaces", in_ports(rules, &stats.in_ports));
    page
}

fn or_nothing(part: &str) -> &str {
    match part {
        "none" => "nothing",
        part => part,
    }
}

fn lengths(counts: &[((u8, u8), usize)]) -> Vec<(String, usize)> {
    let row = |((source, destination), count): &((u8, u8), usize)| {
        (format!("/{source} to /{destination}"), *count)
    };
    counts.iter().map(row).collect()
}

fn ports(counts: &[((PortClass, PortClass), usize)]) -> Vec<(String, usize)> {
    let row = |((source, destination), count): &((PortClass, PortClass), usize)| {
        (format!("{} to {}", source.name(), destination.name()), *count)
    };
    counts.iter().map(row).collect()
}

fn protocols(counts: &[(Option<u8>, usize)]) -> Vec<(String, usize)> {
    let row = |(protocol, count): &(Option<u8>, usize)| {
        (protocol.map_or("any".to_owned(), protocol_text), *count)
    };
    counts.iter().map(row).collect()
}

fn in_ports(rules: &RuleSet, counts: &[(u8, usize)]) -> Vec<(String, usize)> {
    let name = |number: u8| match number.checked_sub(1) {
        None => "any".to_owned(),
        Some(place) => rules.interfaces[usize::from(place)].clone(),
    };
    let row = |(number, count): &(u8, usize)| (name(*number), *count);
    counts.iter().map(row).collect()
}

fn as_json(rules: &RuleSet, stats: &Stats) -> Value {
    let object = |rows: Vec<(String, usize)>| -> Value {
        let rows = rows.into_iter().map(|(name, count)| (name, json!(count)));
        Value::Object(rows.collect())
    };
    json!({
        "rules": stats.rules,
        "v4_filters": stats.v4_filters,
        "v6_filters": stats.v6_filters,
        "priorities": stats.priorities,
        "named": stats.named,
        "actions": stats.actions,
        "by_action": stats.by_action,
        "conditions": stats.conditions,
        "by_condition": stats.by_condition,
        "v4_lengths": object(lengths(&stats.v4_lengths)),
        "v6_lengths": object(lengths(&stats.v6_lengths)),
        "ports": object(ports(&stats.ports)),
        "protocols": object(protocols(&stats.protocols)),
        "in_ports": object(in_ports(rules, &stats.in_ports)),
    })
}
