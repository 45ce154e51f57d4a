//! Any bytes as a file of rules: the reader never panics, an error is one line, and what was read
//! is written and reads back.
//!
//! The first byte chooses the format.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use policy::RuleSet;
use rulefiles::{Format, Options, parse_one, read_from, write};

fuzz_target!(|data: &[u8]| {
    let Some((choice, text)) = data.split_first() else {
        return;
    };
    let format = [Format::Toml, Format::Csv, Format::ClassBench][usize::from(choice % 3)];
    if let Ok(text) = std::str::from_utf8(text) {
        let _ = parse_one(&mut RuleSet::default(), text, "typed", RuleSet::named);
    }
    let Some(rules) = read(text, format) else {
        return;
    };
    let numbers = 0..rules.rules.len() as u32;
    let tables = numbers.map(|rule| format!("{{ {} }}", write::one(&rules, rule, None)));
    let toml = format!("rule = [{}]", tables.collect::<Vec<_>>().join(",\n"));
    let is_whole = rules.rules.iter().enumerate().all(|(rule, _)| {
        let rule = rule as u32;
        rules.v4.iter().any(|filter| filter.rule == rule)
            || rules.v6.iter().any(|filter| filter.rule == rule)
    });
    // A rule of an empty set has no text.
    if is_whole {
        let again = read(toml.as_bytes(), Format::Toml).expect("what was written reads back");
        assert_eq!((&again.v4, &again.v6), (&rules.v4, &rules.v6));
        assert_eq!((&again.conditions, &again.actions), (&rules.conditions, &rules.actions));
    }
    policy::analysis::check(&rules, 3);
});

fn read(text: &[u8], format: Format) -> Option<RuleSet> {
    let options = Options { format: Some(format), ..Options::default() };
    match read_from(Path::new("/nowhere/rules"), text, &options) {
        Ok(rules) => Some(rules.set),
        Err(error) => {
            // Messages of the parser may quote the text, never as more lines.
            assert_eq!(error.to_string().lines().count(), 1, "{error}");
            None
        }
    }
}
