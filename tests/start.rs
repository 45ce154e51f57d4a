//! `fenxi check` and `fenxi run` agree: what one refuses the other refuses, with the same exit code
//! and the same line, and what one accepts the other accepts. Every section of the configuration
//! takes part. In a network namespace, so as root; skipped by name without.

use crate::common;
use crate::run::traffic::send;

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};

use common::lab::Lab;
use common::live::{Live, fenxi_on};
use common::packets;

/// Far more than any start takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A bundle with none of the labels of the built-in tables.
const IOT_FAMILY: &str = concat!("\"", env!("CARGO_MANIFEST_DIR"), "/../../models/iot-family\"");

/// A bundle that runs on ONNX Runtime only.
const TWO_FEATURES: &str =
    concat!("\"", env!("CARGO_MANIFEST_DIR"), "/../../tests/bundles/times-k10\"");

/// A configuration that runs: keys, and their values in TOML.
const BASE: [(&str, &str); 6] = [
    ("io.mode", "\"tap\""),
    ("io.interfaces", "[\"left\"]"),
    ("control.http", "\"\""),
    ("control.socket", "\"\""),
    ("flow.max_flows", "4096"),
    ("accel.devices", "[\"simulated\"]"),
];

/// What is changed of it, and the exit code that comes of it; 0: it runs. `DIR` is a folder of its
/// own.
type Case = (i32, &'static [(&'static str, &'static str)]);

#[rustfmt::skip] // One case to a line, or a few.
const CASES: &[Case] = &[
    // They run.
    (0, &[]),
    (0, &[("io.mode", "\"inline\""), ("io.interfaces", "[\"left\", \"right\"]")]),
    (0, &[("io.promiscuous", "true"), ("io.blocks", "8")]),
    (0, &[("pipeline.layout", "\"2:1:1\"")]),
    (0, &[("accel.devices", "[\"cpu\"]")]),
    (0, &[("accel.devices", "[]")]),
    // The engine takes the model, so nobody looks for the library.
    (0, &[("accel.devices", "[]"), ("accel.library", "\"nonesuch.so\"")]),
    (0, &[("accel.devices", "[\"cpu\"]"), ("analytics.policy", "\"slo\""), ("cache.prefix", "6")]),
    (0, &[("control.http", "\"127.0.0.1:9000\""), ("control.socket", "\"DIR/s\"")]),
    (0, &[("control.http", "\"unix:DIR/h\"")]),
    // Paths from the file's folder.
    (0, &[("records.path", "\"flows.jsonl\""), ("control.socket", "\"s\"")]),
    (0, &[("log.to", "\"stderr\""), ("log.level", "\"warn,fenxi::supervise=debug\"")]),
    (0, &[("mark.class.other", "0x9000000")]),
    (0, &[("model.path", IOT_FAMILY)]),
    (0, &[("io.mode", "\"mark\""), ("mark.class.camera", "0x9000000"), ("model.path", IOT_FAMILY)]),
    (0, &[("tag.mode", "\"off\""), ("tag.dscp.nonesuch", "\"EF\"")]),
    // A label of the mark's table matters in mode mark only.
    (0, &[("mark.class.nonesuch", "0x9000000")]),
    // Wrong by themselves.
    (78, &[("io.interfaces", "[]")]),
    (78, &[("io.interfaces", "[\"left\", \"left\"]")]),
    (78, &[("io.mode", "\"inline\"")]),
    (78, &[("io.mode", "\"bridge\"")]),
    (78, &[("io.block_bytes", "5000")]),
    (78, &[("io.nonesuch", "1")]),
    (78, &[("flow.k", "99")]),
    (78, &[("flow.max_flows", "65536"), ("flow.buckets", "64")]),
    (78, &[("ring.slots", "\"many\"")]),
    (78, &[("tag.dscp.nonesuch", "\"EF\"")]),
    // No label of the model has a mark, or a DSCP.
    (78, &[("io.mode", "\"mark\""), ("model.path", IOT_FAMILY)]),
    (78, &[("io.mode", "\"mark\""), ("mark.as", "\"dscp\""), ("model.path", IOT_FAMILY)]),
    (78, &[("io.mode", "\"inline\""), ("io.interfaces", "[\"left\", \
        \"right\"]"), ("model.path", IOT_FAMILY)]),
    (78, &[("mark.as", "\"dscp\""), ("mark.mask", "0xff00")]),
    (78, &[("io.mode", "\"mark\""), ("mark.class.nonesuch", "0x9000000")]),
    (78, &[("mark.class.TLS", "0x10000")]),
    (78, &[("analytics.max_wait_ms", "1.0")]),
    (78, &[("analytics.batch_sizes", "[8, 4]")]),
    (78, &[("cache.prefix", "11")]),
    (78, &[("pipeline.layout", "\"1:1\"")]),
    (78, &[("pipeline.cores", "[0]")]),
    (78, &[("pipeline.cores", "[1000, 1001]")]),
    (78, &[("model.class_confidence.nonesuch", "0.5")]),
    (78, &[("model.class_confidence.nonesuch", "0.5"), ("accel.devices", "[\"cpu\"]")]),
    (78, &[("accel.devices", "[\"nonesuch\"]")]),
    (78, &[("accel.devices", "[\"cpu\"]"), ("device.cpu.options.threads", "\"2\"")]),
    (78, &[("records.path", "\"-\"")]),
    (78, &[("control.http", "\"localhost\"")]),
    (78, &[("control.http", "\"192.0.2.1:9000\"")]),
    (78, &[("control.http", "\"unix:DIR/LONG\"")]),
    (78, &[("control.socket", "\"DIR/LONG\"")]),
    (78, &[("log.level", "\"loud\"")]),
    // The model, and files.
    (78, &[("flow.k", "8")]),
    (65, &[("model.path", "\"damaged\"")]),
    (65, &[("model.path", "\"fifo\"")]),
    (66, &[("model.path", "\"nonesuch\"")]),
    (66, &[("device.simulated.profile", "\"nonesuch\"")]),
    (65, &[("device.simulated.profile", "\"case.toml\"")]),
    (66, &[("accel.devices", "[\"cpu\"]"), ("device.cpu.profile", "\"/dev/zero\"")]),
    // This machine.
    (69, &[("io.interfaces", "[\"left\", \"nonesuch\"]")]),
    (69, &[("accel.devices", "[\"cpu\"]"), ("accel.library", "\"nonesuch.so\"")]),
    // The engine does not take it.
    (0, &[("accel.devices", "[]"), ("model.path", TWO_FEATURES)]),
    (69, &[("accel.devices", "[]"), ("model.path", TWO_FEATURES),
        ("accel.library", "\"nonesuch.so\"")]),
    (69, &[("accel.devices", "[\"cpu\"]"), ("accel.library", "\"case.toml\"")]),
    (69, &[("accel.devices", "[\"cpu\"]"), ("accel.library", "\"fifo/model.onnx\"")]),
    (69, &[("accel.devices", "[\"cuda\"]")]),
    (69, &[("accel.devices", "[\"p\"]"), ("device.p.provider", "\"plugin\""),
        ("device.p.plugin", "\"nonesuch.so\"")]),
    (69, &[("control.http", "\"127.0.0.1:9001\"")]),
    (69, &[("control.http", "\"192.0.2.1:9000\""), ("control.http_exposed", "true")]),
    (73, &[("control.socket", "\"DIR/nonesuch/s\"")]),
    (73, &[("control.socket", "\"DIR/case.toml\"")]),
    (73, &[("control.socket", "\"DIR/case.toml/s\"")]),
    (73, &[("ipfix.to", "\"file:DIR/fifo/model.onnx\"")]),
    (73, &[("records.path", "\"nonesuch/flows.jsonl\"")]),
    (73, &[("records.path", "\"damaged\"")]),
    (73, &[("records.path", "\"case.toml/flows.jsonl\"")]),
];

/// What became of a command: its exit code, 0 where it was accepted, and the first line that it
/// said of itself.
type Outcome = (i32, String);

fn outcome(code: i32, stderr: &str) -> Outcome {
    let mut lines = stderr.lines().filter(|line| line.starts_with("fenxi: "));
    (code, lines.next().unwrap_or_default().to_owned())
}

/// `fenxi check`.
fn check(lab: &Lab, launcher: &[&str], file: &Path, options: &[&str]) -> Outcome {
    let mut command = fenxi_on(lab, "host", launcher);
    let finished = common::run({
        command.args(["check", "--config"]).arg(file).args(options);
        command
    });
    outcome(finished.code, &finished.stderr)
}

/// `fenxi run`, which is ended once it is ready.
fn run(lab: &Lab, launcher: &[&str], file: &Path, options: &[&str]) -> Outcome {
    let dir = tempfile::tempdir().unwrap();
    let manager = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let stderr = fs::File::create(dir.path().join("stderr")).unwrap();
    let mut command = fenxi_on(lab, "host", launcher);
    command.args(["run", "--config"]).arg(file).args(options);
    command.env("NOTIFY_SOCKET", dir.path().join("notify"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
    let mut child = command.spawn().unwrap();
    let began = Instant::now();
    let mut is_told_to_end = false;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        let mut text = [0; 256];
        let is_ready =
            matches!(manager.recv(&mut text), Ok(bytes) if text[..bytes].starts_with(b"READY=1"));
        if is_ready && !is_told_to_end {
            kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
            is_told_to_end = true;
        }
        if began.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("{}: neither ready nor ended", file.display());
        }
    };
    let stderr = fs::read_to_string(dir.path().join("stderr")).unwrap();
    let code = status.code().unwrap_or(-1);
    assert!(is_told_to_end || code != 0, "{}: ended by itself: {stderr}", file.display());
    outcome(code, &stderr)
}

/// A folder with the files that cases name.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["damaged", "fifo"] {
        let to = dir.path().join(name);
        fs::create_dir_all(to.join("golden")).unwrap();
        for file in ["model.toml", "golden/inputs.csv", "golden/outputs.csv"] {
            fs::copy(common::bundle().join(file), to.join(file)).unwrap();
        }
    }
    fs::write(dir.path().join("damaged/model.onnx"), "damaged").unwrap();
    let fifo = dir.path().join("fifo/model.onnx");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    dir
}

