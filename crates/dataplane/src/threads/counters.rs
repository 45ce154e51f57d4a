//! Snapshots: the counters of a thread of the data path at one moment.

use std::time::Duration;

use analytics::{DeviceProfile, DeviceState};
use cring::Counter;
use packetio::{RxCounts, TxCounts};

use crate::threads::rules::RuleCounts;

/// What a flow worker received from a port, and sent out of it, since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Received.
    pub rx: RxCounts,
    /// Sent.
    pub tx: TxCounts,
    /// Received to be sent out of it, and dropped by rules.
    pub ruled_out: u64,
}

impl PortCounters {
    /// Adds the counters of another flow worker or port.
    pub fn merge(&mut self, other: &PortCounters) {
        self.rx.merge(&other.rx);
        self.tx.merge(&other.tx);
        self.ruled_out += other.ruled_out;
    }

    /// The sum of several.
    pub fn sum<'a>(ports: impl IntoIterator<Item = &'a PortCounters>) -> PortCounters {
        let mut sum = PortCounters::default();
        ports.into_iter().for_each(|port| sum.merge(port));
        sum
    }
}

/// A flow manager's thread between two bursts.
#[derive(Debug, Default)]
pub struct FlowSnapshot {
    /// What the manager counted.
    pub counters: flowmgr::Counters,
    /// Its ports, in the order of the worker's ports.
    pub ports: Vec<PortCounters>,
    /// Copies of packets.
    pub copied: TxCounts,
    /// Whether every received packet has to leave again.
    pub forwards: bool,
    /// Flows in the table.
    pub alive: u64,
    /// Flows in the table that nobody has answered yet.
    pub half_open: u64,
    /// Flows that left it and wait for their record.
    pub unrecorded: u64,
    /// Steps of the clock that stamps packets: back in a capture, either way live.
    pub clock_steps: u64,
    /// What rules have counted; nothing without rules.
    pub rules: RuleCounts,
}

impl FlowSnapshot {
    /// A snapshot with these counters and `ports` ports; everything else is 0.
    pub fn new(counters: &flowmgr::Counters, ports: usize) -> FlowSnapshot {
        FlowSnapshot {
            counters: counters.clone(),
            ports: vec![PortCounters::default(); ports],
            ..FlowSnapshot::default()
        }
    }

    /// All ports together.
    pub fn port_counters(&self) -> PortCounters {
        PortCounters::sum(&self.ports)
    }

    /// Adds what another thread of the pipeline has.
    pub fn merge(&mut self, other: &FlowSnapshot) {
        let FlowSnapshot {
            counters,
            ports,
            copied,
            forwards,
            alive,
            half_open,
            unrecorded,
            clock_steps,
            rules,
        } = other;
        self.counters.merge(counters);
        self.ports.resize(ports.len(), PortCounters::default());
        for (sum, port) in self.ports.iter_mut().zip(ports) {
            sum.merge(port);
        }
        self.copied.merge(copied);
        self.forwards |= forwards;
        self.alive += alive;
        self.half_open += half_open;
        self.unrecorded += unrecorded;
        self.clock_steps += clock_steps;
        self.rules.merge(rules);
    }
}

/// An analytics thread between two rounds: its tasks, in the order of the configuration.
#[derive(Debug, Clone)]
pub struct AnalyticsSnapshot {
    /// At least one.
    pub tasks: Vec<TaskSnapshot>,
}

/// A task of an analytics thread.
#[derive(Debug, Clone)]
pub struct TaskSnapshot {
    /// What it counted.
    pub counters: analytics::Counters,
    /// Series on their way through a device.
    pub on_devices: u64,
    /// State of each device.
    pub states: Vec<DeviceState>,
    /// Profile of each device that has one.
    pub profiles: Vec<Option<DeviceProfile>>,
    /// Whether its goal can hold, given the goals of the other tasks.
    pub goal: GoalState,
}

/// How a task's goal can hold on devices that it shares with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GoalState {
    /// How many of its first devices it leaves to tasks with shorter goals.
    pub devices_left: usize,
    /// Where no plan can keep the goal in the worst case: how long the largest batches of all tasks
    /// on a device take.
    pub unreachable: Option<Duration>,
}

impl GoalState {
    fn from_task(task: &analytics::Task) -> GoalState {
        GoalState { devices_left: task.devices_left(), unreachable: task.unreachable() }
    }
}

impl AnalyticsSnapshot {
    /// The manager's counters and devices at this moment.
    pub fn from_manager(manager: &analytics::Manager) -> AnalyticsSnapshot {
        AnalyticsSnapshot { tasks: manager.tasks().iter().map(TaskSnapshot::from_task).collect() }
    }

    /// Takes the manager's counters again, into the memory that is there.
    pub fn update(&mut self, manager: &analytics::Manager) {
        let tasks = self.tasks.iter_mut().zip(manager.tasks());
        tasks.for_each(|(snapshot, task)| snapshot.update(task));
    }

    /// The sums of all tasks; their devices follow each other.
    pub fn counters(&self) -> analytics::Counters {
        let mut sum = analytics::Counters::none();
        self.tasks.iter().for_each(|task| sum.merge(&task.counters));
        sum
    }

    /// Series on their way through a device.
    pub fn on_devices(&self) -> u64 {
        self.tasks.iter().map(|task| task.on_devices).sum()
    }

    /// State and counters of each device, task by task.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceState, &analytics::DeviceCounters)> {
        self.tasks.iter().flat_map(TaskSnapshot::devices)
    }

    /// Profile of each device that has one, in the order of [`AnalyticsSnapshot::devices`].
    pub fn profiles(&self) -> impl Iterator<Item = Option<DeviceProfile>> {
        let tasks = self.tasks.iter();
        tasks.flat_map(|task| task.profiles.iter().copied())
    }
}

impl TaskSnapshot {
    /// State and counters of each device.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceState, &analytics::DeviceCounters)> {
        self.states.iter().copied().zip(&self.counters.devices)
    }

    fn from_task(task: &analytics::Task) -> TaskSnapshot {
        TaskSnapshot {
            counters: task.counters().clone(),
            on_devices: task.on_devices(),
            states: task.health().map(|health| health.state).collect(),
            profiles: task.profiles().collect(),
            goal: GoalState::from_task(task),
        }
    }

    fn update(&mut self, task: &analytics::Task) {
        self.counters.copy_from(task.counters());
        self.on_devices = task.on_devices();
        self.states.clear();
        self.states.extend(task.health().map(|health| health.state));
        self.profiles.clear();
        self.profiles.extend(task.profiles());
        self.goal = GoalState::from_task(task);
    }
}
