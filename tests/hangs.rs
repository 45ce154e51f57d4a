//! What may hang costs neither traffic nor control: models that do not end, files that do not come.
//! In network namespaces; skipped by name without root.

use crate::common;

use std::fs;
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use common::lab::Lab;
use common::live::{Live, fenxi_on};
use common::onnx::{Endless, endless_bundle};

/// Far longer than anything here takes; nothing is decided by it unless fenxi hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a file is held up that a helper opens; longer than the helper has, and than the next
/// reload takes.
const HELD_UP: Duration = Duration::from_secs(15);

/// A host with a wire from `a` to `b`, and a folder for files.
struct World {
    dir: TempDir,
    lab: Lab,
}

impl World {
    fn new(test: &str) -> Option<World> {
        World::with_tools(test, &[])
    }

    fn with_tools(test: &str, tools: &[&str]) -> Option<World> {
        let lab = Lab::new(test, &["host"], tools)?;
        lab.wire_within("host", "a", "b");
        lab.run("host", "ip addr add 10.81.0.1/24 dev a");
        let neighbour = "ip neigh add 10.81.0.2 lladdr 02:00:00:00:00:02 dev a";
        lab.run("host", neighbour);
        let dir = tempfile::tempdir().unwrap();
        Some(World { dir, lab })
    }

    /// The same where a model is to be run.
    fn with_onnxruntime(test: &str) -> Option<World> {
        if !common::has_onnxruntime() {
            common::skip(test, "ONNX Runtime (make onnxruntime)");
            return None;
        }
        World::new(test)
    }

    fn config(&self) -> PathBuf {
        self.dir.path().join("fenxi.toml")
    }

    fn configure(&self, text: &str) {
        let io = "[io]\ninterfaces = [\"b\"]\n";
        let next = self.dir.path().join("next.toml");
        fs::write(&next, format!("{io}{text}")).unwrap();
        // Replaces the file, which might be one that hangs when opened.
        fs::rename(next, self.config()).unwrap();
    }

    fn begin(&self, args: &[&str]) -> Live {
        let config = self.config();
        let args = [&["--config", config.to_str().unwrap()], args].concat();
        Live::begin(fenxi_on(&self.lab, "host", &[]), &args)
    }

    /// By way of another program.
    fn start_by(&self, launcher: &[&str]) -> Live {
        let config = self.config();
        let args = ["--config", config.to_str().unwrap()];
        let live = Live::begin(fenxi_on(&self.lab, "host", launcher), &args);
        live.wait_until_ready();
        live
    }

    fn start(&self, args: &[&str]) -> Live {
        let live = self.begin(args);
        live.wait_until_ready();
        live
    }

    fn fifo(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        let _ = fs::remove_file(&path);
        let made = Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        path
    }

    /// Flows that get a label, with packets of `bytes` bytes.
    fn talk(&self, bytes: usize) {
        self.lab.on("host", || {
            let socket = UdpSocket::bind(("10.81.0.1", 0)).unwrap();
            socket.connect("10.81.0.2:443").unwrap();
            for _ in 0..14 {
                socket.send(&vec![0; bytes]).unwrap();
            }
        });
    }
}

/// Status and body of a page.
fn get(live: &Live, path: &str) -> Option<(u16, String)> {
    let mut stream = UnixStream::connect(live.http()).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
    let mut page = String::new();
    stream.read_to_string(&mut page).ok()?;
    let (head, body) = page.split_once("\r\n\r\n")?;
    let code = head.split(' ').nth(1)?.parse().ok()?;
    Some((code, body.to_owned()))
}

/// Waits until a page is such.
fn wait_for(live: &Live, path: &str, is_so: impl Fn(u16, &str) -> bool) {
    let began = Instant::now();
    let mut last = None;
    while began.elapsed() < PATIENCE {
        last = get(live, path);
        if last.as_ref().is_some_and(|(code, body)| is_so(*code, body)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{path} stays {last:?}");
}

/// What processes fenxi has started.
fn children(live: &Live) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", live.pid())).unwrap();
    let children =
        tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("children")).ok());
    let children: String = children.collect();
    children.split_whitespace().map(str::to_owned).collect()
}

fn is_there(process: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}

/// Ends it by SIGTERM, which must work in time whatever hangs.
fn terminate(live: Live, code: i32) -> common::Finished {
    let began = Instant::now();
    let finished = live.terminate(code);
    assert!(began.elapsed() < PATIENCE, "took {:?}", began.elapsed());
    // For who wants to know: `--nocapture`.
    println!("from SIGTERM to the end: {:?}", began.elapsed());
    assert!(finished.stderr.contains("ended after"), "{}", finished.stderr);
    finished
}