/// The case as a file in the folder.
fn written(dir: &Path, changes: &[(&str, &str)]) -> String {
    let mut keys: BTreeMap<&str, String> = BTreeMap::new();
    for (key, value) in BASE.iter().chain(changes) {
        let value = value.replace("LONG", &"x".repeat(100));
        keys.insert(key, value.replace("DIR", dir.to_str().unwrap()));
    }
    keys.iter().map(|(key, value)| format!("{key} = {value}\n")).collect()
}

fn lab(test: &str) -> Option<Lab> {
    if !common::has_onnxruntime() {
        common::skip(test, "ONNX Runtime (make onnxruntime)");
        return None;
    }
    let lab = Lab::new(test, &["host"], &[])?;
    lab.run("host", "ip link set dev lo up");
    lab.wire_within("host", "left", "right");
    Some(lab)
}

#[test]
fn what_one_refuses_the_other_refuses() {
    let Some(lab) = lab("agree") else { return };
    let _taken = lab.on("host", || TcpListener::bind("127.0.0.1:9001").unwrap());
    let dir = folder();
    let file = dir.path().join("case.toml");
    let mut differences = String::new();
    for (code, changes) in CASES {
        fs::write(&file, written(dir.path(), changes)).unwrap();
        let (checked, ran) = (check(&lab, &[], &file, &[]), run(&lab, &[], &file, &[]));
        if checked != ran || ran.0 != *code {
            differences += &format!(
                "{changes:?}: {code} is expected\n  check: {checked:?}\n  run:   {ran:?}\n"
            );
        }
        let _ = fs::remove_file(dir.path().join("flows.jsonl"));
    }
    assert!(differences.is_empty(), "{differences}");
    assert!(CASES.len() >= 25);
}

