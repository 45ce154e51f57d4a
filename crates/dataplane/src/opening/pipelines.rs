//! The pipelines of a run: flow managers, analytics managers and the rings between them, built from
//! a checked configuration.

use std::sync::Arc;
use std::time::Duration;

use accel::Bundle;
use analytics::{Accelerator, CacheConfig, Policy, RingInput};
use cring::{Consumer, Mesh, Slot};
use flowmgr::{Actions, Effect, hash::HashKind};

use crate::Error;
use config::Config;
use config::checked::{Capture, FlowHash, Pipeline};
use config::layout::Layout;

use crate::opening::bundle::{context, features};
use crate::opening::devices::Opener;
use crate::opening::inline::{FlowManager, Inline};
use crate::opening::profiles::Profiles;
use crate::opening::tasks::{OpenTask, TaskNames, actions};
use crate::placement::{Cores, Role, Thread};

pub use config::layout;

/// Seed of the bucket hash in a replay, so that runs repeat.
const REPLAY_SEED: u64 = 0x5eed;

/// The managers of all pipelines, connected by rings, and the names of the classes.
pub struct Pipelines {
    /// The packet's walk: the flow managers, pipeline by pipeline.
    pub flow_managers: Vec<(Thread, FlowManager)>,
    /// The series' walk: the analytics managers, pipeline by pipeline.
    pub analytics: Vec<(Thread, analytics::Manager)>,
    /// Names of the tasks and of their classes.
    pub names: Arc<[TaskNames]>,
}

/// Options of flow managers that depend on the kind of run, not on the configuration.
#[derive(Clone, Copy)]
pub struct FlowOptions {
    /// The time from which on a label counts.
    pub effect: Effect,
    /// The flows whose records have the series.
    pub record_series: flowmgr::SeriesShare,
}

impl Pipelines {
    /// Builds the pipelines for a replay.
    ///
    /// # Errors
    /// A bundle, library or device that cannot be used, or does not fit the configuration.
    pub fn for_replay(
        config: &Config,
        tasks: &[OpenTask],
        cores: &Cores,
        options: FlowOptions,
    ) -> Result<Pipelines, Error> {
        let mut packets = PacketSide::build(config, tasks, options)?;
        packets.open_inline(tasks, cores)?;
        let opened = packets.series.open(tasks, cores, &Profiles::new(tasks))?;
        Ok(Pipelines {
            analytics: OpenedManager::managers(opened)?,
            flow_managers: packets.flow_managers,
            names: packets.names,
        })
    }
}

/// The packets' side of all pipelines. It works without the other side: series that find no room in
/// a ring are shed.
pub struct PacketSide {
    /// The flow managers, pipeline by pipeline.
    pub flow_managers: Vec<(Thread, FlowManager)>,
    /// Names of the tasks and of their classes.
    pub names: Arc<[TaskNames]>,
    /// The consumers of the rings, from which the series' side is built.
    pub series: SeriesSide,
}

/// The consumers of the rings, by analytics manager and task.
pub struct SeriesSide(Vec<(Thread, Vec<Vec<RingInput>>)>);

impl PacketSide {
    /// Builds it; no device is opened.
    ///
    /// # Errors
    /// Classes that do not fit the configuration; no memory.
    pub fn build(
        config: &Config,
        tasks: &[OpenTask],
        options: FlowOptions,
    ) -> Result<PacketSide, Error> {
        let names = tasks.iter().map(OpenTask::names).collect();
        let flow = flow_config(config, tasks, options)?;
        let are_inline: Vec<bool> = tasks.iter().map(|task| task.is_inline).collect();
        PacketSide::new(&flow, &config.pipeline, (config.ring.slots, &are_inline), names)
    }

    /// Opens the devices of the tasks whose series are answered at once.
    ///
    /// # Errors
    /// A device or a model that cannot be used.
    pub fn open_inline(&mut self, tasks: &[OpenTask], cores: &Cores) -> Result<(), Error> {
        if !tasks.iter().any(|task| task.is_inline) {
            return Ok(());
        }
        let words = tasks.iter().enumerate();
        let words = words.flat_map(|(number, task)| vec![number; task.series.depths.len()]);
        let task_of_word: Vec<usize> = words.collect();
        let profiles = Profiles::new(tasks);
        for (thread, manager) in &mut self.flow_managers {
            let opened = tasks.iter().map(|task| {
                let accelerators = match task.is_inline {
                    true => opener(task, cores, &profiles).accelerators(thread)?,
                    false => Vec::new(),
                };
                Ok(OpenedTask { config: config_of_task(task), inputs: Vec::new(), accelerators })
            });
            let tasks = opened.collect::<Result<_, Error>>()?;
            let opened = OpenedManager { thread: thread.clone(), tasks };
            let task_of_word = task_of_word.clone();
            let managers = OpenedManager::managers(vec![opened])?.into_iter();
            *manager.parts_mut() =
                managers.map(|(_, manager)| Inline::new(manager, task_of_word.clone())).next();
        }
        Ok(())
    }