/// In the `timeout` of `model.open_timeout_s`.
fn within(seconds: f64) -> String {
    let model = common::bundle();
    format!(
        "[accel]\ndevices = [\"cpu\"]\n[model]\npath = \"{}\"\nopen_timeout_s = {seconds}\n",
        model.display()
    )
}

#[test]
fn a_model_that_does_not_end_is_refused_and_the_next_is_taken() {
    let Some(world) = World::with_onnxruntime("endless") else {
        return;
    };
    let endless = endless_bundle(world.dir.path(), Endless::Always);
    world.configure(&within(600.0));
    let live = world.start(&[]);
    // The trial of a model has four fifths of this, and its helper all of it.
    world.configure(&within(15.0));
    live.ctl(&["reload"]).expect_code(0);
    let refused = live.ctl(&["model", "load", endless.to_str().unwrap()]);
    let refused = refused.expect_code(78).stderr;
    assert!(refused.contains("endless: the model did not run to its end within"), "{refused}");
    live.wait_for("the log says so", |live| live.said("did not run to its end") > 0);
    assert_eq!(live.samples_with("fenxi_model_swaps_total", "refused"), [1.0]);
    // It ran in a process of its own, so nothing of it is left.
    assert_eq!(live.metric_sum("fenxi_helpers_abandoned"), 0.0);
    assert!(children(&live).is_empty());

    world.configure(&within(600.0));
    live.ctl(&["reload"]).expect_code(0);
    let good = common::int8_bundle();
    live.ctl(&["model", "load", good.to_str().unwrap()]).expect_code(0);
    assert_eq!(live.samples_with("fenxi_model_swaps_total", "done"), [1.0]);
    world.talk(100);
    live.wait_for("the new model labels", |live| {
        live.samples_with("fenxi_series_total", "inferred")[0] > 0.0
    });
    assert_eq!(get(&live, "/readyz").unwrap().0, 200);
    terminate(live, 0);
}

