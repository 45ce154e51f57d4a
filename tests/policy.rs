//! `fenxi policy`: files of rules through the real binary.

use crate::common;

mod docs;
mod hostile;

use std::fs;
use std::path::PathBuf;

use common::{Finished, bundle, fenxi, run};
use serde_json::json;
use tempfile::TempDir;

/// Files in a folder of their own, the first of which is asked about.
struct Files {
    folder: TempDir,
    first: PathBuf,
}

impl Files {
    fn new(files: &[(&str, &str)]) -> Files {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let first = folder.path().join(files[0].0);
        Files { folder, first }
    }

    /// Runs `fenxi policy COMMAND FILE ARGS`, and shortens paths in what it said.
    fn ran(&self, command: &str, args: &[&str]) -> Finished {
        let first = self.first.to_str().unwrap();
        let args = ["policy", command, first].into_iter().chain(args.iter().copied());
        let mut finished = run(fenxi(args));
        let folder = format!("{}/", self.folder.path().display());
        finished.stdout = finished.stdout.replace(&folder, "");
        finished.stderr = finished.stderr.replace(&folder, "");
        finished
    }
}

const OFFICE: &str = r#"
[sets]
guests = ["192.168.50.0/24", "2001:db8:50::/64"]

[[rule]]
name = "dns"
destination_port = 53
task = "none"
label = "DNS"

[[rule]]
name = "heavy guests"
source = "@guests"
over = { bytes = "10 MiB" }
dscp = "CS1"

[[rule]]
source = "192.168.0.0/16"
destination_port = [443, "8000-8080"]
protocol = "tcp"
app = ["TLS", "web"]
mark = "0x10/0xff"

[[rule]]
name = "never"
source = "192.168.50.7"
destination_port = 53
drop = true

[[rule]]
sample = 0.25
mirror = "probe"

[[rule]]
destination = "10.0.0.0/8"
dscp = "AF41"
"#;

#[test]
fn check_counts_rules_and_names_those_that_never_win() {
    let files = Files::new(&[("office.toml", OFFICE)]);
    let told = files.ran("check", &[]).expect_code(0).stdout;
    for line in [
        "office.toml: 6 rules from 1 file\n",
        "\n1 rule can never win: 0 duplicate, 0 contradict an earlier one, 1 covered by a wider \
         one, 0 of an empty set\n",
        "\n  office.toml:24 (never) is covered by office.toml:5 (dns)\n",
        " of rules with different actions; the first one decides\n",
        "\nnot checked: mode, mark.mask, labels, tasks and interfaces; --config FILE checks them\n",
    ] {
        assert!(told.contains(line), "{line}: {told}");
    }
    let told = files.ran("check", &["--json"]).expect_code(0).json();
    assert_eq!((&told["rules"], &told["covered"]), (&json!(6), &json!(1)));
    assert_eq!(
        told["unreachable"],
        json!([{"rule": "office.toml:24 (never)", "by": "office.toml:5 (dns)", "cause": "covered"}])
    );
}

#[test]
fn check_with_a_model_knows_its_labels() {
    let model = bundle();
    let model = model.to_str().unwrap();
    let good = Files::new(&[("r.toml", "[[rule]]\napp = \"unknown\"\ndrop = true\n")]);
    good.ran("check", &["--model", model]).expect_code(0);
    let bad = Files::new(&[(
        "r.toml",
        "[[rule]]\ntask = \"any\"\n[[rule]]\napp = \"Nonsense\"\ndrop = true\n",
    )]);
    bad.ran("check", &[]).expect_code(0);
    let told = bad.ran("check", &["--model", model]).expect_code(65).stderr;
    assert!(
        told.starts_with("fenxi: r.toml:3: there is no label or taxonomy \"Nonsense\"; there are "),
        "{told}"
    );
    assert_eq!(told.lines().count(), 1, "{told}");
    bad.ran("check", &["--model", "/nowhere"]).expect_code(66);
}

/// With a configuration the file is held against the mode, the bits of marks and the names, in the
/// words of `fenxi check`.
#[test]
fn check_with_a_configuration_refuses_what_a_run_refuses() {
    let files = Files::new(&[("r.toml", "[[rule]]\nname = \"a\"\ndscp = \"EF\"\n")]);
    let refused = "fenxi: r.toml:1: dscp: in mode mark a DSCP is written into the connection's \
        mark, and mark.as is \"label\"; set \
                   mark.as = \"dscp\", or give the rule a mark\n";
    let told = files.ran("check", &["--set", "io.mode=mark"]).expect_code(78);
    assert_eq!(told.stderr, refused);
    let rules = format!("policy.rules={}", files.first.display());
    let folder = format!("{}/", files.folder.path().display());
    let mark = ["--set", "io.mode=mark", "--set", &rules];
    let checked = fenxi([&["check", "--config-only"], &mark[..]].concat());
    assert_eq!(run(checked).expect_code(78).stderr.replace(&folder, ""), refused);
    let told = files.ran("check", &["--set", "io.mode=mark", "--set", "mark.as=dscp"]);
    assert_eq!(told.expect_code(0).stdout, "r.toml: 1 rule from 1 file\nno conflict\n");
    let told = files.ran("check", &["--set", "io.mode=tap"]).expect_code(0).stdout;
    assert!(told.ends_with("\nwarning: r.toml:1: dscp: no effect in mode tap\n"), "{told}");
}

