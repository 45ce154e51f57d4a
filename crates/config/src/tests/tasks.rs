//! `[[task]]`: what it says instead of the sections, and what is refused.

use crate::checked::GOAL_KEYS;
use crate::layers::FileLayer;
use crate::{Config, ConfigErrors};
use analytics::Policy;

use super::{EXAMPLE, load, origin, without_origins};

const WEB: &str = r#"
[model]
path = "m"
[cache]
prefix = 4
[[task]]
name = "web"
model = "w"
devices = ["simulated"]
policy = "slo"
latency_goal_ms = 5
cache_prefix = 6
"#;

/// The files as `0.toml`, `1.toml` and so on, the later over the earlier.
fn load_files(files: &[&str]) -> Result<Config, Vec<String>> {
    let files = files
        .iter()
        .enumerate()
        .map(|(i, text)| FileLayer { name: format!("{i}.toml"), text: (*text).to_owned() });
    let files: Vec<_> = files.collect();
    match Config::from_layers(super::defaults(), &files, &[], &[], Vec::new()) {
        Ok(loaded) => Ok(loaded.config),
        Err(ConfigErrors::Invalid(lines)) => Err(lines),
        Err(ConfigErrors::Unreadable(line)) => panic!("nothing was read: {line}"),
    }
}

/// The part of the program that knows one task only sees what the first task says.
fn assert_same_as_sections(config: &Config) {
    let [task] = config.tasks.as_slice() else {
        panic!("{:?}", config.tasks);
    };
    assert_eq!(task.model, config.model.path);
    assert_eq!(task.devices, config.accel.devices);
    assert_eq!(task.batching, config.analytics);
    assert_eq!(task.cache, config.cache);
    assert_eq!(task.dscp, config.tag.dscp);
    assert_eq!((&task.mark, task.mark_mask), (&config.mark.class, config.mark.mask));
    assert_eq!(task.min_confidence, config.model.min_confidence);
}

#[test]
fn without_a_table_the_sections_are_the_only_task() {
    let file = "[model]\npath = \"/m\"\n[cache]\nprefix = 4\n[accel]\ndevices = [\"simulated\"]";
    let (config, effective) = load(file, &[], &[]).unwrap();
    assert_same_as_sections(&config);
    assert_eq!(config.tasks[0].name, "default");
    assert_eq!(config.model.path, Some("/m".into()));
    let rows = effective.config.iter();
    assert!(rows.clone().all(|row| !row.key.starts_with("task.")));
}

#[test]
fn a_table_goes_over_the_sections_key_by_key() {
    let (config, effective) = load(WEB, &[], &[]).unwrap();
    assert_same_as_sections(&config);
    let task = &config.tasks[0];
    assert_eq!((task.name.as_str(), &task.model), ("web", &Some("w".into())));
    assert_eq!(task.devices[0].provider.name, "simulated");
    let Policy::Slo { latency_goal, .. } = task.batching.policy() else {
        panic!("{:?}", task.batching);
    };
    assert_eq!(latency_goal.as_millis(), 5);
    let cache = task.cache.as_ref().unwrap();
    assert_eq!((cache.prefix, cache.entries), (6, 65_536));
    assert_eq!(origin(&effective, "task.web.policy"), "c.toml:10");

    let (again, _) = load(&effective.to_toml(true), &[], &[]).unwrap();
    assert_eq!(without_origins(&again), without_origins(&config));
}

#[test]
fn a_later_layer_goes_over_a_table_wherever_it_says_so() {
    let sets = ["model.path=s", "task.web.cache_prefix=7"];
    let variables = [("FENXI_ANALYTICS_POLICY", "none")];
    let (config, _) = load(WEB, &variables, &sets).unwrap();
    assert_same_as_sections(&config);
    let task = &config.tasks[0];
    assert_eq!(task.model, Some("s".into()));
    assert_eq!(task.batching.policy(), Policy::None);
    assert_eq!(task.cache.as_ref().map(|cache| cache.prefix), Some(7));

    let later = "[[task]]\nname = \"web\"\ncache_prefix = 8";
    let config = load_files(&[WEB, later]).unwrap();
    assert_eq!(config.tasks[0].cache.as_ref().map(|cache| cache.prefix), Some(8));
    assert_eq!(config.tasks[0].devices[0].provider.name, "simulated");
}

