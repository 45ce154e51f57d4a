//! Behaviours: what `bulk` catches of a network's flows, how soon it is told, and what behaviours
//! cost.
//!
//! The flows come from a table of volumes (`--table`), as with `fenxi-lab generate --volumes`, and
//! pass one flow manager in memory. Time is taken from the burst that has the packet
//! which crosses the bound to the moment at which sinks are told. The same flows are then walked
//! with behaviours and without, in turn.

use std::time::{Duration, Instant};

use fenxi_benches::flows::{config, label_all};
use flowmgr::record::Record;
use flowmgr::{Behaviour, Bounds, Config, Fate, Gso, Manager, Packet, Settings};
use hdrhistogram::Histogram;
use packetio::{Received, Rx};
use rustix::time::{ClockId, clock_gettime};

use super::report::{Figure, Report};
use super::rig::{BURST, K};
use crate::cli::BenchArgs;
use crate::generate::volumes::{Volume, Volumes, volumes};
use fenxi::exit::Failure;
use fenxi::machine::Machine;

/// Flows, unless `--flows` says otherwise, and how many begin in a second.
const FLOWS: u32 = 200_000;
const FLOWS_PER_S: f64 = 10_000.0;
const ENTRIES: usize = 1 << 18;
/// The defaults of the configuration.
const BOUNDS: Bounds = Bounds {
    bulk_bytes: 100_000,
    small_bytes: 300,
    interactive_packets_max: 30,
    realtime_packets_min: 10,
    hold_s: 3,
    idle_s: 10,
};
const REPEATS: usize = 5;

pub fn run(args: &BenchArgs) -> Result<Report, Failure> {
    let table = args.table.as_deref().ok_or_else(|| {
        Failure::usage(
            "behaviour needs --table FILE, flows of a network by volume (docs/generate.md)",
        )
    })?;
    let flows = args.flows.first().copied().unwrap_or(FLOWS);
    let flows = volumes(table, flows.into())?;
    let entries = args.entries_or(ENTRIES);
    let mut first = Walk::new(Some(BOUNDS), entries)?;
    first.walk(&flows);
    let mut figures = first.figures();
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..REPEATS {
        for (times, bounds) in times.iter_mut().zip([None, Some(BOUNDS)]) {
            let mut walk = Walk::new(bounds, entries)?;
            times.push(walk.walk(&flows).as_nanos() as f64 / walk.packets as f64);
        }
    }
    let [without, with] = times;
    let packets = first.packets as f64;
    // What is more belongs to flows: their beginning, and a look at each once a second.
    let more = with.iter().zip(&without);
    let more = more.map(|(with, without)| (with - without) * packets / flows.len() as f64);
    figures.extend([
        Figure::smaller("walk without", "ns/packet", without.clone()),
        Figure::smaller("walk with", "ns/packet", with.clone()),
        Figure::smaller("behaviours", "ns/flow", more.collect()),
    ]);
    Ok(Report {
        bench: "behaviour",
        title: "Behaviours of flows by volume",
        x: "",
        machine: Machine::here(first.manager.pages()),
        figures,
        skipped: Vec::new(),
    })
}

/// A flow manager, and what came of it.
struct Walk {
    manager: Manager,
    ring: cring::Consumer<cring::Slot>,
    packets: u64,
    /// From the burst to the sinks, ns.
    told: Histogram<u64>,
}

impl Walk {
    fn new(behaviour: Option<Bounds>, entries: usize) -> Result<Walk, Failure> {
        let (producer, ring) = cring::ring(1 << 12);
        let config = Config {
            behaviour,
            settings: Settings {
                // A flow is silent for a millisecond only, until it is over.
                idle_timeout_s: 2,
                ..config(K, entries).settings
            },
            ..config(K, entries)
        };
        let manager = Manager::new(config, producer);
        Ok(Walk {
            manager: manager.map_err(|error| Failure::usage(error.to_string()))?,
            ring,
            packets: 0,
            told: nanoseconds(),
        })
    }

    /// Walks all flows to their ends; the CPU time without making the packets.
    fn walk(&mut self, flows: &[Volume]) -> Duration {
        let mut port = Volumes::new(flows.to_vec(), FLOWS_PER_S, 1);
        let (mut packets, mut fates) = (Vec::with_capacity(BURST), Vec::with_capacity(BURST));
        let labels = self.manager.labels();
        let mut took = Duration::ZERO;
        while let Ok(Received::Burst(mut burst)) = port.receive(BURST) {
            let (data, frames) = burst.parts();
            packets.clear();
            packets.extend(frames.iter().map(|frame| Packet {
                at: frame.at,
                captured: frame.captured,
                wire: u32::MAX,
                link: frame.link,
                time_us: frame.time_us,
                rss: None,
                gso: Gso::NONE,
            }));
            self.packets += packets.len() as u64;
            let began = cpu_time();
            self.burst(data, &packets, &mut fates);
            label_all(&mut self.ring, &*labels);
            took += cpu_time() - began;
        }
        self.manager.drain();
        self.manager.discard_records(u64::MAX, 0);
        took
    }

    fn burst(&mut self, data: &mut [u8], packets: &[Packet], fates: &mut Vec<Fate>) {
        let began = Instant::now();
        let now_ns = packets.first().map_or(0, |packet| packet.time_us as u64 * 1000);
        self.manager.burst(data, packets, now_ns, fates);
        let told = &mut self.told;
        self.manager.settle(u64::MAX, now_ns, &mut |record| {
            if let Record::Behaviour(change) = record
                && change.behaviour == Behaviour::Bulk
            {
                told.saturating_record(began.elapsed().as_nanos() as u64);
            }
        });
    }

    fn figures(&self) -> Vec<Figure> {
        let counters = self.manager.counters();
        let bulk = counters.behaviours[Behaviour::Bulk as usize];
        let flows = bulk.flows as f64 / counters.flows_begun.total() as f64;
        let bytes = bulk.bytes as f64 / counters.flow_bytes as f64;
        let told = std::slice::from_ref(&self.told);
        vec![
            Figure::one("flows that become bulk", "share", flows).at_most(0.02),
            Figure::one("bytes behind the mark", "share", bytes).at_least(0.94),
            Figure::quantile("packet that crosses to sinks: median", "µs", 1e3, told, 0.5),
            Figure::quantile("packet that crosses to sinks: p99", "µs", 1e3, told, 0.99)
                .at_most(5000.0),
        ]
    }
}

/// The CPU time of this thread.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Up to a second, exact to 0.1 %.
#[expect(clippy::expect_used, reason = "constant bounds, met by every run")]
fn nanoseconds() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 1_000_000_000, 3)
        .expect("1 ns to a second can be counted with 3 digits")
}
