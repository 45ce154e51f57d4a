//! The shaper of `examples/shaper`, written by `fenxi init` as docs/mark.md says: calls on a line
//! of 5 Mbit/s that uploads fill.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::common::lab::{FOREIGN, Lab, Program};
use crate::common::live::Live;
use crate::common::{self};
use crate::run::mark::{HOSTS, mark_at, marks};
use crate::run::traffic::{connect, stream};

const TOOLS: [&str; 2] = ["tc", "python3"];
const LINE: &str = "5mbit";
/// 5 % below the line.
const RATE: &str = "4750kbit";
/// The marks of rules.toml.
const CALL: u32 = 0x1000_0000;
const BIG: u32 = 0x2000_0000;
/// Calls by the port of their server: the model names the first, a rule the second, and nobody the
/// third.
const NAMED: u16 = 3478;
const BY_PORT: u16 = 8801;
const UNNAMED: u16 = 40_000;

/// A line as behind a modem with a large buffer: what arrives at the server waits for it.
fn narrow(lab: &Lab) {
    lab.run(
        "server",
        &format!(
            "ip link add line type ifb; ip link set line up; tc qdisc add dev line root tbf rate \
             {LINE} burst 3200 limit 128kb; \
             tc qdisc add dev eth clsact; \
             tc filter add dev eth ingress protocol ip u32 match u32 0 0 action mirred egress \
             redirect dev line"
        ),
    );
}

/// The commands of docs/mark.md below the line that ends with `after`.
fn documented(after: &str) -> Vec<String> {
    let page = fs::read_to_string(common::root().join("docs/mark.md")).unwrap();
    let (_, below) = page.split_once(after).unwrap();
    let lines = below.lines().skip_while(|line| !line.starts_with("    "));
    let lines = lines.take_while(|line| line.starts_with("    "));
    lines.map(|line| line.trim().to_owned()).collect()
}

/// Lets `fenxi init` write fenxi's part and the shaper into a folder; the configuration.
fn install(lab: &Lab, folder: &Path) -> PathBuf {
    // By this it finds the uplink.
    lab.run("router", "ip route add default via 10.77.2.2 dev out");
    let config = folder.join("fenxi.toml");
    let lines = documented("prints the commands that start both:\n");
    let init = format!("{} init {}", common::programs::fenxi().display(), config.display());
    let line = lines.join("\n").replace("sudo fenxi init", &init);
    let line = line.replace("eth0", "in").replace("50mbit/5mbit", LINE);
    let next = lab.run("router", &line);
    let script = folder.join("shaper/shaper");
    for device in ["out", "in"] {
        let up = format!("\n  {} up {device} {RATE} ", script.display());
        assert!(next.contains(&up), "{up}: {next}");
    }
    config
}

/// The shipped script on the router; its exit code, and what it says.
fn shaper(lab: &Lab, arguments: &str) -> (i32, String) {
    run_script(lab, &common::root().join("examples/shaper/shaper"), arguments)
}

fn run_script(lab: &Lab, script: &Path, arguments: &str) -> (i32, String) {
    let line = format!("{} {arguments} 2>&1 || echo code $?", script.display());
    let said = lab.run("router", &line);
    match said.rsplit_once("code ") {
        Some((said, code)) => (code.trim().parse().unwrap(), said.to_owned()),
        None => (0, said),
    }
}

/// The device has the queue that it had, and no rule is left.
fn assert_down(lab: &Lab) {
    let queues = lab.run("router", "tc qdisc show dev out");
    assert_eq!(queues.trim(), "qdisc noqueue 0: root refcnt 2");
    let tables = lab.run("router", "nft list tables");
    assert!(!tables.contains("shaper"), "{tables}");
}

/// Bytes that a class has let through.
fn sent(lab: &Lab, class: &str) -> usize {
    bytes_of(&lab.run("router", "tc -s class show dev out"), class).unwrap()
}

/// The same in what tc says of classes.
fn bytes_of(classes: &str, class: &str) -> Option<usize> {
    let (_, class) = classes.split_once(&format!(" fe:{class} "))?;
    let (_, bytes) = class.split_once("Sent ")?;
    bytes.split(' ').next()?.parse().ok()
}