#[test]
fn the_example_files_task_has_the_defaults() {
    let (_, tables) = EXAMPLE.split_once("# [[task]]").unwrap();
    let (table, _) = tables.split_once("\n\n").unwrap();
    let lines = table.lines().map(|line| line.trim_start_matches(['#', ' ']));
    let keys: Vec<_> = lines.filter(|line| line.contains(" = ")).collect();
    let keys = keys.iter().filter(|line| toml::from_str::<toml::Table>(line).is_ok());
    let keys: Vec<_> = keys.copied().collect();
    // What is empty here is as in the sections where it is left out.
    let keys: Vec<_> = keys.into_iter().filter(|line| !line.ends_with("= {}")).collect();
    // Only policies that plan for a goal read it.
    let is_goal = |line: &&str| GOAL_KEYS.iter().any(|id| line.starts_with(id));
    let (goal, others): (Vec<&str>, Vec<&str>) = keys.into_iter().partition(is_goal);
    assert_eq!(goal.len(), GOAL_KEYS.len());
    let file = format!("[[task]]\n{}", others.join("\n"));
    let (shown, _) = load(&file, &[], &[]).unwrap();
    let (built_in, _) = load("", &[], &[]).unwrap();
    assert_eq!(without_origins(&shown), without_origins(&built_in));
    let slo = &["task.default.policy=slo"];
    let (with_goal, _) = load(&format!("{file}\n{}", goal.join("\n")), &[], slo).unwrap();
    let (without, _) = load(&file, &[], slo).unwrap();
    assert_eq!(without_origins(&with_goal), without_origins(&without));
}

/// A reload changes what a task asks for, but not which tasks there are.
#[test]
fn a_reload_takes_over_the_keys_of_a_task_but_no_other_tasks() {
    let loaded = |text: &str| {
        let file = FileLayer { name: "c.toml".to_owned(), text: text.to_owned() };
        Config::from_layers(super::defaults(), &[file], &[], &[], Vec::new()).unwrap()
    };
    let running = loaded("[[task]]\nname = \"a\"\ncache_prefix = 4");
    let next = loaded("[[task]]\nname = \"a\"\ncache_prefix = 5\nmodel = \"m\"");
    let differences = next.effective().differences(&running.effective());
    let live: Vec<_> = differences.live.iter().map(|row| row.key.as_str()).collect();
    assert_eq!(live, ["task.a.model", "task.a.cache_prefix"]);
    assert!(differences.restart.is_empty(), "{differences:?}");
    assert_eq!(next.taken_over_by(&running).unwrap().config, next.config);

    let other = loaded("[[task]]\nname = \"b\"\ncache_prefix = 6");
    let differences = other.effective().differences(&running.effective());
    let restart = differences.restart.iter().map(|row| row.key.as_str());
    assert!(restart.clone().any(|key| key == "task.b.name"));
    assert!(restart.clone().any(|key| key == "task.a.name"));
    let taken = other.taken_over_by(&running).unwrap();
    assert_eq!(taken.config, running.config);
}

#[test]
fn each_wrong_task_gets_one_clear_line() {
    for (file, says) in [
        (
            "[[task]]\nname = \"a\"\n[[task]]\nname = \"a\"",
            "c.toml:4: task.name: there is already a task a; each needs a name of its own",
        ),
        ("\n[[task]]\nmodel = \"m\"", "c.toml:2: task: name is missing"),
        (
            "[[task]]\nname = 3",
            "c.toml:2: task.name: found 3, expected text (letters, digits, - and _)",
        ),
        ("[[task]]\nname = \"a b\"", "c.toml:2: task.a b.name: expected 1 to 32 letters"),
        (
            "[[task]]\nname = \"a\"\npolcy = \"none\"",
            "c.toml:3: unknown key task.a.polcy; did you mean policy?",
        ),
        (
            "[[task]]\nname = \"a\"\ngoal = 5",
            "c.toml:3: unknown key task.a.goal; did you mean latency_goal_ms?",
        ),
        (
            "[[task]]\nname = \"a\"\nbundle = \"m\"",
            "c.toml:3: unknown key task.a.bundle; did you mean model?",
        ),
        (
            "[[task]]\nname = \"none\"",
            "c.toml:2: task.none.name: task = \"none\" in a rule of policy.rules means that no \
             model is asked; choose another",
        ),
        (
            "[[task]]\nname = \"a\"\ncache_prefix = 33",
            "c.toml:3: task.a.cache_prefix: found 33, expected an integer from 0 to 32",
        ),
        (
            "[[task]]\nname = \"a\"\ncache_prefix = 11",
            "task.a.cache_prefix = 11 (c.toml:3) with flow.k = 10 (built-in): impossible \
             combination",
        ),
        (
            "[[task]]\nname = \"a\"\ndevices = [\"simulatd\"]",
            "c.toml:3: task.a.devices: unknown device \"simulatd\"",
        ),
        (
            "[[task]]\nname = \"a\"\ndevices = [\"cpu\", \"cpu\"]",
            "task.a.devices = [\"cpu\", \"cpu\"] (c.toml:3) with pipeline.layout",
        ),
        ("task = 3", "c.toml:1: task is a list of tables: write [[task]]"),
        ("[task]\nname = \"a\"", "c.toml:1: task is a list of tables: write [[task]]"),
    ] {
        let lines = load(file, &[], &[]).expect_err(file);
        assert_eq!(lines.len(), 1, "{file}: {lines:?}");
        assert!(lines[0].contains(says), "{file}: {lines:?}");
    }
    let lines = load("", &[], &["task.a=1"]).unwrap_err();
    assert_eq!(lines, ["--set: task.a: expected task.NAME.KEY=VALUE"]);
}
