//! A live run that is recorded, and the replay of the recording: the same counters, or the word
//! that they differ.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::common::lab::Lab;
use crate::common::live::Live;
use crate::common::{self, Finished};
use crate::run::inline;
use crate::run::mark::HOSTS;
use crate::run::traffic::{ask, ask_udp, assert_same_flows, connect, send, stream};

/// What a summary says that depends on nothing but the recorded run, times to label among it.
const SAME: [&str; 12] = [
    "packets",
    "verdicts",
    "flows",
    "series",
    "labels",
    "batches",
    "cache",
    "coverage",
    "devices",
    "phases_ms",
    "slo",
    "time_to_label_ms",
];

/// Kinds of events, as docs/recording.md has them.
const BURST: u8 = 0;
const ROUND: u8 = 6;
const COUNTED: u8 = 10;

fn replay(recording: &Path, args: &[&str]) -> Finished {
    let mut replay = common::fenxi(["replay", "--recorded"]);
    replay.arg(recording).args(args);
    common::run(replay)
}

/// A recording that was replayed with the same counters: the summary.
fn replay_well(recording: &Path, args: &[&str]) -> Value {
    let args = [&["--json"], args].concat();
    let summary = replay(recording, &args).expect_code(0).json();
    let recorded = &summary["recorded"];
    assert_eq!(recorded["same"], true, "{recorded}");
    assert_eq!(recorded["first_difference"], Value::Null);
    assert!(recorded["compared"].as_u64().unwrap() > 0, "{recorded}");
    summary
}

/// The error of a recording that cannot be replayed.
fn replay_badly(recording: &Path) -> String {
    replay(recording, &["--json"]).expect_code(65).stderr
}

fn assert_same_sums(one: &Value, other: &Value) {
    for key in SAME {
        assert_eq!(one[key], other[key], "{key}");
    }
}

/// Flows that get labels, and some that do not live to.
fn talk(lab: &Lab, flows: usize) {
    for flow in 0..flows {
        let server = Lab::server(flow % 2 == 1);
        let rounds = if flow % 5 == 4 { 3 } else { 12 };
        ask_udp(lab, HOSTS, server, rounds);
    }
    let [near, far] = connect(lab, HOSTS, Lab::server(false));
    stream(near, far, 20_000);
}

