//! A candidate's whole way through the real program: judged by flows that have ended, in shadow, on
//! a share of new flows, and in use; and one that is withdrawn. Bands are judged by what flows
//! weighed, other classes by what a teacher tells. Skipped by name without root.

use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::common;
use crate::common::lab::Lab;
use crate::common::live::Live;

/// Payload of each packet, and packets, of a large flow and of a small one; and once the traffic
/// has turned, so that large flows have small packets.
const SHAPES: [[(usize, usize); 2]; 2] = [[(1200, 6), (100, 2)], [(100, 40), (1200, 2)]];

/// What makes the labels of a bundle bands.
const BANDS: &str = "\n[target]\nof = \"volume\"\nedges = [3000]\n";

/// A bundle that is sure that a flow is large if its first packet is longer than this.
fn bundle(dir: &Path, above: u16, target: &str) -> PathBuf {
    let from = common::root().join("tests/bundles/server-volume");
    let to = dir.join(format!("above-{above}"));
    common::copy_bundle(&from, &to);
    let mut model = fs::read(from.join("model.onnx")).unwrap();
    let mut replace = |from: &[u8], to: &[u8]| {
        let at = model.windows(from.len()).position(|bytes| bytes == from).unwrap();
        model[at..at + to.len()].copy_from_slice(to);
    };
    // The features that the nodes of its tree read, and their bounds.
    replace(b"\x40\x01\x40\x00\x40\x02\x40\x00\x40\x00", &[0x40, 0].repeat(5));
    replace(&0.5_f32.to_le_bytes(), &f32::from(above).to_le_bytes());
    replace(&16_f32.to_le_bytes(), &f32::from(above).to_le_bytes());
    fs::write(to.join("model.onnx"), model).unwrap();
    let sum = Command::new("sha256sum").arg(to.join("model.onnx")).output().unwrap().stdout;
    let sum = String::from_utf8(sum).unwrap();
    let manifest = fs::read_to_string(from.join("model.toml")).unwrap();
    let lines = manifest.lines().map(|line| match line.split(' ').next() {
        Some("sha256") => format!("sha256 = \"{}\"\n", sum.split(' ').next().unwrap()),
        _ => format!("{line}\n"),
    });
    fs::write(to.join("model.toml"), lines.collect::<String>() + target).unwrap();
    let golden = fs::read_to_string(from.join("golden/inputs.csv")).unwrap();
    let outputs = golden.lines().map(|line| {
        let length: f64 = line.split(',').next().unwrap().parse().unwrap();
        match length > f64::from(above) {
            true => "0.000999000855,0.999000967\n",
            false => "0.999000967,0.000999000855\n",
        }
    });
    fs::write(to.join("golden/outputs.csv"), outputs.collect::<String>()).unwrap();
    to
}

struct World {
    live: Live,
    traffic: Traffic,
    dir: TempDir,
    // The last to go.
    _lab: Lab,
}

