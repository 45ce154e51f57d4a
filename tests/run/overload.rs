//! Counts, from nothing to far more than there is room for: each packet that was sent is received
//! or counted as dropped, and each that was received has a verdict and, inline, was sent on or
//! counted as unsent.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use packetio::{CaptureReader, Received, Rx, Selection};
use rustix::process::Signal;
use serde_json::Value;

use crate::common::lab::Lab;
use crate::common::live::{Live, generate_on};
use crate::common::{self};
use crate::run::backends::Over;
use crate::run::traffic::{send, transmit};

/// Flows of a load, with some 13 packets each: more than the rings hold.
const FLOWS: u32 = 8000;
/// Packets per second that nothing here sends.
const UNTHROTTLED: u32 = 1_000_000_000;

/// Packets taken, and packets that found no room, so far. The interface's own count of drops is
/// another one, in which some drivers repeat those that XDP found no room for.
fn arrived(live: &Live) -> [u64; 2] {
    let dropped = live.samples_with("fenxi_port_dropped_packets_total", "ring_full");
    let taken = live.metric_sum("fenxi_port_packets_total");
    [taken as u64, dropped.iter().sum::<f64>() as u64]
}

/// Packets dropped or unsent so far.
fn lost(live: &Live, mode: &str) -> u64 {
    let unsent = match mode {
        "inline" => live.metric_sum("fenxi_port_unsent_total"),
        _ => 0.0,
    };
    arrived(live)[1] + unsent as u64
}

/// Waits until `sent` packets are accounted for.
fn wait_for_all(live: &Live, sent: u64) {
    live.wait_for("each packet is received or counted as dropped", |live| {
        let [received, dropped] = arrived(live);
        assert!(received + dropped <= sent, "{received} {dropped} {sent}");
        received + dropped == sent
    });
}

/// A host with wires from `a` to `l` and from `r` to `b`.
fn wired(test: &str, over: Over) -> Option<Lab> {
    let lab = Lab::new(test, &["host"], &["ethtool"])?;
    lab.wire_within("host", "a", "l");
    lab.wire_within("host", "r", "b");
    over.prepare(&lab, "host", &["a", "l", "r", "b"]);
    Some(lab)
}

/// fenxi on `l` (tap), or between `l` and `r` (inline).
fn start(lab: &Lab, over: Over, mode: &str, args: &[&str]) -> Live {
    let interfaces = match mode {
        "tap" => "io.interfaces=[\"l\"]",
        _ => "io.interfaces=[\"l\", \"r\"]",
    };
    let mode = format!("io.mode={mode}");
    let all = ["--set", interfaces, "--set", &mode];
    let all = [&all[..], &over.args(), args, &common::SIMULATED].concat();
    Live::start(lab, "host", &all)
}

