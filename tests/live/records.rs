//! Records of a live run: whole lines, none lost but those that are counted, whatever becomes of
//! the file.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::lab::Lab;
use crate::common::live::{Live, fenxi_on, generate_on};
use crate::live::{WATCH, common, common::packets, generate};

/// A wire, and where it is not to be had `None`.
fn lab(test: &str) -> Option<Lab> {
    let lab = Lab::new(test, &["host"], &[])?;
    lab.wire_within("host", "a", "b");
    Some(lab)
}

fn start(lab: &Lab, launcher: &[&str], path: &Path, more: &[&str]) -> Live {
    let path = format!("records.path={}", path.display());
    let mut args = WATCH.to_vec();
    args.extend(["--set", &path]);
    args.extend(more);
    Live::launch(fenxi_on(lab, "host", launcher), &args)
}

/// Records made so far, all counted by the flow manager that makes them.
fn made(live: &Live) -> f64 {
    live.metric_sum("fenxi_labels_total") + flow_records(live)
}

fn flow_records(live: &Live) -> f64 {
    live.metric_sum("fenxi_flows_ended_total") + live.metric_sum("fenxi_flow_reports_total")
}

fn written(live: &Live) -> f64 {
    live.metric_sum("fenxi_records_total")
}

fn dropped(live: &Live, reason: &str) -> f64 {
    let reason = format!("reason=\"{reason}\"");
    live.samples_with("fenxi_records_dropped_total", &reason).iter().sum()
}

/// Until all that was sent is over and recorded.
fn settle(live: &Live) {
    live.wait_for("all flows are over", |live| live.metric_sum("fenxi_flow_table_entries") == 0.0);
    live.wait_for("all records met their fate", |live| {
        made(live) == written(live) + live.metric_sum("fenxi_records_dropped_total")
    });
}

/// Lines of a text that are no records, as text.
fn wrong(text: &str) -> Vec<&str> {
    let is_record = |line: &&str| {
        serde_json::from_str::<Value>(line).is_ok_and(|record| record["flow_id"].is_number())
    };
    text.lines().filter(|line| !is_record(line)).collect()
}

/// Lines of all files whose names begin like this one's.
fn lines_of_all(path: &Path) -> usize {
    let name = path.file_name().unwrap().to_str().unwrap();
    let files = fs::read_dir(path.parent().unwrap()).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    let ours = paths.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(name));
    let count = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.is_empty() || text.ends_with('\n'), "{}", path.display());
        assert!(wrong(&text).is_empty(), "{:?}", wrong(&text));
        assert!(text.len() <= 1 << 20, "{} has {}", path.display(), text.len());
        text.lines().count()
    };
    ours.map(count).sum()
}

#[test]
fn files_are_rotated_and_moved_under_load_and_no_record_is_lost() {
    let Some(lab) = lab("rotate") else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flows.jsonl");
    let sizes = ["records.rotate_mib=1", "records.rotate_files=100"];
    let more = ["--set", sizes[0], "--set", sizes[1]];
    let live = start(&lab, &[], &path, &more);
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| generate(&lab, 3000, 9000));
        let mut moves = 0;
        while !sending.is_finished() || moves < 3 {
            std::thread::sleep(Duration::from_millis(300));
            let moved = dir.path().join(format!("flows.jsonl-{moves}"));
            fs::rename(&path, moved).unwrap();
            live.ctl(&["reopen"]).expect_code(0);
            assert!(path.exists());
            moves += 1;
        }
    });
    generate(&lab, 3000, 6000);
    settle(&live);
    assert_eq!(lines_of_all(&path) as f64, written(&live));
    assert_eq!(live.metric_sum("fenxi_records_dropped_total"), 0.0);
    assert!(dir.path().join("flows.jsonl.1").exists(), "it grew too little");
    let summary = live.terminate(0).json();
    assert_eq!(summary["records_dropped"], 0);
    // A later run goes on behind what is there.
    let before = lines_of_all(&path);
    let live = start(&lab, &[], &path, &more);
    generate(&lab, 1000, 100);
    settle(&live);
    assert_eq!(lines_of_all(&path) as f64, before as f64 + written(&live));
    live.terminate(0);
}

