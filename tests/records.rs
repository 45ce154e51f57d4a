//! Records and summary are what `docs/` says, and the records of a flow add up.
//!
//! Other programs read these lines. So the schema is held against real output, and
//! shown to refuse lines that are wrong; the pages name what is printed, and nothing
//! else.

use crate::common;

use std::collections::{BTreeMap, BTreeSet};

use jsonschema::Validator;
use serde_json::{Map, Value, json};

/// A replay of the demo: its records and its summary.
struct Replay {
    records: Vec<Value>,
    summary: Value,
}

fn replay(options: &[&str]) -> Replay {
    let dir = tempfile::tempdir().expect("a folder");
    let flows = dir.path().join("flows.jsonl");
    let mut command = common::fenxi(["replay", "--json", "--flows"]);
    command.arg(&flows).arg(common::demo()).args(options);
    let summary = common::run(command).expect_code(0).json();
    let records = common::json_lines(&flows);
    Replay { records, summary }
}

fn doc(name: &str) -> String {
    let path = common::root().join("docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn schema() -> Value {
    serde_json::from_str(&doc("records.schema.json")).expect("JSON")
}

fn validator() -> Validator {
    let schema = schema();
    assert!(jsonschema::meta::is_valid(&schema), "the schema is no schema");
    jsonschema::validator_for(&schema).expect("a schema of a known draft")
}

/// Panics with what is wrong with the first line that the schema refuses.
fn assert_valid(validator: &Validator, records: &[Value]) {
    for record in records {
        if let Err(error) = validator.validate(record) {
            panic!("{error}\nin {record}");
        }
    }
}

fn flow_records(records: &[Value]) -> impl Iterator<Item = &Value> {
    records.iter().filter(|record| record["type"] == "flow")
}

#[test]
fn records_are_as_the_schema_says() {
    let validator = validator();
    let dir = tempfile::tempdir().expect("a folder");
    let rules = dir.path().join("rules.toml");
    let two = "[[rule]]\nname = \"names\"\ndestination_port = 53\n[[rule]]\nprotocol = \"udp\"\n";
    std::fs::write(&rules, two).expect("a file");
    let rules = format!("policy.rules={}", rules.display());
    for options in [
        &[][..],
        &["--set", &rules],
        &["--series"],
        &["--series", "--set", "flow.active_timeout_s=1"],
        &["--label-delay-ms", "20", "--set", "cache.prefix=4"],
        &["--speed", "1000x"],
        &["--config", "configs/three-tasks.toml", "--set", "io.mode=tap"],
    ] {
        let Replay { records, .. } = replay(options);
        assert_valid(&validator, &records);
        let has_rule = |rule: u64| flow_records(&records).any(|flow| flow["rule"] == rule);
        let has_rules = options.contains(&rules.as_str());
        assert_eq!([1, 2].map(has_rule), [has_rules; 2], "{options:?}");
        let with_series = flow_records(&records).filter(|flow| flow.get("series").is_some());
        let expected =
            if options.contains(&"--series") { flow_records(&records).count() } else { 0 };
        assert_eq!(with_series.count(), expected, "{options:?}");
    }
}

/// What is collected for training is a share of the flows, whole series, and the same flows each
/// time.
#[test]
fn records_of_a_share_of_the_flows_have_their_series() {
    let (all, share) = (replay(&["--series"]), replay(&["--set", "records.series=0.25"]));
    let pairs: Vec<_> = flow_records(&all.records).zip(flow_records(&share.records)).collect();
    let (with, without): (Vec<_>, Vec<_>) =
        pairs.into_iter().partition(|(_, flow)| flow.get("series").is_some());
    assert!(with.len() * 3 < without.len() + with.len(), "{}", with.len());
    assert!(with.len() * 5 > without.len() + with.len(), "{}", with.len());
    assert!(with.iter().all(|(whole, flow)| whole == flow));
}

/// A schema that takes everything would pass the test above.
#[test]
fn the_schema_refuses_what_is_wrong() {
    let Replay { records, .. } = replay(&["--series"]);
    let validator = validator();
    let label = records.iter().find(|record| record["type"] == "label").expect("a label record");
    let flow =
        flow_records(&records).find(|flow| flow["label"].is_string()).expect("a labelled flow");
    for record in [label, flow] {
        let record = record.as_object().expect("an object");
        for field in record.keys() {
            let mut without = record.clone();
            without.remove(field);
            assert!(!validator.is_valid(&without.into()), "without {field}");
        }
        let mut more = record.clone();
        more.insert("colour".to_owned(), json!("blue"));
        assert!(!validator.is_valid(&more.into()), "with a field too many");
    }
    for (field, value) in [
        ("type", json!("packet")),
        ("schema_version", json!(2)),
        ("flow_id", json!(-1)),
        ("community_id", json!("1:short=")),
        ("src", json!("localhost")),
        ("src_port", json!(65_536)),
        ("proto", json!(2)),
        ("first", json!("2024-01-01T00:00:00Z")),
        ("last", json!(0)),
        ("final", json!(false)),
        ("end_reason", json!("active")),
        ("end_reason", json!("timeout")),
        ("one_way", json!(null)),
        ("packets_fwd", json!(0.5)),
        ("label", json!(null)),
        ("confidence", json!(null)),
        ("confidence", json!(1.5)),
        ("decided_by", json!("dice")),
        ("time_to_label_us", json!(-1)),
        ("series", json!([65_536])),
        ("series_unit", json!("flow")),
        ("series_us", json!(["0"])),
    ] {
        let mut wrong = flow.clone();
        wrong[field] = value.clone();
        assert!(!validator.is_valid(&wrong), "{field}: {value}");
    }
}

#[test]
fn end_reasons_are_those_of_the_program() {
    let schema = schema();
    let listed = &schema["$defs"]["flow_record"]["properties"]["end_reason"]["enum"];
    let reasons = flowmgr::record::EndReason::ALL.map(|reason| reason.name());
    assert_eq!(*listed, json!(reasons));
    let page = doc("records.md");
    for reason in reasons {
        assert!(page.contains(&format!("| `{reason}` |")), "{reason} is not in records.md");
    }
}

/// The records of a flow that is reported in between add up to the one record it has
/// without, and exactly one is the last.
#[test]
fn records_of_active_timeouts_add_up() {
    let whole = replay(&["--series"]);
    let active = ["--series", "--set", "flow.active_timeout_s=1"];
    let parts = replay(&active);
    let mut by_flow: BTreeMap<u64, Vec<&Value>> = BTreeMap::new();
    for part in flow_records(&parts.records) {
        by_flow.entry(part["flow_id"].as_u64().expect("a number")).or_default().push(part);
    }
    assert!(by_flow.values().any(|parts| parts.len() > 2), "no flow was reported twice");
    assert_eq!(by_flow.len(), flow_records(&whole.records).count(), "flows");
    for whole in flow_records(&whole.records) {
        let id = whole["flow_id"].as_u64().expect("a number");
        let parts = &by_flow[&id];
        for count in ["packets_fwd", "packets_rev", "bytes_fwd", "bytes_rev"] {
            let sum: u64 = parts.iter().map(|part| part[count].as_u64().expect("a count")).sum();
            assert_eq!(whole[count], sum, "flow {id}: {count}");
        }
        let (last, before) = parts.split_last().expect("a record");
        assert!(
            before.iter().all(|part| part["final"] == false && part["end_reason"] == "active"),
            "flow {id}"
        );
        for field in [
            "final",
            "end_reason",
            "first",
            "last",
            "label",
            "series",
            "series_unit",
            "series_us",
            "midstream",
        ] {
            assert_eq!(last[field], whole[field], "flow {id}: {field}");
        }
    }
    let reported = parts.summary["flows"]["reported"].as_u64().expect("a count");
    assert_eq!(
        reported as usize,
        flow_records(&parts.records).filter(|part| part["final"] == false).count()
    );
    for same in ["packets", "verdicts", "labels", "coverage", "series"] {
        assert_eq!(parts.summary[same], whole.summary[same], "{same}");
    }
}

/// With a `[[task]]`, records say whose label it is, and nothing else of them changes.
#[test]
fn records_name_a_configured_task() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = dir.path().join("c.toml");
    std::fs::write(&config, "[[task]]\nname = \"protocol\"\n").expect("a file");
    let config = config.to_str().expect("UTF-8");
    let (named, plain) = (replay(&["--config", config]), replay(&[]));
    assert_valid(&validator(), &named.records);
    let without_task = |record: &Value| {
        let mut record = record.as_object().expect("an object").clone();
        assert_eq!(record.remove("task"), Some(json!("protocol")));
        Value::Object(record)
    };
    let without: Vec<Value> = named.records.iter().map(without_task).collect();
    assert_eq!(without, plain.records);
}