/// Sends a mix of flows that no other seed gives, at `pps` packets per second; returns the packets
/// sent and the time.
fn generate(lab: &Lab, flows: u32, pps: u32, seed: usize) -> (u64, Duration) {
    let mut generate = generate_on(lab, "host");
    generate.args(["--interface", "a", "--json"]);
    generate.args(["--flows", &flows.to_string(), "--pps", &pps.to_string()]);
    generate.args(["--seed", &seed.to_string()]);
    let generated = common::run(generate).expect_code(0).json();
    let sent = generated["interface"]["sent"].as_u64().unwrap();
    let wall = Duration::from_secs_f64(generated["wall_s"].as_f64().unwrap());
    (sent, wall)
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

/// One run, at rest, at what this machine carries just now, at half and at twice of that, and again
/// at rest: each packet is in the sums, at half none is lost, and after too many labels come as
/// before.
#[test]
fn counts_agree_at_rest_at_half_and_at_twice_what_is_carried() {
    for (mode, over) in [("tap", Over::Packet), ("inline", Over::Packet), ("inline", Over::Xdp)] {
        let Some(lab) = wired("loads", over) else {
            return;
        };
        let live = start(&lab, over, mode, &["--set", "flow.max_flows=131072"]);
        assert_eq!(arrived(&live), [0, 0]);
        let mut sent = 0;
        let mut losses = (0..6).step_by(2).map(|seed| {
            let pps = carried(&lab, &live, seed, &mut sent);
            let before = lost(&live, mode);
            sent += generate(&lab, FLOWS, pps / 2, seed + 1).0;
            wait_for_all(&live, sent);
            lost(&live, mode) - before
        });
        // Others may take the machine away from one moment to the next, but not each time.
        assert!(losses.any(|lost| lost == 0), "{mode}");

        sent += twice(&lab, &live);
        wait_for_all(&live, sent);
        let lost_before = lost(&live, mode);
        let labelled = |live: &Live| live.samples_with("fenxi_series_total", "inferred")[0];
        let before = labelled(&live);
        // The rings hold all of them.
        sent += generate(&lab, 500, 20_000, 6).0;
        wait_for_all(&live, sent);
        live.wait_for("new flows get labels", |live| labelled(live) > before + 100.0);
        assert_eq!(lost(&live, mode), lost_before);
        assert_sums(&lab, live, sent);
    }
}

/// Packets per second that are taken when they come without a pause.
fn carried(lab: &Lab, live: &Live, seed: usize, all_sent: &mut u64) -> u32 {
    let [before, _] = arrived(live);
    let (sent, wall) = generate(lab, FLOWS, UNTHROTTLED, seed);
    let ended = Instant::now();
    *all_sent += sent;
    wait_for_all(live, *all_sent);
    let received = arrived(live)[0] - before;
    (received as f64 / (wall + ended.elapsed()).as_secs_f64()) as u32
}

/// Packets without a pause, until as many were dropped as were taken; the packets sent. Where they
/// do not come fast enough for that, as is the rule, fenxi is stopped until there are that many.
fn twice(lab: &Lab, live: &Live) -> u64 {
    let [received_before, dropped_before] = arrived(live);
    flooded(lab, |flood| {
        let before = live.resident_kib();
        for looks in 0.. {
            assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
            let [received, dropped] = arrived(live);
            let [received, dropped] = [received - received_before, dropped - dropped_before];
            if dropped >= received.max(100_000) {
                break;
            }
            assert!(looks < 1000, "received {received}, dropped {dropped}");
            std::thread::sleep(Duration::from_millis(20));
            if looks > 20 {
                live.signal(Signal::STOP);
                flood.wait_for_more(received + 100_000);
                live.signal(Signal::CONT);
            }
        }
        let grown = live.resident_kib().saturating_sub(before);
        assert!(grown < 4096, "{grown} KiB more than {before}");
    })
}

/// Packets without a pause, into rings that hold few: they are dropped there and counted, and all
/// else goes on.
#[test]
fn overload_is_counted_and_felt_by_nobody_else() {
    for (mode, layout, over) in [
        ("tap", "1:1:1", Over::Packet),
        ("tap", "2:1:1", Over::Packet),
        ("inline", "1:1:1", Over::Packet),
        ("tap", "1:1:1", Over::Xdp),
        ("inline", "1:1:1", Over::Xdp),
    ] {
        let Some(lab) = wired("over", over) else {
            return;
        };
        let records = tempfile::NamedTempFile::new().unwrap();
        let layout = format!("pipeline.layout={layout}");
        let flows_to = ["--flows", records.path().to_str().unwrap()];
        let others = ["--set", "records.queue=1024", "--set", &layout];
        let args = [over.small_rings(), &others, &flows_to].concat();
        let live = start(&lab, over, mode, &args);
        let sent = flooded(&lab, |_| {
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
        });
        wait_for_all(&live, sent);
        // Said when it began, and not for each.
        let told =
            "WARN fenxi::log::loss: packets are lost because a receive ring is full; see io.blocks";
        live.wait_for("it was told", |live| live.said(told) > 0);
        assert_eq!(live.said(told), 1);
        let summary = assert_sums(&lab, live, sent);
        assert!(summary["live"]["kernel_dropped"].as_u64().unwrap() > 40_000);
    }
}

/// The log says when packets begin to be lost, and how many were when none has been for a while;
/// not more.
#[test]
fn overload_is_told_of_when_it_begins_and_when_it_is_over() {
    let over = Over::Packet;
    let Some(lab) = wired("lost", over) else {
        return;
    };
    let live = start(&lab, over, "tap", over.small_rings());
    let what = "packets are lost because a receive ring is full; see io.blocks or, with af_xdp, \
        xdp.frames";
    let begins = format!("WARN fenxi::log::loss: {what}\n");
    let mut sent = 0;
    for _ in 0..3 {
        let [_, before] = arrived(&live);
        sent += flooded(&lab, |_| {
            live.wait_for("some are dropped", |live| arrived(live)[1] > before + 100);
        });
        // At least one look, which could tell of it anew.
        std::thread::sleep(Duration::from_millis(1500));
        live.wait_for("it is told", |live| live.said(&begins) > 0);
    }
    wait_for_all(&live, sent);
    let [_, dropped] = arrived(&live);
    let over = format!("over for 10 s: {what}; {dropped} in total\n");
    live.wait_for("its end is told", |live| live.said(&over) > 0);
    let stderr = live.terminate(0).stderr;
    assert_eq!(stderr.matches(what).count(), 2, "{stderr}");
}

/// The same of series that find the ring to analytics full, as after a thread was stopped.
#[test]
fn lost_series_are_told_of_when_it_begins_and_when_it_is_over() {
    let Some(lab) = wired("lost-series", Over::Packet) else {
        return;
    };
    let live = start(&lab, Over::Packet, "tap", &["--set", "ring.slots=16"]);
    let lost = |live: &Live| live.samples_with("fenxi_series_lost_total", "ring_full")[0];
    let mut sent = 0;
    while lost(&live) == 0.0 {
        live.signal(Signal::STOP);
        sent += lab.on("host", || send(&common::demo(), "a"));
        live.signal(Signal::CONT);
        wait_for_all(&live, sent);
    }
    let what = "series are lost, and their flows get no label: the ring to analytics is full; see \
        ring.slots";
    live.wait_for("it is told", |live| live.said(&format!("WARN fenxi::log::loss: {what}\n")) == 1);
    let over = format!("over for 10 s: {what}; {} in total\n", lost(&live));
    live.wait_for("its end is told", |live| live.said(&over) > 0);
    live.terminate(0);
}

/// What was received before the end is still walked, and an end does not wait for the rest of an
/// overload.
#[test]
fn it_ends_in_order_at_any_load() {
    for (mode, over) in
        [("tap", Over::Packet), ("inline", Over::Packet), ("tap", Over::Xdp), ("inline", Over::Xdp)]
    {
        let Some(lab) = wired("end", over) else {
            return;
        };
        let live = start(&lab, over, mode, &[]);
        let sent = lab.on("host", || send(&common::demo(), "a"));
        // A busy kernel hands frames over some time after they were sent.
        wait_for_all(&live, sent);
        let summary = live.terminate(0).json();
        assert_eq!(summary["packets"], sent);

        let live = start(&lab, over, mode, over.small_rings());
        let mut summary = Value::Null;
        flooded(&lab, |_| {
            live.wait_for("some are dropped", |live| arrived(live)[1] > 1000);
            summary = live.terminate(0).json();
        });
        let of = |name: &str| summary["live"][name].as_u64().unwrap();
        assert_eq!(common::sum(&summary["verdicts"]), of("received"));
        if mode == "inline" {
            assert_eq!(of("received"), of("sent") + of("unsent"), "{summary}");
        }
    }
}

/// The shipped capture, over and over and from two threads.
#[derive(Default)]
struct Flood {
    is_over: AtomicBool,
    sent: AtomicU64,
}

impl Flood {
    fn send(&self) {
        let mut out = transmit("a");
        while !self.is_over.load(Ordering::Relaxed) {
            let mut reader = CaptureReader::open(&common::demo()).unwrap();
            while let Received::Burst(burst) = reader.receive(64).unwrap() {
                let before = out.counts().sent;
                out.send(&burst, Selection::All).unwrap();
                let sent = out.counts().sent - before;
                self.sent.fetch_add(sent, Ordering::Relaxed);
            }
        }
    }

    /// Waits until `packets` more were sent.
    fn wait_for_more(&self, packets: u64) {
        let before = self.sent.load(Ordering::Relaxed);
        while self.sent.load(Ordering::Relaxed) < before + packets {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Does `work` in a flood, which ends with it, even by a panic; the packets that the interface
/// took.
fn flooded(lab: &Lab, work: impl FnOnce(&Flood)) -> u64 {
    struct End<'a>(&'a Flood);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.is_over.store(true, Ordering::Relaxed);
        }
    }
    let flood = Flood::default();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| lab.on("host", || flood.send()));
        }
        let end = End(&flood);
        work(end.0);
    });
    flood.sent.into_inner()
}
