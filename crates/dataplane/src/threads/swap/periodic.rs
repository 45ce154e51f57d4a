//! Swaps of the model at fixed intervals, for `fenxi replay --swap-model`: a thread that drives a
//! [`Swapper`]. A live run swaps on command instead.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use super::helpers::{Helpers, RunGuard, opening_model};
use super::{Ports, Refusal, Swapper};
use crate::Error;
use crate::opening::tasks::OpenTask;
use crate::placement::Cores;
use crate::threads::state::{SharedState, Swaps};
use config::Config;

/// Which model comes in, and when.
pub struct SwapPlan {
    /// Folder of its bundle.
    pub bundle: PathBuf,
    /// From the end of one swap to the beginning of the next.
    pub every: Duration,
}

/// The thread.
pub struct PeriodicSwapper {
    thread: JoinHandle<Swaps>,
    /// Dropped to end it.
    goes_on: Sender<()>,
    /// Dropped so that the thread stops waiting for helpers.
    lasts: RunGuard,
}

impl PeriodicSwapper {
    /// Starts the thread for the first task; the ports are for the threads that serve it.
    ///
    /// # Errors
    /// No thread.
    pub fn start(
        plan: SwapPlan,
        config: &Config,
        cores: &Cores,
        task: &OpenTask,
        state: Arc<SharedState>,
    ) -> Result<(PeriodicSwapper, Ports), Error> {
        let (helpers, lasts) = Helpers::new(cores, state);
        let (driver, ports) = Swapper::new(&helpers, 0, task, cores);
        let (goes_on, ended) = bounded(0);
        let (config, cores) = (Arc::new(config.clone()), cores.clone());
        let thread = std::thread::Builder::new()
            .name("swap".to_owned())
            .spawn(move || {
                cores.keep_off();
                run(&plan, &config, &helpers, driver, &ended)
            })
            .map_err(|error| Error::unavailable(format!("no thread for models: {error}")))?;
        let swapper = PeriodicSwapper { thread, goes_on, lasts };
        Ok((swapper, ports))
    }

    /// Ends the thread; a model that is being opened is abandoned.
    ///
    /// # Errors
    /// It died.
    pub fn finish(self) -> Result<Swaps, Error> {
        drop((self.goes_on, self.lasts));
        let died = |_| Error::software("the thread that swaps models died");
        self.thread.join().map_err(died)
    }
}

fn run(
    plan: &SwapPlan,
    config: &Arc<Config>,
    helpers: &Helpers,
    mut swapper: Swapper,
    ended: &Receiver<()>,
) -> Swaps {
    while ended.recv_timeout(plan.every) == Err(RecvTimeoutError::Timeout) {
        if let Err(Refusal::RunEnded) = load(&mut swapper, config, helpers, &plan.bundle) {
            break;
        }
    }
    swapper.swaps()
}

/// Brings the model of another bundle into use.
fn load(
    swapper: &mut Swapper,
    config: &Arc<Config>,
    helpers: &Helpers,
    dir: &Path,
) -> Result<(), Refusal> {
    let opening = swapper.opening();
    let work = {
        let (opening, config, dir) = (opening.clone(), config.clone(), dir.to_owned());
        move || opening.prepare(&config, opening.open(&config, &dir)?)
    };
    let what = opening_model(dir);
    let prepared = helpers.open_model(|| &opening, &what, config.model.open_timeout, work)?;
    swapper.swap(prepared).map(drop)
}
