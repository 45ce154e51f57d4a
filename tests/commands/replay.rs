//! What `replay` takes and what its options do.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use packetio::{CaptureFormat, Frame};

use crate::common::packets::{
    Captured, ETHERNET, capture, conversation, ethernet, ipv4, pcap, read_capture, udp,
};
use crate::common::{
    Finished, SIMULATED, demo, demo_packets, fenxi, fenxi_asking_once, json_lines, run, sum,
};

/// The summary of a replay on the simulated device.
fn replayed<S: AsRef<OsStr>>(args: &[S]) -> Value {
    let mut command = fenxi_asking_once(["replay", "--json"]);
    command.args(args).args(SIMULATED);
    run(command).expect_code(0).json()
}

fn replayed_stdin(input: File) -> Value {
    let mut command = fenxi_asking_once(["replay", "--json", "-"]);
    command.args(SIMULATED).stdin(Stdio::from(input));
    Finished::from_output(command.output().unwrap()).expect_code(0).json()
}

/// The summary without what differs from run to run.
fn lasting(summary: &Value) -> Value {
    let mut summary = summary.clone();
    let fields = summary.as_object_mut().unwrap();
    for timing in [
        "wall_s",
        "packets_per_s",
        "bits_per_s",
        "time_to_label_ms",
        "batches",
        "table",
        "devices",
        "phases_ms",
    ] {
        fields.remove(timing).unwrap();
    }
    summary
}

#[track_caller]
fn assert_balanced(summary: &Value) {
    let series = &summary["series"];
    let count = |name: &str| series[name].as_u64().unwrap();
    assert_eq!(sum(&summary["verdicts"]), summary["packets"].as_u64().unwrap());
    assert_eq!(sum(&summary["flows"]["ended"]), summary["flows"]["begun"].as_u64().unwrap());
    assert_eq!(
        count("emitted"),
        count("cached") + count("inferred") + count("shed") + count("failed")
    );
}

/// A new flow every 10 ms; the times of some packets are changed.
fn many_flows(count: u16, time_us: impl Fn(u16, i64) -> i64) -> Vec<u8> {
    let packet = |number: u16| -> Captured {
        let bytes = ethernet(0x0800, &ipv4([1, 2], 17, &udp([number, 53], 40)));
        let frame = Frame {
            captured: bytes.len() as u32,
            wire: bytes.len() as u32,
            time_us: time_us(number, 1_767_225_600_000_000 + 10_000 * i64::from(number)),
            link: ETHERNET,
            ..Frame::default()
        };
        (frame, bytes)
    };
    let frames: Vec<Captured> = (0..count).map(packet).collect();
    capture(CaptureFormat::Pcap { nanosecond: false }, &frames)
}

/// One packet of the year 2100 in the midst, or a clock that was a day ahead for a while: flows
/// that came before and after end all the same, the table does not fill up, and it is counted.
/// However the packets are cut into bursts.
#[test]
fn a_clock_that_steps_back_fills_no_table() {
    const DAY_US: i64 = 86_400_000_000;
    const YEAR_2100_US: i64 = 4_102_444_800_000_000;
    let dir = tempfile::tempdir().unwrap();
    let of_2100 = |number, time_us| match number {
        5000 => YEAR_2100_US,
        _ => time_us,
    };
    let a_day_ahead = |number, time_us| match number {
        5000..7000 => time_us + DAY_US,
        _ => time_us,
    };
    for (name, file) in
        [("2100", many_flows(20_001, of_2100)), ("ahead", many_flows(20_001, a_day_ahead))]
    {
        let capture = dir.path().join(name);
        fs::write(&capture, file).unwrap();
        let replay = |burst: &str| {
            let records = dir.path().join("records");
            let summary = replayed(&[
                capture.as_os_str(),
                "--flows".as_ref(),
                records.as_os_str(),
                "--set".as_ref(),
                "flow.max_flows=4096".as_ref(),
                "--set".as_ref(),
                "flow.idle_timeout_s=10".as_ref(),
                "--set".as_ref(),
                format!("io.burst={burst}").as_ref(),
            ]);
            assert_balanced(&summary);
            (lasting(&summary), fs::read(records).unwrap())
        };
        let (summary, records) = replay("1");
        assert_eq!(summary["verdicts"]["table_full"], 0, "{name}");
        assert_eq!(summary["flows"]["begun"], 20_001, "{name}");
        assert_eq!(summary["clock_steps"], 1, "{name}");
        for burst in ["32", "128"] {
            assert!(
                replay(burst) == (summary.clone(), records.clone()),
                "{name}: bursts of {burst}"
            );
        }
    }
}

