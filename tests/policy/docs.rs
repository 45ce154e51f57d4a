//! `docs/policy.md` and `configs/policy`: every example is one.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::common::{Finished, fenxi, root, run};

/// The blocks of code of a page, without their indentation, each with the number of its first line.
fn blocks(page: &str) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let mut is_open = false;
    for (number, line) in (1..).zip(page.lines()) {
        match line.strip_prefix("    ") {
            Some(code) if is_open => {
                let (_, block) = blocks.last_mut().unwrap();
                *block += &format!("{code}\n");
            }
            Some(code) => {
                blocks.push((number, format!("{code}\n")));
                is_open = true;
            }
            // An empty line may stand inside.
            None if line.is_empty() && is_open => blocks.last_mut().unwrap().1 += "\n",
            None => is_open = false,
        }
    }
    blocks.into_iter().map(|(number, block)| (number, format!("{}\n", block.trim_end()))).collect()
}

/// A copy of `configs/policy`, with what else the page names.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(root().join("configs/policy")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    fs::write(folder.path().join("blocked.txt"), "192.0.2.0/24\n").unwrap();
    folder
}

/// Runs a line of shell in a folder, with the program under test.
fn shell(folder: &Path, line: &str) -> Finished {
    let program = fenxi::<&str>([]);
    let programs = Path::new(program.get_program()).parent().unwrap();
    let path = std::env::var("PATH").unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-ec", line]).current_dir(folder);
    shell.env("PATH", format!("{}:{path}", programs.display()));
    shell.env("FENXI_CONFIG", "");
    run(shell)
}

/// Lines behind `$`, each with what the page shows of its output.
fn dialogue(block: &str) -> Vec<(&str, String)> {
    let mut turns: Vec<(&str, String)> = Vec::new();
    for line in block.lines() {
        match line.strip_prefix("$ ") {
            Some(command) => turns.push((command, String::new())),
            None => turns.last_mut().unwrap().1 += &format!("{line}\n"),
        }
    }
    turns
}

/// What a block of the page shows is so.
fn assert_holds(block: &str) {
    let folder = folder();
    let check = |name: &str| {
        fs::write(folder.path().join(name), block).unwrap();
        shell(folder.path(), &format!("fenxi policy check {name}")).expect_code(0);
    };
    let first = block.lines().next().unwrap();
    if first.starts_with("$ fenxi ctl ") {
        // Needs a run: `rules_change_while_flows_go_on` in tests/run/rules.rs has these commands.
    } else if first.starts_with("$ ") {
        for (line, shown) in dialogue(block) {
            assert_eq!(shell(folder.path(), line).expect_code(0).stdout, shown, "{line}");
        }
    } else if first.starts_with("fenxi: ") {
        // An error, which the test of wrong files has.
    } else if first.starts_with("fenxi run ") {
        let checked = first.replace("fenxi run", "fenxi check --config-only");
        shell(&root(), &checked).expect_code(0);
        for other in block.lines().skip(1) {
            let script = other.split(' ').next().unwrap();
            assert!(root().join(script).exists(), "{other}");
        }
    } else if first.starts_with('@') {
        check("filters");
    } else if first.contains(',') && !first.contains(['[', '=']) {
        check("rules.csv");
    } else {
        let table: toml::Table = block.parse().unwrap();
        match ["rule", "sets", "include"].iter().any(|name| table.contains_key(*name)) {
            true => check("rules.toml"),
            false => {
                fs::write(folder.path().join("fenxi.toml"), block).unwrap();
                shell(folder.path(), "fenxi check --config-only --config fenxi.toml")
                    .expect_code(0);
            }
        }
    }
}

#[test]
fn every_example_of_the_page_is_one() {
    let page = fs::read_to_string(root().join("docs/policy.md")).unwrap();
    let blocks = blocks(&page);
    assert!(blocks.len() >= 14, "{}", blocks.len());
    for (number, block) in blocks {
        println!("docs/policy.md:{number}");
        assert_holds(&block);
    }
}

/// The files that ship, against the labels of the model that ships: nothing is wrong, and every
/// rule can win.
#[test]
fn shipped_rules_are_right() {
    for (name, rules) in [
        ("configs/policy/home.toml", 4),
        ("configs/policy/office.toml", 8),
        ("configs/policy/family.toml", 3),
        ("configs/policy/isp.toml", 10),
        ("examples/shaper/rules.toml", 5),
    ] {
        let line = format!("fenxi policy check {name} --model models/protocol --json");
        let told = shell(&root(), &line).expect_code(0).json();
        assert_eq!(told["rules"], rules, "{name}");
        assert_eq!(told["unreachable"], serde_json::json!([]), "{name}: {told}");
        assert_eq!(told["warnings"], serde_json::json!([]), "{name}: {told}");
    }
    let made = shell(&root(), "configs/policy/make-subscribers 8").expect_code(0).stdout;
    let shipped = fs::read_to_string(root().join("configs/policy/subscribers.csv")).unwrap();
    assert_eq!(made, shipped, "configs/policy/make-subscribers 8 > configs/policy/subscribers.csv");
    shell(&root(), "configs/policy/make-subscribers 0").expect_code(64);
    shell(&root(), "configs/policy/make-subscribers").expect_code(2);
    let config = "fenxi check --config-only --config configs/policy/home-mark.toml";
    shell(&root(), config).expect_code(0);
    let office = "fenxi check --config-only --config configs/live-inline.toml --set \
        policy.rules=configs/policy/office.toml";
    shell(&root(), office).expect_code(0);
}
