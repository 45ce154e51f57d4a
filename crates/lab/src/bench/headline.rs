//! An average 100 Gb/s link of the paper through a flow worker and an analytics worker, a core
//! each; or through flow workers that answer their series themselves, a core each.
//!
//! The packets are drawn as in [`super::mix`] and written to memory before the clock starts:
//! headers as a tap with a snap length keeps them, and the moment at which each is due. Then both
//! workers of a live run go to work. The port hands packets out once they are due, as a card does
//! that waits a moment for more: a burst is due when it is full, or when its first packet is
//! [`COALESCED_NS`] old. It writes the descriptor of each frame and copies nothing. A packet with
//! [`RING`] others waiting before it is lost, as in a receive ring of that size.
//!
//! What this leaves out: a card, its driver, and the cache misses or the hits of memory that a
//! card has just written. Headers lie one after the other in memory that no cache holds, and
//! prefetchers see them come.

use std::path::Path;
use std::sync::Arc;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use accel::Bundle;
use analytics::{Policy, RingInput};
use dataplane::clock::Clock;
use dataplane::flow_worker::{FlowWorker, Hooks, Limits, Parts};
use dataplane::inline::FlowManager;
use dataplane::run::Run;
use dataplane::sink::Sink;
use flowmgr::Effect;
use flowmgr::record::Record;
use hdrhistogram::Histogram;
use packetio::{Burst, Frame, Received, Rx, RxCounts, RxError};

use super::mix::{PACKETS_PER_S, Ring, START_S, prepare, share, table, templates};
use super::report::{Figure, Report};
use super::rig::{BURST, ETHERNET, K, Rig};
use super::senders::Senders;
use super::series::{headline_bundle, inline_models, live, manager, profiled};
use super::templates::Templates;
use super::threads::{joined, pin, thread_s};
use crate::cli::BenchArgs;
use fenxi::exit::Failure;
use fenxi::machine::Machine;

/// How long the first packet of a burst waits for more, ns.
const COALESCED_NS: u64 = 20_000;
/// Packets that a receive ring holds: about 10 ms of this link.
const RING: usize = 1 << 17;
/// Bytes of a frame that are kept.
const SNAP: usize = 96;
/// Seconds of traffic drawn at a time, and the most that are held in memory (some 2 GB each).
const PIECE_S: f64 = 0.05;
const HELD_S: f64 = 3.0;
/// Seconds of traffic before the clock starts, as fast as they go: flows of the table's past have
/// eleven packets at most, and many want their labels first.
const WARM_S: f64 = 4.0;
/// The goal of the policy: configs/live-mark.toml has the same.
const GOAL: Policy = Policy::Slo { latency_goal: Duration::from_millis(2), delta: 0.05 };
/// The largest batch, the default of the configuration.
const CAP: usize = 256;
/// Bar for the time to a label, ms.
const BAR_MS: f64 = 10.0;

/// Measures it `--seconds` / [`HELD_S`] times, each time from a table in the state after minutes
/// of such traffic.
pub fn run(args: &BenchArgs) -> Result<Report, Failure> {
    let turns = (args.seconds / HELD_S).round().max(1.0) as usize;
    let entries = args.entries.unwrap_or(1 << 22);
    let templates = templates(args.capture.as_deref())?;
    let one = || match args.workers {
        Some(workers) => {
            let model = inline_models(args)?.swap_remove(0);
            turn_inline(&templates, &model, entries, (workers.into(), args.links))
        }
        None => turn(&templates, &headline_bundle(args)?, entries, args.links),
    };
    let outcomes = (0..turns).map(|_| one());
    let outcomes = outcomes.collect::<Result<Vec<Outcome>, Failure>>()?;
    let pages = outcomes.first().map_or(flowmgr::Pages::Plain, |it| it.pages);
    Ok(Report {
        bench: "headline",
        title: "An average 100 Gb/s link from memory, a core for each worker",
        x: "",
        machine: Machine::here(pages),
        figures: figures(&outcomes),
        skipped: Vec::new(),
    })
}

/// What one turn found.
struct Outcome {
    pages: flowmgr::Pages,
    seen: Seen,
    shed: u64,
    flows: u64,
    series: u64,
    labels: u64,
    /// CPU time of the analytics worker.
    analytics_s: f64,
    /// From the series to its label.
    labelled_us: Histogram<u64>,
}

