//! Rules that `when` of a task names and no file has: no error, because rules may be added later.

use config::Config;
use config::when::{Term, shortened};

use super::finding::Finding;
use crate::rules::Rules;

const CHECK: &str = "when";

pub fn findings(config: &Config, rules: &Rules) -> Vec<Finding> {
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
            let found = findings(&config, &rules);
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
