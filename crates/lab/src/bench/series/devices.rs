//! Layout 1:1:2: one analytics manager with two equal devices, compared with one that has one
//! device. Both are offered twice what one device can do.
//!
//! In virtual time the manager takes no time; live it has to drive both devices. The ring sheds
//! what it cannot hold, as it does with real traffic.

use std::time::Instant;

use accel::{Device, Profile, Shape, SimulatedDevice, Sizes, ThreadedDevice};
use analytics::Accelerator;
use cring::{Features, Series};
use flowmgr::Pages;

use super::simulation::Simulation;
use super::{CARRY_OVER, SLOTS, live, manager};
use crate::bench::report::{Figure, Report};
use crate::bench::rounds::{Rates, try_interleave};
use crate::cli::BenchArgs;
use dataplane::analytics_worker::Hooks;
use fenxi::exit::Failure;
use fenxi::machine::Machine;
use fenxi_benches::series::Feed;

/// The largest batch.
const CAP: usize = 256;
/// 100 µs and 15 µs a row: 65 k series a second.
const PROFILE: Profile = Profile { t0_us: 100.0, t1_us: 15.0 };
const SHAPE: Shape = Shape { channels: 1, k: 10, context: 0, classes: 100 };
/// Virtual seconds of each simulation.
const SIMULATED_S: f64 = 10.0;
/// Shortest and longest live run, s.
const LIVE_S: (f64, f64) = (0.2, 3.0);

/// Which thread runs a device's batch.
#[derive(Clone, Copy)]
enum Home {
    /// The manager's thread, when it polls.
    Manager,
    /// A thread of the device's own.
    Thread,
}

const LIVE: [(&str, Home); 2] =
    [("polled by the manager", Home::Manager), ("on threads of their own", Home::Thread)];

pub fn run(args: &BenchArgs) -> Result<Report, Failure> {
    let offered = 2.0 * CAP as f64 / PROFILE.latency(CAP).as_secs_f64();
    let simulated = [simulated(1, offered)?, simulated(2, offered)?];
    let seconds = (args.seconds / 16.0).clamp(LIVE_S.0, LIVE_S.1);
    let live = try_interleave(args.seconds, 2 * LIVE.len(), |point| {
        let (_, home) = LIVE[point / 2];
        live(1 + point % 2, home, offered, seconds)
    })?;
    let mut figures = Vec::new();
    for (rates, (name, _)) in live.chunks_exact(2).zip(LIVE) {
        figures.extend(compared(name, rates));
    }
    figures.extend(compared("virtual time", &simulated));
    Ok(Report {
        bench: "devices",
        title: "One manager with two equal devices against one, offered twice what one can do",
        x: "devices",
        machine: Machine::here(Pages::Plain),
        figures,
        skipped: Vec::new(),
    })
}

/// The rates with one device and with two, and their ratio.
fn compared(name: &str, rates: &[Rates]) -> Vec<Figure> {
    let mut figures: Vec<Figure> = (1..)
        .zip(rates)
        .map(|(devices, rates)| Figure::millions(name, "M class/s", rates).at(f64::from(devices)))
        .collect();
    if let [one, two] = rates {
        let ratio = Figure::one(format!("{name}: 2 by 1"), "ratio", two.median() / one.median());
        figures.push(Figure { best: two.best() / one.best(), ..ratio }.at_least(1.9));
    }
    figures
}

/// Series labelled per virtual second.
fn simulated(devices: usize, offered: f64) -> Result<Rates, Failure> {
    let sizes = Sizes::Any { cap: CAP };
    let mut simulation = Simulation::new(CARRY_OVER, PROFILE, &sizes, devices)?;
    simulation.run(offered, SIMULATED_S, |_| ());
    let mut rates = Rates::default();
    rates.add(simulation.manager.tasks()[0].counters().inferred as f64 / SIMULATED_S);
    Ok(rates)
}

/// Series labelled per second.
fn live(devices: usize, home: Home, offered: f64, seconds: f64) -> Result<f64, Failure> {
    let sample = Series::new(0, SHAPE.k, Features::LENGTHS);
    let (feed, inlet) = Feed::new(vec![sample], SLOTS);
    let accelerators: Result<_, Failure> = (0..devices).map(|_| accelerator(home)).collect();
    let manager = manager(CARRY_OVER, SHAPE.k, inlet, accelerators?)?;
    let (rate, _shed) = live::run(feed, offered, live::after(seconds), |run| {
        let begun = Instant::now();
        let counters = live::work(manager, run, Hooks::default());
        counters.inferred as f64 / begun.elapsed().as_secs_f64()
    });
    Ok(rate)
}

fn accelerator(home: Home) -> Result<Accelerator, Failure> {
    let device = Box::new(SimulatedDevice::new(PROFILE, Sizes::Any { cap: CAP }, SHAPE));
    let device: Box<dyn Device> =
        match home {
            Home::Manager => device,
            Home::Thread => Box::new(ThreadedDevice::new(device, |_| ()).map_err(|error| {
                Failure::unavailable(format!("no thread for a device: {error}"))
            })?),
        };
    Ok(Accelerator { device, profile: Some(PROFILE), deadline: None, lane: 0 })
}
