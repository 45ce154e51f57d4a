//! The threads of the series' side: the analytics managers, and the one that exchanges their model.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use accel::Bundle;
use analytics::{Counters, Manager};

use super::Plan;
use super::lane::Shared;
use crate::cli::Speed;
use crate::control::collector::AnalyticsSnapshot;
use crate::control::in_use::{InUse, Swaps};
use crate::control::snapshot::Publisher;
use crate::exit::Failure;
use crate::pipeline::exchange::ExchangePort;
use crate::pipeline::swap::{self, Swapper};
use crate::pipeline::threads::{Cores, Thread, pin};
use crate::pipeline::worker;

/// The running threads.
pub struct Labelling {
    analytics: Vec<JoinHandle<Counters>>,
    swapper: Option<Swapper>,
}

impl Labelling {
    /// Starts them.
    ///
    /// # Errors
    /// No thread.
    pub fn start(
        plan: &Plan<'_>,
        cores: &Cores,
        bundle: &Bundle,
        in_use: &Arc<InUse>,
        managers: Vec<(Thread, Manager)>,
        publishers: Vec<Option<Publisher<AnalyticsSnapshot>>>,
        shared: &Shared,
    ) -> Result<Labelling, Failure> {
        let (swapper, ports) = start_swapper(plan, cores, bundle, in_use, &managers)?;
        let ends = ports.into_iter().zip(publishers);
        let ends = ends.map(|(port, publisher)| worker::Ends {
            port,
            publisher,
            seat: None,
        });
        let gathers = plan.args.speed == Speed::Max;
        let spawn = |((thread, manager), ends): ((Thread, Manager), worker::Ends)| {
            let (run, core) = (shared.run.clone(), cores.of_thread(&thread));
            std::thread::Builder::new()
                .name(thread.to_string())
                .spawn(move || {
                    pin(core);
                    worker::work(manager, gathers, run, ends)
                })
                .map_err(|error| Failure::unavailable(format!("no thread {thread}: {error}")))
        };
        let analytics = managers.into_iter().zip(ends).map(spawn);
        Ok(Labelling {
            analytics: analytics.collect::<Result<_, _>>()?,
            swapper,
        })
    }

    /// Waits for them, once the flow managers have ended.
    ///
    /// # Errors
    /// One died.
    pub fn finish(self) -> Result<(Counters, Swaps), Failure> {
        let died = || Failure::software("an analytics thread died");
        let mut sum: Option<Counters> = None;
        for thread in self.analytics {
            let counters = thread.join().map_err(|_| died())?;
            match &mut sum {
                Some(sum) => sum.merge(&counters),
                None => sum = Some(counters),
            }
        }
        let swaps = self
            .swapper
            .map_or_else(|| Ok(Swaps::default()), Swapper::finish)?;
        Ok((sum.ok_or_else(died)?, swaps))
    }
}

/// The thread that exchanges the model, where `--swap-model` asks for it, and the analytics threads' ends.
fn start_swapper(
    plan: &Plan<'_>,
    cores: &Cores,
    bundle: &Bundle,
    in_use: &Arc<InUse>,
    managers: &[(Thread, Manager)],
) -> Result<(Option<Swapper>, Vec<Option<ExchangePort>>), Failure> {
    let Some(other) = &plan.args.swap_model else {
        return Ok((None, managers.iter().map(|_| None).collect()));
    };
    let swap = swap::Plan {
        bundle: other.clone(),
        every: Duration::from_millis(u64::from(plan.args.swap_every)),
    };
    let in_use = in_use.clone();
    let (swapper, ports) = Swapper::start(swap, plan.config, cores, bundle, in_use, managers)?;
    Ok((Some(swapper), ports.into_iter().map(Some).collect()))
}