#[test]
fn an_address_in_use_names_the_process() {
    let Some(lab) = lab("held") else { return };
    let http = lab.on("host", || TcpListener::bind("127.0.0.1:9001").unwrap());
    let dir = folder();
    let socket = UnixListener::bind(dir.path().join("s")).unwrap();
    let file = dir.path().join("case.toml");
    let program = fs::read_to_string("/proc/self/comm").unwrap();
    let holder = format!("in use by {}, process {}; ", program.trim(), std::process::id());
    for (key, value) in [("control.http", "\"127.0.0.1:9001\""), ("control.socket", "\"DIR/s\"")] {
        fs::write(&file, written(dir.path(), &[(key, value)])).unwrap();
        let (code, line) = run(&lab, &[], &file, &[]);
        let cure = format!("{holder}set {key} to another ");
        assert!(code == 69 && line.contains(&cure), "{key}: {code}: {line}");
    }
    drop((http, socket));
}

/// Whatever runs out, there is a line and an exit code of sysexits(3), and no panic.
#[test]
fn few_descriptors_are_refused_and_are_no_reason_to_panic() {
    let Some(lab) = lab("descriptors") else {
        return;
    };
    let dir = folder();
    let file = dir.path().join("case.toml");
    let sinks = [
        ("records.path", "\"DIR/flows.jsonl\""),
        ("records.socket", "\"DIR/records\""),
        ("ipfix.to", "\"file:DIR/flows.ipfix\""),
        ("control.http", "\"unix:DIR/http\""),
        ("control.socket", "\"DIR/ctl\""),
    ];
    fs::write(&file, written(dir.path(), &sinks)).unwrap();
    let mut refused = 0;
    for limit in 4..=40 {
        let limit = format!("--nofile={limit}");
        let launcher = ["prlimit", &limit];
        let mut replay = fenxi_on(&lab, "host", &launcher);
        replay.arg("replay").args(common::SIMULATED).arg(common::demo());
        let replay = common::run(replay);
        let replay = (replay.code, replay.stderr);
        // One that lacks a descriptor to tell the service manager that it is ready is ended by
        // `timeout`, with 124. In the foreground, `timeout` passes a signal on once: a second one
        // would end the run at once.
        let launcher = ["timeout", "--foreground", "-s", "TERM", "5", "prlimit", &limit];
        for (code, said) in [replay, run(&lab, &launcher, &file, &[])] {
            refused += u32::from(!matches!(code, 0 | 124));
            let is_known = matches!(code, 0 | 65 | 66 | 69 | 73 | 74 | 124);
            assert!(is_known, "{limit}: {code}: {said}");
            assert!(!said.contains("panicked"), "{limit}: {said}");
        }
    }
    assert!(refused > 10, "only {refused} starts lacked descriptors");
}