/// Kills fenxi under traffic, as soon as `flows_least` flows were recorded and the records made by
/// then are written. Returns the number of these flow records. Traffic goes on throughout the wait,
/// and must not keep them from being written.
fn kill_under_traffic(lab: &Lab, path: &Path, flows_least: f64) -> usize {
    let live = start(lab, &[], path, &[]);
    let is_killed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_killed.load(Ordering::Relaxed) {
                generate(lab, 2000, 2000);
            }
        });
        // However this ends, the traffic does, too.
        let _ends = Raised(&is_killed);
        live.wait_for("flows are recorded", |live| flow_records(live) >= flows_least);
        let flows = flow_records(&live);
        let all = made(&live);
        live.wait_for("the records made so far are written", |live| written(live) >= all);
        assert_eq!(live.metric_sum("fenxi_records_dropped_total"), 0.0);
        live.kill();
        flows as usize
    })
}

/// Raises a flag when it is dropped.
struct Raised<'a>(&'a AtomicBool);

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What is counted as written is in the file. How long a record may wait for that is tested beside
/// `records::lines`.
#[test]
fn who_is_killed_loses_no_written_record_and_leaves_no_torn_line() {
    let Some(lab) = lab("killed") else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flows.jsonl");
    let mut before = 0;
    for flows_least in [1.0, 1000.0, 3000.0] {
        let written = kill_under_traffic(&lab, &path, flows_least);
        let text = fs::read_to_string(&path).unwrap();
        let whole = &text[..text.rfind('\n').unwrap() + 1];
        assert!(wrong(whole).is_empty(), "{:?}", wrong(whole));
        let flows = whole.lines().filter(|line| line.contains("\"type\":\"flow\""));
        let flows = flows.count();
        assert!(flows >= before + written, "{flows} of {before} and {written}");
        before = flows;
        // What a crash tears is removed by the next run; here the crash gets some help.
        fs::write(&path, &text[..text.len() - 1]).unwrap();
        before -= usize::from(whole.lines().last().unwrap().contains("\"type\":\"flow\""));
    }
    let live = start(&lab, &[], &path, &[]);
    let said = live.terminate(0).stderr;
    assert!(said.contains("of an incomplete line of an earlier run"), "{said}");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.ends_with('\n') && wrong(&text).is_empty());
}

#[test]
fn a_full_disk_is_counted_and_all_goes_on_when_there_is_room() {
    let Some(lab) = lab("full") else { return };
    let dir = tempfile::tempdir().unwrap();
    // Seen by fenxi alone, in the mount namespace that `ip netns exec` makes.
    let mount = "mount -t tmpfs -o size=16m none \"$0\" && head -c 16600000 /dev/zero > \
        \"$0/ballast\" && exec \"$@\"";
    let disk = dir.path().to_str().unwrap();
    let live = start(&lab, &["sh", "-c", mount, disk], &dir.path().join("flows.jsonl"), &[]);
    let inside = |name: &str| PathBuf::from(format!("/proc/{}/root{disk}/{name}", live.pid()));
    generate(&lab, 2000, 6000);
    live.wait_for("records are dropped", |live| dropped(live, "write_failed") > 0.0);
    // The status counts them as lost.
    let failed = dropped(&live, "write_failed");
    let status = live.ctl(&["--json", "status"]).expect_code(0).json();
    let lost = &status["status"]["overview"]["records_dropped"];
    assert!(lost.as_f64() >= Some(failed), "{failed}: {status}");
    let received = live.metric_sum("fenxi_port_packets_total");
    fs::remove_file(inside("ballast")).unwrap();
    settle(&live);
    generate(&lab, 1000, 500);
    settle(&live);
    assert!(live.metric_sum("fenxi_port_packets_total") > received);
    let lost = live.samples_with("fenxi_port_dropped_packets_total", "ring_full");
    assert_eq!(lost.iter().sum::<f64>(), 0.0);
    assert_eq!(dropped(&live, "queue_full"), 0.0);
    let written = written(&live);
    // The disk goes with fenxi, but for what is open.
    let file = File::open(inside("flows.jsonl")).unwrap();
    let finished = live.terminate(0);
    let text = std::io::read_to_string(file).unwrap();
    assert!(text.ends_with('\n') && wrong(&text).is_empty(), "{:?}", wrong(&text));
    assert_eq!(text.lines().count() as f64, written);
    assert!(finished.json()["records_dropped"].as_u64().unwrap() > 0);
    for said in ["cannot write records: No space left on device", "writing records again"] {
        assert_eq!(finished.stderr.matches(said).count(), 1, "{}", finished.stderr);
    }
}

