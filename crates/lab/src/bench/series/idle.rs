//! The CPU time of an analytics thread that has nothing to do, and its time to the first label
//! after a pause.
//!
//! The worker of a live run, device `cpu`, policy `none`: with a timeout to wait for, a single
//! series would wait for that, idle thread or not. The thread that sends series wakes the
//! analytics thread as a flow worker does. *Busy*: the times to label under Poisson arrivals.
//! *After idle*: one series after each pause, timed by the thread that sent it, which polls the
//! label word. The bar compares the slowest of these times with the median of a busy thread.

use std::fs;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use accel::Bundle;
use analytics::{Manager, Policy};
use flowmgr::Pages;
use rustix::thread::{Pid, gettid};

use super::golden::golden_series;
use super::{SLOTS, bundle, cpu, live, manager};
use crate::bench::report::{Figure, Report};
use crate::bench::threads::joined;
use crate::cli::BenchArgs;
use dataplane::analytics_worker::Hooks;
use dataplane::run::Run;
use fenxi::exit::Failure;
use fenxi::machine::Machine;
use fenxi_benches::series::Feed;

/// Series per second of the busy thread.
const RATE: u32 = 50_000;
const CAP: usize = 256;
/// Shortest and longest busy part, s.
const BUSY_S: (f64, f64) = (0.2, 5.0);
const PAUSES_MIN: usize = 3;

/// Results of the pauses.
struct Idle {
    /// Time to label of the first series after each pause, ms.
    first_ms: Vec<f64>,
    /// CPU time of the thread during the pauses, divided by their length.
    cpu_share: f64,
}

pub fn run(args: &BenchArgs) -> Result<Report, Failure> {
    let bundle = bundle(args)?;
    let (feed, manager) = pair(&bundle)?;
    let seconds = (args.seconds / 6.0).clamp(BUSY_S.0, BUSY_S.1);
    let rate = args.rate_or(RATE);
    let (busy, _shed) = live::run(feed, rate, live::after(seconds), |run| {
        live::work(manager, run, Hooks::default())
    });
    let busy_ms = |quantile| busy.time_to_label_us().value_at_quantile(quantile) as f64 / 1e3;
    let pause = Duration::from_secs_f64(args.pause);
    let pauses = ((args.seconds / args.pause) as usize).max(PAUSES_MIN);
    let Idle { mut first_ms, cpu_share } = idle(&bundle, pause, pauses)?;
    first_ms.sort_by(f64::total_cmp);
    let slowest_ms = first_ms.last().copied().unwrap_or_default();
    Ok(Report {
        bench: "idle",
        title: "An analytics thread without traffic: its CPU time, and its first label after a \
            pause",
        x: "",
        machine: Machine::here(Pages::Plain),
        figures: vec![
            Figure::one("idle: CPU time", "share of a core", cpu_share).at_most(0.02),
            Figure::one("busy: p50", "ms", busy_ms(0.5)),
            Figure::one("busy: p99", "ms", busy_ms(0.99)),
            Figure::smaller("first after idle: median", "ms", first_ms),
            Figure::one("first after idle: slowest", "ms", slowest_ms),
            Figure::one(
                "slowest after idle beyond the median of busy",
                "ms",
                slowest_ms - busy_ms(0.5),
            )
            .at_most(1.0),
        ],
        skipped: Vec::new(),
    })
}

fn pair(bundle: &Bundle) -> Result<(Feed, Manager), Failure> {
    let (feed, inlet) = Feed::new(golden_series(bundle), SLOTS);
    let accelerators = vec![cpu(bundle, CAP)?.into()];
    Ok((feed, manager(Policy::None, bundle.k(), inlet, accelerators)?))
}

/// Pauses `pauses` times and sends one series after each pause.
fn idle(bundle: &Bundle, pause: Duration, pauses: usize) -> Result<Idle, Failure> {
    let (mut feed, manager) = pair(bundle)?;
    let run = live::run_of_one();
    let clock = run.clone();
    let (started, thread) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            let _ = started.send(gettid());
            live::work(manager, run, Hooks::default())
        });
        let prober = scope.spawn(move || {
            let gone = |_| Failure::software("the analytics thread did not start");
            let thread = thread.recv().map_err(gone)?;
            // The first label warms the caches up and does not count.
            label(&mut feed, &clock);
            let mut first_ms = Vec::with_capacity(pauses);
            let (mut cpu_ns, mut idle_ns) = (0, 0);
            for _ in 0..pauses {
                let (begun, cpu_ns_before) = (Instant::now(), cpu_time_ns(thread)?);
                thread::sleep(pause);
                cpu_ns += cpu_time_ns(thread)? - cpu_ns_before;
                idle_ns += begun.elapsed().as_nanos() as u64;
                first_ms.push(label(&mut feed, &clock).as_secs_f64() * 1e3);
            }
            let cpu_share = cpu_ns as f64 / idle_ns as f64;
            Ok(Idle { first_ms, cpu_share })
        });
        joined(prober)
    })
}

/// Sends one series and waits for its label. Returns the time that took.
fn label(feed: &mut Feed, run: &Run) -> Duration {
    let begun = Instant::now();
    let word = feed.push(run.now_ns());
    feed.publish();
    run.waker.wake();
    while feed.is_pending(word) {
        // The system may have put both threads on one core.
        thread::yield_now();
    }
    begun.elapsed()
}

/// CPU time that a thread of this process has used, ns.
fn cpu_time_ns(thread: Pid) -> Result<u64, Failure> {
    let path = format!("/proc/self/task/{}/schedstat", thread.as_raw_nonzero());
    let text = fs::read_to_string(&path).unwrap_or_default();
    let first = text.split(' ').next().and_then(|ns| ns.parse().ok());
    first.ok_or_else(|| Failure::unavailable(format!("{path}: the kernel gives no CPU times")))
}
