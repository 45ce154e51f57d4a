//! The controller in the simulated plant.

use super::super::model::Turnaround;
use super::super::*;
use super::plant::{Arrivals, Load, Period, Plant, Share, load};

fn violated(periods: &[Period]) -> usize {
    periods.iter().filter(|period| period.is_violated()).count()
}

fn single(slower: f64) -> Plant {
    let mut plant = Plant::new(vec![load(20.0, 2.0, 512, 2000, 0.05, &[])], Kind::Slo);
    plant.arrivals = Arrivals::Even;
    plant.rate_per_s = 50_000.0;
    plant.slower = slower;
    plant
}

/// Profiles like those of real models, of batchiness 0.1 to 0.5.
fn profile_of(i: usize) -> (f64, f64) {
    [(5.0, 1.7), (20.0, 2.0), (12.0, 3.0), (8.0, 4.0)][i % 4]
}

/// Tasks in a row, all flows through all, goals that grow along the way.
fn chain(tasks: usize, cap: usize, goal_us: u64, delta: f64) -> Vec<Load> {
    let of = |i: usize| {
        let (t0, t1) = profile_of(i);
        let before: Vec<usize> = i.checked_sub(1).into_iter().collect();
        load(t0, t1, cap, goal_us * (i as u64 + 1), delta, &before)
    };
    (0..tasks).map(of).collect()
}

/// One task, and then one of so many by its label.
fn split(branches: usize, cap: usize, goal_us: u64, delta: f64) -> Vec<Load> {
    let mut loads = chain(1, cap, goal_us / 2, delta);
    for i in 0..branches {
        let (t0, t1) = profile_of(i + 1);
        let share = Share(i as f64 / branches as f64, (i + 1) as f64 / branches as f64);
        loads.push(Load {
            share,
            ..load(t0, t1, cap, goal_us, delta, &[0])
        });
    }
    loads
}

/// One task, several that follow it, and one that waits for all of these.
fn join(branches: usize, cap: usize, goal_us: u64, delta: f64) -> Vec<Load> {
    let mut loads = chain(1, cap, goal_us / 3, delta);
    for i in 0..branches {
        let (t0, t1) = profile_of(i + 1);
        loads.push(load(t0, t1, cap, goal_us * 2 / 3, delta, &[0]));
    }
    let all: Vec<usize> = (1..=branches).collect();
    loads.push(load(10.0, 2.0, cap, goal_us, delta, &all));
    loads
}

fn report(name: &str, loads: &dyn Fn() -> Vec<Load>, rate: f64, arrivals: Arrivals) {
    for kind in [Kind::Null, Kind::Max, Kind::OnOff, Kind::Slo] {
        for turnaround in [Turnaround::Planned, Turnaround::Constant] {
            if kind != Kind::Slo && turnaround == Turnaround::Constant {
                continue;
            }
            let mut plant = Plant::new(loads(), kind);
            plant.controller.model.turnaround = turnaround;
            plant.rate_per_s = rate;
            plant.arrivals = arrivals;
            plant.play(20);
            let periods = plant.play(50);
            let load = periods.iter().map(|p| p.load).sum::<f64>() / 50.0;
            let labels: u64 = periods.iter().map(|p| p.labels).sum();
            let last = &periods[49];
            let batches: Vec<i64> = last.tasks.iter().map(|t| t.batch as i64).collect();
            let p99: Vec<i64> = last.paths.iter().map(|p| p.p99_us as i64).collect();
            println!(
                "{name} {rate} {kind:?} {turnaround:?}: load {load:.3} violated {} labels {labels}\n     batch {batches:?} b {:?} p99 {p99:?} B {:?}",
                violated(&periods),
                last.triggers,
                plant
                    .controller
                    .model
                    .paths
                    .iter()
                    .map(|p| p.budget_us as i64)
                    .collect::<Vec<_>>()
            );
        }
    }
}

#[test]
#[ignore]
fn show() {
    let p = Arrivals::Poisson;
    report("chain2", &|| chain(2, 256, 4000, 0.05), 30_000.0, p);
    report("chain4", &|| chain(4, 32, 3000, 0.05), 30_000.0, p);
    report("chain4 δ.2", &|| chain(4, 32, 3000, 0.2), 30_000.0, p);
    report("split4", &|| split(4, 256, 6000, 0.05), 50_000.0, p);
    report("split15", &|| split(15, 32, 6000, 0.05), 60_000.0, p);
    report("split15", &|| split(15, 32, 6000, 0.05), 100_000.0, p);
    report("split15 δ.2", &|| split(15, 32, 6000, 0.2), 60_000.0, p);
    report("join2", &|| join(2, 256, 9000, 0.05), 30_000.0, p);
    report("join4 ", &|| join(4, 32, 9000, 0.05), 30_000.0, p);
    let _ = single(1.0);
}

fn line(p: &Period) -> String {
    let late: Vec<_> = p
        .paths
        .iter()
        .map(|p| format!("{}+{}/{}", p.late, p.near - p.late, p.labels))
        .collect();
    let batches: Vec<i64> = p.tasks.iter().map(|t| t.batch as i64).collect();
    format!(
        "load {:.3} batch {batches:?} b {:?} budget {:?} late {late:?} p99 {:?}",
        p.load,
        p.triggers,
        p.budgets_us.iter().map(|b| *b as i64).collect::<Vec<_>>(),
        p.paths.iter().map(|b| b.p99_us as i64).collect::<Vec<_>>()
    )
}

