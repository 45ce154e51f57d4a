//! Rules: what is done with flows by their addresses, ports, volume and label, as others see it.

use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;

use serde_json::Value;

use crate::common::lab::{FOREIGN, Lab};
use crate::common::live::Live;
use crate::common::{self};
use crate::run::capture::{Seen, listen, seen};
use crate::run::inline::{self, LEFT, RIGHT};
use crate::run::mark;
use crate::run::traffic::{ask, ask_udp, patient_socket};

/// AF11, AF41, EF (which every label has).
const AF11: u8 = 10;
const AF41: u8 = 34;
const EF: u8 = 46;

fn rule(keys: &str) -> String {
    format!("[[rule]]\n{keys}\n")
}

/// Has it read the rules again, which are now these.
fn reload(live: &Live, file: &Path, rules: &str) {
    fs::write(file, rules).unwrap();
    live.ctl(&["reload"]).expect_code(0);
}

/// The DSCPs of each UDP flow from the left, packet by packet.
fn dscps(frames: &[Seen]) -> Vec<Vec<u8>> {
    let mut flows: Vec<(&str, Vec<u8>)> = Vec::new();
    for Seen { flow, dscp } in frames {
        let Some(flow) = flow.as_deref().filter(|flow| flow.starts_with("tcp  udp")) else {
            continue;
        };
        match flows.iter_mut().find(|(known, _)| *known == flow) {
            Some((_, dscps)) => dscps.push(*dscp),
            None => flows.push((flow, vec![*dscp])),
        }
    }
    flows.into_iter().map(|(_, dscps)| dscps).collect()
}

