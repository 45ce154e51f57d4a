//! A flow manager in memory: the bench puts frames in and labels the series.
//!
//! The timed part is everything that a live flow worker does except its port: the descriptors of a
//! burst are written as a port writes them, the burst is processed, series get their labels,
//! labels and records are handed over.

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::config::Config;
use cring::{Consumer, Labels, Slot};
use dataplane::inline::{self, FlowManager, Wants};
use dataplane::pipelines::{FlowOptions, PacketSide};
use dataplane::placement::Cores;
use dataplane::rules::{FlowRules, RulesUpdate};
use dataplane::tasks::OpenTask;
use fenxi_benches::flows::{config, label_all};
use flowmgr::hash::HashKind;
use flowmgr::verdict::{Verdict, Verdicts};
use flowmgr::{Effect, Fate, Packet, Pages, RuleQuestion, SeriesShare, Settings};

use super::frames::{FRAME, Frames, Tuple};
use super::threads::thread_s;
use fenxi::exit::Failure;

/// Packets per burst, unless an experiment varies it.
pub const BURST: usize = 128;
/// Packets in a series.
pub const K: usize = 10;
/// Link type of Ethernet.
pub const ETHERNET: u16 = 1;
/// Packet time between packets: 15 Mpps, 100 Gb/s of real traffic.
pub const GAP_NS: u64 = 67;

/// The table under a rig.
#[derive(Clone, Copy)]
pub struct Table {
    pub entries: usize,
    pub buckets: usize,
    pub hash: HashKind,
    pub idle_timeout_s: u16,
}

impl Table {
    /// A quarter as many buckets as entries, a hash with a fixed key, and an idle timeout longer
    /// than any experiment.
    pub fn with_entries(entries: usize) -> Table {
        Table {
            entries,
            buckets: (entries / 4).next_power_of_two(),
            hash: HashKind::Keyed { seed: 7 },
            idle_timeout_s: 30_000,
        }
    }
}

/// A flow manager and the consumer of its ring.
pub struct Rig {
    pub manager: FlowManager,
    ring: Consumer<Slot>,
    labels: Arc<dyn Labels>,
    packets: Vec<Packet>,
    fates: Vec<Fate>,
    /// Packet time, which is also the clock of the burst, ns.
    now_ns: u64,
    /// Verdicts on the packets of the last preload and before.
    preloaded: Verdicts,
    rules: Option<Rules>,
}

/// Rules that a rig looks up.
struct Rules {
    looked_up: Box<dyn FlowRules>,
    /// Tuples that flows get in the questions, so that they find rules.
    tuples: Vec<policy::Key<u32>>,
    questions: Vec<RuleQuestion>,
}

impl Rig {
    pub fn new(table: Table) -> Result<Rig, Failure> {
        let (producer, ring) = cring::ring(1 << 12);
        let config = flowmgr::Config {
            hash: table.hash,
            buckets: table.buckets,
            settings: Settings {
                idle_timeout_s: table.idle_timeout_s,
                ..config(K, table.entries).settings
            },
            ..config(K, table.entries)
        };
        let manager = FlowManager::with_parts(config, vec![vec![producer]], None)
            .map_err(|error| Failure::usage(error.to_string()))?;
        Ok(Rig::of(manager, ring))
    }