fn turn(
    templates: &Templates,
    bundle: &Bundle,
    entries: usize,
    links: f64,
) -> Result<Outcome, Failure> {
    let mut rig = Rig::new(table(entries))?;
    let mut senders = prepare(&mut rig, templates, share(entries) * links);
    let mut last = warm(&mut rig, templates, &mut senders);
    let (give, seen) = channel();
    let link = Link::held(templates, &mut senders, (share(entries) * links, HELD_S), give);
    let device = profiled(bundle, CAP)?;
    last.walk(&mut rig, BURST);
    let (pages, before) = (rig.pages(), rig.manager.counters().clone());
    let (flow_manager, series, labels) = rig.into_parts();
    let inlet = RingInput { series, labels };
    let analytics = manager(GOAL, K, Vec::new(), inlet, vec![device])?;
    let run = live::run_of_one();
    let counted = Arc::new(AtomicU64::new(0));
    let worker = worker(flow_manager, link, &counted, &run);
    let (after, analytics, analytics_s) = side_by_side(worker, analytics, run);
    Ok(Outcome {
        pages,
        seen: seen.recv().map_err(|error| Failure::software(error.to_string()))?,
        shed: after.series_shed() - before.series_shed() + analytics.shed() + analytics.failed(),
        flows: after.flows_begun.total() - before.flows_begun.total(),
        series: after.series_emitted() - before.series_emitted(),
        labels: counted.load(Ordering::Relaxed),
        analytics_s,
        labelled_us: analytics.time_to_label_us(),
    })
}

/// Takes the first [`WARM_S`] through, but for the last piece: it fills the caches again once the
/// others are in memory.
fn warm(rig: &mut Rig, templates: &Templates, senders: &mut Senders) -> Ring {
    let mut piece = Ring::default();
    for _ in 0..(WARM_S / PIECE_S).round() as usize {
        piece.walk(rig, BURST);
        piece.fill(templates, &senders.window(templates, PIECE_S));
    }
    piece
}

fn worker(manager: FlowManager, link: Link, labels: &Arc<AtomicU64>, run: &Arc<Run>) -> FlowWorker {
    FlowWorker::new(Parts {
        number: 0,
        manager,
        effect: Effect::Arrival,
        ports: vec![Box::new(link)],
        flows_belong_to_ports: false,
        egress: None,
        sinks: vec![Box::new(Labels(labels.clone()))],
        clock: Clock::Packets,
        hooks: Hooks::default(),
        rules: None,
        run: run.clone(),
        limits: Limits { burst: BURST, handover: Duration::ZERO, give_up_after: Duration::MAX },
    })
}

/// A worker before the clock starts.
struct Prepared {
    rig: Rig,
    last: Ring,
    link: Link,
    seen: Receiver<Seen>,
}

/// The same with several flow workers that answer their series themselves; each gets an equal share
/// of the links.
fn turn_inline(
    templates: &Templates,
    model: &Path,
    entries: usize,
    (workers, links): (usize, f64),
) -> Result<Outcome, Failure> {
    let share = share(entries) * links / workers as f64;
    let together = Barrier::new(workers);
    let one = |number: usize| {
        pin(number);
        let prepared = || {
            let mut rig = Rig::of_model(table(entries), model, true)?;
            let mut senders = prepare(&mut rig, templates, share);
            let last = warm(&mut rig, templates, &mut senders);
            let (give, seen) = channel();
            // Two links for half as long take as much memory as one.
            let held_s = HELD_S / links.max(1.0);
            let link = Link::held(templates, &mut senders, (share, held_s), give);
            Ok(Prepared { rig, last, link, seen })
        };
        let mut prepared: Result<Prepared, Failure> = prepared();
        together.wait();
        if let Ok(Prepared { rig, last, .. }) = &mut prepared {
            last.walk(rig, BURST);
        }
        together.wait();
        // Its memory is given back once the clock has stopped.
        let Prepared { rig, last: _last, link, seen } = prepared?;
        let (pages, before) = (rig.pages(), rig.manager.counters().clone());
        // Series of the table's past have another clock.
        let past = rig.manager.parts().as_ref().map(|it| &it.manager.tasks()[0]);
        let past_us = past.map(|task| task.counters().time_to_label_us());
        let counted = Arc::new(AtomicU64::new(0));
        let worked = worker(rig.into_parts().0, link, &counted, &live::run_of_one()).run();
        let (after, tasks) = (worked.counters, worked.tasks);
        let mut labelled_us = tasks[0].time_to_label_us();
        if let Some(past_us) = past_us {
            // What is there now was added to it.
            let _ = labelled_us.subtract(&past_us);
        }
        Ok(Outcome {
            pages,
            seen: seen.recv().map_err(|error| Failure::software(error.to_string()))?,
            shed: tasks.iter().map(|it| it.shed() + it.failed()).sum(),
            flows: after.flows_begun.total() - before.flows_begun.total(),
            series: after.series_emitted() - before.series_emitted(),
            labels: counted.load(Ordering::Relaxed),
            analytics_s: 0.0,
            labelled_us,
        })
    };
    let one = &one;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|number| scope.spawn(move || one(number))).collect();
        let outcomes = threads.into_iter().map(joined);
        outcomes
            .reduce(|all, one| Ok(all?.with(&one?)))
            .unwrap_or_else(|| unreachable!("no worker"))
    })
}

