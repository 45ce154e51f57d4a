//! The pipelines of a run: flow managers, analytics managers and the rings between them, built from a checked configuration.

use std::sync::Arc;
use std::time::Duration;

use accel::Bundle;
use analytics::{CacheConfig, Policy, RingInput};
use cring::{Consumer, Mesh, Slot};
use flowmgr::{Actions, Effect, hash::HashKind};

use crate::Error;
use config::Config;
use config::checked::{BatchPolicy, Capture, FlowHash};
use recording::Recorder;

use crate::bundle::{classes, context, dscp_by_class, features, port_labels, series_tasks};
use crate::devices::Opener;
use crate::placement::{Cores, Role, Thread};

pub use config::layout;

/// Seed of the bucket hash in a replay, so that runs repeat.
const REPLAY_SEED: u64 = 0x5eed;

/// The managers of all pipelines, connected by rings, and the names of the classes.
pub struct Pipelines {
    /// The packet's walk: the flow managers, pipeline by pipeline.
    pub flow_managers: Vec<(Thread, flowmgr::Manager)>,
    /// The series' walk: the analytics managers, pipeline by pipeline.
    pub analytics: Vec<(Thread, analytics::Manager)>,
    /// Names of the classes; the last is `unknown`.
    pub classes: Arc<[String]>,
}

/// Options of flow managers that depend on the kind of run, not on the configuration.
#[derive(Clone, Copy)]
pub struct FlowOptions {
    /// The time from which on a label counts.
    pub effect: Effect,
    /// Of which flows the records have the series.
    pub record_series: flowmgr::SeriesShare,
}

impl Pipelines {
    /// Builds the pipelines for a replay.
    ///
    /// # Errors
    /// A bundle, library or device that cannot be used, or does not fit the configuration.
    pub fn for_replay(
        config: &Config,
        bundle: &Bundle,
        cores: &Cores,
        options: FlowOptions,
    ) -> Result<Pipelines, Error> {
        let packets = PacketSide::build(config, bundle, options)?;
        Ok(Pipelines {
            analytics: packets.series.managers(config, bundle, cores, None)?,
            flow_managers: packets.flow_managers,
            classes: packets.classes,
        })
    }
}

/// The packets' side of all pipelines. It works without the other side: series that find no room in a ring are shed.
pub struct PacketSide {
    /// The flow managers, pipeline by pipeline.
    pub flow_managers: Vec<(Thread, flowmgr::Manager)>,
    /// Names of the classes.
    pub classes: Arc<[String]>,
    /// DSCP by class.
    pub dscp: Vec<Option<u8>>,
    /// The consumers of the rings, from which the series' side is built.
    pub series: SeriesSide,
}

/// The consumers of the rings: by pipeline, by analytics manager.
pub struct SeriesSide(Vec<Vec<Vec<RingInput>>>);

impl PacketSide {
    /// Builds it; no device is opened.
    ///
    /// # Errors
    /// Classes that do not fit the configuration; no memory.
    pub fn build(
        config: &Config,
        bundle: &Bundle,
        options: FlowOptions,
    ) -> Result<PacketSide, Error> {
        let mut side = PacketSide {
            flow_managers: Vec::new(),
            classes: classes(bundle),
            dscp: dscp_by_class(config, bundle)?,
            series: SeriesSide(Vec::new()),
        };
        for instance in 0..config.pipeline.instances {
            side.add(config, options, bundle, instance)?;
        }
        Ok(side)
    }

    fn add(
        &mut self,
        config: &Config,
        options: FlowOptions,
        bundle: &Bundle,
        instance: usize,
    ) -> Result<(), Error> {
        let places = config.pipeline.layout.rings().into_iter();
        let places = places.map(|ring| (ring.flow_manager, ring.analytics_manager));
        let rings = Mesh::new(places, config.ring.slots);
        let mut labels = Vec::new();
        for (i, producers) in rings.producers.into_iter().enumerate() {
            let mut flow = flow_config(config, bundle, options, self.dscp.clone());
            flow.flow_id_first = self.flow_managers.len() as u64;
            let manager =
                flowmgr::Manager::with_rings(flow, vec![producers]).map_err(flow_failure)?;
            labels.push(manager.labels());
            let role = Role::Flow(i);
            self.flow_managers
                .push((Thread { instance, role }, manager));
        }
        let inputs = |consumers: Vec<(usize, Consumer<Slot>)>| {
            let inputs = consumers
                .into_iter()
                .map(|(flow_manager, series)| RingInput {
                    series,
                    labels: labels[flow_manager].clone(),
                });
            inputs.collect()
        };
        let by_manager = rings.consumers.into_iter().map(inputs);
        self.series.0.push(by_manager.collect());
        Ok(())
    }
}