    /// Builds the packet side; all flow managers are configured like `flow`. `slots` says how many
    /// a ring has, and of which tasks series are answered at once, without rings.
    ///
    /// # Errors
    /// Numbers that are out of range; no memory.
    pub fn new(
        flow: &flowmgr::Config,
        pipeline: &Pipeline,
        slots: (usize, &[bool]),
        names: Arc<[TaskNames]>,
    ) -> Result<PacketSide, Error> {
        let mut side =
            PacketSide { flow_managers: Vec::new(), names, series: SeriesSide(Vec::new()) };
        for instance in 0..pipeline.instances {
            side.add(flow, &pipeline.layout, slots, instance)?;
        }
        Ok(side)
    }

    /// Adds a pipeline, whose flow managers are like `flow`: with a ring for each task between each
    /// two managers that work together.
    fn add(
        &mut self,
        flow: &flowmgr::Config,
        layout: &Layout,
        (ring_slots, are_inline): (usize, &[bool]),
        instance: usize,
    ) -> Result<(), Error> {
        let mut producers: Vec<Vec<_>> = (0..layout.flow_managers).map(|_| Vec::new()).collect();
        let mut consumers: Vec<Vec<_>> =
            (0..layout.analytics_managers).map(|_| Vec::new()).collect();
        for task in 0..self.names.len() {
            let is_inline = are_inline.get(task).is_some_and(|&is_inline| is_inline);
            let places = layout.rings().into_iter().filter(|_| !is_inline);
            let places = places.map(|ring| (ring.flow_manager, ring.analytics_manager));
            let rings = Mesh::new(places, ring_slots);
            let of_task = rings.producers.into_iter().chain(std::iter::repeat_with(Vec::new));
            producers.iter_mut().zip(of_task).for_each(|(all, of_task)| all.push(of_task));
            let of_task = rings.consumers.into_iter().chain(std::iter::repeat_with(Vec::new));
            consumers.iter_mut().zip(of_task).for_each(|(all, of_task)| all.push(of_task));
        }
        let mut labels = Vec::new();
        for (i, producers) in producers.into_iter().enumerate() {
            let mut flow = flow.clone();
            flow.flow_id_first = self.flow_managers.len() as u64;
            let manager = FlowManager::with_parts(flow, producers, None).map_err(flow_failure)?;
            labels.push(manager.labels());
            let role = Role::Flow(i);
            self.flow_managers.push((Thread { instance, role }, manager));
        }
        let input = |(flow_manager, series): (usize, Consumer<Slot>)| RingInput {
            series,
            labels: labels[flow_manager].clone(),
        };
        for (i, by_task) in consumers.into_iter().enumerate() {
            let of_task = |consumers: Vec<_>| consumers.into_iter().map(input).collect();
            let role = Role::Analytics(i);
            let inputs = by_task.into_iter().map(of_task).collect();
            self.series.0.push((Thread { instance, role }, inputs));
        }
        Ok(())
    }
}

/// An analytics manager whose devices are open.
pub struct OpenedManager {
    /// Its thread.
    pub thread: Thread,
    /// Its tasks.
    pub tasks: Vec<OpenedTask>,
}

/// What an analytics manager's task is made of.
pub struct OpenedTask {
    /// How it works.
    pub config: analytics::Config,
    /// Where its series come from.
    pub inputs: Vec<RingInput>,
    /// Its devices, open and warm.
    pub accelerators: Vec<Accelerator>,
}

impl OpenedManager {
    /// Makes the managers.
    ///
    /// # Errors
    /// A device that does not fit the configuration.
    pub fn managers(
        opened: Vec<OpenedManager>,
    ) -> Result<Vec<(Thread, analytics::Manager)>, Error> {
        let manager = |opened: OpenedManager| {
            let tasks = opened.tasks.into_iter().map(|task| {
                analytics::Task::new(task.config, task.inputs, task.accelerators)
                    .map_err(|error| Error::config(error.to_string()))
            });
            let tasks = tasks.collect::<Result<_, _>>()?;
            Ok((opened.thread, analytics::Manager::new(tasks)))
        };
        opened.into_iter().map(manager).collect()
    }
}

impl SeriesSide {
    /// The rings of each analytics manager, by task.
    pub fn into_inputs(self) -> impl Iterator<Item = Vec<Vec<RingInput>>> {
        self.0.into_iter().map(|(_, inputs)| inputs)
    }

    /// Opens and warms the devices.
    ///
    /// # Errors
    /// A library or device that cannot be used.
    pub fn open(
        self,
        tasks: &[OpenTask],
        cores: &Cores,
        profiles: &Profiles,
    ) -> Result<Vec<OpenedManager>, Error> {
        let opened = self.0.into_iter().map(|(thread, by_task)| {
            let tasks = tasks.iter().zip(by_task).map(|(task, inputs)| {
                let accelerators = match task.is_inline {
                    true => Vec::new(),
                    false => opener(task, cores, profiles).accelerators(&thread)?,
                };
                Ok(OpenedTask { accelerators, inputs, config: config_of_task(task) })
            });
            let tasks = tasks.collect::<Result<_, Error>>()?;
            Ok(OpenedManager { thread, tasks })
        });
        opened.collect()
    }
}

