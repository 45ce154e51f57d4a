//! The history, through the real program: replays over several days fill the hours, reports and the
//! page sum them up, and the file survives what a router goes through.

use crate::common;
use crate::common::lab::{Lab, skip};
use crate::common::live::{Live, fenxi_on};
use crate::common::packets::{Captured, ETHERNET, capture, ethernet, ipv4, timed, udp, whole};
use crate::common::{Finished, SIMULATED};

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use packetio::{Backend, CaptureFormat, CaptureReader, Received, Rx, Selection};
use serde_json::Value;
use tempfile::TempDir;

const HOUR_US: i64 = 3600 * 1_000_000;
const MINUTE_US: i64 = 60 * 1_000_000;
/// Of IPv4 and UDP.
const HEADERS: u64 = 28;

/// A datagram at a time after 2026-01-01, between hosts and ports.
fn packet(at_us: i64, hosts: [u8; 2], ports: [u16; 2], payload: usize) -> Captured {
    let bytes = ethernet(0x0800, &ipv4(hosts, 17, &udp(ports, payload)));
    let mut frame = timed(ETHERNET, [bytes]).remove(0);
    frame.0.time_us += at_us;
    frame
}

/// Over three days, host 1 asks host 9 once an hour, the answer is longer; from 22:30 of the second
/// day on, a call of host 2 lasts three hours.
fn three_days() -> Vec<Captured> {
    let mut frames = Vec::new();
    for hour in 0..72 {
        let (at, port) = (hour * HOUR_US + 10 * MINUTE_US, 2000 + hour as u16);
        frames.push(packet(at, [1, 9], [port, 53], 40));
        frames.push(packet(at + 1000, [9, 1], [53, port], 400 + hour as usize));
    }
    for minute in 0..180 {
        let at = 46 * HOUR_US + (30 + minute) * MINUTE_US + 1;
        frames.push(packet(at, [2, 8], [5060, 5060], 100));
        frames.push(packet(at + 1000, [8, 2], [5060, 5060], 60));
    }
    frames.sort_by_key(|(frame, _)| frame.time_us);
    frames
}

struct Kept {
    dir: TempDir,
}

