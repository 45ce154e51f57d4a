//! Rules that are too much: each ends soon, in a bounded space, with one line.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{Finished, fenxi, run};
use crate::policy::{Files, json};

/// `fenxi policy COMMAND FILE ARGS`, which may not map more memory than this, MiB.
fn within(mib: u64, command: &str, file: &Path, args: &[&str]) -> Command {
    let program = fenxi::<&str>([]);
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -v {}; exec \"$0\" \"$@\"", mib << 10)]);
    shell.arg(program.get_program()).args(["policy", command]);
    shell.arg(file).args(args);
    shell
}

/// Ends with this code, and says one line that has this.
fn assert_refused(finished: Finished, code: i32, part: &str) {
    let finished = finished.expect_code(code);
    assert_eq!(
        (finished.stdout.as_str(), finished.stderr.lines().count()),
        ("", 1),
        "{}",
        finished.stderr
    );
    assert!(finished.stderr.contains(part), "{}", finished.stderr);
}

/// A gigabyte of nothing, which takes no room on disk, as rules of each format, as a set and as an
/// include.
#[test]
fn a_gigabyte_is_refused_in_little_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    for name in ["vast.csv", "vast.toml", "vast.txt"] {
        File::create(path(name)).unwrap().set_len(1 << 30).unwrap();
    }
    fs::write(path("set.toml"), "[sets]\na = [\"10.0.0.1\"]\nb = { file = \"vast.txt\" }\n")
        .unwrap();
    fs::write(path("include.toml"), "[[include]]\nfile = \"vast.csv\"\n").unwrap();
    fs::write(path("inside.toml"), "[[include]]\nfile = \"vast.toml\"\n").unwrap();
    let long = "1: a line longer than 1048576 bytes";
    for (name, args, said) in [
        ("vast.csv", &[][..], format!("vast.csv:{long}")),
        ("vast.txt", &["--format", "classbench"], format!("vast.txt:{long}")),
        ("vast.toml", &[], "vast.toml: larger than 64 MiB, which TOML files may not be".to_owned()),
        ("set.toml", &[], format!("vast.txt:{long}")),
        ("include.toml", &[], format!("vast.csv:{long}")),
        ("inside.toml", &[], "vast.toml: larger than 64 MiB".to_owned()),
    ] {
        assert_refused(run(within(512, "check", &path(name), args)), 65, &said);
    }
}

/// `fenxi policy stats` of a line of CSV, repeated `times` times, through a pipe.
fn piped(line: &str, times: usize) -> Finished {
    let mut command =
        within(4096, "stats", Path::new("/dev/stdin"), &["--format", "csv", "--json"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = BufWriter::with_capacity(1 << 20, child.stdin.take().unwrap());
    let written = writeln!(input, "source,dscp")
        .and_then(|()| (0..times).try_for_each(|_| writeln!(input, "{line}")));
    drop(written.and_then(|()| input.flush()));
    drop(input);
    Finished::from_output(child.wait_with_output().unwrap())
}

#[test]
fn ten_million_rules_are_read() {
    let told = piped("10.0.0.1,CS1", 10_000_000).expect_code(0).json();
    assert_eq!((&told["rules"], &told["v4_filters"]), (&json!(10_000_000), &json!(10_000_000)));
}

#[test]
fn more_rules_than_there_may_be_are_refused() {
    let said =
        "/dev/stdin:16777217: more than 16777215 rules; use prefixes that cover several of them";
    assert_refused(piped("10.0.0.1,CS1", 20_000_000), 65, said);
}

/// A rule of more combinations than it may have, and a set that many rules use: the filters of all
/// together have a bound.
#[test]
fn few_lines_cannot_make_many_filters() {
    let addresses: Vec<String> =
        (0..1025).map(|at| format!("\"10.0.{}.{}\"", at / 256, at % 256)).collect();
    let list = addresses.join(", ");
    let sets = format!("[sets]\na = [{list}]\n");
    let one = format!("{sets}[[rule]]\nsource = \"@a\"\ndestination = \"@a\"\ndrop = true\n");
    let files = Files::new(&[("r.toml", &one)]);
    let said = "r.toml:3: the rule has 1050625 combinations of prefixes and ports, 1048576 at most";
    assert_refused(files.ran("check", &[]), 65, said);
    let mut many = format!("[sets]\na = [{}]\n", addresses[..1024].join(", "));
    for _ in 0..17 {
        many += "[[rule]]\nsource = \"@a\"\ndestination = \"@a\"\ndrop = true\n";
    }
    let files = Files::new(&[("r.toml", &many)]);
    assert_refused(files.ran("check", &[]), 65, "r.toml:67: more than 16777216 filters in all");
}

/// Equal rules, and rules of wide ranges of ports, at sizes at which comparing each with each would
/// not end.
#[test]
fn many_rules_for_the_same_flows_are_checked() {
    let mut equal = "source,dscp\n".to_owned();
    for at in 0..300_000 {
        let _ = writeln!(equal, "10.0.0.0/8,{}", at % 64);
    }
    let mut ranges = "source,destination_port,dscp\n".to_owned();
    for at in 0..200_000 {
        let first = at * 7919 % 60_000;
        let _ = writeln!(ranges, "10.0.0.0/8,{first}-{},{}", first + 5000, at % 64);
    }
    for (text, rules) in [(equal, 300_000), (ranges, 200_000)] {
        let files = Files::new(&[("r.csv", &text)]);
        let told = files.ran("check", &["--json"]).expect_code(0).json();
        assert_eq!(told["rules"], rules);
        let told = files.ran("stats", &["--json"]).expect_code(0).json();
        assert_eq!(told["v4_filters"], rules);
    }
}

/// Duplicates and contradictions are no errors, but each is named with the rule that it loses
/// against; two rules of one name are an error.
#[test]
fn duplicates_and_contradictions_are_named() {
    let mut csv = "source,destination_port,dscp,priority\n".to_owned();
    for at in 0..500 {
        let _ = writeln!(csv, "10.1.{}.{},53,AF41,5", at / 256, at % 256);
    }
    csv += "10.1.0.7,53,AF41,5\n10.1.0.7,53,CS1,5\n10.1.0.7,53,CS1,6\n10.1.0.7,80,CS1,5\n\
            10.1.0.8,53,LE,4\n";
    let files = Files::new(&[("r.csv", &csv)]);
    let told = files.ran("check", &["--json"]).expect_code(0).json();
    let count = |name: &str| told[name].as_u64().unwrap();
    assert_eq!(count("rules"), 505);
    let mut found: Vec<String> = told["unreachable"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| format!("{} {} {}", it["rule"], it["cause"], it["by"]).replace('"', ""))
        .collect();
    found.sort();
    // Line 504 has the greater priority, so lines 9 and 502, which are the same, both lose against
    // it.
    let expected = [
        "r.csv:502 contradiction r.csv:504",
        "r.csv:503 duplicate r.csv:504",
        "r.csv:506 contradiction r.csv:10",
        "r.csv:9 contradiction r.csv:504",
    ];
    assert_eq!(found, expected, "{told}");
    assert_eq!((count("duplicates"), count("contradictions")), (1, 3));

    let named = "[[rule]]\nname = \"a\"\ndrop = true\n\n[[rule]]\nname = \"a\"\ndscp = \"CS1\"\n";
    let files = Files::new(&[("r.toml", named)]);
    let said = "fenxi: r.toml:5: a rule named \"a\" is already at r.toml:1; give it another name\n";
    assert_refused(files.ran("check", &[]), 65, said);
}
