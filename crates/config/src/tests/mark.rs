//! `[mark]`: values and error messages.

use std::time::Duration;

use super::{load, origin};
use crate::Config;
use analytics::Policy;

use crate::checked::Capture;

#[test]
fn marks_are_bits_as_rules_see_them() {
    let (config, _) = load("", &[], &[]).unwrap();
    assert_eq!((config.mark.mask, config.mark.queue), (0xff00_0000, 16_384));
    let built_in = &config.mark.class;
    assert!(built_in.iter().all(|entry| !entry.required && entry.value & !0xff00_0000 == 0));
    let mut marks: Vec<_> = built_in.iter().map(|entry| entry.value).collect();
    marks.sort_unstable();
    marks.dedup();
    assert_eq!(marks.len(), 8);

    let file = "[mark]\nmask = 0x7\n[mark.class]\nTLS = 0x5\nDNS = 2";
    let (config, effective) = load(file, &[], &["mark.class.DNS=0x3"]).unwrap();
    let shown: Vec<_> = config
        .mark
        .class
        .iter()
        .map(|entry| (entry.label.as_str(), entry.value, entry.required))
        .collect();
    assert_eq!((config.mark.mask, shown), (7, vec![("DNS", 3, true), ("TLS", 5, true)]));
    assert_eq!(origin(&effective, "mark.class.TLS"), "c.toml:4");
}

#[test]
fn the_built_in_marks_name_the_labels_of_the_shipped_model() {
    let model = include_str!("../../../../models/protocol/model.toml");
    let (config, _) = load("", &[], &[]).unwrap();
    for entry in &config.mark.class {
        assert!(model.contains(&format!("name = \"{}\"", entry.label)), "{}", entry.label);
    }
}

/// What packets and connections get without being asked for must be right, and be there: precision
/// of at least 0.95 and F1 of at least 0.9 in captures that the model has not seen, as its card
/// says.
#[test]
fn the_built_in_labels_are_precise_and_found() {
    let card = include_str!("../../../../models/protocol/CARD.md");
    let (_, names) = card.split_once("## The name a flow ends with").unwrap();
    let (config, _) = load("", &[], &[]).unwrap();
    let marks = config.mark.class.iter().map(|entry| &entry.label);
    let labels: Vec<&String> = marks.chain(config.tag.dscp.iter().map(|it| &it.label)).collect();
    assert!(labels.len() > 10);
    for label in labels {
        let row = names.lines().find(|row| row.starts_with(&format!("| {label} |")));
        let score = |column| row.unwrap().split('|').nth(column).unwrap().trim();
        let [precision, recall] = [3, 4].map(|column| score(column).parse::<f64>().unwrap());
        let f1 = 2.0 * precision * recall / (precision + recall);
        assert!(precision >= 0.95 && f1 >= 0.9, "{label}: {precision}, {recall}");
    }
}

#[test]
fn the_page_and_the_shipped_rules_have_the_built_in_marks() {
    let page = include_str!("../../../../docs/mark.md");
    let rules = include_str!("../../../../examples/shaper/shaper.nft");
    let (config, _) = load("", &[], &[]).unwrap();
    let row = |mark: u32, label: &str| format!("| `{mark:#010x}` | {label}");
    for entry in &config.mark.class {
        assert!(page.contains(&row(entry.value, &entry.label)), "{}", entry.label);
    }
    let rules_file = include_str!("../../../../examples/shaper/rules.toml");
    let sorted = rules.lines().filter(|line| line.contains(" : goto "));
    let mut by_label = 0;
    for line in sorted.clone() {
        let (bits, what) = line.trim().split_once(" : goto ").unwrap();
        let what = what.split("# ").nth(1).unwrap();
        let label = what.split(',').next().unwrap();
        match config.mark.class.iter().find(|entry| entry.label == label) {
            Some(entry) => {
                assert_eq!(bits, format!("{:#010x}", entry.value), "{label}");
                by_label += 1;
            }
            None => assert!(rules_file.contains(&format!("\nmark = {bits}\n")), "{line}"),
        }
    }
    assert_eq!((sorted.count(), by_label), (3, 1));
}

