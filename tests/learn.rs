//! Samples of flows on `learn.socket`, as a program that tunes models gets them. What they say is
//! held against the records of the same flows.

use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::common;
use crate::common::lab::Lab;
use crate::common::live::{Live, generate_on};

const PATIENCE: Duration = Duration::from_secs(60);

/// A bundle of bands of the bytes to come, asked after three packets with payload. In truth it
/// names protocols: it has twelve labels.
fn bundle(dir: &Path) -> PathBuf {
    let bundle = dir.join("volume");
    let from = common::root().join("tests/bundles/data-k3");
    common::copy_bundle(&from, &bundle);
    let mut manifest = fs::read_to_string(from.join("model.toml")).unwrap();
    let edges = [1, 100, 200, 400, 700, 1_000, 2_000, 4_000, 10_000, 20_000, 50_000];
    manifest += &format!("\n[target]\nof = \"volume\"\nedges = {edges:?}\n");
    fs::write(bundle.join("model.toml"), manifest).unwrap();
    bundle
}

/// Connects as soon as somebody listens.
fn connect(socket: &Path) -> UnixStream {
    let began = Instant::now();
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return stream,
            Err(error) => assert!(began.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The next frame; `None` at the end.
fn frame(stream: &mut UnixStream) -> Option<Value> {
    let mut length = [0; 4];
    match stream.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return None,
        read => read.unwrap(),
    }
    let length = u32::from_le_bytes(length) as usize;
    assert!(length <= 1 << 20, "{length}");
    let mut text = vec![0; length];
    stream.read_exact(&mut text).unwrap();
    let frame: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(frame["version"], 1);
    assert!(frame["time_us"].as_i64() > Some(1_700_000_000_000_000));
    Some(frame)
}

/// Reads to the end.
fn read(stream: UnixStream) -> JoinHandle<Vec<Value>> {
    read_noting(stream, &Arc::default())
}

fn is_empty(frame: &Value) -> bool {
    frame["samples"].as_array().unwrap().is_empty()
}

/// Reads to the end; notes the time of the last frame that had no samples.
fn read_noting(mut stream: UnixStream, emptied_us: &Arc<AtomicI64>) -> JoinHandle<Vec<Value>> {
    let emptied_us = emptied_us.clone();
    std::thread::spawn(move || {
        let frames = std::iter::from_fn(|| frame(&mut stream));
        let noted = frames.inspect(|frame| {
            if is_empty(frame) {
                emptied_us.store(frame["time_us"].as_i64().unwrap(), Ordering::Relaxed);
            }
        });
        noted.collect()
    })
}

fn samples(frames: &[Value]) -> impl Iterator<Item = &Value> {
    frames.iter().flat_map(|frame| frame["samples"].as_array().unwrap())
}

/// Replays a capture of the demo, once a reader is there; what that one read, and the records.
fn replay(dir: &Path, share: f64) -> (Vec<Value>, Vec<Value>) {
    let (socket, records) = (dir.join("learn.sock"), dir.join("flows.jsonl"));
    let mut command = common::fenxi(["replay", "--json", "--series", "--model"]);
    command.arg(bundle(dir)).arg("--flows").arg(&records).arg("-");
    let keys = [
        format!("learn.socket={}", socket.display()),
        format!("learn.share={share}"),
        "learn.every_ms=100".to_owned(),
        "flow.max_flows=16384".to_owned(),
        "pipeline.layout=1:0:0".to_owned(),
    ];
    command.args(keys.iter().flat_map(|key| ["--set", key]));
    let mut fenxi = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = fenxi.stdin.take().unwrap();
    let capture = fs::read(common::demo()).unwrap();
    // It opens the socket once it knows what it reads; no flow is over by then.
    let (header, others) = capture.split_at(1024);
    stdin.write_all(header).unwrap();
    let mut stream = connect(&socket);
    assert!(is_empty(&frame(&mut stream).unwrap()));
    let reading = read(stream);
    stdin.write_all(others).unwrap();
    drop(stdin);
    assert!(fenxi.wait_with_output().unwrap().status.success());
    assert!(!socket.exists());
    (reading.join().unwrap(), common::json_lines(&records))
}

fn time_us(record: &Value) -> i64 {
    record["first"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap().as_microsecond()
}

#[test]
fn samples_say_what_the_records_of_their_flows_say() {
    let dir = tempfile::tempdir().unwrap();
    let (frames, records) = replay(dir.path(), 1.0);
    let ended: Vec<&Value> = records.iter().filter(|it| it["final"] == true).collect();
    let has_asked = |flow: &&&Value| flow["series"].as_array().unwrap().len() >= 3;
    let asked = ended.iter().filter(has_asked).count();
    let mut truths = 0;
    for sample in samples(&frames) {
        let lengths: Vec<&Value> =
            sample["elements"].as_array().unwrap().iter().map(|it| &it[0]).collect();
        let is_it = |flow: &&&Value| {
            let series = flow["series"].as_array().unwrap();
            time_us(flow) == sample["began_us"].as_i64().unwrap()
                && series.iter().take(3).eq(lengths.iter().copied())
        };
        let flow = ended.iter().find(is_it).unwrap_or_else(|| panic!("no flow of {sample}"));
        assert_eq!((&sample["task"], &sample["depth"]), (&"default".into(), &3.into()));
        assert_eq!((&sample["proto"], &sample["server_port"]), (&flow["proto"], &flow["dst_port"]));
        assert_eq!(sample["labels"].as_array().map(Vec::len), Some(12));
        assert_eq!(sample["output"]["label"], flow["label"]);
        assert_eq!(sample["output"]["confidence"], flow["confidence"]);
        assert_eq!(sample["output"]["generation"], flow["model_generation"]);
        assert_eq!(sample["weight"], 1.0);
        let is_cut = ["drain", "evicted"].map(Value::from).contains(&flow["end_reason"]);
        assert_eq!(sample["truth"].is_null(), is_cut, "{sample} {flow}");
        if !is_cut {
            let bytes = |of: &Value| of.as_u64().unwrap();
            let (so_far, to_come) =
                (bytes(&sample["so_far"]["bytes"]), bytes(&sample["truth"]["bytes_to_come"]));
            assert_eq!(so_far + to_come, bytes(&flow["bytes_fwd"]) + bytes(&flow["bytes_rev"]));
            if !flow["true_label"].is_null() {
                assert_eq!(sample["truth"]["label"], flow["true_label"]);
                truths += 1;
            }
        }
    }
    // A quarter of the flows is held out.
    let sampled = samples(&frames).count();
    assert!(sampled > asked * 6 / 10 && sampled < asked * 9 / 10, "{sampled} of {asked}");
    assert!(truths > 50 && frames.iter().all(|frame| frame["dropped"] == 0), "{truths}");
    // The same flows again; of a share, some of them.
    let sorted = |frames: &[Value]| {
        let mut all: Vec<String> = samples(frames).map(Value::to_string).collect();
        all.sort();
        all
    };
    assert_eq!(sorted(&replay(dir.path(), 1.0).0), sorted(&frames));
    let all = sorted(&frames);
    let share = sorted(&replay(dir.path(), 0.5).0);
    assert!(share.iter().all(|sample| all.contains(sample)));
    assert!(share.len() > sampled / 3 && share.len() < sampled * 2 / 3, "{}", share.len());
}

fn count(live: &Live, metric: &str, label: &str) -> f64 {
    live.samples_with(metric, label).iter().sum()
}

fn readers(live: &Live, number: f64) {
    let is_so = |live: &Live| live.metric_sum("fenxi_learn_readers") == number;
    live.wait_for("readers", is_so);
}

/// So slowly that the queue of samples, up to five a flow, holds more than a second of them.
fn generate(lab: &Lab, flows: u32) {
    let mut command = generate_on(lab, "host");
    command.args(["--interface", "a", "--json", "--flows-per-s", "600", "--pps", "20000"]);
    command.args(["--flows", &flows.to_string()]);
    common::run(command).expect_code(0);
}

/// A run that samples all flows and gives frames as often as it can.
fn start(lab: &Lab, socket: &Path) -> Live {
    start_with(lab, socket, &common::shipped_bundle())
}

fn start_with(lab: &Lab, socket: &Path, model: &Path) -> Live {
    let keys = [
        "io.interfaces=[\"b\"]".to_owned(),
        format!("model.path={}", model.display()),
        "flow.idle_timeout_s=1".to_owned(),
        "flow.closed_timeout_s=1".to_owned(),
        "analytics.timeout_ms=1".to_owned(),
        common::SIMULATED[1].to_owned(),
        format!("learn.socket={}", socket.display()),
        "learn.share=1".to_owned(),
        "learn.every_ms=100".to_owned(),
    ];
    let args: Vec<&str> = keys.iter().flat_map(|key| ["--set", key]).collect();
    Live::start(lab, "host", &args)
}

#[test]
fn a_reader_that_hangs_loses_frames_and_others_and_fenxi_go_on() {
    let Some(lab) = Lab::new("learn", &["host"], &[]) else { return };
    lab.wire_within("host", "a", "b");
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("learn.sock");
    let live = start(&lab, &socket);
    let mode = fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let emptied_us = [(); 2].map(|()| Arc::<AtomicI64>::default());
    let reading = read_noting(connect(&socket), &emptied_us[0]);
    let hung = connect(&socket);
    readers(&live, 2.0);
    let lost = |live: &Live| count(live, "fenxi_learn_samples_total", "outcome=\"lost\"");
    let began = Instant::now();
    while lost(&live) == 0.0 {
        assert!(began.elapsed() < 3 * PATIENCE, "no reader is too slow");
        generate(&lab, 1200);
    }
    // It reads at last, and is told.
    let late = read_noting(hung, &emptied_us[1]);
    generate(&lab, 500);
    // Four may read, and nobody may talk.
    let mut talking = connect(&socket);
    let killed = connect(&socket);
    readers(&live, 4.0);
    let mut nothing = Vec::new();
    assert_eq!(connect(&socket).read_to_end(&mut nothing).unwrap(), 0, "one too many");
    live.wait_for("it is counted", |live| {
        count(live, "fenxi_learn_readers_refused_total", "reason=\"full\"") == 1.0
    });
    talking.write_all(b"hello").unwrap();
    readers(&live, 3.0);
    drop(killed);
    readers(&live, 2.0);
    live.wait_for("all flows are over", |live| live.metric_sum("fenxi_flow_table_entries") == 0.0);
    // The end of a run does not wait long for readers.
    let over = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as i64;
    live.wait_for("both have read all", |_| {
        emptied_us.iter().all(|emptied_us| emptied_us.load(Ordering::Relaxed) > over)
    });
    let held = count(&live, "fenxi_learn_samples_total", "outcome=\"held\"");
    let dropped = count(&live, "fenxi_learn_samples_total", "outcome=\"dropped\"");
    assert!(held > 0.0 && dropped == 0.0, "{held} {dropped}");
    assert_eq!(live.said("a reader of learn.socket is too slow"), 1, "told once");
    live.terminate(0);
    let (frames, late) = (reading.join().unwrap(), late.join().unwrap());
    let told = |frames: &[Value]| frames.iter().filter_map(|it| it["dropped"].as_u64()).sum();
    let (all, of_late): (u64, u64) = (told(&frames), told(&late));
    assert!(all == 0 && of_late > 0, "{all} {of_late}");
    assert!(frames.iter().any(is_empty), "it says that it lives");
    assert_eq!(samples(&frames).count() as u64, samples(&late).count() as u64 + of_late);
}

/// Where somebody opens the file to others, the credentials keep them out.
#[test]
fn another_user_is_refused() {
    let Some(lab) = Lab::new("learn-user", &["host"], &["setpriv"]) else { return };
    lab.wire_within("host", "a", "b");
    let dir = tempfile::tempdir().unwrap();
    let [socket, program] = ["learn.sock", "fenxi"].map(|name| dir.path().join(name));
    let live = start(&lab, &socket);
    fs::copy(common::fenxi::<&str>([]).get_program(), &program).unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    // Any program that connects.
    let connect_as = |user: u32| {
        let mut command = Command::new("setpriv");
        let ids = [format!("--reuid={user}"), format!("--regid={user}")];
        command.args(ids).arg("--clear-groups").arg(&program);
        command.args(["ctl", "status", "--socket"]).arg(&socket).current_dir("/");
        common::run(command).stderr
    };
    let refused = |live: &Live| count(live, "fenxi_learn_readers_refused_total", "reason=\"user\"");
    let by_mode = connect_as(65_534);
    assert!(by_mode.contains("permission denied") && refused(&live) == 0.0, "{by_mode}");
    fs::set_permissions(&socket, Permissions::from_mode(0o666)).unwrap();
    connect_as(65_534);
    live.wait_for("it is refused", |live| refused(live) == 1.0);
    assert!(frame(&mut connect(&socket)).is_some(), "root reads");
    live.terminate(0);
}

/// An offer to a run that asks for a signature, and what became of it.
#[test]
fn an_offer_needs_the_signature_of_the_key() {
    let Some(lab) = Lab::new("learn-key", &["host"], &[]) else { return };
    lab.wire_within("host", "a", "b");
    let dir = tempfile::tempdir().unwrap();
    let signed = common::root().join("tests/bundles/signed-volume");
    let keys = [
        "io.interfaces=[\"b\"]".to_owned(),
        "accel.devices=[\"native\"]".to_owned(),
        format!("model.path={}", signed.display()),
        format!("learn.socket={}", dir.path().join("learn.sock").display()),
        format!("learn.key={}", signed.join("key.pub").display()),
    ];
    let args: Vec<&str> = keys.iter().flat_map(|key| ["--set", key]).collect();
    let live = Live::start(&lab, "host", &args);
    let refused = |outcome: &str, change: &dyn Fn(&Path)| {
        let offered = dir.path().join(outcome);
        common::copy_bundle(&signed, &offered);
        fs::copy(signed.join("model.toml.minisig"), offered.join("model.toml.minisig")).unwrap();
        change(&offered);
        let said = live.ctl(&["model", "offer", offered.to_str().unwrap()]).expect_code(78).stderr;
        assert!(said.contains(&format!("{outcome}: ")), "{said}");
        let label = format!("outcome=\"{outcome}\"");
        assert_eq!(count(&live, "fenxi_model_offers_total", &label), 1.0);
    };
    // Signed as it should be, it comes as far as any offer before flows have ended.
    refused("few_flows", &|_| {});
    refused("unsigned", &|offered| {
        fs::remove_file(offered.join("model.toml.minisig")).unwrap();
    });
    refused("wrong_key", &|offered| {
        let file = offered.join("model.toml.minisig");
        let text = fs::read_to_string(&file).unwrap();
        // The number of a key, which comes first.
        fs::write(file, text.replace("RUSGX", "RUSGY")).unwrap();
    });
    refused("forged", &|offered| {
        let file = offered.join("model.toml");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(file, text.replace("1.0.0", "1.0.1")).unwrap();
    });
    refused("damaged", &|offered| {
        let file = offered.join("golden/outputs.csv");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(file, text.replacen("0.", "0.0", 1)).unwrap();
    });
    live.terminate(0);
}

/// A tuner that offers what is no model changes nothing.
#[test]
fn a_tuner_that_lies_changes_nothing() {
    let Some(lab) = Lab::new("lies", &["host"], &["mkfifo"]) else { return };
    lab.wire_within("host", "a", "b");
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("learn.sock");
    let model = bundle(dir.path());
    let live = start_with(&lab, &socket, &model);
    // What a bundle's files may be instead.
    let offers = ["gone", "empty", "cut", "endless", "waiting"].map(|name| dir.path().join(name));
    let [_, empty, others @ ..] = &offers;
    fs::create_dir(empty).unwrap();
    for other in others {
        common::copy_bundle(&model, other);
        let file = other.join("model.toml");
        match other.file_name().unwrap().to_str().unwrap() {
            "cut" => fs::write(other.join("model.onnx"), "half a mod").unwrap(),
            name => {
                fs::remove_file(&file).unwrap();
                let line = match name {
                    "endless" => format!("ln -s /dev/zero {}", file.display()),
                    _ => format!("mkfifo {}", file.display()),
                };
                lab.run("host", &line);
            }
        }
    }
    for offer in &offers {
        let said = live.ctl(&["model", "offer", offer.to_str().unwrap()]);
        assert_eq!(said.stderr.trim_end().lines().count(), 1, "{}", said.stderr);
        assert!(said.stderr.contains(offer.to_str().unwrap()), "{}", said.stderr);
    }
    let refused =
        |outcome: &str| count(&live, "fenxi_model_offers_total", &format!("outcome=\"{outcome}\""));
    assert_eq!((refused("damaged"), refused("promoted")), (5.0, 0.0));
    live.ctl(&["status"]).expect_code(0);
    live.terminate(0);
}