#[test]
#[ignore]
fn dynamics() {
    for (name, loads, rate) in [
        ("chain2", chain(2, 256, 4000, 0.05), 30_000.0),
        ("split4", split(4, 256, 6000, 0.05), 50_000.0),
        ("join2", join(2, 256, 9000, 0.05), 30_000.0),
    ] {
        let mut plant = Plant::new(loads, Kind::Slo);
        plant.rate_per_s = rate;
        plant.play(20);
        println!("{name} steady");
        plant
            .play(2)
            .iter()
            .for_each(|p| println!("   {}", line(p)));
        println!("halved goal");
        let before: Vec<_> = plant.loads.iter().map(|l| l.task.goal.unwrap()).collect();
        for (i, goal) in before.iter().enumerate() {
            plant.set_goal(
                i,
                Goal {
                    latency: goal.latency / 2,
                    ..*goal
                },
            );
        }
        plant
            .play(4)
            .iter()
            .for_each(|p| println!("   {}", line(p)));
        println!("doubled goal");
        for (i, goal) in before.iter().enumerate() {
            plant.set_goal(i, *goal);
        }
        plant
            .play(4)
            .iter()
            .for_each(|p| println!("   {}", line(p)));
        plant.play(20);
        println!("tenth rate");
        plant.rate_per_s = rate / 10.0;
        plant
            .play(4)
            .iter()
            .for_each(|p| println!("   {}", line(p)));
        plant.play(20);
        println!("tenfold rate");
        plant.rate_per_s = rate;
        plant
            .play(4)
            .iter()
            .for_each(|p| println!("   {}", line(p)));
    }
}

#[test]
#[ignore]
fn more() {
    for hold in [0.0, 300.0, 1200.0, 2500.0] {
        let mut plant = single(1.0);
        plant.arrivals = Arrivals::Poisson;
        plant.hold_up_us = (hold > 0.0).then_some((37_000.0, hold));
        let ps = plant.play(80);
        println!(
            "hold {hold}: {} of {}, load {}",
            violated(&ps),
            ps.len(),
            ps[20..].iter().map(|p| p.load).sum::<f64>() / 60.0
        );
    }
    let mut plant = single(1.0);
    let mut all = vec![];
    for rate in [50_000.0, 1_000.0, 200_000.0, 20_000.0] {
        plant.rate_per_s = rate;
        let ps = plant.play(10);
        println!("leap {rate} {} {}", violated(&ps), line(&ps[0]));
        all.extend(ps);
    }
    println!("leaps: {} of {}", violated(&all), all.len());
    for (name, rate, mut loads) in [
        (
            "tight beside large",
            20_000.0,
            vec![
                load(10.0, 2.0, 256, 600, 0.05, &[]),
                load(5.0, 1.7, 256, 20_000, 0.05, &[]),
            ],
        ),
        ("fixed", 20_000.0, chain(2, 256, 4000, 0.05)),
        ("fixed rare", 1000.0, chain(2, 256, 4000, 0.05)),
        ("uncontrolled", 20_000.0, chain(3, 256, 4000, 0.05)),
        ("later", 20_000.0, chain(3, 256, 4000, 0.05)),
        ("bursts", 20_000.0, chain(3, 256, 4000, 0.05)),
        ("hold", 20_000.0, chain(3, 256, 4000, 0.05)),
        ("slow", 20_000.0, chain(3, 256, 4000, 0.05)),
        ("low", 100.0, chain(3, 256, 4000, 0.05)),
        ("low split", 1000.0, split(8, 256, 4000, 0.05)),
        ("heavy split", 150_000.0, split(15, 256, 9000, 0.05)),
        ("heavy split δ.2", 150_000.0, split(15, 256, 9000, 0.2)),
        ("tight split", 60_000.0, split(15, 32, 2000, 0.05)),
        ("tighter split", 60_000.0, split(15, 32, 1000, 0.05)),
        ("near capacity", 200_000.0, split(15, 256, 9000, 0.05)),
    ] {
        if name.starts_with("fixed") {
            for l in &mut loads {
                l.task.sizes = accel::Sizes::Fixed(vec![16, 64, 256]);
            }
        }
        if name == "uncontrolled" {
            loads[1].task.goal = None;
        }
        if name == "later" {
            loads[1].later_us = 10_000.0;
            loads[2].later_us = 30_000.0;
        }
        for kind in [Kind::Null, Kind::Max, Kind::Slo] {
            let mut plant = Plant::new(loads.clone(), kind);
            plant.rate_per_s = rate;
            if name == "bursts" {
                plant.arrivals = Arrivals::Bursts(20);
            }
            if name == "hold" {
                plant.hold_up_us = Some((37_000.0, 1500.0));
            }
            if name == "slow" {
                plant.slower = 3.0;
            }
            plant.play(20);
            let ps = plant.play(50);
            println!(
                "{name} {kind:?}: {} violated, load {:.3} labels {}",
                violated(&ps),
                ps.iter().map(|p| p.load).sum::<f64>() / 50.0,
                ps.iter().map(|p| p.labels).sum::<u64>()
            );
            if kind == Kind::Slo {
                println!("    {}", line(&ps[48]));
            }
        }
    }
}