/// A control group of its own, with a limit of memory, until this goes.
struct Group(PathBuf);

impl Group {
    /// `None`, said on the terminal: this machine lets nobody make one.
    fn with(mib: u64, test: &str) -> Option<Group> {
        let group = Group::create(mib, &format!("fenxi-{}-{test}", std::process::id()));
        if group.is_none() {
            common::skip(test, "a control group for memory");
        }
        group
    }

    fn create(mib: u64, name: &str) -> Option<Group> {
        let hierarchies =
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        hierarchies.into_iter().find_map(|(root, limit)| {
            let group = Path::new(root).join(name);
            fs::create_dir(&group).ok()?;
            let group = Group(group);
            let limit = group.0.join(limit);
            fs::write(limit, (mib << 20).to_string()).ok()?;
            Some(group)
        })
    }

    /// fenxi in this group. `ip netns exec` would hide the control groups, so it is to be started
    /// in the namespace of a lab's network alone.
    fn fenxi(&self) -> Command {
        let mut command = Command::new("sh");
        let enter = format!("echo $$ > {}/cgroup.procs; exec \"$@\"", self.0.display());
        command.args(["-c", &enter, "sh"]).arg(common::fenxi::<&str>([]).get_program());
        command.env("FENXI_CONFIG", "").current_dir(common::root());
        command
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_flow_table_that_memory_does_not_hold_is_warned_of() {
    let Some(lab) = lab("memory") else { return };
    let test = "a_flow_table_that_memory_does_not_hold_is_warned_of";
    let Some(group) = Group::with(256, test) else { return };
    let said = |flows: &str| {
        let interface = "io.interfaces=[\"left\"]";
        let args = ["--set", interface, "--set", flows].into_iter();
        let args: Vec<&str> = args.chain(common::SIMULATED).collect();
        let live = lab.on("host", || Live::launch(group.fenxi(), &args));
        live.terminate(0).stderr
    };
    let warning = "MiB of memory, and 256 MiB are available";
    let many = said("flow.max_flows=1048576");
    assert_eq!(many.matches(warning).count(), 1, "{many}");
    assert!(many.contains("set flow.max_flows = "), "{many}");
    let few = said("flow.max_flows=65536");
    assert!(!few.contains(warning), "{few}");
}

/// Nobody has to size the table: 256 MiB hold the one that they get, and the flood that fills it.
#[test]
fn a_flood_fills_the_table_of_a_small_machine_and_nothing_else() {
    let Some(lab) = lab("small") else { return };
    let test = "a_flood_fills_the_table_of_a_small_machine_and_nothing_else";
    let Some(group) = Group::with(256, test) else { return };
    let mut show = group.fenxi();
    show.args(["config", "show", "--origin"]);
    let shown = common::run(show).expect_code(0).stdout;
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    for key in ["max_flows = 65536", "counted_flows = 65536", "blocks = 32"] {
        let line = format!("{key} # default for 256 MiB of memory");
        assert!(shown.contains(&line), "{line}: {shown}");
    }

    let args = [&["--set", "io.interfaces=[\"left\"]"][..], &common::SIMULATED].concat();
    let live = lab.on("host", || Live::of_default_size(group.fenxi(), &args));
    assert_eq!(live.metric_sum("fenxi_flow_table_capacity_entries"), 65_536.0);
    let dir = tempfile::tempdir().unwrap();
    let flood = dir.path().join("flood.pcap");
    // Flows of a packet each, until the table is full.
    for host in 1.. {
        let ports = 1024..41_024;
        let packet = |port| {
            let datagram = packets::udp([port, 9000], 20);
            packets::ethernet(0x0800, &packets::ipv4([host, 250], 17, &datagram))
        };
        fs::write(&flood, packets::whole(ports.map(packet))).unwrap();
        let sent = lab.on("host", || send(&flood, "right"));
        live.wait_for_packets(u64::from(host) * sent / 2);
        if live.metric_sum("fenxi_flows_evicted_total") > 0.0 {
            break;
        }
        assert!(host < 100, "{}", live.metric_sum("fenxi_flow_table_entries"));
    }
    let resident = live.resident_kib();
    assert!(resident < 128 << 10, "{resident} KiB");
    let finished = live.terminate(0);
    assert!(!finished.stderr.contains("full flow tables need"), "{}", finished.stderr);
}

#[test]
fn both_take_the_same_options() {
    let Some(lab) = lab("options") else { return };
    let dir = folder();
    let file = dir.path().join("case.toml");
    fs::write(&file, written(dir.path(), &[("io.interfaces", "[]")])).unwrap();
    let damaged = dir.path().join("damaged");
    for (code, options) in [
        (78, &[][..]),
        (0, &["-i", "left"]),
        (0, &["-i", "left,right", "--mode", "inline"]),
        (78, &["-i", "left", "--mode", "inline"]),
        (69, &["-i", "nonesuch"]),
        (69, &["-i", ""]),
        (64, &["-i", "left", "--mode", "bridge"]),
        (66, &["-i", "left", "--model", "/nonesuch"]),
        (65, &["-i", "left", "-m", damaged.to_str().unwrap()]),
    ] {
        let (checked, ran) = (check(&lab, &[], &file, options), run(&lab, &[], &file, options));
        assert_eq!(checked.1.replace("fenxi check", "fenxi run"), ran.1, "{options:?}");
        assert_eq!((checked.0, ran.0), (code, code), "{options:?}: {ran:?}");
    }
}

#[test]
fn files_that_cannot_be_read_are_refused_alike() {
    let Some(lab) = lab("unread") else { return };
    let dir = folder();
    fs::write(dir.path().join("torn.toml"), "[io\n").unwrap();
    for (file, code) in
        [("nonesuch.toml", 66), ("damaged", 66), ("fifo/model.onnx", 66), ("torn.toml", 78)]
    {
        let file = dir.path().join(file);
        let (checked, ran) = (check(&lab, &[], &file, &[]), run(&lab, &[], &file, &[]));
        assert_eq!(checked, ran);
        assert_eq!(ran.0, code, "{ran:?}");
    }
}

/// Marks want a kernel with conntrack, and the journal is there or not: either way both say the
/// same.
#[test]
fn what_depends_on_the_machine_is_judged_alike() {
    let Some(lab) = lab("machine") else { return };
    let dir = folder();
    let file = dir.path().join("case.toml");
    for changes in [&[("io.mode", "\"mark\"")][..], &[("log.to", "\"journald\"")]] {
        fs::write(&file, written(dir.path(), changes)).unwrap();
        assert_eq!(check(&lab, &[], &file, &[]), run(&lab, &[], &file, &[]), "{changes:?}");
    }
    // Without a capability.
    fs::write(&file, written(dir.path(), &[])).unwrap();
    let launcher = ["setpriv", "--bounding-set=-net_raw", "--inh-caps=-net_raw"];
    let (checked, ran) = (check(&lab, &launcher, &file, &[]), run(&lab, &launcher, &file, &[]));
    assert_eq!(checked, ran);
    assert!(ran.0 == 77 && ran.1.contains("CAP_NET_RAW"), "{ran:?}");
}

#[test]
fn check_leaves_nothing_behind_and_a_fenxi_that_runs_is_not_in_its_way() {
    let Some(lab) = lab("beside") else { return };
    let dir = folder();
    let file = dir.path().join("case.toml");
    let changes = [
        ("control.http", "\"127.0.0.1:9002\""),
        ("control.socket", "\"s\""),
        ("records.path", "\"flows.jsonl\""),
    ];
    fs::write(&file, written(dir.path(), &changes)).unwrap();
    let names = || {
        let entries = fs::read_dir(dir.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    assert_eq!(check(&lab, &[], &file, &[]), (0, String::new()));
    assert_eq!(names(), before);

    let manager = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = fenxi_on(&lab, "host", &[]);
    command.args(["run", "--config"]).arg(&file);
    command.env("NOTIFY_SOCKET", dir.path().join("notify"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut running = command.spawn().unwrap();
    let mut text = [0; 256];
    let told = common::uninterrupted(|| manager.recv(&mut text)).unwrap();
    assert!(text[..told].starts_with(b"READY=1"));
    assert_eq!(check(&lab, &[], &file, &[]), (0, String::new()));
    kill_process(Pid::from_child(&running), Signal::TERM).unwrap();
    let mut said = String::new();
    running.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(running.wait().unwrap().success(), "{said}");
}
