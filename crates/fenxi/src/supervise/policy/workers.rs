//! Changes settings and rules of the flow workers.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use dataplane::Error;
use dataplane::rules::{RulesInForce, RulesUpdate};
use dataplane::settings::{SettingsSender, Update, WorkerEnded};
use dataplane::swap::Refusal;

/// Minimum time between two changes of the rules: each makes every flow look its rule up again.
const RULES_APART: Duration = Duration::from_millis(20);

pub struct Workers {
    workers: Vec<SettingsSender>,
    max_flows: usize,
    /// Whether they have had rules.
    pub have_rules: bool,
    /// The kernel's program marks connections or writes DSCPs, and knows no rules.
    pub kernel_acts: bool,
    /// Time of the last change of the rules.
    changed: Instant,
}

impl Workers {
    /// Workers whose tables hold `max_flows` each.
    pub fn new(workers: Vec<SettingsSender>, have_rules: bool, max_flows: usize) -> Workers {
        let changed = Instant::now();
        Workers { workers, max_flows, have_rules, kernel_acts: false, changed }
    }

    /// Gives all workers new settings and rules, waits until they use them, and drops the old ones.
    ///
    /// # Errors
    /// The run ends; no memory for the first rules; or the kernel would act against them.
    pub fn update(
        &mut self,
        settings: Option<&flowmgr::Settings>,
        rules: Option<&RulesInForce>,
        run_ended: &Receiver<Infallible>,
    ) -> Result<(), Refusal> {
        if settings.is_none() && rules.is_none() {
            return Ok(());
        }
        if rules.is_some() && !self.have_rules && self.kernel_acts {
            let why = "the kernel marks and tags by labels alone (io.capture = \"kernel\"); \
                name the rules in policy.rules, without tag.in_kernel, and restart fenxi"
                .to_owned();
            return Err(Error::Config(why).into());
        }
        if rules.is_some() {
            self.wait_for_turn(run_ended)?;
        }
        let of_worker = |_: &SettingsSender| {
            let rules = rules.cloned().map(|rules| match self.have_rules {
                true => Ok(RulesUpdate::again(rules)),
                false => RulesUpdate::new(rules, self.max_flows, false),
            });
            Ok(Update { settings: settings.cloned(), rules: rules.transpose()? })
        };
        // All updates exist before the first is sent: allocating one may fail.
        let updates: Result<Vec<Update>, Refusal> = self.workers.iter().map(of_worker).collect();
        let ended = |WorkerEnded| Refusal::RunEnded;
        for (worker, update) in self.workers.iter().zip(updates?) {
            worker.send(update).map_err(ended)?;
        }
        for worker in &self.workers {
            worker.taken(run_ended).map_err(ended)?;
        }
        if rules.is_some() {
            (self.have_rules, self.changed) = (true, Instant::now());
        }
        Ok(())
    }

    /// Waits until the rules may change again.
    fn wait_for_turn(&self, run_ended: &Receiver<Infallible>) -> Result<(), Refusal> {
        let left = RULES_APART.saturating_sub(self.changed.elapsed());
        match run_ended.recv_timeout(left) {
            Err(RecvTimeoutError::Timeout) => Ok(()),
            _ => Err(Refusal::RunEnded),
        }
    }
}