    /// A rig whose flow manager is configured as the program does it for a model. Its series are
    /// answered at once by the model if `is_inline`, otherwise by the bench, for nothing.
    pub fn of_model(table: Table, model: &Path, is_inline: bool) -> Result<Rig, Failure> {
        let sets = [
            format!("flow.max_flows={}", table.entries),
            format!("flow.buckets={}", table.buckets),
            format!("flow.idle_timeout_s={}", table.idle_timeout_s),
        ];
        let config = Config::load(None, &sets)?;
        let mut tasks = OpenTask::open_all(&config, Some(model))?;
        let config = match is_inline {
            true => inline::choose(&config, &mut tasks, Wants::Same)?,
            false => config,
        };
        let options = FlowOptions { effect: Effect::Arrival, record_series: SeriesShare::NONE };
        let mut side = PacketSide::build(&config, &tasks, options)?;
        side.open_inline(&tasks, &Cores::from_config(&config))?;
        let (_, mut manager) = side.flow_managers.swap_remove(0);
        if let Some(inline) = manager.parts_mut() {
            let began = Instant::now();
            inline.set_clock(move || began.elapsed().as_nanos() as u64);
        }
        let ring = side.series.into_inputs().flatten().flatten().next();
        Ok(Rig::of(manager, ring.map_or_else(|| cring::ring(1).1, |input| input.series)))
    }

    fn of(manager: FlowManager, ring: Consumer<Slot>) -> Rig {
        Rig {
            labels: manager.labels(),
            manager,
            ring,
            packets: Vec::with_capacity(flowmgr::BURST_MAX),
            fates: Vec::with_capacity(flowmgr::BURST_MAX),
            now_ns: 0,
            preloaded: Verdicts::default(),
            rules: None,
        }
    }

    /// The flow manager, the ring of its series and the words of its labels, for workers.
    pub fn into_parts(self) -> (FlowManager, Consumer<Slot>, Arc<dyn Labels>) {
        (self.manager, self.ring, self.labels)
    }

    pub fn pages(&self) -> Pages {
        self.manager.pages()
    }

    /// The share of the packets since the last preload that got this verdict, 0 to 1.
    pub fn share_of(&self, verdict: Verdict) -> f64 {
        let (now, then) = (&self.manager.counters().verdicts, &self.preloaded);
        let packets = now.total() - then.total();
        (now.get(verdict) - then.get(verdict)) as f64 / packets as f64
    }

    /// Begins the flows 0 to below `count` and gives them their labels.
    pub fn preload(&mut self, count: usize, tuple_of: impl Fn(usize) -> Tuple) {
        for first in (0..count).step_by(BURST) {
            let flows = BURST.min(count - first);
            let mut frames = Frames::new(flows, |i| tuple_of(first + i));
            for _ in 0..K {
                self.walk(&mut frames, BURST, 0);
            }
        }
        self.preloaded = self.manager.counters().verdicts;
    }

    /// Processes all frames once and returns packets per second of CPU time. `gap_ns` is the packet
    /// time between packets.
    pub fn pass(&mut self, frames: &mut Frames, burst: usize, gap_ns: u64) -> f64 {
        frames.untag();
        let start_s = thread_s();
        self.walk(frames, burst, gap_ns);
        frames.len() as f64 / (thread_s() - start_s)
    }

    /// One poll that finds only the `i`-th frame, `gap_ns` of packet time after the frame before.
    /// Returns its wall time.
    pub fn poll(&mut self, frames: &mut Frames, i: usize, gap_ns: u64) -> Duration {
        let start = Instant::now();
        self.walk_some(frames, i..i + 1, gap_ns);
        start.elapsed()
    }

    fn walk(&mut self, frames: &mut Frames, burst: usize, gap_ns: u64) {
        let count = frames.len();
        for first in (0..count).step_by(burst) {
            self.walk_some(frames, first..count.min(first + burst), gap_ns);
        }
    }

    fn walk_some(&mut self, frames: &mut Frames, range: Range<usize>, gap_ns: u64) {
        let mut packets = std::mem::take(&mut self.packets);
        describe(&mut packets, range, |packet| {
            self.now_ns += gap_ns;
            packet.time_us = (self.now_ns / 1000) as i64;
        });
        self.burst(&mut frames.data, &packets);
        self.packets = packets;
    }

    /// Processes one burst, labels its series and takes its records.
    pub fn burst(&mut self, data: &mut [u8], packets: &[Packet]) {
        self.manager.burst(data, packets, self.now_ns, &mut self.fates);
        self.look_up_rules(data, packets);
        // A flow that ended in the same burst makes the label post-mortem, which is ordinary.
        label_all(&mut self.ring, &*self.labels);
        self.manager.settle(u64::MAX, self.now_ns, &mut |record| {
            black_box(record);
        });
        self.fates.clear();
        // New labels may change a flow's rule.
        self.look_up_rules(&mut [], &[]);
    }

