//! The commands and the options of `replay`, each through the real binary: what they print, and
//! with which exit code they end.

use crate::common;

mod bench;
mod config;
mod defaults;
mod devices;
mod init;
mod model;
mod profile;
mod replay;
mod replay_rules;

use std::ffi::OsStr;
use std::fs;

use common::{Finished, fenxi, root, run};
use serde_json::Value;

/// Checks that `docs/devices.md` lists every field of a JSON object and of the objects inside it.
fn assert_on_the_page(object: &Value) {
    let page = fs::read_to_string(root().join("docs/devices.md")).unwrap();
    match object {
        Value::Object(fields) => {
            for (name, value) in fields {
                // Alone or last in a path, or as the front of one.
                let named = ["`NAME`", ".NAME`", "`NAME.", "`NAME[]"];
                let is_named = |form: &&str| page.contains(&form.replace("NAME", name));
                assert!(named.iter().any(is_named), "{name}");
                assert_on_the_page(value);
            }
        }
        Value::Array(items) => items.iter().for_each(assert_on_the_page),
        _ => {}
    }
}

/// Runs the program with these arguments.
fn ran<S: AsRef<OsStr>>(args: &[S]) -> Finished {
    run(fenxi(args))
}

#[test]
fn help_version_and_wrong_usage() {
    let help = ran(&["--help"]).expect_code(0);
    for command in
        ["run", "replay", "check", "init", "config", "model", "devices", "profile", "ctl"]
    {
        assert!(help.stdout.contains(&format!("\n  {command} ")), "{}", help.stdout);
    }
    let replay = ran(&["replay", "--help"]).expect_code(0).stdout;
    for option in [
        "--config",
        "--set",
        "--model",
        "--flows",
        "--series",
        "--write",
        "--label-delay-ms",
        "--speed",
        "--loop",
        "--json",
        "--faults",
    ] {
        assert!(
            replay.contains(&format!("{option} ")) || replay.contains(&format!("{option}\n")),
            "{option} in {replay}"
        );
    }
    assert_eq!(
        ran(&["--version"]).expect_code(0).stdout,
        // Only release builds ask git for the revision.
        format!("fenxi {}\n", env!("CARGO_PKG_VERSION"))
    );
    for (args, part) in [
        (&["replay"][..], "FILE"),
        (&["frobnicate"], "frobnicate"),
        (&["runn"], "a similar subcommand exists: 'run'; see `fenxi --help`"),
        (&["run", "--mode", "bridge"], "[possible values: tap, mark, inline]"),
        (&["replay", "a.pcap", "--sped", "max"], "--speed"),
        (&["replay", "a.pcap", "--speed", "fast"], "expected max, real or a multiple such as 10x"),
        (&["replay", "a.pcap", "--loop", "0"], "--loop"),
        (&["replay", "a.pcap", "--series"], "--flows"),
        (&["replay", "a.pcap", "--faults", "loss=2"], "expected a number from 0 to 1"),
        (&["replay", "-", "-"], "stdin (-) can be replayed only once"),
        (&["replay", "-", "--loop", "2"], "--loop cannot repeat stdin"),
        (&["replay", "a.pcap", "--flows", "-", "--json"], "both write to stdout"),
        (&["replay", "a.pcap", "--write", "-"], "--write needs a file"),
    ] {
        let finished = ran(args).expect_code(64);
        assert_eq!(finished.stdout, "");
        let stderr = &finished.stderr;
        assert!(stderr.contains(part), "{part}: {stderr}");
        // The parser's errors look like all others.
        assert!(stderr.starts_with("fenxi: ") && stderr.lines().count() == 1, "{stderr}");
    }
}
