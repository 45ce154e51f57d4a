//! The checked form: what the rest of the program uses. The types say what was checked.
//!
//! Each file declares sections: structs whose fields are keys. The `Default` of a section is blank,
//! not the built-in defaults: values are stored over it. A [`Config`] comes from [`Config::load`].

use packetio::{BackendSettings, DpdkSettings, XdpSettings};
use policy::LabelRule;

use crate::keys::{Keyed, Section};
use crate::network::Network;
use crate::origin::Origin;
use crate::settings::{Setting, Settings, Table};
use crate::when::When;

mod analytics;
mod control;
mod device;
mod dpdk;
mod flow;
mod io;
mod learn;
mod mark;
mod model;
mod pipeline;
mod policy_rules;
mod records;
mod task;
mod xdp;

pub use analytics::{Batching, Cache, PolicyName};
pub use control::{Control, HttpPlace, Log, LogTo};
pub use device::{Accel, AccelKeys, Device, DeviceKeys, DeviceThread};
pub use flow::{Behaviours, ByRun, Flow, FlowHash, Measure, Servers};
pub use io::{Capture, Io, IoMode};
pub use learn::Learn;
pub use mark::{BehaviourMark, Mapping, Mark, MarkAs, Tag};
pub use model::{Hosts, Model};
pub use pipeline::{Pipeline, Process, Ring};
pub use policy_rules::{Policy, PolicyUpdate};
pub use records::{Records, Rotate};
pub use task::{DEFAULT_TASK, TASKS_MAX, Task, TaskKeys, needed};
pub(crate) use task::{GOAL_KEYS, section_key};

/// The sections that have a field in [`Config`], in the order in which they are shown.
pub static SECTIONS: &[&Section] = &[
    Io::SECTION,
    XdpSettings::SECTION,
    DpdkSettings::SECTION,
    Flow::SECTION,
    Behaviours::SECTION,
    Servers::SECTION,
    Measure::SECTION,
    Tag::SECTION,
    Mark::SECTION,
    Ring::SECTION,
    Batching::SECTION,
    Cache::SECTION,
    Pipeline::SECTION,
    AccelKeys::SECTION,
    Model::SECTION,
    Hosts::SECTION,
    Policy::SECTION,
    Records::SECTION,
    Learn::SECTION,
    Control::SECTION,
    Process::SECTION,
    Log::SECTION,
    DeviceKeys::SECTION,
    TaskKeys::SECTION,
];

/// What backends are told, each in a section of its own.
pub(crate) fn of_backends(settings: &Settings, problems: &mut Vec<String>) -> BackendSettings {
    BackendSettings { xdp: settings.read(problems), dpdk: settings.read(problems) }
}

/// A configuration that holds together.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Packet input and output.
    pub io: Io,
    /// The flow manager.
    pub flow: Flow,
    /// What flows do, by their counts.
    pub behaviour: Behaviours,
    /// What flows to a server weighed.
    pub servers: Servers,
    /// What is measured of flows.
    pub measure: Measure,
    /// Marking of labelled packets.
    pub tag: Tag,
    /// Marks of connections, where the kernel forwards.
    pub mark: Mark,
    /// What is done with flows by rules.
    pub policy: Policy,
    /// The ring from flow manager to analytics manager.
    pub ring: Ring,
    /// What is asked of flows: 1 to [`TASKS_MAX`] tasks. What the first says also stands in
    /// `analytics`, `cache`, `accel`, `model`, `tag` and `mark`.
    pub tasks: Vec<Task>,
    /// Batching.
    pub analytics: Batching,
    /// The prefix cache; `None`: off.
    pub cache: Option<Cache>,
    /// Threads.
    pub pipeline: Pipeline,
    /// Devices that run the model.
    pub accel: Accel,
    /// The model bundle.
    pub model: Model,
    /// Where hosts are whose flows name them; empty: their private addresses tell.
    pub host_networks: Vec<Network>,
    /// The task whose labels name hosts; `None`: the first.
    pub host_task: Option<String>,
    /// Records of flows, labels and hosts.
    pub records: Records,
    /// Samples of flows, for a program that tunes models.
    pub learn: Learn,
    /// Metrics, health and the control socket.
    pub control: Control,
    /// Whether a live run drops the rights that it no longer needs after its start.
    pub sandbox: bool,
    /// What a live run logs.
    pub log: Log,
    /// The sections of sinks, which have no field here.
    pub(crate) others: Vec<Table>,
}

impl Config {
    /// The values of a section that no field has.
    pub fn section<T: Keyed>(&self) -> T {
        let mut section = T::defaults();
        let is_of = |table: &&Table| table.section.name == T::SECTION.name;
        // Problems were reported when the configuration was checked.
        if let Some(table) = self.others.iter().find(is_of) {
            section.store_table(table, &mut Vec::new());
        }
        section
    }

