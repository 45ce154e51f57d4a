//! `docs/policy.md` and `configs/policy`: every example is one.

use std::fs;
use std::path::Path;
use std::process::Command;

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
    blocks
        .into_iter()
        .map(|(number, block)| (number, format!("{}\n", block.trim_end())))
        .collect()
}

/// Runs a line of shell in the repository, with the program under test.
fn shell(line: &str) -> Finished {
    let program = fenxi::<&str>([]);
    let folder = Path::new(program.get_program()).parent().unwrap();
    let path = std::env::var("PATH").unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-ec", line]).current_dir(root());
    shell.env("PATH", format!("{}:{path}", folder.display()));
    shell.env("FENXI_CONFIG", "");
    run(shell)
}

/// Checks a file of rules that stands beside the shipped ones.
fn check(name: &str, text: &str) -> Finished {
    let folder = tempfile::tempdir().unwrap();
    for shipped in ["blocklist.txt", "subscribers.csv"] {
        fs::copy(
            root().join("configs/policy").join(shipped),
            folder.path().join(shipped),
        )
        .unwrap();
    }
    fs::write(folder.path().join("blocked.txt"), "192.0.2.0/24\n").unwrap();
    let file = folder.path().join(name);
    fs::write(&file, text).unwrap();
    run(fenxi(["policy", "check", file.to_str().unwrap()]))
}

/// What a block of the page shows is so.
fn assert_holds(block: &str) {
    let first = block.lines().next().unwrap();
    if let Some(line) = first.strip_prefix("$ ") {
        let (_, shown) = block.split_once('\n').unwrap();
        assert_eq!(shell(line).expect_code(0).stdout, shown, "{line}");
    } else if first.starts_with("fenxi: ") {
        // An error, which the test of wrong files has.
    } else if first.starts_with("fenxi run ") {
        let checked = first.replace("fenxi run", "fenxi check --config-only");
        shell(&checked).expect_code(0);
        for other in block.lines().skip(1) {
            let script = other.split(' ').next().unwrap();
            assert!(root().join(script).exists(), "{other}");
        }
    } else if first.starts_with('@') {
        check("filters", block).expect_code(0);
    } else if first.contains(',') && !first.contains(['[', '=']) {
        check("rules.csv", block).expect_code(0);
    } else {
        let table: toml::Table = block.parse().unwrap();
        let is_rules = ["rule", "sets", "include"]
            .iter()
            .any(|name| table.contains_key(*name));
        match is_rules {
            true => check("rules.toml", block).expect_code(0),
            false => {
                let file = tempfile::NamedTempFile::new().unwrap();
                fs::write(file.path(), block).unwrap();
                let path = file.path().to_str().unwrap();
                run(fenxi(["check", "--config-only", "--config", path])).expect_code(0)
            }
        };
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

/// The files that ship, against the labels of the model that ships: nothing is wrong, and every rule can win.
#[test]
fn shipped_rules_are_right() {
    for (name, rules) in [("home.toml", 4), ("office.toml", 8), ("isp.toml", 10)] {
        let line =
            format!("fenxi policy check configs/policy/{name} --model models/protocol --json");
        let told = shell(&line).expect_code(0).json();
        assert_eq!(told["rules"], rules, "{name}");
        assert_eq!(told["unreachable"], serde_json::json!([]), "{name}: {told}");
        assert_eq!(told["warnings"], serde_json::json!([]), "{name}: {told}");
    }
    let made = shell("configs/policy/make-subscribers 8")
        .expect_code(0)
        .stdout;
    let shipped = fs::read_to_string(root().join("configs/policy/subscribers.csv")).unwrap();
    assert_eq!(
        made, shipped,
        "configs/policy/make-subscribers 8 > configs/policy/subscribers.csv"
    );
    shell("configs/policy/make-subscribers 0").expect_code(64);
    shell("configs/policy/make-subscribers").expect_code(2);
    let config = "fenxi check --config-only --config configs/policy/home-mark.toml";
    shell(config).expect_code(0);
    let office = "fenxi check --config-only --config configs/live-inline.toml --set policy.rules=configs/policy/office.toml";
    shell(office).expect_code(0);
}