    /// From now on flows have rules. A flow finds the rules of one of `tuples`.
    pub fn begin_rules(&mut self, update: RulesUpdate, tuples: Vec<policy::Key<u32>>) {
        let (looked_up, mut change) = update.begin();
        self.manager.change_rules(&mut change);
        self.rules =
            Some(Rules { looked_up, tuples, questions: Vec::with_capacity(flowmgr::BURST_MAX) });
    }

    /// Takes other rules; the old ones are left in their place.
    pub fn change_rules(&mut self, update: &mut RulesUpdate) {
        if let Some(rules) = &mut self.rules {
            let mut change = update.replace(&mut rules.looked_up);
            change.iter_mut().for_each(|it| self.manager.change_rules(it));
        }
    }

    /// Look-ups so far, and those that found no rule.
    pub fn rule_lookups(&self) -> [u64; 2] {
        let counts = self.rules.as_ref().map(|rules| rules.looked_up.counts());
        counts.map_or([0; 2], |counts| [counts.lookups, counts.unmatched])
    }

    /// Answers the questions of a burst, as a flow worker does.
    fn look_up_rules(&mut self, data: &mut [u8], packets: &[Packet]) {
        let Some(Rules { looked_up, tuples, questions }) = &mut self.rules else {
            return;
        };
        while !self.manager.rule_questions().is_empty() {
            questions.clear();
            let asked = self.manager.rule_questions().iter();
            questions.extend(asked.map(|question| with_tuple(question, tuples)));
            let answers = looked_up.answer(questions, None, &mut |ruled| {
                black_box(ruled);
            });
            self.manager.answer_rules(answers, data, packets, self.now_ns, &mut self.fates);
        }
    }
}

/// The question as if the flow had one of these tuples, always the same.
fn with_tuple(question: &RuleQuestion, tuples: &[policy::Key<u32>]) -> RuleQuestion {
    let tuple = &tuples[question.flow_id as usize % tuples.len()];
    let end = |address: u32, port| (Ipv4Addr::from(address).into(), port);
    RuleQuestion {
        protocol: tuple.protocol,
        source: end(tuple.source, tuple.source_port),
        destination: end(tuple.destination, tuple.destination_port),
        ..*question
    }
}

/// Writes the descriptors of frames as a port does.
#[inline(always)]
fn describe(packets: &mut Vec<Packet>, range: Range<usize>, mut stamp: impl FnMut(&mut Packet)) {
    packets.clear();
    for i in range {
        let mut packet = Packet {
            at: i * FRAME,
            captured: FRAME as u32,
            wire: u32::MAX,
            link: ETHERNET,
            time_us: 0,
            rss: None,
            gso: flowmgr::Gso::NONE,
        };
        stamp(&mut packet);
        packets.push(packet);
    }
}

/// The reference: it only receives and forwards the same frames. It writes the same descriptors,
/// reads each frame's ethertype and counts it. Returns packets per second of CPU time.
pub fn no_op(frames: &mut Frames, burst: usize) -> f64 {
    let mut packets = Vec::with_capacity(burst);
    let (mut counts, mut now_ns) = ([0u64; 256], 0);
    let count = frames.len();
    let start_s = thread_s();
    for first in (0..count).step_by(burst) {
        describe(&mut packets, first..count.min(first + burst), |packet| {
            now_ns += GAP_NS;
            packet.time_us = (now_ns / 1000) as i64;
        });
        for packet in black_box(&packets) {
            counts[usize::from(frames.data[packet.at + 12])] += 1;
        }
    }
    let elapsed_s = thread_s() - start_s;
    black_box(counts);
    count as f64 / elapsed_s
}
