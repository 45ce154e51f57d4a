//! Counts, from nothing to far more than there is room for: each packet that was sent is received or counted as dropped, and
//! each that was received has a verdict and, inline, was sent on or counted as unsent.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use packetio::{CaptureReader, Port};
use serde_json::Value;

use crate::common::lab::Lab;
use crate::common::live::{Live, fenxi_on};
use crate::common::{self};
use crate::traffic::{send, transmit};

/// Packets taken and dropped so far.
fn arrived(live: &Live) -> [u64; 2] {
    [
        "fenxi_port_packets_total",
        "fenxi_port_dropped_packets_total",
    ]
    .map(|name| live.metric_sum(name) as u64)
}

/// Waits until so many have come to light.
fn wait_for_all(live: &Live, sent: u64) {
    live.wait_for("each packet is received or counted as dropped", |live| {
        let [received, dropped] = arrived(live);
        assert!(received + dropped <= sent, "{received} {dropped} {sent}");
        received + dropped == sent
    });
}

/// Receive rings that hold few packets.
const SMALL_RINGS: [&str; 4] = ["--set", "io.blocks=2", "--set", "io.block_bytes=65536"];

/// A host with wires from `a` to `l` and from `r` to `b`.
fn wired(test: &str) -> Option<Lab> {
    let lab = Lab::new(test, &["host"], &[])?;
    lab.wire_within("host", "a", "l");
    lab.wire_within("host", "r", "b");
    Some(lab)
}

/// fenxi on `l` (tap), or between `l` and `r` (inline).
fn start(lab: &Lab, mode: &str, args: &[&str]) -> Live {
    let interfaces = match mode {
        "tap" => "io.interfaces=[\"l\"]",
        _ => "io.interfaces=[\"l\", \"r\"]",
    };
    let mode = format!("io.mode={mode}");
    let all = ["--set", interfaces, "--set", &mode];
    Live::start(lab, "host", &[&all[..], args, &common::SIMULATED].concat())
}

/// A mix of flows, so many packets per second; the packets sent.
fn generate(lab: &Lab, flows: u32, pps: u32) -> u64 {
    let mut generate = fenxi_on(lab, "host", &[]);
    generate.args(["generate", "--interface", "a", "--json"]);
    generate.args(["--flows", &flows.to_string(), "--pps", &pps.to_string()]);
    let generated = common::run(generate).expect_code(0).json();
    let interface = &generated["interface"];
    assert_eq!(interface["dropped"], 0, "{generated}");
    interface["sent"].as_u64().unwrap()
}

/// The summary, after its sums were held against what was sent.
fn assert_sums(lab: &Lab, live: Live, sent: u64) -> Value {
    assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
    let summary = live.terminate(0).json();
    let of = |name: &str| summary["live"][name].as_u64().unwrap();
    assert_eq!(of("received") + of("kernel_dropped"), sent, "{summary}");
    assert_eq!(common::sum(&summary["verdicts"]), of("received"));
    let series = &summary["series"];
    assert!(series["inferred"].as_u64().unwrap() > 0, "{series}");
    if summary["live"]["mode"] == "inline" {
        assert_eq!(of("received"), of("sent") + of("unsent"), "{summary}");
        let seen = lab.run("host", "cat /sys/class/net/b/statistics/rx_packets");
        assert_eq!(seen.trim().parse::<u64>().unwrap(), of("sent"));
    }
    summary
}

#[test]
fn nothing_is_lost_at_rest_and_at_half_load() {
    for mode in ["tap", "inline"] {
        let Some(lab) = wired("half") else {
            return;
        };
        let live = start(&lab, mode, &[]);
        assert_eq!(arrived(&live), [0, 0]);
        let sent = generate(&lab, 500, 20_000);
        wait_for_all(&live, sent);
        let summary = assert_sums(&lab, live, sent);
        assert_eq!(summary["live"]["kernel_dropped"], 0);
        assert_eq!(summary["live"]["unsent"], 0);
    }
}

