//! Layout 1:1:2: one analytics manager with two equal devices against one with one, offered twice what one can do.
//!
//! In virtual time, where the manager takes no time; and live, where it must drive both. What the ring cannot hold is
//! shed, as in traffic.

use accel::{Profile, Shape, SimulatedDevice, Sizes};
use analytics::Accelerator;
use cring::Series;
use flowmgr::Pages;

use super::feed::Feed;
use super::simulation::Simulation;
use super::{CARRY_OVER, SLOTS, live, manager};
use crate::cli::BenchArgs;
use crate::commands::bench::machine::Machine;
use crate::commands::bench::report::{Figure, Report};
use crate::commands::bench::rounds::{Rates, interleave};
use crate::exit::Failure;

/// The largest batch.
const CAP: usize = 256;
/// 100 µs and 15 µs a row: 65 k series a second.
const PROFILE: Profile = Profile {
    t0_us: 100.0,
    t1_us: 15.0,
};
const SHAPE: Shape = Shape {
    channels: 1,
    k: 10,
    classes: 100,
};
/// Virtual seconds of each simulation.
const SIMULATED_S: f64 = 10.0;
/// Seconds of a live run: at least, and at most.
const LIVE_S: (f64, f64) = (0.2, 3.0);

pub fn run(args: &BenchArgs) -> Result<Report, Failure> {
    let capacity = CAP as f64 / PROFILE.latency(CAP).as_secs_f64();
    let offered = 2.0 * capacity;
    let [one, two] = [simulated(1, offered)?, simulated(2, offered)?];
    let seconds = (args.seconds / 8.0).clamp(LIVE_S.0, LIVE_S.1);
    let mut failure = None;
    let rates = interleave(args.seconds, 2, |point| {
        live(point + 1, offered, seconds).unwrap_or_else(|error| {
            failure = Some(error);
            0.0
        })
    });
    if let Some(failure) = failure {
        return Err(failure);
    }
    let line = |clock, devices| format!("{clock}: {devices}");
    let mut figures = Vec::new();
    for (devices, rates) in ["1 device", "2 devices"].iter().zip(&rates) {
        figures.push(Figure::millions(line("live", devices), "M class/s", rates));
    }
    figures.push(Figure::one("virtual: 1 device", "M class/s", one / 1e6));
    figures.push(Figure::one("virtual: 2 devices", "M class/s", two / 1e6));
    figures.push(Figure {
        best: rates[1].best() / rates[0].best(),
        ..Figure::one("live: 2 devices by 1", "ratio", ratio(&rates)).at_least(1.9)
    });
    figures.push(Figure::one("virtual: 2 devices by 1", "ratio", two / one).at_least(1.9));
    Ok(Report {
        bench: "devices",
        title: "One manager with two equal devices against one, offered twice what one can do",
        x: "",
        machine: Machine::here(Pages::Plain),
        figures,
        skipped: Vec::new(),
    })
}

fn ratio(rates: &[Rates]) -> f64 {
    rates[1].median() / rates[0].median()
}

/// Series labelled per virtual second.
fn simulated(devices: usize, offered: f64) -> Result<f64, Failure> {
    let sizes = Sizes::Any { cap: CAP };
    let mut simulation = Simulation::new(CARRY_OVER, PROFILE, &sizes, devices)?;
    simulation.run(offered, SIMULATED_S, |_| ());
    Ok(simulation.manager.counters().inferred as f64 / SIMULATED_S)
}

/// Series labelled per second.
fn live(devices: usize, offered: f64, seconds: f64) -> Result<f64, Failure> {
    let sample = Series {
        k: SHAPE.k as u8,
        ..Series::default()
    };
    let (feed, inlet) = Feed::new(vec![sample], SLOTS);
    let sizes = Sizes::Any { cap: CAP };
    let accelerator = |_| Accelerator {
        device: Box::new(SimulatedDevice::new(PROFILE, sizes.clone(), SHAPE)),
        profile: Some(PROFILE),
        deadline: None,
    };
    let accelerators = (0..devices).map(accelerator).collect();
    let manager = manager(CARRY_OVER, SHAPE.k, inlet, accelerators)?;
    let outcome = live::run(manager, feed, offered, live::after(seconds), |_| ());
    Ok(outcome.manager.counters().inferred as f64 / outcome.elapsed.as_secs_f64())
}