/// Counters, records and times equal the run's, through reloads, another model and failing devices.
#[test]
fn a_replay_of_a_recorded_run_gives_the_same_counters() {
    // The first batch fails whatever the load; how many follow depends on it.
    let failing = [
        "accel.devices=[\"bad\", \"good\"]",
        "device.bad.provider=simulated",
        "device.bad.thread=own",
        "device.bad.deadline_ms=20",
        "device.bad.faults=nan=1,error-every=3,hang=5:200",
        "device.good.provider=simulated",
        "device.good.thread=own",
    ];
    let simulated = ["accel.devices=[\"simulated\"]"];
    let cpu = ["accel.devices=[\"cpu\"]"];
    let cached = ["cache.prefix=6", "analytics.policy=slo"];
    for (mode, layout, sets) in [
        ("tap", "1:1:2", &failing[..]),
        ("mark", "2:1:1", &simulated[..]),
        ("tap", "1:2:2", [&failing[..], &cached[..1]].concat().as_slice()),
        ("mark", "1:1:1", [&cpu[..], &cached].concat().as_slice()),
    ] {
        if sets[0] == cpu[0] && !common::has_onnxruntime() {
            common::skip("the device cpu", "ONNX Runtime (make onnxruntime)");
            continue;
        }
        let test = format!("rec-{mode}-{}", layout.replace(':', ""));
        let Some(lab) = Lab::routed(&test, false, &[]) else {
            return;
        };
        let dir = tempfile::tempdir().unwrap();
        let [file, recording, live_flows, replayed_flows] =
            ["fenxi.toml", "recording", "live", "replayed"].map(|name| dir.path().join(name));
        let model = format!("[model]\npath = \"{}\"\n", common::bundle().display());
        fs::write(&file, format!("[flow]\nidle_timeout_s = 30\n{model}")).unwrap();
        let layout = format!("pipeline.layout={layout}");
        let mode = format!("io.mode={mode}");
        let mut args = vec!["--config", file.to_str().unwrap(), "--series"];
        args.extend(["--record", recording.to_str().unwrap()]);
        args.extend(["--flows", live_flows.to_str().unwrap()]);
        for set in [&mode, &layout, "io.capture=all", "io.interfaces=[\"in\"]"] {
            args.extend(["--set", set]);
        }
        for set in sets {
            args.extend(["--set", set]);
        }
        let live = Live::start(&lab, "router", &args);
        talk(&lab, 20);
        fs::write(
            &file,
            format!(
                "[flow]\nidle_timeout_s = 1\nclosed_timeout_s = 1\n[analytics]\ntimeout_ms = \
                3\n{model}"
            ),
        )
        .unwrap();
        live.ctl(&["reload"]).expect_code(0);
        talk(&lab, 20);
        let bundle = common::int8_bundle();
        live.ctl(&["model", "load", bundle.to_str().unwrap()]).expect_code(0);
        live.ctl(&["model", "load", "/nowhere"]).expect_code(78);
        // Comes, and goes again: what was before it is put back.
        fs::write(&file, &model).unwrap();
        live.ctl(&["reload", "--confirm-within", "1s"]).expect_code(0);
        talk(&lab, 20);
        live.wait_for("it is undone", |live| live.said("has been undone") > 0);
        talk(&lab, 5);
        live.wait_for("flows end by the new timeout", |live| {
            live.samples_with("fenxi_flows_ended_total", "idle")[0] > 0.0
        });
        assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
        let finished = live.terminate(0);
        assert!(
            finished.stderr.contains("the files hold addresses and ports"),
            "{}",
            finished.stderr
        );
        let ran = finished.json();

        let flows = replayed_flows.to_str().unwrap();
        let once = replay_well(&recording, &["--series", "--flows", flows]);
        assert_same_sums(&ran, &once);
        assert_same_flows(&live_flows, &replayed_flows);
        assert_same_sums(&once, &replay_well(&recording, &[]));
        assert!(ran["series"]["emitted"].as_u64().unwrap() >= 40, "{ran}");
        assert_eq!(once["swaps"]["done"], 3, "{}", once["swaps"]);
        if sets[0] == failing[0] {
            let failures = once["devices"][0]["failures"].to_string();
            assert!(failures.contains(|digit| ('1'..='9').contains(&digit)));
        }
        assert_eq!(once["recorded"]["end"], "the run has ended");
        let notes = once["recorded"]["notes"].to_string();
        for said in ["flow.idle_timeout_s", "LoadModel", "refused"] {
            assert!(notes.contains(said), "{notes}");
        }
    }
}

