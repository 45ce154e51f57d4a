//! Several tasks side by side, through the real program.
//!
//! Each task is held against a run in which its model is the only one: what such a run says of a
//! flow, the task has to say of it, if it is asked about the flow at all. Which flows it is asked
//! about is worked out here, from what the one-task runs say, and not by the program.

use crate::common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// A task of a configuration.
#[derive(Clone, Copy)]
struct Task {
    name: &'static str,
    model: &'static str,
    /// Further keys, as TOML.
    keys: &'static str,
}

/// Names flows by their port at once, and is asked at several depths, of packets with data.
const A: Task = Task { name: "a", model: "protocol", keys: "depths = [3, 5, 10]" };
/// Asked at several depths, of another model, whose ports name nothing at once.
const B: Task = Task { name: "b", model: "iot-family", keys: "depths = [3, 10]" };
/// Asked once, of ten packets.
const C: Task = Task { name: "c", model: "app-id-k10", keys: "" };

/// The demo's hosts.
const INSIDE: &str = "192.0.2.";

impl Task {
    fn with(self, keys: &'static str) -> Task {
        Task { keys, ..self }
    }

    /// How many elements the deepest answer takes.
    const K: usize = 10;
}

/// The label of a flow by one task.
type Answer = (String, String, u64);

/// A replay of the demo.
struct Replay {
    text: String,
    records: Vec<Value>,
    summary: Value,
}

impl Replay {
    /// With the series of all flows in the records.
    fn run(tasks: &[Task], options: &[&str]) -> Replay {
        let dir = tempfile::tempdir().expect("a folder");
        let flows = dir.path().join("flows.jsonl");
        let mut command = Replay::command(tasks, dir.path());
        command.args(options);
        let summary = common::run(command).expect_code(0).json();
        Replay {
            text: std::fs::read_to_string(&flows).expect("records"),
            records: common::json_lines(&flows),
            summary,
        }
    }

    /// The explanation of one flow.
    fn explained(tasks: &[Task], flow: &str) -> Value {
        let dir = tempfile::tempdir().expect("a folder");
        let mut command = Replay::command(tasks, dir.path());
        command.args(["--explain", flow]);
        common::run(command).expect_code(0).json()
    }

    fn command(tasks: &[Task], dir: &Path) -> Command {
        let config = dir.join("c.toml");
        let mut text =
            "[flow]\nmax_flows = 16384\n[hosts]\nnetworks = [\"192.0.2.0/24\"]\n".to_owned();
        for task in tasks {
            let model = common::root().join("models").join(task.model);
            let (name, model) = (task.name, model.display());
            text += &format!("[[task]]\nname = \"{name}\"\nmodel = \"{model}\"\n{}\n", task.keys);
        }
        std::fs::write(&config, text).expect("a file");
        let mut command = common::fenxi(["replay", "--json", "--series", "--config"]);
        command.arg(&config).arg("--flows").arg(dir.join("flows.jsonl")).arg(common::demo());
        command
    }

    /// The labels that a task gave while flows went on, by flow.
    fn labels(&self, task: &str) -> BTreeMap<u64, Answer> {
        let labels = self.records.iter().filter(|it| it["type"] == "label");
        let own = labels.filter(|it| it["task"] == task);
        own.map(|it| (id(it), answer(it))).collect()
    }

    /// The last record of each flow.
    fn flows(&self) -> BTreeMap<u64, &Value> {
        let flows = self.records.iter().filter(|it| it["final"] == true);
        flows.map(|it| (id(it), it)).collect()
    }

    /// The flows whose records have at least `elements` elements.
    fn complete(&self, elements: usize) -> BTreeSet<u64> {
        let long = |flow: &&Value| flow["series"].as_array().is_some_and(|it| it.len() >= elements);
        let flows = self.flows().into_iter();
        flows.filter(|(_, flow)| long(flow)).map(|(id, _)| id).collect()
    }

    /// The part of the summary of a task, by its place.
    fn task(&self, number: usize) -> &Value {
        &self.summary["tasks"][number]
    }

