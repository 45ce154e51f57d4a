//! What is written as TOML, as CSV or as one rule reads back to the same rules.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

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
        one(&["\"tcp\"", "\"udp\"", "47"]),
        one(&["\"eth0\"", "\"wan, \\\"2\\\"\""]),
    );
    let conditions = (
        list(&["DNS", "web", "Google \\\"Home\\\", new"]),
        one(&["\"10 MiB\"", "\"1.5 KiB\"", "\"0 B\"", "\"1234567 B\""]),
        one(&["0", "1000"]),
        one(&["\"30 s\"", "\"1.5 min\"", "\"7 ms\""]),
        one(&["\"5 Mbit/s\"", "\"1 bit/s\""]),
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
            ("app", c.0),
            ("over.bytes", c.1),
            ("over.packets", c.2),
            ("over.age", c.3),
            ("over.rate", c.4),
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

        let mut toml = Vec::new();
        write::toml(&first, &mut toml).unwrap();
        fs::write(path("b.toml"), toml).unwrap();
        assert_same(&first, &read(&path("b.toml"), &Options::default()).unwrap().set);

        let mut csv = Vec::new();
        write::csv(&first, &mut csv).unwrap();
        fs::write(path("c.csv"), csv).unwrap();
        assert_same(&first, &read(&path("c.csv"), &Options::default()).unwrap().set);

        let mut typed = RuleSet::default();
        typed.interfaces.clone_from(&first.interfaces);
        for rule in 0..first.rules.len() as RuleNumber {
            parse_one(&mut typed, &write::one(&first, rule, None), "typed").unwrap();
        }
        assert_same(&first, &typed);
    }
}