/// From their first packet on, flows have the DSCP of their rule or do not arrive; and what a
/// reload says instead.
#[test]
fn inline_rules_tag_and_drop_from_the_first_packet_on() {
    let Some(lab) = Lab::bridged("rules", &["tcpdump", "tshark"]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let [file, capture] = ["rules.toml", "capture"].map(|name| dir.path().join(name));
    let tagged = rule(&format!("source = \"{}\"\ndscp = \"AF41\"", LEFT[0]));
    let dropped = rule(&format!("name = \"six\"\nsource = \"{}\"\ndrop = true", LEFT[1]));
    fs::write(&file, [tagged.as_str(), &dropped].concat()).unwrap();
    let rules = format!("policy.rules={}", file.display());
    let live = inline::start(&lab, &["--set", &rules]);
    let right = listen(&lab, &live, &capture);

    let first = ask_udp(&lab, ["left", "right"], RIGHT[0], 20);
    let far = lab.on("right", || patient_socket(RIGHT[1]));
    let near = lab.on("left", || patient_socket("::"));
    near.connect(far.local_addr().unwrap()).unwrap();
    let verdict = |name| {
        move |live: &Live| {
            live.samples_with("fenxi_packets_total", &format!("verdict=\"{name}\""))
                .iter()
                .sum::<f64>()
        }
    };
    for sent in 1..=5 {
        near.send(&[1; 100]).unwrap();
        live.wait_for("it is dropped", |live| verdict("dropped")(live) >= f64::from(sent));
    }
    assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
    assert_eq!(live.metric_sum("fenxi_policy_rules"), 2.0);
    let six = live.samples_with("fenxi_policy_rule_flows_total", "rule=\"six\"");
    assert_eq!(six.iter().sum::<f64>(), 1.0);

    let instead = rule(&format!("source = \"{}\"\ndscp = \"AF11\"", LEFT[1]));
    reload(&live, &file, &instead);
    let second = [near, far];
    ask(&second, 20);
    // Without a rule, and with a label by now.
    ask(&first, 5);
    // A file that is wrong changes nothing.
    fs::write(&file, rule("dscp = \"AF99\"")).unwrap();
    let refused = live.ctl(&["reload"]).expect_code(78);
    assert!(refused.stderr.contains("rules.toml:2"), "{}", refused.stderr);
    ask(&second, 5);
    right.finish(&live);

    let flows = dscps(&seen(&capture));
    let [four, six] = &flows[..] else {
        panic!("{flows:?}");
    };
    let (before, after) = four.split_at(20);
    assert!(before.iter().all(|dscp| *dscp == AF41), "{four:?}");
    assert_eq!(after, [EF; 5], "{four:?}");
    assert_eq!(six, &[AF11; 25], "none came while they were dropped");
    let summary = live.terminate(0).json();
    let of = |name: &str| summary["live"][name].as_u64().unwrap();
    assert_eq!((of("ruled_out"), of("unsent")), (5, 0), "{summary}");
    assert_eq!(of("received"), of("sent") + 5, "{summary}");
    assert_eq!(summary["verdicts"]["dropped"], 5);
}

/// A flow that goes on for long enough gets the DSCP of a rule with a bound, and no other does.
#[test]
fn a_rule_with_a_bound_counts_from_there_on() {
    let Some(lab) = Lab::bridged("bounds", &["tcpdump", "tshark"]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let [file, capture] = ["rules.toml", "capture"].map(|name| dir.path().join(name));
    fs::write(&file, rule("over.packets = 100\ndscp = \"AF11\"")).unwrap();
    let rules = format!("policy.rules={}", file.display());
    let live = inline::start(&lab, &["--set", &rules, "--set", "tag.mode=off"]);
    let right = listen(&lab, &live, &capture);
    // Each question has an answer.
    let sockets: [UdpSocket; 2] = ask_udp(&lab, ["left", "right"], RIGHT[0], 40);
    ask(&sockets, 60);
    ask_udp(&lab, ["left", "right"], RIGHT[1], 20);
    right.finish(&live);
    let flows = dscps(&seen(&capture));
    let changed = flows[0].iter().position(|dscp| *dscp != 0).unwrap();
    // 50 rounds are 100 packets, and bounds are looked at every 32 packets of a direction.
    assert!((50..83).contains(&changed), "{flows:?}");
    assert!(flows[0][changed..].iter().all(|dscp| *dscp == AF11), "{flows:?}");
    assert_eq!(flows[1], [0; 20], "{flows:?}");
    live.terminate(0);
}

/// Connections get the mark of their rule when their flow begins; a label that a rule gives costs
/// no series.
#[test]
fn connections_get_marks_by_rule_without_a_label() {
    let Some(lab) = Lab::routed("rulemark", false, &["conntrack"]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let [file, records] = ["rules.toml", "records"].map(|name| dir.path().join(name));
    let [four, six] = [false, true].map(Lab::server);
    let marked = rule(&format!("destination = \"{four}\"\nmark = 0x7000000\ntask = \"none\""));
    let labelled = rule(&format!("destination = \"{six}\"\nlabel = \"DNS\""));
    fs::write(&file, [marked, labelled].concat()).unwrap();
    let rules = format!("policy.rules={}", file.display());
    let args = ["--set", &rules, "--flows", records.to_str().unwrap()];
    let args = [&args[..], &common::SIMULATED].concat();
    let live = mark::start(&lab, "in", "mark.class={ DNS = 0x9000000 }", &args);
    let sockets = [four, six].map(|to| ask_udp(&lab, mark::HOSTS, to, 2));
    live.wait_for("both are marked", |live| {
        live.metric_sum("fenxi_mark_latency_seconds_count") >= 2.0
            && live.metric_sum("fenxi_marks_waiting") == 0.0
    });
    let mark_of = |[near, _]: &[UdpSocket; 2]| mark::mark_at(&lab, near.local_addr().unwrap());
    assert_eq!(mark_of(&sockets[0]), FOREIGN | 0x700_0000);
    assert_eq!(mark_of(&sockets[1]), FOREIGN | 0x900_0000);
    sockets.iter().for_each(|sockets| ask(sockets, 20));
    assert_eq!(live.metric_sum("fenxi_series_emitted_total"), 0.0);
    assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
    let summary = live.terminate(0).json();
    assert_eq!(summary["decided"]["by_rule"], 1);
    let lines = common::json_lines(&records);
    let of_six = |line: &&Value| line["dst"] == six && line["label"] == "DNS";
    let by: Vec<_> = lines.iter().filter(of_six).collect();
    assert_eq!(by.len(), 2, "one of the label, one of the flow: {lines:?}");
    assert!(by.iter().all(|line| line["decided_by"] == "rule"), "{by:?}");
}

/// What `fenxi ctl policy` changes counts from a flow's next packet on, and a reload brings the
/// configured rules back.
#[test]
fn rules_change_while_flows_go_on() {
    let Some(lab) = Lab::bridged("change", &["tcpdump", "tshark"]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let [file, batch, capture] =
        ["rules.toml", "batch", "capture"].map(|name| dir.path().join(name));
    // No rules to begin with.
    let records = dir.path().join("records");
    let args = ["--set", "tag.mode=off", "--flows", records.to_str().unwrap()];
    let live = inline::start(&lab, &args);
    let right = listen(&lab, &live, &capture);
    let flow = ask_udp(&lab, ["left", "right"], RIGHT[0], 5);
    let policy = |args: &[&str], code| {
        let ran = live.ctl(&[&["policy"], args].concat()).expect_code(code);
        ask(&flow, 5);
        [ran.stdout, ran.stderr].concat()
    };
    let rule = format!("name = \"four\", source = \"{}\", dscp = \"AF41\"", LEFT[0]);
    let said = policy(&["add", &rule], 0);
    assert_eq!(said, "rule 1 added; 1 rule in use\n");
    // One wrong line, and nothing is changed.
    fs::write(&batch, "delete four\nadd dscp = \"AF99\"\n").unwrap();
    let said = policy(&["change", batch.to_str().unwrap()], 78);
    assert!(said.contains("line 2: dscp: "), "{said}");
    policy(&["delete", "four"], 0);
    policy(&["undo"], 0);
    fs::write(&file, self::rule("dscp = \"AF11\"")).unwrap();
    policy(&["load", file.to_str().unwrap()], 0);
    policy(&["undo"], 0);
    let said = policy(&["show", "four", "--counters"], 0);
    assert!(said.contains(&rule) && said.contains("flows"), "{said}");
    let said = live.ctl(&["reload"]).expect_code(0).stdout;
    assert!(said.contains("1 change of the rules by `fenxi ctl policy` is gone"), "{said}");
    ask(&flow, 5);
    policy(&["undo"], 0);
    // Another flow, and rules whose names changed since it began.
    let other = ask_udp(&lab, ["left", "right"], RIGHT[1], 5);
    policy(&["delete", "four"], 0);
    let both = format!("add {rule}\nadd name = \"six\", source = \"{}\"\n", LEFT[1]);
    fs::write(&batch, both).unwrap();
    policy(&["change", batch.to_str().unwrap()], 0);
    ask(&other, 5);
    let status = live.ctl(&["status"]).expect_code(0).stdout;
    let line = status.lines().find(|line| line.starts_with("rules "));
    let line = line.unwrap_or_else(|| panic!("{status}"));
    assert!(line.starts_with("rules     2 in force; "), "{status}");
    let status = live.ctl(&["status", "--json"]).expect_code(0).json();
    let rules = &status["status"]["overview"]["rules"];
    assert_eq!((&rules["updates"], &rules["updates_refused"]), (&9.into(), &1.into()), "{rules}");
    assert!(rules["updated_ago_s"].is_number(), "{rules}");
    assert!(rules["lookups"].as_u64() > rules["unmatched"].as_u64(), "{rules}");
    right.finish(&live);

    let flows = dscps(&seen(&capture));
    let of_step: Vec<u8> = flows[0].chunks(5).map(|dscps| dscps[0]).collect();
    let expected = [0, AF41, AF41, 0, AF41, AF11, AF41, AF41, 0, AF41, 0, AF41];
    assert_eq!(of_step, expected);
    assert!(flows[0].chunks(5).all(|dscps| dscps.iter().all(|it| *it == dscps[0])));
    let updates =
        |labels| live.samples_with("fenxi_policy_updates_total", labels).iter().sum::<f64>();
    assert_eq!(updates("op=\"change\",result=\"applied\""), 4.0);
    assert_eq!(updates("op=\"change\",result=\"refused\""), 1.0);
    assert_eq!(updates("op=\"undo\",result=\"applied\""), 3.0);
    assert_eq!(updates("op=\"load\""), 1.0);
    assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
    live.terminate(0);
    let lines = common::json_lines(&records);
    let rule_of = |from: &str| {
        let from = from.parse::<IpAddr>().unwrap().to_string();
        let last = lines.iter().find(|line| line["type"] == "flow" && line["src"] == from);
        let last = last.unwrap_or_else(|| panic!("{from}: {lines:?}"));
        (last["rule"].clone(), last["rule_name"].clone())
    };
    // The first rule called four is gone.
    assert_eq!(rule_of(LEFT[0]), (2.into(), "four".into()), "{lines:?}");
    assert_eq!(rule_of(LEFT[1]), (3.into(), "six".into()), "{lines:?}");
}

/// With `policy.update = "delayed"` a change counts once it is in the trained index. A large batch
/// is one change.
#[test]
fn a_large_batch_is_one_change_and_may_wait_for_its_index() {
    let Some(lab) = Lab::bridged("delayed", &["tcpdump", "tshark"]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let [batch, capture] = ["batch", "capture"].map(|name| dir.path().join(name));
    let live = inline::start(&lab, &["--set", "tag.mode=off", "--set", "policy.update=delayed"]);
    let right = listen(&lab, &live, &capture);
    let flow = ask_udp(&lab, ["left", "right"], RIGHT[0], 5);
    let mut lines = String::new();
    for at in 0..2000 {
        lines += &format!("add source = \"198.18.{}.{}\", dscp = \"CS1\"\n", at / 256, at % 256);
    }
    lines += &format!("add source = \"{}\", dscp = \"AF41\"\n", LEFT[0]);
    fs::write(&batch, lines).unwrap();
    let said = live.ctl(&["policy", "change", batch.to_str().unwrap()]).expect_code(0).stdout;
    assert!(
        said.contains("rules 1 to 2001 added; 2,001 rules in use; the change counts once"),
        "{said}"
    );
    // Metrics of rules are on the page once the run has noted that there are rules.
    live.wait_for("the index is trained", |live| {
        let trainings = "fenxi_policy_trainings_total";
        live.scrape().contains(trainings) && live.metric_sum(trainings) >= 1.0
    });
    ask(&flow, 5);
    right.finish(&live);
    assert_eq!(dscps(&seen(&capture)), [[[0; 5], [AF41; 5]].concat()]);
    assert!(live.metric_sum("fenxi_policy_index_coverage_ratio") > 0.9);
    live.terminate(0);
}

/// Where fenxi does not forward, it does not promise to drop.
#[test]
fn rules_that_a_run_cannot_keep_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rules.toml");
    let check_in = |mode: &str, rules: &str, code| {
        fs::write(&file, rules).unwrap();
        let mut check = common::fenxi(["check", "--config-only"]);
        check.args(["--set", &format!("io.mode={mode}")]);
        check.args(["--set", &format!("policy.rules={}", file.display())]);
        common::run(check).expect_code(code).stderr
    };
    for mode in ["mark", "tap"] {
        let said = check_in(mode, &rule("drop = true"), 78);
        let expected = format!(
            "rules.toml:1: drop: only mode inline can drop packets, and io.mode is \"{mode}\""
        );
        assert!(said.contains(&expected), "{said}");
    }
    let mut check = common::fenxi(["check", "--config-only", "--set", "io.mode=tap"]);
    fs::write(&file, rule("dscp = \"EF\"")).unwrap();
    check.args(["--set", &format!("policy.rules={}", file.display())]);
    let said = common::run(check).expect_code(0).stdout;
    let expected = "rules.toml:1: dscp: no effect in mode tap";
    assert!(said.contains(expected), "{said}");
    let check = |rules: &str, code| check_in("mark", rules, code);
    let said = check(&rule("app = \"Napster\"\nmark = 0x1000000"), 65);
    assert!(said.contains("there is no label or taxonomy \"Napster\""), "{said}");
    let said = check(&rule("mirror = \"copy\""), 78);
    let expected =
        "rules.toml:1: mirror: only mode inline can copy packets, and io.mode is \"mark\"";
    assert!(said.contains(expected), "{said}");
    // A DSCP needs bits in the mark, and a mark needs bits of the mask.
    let said = check(&rule("dscp = \"CS1\""), 78);
    let expected = "rules.toml:1: dscp: in mode mark a DSCP is written into the connection's mark, \
        and mark.as is \"label\"; set mark.as = \"dscp\"";
    assert!(said.contains(expected), "{said}");
    check(&rule("dscp = \"CS1\"\nmark = 0x1000000"), 0);
    let said = check(&rule("mark = \"0x1000000/0x1000001\""), 65);
    let expected = "rules.toml:1: mark: the mask of 0x1000000/0x1000001 has bits outside of \
        mark.mask = 0xff000000";
    assert!(said.contains(expected), "{said}");
}

/// A rule counts the packets of a flow that goes on, before any record has them, and the same
/// number once it has ended.
#[test]
fn rules_count_flows_that_go_on() {
    let Some(lab) = Lab::bridged("rulecount", &[]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rules.toml");
    let four = rule(&format!("name = \"four\"\nsource = \"{}\"\ndscp = \"AF41\"", LEFT[0]));
    fs::write(&file, four).unwrap();
    let rules = format!("policy.rules={}", file.display());
    let timeouts = ["--set", "flow.active_timeout_s=0", "--set", "flow.idle_timeout_s=10"];
    let live = inline::start(&lab, &[&["--set", rules.as_str()], &timeouts[..]].concat());
    let shown = |live: &Live| {
        let show = live.ctl(&["policy", "show", "four", "--counters"]).expect_code(0).stdout;
        let row = show.lines().nth(1).unwrap().to_owned();
        let cells: Vec<&str> = row.split_whitespace().skip(1).take(3).collect();
        cells.join(" ")
    };
    // 20 to 26 bytes there, 400 to 406 back, and 28 of headers.
    let all = "1 14 3,374";
    let _flow = ask_udp(&lab, ["left", "right"], RIGHT[0], 7);
    live.wait_for("packets of the flow count", |live| shown(live) == all);
    let counted = |live: &Live| live.metric_sum("fenxi_policy_rule_packets_total");
    assert_eq!(counted(&live), 14.0);
    assert_eq!(live.metric_sum("fenxi_policy_rule_bytes_total"), 3374.0);
    live.wait_for("the flow ends", |live| live.metric_sum("fenxi_flows_ended_total") == 1.0);
    assert_eq!(counted(&live), 14.0);
    live.wait_for("they count once", |live| shown(live) == all);
    live.terminate(0);
}

/// A pipe in place of the file is refused at once, before and during a run.
#[test]
fn a_pipe_in_place_of_the_rules_is_refused() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("r.csv");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let rules = format!("policy.rules={}", pipe.display());
    let check = common::fenxi(["check", "--config-only", "--set", &rules]);
    let said = common::run(check).expect_code(65).stderr;
    let expected = format!(
        "fenxi: policy.rules: {}: not a regular file; copy the rules into one\n",
        pipe.display()
    );
    assert_eq!(said, expected);

    let Some(lab) = Lab::routed("rulepipe", false, &[]) else {
        return;
    };
    let live = Live::start(&lab, "router", &["--set", "io.interfaces=[\"in\"]"]);
    let load = ["policy", "load", pipe.to_str().unwrap()];
    let said = live.ctl(&load).expect_code(78).stderr;
    assert!(said.contains("r.csv: not a regular file"), "{said}");
    live.ctl(&["policy", "add", "label = \"DNS\""]).expect_code(0);
    live.terminate(0);
}

/// In mode mark a rule's DSCP goes into the mark of the connection, where marks hold a DSCP;
/// `explain` names the rule and the mark.
#[test]
fn a_dscp_of_a_rule_is_in_the_mark() {
    let Some(lab) = Lab::routed("ruledscp", false, &["conntrack"]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rules.toml");
    let four = Lab::server(false);
    let calls =
        format!("name = \"calls\"\ndestination = \"{four}\"\ndscp = \"EF\"\ntask = \"none\"");
    fs::write(&file, rule(&calls)).unwrap();
    let rules = format!("policy.rules={}", file.display());
    let args = [&["--set", rules.as_str()], &common::SIMULATED[..]].concat();
    let live = mark::start(&lab, "in", "mark.as=dscp", &args);
    let [near, far] = ask_udp(&lab, mark::HOSTS, four, 2);
    let expected = FOREIGN | 128 | u32::from(EF);
    live.wait_for("the connection has its mark", |_| {
        mark::mark_at(&lab, near.local_addr().unwrap()) == expected
    });
    let flow = format!("{} > {} udp", near.local_addr().unwrap(), far.local_addr().unwrap());
    let said = live.ctl(&["explain", &flow]).expect_code(0).stdout;
    let place = format!("rule     1, {}:1: name = \"calls\"", file.display());
    for part in [
        "rule 1 says that no model is asked about this flow",
        &place,
        "mark 0xae/0xbf: the connection has the mark",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    live.terminate(0);
}