#[test]
fn a_disk_that_stays_full_does_not_hold_up_the_end() {
    let Some(lab) = lab("device") else { return };
    let live = start(&lab, &[], Path::new("/dev/full"), &[]);
    generate(&lab, 1000, 200);
    live.wait_for("all flows are over", |live| {
        flow_records(live) > 0.0 && live.metric_sum("fenxi_flow_table_entries") == 0.0
    });
    let finished = live.terminate(74);
    assert!(
        finished.stderr.contains("fenxi: /dev/full: write failed: No space left"),
        "{}",
        finished.stderr
    );
    let summary = finished.json();
    let flows = summary["flows"]["begun"].as_u64().unwrap();
    assert!(summary["records_dropped"].as_u64().unwrap() >= flows, "{summary}");
}

fn pipe(dir: &Path) -> PathBuf {
    let path = dir.join("pipe");
    let made = Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    path
}

/// A run whose records have filled the pipe and their queue.
fn stalled(lab: &Lab, pipe: &Path) -> Live {
    let live = start(lab, &[], pipe, &["--set", "records.queue=1024"]);
    generate(lab, 2000, 4000);
    live.wait_for("records are dropped", |live| dropped(live, "queue_full") > 0.0);
    live
}

#[test]
fn a_pipe_that_nobody_reads_fills_the_queue_and_holds_up_nothing_else() {
    let Some(lab) = lab("stalled") else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = pipe(dir.path());
    let live = stalled(&lab, &path);
    live.wait_for("all flows are over", |live| live.metric_sum("fenxi_flow_table_entries") == 0.0);
    let lost = live.samples_with("fenxi_port_dropped_packets_total", "ring_full");
    assert_eq!(lost.iter().sum::<f64>(), 0.0);
    assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
    live.ctl(&["status"]).expect_code(0);
    let made = made(&live);
    let began = Instant::now();
    let finished = live.terminate(74);
    assert!(began.elapsed() < Duration::from_secs(30));
    let said =
        "records were not written within 2 s of the shutdown and are lost; see records.drain_s";
    assert!(finished.stderr.contains(said), "{}", finished.stderr);
    let summary = finished.json();
    // All but what the pipe itself holds.
    let dropped = summary["records_dropped"].as_u64().unwrap() as f64;
    assert!(dropped <= made && made - dropped < 1024.0, "{dropped} of {made}");
}

/// A capture of `flows` flows per network, of one packet each.
fn many_flows(path: &Path, flows: u16, networks: u8) -> u64 {
    let frames = (0..networks).flat_map(|network| {
        (0..flows).map(move |port| {
            let udp = packets::udp([1024 + port, 53], 30);
            packets::ethernet(0x0800, &packets::ipv4([network, 2], 17, &udp))
        })
    });
    fs::write(path, packets::whole(frames)).unwrap();
    u64::from(flows) * u64::from(networks)
}