    /// The number of the task of this name; the first without a name.
    pub fn task_number(&self, name: Option<&str>) -> usize {
        let mut tasks = self.tasks.iter();
        // A name without a task was reported when the configuration was checked.
        tasks.position(|task| Some(&*task.name) == name).unwrap_or(0)
    }

    /// The task that a label such as `task.label` names, and the label.
    pub fn named_task<'l>(&self, label: &'l str) -> Option<(usize, &'l str)> {
        let of_task = |task: &Task| label.strip_prefix(&*task.name)?.strip_prefix('.');
        self.tasks.iter().enumerate().find_map(|(number, task)| Some((number, of_task(task)?)))
    }

    /// Gives a key of such a section its built-in value.
    pub fn reset(&mut self, path: &str) {
        let (section, name) = path.split_once('.').unwrap_or((path, ""));
        let mut tables = self.others.iter_mut();
        let table = tables.find(|table| table.section.name == section);
        if let Some(table) = table
            && let Some(at) = table.section.position(name)
        {
            table.values[at] = Some(Setting::built_in(&table.section.keys[at]));
        }
    }

    /// The tables of a section with names of the user's choice.
    pub fn tables<T: Keyed>(&self) -> Vec<Named<T>> {
        let is_of = |table: &&Table| table.section.name == T::SECTION.name;
        let tables = self.others.iter().filter(is_of).map(|table| {
            let mut keys = T::defaults();
            keys.store_table(table, &mut Vec::new());
            Named { name: table.name.clone(), origin: table.origin.clone(), keys }
        });
        tables.collect()
    }

    /// The places in [`Layout::sessions`](crate::layout::Layout::sessions) of the devices that have
    /// a thread of their own.
    pub fn device_threads(&self) -> Vec<usize> {
        let sessions = self.pipeline.layout.sessions();
        let own = sessions.iter().enumerate().filter(|(_, session)| {
            // The check reports where too few devices are named.
            let mut tasks = self.tasks.iter();
            tasks.any(|task| {
                let device = task.devices.get(session.device);
                device.is_some_and(|device| {
                    let mut candidates = device.otherwise.as_deref().into_iter().chain([device]);
                    candidates.any(|device| device.thread == DeviceThread::Own)
                })
            })
        });
        own.map(|(place, _)| place).collect()
    }

    /// What labels ask for: DSCP where packets are marked, bits of the connection mark where the
    /// kernel forwards.
    pub fn rules(&self) -> Vec<LabelRule> {
        let mut rules = self.tag.rules();
        if self.io.mode == IoMode::Mark {
            rules.extend(self.mark.rules());
        }
        rules
    }

    /// What the labels of one task ask for; for the first task, [`Config::rules`].
    pub fn rules_of(&self, task: usize) -> Vec<LabelRule> {
        let Some(asked) = self.tasks.get(task).filter(|_| task > 0) else {
            return self.rules();
        };
        let mut rules = match self.tag.enabled {
            true => asked.dscp_rules(),
            false => Vec::new(),
        };
        if self.io.mode == IoMode::Mark {
            rules.extend(asked.mark_rules());
        }
        rules
    }

    /// This configuration with one of its tasks as the only one, asked about every flow, for what
    /// works on one model.
    pub fn of_task(&self, number: usize) -> Config {
        let mut config = self.clone();
        let Some(task) = self.tasks.get(number) else {
            return config;
        };
        config.analytics = task.batching.clone();
        config.cache = task.cache.clone();
        config.accel.devices = task.devices.clone();
        config.model.path = task.model.clone();
        config.model.min_confidence = task.min_confidence;
        config.tag.dscp = task.dscp.clone();
        config.model.class_confidence.retain_mut(|entry| match self.named_task(&entry.label) {
            Some((task, label)) => {
                entry.label = label.to_owned();
                task == number
            }
            None => number == 0,
        });
        if number > 0 {
            config.mark.class = task.mark.clone();
            config.mark.mask = task.mark_mask;
            // A DSCP in the mark is the first task's.
            config.mark.holds = MarkAs::Label;
        }
        config.tasks = vec![Task { when: When::default(), ..task.clone() }];
        config
    }

    /// The interface that packets are copied to where rules ask for it; only mode inline copies.
    pub fn mirror(&self) -> Option<&str> {
        let mirror = self.policy.mirror.as_deref();
        mirror.filter(|_| self.io.mode == IoMode::Inline)
    }

    /// How many threads the data path has, in all pipelines.
    pub fn thread_count(&self) -> usize {
        let layout = &self.pipeline.layout;
        let managers = layout.flow_managers + layout.analytics_managers;
        self.pipeline.instances * (managers + self.device_threads().len())
    }
}

/// What a table with a name of the user's choice says.
#[derive(Debug, Clone, PartialEq)]
pub struct Named<T> {
    /// The name.
    pub name: String,
    /// Where the table was first named.
    pub origin: Origin,
    /// Its values.
    pub keys: T,
}