impl Outcome {
    /// With what another worker did meanwhile.
    fn with(mut self, other: &Outcome) -> Outcome {
        self.seen.seconds = self.seen.seconds.max(other.seen.seconds);
        self.seen.packets += other.seen.packets;
        self.seen.bursts += other.seen.bursts;
        self.seen.lost += other.seen.lost;
        self.seen.busy_s = self.seen.busy_s.max(other.seen.busy_s);
        self.shed += other.shed;
        self.flows += other.flows;
        self.series += other.series;
        self.labels += other.labels;
        // Both have the same bounds.
        let _ = self.seen.waited_us.add(&other.seen.waited_us);
        let _ = self.labelled_us.add(&other.labelled_us);
        self
    }
}

/// Both workers on cores of their own; what each counted, and the CPU time of the analytics
/// worker, s.
fn side_by_side(
    worker: FlowWorker,
    analytics: analytics::Manager,
    run: Arc<Run>,
) -> (flowmgr::Counters, analytics::Counters, f64) {
    thread::scope(|scope| {
        let clock = run.clone();
        let series = scope.spawn(move || {
            pin(1);
            let began_s = thread_s();
            let counters = live::work(analytics, clock);
            (counters, thread_s() - began_s)
        });
        let packets = scope.spawn(move || {
            pin(0);
            worker.run().counters
        });
        let packets = joined(packets);
        run.waker.wake();
        let (series, series_s) = joined(series);
        (packets, series, series_s)
    })
}

fn figures(outcomes: &[Outcome]) -> Vec<Figure> {
    let median = |name: &str, unit, of: fn(&Outcome) -> f64| {
        Figure::smaller(name, unit, outcomes.iter().map(of).collect())
    };
    let all = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>() as f64;
    let waited: Vec<_> = outcomes.iter().map(|it| it.seen.waited_us.clone()).collect();
    let labelled: Vec<_> = outcomes.iter().map(|it| it.labelled_us.clone()).collect();
    let quantile = |name: &str, of: &[Histogram<u64>], quantile| {
        Figure::quantile(name, "ms", 1e3, of, quantile)
    };
    vec![
        median("packets", "Mpps", |it| it.seen.packets as f64 / it.seen.seconds / 1e6),
        median("new flows", "k/s", |it| it.flows as f64 / it.seen.seconds / 1e3),
        median("series", "k/s", |it| it.series as f64 / it.seen.seconds / 1e3),
        median("labels", "k/s", |it| it.labels as f64 / it.seen.seconds / 1e3),
        Figure::one("packets lost, all turns", "packets", all(|it| it.seen.lost)).at_most(0.0),
        Figure::one("series shed or failed, all turns", "series", all(|it| it.shed)).at_most(0.0),
        quantile("packet due to burst, p99", &waited, 0.99),
        quantile("packet due to burst, largest", &waited, 1.0),
        quantile("series to label, p50", &labelled, 0.5),
        quantile("series to label, p99", &labelled, 0.99).at_most(BAR_MS),
        quantile("series to label, p99.9", &labelled, 0.999),
        median("flow worker, busy", "share", |it| it.seen.busy_s / it.seen.seconds),
        median("analytics worker, busy", "share", |it| it.analytics_s / it.seen.seconds),
        median("packets in a burst", "packets", |it| {
            it.seen.packets as f64 / it.seen.bursts.max(1) as f64
        }),
    ]
}

/// Counts labels.
struct Labels(Arc<AtomicU64>);

