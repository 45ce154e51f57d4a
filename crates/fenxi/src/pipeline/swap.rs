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
        let (exchange, ports) = Exchange::new(cores, bundle, in_use, analytics);
        let (goes_on, ended) = bounded(0);
        let (config, cores) = (config.clone(), cores.clone());
        let thread = std::thread::Builder::new()
            .name("swap".to_owned())
            .spawn(move || {
                cores.keep_off();
                run(&plan, &config, exchange, &ended)
            })
            .map_err(|error| Failure::unavailable(format!("no thread for models: {error}")))?;
        Ok((Swapper { thread, goes_on }, ports))
    }

    /// Ends the thread when it has finished what it is at.
    ///
    /// # Errors
    /// It died.
    pub fn finish(self) -> Result<Swaps, Failure> {
        drop(self.goes_on);
        let died = |_| Failure::software("the thread that exchanges models died");
        self.thread.join().map_err(died)
    }
}

fn run(plan: &Plan, config: &Config, mut exchange: Exchange, ended: &Receiver<()>) -> Swaps {
    while ended.recv_timeout(plan.every) == Err(RecvTimeoutError::Timeout) {
        if let Err(Refusal::RunEnded) = load(&mut exchange, config, &plan.bundle) {
            break;
        }
    }
    exchange.swaps()
}

/// Brings the model of another bundle into use.
fn load(exchange: &mut Exchange, config: &Config, dir: &Path) -> Result<(), Refusal> {
    let bundle = exchange.open(config, dir)?;
    let prepared = exchange.prepare(config, bundle)?;
    exchange.exchange(prepared).map(drop)
}