    /// Every series has met its fate once, and each label has its record.
    fn assert_closed(&self, tasks: &[Task]) {
        let all = self.summary["tasks"].as_array().expect("several tasks");
        assert_eq!(all.len(), tasks.len());
        let mut sums = BTreeMap::<&str, u64>::new();
        for (task, part) in tasks.iter().zip(all) {
            assert_eq!(part["name"], task.name);
            let of = |fate: &str| count(&part["series"][fate]);
            let fates = ["cached", "inferred", "not_asked", "shed", "failed"];
            assert_eq!(of("emitted"), fates.map(of).iter().sum::<u64>(), "{part}");
            for fate in ["emitted", "cached", "inferred", "shed", "failed"] {
                *sums.entry(fate).or_default() += of(fate);
            }
            let decided: u64 =
                part["decided_by_depth"].as_array().expect("a list").iter().map(count).sum();
            let labels = self.records.iter().filter(|it| it["type"] == "label");
            let own = labels.filter(|it| it["task"] == task.name && it["decided_by"] != "port");
            assert_eq!(decided, own.count() as u64, "{part}");
        }
        for (fate, sum) in sums {
            assert_eq!(self.summary["series"][fate], sum, "{fate}");
        }
        let labelled = self.flows().into_values().filter(|flow| !flow["label"].is_null());
        assert_eq!(sum(&all[0]["labels"]), labelled.count() as u64);
        for (task, part) in tasks.iter().zip(all).skip(1) {
            let named =
                self.flows().into_values().filter(|flow| of_task(flow, task.name).is_some());
            assert_eq!(sum(&part["labels"]), named.count() as u64, "{part}");
        }
    }
}

fn id(record: &Value) -> u64 {
    record["flow_id"].as_u64().expect("a number")
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn sum(counts: &Value) -> u64 {
    counts.as_object().expect("an object").values().map(count).sum()
}

fn answer(label: &Value) -> Answer {
    (label["label"].to_string(), label["confidence"].to_string(), count(&label["depth"]))
}

/// What a flow record says of a task behind the first.
fn of_task<'a>(flow: &'a Value, task: &str) -> Option<&'a Value> {
    let mut labels = flow["labels"].as_array()?.iter();
    labels.find(|label| label["task"] == task)
}

/// The labels of these flows only.
fn only(labels: &BTreeMap<u64, Answer>, flows: impl Fn(u64) -> bool) -> BTreeMap<u64, Answer> {
    let labels = labels.iter().filter(|(id, _)| flows(**id));
    labels.map(|(id, answer)| (*id, answer.clone())).collect()
}

#[test]
fn each_task_says_what_its_model_says_alone() {
    let tasks = [A, B, C];
    let all = Replay::run(&tasks, &[]);
    all.assert_closed(&tasks);
    for task in tasks {
        let alone = Replay::run(&[task], &[]);
        let labels = alone.labels(task.name);
        assert!(labels.len() > 50, "{}", task.name);
        assert_eq!(all.labels(task.name), labels, "{}", task.name);
    }
    // The ports decided, and a depth; and of several depths more than one.
    let decided: BTreeSet<u64> = all.labels("a").values().map(|it| it.2).collect();
    assert!(decided.contains(&0) && decided.len() > 1, "{decided:?}");
    let depths = all.task(1)["decided_by_depth"].as_array().expect("a list");
    assert!(depths.iter().filter(|it| count(it) > 0).count() > 1, "{depths:?}");
    // The record of a flow has all labels that were given while it went on.
    for task in [B, C] {
        let labels = all.labels(task.name);
        for (id, flow) in all.flows() {
            let own = of_task(flow, task.name);
            let given = own.filter(|own| !own["time_to_label_us"].is_null());
            assert_eq!(given.map(answer).as_ref(), labels.get(&id), "{flow}");
        }
    }
    let alone = Replay::run(&[A], &[]);
    for (id, flow) in all.flows() {
        let mut flow = flow.clone();
        let fields = flow.as_object_mut().expect("an object");
        assert!(fields.remove("labels").is_some());
        // Records have the features of all models, for elements that several models take.
        fields.retain(|name, _| !name.starts_with("series"));
        let mut same = alone.flows()[&id].clone();
        let fields = same.as_object_mut().expect("an object");
        fields.retain(|name, _| !name.starts_with("series"));
        assert_eq!(flow, same);
    }
}