#[test]
fn the_summary_names_the_device_and_counts_labels() {
    let mut command = fenxi(["replay", "--json"]);
    command.arg(demo());
    let summary = run(command).expect_code(0).json();
    assert_balanced(&summary);
    let device = &summary["devices"][0];
    assert_eq!(device["requested"], "native");
    assert!(device["effective"].as_str().unwrap().starts_with("native ("), "{device}");
    let wire = read_capture(&demo()).iter().map(|(frame, _)| u64::from(frame.wire)).sum::<u64>();
    assert_eq!((&summary["packets"], &summary["bytes"]), (&demo_packets().into(), &wire.into()));
    let labelled = sum(&summary["labels"]);
    // A flow may be asked about several times, and one that ends before an answer is sure may get
    // its label from its port.
    let decided = &summary["decided"];
    let by_depth = decided["by_depth"].as_array().unwrap().iter();
    let by_depth: u64 = by_depth.map(|count| count.as_u64().unwrap()).sum();
    let named = |by: &str| decided[by].as_u64().unwrap();
    assert_eq!(by_depth + named("by_port") + named("unsure") + named("by_rule"), labelled);
    assert!(summary["series"]["inferred"].as_u64().unwrap() > by_depth);
    let share = labelled as f64 / summary["flows"]["begun"].as_f64().unwrap();
    assert!((summary["coverage"]["flows"].as_f64().unwrap() - share).abs() < 1e-9);
}

#[test]
fn captures_come_from_files_pipes_and_gzip() {
    let dir = tempfile::tempdir().unwrap();
    let packed = dir.path().join("office.gz");
    let mut encoder =
        flate2::write::GzEncoder::new(File::create(&packed).unwrap(), flate2::Compression::fast());
    encoder.write_all(&fs::read(demo()).unwrap()).unwrap();
    encoder.finish().unwrap();
    let plain = lasting(&replayed(&[demo()]));
    assert_balanced(&plain);
    assert_eq!(lasting(&replayed(&[&packed])), plain);
    assert_eq!(lasting(&replayed_stdin(File::open(demo()).unwrap())), plain);
    assert_eq!(lasting(&replayed_stdin(File::open(&packed).unwrap())), plain);
}

/// A capture of one conversation.
fn made(dir: &Path, name: &str, port: u16, packets: usize) -> String {
    let path = dir.join(name);
    fs::write(&path, pcap(conversation(port % 2 == 1, port, packets))).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn several_captures_are_one_after_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) =
        (made(dir.path(), "first.pcap", 4000, 15), made(dir.path(), "second.pcap", 4001, 12));
    let records = dir.path().join("flows.jsonl");
    let summary = replayed(&[&first, &second, "--flows", records.to_str().unwrap()]);
    assert_balanced(&summary);
    assert_eq!((&summary["packets"], &summary["flows"]["begun"]), (&27.into(), &2.into()));
    // The same conversation in both files is one flow.
    assert_eq!(replayed(&[&first, &first])["flows"]["begun"], 1);
    let flows: Vec<_> =
        json_lines(&records).into_iter().filter(|record| record["type"] == "flow").collect();
    let ports: Vec<_> = flows.iter().map(|flow| flow["src_port"].clone()).collect();
    assert_eq!(ports, [4000, 4001]);
}

#[test]
fn loops_repeat_the_captures_and_flows_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = made(dir.path(), "one.pcap", 4000, 6);
    // Six packets do not make a series; twice six do, as time goes on without a gap.
    let once = replayed(&[&path]);
    assert_eq!(
        (&once["series"]["emitted"], &once["coverage"]["ended_before_k"]),
        (&0.into(), &1.0.into())
    );
    let thrice = replayed(&[&path, "--loop", "3"]);
    assert_balanced(&thrice);
    assert_eq!(
        (&thrice["packets"], &thrice["flows"]["begun"], &thrice["series"]["emitted"]),
        (&18.into(), &1.into(), &1.into())
    );

    let (once, thrice) =
        (replayed(&[demo()]), replayed(&[demo().as_os_str(), "--loop".as_ref(), "3".as_ref()]));
    assert_balanced(&thrice);
    for count in ["packets", "bytes"] {
        assert_eq!(thrice[count].as_u64().unwrap(), 3 * once[count].as_u64().unwrap());
    }
    // Connections that end by FIN begin anew in each pass.
    let begun = |summary: &Value| summary["flows"]["begun"].as_u64().unwrap();
    assert!(begun(&thrice) <= 3 * begun(&once), "{thrice}");
    let ended_by_fin = |summary: &Value| summary["flows"]["ended"]["fin"].as_u64().unwrap();
    assert!(ended_by_fin(&thrice) >= 3 * ended_by_fin(&once), "{thrice}");
}