/// Flows out of an interface, small and large in turn.
struct Traffic {
    stop: Arc<AtomicBool>,
    is_paused: Arc<AtomicBool>,
    has_turned: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Traffic {
    fn start(lab: &Lab) -> Traffic {
        let stop = Arc::new(AtomicBool::new(false));
        let is_paused = Arc::new(AtomicBool::new(false));
        let has_turned = Arc::new(AtomicBool::new(false));
        let (is_over, paused, turned) = (stop.clone(), is_paused.clone(), has_turned.clone());
        let (ready, is_ready) = std::sync::mpsc::channel();
        // Sockets stay in the namespace in which they were made.
        let run = lab.entering("host", move || {
            ready.send(()).unwrap();
            for flow in 0_usize.. {
                while paused.load(Ordering::Relaxed) && !is_over.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let port = 1024 + (flow % 60_000) as u16;
                let socket = UdpSocket::bind(("10.80.0.1", port)).unwrap();
                socket.connect("10.80.0.2:4433").unwrap();
                let shapes = SHAPES[usize::from(turned.load(Ordering::Relaxed))];
                let (length, packets) = shapes[flow % 2];
                for _ in 0..packets {
                    socket.send(&[0; 1200][..length]).unwrap();
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let thread = Some(std::thread::spawn(run));
        is_ready.recv().unwrap();
        Traffic { stop, is_paused, has_turned, thread }
    }

    fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl World {
    /// A run whose model calls every flow small, though every other one is large.
    fn start(test: &str, layout: &str, is_recorded: bool, target: &str) -> Option<World> {
        let lab = Lab::new(test, &["host"], &[])?;
        let dir = tempfile::tempdir().unwrap();
        lab.wire_within("host", "a", "b");
        lab.run("host", "ip addr add 10.80.0.1/24 dev a");
        lab.run("host", "ip neigh add 10.80.0.2 lladdr 02:00:00:00:00:02 dev a");
        let keys = [
            "io.interfaces=[\"b\"]".to_owned(),
            "flow.idle_timeout_s=1".to_owned(),
            "analytics.timeout_ms=1".to_owned(),
            format!("pipeline.layout={layout}"),
            format!("model.path={}", bundle(dir.path(), 60_000, target).display()),
            format!("learn.socket={}", dir.path().join("learn.sock").display()),
            "learn.share=1".to_owned(),
            format!("records.path={}", dir.path().join("flows.jsonl").display()),
        ];
        let recording = recording(&dir);
        let mut args: Vec<&str> = keys.iter().flat_map(|key| ["--set", key]).collect();
        if is_recorded {
            args.extend(["--record", recording.to_str().unwrap()]);
        }
        let live = Live::start(&lab, "host", &args);
        let traffic = Traffic::start(&lab);
        Some(World { live, traffic, dir, _lab: lab })
    }

    fn count(&self, metric: &str, label: &str) -> f64 {
        self.live.samples_with(metric, label).iter().sum()
    }

    fn wait_for(&self, outcome: &str) {
        self.wait_for_while(outcome, || {});
    }

    /// Waits until a candidate has come to this, and does `work` meanwhile.
    fn wait_for_while(&self, outcome: &str, work: impl Fn()) {
        let label = format!("outcome=\"{outcome}\"");
        let refused = ["not_better", "slow", "rolled_back", "overtaken", "failed"];
        self.live.wait_for(outcome, |live| {
            work();
            for name in refused {
                let refused = self.count("fenxi_model_offers_total", &format!("\"{name}\""));
                assert_eq!(refused, 0.0, "{}", live.ctl(&["model", "offers"]).stdout);
            }
            self.count("fenxi_model_offers_total", &label) > 0.0
        });
    }

    /// Waits for flows to judge by, and offers a model that is right about all.
    fn offer(&self, target: &str) -> String {
        self.wait_for_flows();
        let good = bundle(self.dir.path(), 500, target).to_str().unwrap().to_owned();
        let judged = self.ctl(&["model", "offer", &good]);
        assert!(judged.contains("in shadow for the next 300 held-out flows"), "{judged}");
        good
    }

    /// Waits for a record of a flow that the model of this generation has answered; its number.
    fn flow_of(&self, generation: u64) -> String {
        let file = self.dir.path().join("flows.jsonl");
        let find = || {
            let text = fs::read_to_string(&file).unwrap_or_default();
            // The last line may not be whole yet.
            let mut records = text.lines().rev().filter_map(|line| serde_json::from_str(line).ok());
            let found = records
                .find(|it: &Value| it["type"] == "flow" && it["model_generation"] == generation);
            found.map(|it| it["flow_id"].to_string())
        };
        self.live.wait_for("a flow of the model", |_| find().is_some());
        find().unwrap()
    }

    fn wait_for_flows(&self) {
        let held = |_: &Live| self.count("fenxi_learn_samples_total", "outcome=\"held\"");
        self.live.wait_for("flows to judge by", |live| held(live) > 300.0);
    }

    /// Tells the classes of the flows that ended last.
    fn teach(&self) -> String {
        // So that a teacher leaves some of the processor to others.
        std::thread::sleep(Duration::from_millis(200));
        let file = self.dir.path().join("truth.jsonl");
        fs::write(&file, self.ended(6000).iter().map(truth).collect::<String>()).unwrap();
        self.ctl(&["model", "truth", file.to_str().unwrap()])
    }

    /// The records of flows among the last lines.
    fn ended(&self, lines: usize) -> Vec<Value> {
        let records = fs::read_to_string(self.dir.path().join("flows.jsonl")).unwrap();
        // The very last one may be half a line.
        let last = records.lines().rev().take(lines);
        let records = last.filter_map(|it| serde_json::from_str::<Value>(it).ok());
        records.filter(|it| it["type"] == "flow").collect()
    }

    fn ctl(&self, args: &[&str]) -> String {
        self.live.ctl(args).expect_code(0).stdout
    }

    /// Ends the traffic, then the run, which a recording repeats; the records of all flows.
    fn finish(mut self) -> Vec<Value> {
        self.traffic.stop();
        let is_empty = |live: &Live| live.metric_sum("fenxi_flow_table_entries") == 0.0;
        self.live.wait_for("all flows are over", is_empty);
        assert_eq!(self.live.metric_sum("fenxi_balance"), 0.0);
        self.live.terminate(0);
        let recording = recording(&self.dir);
        if recording.exists() {
            let mut replay = common::fenxi(["replay", "--json", "--recorded"]);
            replay.arg(&recording);
            let summary = common::run(replay).expect_code(0).json();
            assert_eq!(summary["recorded"]["same"], true, "{}", summary["recorded"]);
        }
        common::json_lines(&self.dir.path().join("flows.jsonl"))
    }
}

fn recording(dir: &TempDir) -> PathBuf {
    dir.path().join("recording")
}

fn first(flow: &Value) -> &str {
    flow["first"].as_str().unwrap()
}

fn label(flow: &Value) -> &'static str {
    if flow["bytes_fwd"].as_u64().unwrap() > 3000 { "large" } else { "small" }
}

/// What a teacher says of a flow, in a line.
fn truth(flow: &Value) -> String {
    let first_us = first(flow).parse::<jiff::Timestamp>().unwrap().as_microsecond();
    let mut line = serde_json::json!({"first_us": first_us, "label": label(flow)});
    for name in ["proto", "src_port", "dst_port"] {
        line[name] = flow[name].clone();
    }
    format!("{line}\n")
}

fn a_candidates_way(test: &str, layout: &str, is_recorded: bool) {
    let Some(world) = World::start(test, layout, is_recorded, BANDS) else { return };
    let good = &*world.offer(BANDS);
    // Nothing is offered beside it.
    world.live.ctl(&["model", "offer", good]).expect_code(69);
    world.wait_for("canary");
    world.live.wait_for("flows of the canary", |live| {
        let page = live.ctl(&["model", "offers"]).expect_code(0).stdout;
        assert!(page.contains("above-500: a canary, has answered "), "{page}");
        !page.contains("has answered 0 of")
    });
    // Or it is promoted, and flows are forgotten, while a busy machine explains them.
    world.traffic.is_paused.store(true, Ordering::Relaxed);
    for generation in [0, 1] {
        let said = world.ctl(&["explain", &world.flow_of(generation), "--json"]);
        let said: Value = serde_json::from_str(&said).unwrap();
        let model = said["explained"]["model"].as_str().unwrap();
        assert!(model.ends_with(&format!(", generation {generation}")), "{said}");
    }
    let back = world.ctl(&["model", "back"]);
    assert!(back.contains("no canary any more"), "{back}");
    assert_eq!(world.count("fenxi_model_offers_total", "\"withdrawn\""), 1.0);
    world.traffic.is_paused.store(false, Ordering::Relaxed);
    world.ctl(&["model", "offer", good]);
    world.wait_for("promoted");
    world.wait_for("kept");
    assert_eq!(world.count("fenxi_model_info", "generation=\"2\""), 1.0);
    let flows = world.finish();
    let flows: Vec<&Value> = flows.iter().filter(|it| it["type"] == "flow").collect();
    let of = |generation: u64| {
        let is_of = move |flow: &&&Value| flow["model_generation"] == generation;
        flows.iter().filter(is_of).copied().collect::<Vec<&Value>>()
    };
    let [before, withdrawn, promoted] = [0, 1, 2].map(of);
    assert!(before.iter().all(|flow| flow["label"] == "small"));
    for flow in withdrawn.iter().chain(&promoted) {
        assert_eq!(flow["label"], label(flow), "{flow}");
    }
    assert!(!withdrawn.is_empty());
    // While both answered, the canary had a fifth of the new flows.
    let last = before.iter().map(|flow| first(flow)).max().unwrap();
    let begun = promoted.iter().map(|flow| first(flow)).min().unwrap();
    let both = |flows: &[&Value]| {
        flows.iter().filter(|flow| (begun..=last).contains(&first(flow))).count() as f64
    };
    let share = both(&promoted) / (both(&promoted) + both(&before));
    assert!((0.15..0.25).contains(&share), "{share} of {}", both(&before));
    assert!(promoted.iter().any(|flow| first(flow) > last), "in use");
}

#[test]
fn a_kept_model_that_becomes_worse_makes_way_for_the_first() {
    let Some(world) = World::start("canary-turn", "1:1:1", false, BANDS) else { return };
    world.offer(BANDS);
    world.wait_for("kept");
    // A reload brings the first model for a moment. Nobody confirms it, and the watch goes on.
    world.ctl(&["reload", "--confirm-within", "1s"]);
    let undone = |_: &Live| world.count("fenxi_config_reloads_total", "\"reverted\"") == 1.0;
    world.live.wait_for("it is undone", undone);
    assert_eq!(world.count("fenxi_model_info", "generation=\"3\""), 1.0);
    world.traffic.has_turned.store(true, Ordering::Relaxed);
    world.wait_for("fallen_back");
    let page = world.ctl(&["model", "offers"]);
    let why = " is better by now: log loss ";
    assert!(page.contains(why), "{page}");
    assert_eq!(world.live.said(why), 1, "told once");
    assert_eq!(world.count("fenxi_model_info", "generation=\"4\""), 1.0);
    let flows = world.finish();
    let mut of_first = flows.iter().filter(|flow| flow["model_generation"] == 4);
    assert!(of_first.all(|flow| flow["label"] == "small"));
}

#[test]
fn a_candidate_answers_a_share_of_flows_before_it_is_promoted() {
    a_candidates_way("canary", "1:1:2", true);
}

#[test]
fn a_candidate_answers_a_share_of_flows_inline() {
    a_candidates_way("canary-inline", "1:0:0", false);
}

#[test]
fn a_candidate_of_classes_is_judged_by_what_a_teacher_tells() {
    let Some(world) = World::start("classes", "1:1:1", false, "") else { return };
    world.wait_for_flows();
    let [good, worse] = [500, 0].map(|above| bundle(world.dir.path(), above, ""));
    let [good, worse] = [&good, &worse].map(|dir| dir.to_str().unwrap());
    let refused = |dir: &str, outcome: &str| {
        let said = world.live.ctl(&["model", "offer", dir]).expect_code(78).stderr;
        assert!(said.contains(&format!("{dir}: {outcome}: ")), "{said}");
        said
    };
    let said = refused(good, "no_truth");
    assert!(said.contains("give labels by `fenxi ctl model truth`"), "{said}");
    let taken = || world.count("fenxi_model_truths_total", "outcome=\"taken\"");
    // One bad line, and none is taken.
    let bad = world.dir.path().join("bad.jsonl");
    let lines: String = world.ended(100).iter().take(2).map(truth).collect();
    fs::write(&bad, lines + "{\"proto\":6}\n").unwrap();
    let said = world.live.ctl(&["model", "truth", bad.to_str().unwrap()]).expect_code(65).stderr;
    assert_eq!(said.lines().count(), 1, "{said}");
    let missing = format!("{}: line 3: missing field `src_port`", bad.display());
    assert!(said.contains(&missing) && taken() == 0.0, "{said}");
    world.live.wait_for("flows that a teacher knows", |_| {
        let told = world.teach();
        assert!(told.starts_with("the truth of ") && !told.contains("labels"), "{told}");
        taken() > 200.0
    });
    let judged = world.ctl(&["model", "offer", good]);
    assert!(judged.contains("; its table of ports 0."), "{judged}");
    for outcome in ["canary", "promoted", "kept"] {
        world.wait_for_while(outcome, || _ = world.teach());
    }
    refused(worse, "not_better");
    let flows = world.finish();
    let promoted = flows.iter().filter(|it| it["type"] == "flow" && it["model_generation"] == 1);
    let wrong = promoted.clone().filter(|flow| flow["label"] != label(flow)).count();
    assert!(promoted.count() > 500 && wrong == 0, "{wrong}");
}