impl Sink for Labels {
    fn record(&mut self, record: &Record) {
        if let Record::Label(_) = record {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A packet in memory: where its headers lie, in units of [`UNIT`] bytes, and when it is due.
struct Held {
    at: u32,
    due_us: u32,
    wire: u16,
    captured: u16,
}

/// What the port has seen.
#[derive(Clone)]
struct Seen {
    seconds: f64,
    packets: u64,
    bursts: u64,
    lost: u64,
    /// Between a burst and the next question.
    busy_s: f64,
    /// Time of a packet until its burst is handed out.
    waited_us: Histogram<u64>,
}

/// The packets of the link, each handed out once it is due.
struct Link {
    data: Vec<u8>,
    held: Vec<Held>,
    frames: Vec<Frame>,
    next: usize,
    /// Packets that are due, of all.
    due: usize,
    started: Option<Instant>,
    handed_out: Option<Instant>,
    seen: Seen,
    /// Takes `seen` at the end.
    give: Sender<Seen>,
}

/// Bytes of a unit of memory: a cache line. The headers that are read lie in one, as in receive
/// buffers.
const UNIT: usize = 64;

impl Link {
    /// Draws some seconds of traffic at a share of the link's rate.
    fn held(
        templates: &Templates,
        senders: &mut Senders,
        (share, held_s): (f64, f64),
        give: Sender<Seen>,
    ) -> Link {
        let packets = (PACKETS_PER_S * share * held_s * 1.1) as usize;
        let mut data = Vec::with_capacity(packets * SNAP.next_multiple_of(UNIT));
        let mut held = Vec::with_capacity(packets);
        let mut frame = Vec::new();
        for _ in 0..(held_s / PIECE_S).round() as usize {
            for (at_s, drawn) in senders.window(templates, PIECE_S) {
                let packet = templates.write(drawn, 0, &mut frame, 0);
                let captured = SNAP.min(packet.captured as usize);
                held.push(Held {
                    at: (data.len() / UNIT) as u32,
                    due_us: ((at_s - WARM_S) * 1e6) as u32,
                    wire: u16::try_from(packet.captured).unwrap_or(u16::MAX),
                    captured: captured as u16,
                });
                data.extend_from_slice(&frame[..captured]);
                data.resize(data.len().next_multiple_of(UNIT), 0);
            }
        }
        let longest_us = (held_s * 1e6) as u64;
        let waited_us =
            Histogram::new_with_max(longest_us, 3).unwrap_or_else(|error| unreachable!("{error}"));
        let seen = Seen { seconds: 0.0, packets: 0, bursts: 0, lost: 0, busy_s: 0.0, waited_us };
        Link {
            data,
            held,
            frames: Vec::with_capacity(BURST),
            next: 0,
            due: 0,
            started: None,
            handed_out: None,
            seen,
            give,
        }
    }
}

impl Rx for Link {
    fn receive(&mut self, max: usize) -> Result<Received<'_>, RxError> {
        let now = Instant::now();
        let started = *self.started.get_or_insert(now);
        if let Some(before) = self.handed_out.take() {
            self.seen.busy_s += (now - before).as_secs_f64();
        }
        if self.next == self.held.len() {
            self.seen.seconds = (now - started).as_secs_f64();
            // Nobody takes it where the other worker has failed.
            let _ = self.give.send(self.seen.clone());
            return Ok(Received::End);
        }
        let now_ns = (now - started).as_nanos() as u64;
        while self.due < self.held.len() && u64::from(self.held[self.due].due_us) * 1000 <= now_ns {
            self.due += 1;
        }
        let lost = (self.due - self.next).saturating_sub(RING);
        self.seen.lost += lost as u64;
        self.next += lost;
        let waiting = (self.due - self.next).min(max);
        if waiting == 0 {
            return Ok(Received::Nothing);
        }
        let waited_ns = now_ns - u64::from(self.held[self.next].due_us) * 1000;
        if waiting < max && waited_ns < COALESCED_NS && self.due < self.held.len() {
            return Ok(Received::Nothing);
        }
        self.frames.clear();
        let packets = &self.held[self.next..self.next + waiting];
        self.frames.extend(packets.iter().map(|packet| Frame {
            at: packet.at as usize * UNIT,
            captured: u32::from(packet.captured),
            wire: u32::from(packet.wire),
            time_us: ((START_S + WARM_S) * 1e6) as i64 + i64::from(packet.due_us),
            link: ETHERNET,
            ..Frame::default()
        }));
        self.next += waiting;
        self.seen.packets += waiting as u64;
        self.seen.bursts += 1;
        self.seen.waited_us.saturating_record(waited_ns / 1000);
        self.handed_out = Some(now);
        Ok(Received::Burst(Burst::new(&mut self.data, &self.frames)))
    }

    fn name(&self) -> &str {
        "link"
    }

    fn counts(&mut self) -> RxCounts {
        RxCounts::default()
    }
}