/// Hosts are recorded where the bundle asks for it, right after the label that gives them their
/// name.
#[test]
fn host_records_follow_the_label_that_brings_them() {
    let dir = tempfile::tempdir().expect("a folder");
    let bundle = common::naming_hosts(dir.path());
    let bundle = bundle.to_str().expect("UTF-8");
    let plain = common::bundle();
    let plain = plain.to_str().expect("UTF-8");
    let (named, plain) = (replay(&["--model", bundle]), replay(&["--model", plain]));
    let validator = validator();
    assert_valid(&validator, &named.records);
    let (hosts, others): (Vec<Value>, Vec<Value>) =
        named.records.iter().cloned().partition(|it| it["type"] == "host");
    assert!(!hosts.is_empty());
    assert_eq!(others, plain.records, "nothing else changes");
    for pair in named.records.windows(2).filter(|it| it[1]["type"] == "host") {
        let (label, host) = (&pair[0], &pair[1]);
        assert_eq!(label["type"], "label");
        assert_eq!(host["address"], label["src"], "the originator");
        assert_eq!(host["time"], label["time"]);
        assert!(host["flows"].as_u64() >= Some(2), "{host}");
        assert!(host["confidence"].as_f64() >= Some(0.5), "{host}");
    }
    assert_eq!(named.summary["hosts_evicted"], 0);
    let last: BTreeMap<String, &Value> =
        hosts.iter().map(|host| (host["address"].to_string(), &host["label"])).collect();
    assert_eq!(named.summary["hosts_named"], last.len());
    assert_eq!(plain.summary["hosts_tracked"], 0);

    let host = hosts[0].as_object().expect("an object");
    for field in host.keys() {
        let mut without = host.clone();
        without.remove(field);
        assert!(!validator.is_valid(&without.into()), "without {field}");
    }
    for (field, value) in [
        ("address", json!("localhost")),
        ("label", json!(null)),
        ("confidence", json!(1.5)),
        ("flows", json!(0)),
        ("flow_id", json!(0)),
    ] {
        let mut wrong = hosts[0].clone();
        wrong[field] = value.clone();
        assert!(!validator.is_valid(&wrong), "{field}: {value}");
    }
}

