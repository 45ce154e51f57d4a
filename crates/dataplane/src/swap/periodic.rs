//! The exchange of the model again and again, as `fenxi replay --swap-model` and `fenxi bench swap` have it: a thread that
//! drives [`super::exchange`]. A live run exchanges by order instead, see [`mod@crate::run`].

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use accel::Bundle;
use analytics::Manager;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use super::exchange::{Exchange, ExchangePort, Refusal};
use super::helpers::{Helpers, RunLasts};
use super::threads::{Cores, Thread};
use crate::config::Config;
use crate::control::in_use::{InUse, Swaps};
use crate::exit::Failure;

/// Which model comes in, and when.
pub struct Plan {
    /// Folder of its bundle.
    pub bundle: PathBuf,
    /// Between the end of one exchange and the beginning of the next.
    pub every: Duration,
}

/// The thread.
pub struct Swapper {
    thread: JoinHandle<Swaps>,
    /// Dropped to end it.
    goes_on: Sender<()>,
    /// Dropped so that it waits for nothing any more.
    lasts: RunLasts,
}

impl Swapper {
    /// Starts the thread, for these analytics threads; each is given its end.
    ///
    /// # Errors
    /// No thread.
    pub fn start(
        plan: Plan,
        config: &Config,
        cores: &Cores,
        bundle: &Bundle,
        in_use: Arc<InUse>,
        analytics: &[(Thread, Manager)],
    ) -> Result<(Swapper, Vec<ExchangePort>), Failure> {
        let (helpers, lasts) = Helpers::new(cores, in_use);
        let (exchange, ports) = Exchange::new(&helpers, bundle, analytics);
        let (goes_on, ended) = bounded(0);
        let (config, cores) = (Arc::new(config.clone()), cores.clone());
        let thread = std::thread::Builder::new()
            .name("swap".to_owned())
            .spawn(move || {
                cores.keep_off();
                run(&plan, &config, &helpers, exchange, &ended)
            })
            .map_err(|error| Failure::unavailable(format!("no thread for models: {error}")))?;
        let swapper = Swapper {
            thread,
            goes_on,
            lasts,
        };
        Ok((swapper, ports))
    }

    /// Ends the thread; a model that it is at is left alone.
    ///
    /// # Errors
    /// It died.
    pub fn finish(self) -> Result<Swaps, Failure> {
        drop((self.goes_on, self.lasts));
        let died = |_| Failure::software("the thread that exchanges models died");
        self.thread.join().map_err(died)
    }
}

fn run(
    plan: &Plan,
    config: &Arc<Config>,
    helpers: &Helpers,
    mut exchange: Exchange,
    ended: &Receiver<()>,
) -> Swaps {
    while ended.recv_timeout(plan.every) == Err(RecvTimeoutError::Timeout) {
        if let Err(Refusal::RunEnded) = load(&mut exchange, config, helpers, &plan.bundle) {
            break;
        }
    }
    exchange.swaps()
}

/// Brings the model of another bundle into use.
fn load(
    exchange: &mut Exchange,
    config: &Arc<Config>,
    helpers: &Helpers,
    dir: &Path,
) -> Result<(), Refusal> {
    let opening = exchange.opening();
    let work = {
        let (opening, config, dir) = (opening.clone(), config.clone(), dir.to_owned());
        move || opening.prepare(&config, opening.open(&config, &dir)?)
    };
    let prepared = helpers.open_model(&opening, dir, config.model.open_timeout, work)?;
    exchange.exchange(prepared).map(drop)
}