/// What rules, IPFIX and names of hosts take of a task is the same whether it is alone or named as
/// the second one.
#[test]
fn whoever_names_a_task_gets_what_its_model_says_alone() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let outputs = |tasks: &[Task], app: &str, options: &[&str]| -> [Vec<u8>; 2] {
        let rules = path("rules.toml");
        let rule = format!("[[rule]]\napp = \"{app}\"\ndscp = \"EF\"\n");
        std::fs::write(&rules, rule).expect("a file");
        let (written, exported) = (path("out.pcap"), path("out.ipfix"));
        let (rules, to) = (format!("policy.rules={rules}"), format!("file:{exported}"));
        let outputs = ["--write", &written, "--ipfix", &to];
        let sets = ["--set", "tag.dscp={}", "--set", &rules];
        Replay::run(tasks, &[&outputs, &sets, options].concat());
        [written, exported].map(|file| std::fs::read(file).expect("an output"))
    };
    let alone = outputs(&[A], "DNS", &[]);
    let second = ["--set", "ipfix.task=a"];
    assert_eq!(outputs(&[C, A], "a.DNS", &second), alone);
    // The label made the difference.
    assert_ne!(outputs(&[C, A], "a.SSH", &second)[0], alone[0]);
    let hosts = |tasks: &[Task], options: &[&str]| -> Vec<Value> {
        let records = Replay::run(tasks, options).records;
        records.into_iter().filter(|record| record["type"] == "host").collect()
    };
    assert_eq!(hosts(&[A, B], &["--set", "hosts.task=b"]), hosts(&[B], &[]));
    assert!(hosts(&[A, B], &[]).is_empty());
}

#[test]
fn an_unknown_task_or_label_is_named_with_a_near_one() {
    let long = Task { name: "device", ..B };
    let dir = tempfile::tempdir().expect("a folder");
    let refused = |sets: &[&str]| {
        let mut command = Replay::command(&[A, long], dir.path());
        command.args(sets.iter().flat_map(|set| ["--set", set]));
        common::run(command).stderr
    };
    for key in ["ipfix.task", "hosts.task"] {
        let said = refused(&[&format!("{key}=devise")]);
        let expected = "= \"devise\": unknown task; there are a, device; did you mean device?";
        assert!(said.contains(&format!("{key} {expected}")), "{said}");
    }
    let rules = dir.path().join("rules.toml");
    std::fs::write(&rules, "[[rule]]\napp = \"device.D-LinkCm\"\ndrop = true\n").expect("a file");
    let said = refused(&[&format!("policy.rules={}", rules.display())]);
    assert!(said.contains("there is no label or taxonomy \"device.D-LinkCm\""), "{said}");
    assert!(said.contains("did you mean device.D-LinkCam?"), "{said}");
}

#[test]
fn records_are_the_same_each_time_however_packets_and_threads_fall() {
    let tasks = [
        A,
        B.with("depths = [3, 10]\nwhen = \"a.confidence < 0.95\""),
        C.with("when = \"protocol = tcp and a.label != DNS\""),
    ];
    let whole = Replay::run(&tasks, &[]);
    whole.assert_closed(&tasks);
    for options in [
        &[][..],
        &["--set", "io.burst=1"],
        &["--set", "io.burst=17"],
        &["--set", "ring.slots=64"],
        &["--set", "pipeline.layout=1:1:2"],
        &["--set", "pipeline.layout=1:2:2"],
    ] {
        let again = Replay::run(&tasks, options);
        again.assert_closed(&tasks);
        assert!(again.text == whole.text, "{options:?}");
    }
    for layout in ["2:1:1", "2:2:2", "3:2:1"] {
        let spread = Replay::run(&tasks, &["--set", &format!("pipeline.layout={layout}")]);
        spread.assert_closed(&tasks);
        assert_eq!(lasting(&spread), lasting(&whole), "{layout}");
    }
}