/// Without `--model`, the taxonomy of a label comes from the model that a run would use.
#[test]
fn explain_knows_the_taxonomies_of_the_model_of_a_run() {
    let files =
        Files::new(&[("r.toml", "[[rule]]\nname = \"calls\"\napp = \"voip\"\ndscp = \"EF\"\n")]);
    let flow = "192.168.50.7:4000 > 10.0.0.1:3478 udp";
    let explain = |args: &[&str]| files.ran("explain", &[&[flow], args].concat());
    let told = explain(&["--label", "STUN"]).expect_code(0).stdout;
    assert!(told.contains("\nwins     r.toml:1 (calls): "), "{told}");
    assert!(told.contains(", STUN (voip)\n"), "{told}");
    let told = explain(&["--label", "Napster"]).expect_code(65).stderr;
    assert!(told.contains("the model has no label \"Napster\"; it has "), "{told}");
}

#[test]
fn explain_names_the_rule_and_those_it_beat() {
    let files = Files::new(&[("office.toml", OFFICE)]);
    let told = files.ran("explain", &["192.168.50.7:4000 > 10.0.0.1:53 udp"]).expect_code(0).stdout;
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(
        lines,
        [
            "UDP 192.168.50.7:4000 > 10.0.0.1:53, no label yet",
            "wins     office.toml:5 (dns): name = \"dns\", destination_port = 53, task = \"none\", \
             label = \"DNS\"",
            "waits    office.toml:11 (heavy guests): name = \"heavy guests\", source = \
             [\"192.168.50.0/24\", \
             \"2001:db8:50::/64\"], dscp = \"CS1\", over = { bytes = \"10 MiB\" }",
            "           needs bytes over 10,485,760 bytes, has 0",
            "loses    office.toml:24 (never): name = \"never\", source = \"192.168.50.7\", \
             destination_port = 53, drop = true",
            "loses    office.toml:30: sample = 0.25, mirror = \"probe\"",
            "loses    office.toml:34: destination = \"10.0.0.0/8\", dscp = \"AF41\"",
        ]
    );
    let flow = ["192.168.1.2:4000 > 9.9.9.9:443", "tcp"];
    let told = files.ran("explain", &flow).expect_code(0).stdout;
    assert!(told.contains("needs the label or taxonomy TLS or web\n"), "{told}");
    assert!(told.contains("may win  office.toml:30: "), "{told}");
    assert!(told.ends_with("no rule matches; the label decides\n"), "{told}");
    let labelled = [flow[0], flow[1], "--label", "TLS", "--json"];
    let told = files.ran("explain", &labelled).expect_code(0).json();
    assert_eq!(told["winner"], json!("office.toml:17"));
    let heavy = ["192.168.50.7:4000 > 9.9.9.9:80 tcp", "--bytes", "10485761", "--json"];
    let told = files.ran("explain", &heavy).expect_code(0).json();
    assert_eq!(told["winner"], json!("office.toml:11 (heavy guests)"));
}

/// What a rule needs besides the tuple, and when it counts.
#[test]
fn explain_says_what_time_vlan_profile_and_host_a_rule_waits_for() {
    let family = fs::read_to_string(common::root().join("configs/policy/family.toml")).unwrap();
    let files = Files::new(&[("family.toml", &family.replace("\"tablet\"", "\"10.0.0.5\""))]);
    let told = |args: &[&str]| {
        let flow = ["10.0.0.5:4000 > 192.0.2.4:443 udp"];
        files.ran("explain", &[&flow, args].concat()).expect_code(0).stdout
    };
    let day = told(&["--at", "sat 20:59"]);
    for reason in [
        "\n           outside its hours (mon-thu,sun 21:00-06:30)\n",
        "\n           needs the VLAN 20, has 0\n",
        "\n           needs the behaviour realtime, and profile work is off, and needs the host \
         office-laptop as an end\n",
    ] {
        assert!(day.contains(reason), "{reason}: {day}");
    }
    assert!(told(&["--at", "mon 06:29"]).contains("\nwins     family.toml:8 (bedtime): "));
    let camera = told(&["--at", "sat 3:00", "--vlan", "20", "--profile", "work"]);
    assert!(camera.contains("\nwins     family.toml:15 (cameras): "), "{camera}");
    assert!(!camera.contains("profile work is off"), "{camera}");
    files.ran("explain", &["10.0.0.5:4000 > 192.0.2.4:443 udp", "--at", "8 pm"]).expect_code(64);
}

