//! A rule that is written as text reads back to the same rule, alone, in TOML and in CSV.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use policy::{RuleNumber, RuleSet};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use rulefiles::{Options, parse_one, read, write};

/// A list of some of these values, as TOML.
fn list(values: &'static [&'static str]) -> impl Strategy<Value = Option<String>> {
    let some = subsequence(values.to_vec(), 1..=values.len());
    prop::option::of(some.prop_map(|some| format!("{some:?}")))
}

/// One of these values, as TOML.
fn one(values: &'static [&'static str]) -> impl Strategy<Value = Option<String>> {
    prop::option::of(select(values.to_vec()).prop_map(str::to_owned))
}

fn rule() -> impl Strategy<Value = String> {
    let boxes = (
        list(&["10.0.0.0/8", "192.0.2.1", "0.0.0.0/0", "2001:db8::/32", "::1", "::/0"]),
        list(&["10.0.0.0/8", "198.51.100.0/24"]),
        list(&["53", "80", "1000-2000", "2001-3000", "0-65535"]),
        list(&["443", "8000-8080", "0", "65535"]),
        one(&["\"tcp\"", "\"udp\"", "\"icmp\"", "58", "47"]),
        one(&["\"eth0\"", "\"wan, \\\"2\\\"\""]),
        list(&["laptop", "tv.lan", "02:00:5e:10:00:01", "10.0.0.0/8", "192.0.2.1", "::1"]),
    );
    let conditions = (
        (
            select(vec!["app", "volume", "duration", "rate"]),
            list(&["DNS", "web", "Google \\\"Home\\\", new"]),
        ),
        one(&["\"10 MiB\"", "\"1.5 KiB\"", "\"0 B\"", "\"1234567 B\""]),
        one(&["0", "1000"]),
        one(&["\"30 s\"", "\"1.5 min\"", "\"7 ms\""]),
        one(&["\"5 Mbit/s\"", "\"1 bit/s\""]),
        list(&["20", "0", "300-4094"]),
        list(&["EF", "5", "CS0"]),
        list(&["mon-fri 21:00-06:30", "sat,sun", "8:00-17:00", "mon-sun"]),
        one(&["\"kids\"", "\"at work\""]),
    );
    let actions = (
        one(&["0", "1", "4294967295"]),
        one(&["\"EF\"", "5", "\"CS0\""]),
        one(&["\"0x10/0xff\"", "0xffffffff", "7"]),
        one(&["\"none\"", "\"first\""]),
        one(&["\"DNS\""]),
        one(&["0", "0.1", "1e-5", "1.0"]),
        one(&["\"probe\""]),
        one(&["true", "false"]),
    );
    (boxes, conditions, actions).prop_map(|(b, c, a)| {
        let keys = [
            ("source", b.0),
            ("destination", b.1),
            ("source_port", b.2),
            ("destination_port", b.3),
            ("protocol", b.4),
            ("in_port", b.5),
            (c.0.0, c.0.1),
            ("over.bytes", c.1),
            ("over.packets", c.2),
            ("over.age", c.3),
            ("over.rate", c.4),
            ("host", b.6),
            ("vlan", c.5),
            ("dscp_seen", c.6),
            ("when", c.7),
            ("profile", c.8),
            ("priority", a.0),
            ("dscp", a.1),
            ("mark", a.2),
            ("task", a.3),
            ("label", a.4),
            ("sample", a.5),
            ("mirror", a.6),
            ("drop", a.7),
        ];
        let said = keys.into_iter().filter_map(|(key, value)| Some((key, value?)));
        said.map(|(key, value)| format!("{key} = {value}\n")).collect()
    })
}

/// All but places and the hash tables.
fn assert_same(one: &RuleSet, two: &RuleSet) {
    assert_eq!((&one.v4, &one.v6), (&two.v4, &two.v6));
    assert_eq!((&one.conditions, &one.actions), (&two.conditions, &two.actions));
    assert_eq!((&one.interfaces, &one.names), (&two.interfaces, &two.names));
    let parts = |rules: &RuleSet| -> Vec<_> {
        let rules = rules.rules.iter();
        rules.map(|rule| (rule.rank, rule.condition, rule.action)).collect()
    };
    assert_eq!(parts(one), parts(two));
}

/// Rules as CSV, from their texts.
fn csv(texts: &[String]) -> String {
    let rows: Vec<BTreeMap<String, String>> = texts.iter().map(|text| row(text)).collect();
    let mut columns: BTreeSet<&str> = BTreeSet::from(["name"]);
    columns.extend(rows.iter().flatten().map(|(key, _)| key.as_str()));
    let mut lines = vec![columns.iter().copied().collect::<Vec<_>>().join(",")];
    for row in &rows {
        let cell = |key: &&str| row.get(*key).map_or("", String::as_str);
        lines.push(columns.iter().map(cell).collect::<Vec<_>>().join(","));
    }
    lines.join("\n")
}

/// A cell for each key of a rule.
fn row(text: &str) -> BTreeMap<String, String> {
    let table: toml::Table = format!("rule = {{ {text} }}").parse().unwrap();
    let mut row = BTreeMap::new();
    for (key, value) in table["rule"].as_table().unwrap() {
        match value.as_table() {
            Some(bounds) => {
                row.extend(bounds.iter().map(|(it, bound)| (format!("{key}.{it}"), cell(bound))));
            }
            None => drop(row.insert(key.clone(), cell(value))),
        }
    }
    row
}

fn cell(value: &toml::Value) -> String {
    let text = |it: &toml::Value| it.as_str().map_or_else(|| it.to_string(), str::to_owned);
    let text = match value.as_array() {
        Some(all) => all.iter().map(text).collect::<Vec<_>>().join(";"),
        None => text(value),
    };
    match text.contains(['"', ',']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

proptest! {
    #[test]
    fn rules_read_back(rules in prop::collection::vec(rule(), 0..6)) {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let text: String = rules
            .iter()
            .enumerate()
            .map(|(number, rule)| format!("[[rule]]\nname = \"rule {number}\"\n{rule}\n"))
            .collect();
        fs::write(path("a.toml"), text).unwrap();
        // Families may not fit together.
        let Ok(first) = read(&path("a.toml"), &Options::default()) else {
            return Ok(());
        };
        let first = first.set;

        let texts = (0..first.rules.len() as RuleNumber).map(|rule| write::one(&first, rule, None));
        let texts: Vec<String> = texts.collect();
        let tables: Vec<String> = texts.iter().map(|text| format!("{{ {text} }}")).collect();
        fs::write(path("b.toml"), format!("rule = [{}]\n", tables.join(",\n"))).unwrap();
        assert_same(&first, &read(&path("b.toml"), &Options::default()).unwrap().set);

        fs::write(path("c.csv"), csv(&texts)).unwrap();
        assert_same(&first, &read(&path("c.csv"), &Options::default()).unwrap().set);

        let mut typed = RuleSet::default();
        typed.interfaces.clone_from(&first.interfaces);
        for text in &texts {
            parse_one(&mut typed, text, "typed", RuleSet::named).unwrap();
        }
        assert_same(&first, &typed);
    }
}
