//! `fenxi policy stats`: how many rules there are of each kind.

use policy::RuleSet;
use policy::analysis::{PortClass, Stats};
use policy::classifier::{Classifier, Description, IsetFigures, TableFull};
use rulefiles::write::protocol_text;
use serde_json::{Value, json};

use super::read;
use crate::cli::PolicyStatsArgs;
use crate::exit::{Failure, print};
use crate::figures::{counted, grouped, scaled};

const ROWS: usize = 10;

/// A name and how many have it.
type Row = (String, usize);

pub fn stats(args: &PolicyStatsArgs) -> Result<(), Failure> {
    let rules = read(&args.rules, &[])?.set;
    let stats = policy::analysis::stats(&rules);
    let index = describe(&rules)?;
    match args.json {
        true => {
            let mut json = as_json(&rules, &stats);
            json["bytes"] = json!(rules.bytes());
            json["index"] = index_as_json(&index);
            print(&format!("{json}\n"))
        }
        false => {
            let memory = format!("{} of memory for rules and filters\n", bytes(rules.bytes()));
            let found = index_page(&index, rules.rules.len());
            print(&(page(&rules, &stats) + &memory + &found))
        }
    }
}

fn page(rules: &RuleSet, stats: &Stats) -> String {
    let mut page = String::new();
    let mut line = |name: &str, count: usize| {
        page += &format!("{name:28} {:>12}\n", grouped(count as u64));
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
    for (title, _, rows) in tables(rules, stats) {
        if rows.is_empty() {
            continue;
        }
        line(title, rows.len());
        for (name, count) in rows.iter().take(ROWS) {
            line(&format!("  {name}"), *count);
        }
        if rows.len() > ROWS {
            let others = rows[ROWS..].iter().map(|(_, count)| count);
            line("  others", others.sum());
        }
    }
    page
}

fn or_nothing(part: &str) -> &str {
    match part {
        "none" => "nothing",
        part => part,
    }
}

/// The tables: the title on the page, the name in JSON, and rows.
fn tables(rules: &RuleSet, stats: &Stats) -> [(&'static str, &'static str, Vec<Row>); 5] {
    let lengths = |(source, destination)| format!("/{source} to /{destination}");
    let ports = |(source, destination): (PortClass, PortClass)| {
        format!("{} to {}", source.name(), destination.name())
    };
    let protocol = |protocol: Option<u8>| protocol.map_or("any".to_owned(), protocol_text);
    let in_port = |number: u8| match number.checked_sub(1) {
        None => "any".to_owned(),
        Some(place) => rules.interfaces[usize::from(place)].clone(),
    };
    [
        ("prefix lengths, IPv4", "v4_lengths", rows(&stats.v4_lengths, lengths)),
        ("prefix lengths, IPv6", "v6_lengths", rows(&stats.v6_lengths, lengths)),
        ("source and destination ports", "ports", rows(&stats.ports, ports)),
        ("protocols", "protocols", rows(&stats.protocols, protocol)),
        ("interfaces", "in_ports", rows(&stats.in_ports, in_port)),
    ]
}

fn rows<K: Copy>(counts: &[(K, usize)], name: impl Fn(K) -> String) -> Vec<Row> {
    counts.iter().map(|(key, count)| (name(*key), *count)).collect()
}

fn as_json(rules: &RuleSet, stats: &Stats) -> Value {
    let mut json = json!({
        "rules": stats.rules,
        "v4_filters": stats.v4_filters,
        "v6_filters": stats.v6_filters,
        "priorities": stats.priorities,
        "named": stats.named,
        "actions": stats.actions,
        "by_action": stats.by_action,
        "conditions": stats.conditions,
        "by_condition": stats.by_condition,
    });
    for (_, name, rows) in tables(rules, stats) {
        let rows = rows.into_iter().map(|(name, count)| (name, json!(count)));
        json[name] = Value::Object(rows.collect());
    }
    json
}

fn bytes(count: usize) -> String {
    format!("{}B", scaled(count as f64))
}

/// Trains the models of IPv4 and IPv6, which takes about a second for 500,000 rules.
fn describe(set: &RuleSet) -> Result<[Description; 2], Failure> {
    let full = |error: TableFull| Failure::data(error.to_string());
    let v4 = Classifier::new(&set.v4).map_err(full)?.describe();
    let v6 = Classifier::new(&set.v6).map_err(full)?.describe();
    Ok([v4, v6])
}

fn index_page(index: &[Description; 2], rules: usize) -> String {
    let mut page = String::new();
    for (family, it) in ["IPv4", "IPv6"].into_iter().zip(index) {
        let filters = it.learned() + it.remainder;
        if filters == 0 {
            continue;
        }
        page += &format!(
            "{family}: models find {} of {} ({:.1} %); {} in {}\n",
            grouped(it.learned() as u64),
            counted(filters as u64, "filter"),
            100.0 * it.learned() as f64 / filters as f64,
            grouped(it.remainder as u64),
            counted(it.tables as u64, "hash table")
        );
        for iset in &it.isets {
            page += &format!(
                "  by {}: {} in {}, {}, at most {} searched\n",
                iset.field,
                counted(iset.filters as u64, "filter"),
                counted(iset.buckets as u64, "bucket"),
                counted(iset.nets as u64, "net"),
                counted(iset.longest_search.into(), "bucket")
            );
        }
    }
    let all: usize = index.iter().map(|it| it.bytes).sum();
    page += &format!(
        "{} of memory to find them, {:.0} bytes for each rule\n",
        bytes(all),
        all as f64 / rules.max(1) as f64
    );
    page
}

fn index_as_json(index: &[Description; 2]) -> Value {
    let family = |it: &Description| {
        let iset = |iset: &IsetFigures| {
            json!({
                "field": iset.field,
                "filters": iset.filters,
                "buckets": iset.buckets,
                "nets": iset.nets,
                "longest_search": iset.longest_search,
            })
        };
        json!({
            "isets": it.isets.iter().map(iset).collect::<Vec<_>>(),
            "remainder": it.remainder,
            "tables": it.tables,
            "bytes": it.bytes,
        })
    };
    json!({"v4": family(&index[0]), "v6": family(&index[1])})
}
