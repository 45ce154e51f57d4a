//! What becomes of devices is no matter to packets: inline they pass before one is open, and while
//! one fails.

use std::time::{Duration, Instant};

use crate::common::lab::Lab;
use crate::common::live::{Live, fenxi_on};
use crate::common::{self};
use crate::run::inline::{RIGHT, all_was_sent, start};
use crate::run::traffic::ask_udp;

/// For 12 s: what waits for it gives up after 20.
const HELD_UP: &str = "inject=openat:delay_enter=12000000:when=1";

/// Longer than it may take until packets pass.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether the right host answers the left one.
fn answers(lab: &Lab) -> bool {
    let mut ping = lab.command("left", "ping");
    ping.args(["-c", "1", "-W", "1", RIGHT[0]]);
    ping.output().unwrap().status.success()
}

/// Datagrams of a few flows that are long enough for a label.
fn talk(lab: &Lab) {
    for address in RIGHT {
        ask_udp(lab, ["left", "right"], address, 20);
    }
}

/// strace delays every open of the device's library.
#[test]
fn packets_pass_before_a_device_is_open() {
    if !common::has_onnxruntime() {
        return common::skip(
            "packets_pass_before_a_device_is_open",
            "ONNX Runtime (make onnxruntime)",
        );
    }
    let Some(lab) = Lab::bridged("cold", &["strace", "ping"]) else {
        return;
    };
    let library = common::root().join("target/onnxruntime/libonnxruntime.so");
    let library = library.canonicalize().unwrap();
    let mut launcher = vec!["strace", "-D", "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null"];
    launcher.extend(["-P", library.to_str().unwrap(), "-e", "trace=openat"]);
    launcher.extend(["-e", HELD_UP]);
    let mut args = vec!["--set", "io.interfaces=[\"l\", \"r\"]"];
    args.extend(["--set", "io.mode=inline", "--set", "accel.devices=[\"cpu\"]"]);
    let live = Live::begin(fenxi_on(&lab, "box", &launcher), &args);

    let began = Instant::now();
    while !answers(&lab) {
        assert!(began.elapsed() < PATIENCE, "nothing passes");
    }
    talk(&lab);
    assert!(!live.is_ready(), "the device should not be open yet");

    live.wait_until_ready();
    talk(&lab);
    live.wait_for("flows get labels", |live| {
        live.samples_with("fenxi_series_total", "inferred")[0] > 0.0
    });
    all_was_sent(live);
}

#[test]
fn packets_pass_while_a_device_fails() {
    let Some(lab) = Lab::bridged("failing", &["ping"]) else {
        return;
    };
    let sets =
        ["accel.devices=[\"bad\"]", "device.bad.provider=simulated", "device.bad.faults=vanish=1"];
    let live = start(&lab, &sets.map(|set| ["--set", set]).concat());
    talk(&lab);
    live.wait_for("it is down", |live| live.said("the device is down") > 0);
    talk(&lab);
    assert!(answers(&lab));
    live.wait_for("series have no labels", |live| {
        live.metric_sum("fenxi_series_lost_total") >= 4.0
    });
    all_was_sent(live);
}