/// Packets without a pause, into rings that hold few: they are dropped there and counted, and all else goes on.
#[test]
fn overload_is_counted_and_felt_by_nobody_else() {
    for (mode, layout) in [("tap", "1:1:1"), ("tap", "2:1:1"), ("inline", "1:1:1")] {
        let Some(lab) = wired("over") else {
            return;
        };
        let records = tempfile::NamedTempFile::new().unwrap();
        let layout = format!("pipeline.layout={layout}");
        let flows_to = ["--flows", records.path().to_str().unwrap()];
        let others = ["--set", "records.queue=1024", "--set", &layout];
        let args = [&SMALL_RINGS[..], &others, &flows_to].concat();
        let live = start(&lab, mode, &args);
        let stop = AtomicBool::new(false);
        let sent = std::thread::scope(|scope| {
            let sender = || lab.on("host", || flood("a", &stop));
            let senders = [scope.spawn(sender), scope.spawn(sender)];
            live.wait_for("some are dropped", |live| arrived(live)[1] > 20_000);
            let before = live.resident_kib();
            let [received, dropped] = arrived(&live);
            live.wait_for("many more come, and some of them are dropped", |live| {
                assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
                let [now, dropped_now] = arrived(live);
                now > 2 * received && dropped_now > 2 * dropped
            });
            let grown = live.resident_kib().saturating_sub(before);
            assert!(grown < 4096, "{grown} KiB more than {before}");
            stop.store(true, Ordering::Relaxed);
            senders.map(|sender| sender.join().unwrap()).iter().sum()
        });
        wait_for_all(&live, sent);
        let summary = assert_sums(&lab, live, sent);
        assert!(summary["live"]["kernel_dropped"].as_u64().unwrap() > 40_000);
    }
}

/// The log says when packets begin to be lost, and how many were when none has been for a while; not more.
#[test]
fn overload_is_told_of_when_it_begins_and_when_it_is_over() {
    let Some(lab) = wired("lost") else {
        return;
    };
    let live = start(&lab, "tap", &SMALL_RINGS);
    let what = "packets are lost, a receive ring is full; see io.blocks";
    let begins = format!("WARN fenxi::log::loss: {what}\n");
    let stop = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let sender = scope.spawn(|| lab.on("host", || flood("a", &stop)));
        live.wait_for("it is told", |live| live.said(&begins) > 0);
        let [_, dropped] = arrived(&live);
        // A few looks, each of which could tell of it.
        std::thread::sleep(Duration::from_millis(2500));
        live.wait_for("more are dropped", |live| arrived(live)[1] > dropped);
        stop.store(true, Ordering::Relaxed);
        sender.join().unwrap()
    });
    wait_for_all(&live, sent);
    let [_, dropped] = arrived(&live);
    let over = format!("no more since 10 s: {what}; {dropped} were\n");
    live.wait_for("its end is told", |live| live.said(&over) > 0);
    let stderr = live.terminate(0).stderr;
    assert_eq!(stderr.matches(what).count(), 2, "{stderr}");
}

/// What was received before the end is still walked, and an end does not wait for the rest of an overload.
#[test]
fn it_ends_in_order_at_any_load() {
    for mode in ["tap", "inline"] {
        let Some(lab) = wired("end") else {
            return;
        };
        let live = start(&lab, mode, &[]);
        let sent = lab.on("host", || send(&common::demo(), "a"));
        let summary = live.terminate(0).json();
        assert_eq!(summary["packets"], sent);

        let live = start(&lab, mode, &SMALL_RINGS);
        let stop = AtomicBool::new(false);
        let summary = std::thread::scope(|scope| {
            let sender = scope.spawn(|| lab.on("host", || flood("a", &stop)));
            live.wait_for("some are dropped", |live| arrived(live)[1] > 1000);
            let summary = live.terminate(0).json();
            stop.store(true, Ordering::Relaxed);
            sender.join().unwrap();
            summary
        });
        let of = |name: &str| summary["live"][name].as_u64().unwrap();
        assert_eq!(common::sum(&summary["verdicts"]), of("received"));
        if mode == "inline" {
            assert_eq!(of("received"), of("sent") + of("unsent"), "{summary}");
        }
    }
}

/// Sends the shipped capture over and over; the packets that the interface took.
fn flood(interface: &str, stop: &AtomicBool) -> u64 {
    let mut out = transmit(interface);
    while !stop.load(Ordering::Relaxed) {
        let mut reader = CaptureReader::open(&common::demo()).unwrap();
        while let Some(burst) = reader.receive(64).unwrap() {
            out.send(&burst).unwrap();
        }
    }
    out.counts().sent
}