impl SeriesSide {
    /// Opens and warms the devices, and makes the analytics managers.
    ///
    /// # Errors
    /// A library or device that cannot be used, or does not fit the configuration.
    pub fn managers(
        self,
        config: &Config,
        bundle: &Bundle,
        cores: &Cores,
        recorder: Option<&Recorder>,
    ) -> Result<Vec<(Thread, analytics::Manager)>, Error> {
        let opener = Opener {
            config,
            bundle,
            cores,
            golden_test: false,
            recorder,
        };
        let mut managers = Vec::new();
        for (instance, by_manager) in self.0.into_iter().enumerate() {
            for (i, inputs) in by_manager.into_iter().enumerate() {
                let mut accelerators = opener.accelerators(instance, i)?;
                let analytics = analytics_config(config, bundle);
                if let Some(recorder) = recorder {
                    recorder.series_start(managers.len(), &analytics, &mut accelerators);
                }
                let mut manager = analytics::Manager::new(analytics, inputs, accelerators)
                    .map_err(|error| Error::config(error.to_string()))?;
                if let Some(recorder) = recorder {
                    manager.set_cost_clock(recorder.cost_clock());
                }
                let role = Role::Analytics(i);
                managers.push((Thread { instance, role }, manager));
            }
        }
        Ok(managers)
    }
}

fn flow_failure(error: flowmgr::ConfigError) -> Error {
    match error {
        flowmgr::ConfigError::Range { .. } => Error::config(error.to_string()),
        flowmgr::ConfigError::Memory { .. } => Error::unavailable(error.to_string()),
    }
}

/// The part of a flow manager's configuration that a reload can change.
pub fn flow_settings(config: &Config, dscp: Vec<Option<u8>>) -> flowmgr::Settings {
    let flow = &config.flow;
    flowmgr::Settings {
        idle_timeout_s: seconds(flow.idle_timeout) as u16,
        closed_timeout_s: flow.closed_timeout.as_secs() as u16,
        half_open_timeout_s: seconds(flow.half_open_timeout) as u16,
        established_timeout_s: seconds(flow.established_timeout) as u16,
        active_timeout_s: seconds(flow.active_timeout) as u32,
        end_on_fin_rst: flow.end_on_fin_rst,
        actions: Actions::of_dscp(&dscp),
    }
}

/// A timeout as flow managers have it: 0 for never.
fn seconds(timeout: Option<Duration>) -> u64 {
    timeout.map_or(0, |timeout| timeout.as_secs())
}

/// The configuration of the first flow manager; the others have other flow numbers.
pub fn flow_config(
    config: &Config,
    bundle: &Bundle,
    options: FlowOptions,
    dscp: Vec<Option<u8>>,
) -> flowmgr::Config {
    let (flow, pipeline) = (&config.flow, &config.pipeline);
    flowmgr::Config {
        tasks: series_tasks(bundle),
        ports: port_labels(bundle),
        settings: flow_settings(config, dscp),
        hash: match flow.hash {
            FlowHash::Keyed => HashKind::Keyed {
                seed: flow.hash_seed.unwrap_or(REPLAY_SEED),
            },
            FlowHash::Fenxi => HashKind::Fenxi,
        },
        max_flows: flow.max_flows,
        buckets: flow.buckets,
        effect: options.effect,
        record_series: options.record_series,
        flow_id_first: 0,
        flow_id_step: (pipeline.instances * pipeline.layout.flow_managers) as u64,
        expects_counts: options.effect == Effect::Arrival && config.io.capture == Capture::First,
    }
}

/// A row of input that the model is known to work on, with its context behind it.
fn probe(bundle: &Bundle) -> Vec<f32> {
    let golden = bundle.golden();
    let series = golden.inputs.first().into_iter().flatten();
    let context = golden.contexts.first().into_iter().flatten();
    series.chain(context).copied().collect()
}

/// The configuration of analytics managers.
pub fn analytics_config(config: &Config, bundle: &Bundle) -> analytics::Config {
    let analytics = &config.analytics;
    analytics::Config {
        k: bundle.k(),
        features: features(bundle),
        context: context(bundle),
        policy: match analytics.policy {
            BatchPolicy::None => Policy::None,
            BatchPolicy::Max => Policy::Max,
            BatchPolicy::Timeout => Policy::Timeout {
                timeout: analytics.timeout,
            },
            BatchPolicy::CarryOver => Policy::CarryOver {
                timeout: analytics.timeout,
                phi: analytics.phi,
                max_wait: analytics.max_wait,
            },
            BatchPolicy::Slo {
                latency_goal,
                delta,
            } => Policy::Slo {
                latency_goal,
                delta,
            },
            BatchPolicy::OnOff {
                latency_goal,
                delta,
            } => Policy::OnOff {
                latency_goal,
                delta,
            },
        },
        cache: match &config.cache {
            Some(cache) => CacheConfig {
                prefix: cache.prefix,
                entries: cache.entries,
                audit: cache.audit,
            },
            None => CacheConfig {
                prefix: 0,
                entries: 0,
                audit: 0.0,
            },
        },
        probe: probe(bundle),
    }
}