/// A run that holds `flows` flows, which go on: at its end it makes a record of each at once.
fn with_flows(lab: &Lab, path: &Path, flows: [u64; 2], more: &[&str]) -> Live {
    let capture = path.with_file_name("many.pcap");
    let flows = many_flows(&capture, flows[0] as u16, flows[1] as u8);
    let idle = ["--set", "flow.idle_timeout_s=3600"];
    let table = ["--set", "flow.max_flows=262144"];
    // Room in the ring for a machine that is busy.
    let ring = ["--set", "io.block_timeout_ms=20"];
    // This model does not answer flows as short as these, so there are flow records only.
    let model = format!("model.path={}", common::bundle().display());
    let model = ["--set", &model];
    let live = start(lab, &[], path, &[&idle[..], &table, &ring, &model, more].concat());
    let mut command = generate_on(lab, "host");
    command.args(["--replay", "--pps", "30000", "--interface", "a"]);
    common::run({
        command.arg(&capture);
        command
    })
    .expect_code(0);
    live.wait_for("all flows are there", |live| {
        live.metric_sum("fenxi_flow_table_entries") == flows as f64
    });
    live
}

/// Far more records than the queue has room for, in a table that is not small.
#[test]
fn an_ordinary_stop_writes_a_record_of_every_flow() {
    let Some(lab) = lab("stop") else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flows.jsonl");
    let sets = ["records.queue=1024", "records.drain_s=60"];
    let more = ["--set", sets[0], "--set", sets[1]];
    let live = with_flows(&lab, &path, [50_000, 2], &more);
    let summary = live.terminate(0).json();
    assert_eq!(summary["records_dropped"], 0);
    assert_eq!(summary["flows"]["begun"], 100_000);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.ends_with('\n') && wrong(&text).is_empty());
    assert_eq!(text.lines().count(), 100_000);
}

/// The end waits no longer than it may for a reader that takes nothing; what is left is counted,
/// and the exit code tells.
#[test]
fn a_stop_waits_for_records_no_longer_than_it_may() {
    let Some(lab) = lab("bound") else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = pipe(dir.path());
    let sets = ["records.queue=1024", "records.drain_s=1"];
    let more = ["--set", sets[0], "--set", sets[1]];
    let live = with_flows(&lab, &path, [20_000, 1], &more);
    let finished = live.terminate(74);
    let said =
        "records were not written within 1 s of the shutdown and are lost; see records.drain_s";
    let said = finished.stderr.lines().find(|line| line.contains(said));
    let lost = said.and_then(|line| line.split(": ").nth(2)?.split(' ').next()?.parse().ok());
    // All but what the pipe itself holds.
    let summary = finished.json();
    let dropped = summary["records_dropped"].as_u64().unwrap();
    assert_eq!(lost, Some(dropped), "{}", finished.stderr);
    assert!(dropped <= 20_000 && 20_000 - dropped < 1024, "{dropped}");
}

#[test]
fn a_reader_that_comes_late_gets_whole_lines() {
    let Some(lab) = lab("late") else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = pipe(dir.path());
    let live = stalled(&lab, &path);
    let reading = std::thread::spawn(move || {
        let lines = BufReader::new(File::open(path).unwrap()).lines();
        lines.map(Result::unwrap).collect::<Vec<_>>()
    });
    settle(&live);
    generate(&lab, 500, 500);
    settle(&live);
    let written = written(&live);
    live.terminate(0);
    let lines = reading.join().unwrap();
    assert_eq!(lines.len() as f64, written);
    assert!(wrong(&lines.join("\n")).is_empty());
}

/// Each record of a flow counts from the record before: over all records the sums equal the run's.
#[test]
fn records_of_flows_that_last_add_up() {
    let Some(lab) = lab("active") else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flows.jsonl");
    let sets = ["flow.active_timeout_s=1", "flow.idle_timeout_s=2"];
    let live = start(&lab, &[], &path, &["--set", sets[0], "--set", sets[1]]);
    let mut command = generate_on(&lab, "host");
    command.args(["--interface", "a", "--flows", "50"]);
    command.args(["--flows-per-s", "50", "--pps", "400"]);
    common::run(command).expect_code(0);
    settle(&live);
    let summary = live.terminate(0).json();
    let records = common::json_lines(&path);
    let flows = || records.iter().filter(|record| record["type"] == "flow");
    let reported = flows().filter(|flow| flow["end_reason"] == "active").count();
    assert!(reported > 0, "no flow lasted");
    assert_eq!(summary["flows"]["reported"], reported);
    let of_records = flows()
        .map(|flow| flow["packets_fwd"].as_u64().unwrap() + flow["packets_rev"].as_u64().unwrap());
    let verdicts =
        ["labelled", "unlabelled"].map(|name| summary["verdicts"][name].as_u64().unwrap());
    assert_eq!(of_records.sum::<u64>(), verdicts.iter().sum::<u64>());
}

