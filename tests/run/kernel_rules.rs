//! `io.capture = "kernel"` beside rules and other tasks: the kernel labels for the first task, and
//! records and marks are what they are where all packets come up.

use std::fs;

use serde_json::Value;

use crate::common;
use crate::common::lab::{FOREIGN, Lab};
use crate::run::first::gather_shared;
use crate::run::kernel::{assert_same_labels, both_label, on_a_wire};
use crate::run::kernel_marks::{ROUNDS, SMALL, UNNAMED, mark_of, name_of, start_kernel, talk};
use crate::run::mark::marks;
use crate::run::traffic::{assert_same, fields};

/// A rule for each way in which one decides about a flow.
const RULES: &str = r#"
[[rule]]
name = "named"
destination_port = 53
label = "DNS"

[[rule]]
name = "not asked"
destination_port = [80, 443, 8080]
task = "none"

[[rule]]
name = "by label"
app = ["SSH", "STUN"]

[[rule]]
name = "by address"
protocol = "udp"
source_port = "1024-40000"
"#;

#[test]
fn rules_and_other_tasks_give_the_records_that_all_packets_give() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("captures");
    let test = "rules_and_other_tasks_give_the_records_that_all_packets_give";
    let (Some(()), Some(lab)) = (gather_shared(test, &capture), on_a_wire("kernel-rules", &[]))
    else {
        return;
    };
    let file = dir.path().join("rules.toml");
    fs::write(&file, RULES).unwrap();
    let rules = format!("policy.rules={}", file.display());
    let [first, second] = [SMALL, "models/protocol"].map(|it| common::root().join(it));
    let [first, second] = [("first", first), ("second", second)]
        .map(|(task, model)| format!("task.{task}.model={}", model.display()));
    let small = format!("model.path={SMALL}");
    let when = "task.second.when=first.confidence < 0.99";
    let depths = "task.second.depths=[3, 5, 10]";
    let other = ["--set", &first, "--set", &second, "--set", when, "--set", depths];
    for (args, has_other) in [
        (&["--set", &small, "--set", &rules][..], false),
        (&other, true),
        (&[&other[..], &["--set", &rules, "--series"]].concat(), true),
    ] {
        let records = both_label(&lab, dir.path(), &capture, args, |_| {});
        assert_same_labels(&records);
        let [all, kernel] = records.map(|records| {
            let of_other = ["task", "label", "confidence", "decided_by", "depth"]
                .map(|it| "labels/0/".to_owned() + it);
            let mut names = vec!["rule_name"];
            names.extend(of_other.iter().map(String::as_str));
            fields(&records, &names)
        });
        assert_same(&kernel, &all);
        let mut all = all.values().flatten();
        assert_eq!(all.any(|fields| fields.contains("second")), has_other);
    }
}

/// Ports of the flows that a rule marks, that it gives a label, and that have none.
const MARKED: u16 = UNNAMED;
const LABELLED: u16 = UNNAMED + 1;
const UNRULED: u16 = UNNAMED + 2;

/// What a rule says stands, whatever the kernel's label.
#[test]
fn a_flow_has_the_mark_of_its_rule() {
    const BITS: u32 = 0x4100_0000;
    let Some(lab) = Lab::routed("kernel-ruled", true, &[]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let [path, file] = ["records", "rules.toml"].map(|name| dir.path().join(name));
    let marked = format!("destination_port = {MARKED}\nmark = {BITS:#x}\n");
    let labelled = format!("destination_port = {LABELLED}\nlabel = \"DNS\"\n");
    let ssh = format!("app = \"SSH\"\nmark = {:#x}\n", BITS + 0x100_0000);
    fs::write(&file, [marked, labelled, ssh].map(|rule| format!("[[rule]]\n{rule}")).concat())
        .unwrap();
    let rules = format!("policy.rules={}", file.display());
    let live = start_kernel(&lab, "in", SMALL, &path, &["--set", &rules]);
    let mut check = common::fenxi(["check", "--deep", "--config-only", "--config"]);
    check.arg(common::root().join("configs/live-mark-kernel.toml")).args(["--set", &rules]);
    let page = common::run(check).expect_code(0).stdout;
    assert!(page.contains("in the kernel, marks by fenxi; what it leaves, "), "{page}");
    let mut flows = 0.0;
    for port in [22, 53, MARKED, LABELLED, UNRULED, UNRULED + 1] {
        for (is_v6, is_tcp) in [(false, false), (false, true), (true, false), (true, true)] {
            talk(&lab, (is_v6, is_tcp, port), [60, 600], ROUNDS);
            flows += 1.0;
        }
    }
    live.wait_for("all labels are known", |live| {
        live.metric_sum("fenxi_labels_total") >= flows
            && live.metric_sum("fenxi_marks_waiting") == 0.0
    });
    assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
    live.terminate(0);
    let (marks, records) = (marks(&lab), common::json_lines(&path));
    let is_talk = |it: &&Value| it["type"] == "flow" && (it["proto"] == 6 || it["proto"] == 17);
    let mut seen = 0.0;
    for record in records.iter().filter(is_talk) {
        let text = |name: &str| record[name].to_string().replace('"', "");
        let tuple = ["src", "src_port", "dst", "dst_port", "proto"].map(text);
        let wanted = match name_of(record).2 {
            MARKED => BITS,
            LABELLED => mark_of(SMALL, &Value::from("DNS")),
            _ if record["label"] == "SSH" => BITS + 0x100_0000,
            _ => mark_of(SMALL, &record["label"]),
        };
        assert_eq!(marks[&tuple.join(" ")], FOREIGN | wanted, "{record}");
        assert_eq!(record["decided_by"] == "rule", name_of(record).2 == LABELLED, "{record}");
        seen += 1.0;
    }
    assert_eq!(seen, flows);
}
