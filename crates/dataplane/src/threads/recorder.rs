//! The seam for a recording of a run. Each call that changes a manager is a step; where there is a
//! recorder, it makes the call and notes the step.

use analytics::{Refused, Round, Standby};
use flowmgr::record::Record;

use crate::opening::inline::FlowManager;
use flowmgr::{Counted, Fate, Packet, RuleAnswer, RulesChange, Settings};

/// The configurations of a task before and after a swap, from which its settings were made.
pub type Change = (analytics::Config, analytics::Config);

/// A call that changes a flow manager, with its arguments.
pub enum FlowStep<'a> {
    /// [`flowmgr::Manager::receive_from`], or else [`flowmgr::Manager::note_port`].
    Port {
        /// Number of the port.
        port: u8,
        /// Whether flows belong to it.
        owns_flows: bool,
    },
    /// [`flowmgr::Manager::burst`].
    Burst(&'a mut [u8], &'a [Packet], u64, &'a mut Vec<Fate>),
    /// [`flowmgr::Manager::count`] for each of these; the numbers of flows that are not known go
    /// into the list.
    Count(&'a [Counted], &'a mut Vec<u32>),
    /// [`flowmgr::Manager::pass`].
    Pass(i64),
    /// [`flowmgr::Manager::settle_some`].
    Settle(usize, u64, &'a mut dyn FnMut(&mut Record)),
    /// [`flowmgr::Manager::configure`].
    Configure(&'a mut Settings),
    /// [`flowmgr::Manager::change_rules`].
    ChangeRules(&'a mut RulesChange),
    /// [`flowmgr::Manager::answer_rules`].
    AnswerRules(&'a [RuleAnswer], &'a mut [u8], &'a [Packet], u64, &'a mut Vec<Fate>),
    /// [`flowmgr::Manager::drain`].
    Drain,
}

impl FlowStep<'_> {
    /// Makes the call, through the recorder if there is one; returns how many flows were settled.
    #[inline]
    pub fn take(
        self,
        manager: &mut FlowManager,
        recorder: &mut Option<Box<dyn FlowRecorder>>,
    ) -> usize {
        match recorder {
            None => self.apply(manager),
            Some(recorder) => recorder.step(manager, self),
        }
    }

    /// Makes the call.
    #[inline]
    pub fn apply(self, manager: &mut FlowManager) -> usize {
        match self {
            FlowStep::Port { port, owns_flows: true } => manager.receive_from(port),
            FlowStep::Port { port, .. } => manager.note_port(port),
            FlowStep::Burst(data, packets, now_ns, fates) => {
                manager.burst(data, packets, now_ns, fates);
            }
            FlowStep::Count(flows, unknown) => {
                let new = flows.iter().zip(0..).filter(|(flow, _)| !manager.count(flow));
                unknown.extend(new.map(|(_, number)| number));
            }
            FlowStep::Pass(time_us) => manager.pass(time_us),
            FlowStep::Settle(most, now_ns, out) => return manager.settle_some(most, now_ns, out),
            FlowStep::Configure(settings) => manager.configure(settings),
            FlowStep::ChangeRules(change) => manager.change_rules(change),
            FlowStep::AnswerRules(answers, data, packets, now_ns, fates) => {
                manager.answer_rules(answers, data, packets, now_ns, fates);
            }
            FlowStep::Drain => manager.drain(),
        }
        0
    }
}

/// Records one flow worker.
pub trait FlowRecorder: Send {
    /// Applies the step and notes it.
    fn step(&mut self, manager: &mut FlowManager, step: FlowStep<'_>) -> usize;

    /// The worker has ended.
    fn leave(&mut self, manager: &FlowManager);
}

/// Records one analytics worker. Each method makes the call of the same name; those on a task name
/// it by its number.
pub trait SeriesRecorder: Send {
    /// Whether steps are recorded: then a thread that polls must leave the recording's lock to
    /// others.
    fn is_open(&self) -> bool {
        false
    }

    /// `_drains` says whether [`analytics::Manager::drain`] was called before.
    fn round(&mut self, manager: &mut analytics::Manager, now_ns: u64, _drains: bool) -> Round {
        manager.round(now_ns)
    }

    /// # Errors
    /// The task's.
    fn prepare(
        &mut self,
        manager: &mut analytics::Manager,
        task: usize,
        standby: Standby,
        _change: Option<&Change>,
    ) -> Result<(), Refused> {
        manager.tasks_mut()[task].prepare(standby)
    }

    /// [`analytics::Task::commit`].
    fn commit(&mut self, manager: &mut analytics::Manager, task: usize) {
        manager.tasks_mut()[task].commit();
    }

    /// [`analytics::Task::abort`].
    fn abort(&mut self, manager: &mut analytics::Manager, task: usize) -> Option<Standby> {
        manager.tasks_mut()[task].abort()
    }

    /// The worker has ended.
    fn leave(&mut self, _manager: &analytics::Manager) {}
}

/// Only makes the calls.
pub struct NotRecorded;

impl SeriesRecorder for NotRecorded {}

impl Default for Box<dyn SeriesRecorder> {
    fn default() -> Self {
        Box::new(NotRecorded)
    }
}