#[test]
fn packets_pass_while_a_model_hangs_and_a_signal_ends_the_run() {
    if !common::has_onnxruntime() {
        return common::skip("packets_pass_while_a_model_hangs", "ONNX Runtime (make onnxruntime)");
    }
    let Some(lab) = Lab::bridged("hangs", &["ping"]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let endless = endless_bundle(dir.path(), Endless::Always);
    let mut args = vec!["--set", "io.interfaces=[\"l\", \"r\"]", "--set", "io.mode=inline"];
    let model = format!("model.path={}", common::bundle().display());
    args.extend([
        "--set",
        "accel.devices=[\"cpu\"]",
        "--set",
        "model.open_timeout_s=600",
        "--set",
        &model,
    ]);
    let live = Live::start(&lab, "box", &args);

    let mut ctl = common::fenxi(["ctl", "--socket"]);
    ctl.arg(live.socket()).args(["model", "load"]).arg(endless);
    let mut ctl = ctl.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    live.wait_for("the model is tried", |live| !children(live).is_empty());
    let tried = children(&live);
    for _ in 0..3 {
        let mut ping = lab.command("left", "ping");
        ping.args(["-c", "1", "-W", "5", "10.78.0.2"]);
        assert!(ping.output().unwrap().status.success());
    }
    assert_eq!(get(&live, "/livez").unwrap().0, 200);
    assert_eq!(get(&live, "/readyz").unwrap().0, 200);
    let summary = terminate(live, 0).json();
    let of = |name: &str| summary["live"][name].as_u64().unwrap();
    assert_eq!((of("received"), of("unsent")), (of("sent"), 0), "{summary}");
    assert!(!tried.iter().any(|it| is_there(it)), "the trial goes with fenxi");
    ctl.wait().unwrap();
}

#[test]
fn a_first_model_that_does_not_end_is_said_and_a_signal_ends_the_run() {
    let Some(world) = World::with_onnxruntime("first") else {
        return;
    };
    let endless = endless_bundle(world.dir.path(), Endless::Always);
    let model = ["--model", endless.to_str().unwrap()];
    world.configure(&within(600.0));
    let live = world.begin(&model);
    wait_for(&live, "/livez", |code, _| code == 200);
    wait_for(&live, "/readyz", |code, page| {
        code == 503 && page.contains("[-] running: starting: opening the model endless")
    });
    world.talk(100);
    live.wait_for("packets are counted", |live| live.metric_sum("fenxi_packets_total") >= 14.0);
    assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
    assert_eq!(live.samples_with("fenxi_state", "starting"), [1.0]);
    let status = live.ctl(&["status"]).expect_code(0).stdout;
    assert!(status.starts_with("starting: "), "{status}");
    assert!(status.contains("starting: opening the model endless"), "{status}");
    let early = live.ctl(&["reload"]).expect_code(69);
    assert!(early.stderr.contains("starting"), "{}", early.stderr);
    assert!(!live.is_ready());
    let summary = terminate(live, 0).json();
    let series = &summary["series"];
    assert_eq!((&series["emitted"], &series["shed"]), (&1.into(), &1.into()), "{series}");

    // The second ends the process at once, whatever the first has begun.
    let live = world.begin(&model);
    wait_for(&live, "/livez", |code, _| code == 200);
    live.signal(Signal::TERM);
    live.signal(Signal::INT);
    let status = live.exit_status();
    assert!([Some(130), Some(143)].contains(&status.code()), "{status:?}");

    // With less patience it ends by itself.
    world.configure(&within(2.0));
    let refused = world.begin(&model).ended(69);
    let line = "opening the model endless 1.0.2 on cpu: not done within 2 s and given up";
    assert!(refused.stderr.contains(&format!("fenxi: {line}")), "{}", refused.stderr);
}

#[test]
fn a_configuration_that_is_no_file_is_refused_and_the_next_is_taken() {
    let Some(world) = World::new("fifo") else {
        return;
    };
    let simulated = "[accel]\ndevices = [\"simulated\"]\n";
    world.configure(simulated);
    let live = world.start(&[]);
    world.fifo("fenxi.toml");
    let refused = live.ctl(&["reload"]).expect_code(78).stderr;
    assert!(
        refused.contains("fenxi.toml: cannot read the configuration: it is a FIFO"),
        "{refused}"
    );
    world.configure(&format!("{simulated}[tag]\nmode = \"off\"\n"));
    let taken = live.ctl(&["--json", "reload"]).expect_code(0).json();
    assert_eq!(taken["reloaded"]["applied"][0]["key"], "tag.mode");
    terminate(live, 0);
}

#[test]
fn a_helper_that_hangs_is_given_up_and_said_until_it_ends() {
    let Some(world) = World::with_tools("abandoned", &["strace"]) else {
        return;
    };
    let with = |more: &str| {
        format!(
            "[model]\nopen_timeout_s = 2\n[accel]\ndevices = [\"d\"]\n[device.d]\nprovider = \
             \"simulated\"\n{more}"
        )
    };
    world.configure(&with(""));
    // strace delays every open of this file.
    let held = world.dir.path().join("profile.json");
    fs::write(&held, "").unwrap();
    let held_up = format!("inject=?open,openat:delay_enter={}:when=1", HELD_UP.as_micros());
    let held = held.to_str().unwrap();
    let live = world.start_by(&[
        "strace",
        "-D",
        "-f",
        "--seccomp-bpf",
        "-qq",
        "-o",
        "/dev/null",
        "-P",
        held,
        "-e",
        "trace=?open,openat",
        "-e",
        &held_up,
    ]);
    world.configure(&with(&format!("profile = \"{held}\"\n")));
    let refused = live.ctl(&["reload"]).expect_code(78).stderr;
    assert!(refused.contains("not done within 2 s and given up"), "{refused}");
    let abandoned = |live: &Live| live.metric_sum("fenxi_helpers_abandoned");
    assert_eq!(abandoned(&live), 1.0);
    assert_eq!(live.samples_with("fenxi_model_swaps_total", "refused"), [1.0]);
    assert_eq!(live.samples_with("fenxi_state", "degraded"), [1.0]);
    let (code, page) = get(&live, "/readyz?verbose").unwrap();
    assert!(code == 200 && page.contains("[+] helpers: opening the model"), "{page}");
    live.wait_for("the log says so", |live| {
        live.said("given up after 2 s; the thread goes on") == 1
    });

    world.configure(&with("simulated_t0_us = 7\n"));
    live.ctl(&["reload"]).expect_code(0);
    assert_eq!(abandoned(&live), 1.0, "the first one is still there");
    live.wait_for("it ends after all", |live| abandoned(live) == 0.0);
    live.wait_for("it is ready", |live| live.samples_with("fenxi_state", "ready") == [1.0]);

    // A run that leaves one behind ends as others do.
    world.configure(&with(&format!("profile = \"{held}\"\n")));
    live.ctl(&["reload"]).expect_code(78);
    terminate(live, 0);
}

/// A session that a reload replaced hangs, and the other worker's does not: to undo the reload both
/// get new ones.
#[test]
fn a_reload_is_undone_where_a_session_does_not_come_back() {
    let Some(world) = World::new("undone") else { return };
    const HANGS: &str = "[pipeline]\nlayout = \"2:2:2\"\n[accel]\ndevices = [\"d\"]\n\
        [device.d]\nprovider = \"simulated\"\nfaults = \"hang=1:600000\"\ndeadline_ms = 8000\n";
    let with = |bundle: &Path| format!("{HANGS}[model]\npath = \"{}\"\n", bundle.display());
    world.configure(&with(&common::bundle()));
    let live = world.start(&[]);
    world.talk(100);
    let emitted = |live: &Live| live.metric_sum("fenxi_series_emitted_total");
    live.wait_for("a batch hangs", |live| emitted(live) == 1.0);
    world.configure(&with(&common::int8_bundle()));
    live.ctl(&["reload", "--confirm-within", "1s"]).expect_code(0);
    let reverted = |live: &Live| live.samples_with("fenxi_config_reloads_total", "reverted")[0];
    live.wait_for("it is undone", |live| reverted(live) == 1.0);
    let of_first = live.samples_with("fenxi_model_info", "model=\"app-id-k10\"");
    assert_eq!(of_first, [1.0]);
    let [done, refused, reverted] = ["done", "refused", "reverted"]
        .map(|result| live.samples_with("fenxi_model_swaps_total", result)[0]);
    assert_eq!([done, refused, reverted], [1.0, 0.0, 1.0]);
    terminate(live, 0);
}

/// The loop begins with the traffic, in a device that works inside the analytics thread.
fn hangs_on_traffic(test: &str, more: &str) -> Option<(World, Live)> {
    let world = World::with_onnxruntime(test)?;
    let endless = endless_bundle(world.dir.path(), Endless::Above(500.0));
    world.configure(&format!("{}{more}", within(600.0)));
    let live = world.start(&["--model", endless.to_str().unwrap()]);
    world.talk(100);
    live.wait_for("it labels", |live| {
        live.samples_with("fenxi_series_total", "inferred")[0] == 1.0
    });
    Some((world, live))
}

#[test]
fn a_loop_that_traffic_sets_off_is_stopped() {
    let Some((world, live)) = hangs_on_traffic("stopped", "") else {
        return;
    };
    world.talk(1000);
    live.wait_for("its series have failed", |live| {
        live.metric_sum("fenxi_series_lost_total") >= 1.0
    });
    live.wait_for("the runtime says why", |live| live.said("terminate flag") > 0);
    wait_for(&live, "/livez", |code, _| code == 200);
    let inferred = |live: &Live| live.samples_with("fenxi_series_total", "inferred")[0];
    live.wait_for("others get labels", |live| {
        world.talk(100);
        inferred(live) >= 2.0
    });
    let summary = terminate(live, 0).json();
    let series = &summary["series"];
    let of = |name: &str| series[name].as_u64().unwrap();
    let fates = ["cached", "inferred", "shed", "failed"].map(of);
    assert_eq!(fates.iter().sum::<u64>(), of("emitted"), "{series}");
    assert!(of("failed") > 0, "{series}");
}

/// Runs of fixed batch sizes cannot be stopped, so the thread is left behind.
#[test]
fn a_device_that_does_not_come_back_does_not_keep_the_process() {
    let fixed = "[device.cpu]\nfixed_sizes = true\nbatch_sizes = [8]\n";
    let Some((world, live)) = hangs_on_traffic("left", fixed) else {
        return;
    };
    world.talk(1000);
    wait_for(&live, "/livez", |code, page| {
        code == 503 && page.contains("analytics-0.0 has not answered")
    });
    let finished = terminate(live, 69);
    let line = "analytics-0.0: its device does not answer; the last series get no labels";
    assert!(finished.stderr.contains(line), "{}", finished.stderr);
    let summary = finished.json();
    let series = &summary["series"];
    let of = |name: &str| series[name].as_u64().unwrap();
    let fates = ["cached", "inferred", "shed", "failed"].map(of);
    assert_eq!(fates.iter().sum::<u64>(), of("emitted"), "{series}");
    assert_eq!((of("inferred"), of("emitted")), (1, 2), "{series}");
    let ended = common::sum(&summary["flows"]["ended"]);
    assert_eq!(summary["flows"]["begun"].as_u64().unwrap(), ended);
}