/// What is walked is tagged, too: the recording has packets as they came.
#[test]
fn a_recorded_run_forwards_and_is_replayed() {
    let Some(lab) = Lab::bridged("recin", &[]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let recording = dir.path().join("recording");
    let live = inline::start(&lab, &["--record", recording.to_str().unwrap()]);
    for to in inline::RIGHT {
        let flow = ask_udp(&lab, ["left", "right"], to, 12);
        live.wait_for("it has its label", |live| {
            live.metric_sum("fenxi_series_total") > 0.0
                && live.metric_sum("fenxi_series_waiting") == 0.0
        });
        ask(&flow, 5);
    }
    inline::all_was_sent(live);
    let summary = replay_well(&recording, &[]);
    assert!(summary["verdicts"]["labelled"].as_u64().unwrap() >= 10, "{summary}");
}

/// A recorded run in mode tap that has seen the shipped capture.
struct Tapped {
    live: Live,
    recording: PathBuf,
    lab: Lab,
    // The last to go.
    _dir: TempDir,
}

impl Tapped {
    fn start(test: &str, args: &[&str]) -> Option<Tapped> {
        let lab = Lab::new(test, &["host"], &[])?;
        lab.wire_within("host", "a", "b");
        let dir = tempfile::tempdir().unwrap();
        let recording = dir.path().join("recording");
        let mut all = vec!["--record", recording.to_str().unwrap()];
        all.extend(["--set", "io.interfaces=[\"b\"]"]);
        all.extend(common::SIMULATED);
        all.extend(args);
        let live = Live::start(&lab, "host", &all);
        let tapped = Tapped { live, recording, lab, _dir: dir };
        Some(tapped)
    }

    fn send(&self) {
        self.lab.on("host", || send(&common::demo(), "a"));
    }

    fn events(&self) -> PathBuf {
        self.recording.join("events")
    }
}

/// An event: where its body lies in the file.
fn bodies(file: &[u8]) -> Vec<std::ops::Range<usize>> {
    let (mut bodies, mut at) = (Vec::new(), 12);
    while at < file.len() {
        let (mut length, mut shift) = (0, 0);
        loop {
            let byte = file[at];
            length |= usize::from(byte & 0x7f) << shift;
            (at, shift) = (at + 1, shift + 7);
            if byte & 0x80 == 0 {
                break;
            }
        }
        bodies.push(at..at + length);
        at += length + 4;
    }
    bodies
}

fn seal(file: &mut [u8], body: &std::ops::Range<usize>) {
    let mut crc = flate2::Crc::new();
    crc.update(&file[body.clone()]);
    file[body.end..body.end + 4].copy_from_slice(&crc.sum().to_le_bytes());
}

/// Changes the first byte `pattern` finds in a body of this kind, and makes the checksum fit; the
/// changed file.
fn changed(
    file: &[u8],
    kind: u8,
    find: impl Fn(&[u8]) -> Option<usize>,
    change: impl Fn(u8) -> u8,
) -> Vec<u8> {
    let mut file = file.to_vec();
    for body in bodies(&file) {
        if file[body.start] == kind
            && let Some(at) = find(&file[body.clone()])
        {
            file[body.start + at] = change(file[body.start + at]);
            seal(&mut file, &body);
            return file;
        }
    }
    panic!("no such event");
}

fn position(body: &[u8], pattern: &[u8]) -> Option<usize> {
    body.windows(pattern.len()).position(|bytes| bytes == pattern)
}

/// What makes a replay differ is found, and where; a recording that breaks off is replayed up to
/// there.
#[test]
fn a_replay_that_differs_says_so_and_a_torn_one_goes_as_far_as_it_can() {
    // A model whose every answer is a flow's label.
    let model = format!("model.path={}", common::bundle().display());
    let Some(tapped) = Tapped::start("recbad", &["--set", &model]) else {
        return;
    };
    tapped.send();
    tapped.live.wait_for_packets(common::demo_packets() as u64);
    let events = tapped.events();
    tapped.live.wait_for("everything is written", |_| {
        // It may break off anywhere, but for the first moments there is something to compare.
        let said = replay(&tapped.recording, &["--json"]);
        said.code == 0 && said.json()["packets"] == common::demo_packets()
    });
    // kill -9.
    tapped.live.kill();
    let summary = replay_well(&tapped.recording, &[]);
    assert!(
        summary["recorded"]["end"].as_str().unwrap().starts_with("it breaks off"),
        "{}",
        summary["recorded"]
    );
    assert_eq!(summary["packets"], common::demo_packets() as u64);

    let whole = fs::read(&events).unwrap();
    let all = bodies(&whole);
    // Torn, and cut behind an event; there is something to compare before it.
    let counted = all.iter().rposition(|body| whole[body.start] == COUNTED);
    let cut = all[counted.unwrap() + 1].clone();
    for (length, how) in [(cut.start + 1, "within"), (cut.end + 4, "behind")] {
        fs::write(&events, &whole[..length]).unwrap();
        let summary = replay_well(&tapped.recording, &[]);
        let end = &summary["recorded"]["end"];
        assert!(end.as_str().unwrap().contains(how), "{end}");
    }

    // A byte that was damaged on the way.
    let mut damaged = whole.clone();
    damaged[all[all.len() / 2].start] ^= 0x40;
    fs::write(&events, &damaged).unwrap();
    let said = replay_badly(&tapped.recording);
    assert!(said.contains("damaged: event"), "{said}");

    // An address of the capture's: another flow.
    let address = |body: &[u8]| position(body, &[198, 51, 100, 80]).map(|at| at + 3);
    fs::write(&events, changed(&whole, BURST, address, |_| 81)).unwrap();
    let said = replay_badly(&tapped.recording);
    assert!(said.contains("differs from the run, first at event"), "{said}");

    // The device's answer: another class, of the same confidence, 1.
    let class = |body: &[u8]| position(body, &[0, 0, 0x80, 0x3f]).map(|at| at - 1);
    let other = |class: u8| if class == 0 { 1 } else { class - 1 };
    fs::write(&events, changed(&whole, ROUND, class, other)).unwrap();
    let said = replay_badly(&tapped.recording);
    assert!(said.contains("flow manager 0: "), "{said}");
    assert!(said.contains("recorded"), "{said}");

    fs::write(&events, &whole).unwrap();
    replay_well(&tapped.recording, &[]);
}

/// It ends when it is full, complete in itself; the run goes on.
#[test]
fn a_recording_is_bounded() {
    let Some(tapped) = Tapped::start("recfull", &["--record-max-mib", "1"]) else {
        return;
    };
    tapped.live.wait_for("it is full", |live| {
        tapped.send();
        live.said("the recording is full") > 0
    });
    let files = fs::read_dir(&tapped.recording).unwrap();
    let sizes = files.map(|file| file.unwrap().metadata().unwrap().len());
    let sum: u64 = sizes.sum();
    assert!((1 << 19..=1 << 20).contains(&sum), "{sum}");

    let seen = tapped.live.metric_sum("fenxi_packets_total");
    tapped.send();
    tapped.live.wait_for("packets are walked", |live| {
        live.metric_sum("fenxi_packets_total") >= seen + common::demo_packets() as f64
    });
    assert_eq!(tapped.live.metric_sum("fenxi_balance"), 0.0);
    let summary = replay_well(&tapped.recording, &[]);
    assert_eq!(summary["recorded"]["end"], "the recording is full");
    tapped.live.terminate(0);
}

#[test]
fn folders_that_cannot_be_used_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let said = replay(dir.path(), &[]).expect_code(66).stderr;
    assert!(said.contains("run.json") && said.contains("--record"), "{said}");
    replay(dir.path(), &["--speed", "real"]).expect_code(64);
    fs::write(dir.path().join("run.json"), "{\"format\": 99, \"fenxi\": \"9.1\"}").unwrap();
    let said = replay(dir.path(), &[]).expect_code(65).stderr;
    assert!(said.contains("replay it with fenxi 9.1"), "{said}");
    common::run(common::fenxi(["run", "--record-max-mib", "9"])).expect_code(64);

    let Some(lab) = Lab::new("recdir", &["host"], &[]) else {
        return;
    };
    lab.wire_within("host", "a", "b");
    let mut args = vec!["--record", path, "--set", "io.interfaces=[\"b\"]"];
    args.extend(common::SIMULATED);
    let live = Live::begin(crate::common::live::fenxi_on(&lab, "host", &[]), &args);
    let said = live.ended(73).stderr;
    assert!(said.contains("new or empty folder"), "{said}");
}