/// What stands in backticks in the first cell of the rows of a page's tables.
fn first_cells(page: &str) -> BTreeSet<String> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| "));
    let cells = rows.filter_map(|row| row.split(" | ").next());
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

fn assert_same(documented: &BTreeSet<String>, printed: &BTreeSet<String>) {
    let missing: Vec<_> = printed.difference(documented).collect();
    let too_many: Vec<_> = documented.difference(printed).collect();
    assert!(
        missing.is_empty() && too_many.is_empty(),
        "missing on the page: {missing:?}; not printed: {too_many:?}"
    );
}

/// The paths of all values that are no objects, joined by dots; of a list of objects, those in the
/// first.
fn paths(object: &Map<String, Value>, above: &str, paths: &mut BTreeSet<String>) {
    for (name, value) in object {
        // Names of classes are the model's, reasons and triggers are listed elsewhere.
        let name = match above {
            "labels." => "<class>",
            "batches." => "<trigger>",
            "flows.ended." => "<reason>",
            _ => name,
        };
        match value {
            Value::Object(below) => self::paths(below, &format!("{above}{name}."), paths),
            Value::Array(list) => match list.first() {
                Some(Value::Object(below)) => {
                    self::paths(below, &format!("{above}{name}[]."), paths)
                }
                _ => drop(paths.insert(format!("{above}{name}"))),
            },
            _ => drop(paths.insert(format!("{above}{name}"))),
        }
    }
}

#[test]
fn the_summary_page_names_every_field_and_no_other() {
    let Replay { summary, .. } = replay(&[]);
    let mut expected = BTreeSet::new();
    paths(summary.as_object().expect("an object"), "", &mut expected);
    let triggers = summary["batches"].as_object().expect("an object").keys().cloned();
    expected.extend(triggers);
    assert_same(&first_cells(&doc("summary.md")), &expected);
}

#[test]
fn the_records_page_names_every_field_and_no_other() {
    let schema = schema();
    let mut expected = BTreeSet::new();
    for record in ["label_record", "flow_record", "host_record", "lost_record"] {
        let properties = &schema["$defs"][record]["properties"];
        expected.extend(properties.as_object().expect("an object").keys().cloned());
    }
    // The reasons stand in a table of their own.
    expected.extend(flowmgr::record::EndReason::ALL.map(|reason| reason.name().to_owned()));
    assert_same(&first_cells(&doc("records.md")), &expected);
}
