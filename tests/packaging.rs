//! What ships around the program: units that systemd takes and that are hardened, alert rules that fire, and no metric
//! named that is not there.

#![allow(
    clippy::expect_used,
    reason = "the helpers of tests may panic as the tests do"
)]

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

fn text(path: &str) -> String {
    std::fs::read_to_string(common::root().join(path)).expect(path)
}

/// Runs `program`; `None` where it is not installed, which is said.
fn tool(test: &str, program: &str, args: &[&str], dir: &Path) -> Option<(bool, String)> {
    let mut command = Command::new(program);
    command.args(args).current_dir(dir);
    command.env("SYSTEMD_UNIT_PATH", format!("{}:", dir.display()));
    let Ok(output) = command.output() else {
        common::skip(test, program);
        return None;
    };
    let said = [output.stdout, output.stderr].concat();
    Some((
        output.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    ))
}

#[test]
fn units_are_valid_and_hardened_with_each_drop_in() {
    let test = "units_are_valid_and_hardened_with_each_drop_in";
    for drop_in in [None, Some("mark"), Some("inline"), Some("gpu")] {
        let dir = tempfile::tempdir().expect("a folder");
        for unit in ["fenxi.service", "fenxi@.service"] {
            let unit_text = text(&format!("packaging/systemd/{unit}"));
            let ours = unit_text.replace("/usr/bin/fenxi", env!("CARGO_BIN_EXE_fenxi"));
            std::fs::write(dir.path().join(unit), ours).expect("a unit");
            if let Some(name) = drop_in {
                let folder = dir.path().join(format!("{unit}.d"));
                std::fs::create_dir(&folder).expect("a folder");
                let conf = text(&format!("packaging/systemd/{name}.conf"));
                std::fs::write(folder.join("mode.conf"), conf).expect("a drop-in");
            }
        }
        for unit in ["fenxi.service", "fenxi@.service"] {
            let path = dir.path().join(unit).display().to_string();
            let verify = tool(test, "systemd-analyze", &["verify", &path], dir.path());
            let Some((valid, said)) = verify else { return };
            assert!(valid && said.is_empty(), "{unit} {drop_in:?}: {said}");
            let args = ["security", "--offline=true", "--threshold=30", &path];
            let (hard, said) = tool(test, "systemd-analyze", &args, dir.path()).expect("as before");
            assert!(hard, "{unit} {drop_in:?}: {said}");
        }
    }
}

#[test]
fn the_template_differs_from_the_unit_only_in_its_names() {
    let settings = |path: &str| -> BTreeSet<String> {
        let own = [
            "Description=",
            "Environment=",
            "ExecStart=",
            "ExecReload=",
            "RuntimeDirectory=",
        ];
        let unit = text(path);
        let lines = unit.lines().filter(|line| !line.starts_with('#'));
        lines
            .filter(|line| !own.iter().any(|key| line.starts_with(key)))
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(
        settings("packaging/systemd/fenxi.service"),
        settings("packaging/systemd/fenxi@.service")
    );
}

#[test]
fn alerts_fire_when_they_should_and_not_else() {
    let dir = common::root().join("packaging/prometheus");
    let args = ["test", "rules", "alerts_test.yml"];
    if let Some((passed, said)) = tool(
        "alerts_fire_when_they_should_and_not_else",
        "promtool",
        &args,
        &dir,
    ) {
        assert!(passed, "{said}");
    }
}

#[test]
fn every_metric_named_is_in_the_catalogue() {
    let page = text("docs/metrics.md");
    let rows = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let known: BTreeSet<&str> = rows.collect();
    for path in [
        "packaging/prometheus/alerts.yml",
        "packaging/grafana/fenxi.json",
    ] {
        let file = text(path);
        let words = file.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let named: BTreeSet<&str> = words.filter(|word| word.starts_with("fenxi_")).collect();
        assert!(named.len() > 8, "{path}: {named:?}");
        for name in named {
            let base = ["_bucket", "_count", "_sum"]
                .iter()
                .find_map(|end| name.strip_suffix(end));
            assert!(
                known.contains(base.unwrap_or(name)),
                "{path}: {name} is not in docs/metrics.md"
            );
        }
    }
}
