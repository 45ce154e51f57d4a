//! Reloads, confirmed or not, and other models under live traffic, in a network namespace. Skipped
//! by name without root.

use crate::common;

use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use common::Finished;
use common::lab::Lab;
use common::live::Live;
use common::onnx::{Endless, endless_bundle};

/// Packets of a flow: more than K, so each gets a label and carries it.
const PACKETS: usize = 14;

/// A run with a configuration of its own, and flows that come all the time.
struct World {
    live: Live,
    traffic: Traffic,
    dir: TempDir,
    // The last to go.
    _lab: Lab,
}

/// Short flows out of an interface, one after the other.
struct Traffic {
    stop: Arc<AtomicBool>,
    flows: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Traffic {
    /// To nobody; what is on the wire is enough. The port names nothing, so that models decide.
    fn start(lab: &Lab) -> Traffic {
        let stop = Arc::new(AtomicBool::new(false));
        let flows = Arc::new(AtomicU64::new(0));
        let (is_over, begun) = (stop.clone(), flows.clone());
        let (ready, is_ready) = std::sync::mpsc::channel();
        // Sockets stay in the namespace in which they were made, so its thread makes all of them.
        let run = lab.entering("host", move || {
            ready.send(()).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                let flow = begun.fetch_add(1, Ordering::Relaxed);
                let port = 1024 + (flow % 60_000) as u16;
                let socket = UdpSocket::bind(("10.80.0.1", port)).unwrap();
                socket.connect("10.80.0.2:4433").unwrap();
                for packet in 0..PACKETS {
                    socket.send(&[0; 1200][..100 + 70 * packet]).unwrap();
                }
                std::thread::sleep(Duration::from_millis(3));
            }
        });
        let thread = std::thread::spawn(run);
        is_ready.recv().unwrap();
        Traffic { stop, flows, thread: Some(thread) }
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
    /// `None`, said on the terminal: no root.
    fn start(test: &str, config: &str) -> Option<World> {
        let lab = Lab::new(test, &["host"], &[])?;
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("conf.d")).unwrap();
        fs::write(dir.path().join("conf.d/10-io.toml"), "[io]\ninterfaces = [\"b\"]").unwrap();
        let file = dir.path().join("f.toml");
        fs::write(&file, asking_once(config)).unwrap();
        lab.wire_within("host", "a", "b");
        lab.run("host", "ip addr add 10.80.0.1/24 dev a");
        lab.run("host", "ip neigh add 10.80.0.2 lladdr 02:00:00:00:00:02 dev a");
        let live = Live::start(&lab, "host", &["--config", file.to_str().unwrap()]);
        let traffic = Traffic::start(&lab);
        Some(World { live, traffic, dir, _lab: lab })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn ctl(&self, args: &[&str]) -> Finished {
        let mut command = common::fenxi(["ctl", "--socket"]);
        command.arg(self.live.socket()).args(args);
        common::run(command)
    }

    /// Writes the configuration and has it read; the reply.
    fn reload(&self, config: &str, args: &[&str]) -> Value {
        fs::write(self.file("f.toml"), asking_once(config)).unwrap();
        let reply = self.ctl(&[&["--json", "reload"], args].concat());
        reply.expect_code(0).json()["reloaded"].clone()
    }

    /// Sum over the samples of a metric that have this label.
    fn sum_of(&self, metric: &str, label: &str) -> f64 {
        self.sum(metric, |line| line.contains(label))
    }

    fn sum(&self, metric: &str, counts: impl Fn(&str) -> bool) -> f64 {
        let page = self.live.scrape();
        let samples =
            page.lines().filter(|line| line.starts_with(&format!("{metric}{{")) && counts(line));
        samples.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }

    /// Exchanges of the model: done, refused, reverted.
    fn swaps(&self) -> [f64; 3] {
        ["done", "refused", "reverted"].map(|result| {
            let label = format!("result=\"{result}\"");
            self.sum_of("fenxi_model_swaps_total", &label)
        })
    }

    /// Waits until a metric has grown since now.
    fn wait_for_more(&self, metric: &str, label: &str) {
        let before = self.sum_of(metric, label);
        self.live
            .wait_for(&format!("more {metric} {label}"), |_| self.sum_of(metric, label) > before);
    }

    /// Ends the traffic, then the run: nothing may be lost.
    fn finish(mut self) -> Value {
        self.traffic.stop();
        let flows = self.traffic.flows.load(Ordering::Relaxed);
        let sent = (flows * PACKETS as u64) as f64;
        self.live.wait_for("all packets are seen", |live| {
            let dropped = live.metric_sum("fenxi_port_dropped_packets_total");
            live.metric_sum("fenxi_packets_total") + dropped >= sent
        });
        assert_eq!(self.live.metric_sum("fenxi_balance"), 0.0);
        let summary = self.live.terminate(0).json();
        assert_eq!(summary["live"]["kernel_dropped"], 0);
        assert_eq!(common::sum(&summary["verdicts"]), summary["packets"]);
        let begun = summary["flows"]["begun"].as_u64().unwrap();
        assert_eq!(begun, flows, "each flow once");
        let mut ended = summary["flows"]["ended"].clone();
        ended["active"] = 0.into();
        assert_eq!(common::sum(&ended), begun);
        let series = &summary["series"];
        let of = |name: &str| series[name].as_u64().unwrap_or_else(|| panic!("{series}"));
        assert_eq!(of("emitted"), begun);
        assert_eq!(of("cached") + of("inferred"), begun, "{series}");
        summary
    }
}

/// What the service manager hears next, but for the watchdog's food.
fn told_of_reload(live: &Live) -> String {
    // A few of these may stand before it, not many.
    let mut told = (0..10).map(|_| live.told());
    told.find(|told| told != "WATCHDOG=1").expect("a reload")
}

fn keys(rows: &Value) -> Vec<&str> {
    let rows = rows.as_array().unwrap().iter();
    rows.map(|row| row["key"].as_str().unwrap()).collect()
}

const LASTING: &str = "[flow]\nidle_timeout_s = 600\n[accel]\ndevices = [\"simulated\"]\n";
const BRIEF: &str = "[flow]\nidle_timeout_s = 1\n[accel]\ndevices = [\"simulated\"]\n";

#[test]
fn what_can_be_applied_is_and_what_is_wrong_changes_nothing() {
    let Some(world) = World::start("apply", LASTING) else {
        return;
    };
    let same = world.reload(LASTING, &[]);
    // The service manager has heard of it.
    let told: Vec<String> = (0..2).map(|_| told_of_reload(&world.live)).collect();
    let time = told[0].strip_prefix("RELOADING=1\nMONOTONIC_USEC=");
    assert!(time.unwrap().parse::<u64>().unwrap() > 0);
    assert_eq!(told[1], "READY=1");
    assert!(keys(&same["applied"]).is_empty() && keys(&same["needs_restart"]).is_empty());
    assert!(same["unchanged"].as_u64().unwrap() > 50, "{same}");
    assert_eq!(same["model_swapped"], false);
    assert_eq!(world.sum_of("fenxi_flows_ended_total", "idle"), 0.0);

    // Another file, too, and a key that has to wait.
    let other = "[tag]\nmode = \"off\"\n[ring]\nslots = 8192";
    fs::write(world.file("conf.d/20-tag.toml"), other).unwrap();
    let reply = world.reload(BRIEF, &[]);
    assert_eq!(keys(&reply["applied"]), ["flow.idle_timeout_s", "tag.mode"]);
    assert_eq!(keys(&reply["needs_restart"]), ["ring.slots"]);
    let row = &reply["applied"][0];
    assert_eq!((&row["from"], &row["to"]), (&"600".into(), &"1".into()));
    assert!(row["origin"].as_str().unwrap().ends_with("/f.toml:2"));
    world.wait_for_more("fenxi_flows_ended_total", "idle");
    let again = world.ctl(&["reload"]).expect_code(0).stdout;
    let waits = again.lines().find(|line| line.contains("ring.slots"));
    assert!(waits.unwrap().starts_with("needs restart"), "{again}");

    let wrong = "[flow]\nidle_timeout_s = \"long\"\nidle = 3\n";
    for (config, lines) in [
        (wrong, ["/f.toml:2: flow.idle_timeout_s", "/f.toml:3: unknown key"]),
        ("[model]\npath = \"/nowhere\"\n[flow]\nidle_timeout_s = 600", ["/nowhere", ""]),
        ("[tag.dscp]\nNoSuchLabel = 3", ["f.toml:2: tag.dscp: the model", "NoSuchLabel"]),
    ] {
        fs::write(world.file("f.toml"), asking_once(config)).unwrap();
        fs::write(world.file("conf.d/20-tag.toml"), "").unwrap();
        let refused = world.ctl(&["reload"]).expect_code(78);
        for line in lines {
            assert!(refused.stderr.contains(line), "{}", refused.stderr);
        }
        world.wait_for_more("fenxi_flows_ended_total", "idle");
    }
    let reloads = |result: &str| world.sum_of("fenxi_config_reloads_total", result);
    assert_eq!((reloads("applied"), reloads("refused")), (3.0, 3.0));
    assert_eq!(world.swaps(), [0.0, 1.0, 0.0], "one of them named a model");

    // By signal.
    fs::write(world.file("f.toml"), asking_once(LASTING)).unwrap();
    world.live.signal(Signal::HUP);
    world.live.wait_for("it is applied", |_| reloads("applied") == 4.0);
    let applied = world.reload(LASTING, &[]);
    assert!(keys(&applied["applied"]).is_empty(), "SIGHUP did it");
    let summary = world.finish();
    assert!(summary["flows"]["ended"]["idle"].as_u64().unwrap() > 0);
}

/// A configuration whose model is asked once about a flow, unless it names another: series are then
/// as many as flows.
fn asking_once(config: &str) -> String {
    match config.contains("[model]") {
        true => config.to_owned(),
        false => format!("{config}\n[model]\npath = \"{}\"\n", common::bundle().display()),
    }
}

fn with_model(dir: &Path) -> String {
    format!("{LASTING}[model]\npath = \"{}\"\n", dir.display())
}

#[test]
fn what_nobody_confirms_is_undone() {
    let Some(world) = World::start("confirm", &with_model(&common::bundle())) else {
        return;
    };
    let int8 = "model=\"app-id-k10-int8\"";
    let other = with_model(&common::int8_bundle()) + "[analytics]\npolicy = \"none\"";
    let keys_of_it = ["analytics.policy", "model.path"];

    let reply = world.reload(&other, &["--confirm-within", "2s"]);
    assert_eq!(reply["confirm_within_s"], 2);
    assert_eq!(keys(&reply["applied"]), keys_of_it);
    assert_eq!(world.sum_of("fenxi_model_info", int8), 1.0);
    assert!(world.live.metric_sum("fenxi_config_unconfirmed_seconds") > 0.0);
    let status = world.ctl(&["status"]).expect_code(0).stdout;
    assert!(status.contains("fenxi ctl confirm"), "{status}");
    world.ctl(&["reload"]).expect_code(69);
    let reverted = || world.sum_of("fenxi_config_reloads_total", "reverted");
    world.live.wait_for("it is undone", |_| reverted() == 1.0);
    assert_eq!(world.sum_of("fenxi_model_info", int8), 0.0);
    assert_eq!(world.sum_of("fenxi_model_info", "generation=\"2\""), 1.0);
    assert_eq!(world.swaps(), [1.0, 0.0, 1.0]);
    let late = world.ctl(&["confirm"]).expect_code(69);
    assert!(late.stderr.contains("there is no reload"), "{}", late.stderr);

    // All of it was undone, so all of it is there to be applied.
    let reply = world.reload(&other, &["--confirm-within", "1m"]);
    assert_eq!(keys(&reply["applied"]), keys_of_it);
    world.ctl(&["confirm"]).expect_code(0);
    assert_eq!(world.live.metric_sum("fenxi_config_unconfirmed_seconds"), 0.0);
    let reply = world.reload(&other, &[]);
    assert!(keys(&reply["applied"]).is_empty(), "{reply}");
    assert_eq!(world.sum_of("fenxi_model_info", int8), 1.0);
    world.wait_for_more("fenxi_series_total", "inferred");
    let swaps = world.swaps();
    assert_eq!(swaps, [2.0, 0.0, 1.0]);
    let summary = world.finish();
    let said = ["done", "refused", "reverted"].map(|result| summary["swaps"][result].as_f64());
    assert_eq!(said, swaps.map(Some));
}

#[test]
fn labels_are_those_of_the_model_and_the_confidence_that_a_reload_brings() {
    let config = |least: &str| {
        format!(
            "[flow]\nidle_timeout_s = 1\n[model]\nmin_confidence = {least}\npath = \"{}\"",
            common::shipped_bundle().display()
        )
    };
    let Some(world) = World::start("labels", &config("0.0")) else {
        return;
    };
    let unknown = "label=\"unknown\"";
    let flows = "fenxi_label_flows_total";
    let named = || world.sum("fenxi_labels_total", |line| !line.contains(unknown));
    world.live.wait_for("flows are named", |_| named() > 0.0);
    let reply = world.reload(&config("1.0"), &[]);
    assert_eq!(keys(&reply["applied"]), ["model.min_confidence"]);
    assert_eq!((&reply["model_swapped"], &reply["model_generation"]), (&true.into(), &1.into()));
    world.wait_for_more(flows, unknown);
    let before = named();
    world.wait_for_more(flows, unknown);
    assert_eq!(named(), before, "no answer is that sure");

    // A model by hand holds until the next reload, which brings back the configured one.
    let int8 = common::root().join("models/protocol-int8");
    world.ctl(&["model", "load", int8.to_str().unwrap()]).expect_code(0);
    let info = |label: &str| world.sum_of("fenxi_model_info", label);
    assert_eq!(info("model=\"protocol-int8\""), 1.0);
    assert_eq!(info("generation=\"2\""), 1.0);
    world.wait_for_more(flows, unknown);
    assert_eq!(world.swaps(), [2.0, 0.0, 0.0]);
    world.ctl(&["model", "load", "/nowhere"]).expect_code(78);
    assert_eq!(world.swaps(), [2.0, 1.0, 0.0]);
    let reply = world.reload(&config("1.0"), &[]);
    let model = reply["model"].as_str().unwrap();
    assert!(model.starts_with("protocol "), "{model}");
    assert_eq!(reply["model_swapped"], true);
    assert_eq!(world.live.metric_sum("fenxi_balance"), 0.0);
}

/// The device of a new model is decided as at a start.
#[test]
fn a_model_that_the_engine_does_not_take_runs_on_the_cpu_or_is_refused() {
    let test = "a_model_that_the_engine_does_not_take_runs_on_the_cpu_or_is_refused";
    if !common::has_onnxruntime() {
        return common::skip(test, "ONNX Runtime (make onnxruntime)");
    }
    let short = "[flow]\nidle_timeout_s = 1\n[pipeline]\nlayout = \"1:1:1\"\n";
    let nowhere = format!("{short}[accel]\nlibrary = \"/nowhere/libonnxruntime.so\"\n");
    let why = "default: native does not take this model: ";
    for (config, has_library) in [(short, true), (&nowhere, false)] {
        let Some(world) = World::start("taken", config) else {
            return;
        };
        // Its loop never begins.
        let other = endless_bundle(world.dir.path(), Endless::Above(1e9));
        let device = || -> String {
            let devices = world.ctl(&["--json", "devices"]).expect_code(0).json();
            devices["devices"][0]["device"].as_str().unwrap().to_owned()
        };
        assert_eq!(device(), "native");
        let loaded = world.ctl(&["model", "load", other.to_str().unwrap()]);
        if has_library {
            loaded.expect_code(0);
            assert_eq!(device(), "cpu");
            world.live.wait_for("it says why", |live| live.said(why) == 1);
            world.wait_for_more("fenxi_series_total", "inferred");
            let reply = world.reload(config, &[]);
            assert_eq!(reply["model_swapped"], true);
            assert_eq!(world.swaps(), [2.0, 0.0, 0.0]);
        } else {
            let refused = loaded.expect_code(78).stderr;
            assert!(refused.contains("/nowhere/libonnxruntime.so"), "{refused}");
            assert!(refused.contains(why), "{refused}");
            assert_eq!(world.swaps(), [0.0, 1.0, 0.0]);
        }
        assert_eq!(device(), "native");
        // The same devices, by name: nothing has to be opened for it.
        let named = format!(
            "{config}{}devices = [\"native\"]\n",
            match has_library {
                true => "[accel]\n",
                false => "",
            }
        );
        let reply = world.reload(&named, &[]);
        assert_eq!(keys(&reply["applied"]), ["accel.devices"]);
        assert_eq!(reply["model_swapped"], false);
        world.wait_for_more("fenxi_series_total", "inferred");
        world.finish();
    }
}

/// What a tuner may ask is answered in one line that says what to do.
#[test]
fn candidates_are_refused_where_nothing_can_be_learned() {
    let Some(world) = World::start("offers", "[flow]\nidle_timeout_s = 1\n") else {
        return;
    };
    for command in [&["model", "offer", "/nowhere"][..], &["model", "back"]] {
        let refused = world.ctl(command).expect_code(69).stderr;
        assert_eq!(refused.lines().count(), 1, "{refused}");
        assert!(refused.contains("set learn.socket and restart, or use"), "{refused}");
    }
    let refused = world.ctl(&["model", "offer", "/nowhere", "--task", "x"]).expect_code(78).stderr;
    assert!(refused.contains("there is no task x; there are default"), "{refused}");
    let page = world.ctl(&["model", "offers"]).expect_code(0).stdout;
    let said = "default: no candidate is under way\n  so far: nothing was offered yet\n";
    assert_eq!(page, said);
    world.finish();
}

/// A flow worker that labels inline does not wait for a device of another kind.
#[test]
fn a_model_that_does_not_answer_at_once_is_refused_where_labels_are_inline() {
    let config = "[flow]\nidle_timeout_s = 1\n[pipeline]\nlayout = \"1:0:0\"\n";
    let Some(world) = World::start("inline", config) else {
        return;
    };
    let other = endless_bundle(world.dir.path(), Endless::Above(1e9));
    let refused = world.ctl(&["model", "load", other.to_str().unwrap()]).expect_code(78).stderr;
    assert!(refused.contains("labels are inline (pipeline.layout)"), "{refused}");
    assert!(refused.contains("native does not take this model: "), "{refused}");
    assert_eq!(world.swaps(), [0.0, 1.0, 0.0]);
    let bundle = common::int8_bundle();
    world.ctl(&["model", "load", bundle.to_str().unwrap()]).expect_code(0);
    world.wait_for_more("fenxi_series_total", "inferred");
    assert_eq!(world.swaps(), [1.0, 1.0, 0.0]);
    assert_eq!(world.live.metric_sum("fenxi_balance"), 0.0);
    assert_eq!(world.finish()["pipeline"]["layout"], "1:0:0");
}

#[test]
fn fifty_reloads_and_fifty_models_under_traffic_lose_nothing() {
    let Some(world) = World::start("fifty", LASTING) else {
        return;
    };
    let bundles = [common::bundle(), common::int8_bundle()];
    for round in 0..50 {
        let (policy, prefix) = [("none", 10), ("carry-over", 0), ("timeout", 4)][round % 3];
        let (idle_s, t0_us) = (1 + round % 2, 50 + round % 5);
        let config = format!(
            "[flow]\nidle_timeout_s = {idle_s}\n[analytics]\npolicy = \
             \"{policy}\"\n[cache]\nprefix = {prefix}\n\
             [accel]\ndevices = [\"simulated\"]\nsimulated_t0_us = {t0_us}\n"
        );
        let reply = world.reload(&config, &[]);
        assert!(keys(&reply["applied"]).len() >= 3, "{reply}");
        let bundle = bundles[round % 2].to_str().unwrap();
        world.ctl(&["model", "load", bundle]).expect_code(0);
        assert_eq!(world.live.metric_sum("fenxi_balance"), 0.0);
    }
    let summary = world.finish();
    assert_eq!(summary["swaps"]["refused"], 0);
    assert!(summary["swaps"]["done"].as_u64().unwrap() >= 100, "{summary}");
}