#[test]
fn bits_outside_of_the_mask_are_refused_in_one_line() {
    let lines = load("[mark]\nmask = 0xff", &[], &[]).unwrap_err();
    assert_eq!(lines.len(), 1, "{lines:?}");
    for part in ["mark.class: DNS = 0x4000000 (built-in), ", "mark.mask = 0xff (c.toml:2)"] {
        assert!(lines[0].contains(part), "{lines:?}");
    }
    let lines = load("", &[], &["mark.class.TLS=0x1ff0000"]).unwrap_err();
    assert!(
        lines[0].starts_with(
            "mark.class: TLS = 0x1ff0000 (--set): bits outside of mark.mask = 0xff000000 (built-in)"
        ),
        "{lines:?}"
    );
    let lines = load("[mark.class]\nTLS = 0", &[], &[]).unwrap_err();
    let expected = "c.toml:2: mark.class.TLS: found 0, expected an integer from 1 to 4294967295";
    assert_eq!(lines, [expected]);
    // A mask that is refused says nothing about the labels.
    assert_eq!(load("[mark]\nmask = 0", &[], &[]).unwrap_err().len(), 1);
}

/// Bits of the connection mark or of the packet mark that other programs of a router write by
/// default; docs/mark.md has the sources.
const OTHERS: [(&str, u32); 7] = [
    ("mwan3", 0x3f00),
    ("pbr", 0xff_0000),
    ("qosify, ctinfo dscp 63 128", 0xbf),
    ("sqm-scripts", 0xff),
    ("Tailscale", 0xff_0000),
    ("wg-quick", 0xca6c),
    ("kube-proxy", 0xc000),
];

#[test]
fn the_built_in_mask_has_bits_that_nobody_else_writes() {
    let (config, _) = load("", &[], &[]).unwrap();
    for (name, bits) in OTHERS {
        assert_eq!(config.mark.mask & bits, 0, "{name}");
        let (name, _) = name.split_once(',').unwrap_or((name, ""));
        assert!(include_str!("../../../../docs/mark.md").contains(name), "{name}");
    }
}

#[test]
fn a_dscp_takes_the_bits_that_ctinfo_reads() {
    let (config, effective) = load("[mark]\nas = \"dscp\"", &[], &[]).unwrap();
    assert_eq!(config.mark.mask, 0xbf);
    let mark = |label: &str| {
        let mut rows = config.mark.class.iter();
        rows.find(|row| row.label == label).unwrap().value
    };
    // AF21 and CS1, each with the bit that says so.
    assert_eq!((mark("SSH"), mark("NetBIOS")), (18 | 128, 8 | 128));
    assert_eq!(config.mark.class.len(), config.tag.dscp.len());

    // What is shown is read as the same.
    let shown = effective.to_toml(false);
    assert!(shown.contains("mask = 191\n"), "{shown}");
    let (again, _) = load(&shown, &[], &[]).unwrap();
    assert_eq!(again.mark.mask, 0xbf);

    // A table of the user's, with a DSCP of 0.
    let sets = ["mark.as=dscp", "mark.mask=0xbf", "tag.dscp={ DNS = \"CS0\" }"];
    let (config, _) = load("", &[], &sets).unwrap();
    let marks: Vec<_> =
        config.mark.class.iter().map(|row| (row.label.as_str(), row.value)).collect();
    assert_eq!(marks, [("DNS", 128)]);

    let file = "[mark]\nas = \"dscp\"\nmask = 0xff00";
    assert_eq!(
        load(file, &[], &[]).unwrap_err(),
        ["mark.mask = 0xff00 (c.toml:3) with mark.as = \"dscp\" (c.toml:2): impossible \
             combination: a DSCP takes the bits \
          0xbf; leave mark.mask out"]
    );
    let file = "[mark]\nas = \"dscp\"\n[mark.class]\nDNS = 0x80";
    assert_eq!(
        load(file, &[], &[]).unwrap_err(),
        ["mark.class (c.toml:4): no effect, because mark.as = \"dscp\" writes the DSCP of \
             [tag.dscp]; leave one of the two out"]
    );
}

