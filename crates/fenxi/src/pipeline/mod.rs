//! What a pipeline is made of: bundle, devices, managers and the ring between
//! them, put together from a checked configuration and refused by name where
//! something does not fit.
//!
//! Threads are not started here; see [`crate::replay`].

mod bundle;
pub mod layout;
pub mod threads;

use std::sync::Arc;
use std::time::Duration;

use accel::{Bundle, Device, SimulatedDevice, Sizes, onnx};
use analytics::{CacheConfig, Inlet, Policy};
use flowmgr::{Effect, hash::HashKind};

use crate::config::Config;
use crate::config::checked::{self, BatchPolicy, FlowHash, Provider};
use crate::exit::Failure;

pub use bundle::{dscp_by_class, find_bundle, open_bundle};

/// Name of the class of a flow whose likeliest class is not likely enough.
pub const UNKNOWN: &str = "unknown";

/// Seed of the bucket hash in a replay, so that runs repeat.
const REPLAY_SEED: u64 = 0x5eed;

/// The two managers of a 1:1:1 pipeline, connected, and what names their classes.
pub struct Pipeline {
    /// The packet's walk.
    pub flow_manager: flowmgr::Manager,
    /// The series' walk.
    pub analytics: analytics::Manager,
    /// Names of the classes; the last is [`UNKNOWN`].
    pub classes: Arc<[String]>,
    /// DSCP by class.
    pub dscp: Vec<Option<u8>>,
}

impl Pipeline {
    /// Builds the pipeline for a replay.
    ///
    /// # Errors
    /// A bundle, library or device that cannot be used, or does not fit the
    /// configuration.
    pub fn for_replay(
        config: &Config,
        bundle: &Bundle,
        effect: Effect,
        record_series: bool,
    ) -> Result<Pipeline, Failure> {
        let classes = bundle::classes(bundle);
        let dscp = dscp_by_class(config, bundle)?;
        let (producer, consumer) = cring::ring(config.ring.slots);
        let flow_manager = flowmgr::Manager::new(
            flow_config(config, effect, dscp.clone(), record_series),
            producer,
        )
        .map_err(|error| match error {
            flowmgr::ConfigError::Range { .. } => Failure::config(error.to_string()),
            flowmgr::ConfigError::Memory { .. } => Failure::unavailable(error.to_string()),
        })?;
        let inlet = Inlet {
            series: consumer,
            labels: flow_manager.labels(),
        };
        let devices = devices(config, bundle)?.into_iter().map(Into::into);
        let analytics =
            analytics::Manager::new(analytics_config(config), vec![inlet], devices.collect())
                .map_err(|error| Failure::config(error.to_string()))?;
        Ok(Pipeline {
            flow_manager,
            analytics,
            classes,
            dscp,
        })
    }
}

fn flow_config(
    config: &Config,
    effect: Effect,
    dscp: Vec<Option<u8>>,
    record_series: bool,
) -> flowmgr::Config {
    let flow = &config.flow;
    let seconds = |timeout: Option<Duration>| timeout.map_or(0, |timeout| timeout.as_secs());
    flowmgr::Config {
        k: flow.k,
        idle_timeout_s: seconds(flow.idle_timeout) as u16,
        closed_timeout_s: flow.closed_timeout.as_secs() as u16,
        active_timeout_s: seconds(flow.active_timeout) as u32,
        end_on_fin_rst: flow.end_on_fin_rst,
        hash: match flow.hash {
            FlowHash::Keyed => HashKind::Keyed {
                seed: flow.hash_seed.unwrap_or(REPLAY_SEED),
            },
            FlowHash::Fenxi => HashKind::Fenxi,
        },
        max_flows: flow.max_flows,
        buckets: flow.buckets,
        effect,
        dscp,
        record_series,
        flow_id_first: 0,
        flow_id_step: 1,
    }
}

fn analytics_config(config: &Config) -> analytics::Config {
    let analytics = &config.analytics;
    analytics::Config {
        k: config.flow.k,
        policy: match analytics.policy {
            BatchPolicy::None | BatchPolicy::Slo { .. } => Policy::None,
            BatchPolicy::Timeout => Policy::Timeout {
                timeout: analytics.timeout,
            },
            BatchPolicy::CarryOver => Policy::CarryOver {
                timeout: analytics.timeout,
                phi: analytics.phi,
                max_wait: analytics.max_wait,
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
        probe: Vec::new(),
    }
}

/// The configured devices, each with the bundle loaded and run once.
fn devices(config: &Config, bundle: &Bundle) -> Result<Vec<Box<dyn Device>>, Failure> {
    let mut devices: Vec<Box<dyn Device>> = Vec::new();
    for device in &config.accel.devices {
        let sizes = sizes(device);
        devices.push(match device.provider {
            Provider::Onnx("cpu") => Box::new(cpu_device(config, bundle, sizes)?),
            Provider::Onnx(name) => {
                return Err(Failure::unavailable(format!("no provider {name} yet")));
            }
            Provider::Simulated => Box::new(SimulatedDevice::new(
                device.simulated,
                sizes,
                bundle.shape(),
            )),
        });
    }
    Ok(devices)
}

/// The device `cpu` for a bundle, as `model check` and the pipeline use it.
pub fn cpu_device(
    config: &Config,
    bundle: &Bundle,
    sizes: Sizes,
) -> Result<onnx::OnnxDevice, Failure> {
    let library = onnx::load(config.accel.library.as_deref())
        .map_err(|error| Failure::unavailable(error.to_string()))?;
    onnx::OnnxDevice::new(&library, bundle, onnx::DeviceSpec::cpu(bundle, sizes))
        .map_err(|error| Failure::data(error.to_string()))
}

/// Batch sizes that a device takes: the configured ones only, or any up to the largest of them.
fn sizes(device: &checked::Device) -> Sizes {
    let batch_sizes = &device.batch_sizes;
    if device.fixed_sizes {
        Sizes::Fixed(batch_sizes.clone())
    } else {
        let cap = batch_sizes.last().copied().unwrap_or(1);
        Sizes::Any { cap }
    }
}
