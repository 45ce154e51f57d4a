//! What the exchange of the model adds to the time to label, under Poisson arrivals.
//!
//! A third thread opens the bundle, makes a device of it, holds it against its golden outputs, gives it to the manager,
//! and drops the old one when it comes back: again and again, as an operator would once. A label counts as *during a
//! swap* when it came between the opening of the bundle and the dropping of the old device, or in the [`MARGIN`] after
//! it: to load a model may slow the others down more than the exchange itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use accel::{Bundle, Device, check_golden};
use analytics::{Accelerator, Manager, Policy, Standby};
use crossbeam_channel::{Receiver, Sender, bounded};
use flowmgr::Pages;
use hdrhistogram::Histogram;

use super::feed::{Feed, golden_series};
use super::{CARRY_OVER, SLOTS, bundle, cpu, live, manager};
use crate::cli::BenchArgs;
use crate::commands::bench::machine::{Machine, joined, pin};
use crate::commands::bench::report::{Figure, Report};
use crate::exit::Failure;

/// Series per second.
const RATE: u32 = 50_000;
const CAP: usize = 256;
/// Exchanges of each case.
const SWAPS: u32 = 100;
/// Time after an exchange in which labels still count as during it.
const MARGIN: Duration = Duration::from_millis(20);
/// Least time between two exchanges.
const PAUSE_MIN: Duration = Duration::from_millis(5);

/// The manager's ends of the two channels, and the times to label, in µs.
struct Watch {
    incoming: Receiver<Standby>,
    retired: Sender<Vec<Accelerator>>,
    /// During a swap, and otherwise.
    times: [Histogram<u64>; 2],
    /// The manager's counter when `swapping` last changed.
    before: Histogram<u64>,
    was_swapping: bool,
}

pub fn run(args: &BenchArgs) -> Result<Report, Failure> {
    let bundle = bundle(args)?;
    let cases = [("carry-over", CARRY_OVER), ("none", Policy::None)];
    let mut figures = Vec::new();
    for (name, policy) in cases {
        figures.extend(swaps(
            args,
            &bundle,
            name,
            policy,
            args.seconds / cases.len() as f64,
        )?);
    }
    Ok(Report {
        bench: "swap",
        title: "Time to label while the model is exchanged, Poisson arrivals",
        x: "",
        machine: Machine::here(Pages::Plain),
        figures,
        skipped: Vec::new(),
    })
}

/// One policy's exchanges.
fn swaps(
    args: &BenchArgs,
    bundle: &Bundle,
    name: &str,
    policy: Policy,
    seconds: f64,
) -> Result<Vec<Figure>, Failure> {
    let (feed, inlet) = Feed::new(golden_series(bundle), SLOTS);
    let mut manager = manager(policy, bundle.k(), inlet, vec![cpu(bundle, CAP)?.into()])?;
    let (standby, incoming) = bounded(1);
    let (retired, outgoing) = bounded(1);
    let mut watch = Watch::new(&manager, incoming, retired);
    let (swapping, over) = (&AtomicBool::new(false), &AtomicBool::new(false));
    let pause = Duration::from_secs_f64(seconds / f64::from(SWAPS)).max(PAUSE_MIN);
    let (swaps, lost, exchanged) = thread::scope(|scope| {
        let exchanging = scope.spawn(move || {
            pin(1);
            let exchanged = exchange(bundle, pause, swapping, &standby, &outgoing);
            over.store(true, Ordering::Relaxed);
            exchanged
        });
        let is_over = |_| over.load(Ordering::Relaxed);
        let (counters, shed) = live::run(feed, args.rate_or(RATE), is_over, |run| {
            while !manager.is_done() {
                manager.round(run.now_ns());
                watch.look(&mut manager, swapping);
            }
            watch.note(&manager);
            manager.counters().clone()
        });
        let lost = counters.series - counters.inferred + counters.post_mortem + shed;
        (counters.swaps, lost, joined(exchanging))
    });
    exchanged?;
    let mut figures = watch.figures(name);
    figures.push(
        Figure::one(format!("{name}: swaps"), "swaps", swaps as f64).at_least(f64::from(SWAPS)),
    );
    figures.push(
        Figure::one(
            format!("{name}: series without a label"),
            "series",
            lost as f64,
        )
        .at_most(0.0),
    );
    Ok(figures)
}