impl Kept {
    fn new() -> Kept {
        Kept { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("history")
    }

    fn set(&self) -> String {
        format!("history.path={}", self.path().display())
    }

    /// A replay into the history.
    fn replay(&self, frames: &[Captured], sets: &[&str]) -> Finished {
        let file = self.dir.path().join("frames.pcap");
        fs::write(&file, capture(CaptureFormat::Pcap { nanosecond: true }, frames)).unwrap();
        let mut command = common::fenxi(["replay", "--json"]);
        command.arg(file).args(SIMULATED).args(["--set", "flow.max_flows=4096"]);
        command.args(["--set", &self.set()]).args(sets.iter().flat_map(|set| ["--set", set]));
        common::run(command)
    }

    fn report(&self, args: &[&str]) -> Finished {
        let mut command = common::fenxi(["report", "--set", &self.set()]);
        command.args(args).env("TZ", "UTC");
        common::run(command)
    }

    /// The report of the first week of the year.
    fn json(&self, args: &[&str]) -> Value {
        let week = ["--since", "2026-01-01", "--until", "2026-01-08", "--json"];
        self.report(&[&week[..], args].concat()).expect_code(0).json()
    }
}

/// Rows by their key: flows, packets and bytes up and down.
fn rows(report: &Value) -> BTreeMap<String, [u64; 5]> {
    let names = ["flows", "packets_up", "packets_down", "bytes_up", "bytes_down"];
    let rows = report["rows"].as_array().unwrap().iter();
    let row = |row: &Value| {
        let key = row["key"].as_str().unwrap_or("(no label)").to_owned();
        (key, names.map(|name| row[name].as_u64().unwrap()))
    };
    rows.map(row).collect()
}

/// What the frames themselves say, by a key that is made of their time, host and service.
fn expected(
    frames: &[Captured],
    key: impl Fn(i64, u8, u16) -> String,
) -> BTreeMap<String, [u64; 5]> {
    let mut sums: BTreeMap<String, [u64; 5]> = BTreeMap::new();
    for (frame, bytes) in frames {
        let (from, to) = (bytes[14 + 15], bytes[14 + 19]);
        let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let is_up = from < to;
        let (host, server_port) = if is_up { (from, port(36)) } else { (to, port(34)) };
        let sum = sums.entry(key(frame.time_us, host, server_port)).or_default();
        let way = usize::from(!is_up);
        sum[1 + way] += 1;
        sum[3 + way] += bytes.len() as u64 - 14;
    }
    sums
}

/// Flows that go on are recorded each minute, so that each packet counts in its own hour.
const EACH_MINUTE: [&str; 2] = ["flow.active_timeout_s=60", "flow.idle_timeout_s=100"];

#[test]
fn each_packet_counts_in_its_hour_and_reports_say_so() {
    let (kept, frames) = (Kept::new(), three_days());
    kept.replay(&frames, &EACH_MINUTE).expect_code(0);
    let without_flows = |mut found: BTreeMap<String, [u64; 5]>| {
        found.values_mut().for_each(|row| row[0] = 0);
        found
    };
    let hours = kept.json(&["--by", "hour", "--top", "100"]);
    let hour = |time_us: i64, _, _| {
        let hours = time_us / HOUR_US - 1_767_225_600_000_000 / HOUR_US;
        format!("2026-01-{:02} {:02}:00 +00:00", 1 + hours / 24, hours % 24)
    };
    assert_eq!(without_flows(rows(&hours)), expected(&frames, hour));
    let keys: Vec<_> = hours["rows"].as_array().unwrap().iter().map(|row| &row["key"]).collect();
    assert!(keys.is_sorted_by_key(|key| key.as_str().unwrap()), "hours come in their order");
    let hosts = kept.json(&["--by", "host"]);
    let host = |_, host, _| format!("10.0.0.{host}");
    assert_eq!(without_flows(rows(&hosts)), expected(&frames, host));
    assert_eq!(rows(&hosts)["10.0.0.1"][0], 72);
    assert_eq!(rows(&hosts)["10.0.0.2"][0], 1, "a flow of three hours is one flow");
    let services = kept.json(&["--by", "service"]);
    let service = |_, _, port| format!("{port}/udp");
    assert_eq!(without_flows(rows(&services)), expected(&frames, service));
    let labels = kept.json(&[]);
    assert_eq!(labels["total"], hosts["total"]);
    assert_eq!(labels["total"]["flows"], 73);

    // The second day alone, of one host; the same by a run that adds as much.
    let day = ["--since", "2026-01-02", "--until", "2026-01-03", "--json", "--by", "host"];
    let of_day = |more: &[&str]| kept.report(&[&day[..], more].concat()).expect_code(0).json();
    assert_eq!(rows(&of_day(&["--filter", "host=10.0.0.1"]))["10.0.0.1"][..3], [24, 24, 24]);
    assert_eq!(rows(&of_day(&["--filter", "service=5060/udp"]))["10.0.0.2"][1], 90);
    let both = ["--filter", "host=10.0.0.1", "--filter", "service=5060/udp"];
    assert!(rows(&of_day(&both)).is_empty());
    kept.replay(&frames, &EACH_MINUTE).expect_code(0);
    assert_eq!(kept.json(&[])["total"]["flows"], 146);

    let text = kept.report(&["--since", "2026-01-01", "--until", "2026-01-08", "--by", "host"]);
    let text = text.expect_code(0).stdout;
    let lines: Vec<&str> = text.lines().collect();
    let title = "2026-01-01 00:00 +00:00 to 2026-01-08 00:00 +00:00, by host, sorted by bytes";
    assert_eq!((lines[0], lines.len()), (title, 6), "{text}");
    let starts = ["HOST ", "10.0.0.2 ", "10.0.0.1 ", "total "];
    assert!(lines[2..].iter().zip(starts).all(|(line, start)| line.starts_with(start)), "{text}");
    assert!(lines[5].ends_with(" 100.0 %"), "{text}");
    let one = kept.json(&["--by", "host", "--sort", "up", "--top", "1"]);
    assert_eq!((one["more"].as_u64(), rows(&one).len()), (Some(1), 1));
    let today = kept.report(&[]).expect_code(0).stdout;
    assert!(today.contains("No such traffic in this time. The history begins at 2026-01-01"));
}

#[test]
fn what_has_no_report_is_refused_by_one_line() {
    let kept = Kept::new();
    for (args, code, says) in [
        (&["--since", "soon"][..], 64, "since: \"soon\" is no time; write now, today, yesterday"),
        (&["--by", "colour"], 64, "label, host, service, hour"),
        (&["--filter", "colour=red"], 64, "expected label=VALUE, host=VALUE or service=VALUE"),
        (&["--since", "today", "--until", "yesterday"], 64, "is not after since \"today\""),
        (&[], 66, "cannot be read: No such file or directory (os error 2); `fenxi run` makes it"),
        (&["--set", "history.path="], 78, "history.path is empty: no history is kept; set it"),
    ] {
        let said = kept.report(args).expect_code(code).stderr;
        assert!(said.contains(says) && said.starts_with("fenxi: "), "{said}");
    }
    assert!(!kept.path().exists());
    // A live run's configuration does not make a replay write its history.
    let file = kept.dir.path().join("fenxi.toml");
    fs::write(&file, format!("[history]\npath = {:?}\n", kept.path())).unwrap();
    let mut command = common::fenxi(["replay", "--config"]);
    command.arg(&file).arg(common::demo()).args(SIMULATED);
    common::run(command).expect_code(0);
    assert!(!kept.path().exists());
    // Somebody else's file stays as it is.
    fs::write(kept.path(), "{}\n").unwrap();
    let refused = kept.replay(&three_days(), &[]).expect_code(78).stderr;
    assert!(refused.contains("it is not a history of fenxi; name another file"), "{refused}");
    assert_eq!(fs::read(kept.path()).unwrap(), b"{}\n");
    let refused = kept.replay(&three_days(), &["history.path=/nowhere/history"]).expect_code(73);
    assert!(refused.stderr.contains("/nowhere/history: cannot be created"), "{}", refused.stderr);
    let capture = kept.dir.path().join("frames.pcap");
    let same = format!("history.path={}", capture.display());
    let refused = kept.replay(&three_days(), &[&same]).expect_code(64).stderr;
    assert!(refused.contains("this is one of the captures to replay"), "{refused}");
}

#[test]
fn the_file_keeps_to_its_size_and_age() {
    let kept = Kept::new();
    let frames: Vec<Captured> = (0..150 * 250)
        .map(|at: i64| {
            let hosts = [1 + (at % 250) as u8, 251];
            packet(at / 250 * HOUR_US + at % 250 * 1000, hosts, [4000, 53], 40)
        })
        .collect();
    kept.replay(&frames, &["history.max_mib=1"]).expect_code(0);
    let size = fs::metadata(kept.path()).unwrap().len();
    assert!((1 << 19..=1 << 20).contains(&size), "{size}");
    let hours = kept.json(&["--by", "hour", "--top", "1000"]);
    let hours = rows(&hours);
    let newest = hours.keys().next_back().unwrap();
    assert!(hours.len() < 150 && hours.len() > 20, "{}", hours.len());
    assert_eq!(newest, "2026-01-07 05:00 +00:00");
    kept.replay(&frames, &["history.max_days=1"]).expect_code(0);
    assert_eq!(rows(&kept.json(&["--by", "hour", "--top", "1000"])).len(), 25);
}

#[test]
fn the_page_has_the_same_figures_and_works_by_links() {
    let (kept, frames) = (Kept::new(), three_days());
    kept.replay(&frames, &EACH_MINUTE).expect_code(0);
    let http = kept.dir.path().join("http");
    let set = [kept.set(), format!("control.http=unix:{}", http.display())];
    let mut command = common::fenxi(["replay", "--json", "--control", "--hold"]);
    command.arg(common::demo()).args(SIMULATED).env("TZ", "UTC");
    command.args(["--set", &set[0], "--set", &set[1], "--set"]);
    command.arg(format!("control.socket={}", kept.dir.path().join("ctl").display()));
    let served = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    let served = Ended(served);
    let week = "since=2026-01-01&amp;until=2026-01-08";
    let page = get(&http, &format!("/history?{}&by=host", week.replace("&amp;", "&")));
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    let hosts = kept.json(&["--by", "host"]);
    let total = hosts["total"]["bytes_up"].as_u64().unwrap();
    assert!(page.contains(&format!("{:.1} kB", total as f64 / 1e3)), "{total}: {page}");
    // The link of a host leads to its labels.
    let link = format!("/history?{week}&amp;by=label&amp;sort=bytes&amp;top=20&amp;host=10.0.0.2");
    assert!(page.contains(&format!("<a href=\"{link}\">10.0.0.2</a>")), "{page}");
    let of_host = get(&http, &link.replace("&amp;", "&"));
    assert!(of_host.contains("Only host <b>10.0.0.2</b>: <a href="), "{of_host}");
    assert!(!of_host.contains("<script"), "it needs none");
    let wrong = get(&http, "/history?by=colour");
    assert!(wrong.contains("by: &quot;colour&quot; is not known here"), "{wrong}");
    assert!(get(&http, "/").contains("href=\"/history\""));
    drop(served);
    assert_eq!(kept.json(&["--by", "host"]), hosts, "the page has changed nothing");
}

/// A program that is killed when this is dropped.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What comes back for a path, once somebody listens.
fn get(socket: &Path, path: &str) -> String {
    use std::io::{Read, Write};
    let began = std::time::Instant::now();
    let mut stream = loop {
        match std::os::unix::net::UnixStream::connect(socket) {
            Ok(stream) => break stream,
            Err(error) => assert!(began.elapsed().as_secs() < 60, "{error}"),
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A run that keeps its history.
fn start(lab: &Lab, kept: &Kept) -> Live {
    let set = kept.set();
    let keys = [
        "io.interfaces=[\"b\"]",
        "flow.idle_timeout_s=1",
        "accel.devices=[\"simulated\"]",
        "history.every_s=1",
        &set,
    ];
    let args: Vec<&str> = keys.into_iter().flat_map(|key| ["--set", key]).collect();
    Live::start(lab, "host", &args)
}

/// `count` flows of one packet each, by way of a file.
fn send(lab: &Lab, file: &Path, count: u16) {
    let packet = |port| ethernet(0x0800, &ipv4([1, 2], 17, &udp([1000 + port, 53], 40)));
    fs::write(file, whole((0..count).map(packet))).unwrap();
    lab.on("host", || {
        let mut reader = CaptureReader::open(file).unwrap();
        let mut out = packetio::open_tx(<&Backend>::default(), "a").unwrap();
        while let Received::Burst(burst) = reader.receive(32).unwrap() {
            out.send(&burst, Selection::All).unwrap();
        }
        assert_eq!(out.counts().unsent(), 0);
    });
}

fn written(live: &Live) -> f64 {
    live.samples_with("fenxi_history_records_total", "outcome=\"written\"").iter().sum()
}

fn wait_for_written(live: &Live, records: f64) {
    live.wait_for("the flows are in the history", |live| written(live) == records);
}

fn total(kept: &Kept) -> [u64; 2] {
    let report = kept.report(&["--json"]).expect_code(0).json();
    ["flows", "bytes_up"].map(|name| report["total"][name].as_u64().unwrap())
}

#[test]
fn what_was_written_survives_kill_9_and_a_second_instance_is_refused() {
    let Some(lab) = Lab::new("history", &["host"], &[]) else { return };
    lab.wire_within("host", "a", "b");
    let kept = Kept::new();
    let file = kept.dir.path().join("sent.pcap");
    let live = start(&lab, &kept);
    send(&lab, &file, 20);
    wait_for_written(&live, 20.0);
    assert_eq!(total(&kept), [20, 20 * (HEADERS + 40)], "while it runs");
    let mut second = fenxi_on(&lab, "host", &[]);
    second.args(["run", "--set", "io.interfaces=[\"a\"]", "--set", "control.http=", "--set"]);
    second.args(["control.socket=", "--set", &kept.set()]).args(SIMULATED);
    let said = common::run(second).expect_code(69).stderr;
    let line = format!("another instance of fenxi writes {}", kept.path().display());
    assert_eq!(said.matches(&line).count(), 1, "{said}");
    live.kill();
    assert_eq!(total(&kept)[0], 20);
    let live = start(&lab, &kept);
    send(&lab, &file, 7);
    live.wait_for_packets(7);
    live.terminate(0);
    assert_eq!(total(&kept)[0], 27, "the end of a run writes what is left");
    let mut left: Vec<_> =
        fs::read_dir(kept.dir.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["history", "history.lock", "sent.pcap"]);
}

#[test]
fn a_damaged_file_is_moved_aside_and_told_once() {
    let Some(lab) = Lab::new("history-damaged", &["host"], &[]) else { return };
    lab.wire_within("host", "a", "b");
    let (kept, frames) = (Kept::new(), three_days());
    // The first 16 bytes say that it is SQLite's.
    for (begin, end) in [(16, 100), (8192, 16384)] {
        kept.replay(&frames, &EACH_MINUTE).expect_code(0);
        let mut bytes = fs::read(kept.path()).unwrap();
        bytes[begin..end].fill(0x5a);
        fs::write(kept.path(), &bytes).unwrap();
        let refused = kept.replay(&frames, &EACH_MINUTE).expect_code(65).stderr;
        assert!(refused.contains("is damaged; move it away to begin anew"), "{refused}");
        assert_eq!(fs::read(kept.path()).unwrap(), bytes);
        let live = start(&lab, &kept);
        let aside = kept.dir.path().join("history.damaged");
        let line = format!("is damaged; it is {} now, and the history", aside.display());
        live.wait_for("it is told", |live| live.said(&line) == 1);
        live.terminate(0);
        assert_eq!(fs::read(aside).unwrap(), bytes);
        assert_eq!(kept.json(&[])["total"]["flows"], 0);
    }
}

/// A file system of 1 MiB, as long as it lives.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: PathBuf) -> Option<SmallDisk> {
        fs::create_dir(&at).unwrap();
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(&at).status();
        mounted.is_ok_and(|status| status.success()).then_some(SmallDisk(at))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_is_told_once_and_costs_nothing_once_there_is_room() {
    let Some(lab) = Lab::new("history-full", &["host"], &["mount"]) else { return };
    lab.wire_within("host", "a", "b");
    let outer = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(outer.path().join("disk")) else {
        return skip("a_full_disk_is_told_once_and_costs_nothing", "the right to mount");
    };
    let kept = Kept { dir: tempfile::tempdir_in(&disk.0).unwrap() };
    let filling = disk.0.join("filling");
    let failed = |live: &Live| -> f64 {
        live.samples_with("fenxi_history_writes_total", "outcome=\"failed\"").iter().sum()
    };
    let fill = || assert!(fs::write(&filling, vec![1; 2 << 20]).is_err(), "it is full");
    fill();
    let live = start(&lab, &kept);
    // Full since before it started, and full later.
    for round in 1..=2 {
        fill();
        let before = failed(&live);
        send(&lab, &outer.path().join("sent.pcap"), 30);
        live.wait_for("two more attempts", |live| failed(live) >= before + 2.0);
        assert_eq!(live.said("cannot be written: "), round);
        fs::remove_file(&filling).unwrap();
        wait_for_written(&live, 30.0 * round as f64);
        assert_eq!(live.said("is written again"), round);
        assert_eq!(total(&kept)[0], 30 * round as u64);
    }
    live.terminate(0);
}