/// A connection gets its mark while its first packets pass, so mode mark has defaults of its own,
/// which any setting outranks.
#[test]
fn mode_mark_has_defaults_of_its_own_and_settings_win() {
    const BY_MODE: &str = "default of mode mark";
    let slo = |ms: u64| Policy::Slo { latency_goal: Duration::from_micros(ms * 1000), delta: 0.05 };
    let carry_over = |timeout_ms, phi| Policy::CarryOver {
        timeout: Duration::from_millis(timeout_ms),
        phi,
        max_wait: Duration::from_millis(50),
    };
    let of = |file: &str, sets: &[&str]| {
        let (config, effective) = load(file, &[], sets).unwrap();
        let origins = ["io.capture", "analytics.policy"].map(|key| origin(&effective, key));
        let policies = config.tasks.iter().map(|it| it.batching.policy());
        assert_eq!(config.analytics.policy(), config.tasks[0].batching.policy());
        (config.io.capture, policies.collect::<Vec<_>>(), origins)
    };
    let built_in = || ["built-in"; 2].map(str::to_owned);
    for mode in ["tap", "inline"] {
        let file = format!("[io]\nmode = \"{mode}\"\ninterfaces = [\"a\", \"b\"]");
        assert_eq!(of(&file, &[]), (Capture::All, vec![carry_over(10, 0.2)], built_in()));
    }
    let mark = "[io]\nmode = \"mark\"\n";
    let (capture, policies, origins) = of(mark, &[]);
    assert_eq!((capture, &policies[..]), (Capture::First, &[slo(2)][..]));
    assert_eq!(origins, [BY_MODE; 2]);
    for (sets, expected) in [
        (&["analytics.policy=carry-over"][..], carry_over(10, 0.2)),
        (&["analytics.policy=none"], Policy::None),
        (&["analytics.timeout_ms=3"], carry_over(3, 0.2)),
        (&["analytics.phi=0.5"], carry_over(10, 0.5)),
        (&["analytics.latency_goal_ms=4"], slo(4)),
    ] {
        assert_eq!(of(mark, sets).1, [expected], "{sets:?}");
    }
    let (capture, _, origins) = of(mark, &["io.capture=all"]);
    assert_eq!((capture, &*origins[0]), (Capture::All, "--set"));

    let tasks = |own: &str| {
        format!("{mark}[[task]]\nname = \"a\"\n[[task]]\nname = \"b\"\nmodel = \"m\"\n{own}\n")
    };
    for (own, expected) in [
        ("", [slo(2), slo(2)]),
        ("latency_goal_ms = 20.0", [slo(2), slo(20)]),
        ("policy = \"max\"", [slo(2), Policy::Max]),
        ("timeout_ms = 5.0", [carry_over(10, 0.2), carry_over(5, 0.2)]),
    ] {
        assert_eq!(of(&tasks(own), &[]).1, expected, "{own}");
    }
    let (_, policies, _) = of(&tasks("policy = \"on-off\""), &[]);
    assert_eq!(policies[0], carry_over(10, 0.2), "goals are kept in one way");
}

/// A reload cannot change the mode, so it keeps the running mode's defaults. A replay sets no
/// marks, so it keeps the default for all modes.
#[test]
fn defaults_of_a_mode_are_those_of_the_run() {
    let read = |sets: &[&str]| {
        let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
        Config::from_layers(super::defaults(), &[], &[], &sets, Vec::new()).unwrap()
    };
    let [tap, mark] = [read(&[]), read(&["io.mode=mark"])];
    for (running, next) in [(&tap, &mark), (&mark, &tap)] {
        let taken = next.taken_over_by(running).unwrap();
        let policies = [&taken, running].map(|it| it.config.analytics.policy());
        assert_eq!(policies[0], policies[1]);
        assert_eq!(taken.config.io, running.config.io);
    }
    assert_eq!(mark.replayed().config.tasks[0].batching, tap.config.tasks[0].batching);
    let asked = read(&["io.mode=mark", "analytics.policy=slo"]).replayed();
    assert!(asked.config.analytics.policy().goal().is_some());
}

#[test]
fn behaviours_have_bits_of_their_own() {
    let file = "[mark.behaviour]\nbulk = 0x100000\nidle = 0x200000";
    let (config, _) = load(file, &[], &[]).unwrap();
    assert_eq!(config.mark.behaviour_mask(), 0x30_0000);
    let lines = load(file, &[], &["behaviour.enabled=false"]).unwrap_err();
    assert!(lines[0].contains("no effect: flows have no behaviour"), "{lines:?}");
    let lines = load("[mark.behaviour]\nbulc = 1", &[], &[]).unwrap_err();
    let expected =
        "found \"bulc\", expected some of bulk, interactive, realtime, idle; did you mean bulk?";
    assert!(lines[0].contains(expected), "{lines:?}");
    let lines = load("[mark.behaviour]\nbulk = 0x1000001", &[], &[]).unwrap_err();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("bits 0x1000000 belong to task"), "{lines:?}");
    let lines = load("[behaviour]\nbulk_bytes = 16777216", &[], &[]).unwrap_err();
    assert!(lines[0].contains("an integer from 1 to 16777215"), "{lines:?}");
}