/// Each task is asked about other flows: by interface, direction and label.
#[test]
fn several_tasks_with_conditions_are_replayed() {
    let [shipped, bundle] = [common::shipped_bundle(), common::bundle()];
    let sets = [
        format!("task.first.model={}", shipped.display()),
        "task.first.depths=[3, 10]".to_owned(),
        "task.first.dscp.DNS=AF21".to_owned(),
        format!("task.second.model={}", bundle.display()),
        "task.second.when=first.confidence <= 1 and in_port = b".to_owned(),
        "task.second.dscp.TLS=46".to_owned(),
        format!("task.third.model={}", bundle.display()),
        "task.third.when=protocol = tcp and sample = 0.5".to_owned(),
    ];
    let args: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let Some(tapped) = Tapped::start("rectasks", &args) else {
        return;
    };
    tapped.send();
    tapped.live.wait_for_packets(common::demo_packets() as u64);
    tapped.live.wait_for("all have labels", |live| {
        live.metric_sum("fenxi_series_total") > 0.0
            && live.metric_sum("fenxi_series_waiting") == 0.0
    });
    let ran = tapped.live.terminate(0).json();
    let replayed = replay_well(&tapped.recording, &[]);
    assert_same_sums(&ran, &replayed);
    assert_eq!(ran["tasks"], replayed["tasks"]);
    let emitted = |task: usize| ran["tasks"][task]["series"]["emitted"].as_u64();
    assert!((0..3).all(|task| emitted(task) > Some(0)), "{ran}");
}