/// Three uploads that go on until this is dropped.
struct Uploads {
    ends: Vec<[TcpStream; 2]>,
    threads: Vec<JoinHandle<()>>,
}

impl Uploads {
    fn start(lab: &Lab) -> Uploads {
        let ends: Vec<_> = (0..3).map(|_| connect(lab, HOSTS, Lab::server(false))).collect();
        let mut threads = Vec::new();
        for [near, far] in &ends {
            let [mut near, mut far] = [near, far].map(|end| end.try_clone().unwrap());
            threads.push(std::thread::spawn(move || while near.write_all(&[7; 16_384]).is_ok() {}));
            threads.push(std::thread::spawn(move || {
                while far.read(&mut [0; 65_536]).is_ok_and(|bytes| bytes > 0) {}
            }));
        }
        Uploads { ends, threads }
    }

    fn clients(&self) -> impl Iterator<Item = SocketAddr> {
        self.ends.iter().map(|[near, _]| near.local_addr().unwrap())
    }
}

impl Drop for Uploads {
    fn drop(&mut self) {
        for end in self.ends.iter().flatten() {
            let _ = end.shutdown(Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn script() -> PathBuf {
    common::root().join("tests/run/call.py")
}

/// The far end of calls.
fn answer(lab: &Lab, port: u16) -> Program {
    let program = lab.spawn("server", &format!("python3 {} answer {port}", script().display()));
    let listens = format!(
        "for i in $(seq 300); do ss -Hlun sport = :{port} | grep -q . && exit; sleep 0.1; done; \
         exit 1"
    );
    lab.run("server", &listens);
    program
}

/// A call of this number of packets.
fn call(lab: &Lab, port: u16, packets: usize) -> Program {
    let (script, server) = (script(), Lab::server(false));
    lab.spawn("client", &format!("python3 {} call {server} {port} {packets}", script.display()))
}

/// The median of its delay and what 95 of 100 packets stay below, in ms.
fn delays(what: &str, call: Program) -> [f64; 2] {
    let said = call.wait();
    println!("{what}: p50 and p95 of the delay there and back, ms: {said}");
    let mut numbers = said.split_whitespace().map(|it| it.parse().unwrap());
    [(); 2].map(|()| numbers.next().unwrap())
}

/// The mark of the call to this port.
fn mark_of(lab: &Lab, port: u16) -> u32 {
    let end = format!(" {port} 17");
    let marks = marks(lab);
    let (_, mark) = marks.iter().find(|(tuple, _)| tuple.ends_with(&end)).unwrap();
    *mark
}

/// A call's packets are on their way for at most 5 ms with the shaper, of which two full packets of
/// the line take 4.8, and for at least 50 without. The one test that measures time: delays are the
/// kernel's, and of a modem's buffer or of a few packets, which differ by far more than a busy
/// machine changes them.
#[test]
fn calls_come_first_and_big_uploads_last() {
    let Some(lab) = Lab::routed("shaper", true, &TOOLS) else {
        return;
    };
    narrow(&lab);
    let dir = tempfile::tempdir().unwrap();
    let config = install(&lab, dir.path());
    let written = dir.path().join("shaper/shaper");
    let shaper = |lab: &Lab, arguments: &str| run_script(lab, &written, arguments);
    let live = Live::start(&lab, "router", &["--config", config.to_str().unwrap()]);
    let _answers = [NAMED, BY_PORT, UNNAMED].map(|port| answer(&lab, port));

    let uploads = Uploads::start(&lab);
    let without = delays("without", call(&lab, NAMED, 300));
    assert!(without.iter().all(|delay| *delay >= 50.0), "{without:?}");
    drop(uploads);

    for kind in ["htb", "hfsc", "cake"] {
        let (code, said) = shaper(&lab, &format!("up out {RATE} {kind}"));
        if code != 0 {
            let refused = format!("shaper: out: not shaped: the kernel refuses {kind}\n");
            assert!(code == 69 && said.ends_with(&refused), "{said}");
            assert_down(&lab);
            continue;
        }
        // Again, over what is there.
        assert_eq!(shaper(&lab, &format!("up out {RATE} {kind}")), (0, String::new()));
        measure(&lab, &live, kind);
        assert_eq!(shaper(&lab, "down out"), (0, String::new()));
        assert_down(&lab);
    }
    assert_eq!(shaper(&lab, "down out"), (0, String::new()));
    assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
    live.terminate(0);
}

fn measure(lab: &Lab, live: &Live, kind: &str) {
    let uploads = Uploads::start(lab);
    let calls = [NAMED, BY_PORT].map(|port| (port, call(lab, port, 700)));
    for (port, call) in calls {
        let [_, p95] = delays(&format!("{kind}, port {port}"), call);
        assert!(p95 <= 5.0, "{kind}, port {port}: {p95} ms");
        assert_eq!(mark_of(lab, port), FOREIGN | CALL);
    }
    live.wait_for("the uploads are big", |_| {
        uploads.clients().all(|client| mark_at(lab, client) == FOREIGN | BIG)
    });
    // A call that nobody names is one by what it does.
    let [_, p95] = delays(&format!("{kind}, not named"), call(lab, UNNAMED, 300));
    assert!(p95 <= 5.0, "{kind}, not named: {p95} ms");
    assert_eq!(mark_of(lab, UNNAMED), FOREIGN | CALL);
    if kind == "cake" {
        return;
    }
    // So is what is new and small: it has nearly all of the line.
    let before = ["1", "2"].map(|class| sent(lab, class));
    let [near, far] = connect(lab, HOSTS, Lab::server(false));
    stream(near, far, 1_000_000);
    let after = ["1", "2"].map(|class| sent(lab, class));
    let [big, rest] = [0, 1].map(|at| after[at] - before[at]);
    assert!(rest >= 1_000_000 && big < rest / 2, "{kind}: {big} and {rest}");
}

/// Writes a `tc` that notes what it is to do, and does nothing.
fn stand_in(folder: &Path) {
    let file = folder.join("tc");
    let noted = folder.join("noted");
    let script = format!("#!/bin/sh\n[ \"$1\" != -batch ] || cat > {}\n", noted.display());
    fs::write(&file, script).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Whether tc can read a line. Where the kernel refuses it, the exit code is 2.
fn is_read(lab: &Lab, line: &str) -> bool {
    let line = format!("tc {line} >/dev/null 2>&1 || echo $?");
    ["", "2\n"].contains(&&*lab.run("router", &line))
}

/// Also where the kernel lacks a part of it.
#[test]
fn tc_reads_every_line_for_each_shaper_and_for_ctinfo() {
    let Some(lab) = Lab::routed("lines", true, &["tc"]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    stand_in(dir.path());
    let script = common::root().join("examples/shaper/shaper");
    for (kind, count) in [("htb", 8), ("hfsc", 8), ("cake", 1)] {
        let line =
            format!("PATH={}:$PATH {} up out 5mbit {kind}", dir.path().display(), script.display());
        assert_eq!(lab.run("router", &line), "");
        let noted = fs::read_to_string(dir.path().join("noted")).unwrap();
        assert_eq!(noted.lines().count(), count, "{noted}");
        assert!(noted.contains(&format!("root handle fe: {kind} ")), "{noted}");
        for line in noted.lines() {
            assert!(is_read(&lab, line), "{line}");
        }
        lab.run("router", "tc qdisc del dev out root 2>/dev/null || true");
    }
    let lines = documented("cake then needs this:\n");
    let lines: Vec<_> = lines.iter().filter_map(|line| line.strip_prefix("tc ")).collect();
    assert_eq!(lines.len(), 5, "{lines:?}");
    lab.run("router", "ip link add name ifb-out type ifb");
    for line in lines {
        let line = line.replace("eth1", "out");
        assert!(is_read(&lab, &line), "{line}");
    }
    assert!(!is_read(
        &lab,
        "filter add dev out egress protocol all u32 match u32 0 0 action ctinfo dscp x 128"
    ));
    assert!(!is_read(&lab, "class add dev out parent fe: classid fe:1 hfsc ls rate x"));
}

#[test]
fn the_shaper_refuses_what_it_does_not_know() {
    let Some(lab) = Lab::routed("refused", true, &["tc"]) else {
        return;
    };
    let before = lab.run("router", "tc qdisc show");
    for (arguments, code) in [
        ("", 64),
        ("up out", 64),
        ("up out 5", 64),
        ("up out 0mbit", 64),
        ("up out 1.5mbit", 64),
        ("up out fastmbit", 64),
        ("up out 5mbit fifo", 64),
        ("down", 64),
        ("down out in", 64),
        ("up nowhere 5mbit", 69),
    ] {
        let (got, said) = shaper(&lab, arguments);
        assert_eq!((got, said.lines().count()), (code, 1), "{arguments}: {said}");
        assert!(said.starts_with("shaper: "), "{said}");
    }
    assert_eq!(lab.run("router", "tc qdisc show"), before);
    assert_down(&lab);
    // A device that has gone leaves nothing to remove; what is not the shaper's stays.
    assert_eq!(shaper(&lab, "down nowhere"), (0, String::new()));
    lab.run("router", "tc qdisc add dev out root tbf rate 1mbit burst 1600 limit 10kb");
    assert_eq!(shaper(&lab, "down out"), (0, String::new()));
    assert!(lab.run("router", "tc qdisc show dev out").contains("tbf"));
    // Each of two devices is shaped until its own `down`.
    for device in ["out", "in"] {
        assert_eq!(shaper(&lab, &format!("up {device} 5mbit")), (0, String::new()));
    }
    assert_eq!(shaper(&lab, "down in"), (0, String::new()));
    assert!(lab.run("router", "nft list tables").contains("fenxi-shaper"));
    assert_eq!(shaper(&lab, "down out"), (0, String::new()));
    assert_down(&lab);
}

/// `examples/bulk-last`, for two short hours: the counter puts downloads last, and calls wait less.
#[test]
fn the_example_of_bulk_shapes_and_measures() {
    // It has a lab of its own.
    let tools = ["tc", "nft", "ethtool", "python3"];
    if Lab::new("bulk", &["probe"], &tools).is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut script = Command::new(common::root().join("examples/bulk-last/try"));
    script.arg(common::programs::fenxi()).args([
        "--ways",
        "none,bytes",
        "--hours",
        "2",
        "--hour-s",
        "3",
    ]);
    let said = dir.path().join("said");
    script.arg("--into").arg(dir.path()).stdout(Stdio::null());
    let mut script = script.stderr(fs::File::create(&said).unwrap()).spawn().unwrap();
    let router = format!("fenxi-bulk-{}-router", script.id());
    // Bytes of bulk and of the rest, with the calls, as long as the lab is there.
    let mut sent = [0; 2];
    let status = loop {
        let mut tc = Command::new("ip");
        tc.args(["netns", "exec", &router, "tc", "-s", "class", "show", "dev", "in"]);
        let classes = String::from_utf8(tc.output().unwrap().stdout).unwrap();
        for (bytes, class) in sent.iter_mut().zip(["1", "2"]) {
            *bytes = bytes_of(&classes, class).unwrap_or(0).max(*bytes);
        }
        if let Some(status) = script.try_wait().unwrap() {
            break status;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(status.success(), "{}", fs::read_to_string(&said).unwrap());
    let hours = common::json_lines(&dir.path().join("hours.jsonl"));
    assert_eq!(hours.len(), 4, "{hours:?}");
    assert!(hours.iter().all(|hour| hour["downloads"].as_u64() > Some(0)), "{hours:?}");
    assert!(hours.iter().all(|hour| hour["p95_ms"].as_f64() > Some(0.0)), "{hours:?}");
    // A busy machine that stands still for a second delays less than half of an hour's calls.
    let median = |way: &str| {
        let own = hours.iter().filter(|hour| hour["way"] == way);
        own.map(|hour| hour["p50_ms"].as_f64().unwrap()).fold(f64::MAX, f64::min)
    };
    assert!(2.0 * median("bytes") < median("none"), "{hours:?}");
    // Downloads weigh some three quarters of all.
    let [bulk, others] = sent;
    assert!(bulk > others && others > 0, "{sent:?}");
    let plot = fs::read_to_string(dir.path().join("hours.svg")).unwrap();
    assert!(plot.starts_with("<svg ") && plot.contains(">bytes</text>"), "{plot}");
}
