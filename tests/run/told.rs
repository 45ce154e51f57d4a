//! What goes wrong under way is told when it begins and when it is over, and not in between. Single
//! threads of fenxi are held up, or have what they ask of the kernel refused, by strace.

use std::time::Duration;

use crate::common;
use crate::common::lab::{Lab, Program};
use crate::common::live::Live;
use crate::run::mark;
use crate::run::traffic::{ask_udp, every_label, send};

/// System calls of a thread that rests.
const REST: &str = "ppoll,futex,clock_nanosleep";

/// Far longer than anything here takes: how long a system call is held up, unless strace ends
/// before.
const HELD: &str = "delay_enter=600000000";

/// From now on, until the program ends, these system calls of a thread meet with `fate`.
fn inject(lab: &Lab, host: &str, live: &Live, thread: &str, calls: &str, fate: &str) -> Program {
    let tasks = format!("/proc/{}/task", live.pid());
    let text = |task: &str, file: &str| {
        std::fs::read_to_string(format!("{tasks}/{task}/{file}")).unwrap_or_default()
    };
    let tasks = std::fs::read_dir(&tasks).unwrap();
    let mut tasks = tasks.map(|task| task.unwrap().file_name().into_string().unwrap());
    let task = tasks.find(|task| text(task, "comm").trim_end() == thread);
    let task = task.unwrap_or_else(|| panic!("no thread {thread}"));
    let line =
        format!("strace -qq -o /dev/null -p {task} -e trace={calls} -e inject={calls}:{fate}");
    let strace = lab.spawn(host, &line);
    live.wait_for("strace has the thread", |_| {
        let status = text(&task, "status");
        !status.contains("\nTracerPid:\t0\n")
    });
    strace
}

/// A few seconds of looks, each of which could tell of it.
fn look_on() {
    std::thread::sleep(Duration::from_millis(2500));
}

fn outcome(live: &Live, outcome: &str) -> f64 {
    let label = format!("outcome=\"{outcome}\"");
    live.samples_with("fenxi_marks_total", &label).iter().sum()
}

#[test]
fn marks_that_fail_or_are_dropped_are_told_of_when_it_begins_and_when_it_is_over() {
    let Some(lab) = Lab::routed("told", false, &["strace"]) else {
        return;
    };
    let class = every_label("mark.class", "0x42000000");
    let args = [&["--set", "mark.queue=64"][..], &common::SIMULATED].concat();
    let live = mark::start(&lab, "in", &class, &args);
    let talk = || {
        for _ in 0..40 {
            ask_udp(&lab, ["client", "server"], Lab::server(false), 8);
        }
    };
    let written = |live: &Live, before: f64| outcome(live, "written") > before;
    talk();
    live.wait_for("marks are written", |live| written(live, 0.0));
    assert_eq!(live.said("marks are") + live.said("refuses marks"), 0);

    let refused = "the kernel refuses marks";
    let strace = inject(&lab, "router", &live, "marks", "sendto", "error=EPERM");
    live.wait_for("it is told that they are refused", |live| {
        talk();
        live.said(refused) > 0
    });
    let so_far = outcome(&live, "failed");
    talk();
    look_on();
    live.wait_for("more are refused", |live| outcome(live, "failed") > so_far);
    strace.interrupt();
    let before = outcome(&live, "written");
    live.wait_for("marks are written again", |live| {
        talk();
        written(live, before)
    });

    let dropped = "marks are dropped because their queue is full; see mark.queue";
    let strace = inject(&lab, "router", &live, "marks", "sendto", HELD);
    live.wait_for("it is told that they are dropped", |live| {
        talk();
        live.said(dropped) > 0
    });
    talk();
    look_on();
    strace.interrupt();

    let over = |what: &str, outcomes: f64| format!("over for 10 s: {what}; {outcomes} in total");
    let lines = [(refused, "failed"), (dropped, "dropped")];
    let lines = lines.map(|(what, of)| over(what, outcome(&live, of)));
    live.wait_for("it is told that both are over", |live| {
        lines.iter().all(|line| live.said(line) == 1)
    });
    let cause = "cause=\"permission\"";
    let by_cause = live.samples_with("fenxi_marks_failed_total", cause);
    assert_eq!(by_cause, [outcome(&live, "failed")]);
    let stderr = live.terminate(0).stderr;
    for line in [
        format!("WARN fenxi::log::loss: {refused}: Operation not permitted (os error 1)\n"),
        format!("WARN fenxi::log::loss: {dropped}\n"),
    ] {
        let lines = stderr.matches(&line).count();
        assert_eq!(lines, 1, "{line}{stderr}");
    }
    let losses = stderr.matches("WARN fenxi::log::loss").count();
    assert_eq!(losses, 2, "{stderr}");
}

#[test]
fn a_thread_that_stalls_is_told_of_until_it_answers_again() {
    let Some(lab) = Lab::new("stall", &["host"], &["strace"]) else {
        return;
    };
    lab.wire_within("host", "a", "b");
    let args = ["--set", "io.interfaces=[\"b\"]"];
    let live = Live::start(&lab, "host", &[&args[..], &common::SIMULATED].concat());
    let degraded = |live: &Live| live.samples_with("fenxi_state", "state=\"degraded\"") == [1.0];
    for thread in ["flow-0.0", "analytics-0.0"] {
        let stalls = |live: &Live| {
            let worker = format!("worker=\"{thread}\"");
            live.samples_with("fenxi_worker_stalls_total", &worker)
        };
        let late = format!("{thread}: the thread has not answered for 1 s");
        let back = format!("{thread}: the thread answers again");
        assert_eq!((stalls(&live), live.said(&late)), (vec![0.0], 0));
        let strace = inject(&lab, "host", &live, thread, REST, HELD);
        live.wait_for("it is told of", |live| live.said(&late) > 0);
        look_on();
        assert!(degraded(&live));
        assert_eq!((stalls(&live), live.said(&back)), (vec![1.0], 0));
        strace.interrupt();
        live.wait_for("it answers again", |live| live.said(&back) > 0);
        live.wait_for("it is not degraded", |live| !degraded(live));
        assert_eq!((live.said(&late), live.said(&back)), (1, 1));
    }
    let sent = lab.on("host", || send(&common::demo(), "a"));
    live.wait_for_packets(sent);
    assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
    let finished = live.terminate(0);
    assert_eq!(finished.stderr.matches("WARN").count(), 2, "{}", finished.stderr);
}