/// The third thread: one exchange after the other.
fn exchange(
    bundle: &Bundle,
    pause: Duration,
    swapping: &AtomicBool,
    standby: &Sender<Standby>,
    outgoing: &Receiver<Vec<Accelerator>>,
) -> Result<(), Failure> {
    let gone = || Failure::software("the manager's thread is gone");
    for generation in 1..=SWAPS {
        thread::sleep(pause);
        swapping.store(true, Ordering::Relaxed);
        let accelerators = vec![checked(bundle)?.into()];
        let generation = generation as u16;
        let given = Standby {
            accelerators,
            generation,
        };
        standby.send(given).map_err(|_| gone())?;
        drop(outgoing.recv().map_err(|_| gone())?);
        thread::sleep(MARGIN);
        swapping.store(false, Ordering::Relaxed);
    }
    Ok(())
}

/// A device made as for an exchange: from the files, and held against the golden outputs.
fn checked(bundle: &Bundle) -> Result<Box<dyn Device>, Failure> {
    let path = bundle.model_path();
    let dir = path.parent().unwrap_or(&path);
    let opened = Bundle::open(dir).map_err(|error| Failure::data(error.to_string()))?;
    let mut device = cpu(&opened, CAP)?;
    match check_golden(&opened, device.as_mut()) {
        Ok(report) if report.agrees() => Ok(device),
        Ok(_) => Err(Failure::data(format!(
            "{}: golden outputs differ",
            dir.display()
        ))),
        Err(error) => Err(Failure::data(format!("{}: {error}", dir.display()))),
    }
}

impl Watch {
    fn new(
        manager: &Manager,
        incoming: Receiver<Standby>,
        retired: Sender<Vec<Accelerator>>,
    ) -> Watch {
        let empty = || Histogram::new_from(&manager.counters().time_to_label_us);
        Watch {
            incoming,
            retired,
            times: [empty(), empty()],
            before: empty(),
            was_swapping: false,
        }
    }

    /// Between two rounds: passes devices on, and notes what has been labelled when a swap begins or ends.
    fn look(&mut self, manager: &mut Manager, swapping: &AtomicBool) {
        let is_swapping = swapping.load(Ordering::Relaxed);
        if is_swapping != self.was_swapping {
            self.note(manager);
            self.was_swapping = is_swapping;
        }
        // Neither channel blocks: there is one exchange at a time.
        if let Ok(standby) = self.incoming.try_recv()
            && let Err(refused) = manager.stand_by(standby)
        {
            let _ = self.retired.try_send(refused.standby.accelerators);
        }
        if let Some(accelerators) = manager.take_retired() {
            let _ = self.retired.try_send(accelerators);
        }
    }

    /// Adds the labels since the last note to those of their time.
    fn note(&mut self, manager: &Manager) {
        let now = &manager.counters().time_to_label_us;
        let times = &mut self.times[usize::from(!self.was_swapping)];
        // None can fail: all have the same bounds, and a counter only grows.
        let _ = times.add(now);
        let _ = times.subtract(&self.before);
        let _ = self.before.set_to(now);
    }

    fn figures(&self, name: &str) -> Vec<Figure> {
        let ms = |at: usize, quantile| self.times[at].value_at_quantile(quantile) as f64 / 1e3;
        let figure = |what: &str, value| Figure::one(format!("{name}: {what}"), "ms", value);
        let (p99, largest) = ([ms(0, 0.99), ms(1, 0.99)], [ms(0, 1.0), ms(1, 1.0)]);
        vec![
            figure("p50 during swaps", ms(0, 0.5)),
            figure("p50 otherwise", ms(1, 0.5)),
            figure("p99 during swaps", p99[0]),
            figure("p99 otherwise", p99[1]),
            figure("largest during swaps", largest[0]),
            figure("largest otherwise", largest[1]),
            figure("p99 added by swaps", p99[0] - p99[1]).at_most(5.0),
            figure("largest added by swaps", largest[0] - largest[1]),
        ]
    }
}