/// What opens a task's devices.
fn opener<'a>(task: &'a OpenTask, cores: &'a Cores, profiles: &'a Profiles) -> Opener<'a> {
    let (config, bundle) = (&task.config, &task.bundle);
    Opener { config, bundle, cores, golden_test: false, profiles }
}

/// How analytics managers work on a task. Answers at once need neither batching nor cache.
fn config_of_task(task: &OpenTask) -> analytics::Config {
    let config = analytics::Config {
        after: task.after.clone(),
        word: task.word,
        ..analytics_config(&task.config, &task.bundle)
    };
    match task.is_inline {
        true => analytics::Config {
            policy: Policy::None,
            cache: CacheConfig { prefix: 0, entries: 0, audit: 0.0 },
            ..config
        },
        false => config,
    }
}

fn flow_failure(error: flowmgr::ConfigError) -> Error {
    match error {
        flowmgr::ConfigError::Range { .. } => Error::config(error.to_string()),
        flowmgr::ConfigError::Memory { .. } => Error::unavailable(error.to_string()),
    }
}

/// The part of a flow manager's configuration that a reload can change.
pub fn flow_settings(config: &Config, actions: Actions) -> flowmgr::Settings {
    let flow = &config.flow;
    flowmgr::Settings {
        idle_timeout_s: seconds(flow.idle_timeout) as u16,
        closed_timeout_s: flow.closed_timeout.as_secs() as u16,
        half_open_timeout_s: seconds(flow.half_open_timeout) as u16,
        established_timeout_s: seconds(flow.established_timeout) as u16,
        active_timeout_s: seconds(flow.active_timeout) as u32,
        end_on_fin_rst: flow.end_on_fin_rst,
        actions,
    }
}

/// A timeout as flow managers have it: 0 for never.
fn seconds(timeout: Option<Duration>) -> u64 {
    timeout.map_or(0, |timeout| timeout.as_secs())
}

/// The configuration of the first flow manager; the others have other flow numbers.
///
/// # Errors
/// Labels that a model does not have.
pub fn flow_config(
    config: &Config,
    tasks: &[OpenTask],
    options: FlowOptions,
) -> Result<flowmgr::Config, Error> {
    let (flow, pipeline) = (&config.flow, &config.pipeline);
    Ok(flowmgr::Config {
        tasks: OpenTask::series(tasks),
        inside: inside(config),
        settings: flow_settings(config, actions(config, tasks.iter().map(|task| &task.bundle))?),
        hash: match flow.hash {
            FlowHash::Keyed => HashKind::Keyed { seed: flow.hash_seed.unwrap_or(REPLAY_SEED) },
            FlowHash::Fenxi => HashKind::Fenxi,
        },
        max_flows: flow.max_flows,
        buckets: flow.buckets,
        effect: options.effect,
        record_series: options.record_series,
        samples: config.learn.samples(),
        flow_id_first: 0,
        flow_id_step: (pipeline.instances * pipeline.layout.flow_managers) as u64,
        expects_counts: options.effect == Effect::Arrival && config.io.capture != Capture::All,
        behaviour: config.behaviour.in_use(),
        servers: OpenTask::servers(config, tasks),
        measured: config.measure.in_use(),
    })
}

/// The networks that are inside, as `hosts.networks` has them.
fn inside(config: &Config) -> flowmgr::Inside {
    let networks = config.host_networks.iter();
    flowmgr::Inside(networks.map(|it| (it.address(), it.bits())).collect())
}

/// A row of input that the model is known to work on, with its context behind it.
fn probe(bundle: &Bundle) -> Vec<f32> {
    let golden = bundle.golden();
    let series = golden.inputs.first().into_iter().flatten();
    let context = golden.contexts.first().into_iter().flatten();
    series.chain(context).copied().collect()
}

/// The configuration of one task of an analytics manager. `config` holds this task alone
/// ([`Config::of_task`]).
pub fn analytics_config(config: &Config, bundle: &Bundle) -> analytics::Config {
    analytics::Config {
        k: bundle.k(),
        features: features(bundle),
        context: context(bundle),
        policy: config.analytics.policy(),
        cache: match &config.cache {
            Some(cache) => {
                CacheConfig { prefix: cache.prefix, entries: cache.entries, audit: cache.audit }
            }
            None => CacheConfig { prefix: 0, entries: 0, audit: 0.0 },
        },
        probe: probe(bundle),
        word: 0,
        priority: config.tasks.first().map_or(0, |task| task.priority),
        after: analytics::After::default(),
    }
}