#[test]
fn two_runs_do_not_write_to_one_file() {
    let Some(lab) = lab("second") else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flows.jsonl");
    let live = start(&lab, &[], &path, &[]);
    let mut second = fenxi_on(&lab, "host", &[]);
    second.arg("run").args(WATCH).arg("--flows").arg(&path);
    second.args(["--set", "control.http=", "--set", "control.socket="]);
    second.args(["--set", "flow.max_flows=4096"]);
    let refused = common::run(second).expect_code(73);
    assert!(
        refused.stderr.contains("another instance of fenxi writes to it"),
        "{}",
        refused.stderr
    );
    live.terminate(0);
}

/// A reload reopens the file, too; a request right after it is answered, not refused as held up.
#[test]
fn a_file_is_reopened_right_after_a_reload() {
    let Some(lab) = lab("again") else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flows.jsonl");
    let live = start(&lab, &[], &path, &[]);
    let socket = live.socket();
    // As fast as can be: both orders are there before the writer looks at the first one.
    let ask = |commands: &[&str]| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        for command in commands {
            writeln!(stream, "{{\"command\":\"{command}\"}}").unwrap();
        }
        let lines = BufReader::new(stream).lines();
        let replies = lines.take(commands.len());
        replies.for_each(|line| {
            let reply: Value = serde_json::from_str(&line.unwrap()).unwrap();
            assert_eq!(reply["code"], 200, "{reply}");
        });
    };
    for _ in 0..5 {
        ask(&["reload", "reopen"]);
        std::thread::scope(|scope| {
            (0..4).for_each(|_| drop(scope.spawn(|| ask(&["reopen"]))));
        });
    }
    live.terminate(0);
}

/// The shipped file, with other paths in it.
#[test]
fn logrotate_moves_the_file_and_has_it_opened_anew() {
    let tools = ["logrotate"];
    let Some(lab) = Lab::new("logrotate", &["host"], &tools) else {
        return;
    };
    lab.wire_within("host", "a", "b");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flows.jsonl");
    let live = start(&lab, &[], &path, &["--set", "records.rotate_mib=0"]);
    let fenxi = common::fenxi::<&str>([]);
    let fenxi = fenxi.get_program().to_str().unwrap().to_owned();
    let socket = live.socket();
    let shipped = fs::read_to_string(common::root().join("packaging/logrotate.d/fenxi")).unwrap();
    let ours = shipped
        .replace("/var/lib/fenxi", dir.path().to_str().unwrap())
        .replace("/usr/bin/fenxi ctl", &format!("{fenxi} ctl --socket {}", socket.display()))
        .replace("su fenxi fenxi", "su root root");
    let config = dir.path().join("logrotate.conf");
    fs::write(&config, ours).unwrap();
    for _ in 0..3 {
        generate(&lab, 1000, 200);
        settle(&live);
        let mut logrotate = Command::new("logrotate");
        logrotate.args(["--force", "--state"]).arg(dir.path().join("state"));
        let output = logrotate.arg(&config).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert_eq!(fs::metadata(&path).unwrap().len(), 0, "{said}");
    }
    let written = written(&live);
    live.terminate(0);
    let moved = dir.path().join("flows.jsonl.1");
    let zipped = ["flows.jsonl.2.gz", "flows.jsonl.3.gz"].map(|name| dir.path().join(name));
    let unzipped = zipped.map(|path| {
        let reader = flate2::read::GzDecoder::new(File::open(path).unwrap());
        std::io::read_to_string(reader).unwrap()
    });
    let texts = [unzipped.concat(), fs::read_to_string(moved).unwrap()].concat();
    assert!(wrong(&texts).is_empty(), "{:?}", wrong(&texts));
    assert_eq!(texts.lines().count() as f64, written);
}