/// The records without what a layout may change.
fn lasting(replay: &Replay) -> BTreeSet<String> {
    let record = |record: &Value| {
        let mut record = record.clone();
        let fields = record.as_object_mut().expect("an object");
        fields.remove("flow_id");
        if fields.get("end_reason").is_some_and(|it| it == "idle" || it == "drain") {
            fields.remove("end_reason");
        }
        record.to_string()
    };
    let records = replay.records.iter().filter(|it| it["type"] != "host");
    records.map(record).collect()
}

/// A `when`, and which flows it means by their records.
type Case = (&'static str, fn(&Value) -> bool);

#[test]
fn a_task_is_asked_about_the_flows_that_its_when_means() {
    let cases: [Case; 9] = [
        // A capture has no interfaces.
        ("when = \"in_port = eth1\"", |_| false),
        ("when = \"protocol = udp\"", |flow| flow["proto"] == 17),
        ("when = \"port = 53, 440-450\"", |flow| {
            let port = count(&flow["dst_port"]);
            port == 53 || (440..=450).contains(&port)
        }),
        ("when = \"port = 443 and protocol = tcp\"", |flow| {
            flow["dst_port"] == 443 && flow["proto"] == 6
        }),
        ("when = \"direction = out\"", |flow| inside(flow, "src") && !inside(flow, "dst")),
        ("when = \"direction = in\"", |flow| !inside(flow, "src") && inside(flow, "dst")),
        ("when = \"direction = inside\"", |flow| inside(flow, "src") && inside(flow, "dst")),
        ("when = \"direction = outside\"", |flow| !inside(flow, "src") && !inside(flow, "dst")),
        ("when = \"port = 9\"", |flow| flow["dst_port"] == 9),
    ];
    for task in [B.with(""), C] {
        let alone = Replay::run(&[task], &[]);
        let (labels, flows) = (alone.labels(task.name), alone.flows());
        let mut asked = 0;
        for (when, means) in cases {
            let wanted = only(&labels, |id| means(flows[&id]));
            asked += wanted.len();
            // As another task, as the first one, and as the only one.
            let own = task.with(when);
            for tasks in [vec![A, own], vec![own, A], vec![own]] {
                let replay = Replay::run(&tasks, &[]);
                assert_eq!(replay.labels(task.name), wanted, "{when}");
                if tasks.len() > 1 {
                    replay.assert_closed(&tasks);
                }
            }
        }
        assert!(asked > 100, "{asked}");
    }
}

fn inside(flow: &Value, end: &str) -> bool {
    flow[end].as_str().expect("an address").starts_with(INSIDE)
}

/// A share of the flows, the same ones for all tasks.
#[test]
fn a_sample_is_a_share_and_the_same_for_all_tasks() {
    let alone = Replay::run(&[C], &[]).labels("c");
    let mut before = BTreeMap::new();
    for (when, least, most) in [
        ("when = \"sample = 0.2\"", 0.1, 0.3),
        ("when = \"sample = 0.5\"", 0.4, 0.6),
        ("when = \"sample = 1\"", 1.0, 1.0),
    ] {
        let cnn = Task { name: "d", model: "fenxi-cnn-k10", keys: when };
        let replay = Replay::run(&[C.with(when), cnn], &[]);
        let labels = replay.labels("c");
        let share = labels.len() as f64 / alone.len() as f64;
        assert!((least..=most).contains(&share), "{when}: {share}");
        assert_eq!(labels, only(&alone, |id| labels.contains_key(&id)));
        assert!(labels.keys().eq(replay.labels("d").keys()), "{when}");
        assert!(before.keys().all(|id| labels.contains_key(id)), "a larger share has more");
        before = labels;
    }
}

/// If the cheap model is not sure of a flow, the expensive task gives its own model's label. Both
/// need all elements of both.
#[test]
fn a_task_is_asked_where_the_label_of_another_says_so() {
    let (cheap, dear) = (Replay::run(&[A], &[]), Replay::run(&[C], &[]));
    let (of_a, of_c) = (cheap.labels("a"), dear.labels("c"));
    let (data, packets) = (cheap.complete(Task::K), dear.complete(Task::K));
    let midstream = |id: u64| cheap.flows()[&id]["midstream"] == true;
    let confidence = |id: u64| -> f64 {
        let answer = of_a.get(&id);
        answer.map_or(0.0, |(_, confidence, _)| confidence.parse().expect("a number"))
    };
    let label = |id: u64| of_a.get(&id).map(|(label, ..)| label.as_str());
    let wants: [(&'static str, &dyn Fn(u64) -> bool); 6] = [
        ("when = \"a.confidence < 0.9\"", &|id| confidence(id) < 0.9),
        ("when = \"a.confidence >= 0.9\"", &|id| confidence(id) >= 0.9),
        ("when = \"a.label = unknown, TLS\"", &|id| {
            [Some("\"unknown\""), Some("\"TLS\"")].contains(&label(id))
        }),
        ("when = \"a.label = web\"", &|id| {
            ["\"HTTP\"", "\"TLS\"", "\"QUIC\""].map(Some).contains(&label(id))
        }),
        ("when = \"a.label != TLS\"", &|id| label(id) != Some("\"TLS\"")),
        ("when = \"protocol = tcp and a.confidence < 0.97\"", &|id| {
            cheap.flows()[&id]["proto"] == 6 && confidence(id) < 0.97
        }),
    ];
    for (when, holds) in wants {
        let tasks = [A, C.with(when)];
        let replay = Replay::run(&tasks, &[]);
        replay.assert_closed(&tasks);
        assert_eq!(replay.labels("a"), of_a, "{when}");
        let reach = |id: u64| data.contains(&id) && packets.contains(&id) && !midstream(id);
        let wanted = only(&of_c, |id| reach(id) && holds(id));
        assert_eq!(replay.labels("c"), wanted, "{when}");
        // Those that were complete, and that the label rules out, count as not asked.
        let by_flow = count(&replay.task(1)["series"]["flows_not_asked"]);
        let by_label = count(&replay.task(1)["series"]["not_asked"]);
        let complete = data.iter().filter(|id| reach(**id)).count() as u64;
        assert_eq!(by_flow + by_label + wanted.len() as u64, complete, "{when}");
        // The other way round in the configuration.
        let turned = Replay::run(&[C.with(when), A], &[]);
        assert_eq!(turned.labels("c"), wanted, "{when}");
        assert_eq!(turned.labels("a"), of_a, "{when}");
    }
}

/// A chain, and a task of several depths that waits for another one.
#[test]
fn tasks_may_wait_for_one_that_waits() {
    let alone = |task: Task| Replay::run(&[task], &[]);
    let (a, b, c) = (alone(A), alone(B), alone(C));
    let tasks = [
        A,
        B.with("depths = [3, 10]\nwhen = \"a.label != DNS\""),
        C.with("when = \"b.confidence < 0.99\""),
    ];
    let replay = Replay::run(&tasks, &[]);
    replay.assert_closed(&tasks);
    let (of_a, of_b, of_c) = (a.labels("a"), b.labels("b"), c.labels("c"));
    let is_dns = |id: u64| of_a.get(&id).is_some_and(|(label, ..)| label == "\"DNS\"");
    let data = a.complete(Task::K);
    let wanted_b = only(&of_b, |id| data.contains(&id) && !is_dns(id));
    assert_eq!(replay.labels("b"), wanted_b);
    let packets = c.complete(Task::K);
    let confidence = |id: u64| -> f64 {
        let (_, confidence, _) = &of_b[&id];
        confidence.parse().expect("a number")
    };
    let wanted_c = only(&of_c, |id| {
        wanted_b.contains_key(&id) && packets.contains(&id) && confidence(id) < 0.99
    });
    assert_eq!(replay.labels("c"), wanted_c);
    assert!(!wanted_b.is_empty() && !wanted_c.is_empty());
}

#[test]
fn labels_of_a_task_without_records_count_and_are_left_out() {
    let when = "when = \"a.confidence < 0.97\"";
    let whole = Replay::run(&[A, C.with(when)], &[]);
    let quiet = A.with("depths = [3, 5, 10]\nrecords = false");
    let without = Replay::run(&[quiet, C.with(when)], &[]);
    assert!(without.labels("a").is_empty());
    assert!(without.flows().values().all(|flow| flow["label"].is_null()));
    assert_eq!(without.labels("c"), whole.labels("c"));
    assert_eq!(without.task(0)["labels"], whole.task(0)["labels"]);
    let quiet = C.with("when = \"a.confidence < 0.97\"\nrecords = false");
    let without = Replay::run(&[A, quiet], &[]);
    assert!(without.labels("c").is_empty());
    assert!(without.flows().values().all(|flow| flow["labels"] == serde_json::json!([])));
    assert_eq!(without.task(1)["labels"], whole.task(1)["labels"]);
}

/// Labels that count when they arrive, as live.
#[test]
fn a_paced_replay_gives_the_same_labels() {
    let tasks = [A, B, C.with("when = \"a.confidence < 0.97\"")];
    let whole = Replay::run(&tasks, &[]);
    let paced = Replay::run(&tasks, &["--speed", "20x"]);
    paced.assert_closed(&tasks);
    for task in tasks {
        let (labels, known) = (paced.labels(task.name), whole.labels(task.name));
        // A flow may end before its label comes.
        assert!(2 * labels.len() > known.len(), "{}", task.name);
        for (id, answer) in &labels {
            assert_eq!(Some(answer), known.get(id), "{} of {id}", task.name);
        }
    }
}

/// A task that was not asked says by which term, and one that was says what it answered.
#[test]
fn an_explanation_says_why_a_task_was_not_asked() {
    let tasks = [
        A,
        B.with("depths = [3, 10]\nwhen = \"protocol = udp\""),
        C.with("when = \"a.confidence < 0.9\""),
    ];
    let run = Replay::run(&tasks, &[]);
    let explained = |id: u64| {
        let id = id.to_string();
        Replay::explained(&tasks, &id)
    };
    let (asked, given) = run.labels("c").into_iter().next().expect("a label of c");
    let said = explained(asked);
    assert_eq!(said["task"], "a");
    assert_eq!(said["tasks"][1]["label"].to_string(), given.0);
    assert_eq!(said["tasks"][1]["answers"][0]["outcome"], "decided");
    let is_sure = |(_, confidence, _): &Answer| confidence.parse::<f64>().expect("a number") > 0.9;
    let mut sure = run.labels("a").into_iter().filter(|(_, it)| is_sure(it));
    let (sure, _) =
        sure.find(|(id, _)| run.flows()[id]["proto"] == 6).expect("a TCP flow that a is sure of");
    let said = explained(sure);
    let why = |task: usize| said["tasks"][task]["why"].as_str().expect("a sentence");
    let of_flow = "not asked about this flow: protocol = udp does not hold";
    assert_eq!(why(0), of_flow);
    let of_label = "not asked about this flow: a.confidence < 0.9 does not hold, because a said ";
    assert!(why(1).starts_with(of_label), "{}", why(1));
    assert_eq!(said["tasks"][1]["answers"][0]["outcome"], "not_asked");
}

#[test]
fn a_model_asked_at_its_first_depth_only_says_what_it_says_there() {
    // Flows that end before the next depth have the answer of this one, sure or not.
    let at_three = |task: Task| -> BTreeMap<u64, Answer> {
        let replay = Replay::run(&[task], &[]);
        let flows = replay.flows().into_iter().filter(|(_, it)| it["depth"] == 3);
        flows.map(|(id, flow)| (id, answer(flow))).collect()
    };
    let (all, first) = (at_three(B), at_three(B.with("depths = [3]")));
    assert!(all.len() > 50 && all.len() < first.len());
    for (id, answer) in &all {
        assert_eq!(first.get(id), Some(answer), "{id}");
    }
}

#[test]
fn ports_name_only_flows_that_the_task_is_asked_about() {
    let by_port = |when: &'static str| {
        let replay = Replay::run(&[A.with(when)], &[]);
        let named = replay.flows().into_values();
        named.filter(|flow| flow["decided_by"] == "port").count()
    };
    assert!(by_port("depths = [3, 10]\nwhen = \"protocol = udp, tcp\"") > 20);
    assert_eq!(by_port("when = \"port = 9\""), 0);
}
