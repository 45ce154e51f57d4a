//! The real analytics manager with its tasks in virtual time: only devices take time, and they
//! take the thread's.

use std::sync::Arc;
use std::time::Duration;

use accel::Device;
use analytics::{
    Accelerator, After, CacheConfig, Config, Manager, Need, Policy, RingInput, Round, Settings,
    Standby, Task, Test,
};
use cring::{Depth, Feature, TaskWords};

use super::device::{Clock, InlineDevice, K};
use super::flows::Flows;
use super::graphs::Case;
use fenxi::exit::Failure;

/// The clock goes on by this while something waits and nothing happens: how exactly an age is met.
const TICK_NS: u64 = 5_000;

/// A manager of a case's tasks, and what comes down its rings.
pub struct World {
    pub manager: Manager,
    pub flows: Flows,
    pub clock: Arc<Clock>,
    configs: Vec<Config>,
    /// Whether some task fires by age, so that time matters where nothing comes.
    has_ages: bool,
}

impl World {
    /// Each task has its policy.
    ///
    /// # Errors
    /// When the manager refuses it.
    pub fn new(case: &Case, policies: &[Policy]) -> Result<World, Failure> {
        let clock = Arc::new(Clock::default());
        let (flows, inputs) = Flows::new(case);
        let configs: Vec<Config> =
            (0..case.nodes.len()).map(|number| config(case, number, policies[number])).collect();
        let tasks = inputs.into_iter().zip(&configs).enumerate();
        let tasks = tasks
            .map(|(number, (input, config))| task(case, number, config.clone(), input, &clock));
        let tasks: Result<Vec<Task>, Failure> = tasks.collect();
        Ok(World {
            manager: Manager::new(tasks?),
            flows,
            clock,
            has_ages: has_ages(policies),
            configs,
        })
    }

    /// Goes on until then, or to the end of the batch that runs then.
    pub fn run_until(&mut self, end_ns: u64) {
        let mut now_ns = self.clock.now_ns();
        while now_ns < end_ns {
            self.flows.arrive(now_ns);
            let round = self.manager.round(now_ns);
            if self.clock.now_ns() == now_ns && round == Round::Idle {
                let next_ns = match self.has_ages && self.manager.undecided() > 0 {
                    true => self.flows.next_ns().min(now_ns + TICK_NS),
                    false => self.flows.next_ns(),
                };
                self.clock.set(next_ns.min(end_ns));
            }
            now_ns = self.clock.now_ns();
        }
    }

    /// Changes the policies of all tasks as a reload does.
    ///
    /// # Errors
    /// When the manager refuses them.
    pub fn reload(&mut self, policies: &[Policy]) -> Result<(), Failure> {
        self.has_ages = has_ages(policies);
        let tasks = self.manager.tasks_mut().iter_mut();
        for ((task, old), policy) in tasks.zip(&mut self.configs).zip(policies) {
            let new = Config { policy: *policy, ..old.clone() };
            let settings = Settings::change(old, &new);
            let settings = settings.map_err(|error| Failure::software(error.to_string()))?;
            let standby = Standby { model: None, settings: Some(settings) };
            task.prepare(standby)
                .map_err(|refused| Failure::software(refused.error.to_string()))?;
            task.commit();
            let _retired = task.take_retired();
            *old = new;
        }
        Ok(())
    }
}

/// `none`, `max` and `on-off` wait for series or devices only.
fn has_ages(policies: &[Policy]) -> bool {
    let knows_none = |it: &Policy| matches!(it, Policy::None | Policy::Max | Policy::OnOff { .. });
    !policies.iter().all(knows_none)
}

/// A task of a case.
fn config(case: &Case, number: usize, policy: Policy) -> Config {
    let classes = case.shares.len();
    let need = |(before, wanted): &(usize, Vec<bool>)| Need {
        words: TaskWords {
            first: *before as u8,
            depths: vec![Depth { sure: 0, classes, contradicts: None }],
        },
        test: Test::Class { is_wanted: wanted.clone(), without: false },
    };
    let needs = case.nodes[number].after.iter().map(need);
    Config {
        k: K,
        features: vec![Feature::SignedLength],
        context: Vec::new(),
        policy,
        cache: CacheConfig { prefix: 0, entries: 0, audit: 0.0 },
        probe: Vec::new(),
        word: number as u8,
        priority: 0,
        after: After { needs: needs.collect() },
    }
}

/// The task, with a device of its own that works on the thread that all share.
fn task(
    case: &Case,
    number: usize,
    config: Config,
    input: RingInput,
    clock: &Arc<Clock>,
) -> Result<Task, Failure> {
    let profile = case.nodes[number].profile;
    let device = InlineDevice::new(profile, case.cap, clock.clone());
    let device: Box<dyn Device> = Box::new(device);
    let accelerator = Accelerator { profile: Some(profile), ..device.into() };
    Task::new(config, vec![input], vec![accelerator])
        .map_err(|error| Failure::software(error.to_string()))
}

/// A goal for each task, as policies.
pub fn with_goals(goals: &[Duration], of: impl Fn(Duration) -> Policy) -> Vec<Policy> {
    goals.iter().map(|goal| of(*goal)).collect()
}
