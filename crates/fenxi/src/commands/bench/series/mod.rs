//! The experiments on the series' walk: an analytics manager whose ring the bench itself fills.
//!
//! A [`feed`] stands in for the flow manager: it pends label words and pushes series. Two clocks: [`live`] runs a
//! manager and its feed on threads of their own, in real time; [`simulation`] runs both in virtual time, where only
//! policies and device profiles count and the machine does not.

mod devices;
mod feed;
mod idle;
mod latency;
mod live;
mod padding;
mod simulation;
mod swap;
mod throughput;

use std::path::PathBuf;
use std::time::Duration;

use accel::{Bundle, Device, Sizes, profile};
use analytics::{Accelerator, CacheConfig, Manager, Policy, RingInput};

use crate::cli::BenchArgs;
use crate::config::Config;
use crate::exit::Failure;
use crate::pipeline::{cpu_device, find_bundle, open_bundle};

pub use devices::run as devices;
pub use idle::run as idle;
pub use latency::run as latency;
pub use padding::run as padding;
pub use swap::run as swap;
pub use throughput::run as analytics;

/// Folder of the shipped model's int8 form, beside the shipped one.
const INT8: &str = "app-id-k10-int8";
/// Slots of the ring, as the configuration has them unless told otherwise.
const SLOTS: usize = 4096;
/// The carry-over policy as the configuration has it unless told otherwise.
const TIMEOUT: Duration = Duration::from_millis(10);
const MAX_WAIT: Duration = Duration::from_millis(50);
const PHI: f64 = 0.2;
const CARRY_OVER: Policy = Policy::CarryOver {
    timeout: TIMEOUT,
    phi: PHI,
    max_wait: MAX_WAIT,
};

/// How long a device is profiled.
const PROFILE_TIME: Duration = Duration::from_millis(100);

/// The bundles that `--model` names; else the shipped one, and its int8 form where there is one.
fn bundles(args: &BenchArgs) -> Result<Vec<Bundle>, Failure> {
    let config = Config::load(None, &[])?;
    let mut dirs = args.models.clone();
    if dirs.is_empty() {
        let shipped = find_bundle(&config, None)?;
        let int8 = shipped.with_file_name(INT8);
        dirs.push(shipped);
        dirs.extend(int8.is_dir().then_some(int8));
    }
    dirs.iter().map(|dir| open_bundle(&config, dir)).collect()
}

/// The first of [`bundles`].
fn bundle(args: &BenchArgs) -> Result<Bundle, Failure> {
    let config = Config::load(None, &[])?;
    let dir = find_bundle(&config, args.models.first().map(PathBuf::as_path))?;
    open_bundle(&config, &dir)
}

/// The device `cpu` with a bundle, for batches of any size up to `cap`.
fn cpu(bundle: &Bundle, cap: usize) -> Result<Box<dyn Device>, Failure> {
    let config = Config::load(None, &[])?;
    Ok(Box::new(cpu_device(&config, bundle, Sizes::Any { cap })?))
}

/// The device `cpu` as [`cpu()`], its speed measured: what a policy with a latency goal plans by.
fn profiled(bundle: &Bundle, cap: usize) -> Result<Accelerator, Failure> {
    let mut device = cpu(bundle, cap)?;
    let sizes: Vec<usize> = (0..=cap.ilog2()).map(|x| 1 << x).collect();
    let rows = &bundle.golden().inputs;
    let measured = profile::measure(device.as_mut(), &sizes, rows, PROFILE_TIME)
        .map_err(|error| Failure::data(error.to_string()))?;
    Ok(Accelerator {
        profile: Some(measured.fit()),
        device,
        deadline: None,
    })
}

/// A manager of one inlet, its cache off.
fn manager(
    policy: Policy,
    k: usize,
    inlet: RingInput,
    accelerators: Vec<Accelerator>,
) -> Result<Manager, Failure> {
    let cache = CacheConfig {
        prefix: 0,
        entries: 0,
        audit: 0.0,
    };
    let config = analytics::Config {
        task: 0,
        k,
        features: vec![cring::Feature::SignedLength],
        policy,
        cache,
        probe: Vec::new(),
    };
    Manager::new(config, vec![inlet], accelerators)
        .map_err(|error| Failure::software(error.to_string()))
}