#[test]
fn explain_refuses_what_is_no_flow() {
    let files = Files::new(&[("office.toml", OFFICE)]);
    for flow in
        ["nonsense", "#7", "192.168.1.2:4000 > 9.9.9.9:443", "192.168.1.2:4000 > [::1]:443 tcp"]
    {
        let told = files.ran("explain", &[flow]).expect_code(64);
        assert_eq!((told.stdout.as_str(), told.stderr.lines().count()), ("", 1), "{}", told.stderr);
    }
}

#[test]
fn stats_count_rules_by_kind() {
    let files = Files::new(&[("office.toml", OFFICE)]);
    let mut told = files.ran("stats", &["--json"]).expect_code(0).json();
    let found = told.as_object_mut().unwrap();
    assert_eq!(found.remove("index").unwrap()["v4"]["remainder"], 7);
    assert!(found.remove("bytes").unwrap().is_u64());
    let expected = json!({
        "rules": 6,
        "v4_filters": 7,
        "v6_filters": 3,
        "priorities": 1,
        "named": 3,
        "actions": 6,
        "by_action": {
            "drop": 1, "dscp": 2, "label": 1, "mark": 1, "mirror": 1, "sample": 1, "task": 1,
        },
        "conditions": 2,
        "by_condition": {"app": 1, "none": 4, "over.bytes": 1},
        "v4_lengths": {"/0 to \
            /0": 2, "/0 to /8": 1, "/16 to /0": 2, "/24 to /0": 1, "/32 to /0": 1},
        "v6_lengths": {"/0 to /0": 2, "/64 to /0": 1},
        "ports": {"any to any": 5, "any to one port": 4, "any to range": 1},
        "protocols": {"any": 8, "tcp": 2},
        "in_ports": {"any": 10},
    });
    assert_eq!(told, expected);
    let told = files.ran("stats", &[]).expect_code(0).stdout;
    assert!(told.starts_with("rules                                   6\n"), "{told}");
}

#[test]
fn a_wrong_file_gives_one_line_and_its_code() {
    let csv = Files::new(&[
        ("r.toml", "[[include]]\nfile = \"marks.csv\"\n"),
        ("marks.csv", "source,mark\n10.0.0.1,0x10/0xff\n10.0.0.1/8,0x20/0xff\n"),
    ]);
    let told = csv.ran("check", &[]).expect_code(65).stderr;
    assert_eq!(
        told,
        "fenxi: marks.csv:3: source: 10.0.0.1/8 has bits set beyond its length; write 10.0.0.0/8 \
         for the prefix, or 10.0.0.1 for \
         the one address\n"
    );
    let page = fs::read_to_string(common::root().join("docs/policy.md")).unwrap();
    assert!(page.contains(&told), "the page shows the error as it is");
    let missing = Files::new(&[("r.toml", "\n[[include]]\nfile = \"x.csv\"\n")]);
    let told = missing.ran("stats", &[]).expect_code(66).stderr;
    assert!(told.starts_with("fenxi: r.toml:2: x.csv: cannot be opened: "), "{told}");
    run(fenxi(["policy", "check", "/nowhere/r.toml"])).expect_code(66);
    run(fenxi(["policy", "check", "/"])).expect_code(74);
    let unknown = Files::new(&[("rules.txt", "allow all\n")]);
    let told = unknown.ran("check", &[]).expect_code(65).stderr;
    assert!(told.starts_with("fenxi: rules.txt: the format cannot be told; "), "{told}");
}

#[test]
fn classbench_files_are_read_by_their_first_byte() {
    let line = "@10.0.0.0/8\t0.0.0.0/0\t0 : 65535\t53 : 53\t0x11/0xFF\t0x0000/0x0200\t\n";
    let gre = "@0.0.0.0/0\t0.0.0.0/0\t0 : 65535\t0 : 65535\t0x2F/0xFF\t0x0000/0x0000\t\n";
    let files = Files::new(&[("acl1", &format!("{line}{line}{gre}{gre}"))]);
    let told = files.ran("check", &[]).expect_code(0).stdout;
    for line in [
        "acl1: 4 rules from 1 file\n".to_owned(),
        "warning: acl1:1: TCP flags are ignored: one rule holds for all packets of a flow (and 1 \
         more in this file)\n"
            .to_owned(),
        "warning: acl1:3: the protocol is neither TCP, UDP nor ICMP, and there are no other flows: \
         the rule never applies (and 1 more in this file)\n"
            .to_owned(),
        "2 rules can never win: 2 duplicate, ".to_owned(),
        "  acl1:2 says the same as acl1:1\n".to_owned(),
    ] {
        assert!(told.contains(&line), "{line}: {told}");
    }
}