#[test]
fn faults_are_seeded_and_keep_the_balance() {
    let damaged = |faults: &str| {
        lasting(&replayed(&[demo().as_os_str(), "--faults".as_ref(), faults.as_ref()]))
    };
    let faults = "loss=0.1,truncate=0.2,corrupt=0.3,seed=7";
    let summary = damaged(faults);
    assert_balanced(&summary);
    assert_eq!(damaged(faults), summary);
    let left = summary["packets"].as_f64().unwrap() / demo_packets() as f64;
    assert!((0.85..0.95).contains(&left), "a tenth is lost: {left}");
    let short: u64 = ["link_short", "ip_short", "l4_short"]
        .iter()
        .map(|name| summary["verdicts"][name].as_u64().unwrap())
        .sum();
    assert!(short > 50, "{summary}");
    assert_ne!(damaged("loss=0.1,truncate=0.2,corrupt=0.3,seed=8"), summary);
    assert_eq!(damaged("loss=0"), lasting(&replayed(&[demo()])));
    let nothing = damaged("loss=1");
    assert_eq!((&nothing["packets"], &nothing["flows"]["begun"]), (&0.into(), &0.into()));
}

#[test]
fn a_replay_may_be_paced() {
    let dir = tempfile::tempdir().unwrap();
    let path = made(dir.path(), "one.pcap", 4000, 30);
    for speed in ["real", "2.5x", "1000x"] {
        let records = dir.path().join("flows.jsonl");
        let summary =
            replayed(&[&path, "--speed", speed, "--flows", records.to_str().unwrap(), "--series"]);
        assert_balanced(&summary);
        assert_eq!((&summary["packets"], &summary["series"]["emitted"]), (&30.into(), &1.into()));
        let flow = json_lines(&records).pop().unwrap();
        assert_eq!((&flow["type"], &flow["series"][1]), (&"flow".into(), &(-37).into()));
    }
}

#[test]
fn a_summary_for_people_is_on_standard_error() {
    let mut command = fenxi(["replay"]);
    command.arg(demo()).args(SIMULATED);
    let finished = run(command).expect_code(0);
    assert_eq!(finished.stdout, "");
    let heads: Vec<_> =
        finished.stderr.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(
        heads,
        [
            "packets", "verdicts", "flows", "series", "labels", "decided", "labelled", "device",
            "times"
        ]
    );
}

#[test]
fn the_summary_says_how_often_the_cache_hit_and_erred() {
    let mut command = fenxi(["replay"]);
    command.arg(demo()).args(SIMULATED);
    // A prefix of one packet says little, so that audits differ.
    command.args(["--loop", "20", "--set", "cache.prefix=1"]);
    command.args(["--set", "cache.audit=1.0"]);
    let text = run(command).expect_code(0).stderr;
    let line = text.lines().find(|line| line.starts_with("cache "));
    let line = line.expect("a line about the cache");
    let percents: Vec<f64> = line
        .split(' ')
        .zip(line.split(' ').skip(1))
        .filter(|(_, unit)| *unit == "%")
        .map(|(number, _)| number.parse().expect("a number"))
        .collect();
    assert!(matches!(percents[..], [hit, wrong] if hit > 0.0 && wrong > 0.0), "{line}");
}

/// A service has its socket for itself, and what it learns from is not a capture.
#[test]
fn the_socket_of_samples_is_not_taken_from_a_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let [config, socket] = ["fenxi.toml", "learn.sock"].map(|name| dir.path().join(name));
    fs::write(&config, format!("[learn]\nsocket = \"{}\"\n", socket.display())).unwrap();
    let _service = UnixListener::bind(&socket).unwrap();
    replayed(&["--config".as_ref(), config.as_path(), &demo()]);
    let named = format!("learn.socket={}", socket.display());
    let mut command = fenxi_asking_once(["replay", "--set", &named]);
    command.arg(demo()).args(SIMULATED);
    run(command).expect_code(69);
}
