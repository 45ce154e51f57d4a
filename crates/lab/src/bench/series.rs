//! Experiments on the series' walk: an analytics manager whose ring the bench fills.
//!
//! A [`Feed`](fenxi_benches::series::Feed) takes the place of the flow manager: it marks label
//! words as pending and pushes series. [`live`] runs a manager and its feed on two threads in real
//! time.

mod golden;
mod latency;
pub mod live;
mod most;
mod throughput;

use std::path::{Path, PathBuf};
use std::time::Duration;

use accel::{Bundle, Device, Sizes, profile};
use analytics::{Accelerator, CacheConfig, Manager, Policy, RingInput, Task};

use crate::cli::BenchArgs;
use config::Config;
use cring::Context;
use dataplane::bundle::{find_bundle, find_shipped, local_context, open_bundle};
use dataplane::session::cpu_device;
use fenxi::exit::Failure;

pub use latency::run as latency;
pub use throughput::run as analytics;

/// The models of these experiments: a 1D-CNN over ten lengths, as in the paper, and its int8 form.
/// Figures in MEASUREMENTS.md were measured with them.
const MODELS: [&str; 2] = ["models/app-id-k10", "models/app-id-k10-int8"];
/// Slots of the ring; the default of the configuration.
pub const SLOTS: usize = 4096;
/// The carry-over policy with the defaults of the configuration.
const CARRY_OVER: Policy = Policy::CarryOver {
    timeout: Duration::from_millis(10),
    phi: 0.2,
    max_wait: Duration::from_millis(50),
};

/// How long each batch size is profiled.
const PROFILE_TIME: Duration = Duration::from_millis(100);

/// The bundles that `--model` names, or else [`MODELS`], the second if it is installed.
fn bundles(args: &BenchArgs) -> Result<Vec<Bundle>, Failure> {
    let config = Config::load(None, &[])?;
    let mut dirs = args.models.clone();
    if dirs.is_empty() {
        dirs.push(first_model()?);
        dirs.extend(find_shipped(MODELS[1]));
    }
    dirs.iter().map(|dir| open(&config, dir)).collect()
}

/// The bundle that `--model` names, or else the first of [`MODELS`]. It may have a context that a
/// series carries.
fn bundle(args: &BenchArgs) -> Result<Bundle, Failure> {
    let dir = args.models.first().cloned().map_or_else(first_model, Ok)?;
    let bundle = open_bundle(&Config::load(None, &[])?, &dir)?;
    if bundle.shape().channels > 1 || local_context(&bundle).is_some() {
        return Err(unfit(&dir, "the memory of servers"));
    }
    Ok(bundle)
}

/// The int8 model, or the one that `--model` names.
pub fn headline_bundle(args: &BenchArgs) -> Result<Bundle, Failure> {
    let int8 = || find_shipped(MODELS[1]).or_else(|_| first_model());
    let dir = args.models.first().cloned().map_or_else(int8, Ok)?;
    open(&Config::load(None, &[])?, &dir)
}

/// The bundles that `--model` names, or else the shipped one and the first of [`MODELS`].
pub fn inline_models(args: &BenchArgs) -> Result<Vec<PathBuf>, Failure> {
    match args.models.is_empty() {
        true => Ok(vec![find_bundle(&Config::load(None, &[])?, None)?, first_model()?]),
        false => Ok(args.models.clone()),
    }
}

fn first_model() -> Result<PathBuf, Failure> {
    find_shipped(MODELS[0]).map_err(|looked_at| {
        Failure::no_input(format!(
            "the model of this bench is not installed; looked at {looked_at}; name a bundle with \
             --model DIR"
        ))
    })
}

fn open(config: &Config, dir: &Path) -> Result<Bundle, Failure> {
    let bundle = open_bundle(config, dir)?;
    let shape = bundle.shape();
    if shape.context > 0 || shape.channels > 1 {
        return Err(unfit(dir, "context"));
    }
    Ok(bundle)
}

fn unfit(dir: &Path, without: &str) -> Failure {
    Failure::usage(format!(
        "{}: this bench makes up series of lengths, without {without} or other features; \"fenxi \
         profile\" measures this model",
        dir.display()
    ))
}

/// The device `cpu` with a bundle, for batches of any size up to `cap`.
fn cpu(bundle: &Bundle, cap: usize) -> Result<Box<dyn Device>, Failure> {
    let config = Config::load(None, &[])?;
    Ok(cpu_device(&config, bundle, Sizes::Any { cap })?)
}

/// The device `cpu` with its measured profile, which a policy with a latency goal needs.
pub fn profiled(bundle: &Bundle, cap: usize) -> Result<Accelerator, Failure> {
    let mut device = cpu(bundle, cap)?;
    let sizes: Vec<usize> = (0..=cap.ilog2()).map(|x| 1 << x).collect();
    let rows = &bundle.golden().inputs;
    let measured = profile::measure(device.as_mut(), &sizes, rows, PROFILE_TIME)
        .map_err(|error| Failure::data(error.to_string()))?;
    Ok(Accelerator { profile: Some(measured.fit()), device, deadline: None, executor: 0 })
}

/// A manager of one task with one ring and without a cache.
pub fn manager(
    policy: Policy,
    k: usize,
    context: Vec<Context>,
    inlet: RingInput,
    accelerators: Vec<Accelerator>,
) -> Result<Manager, Failure> {
    let cache = CacheConfig { prefix: 0, entries: 0, audit: 0.0 };
    let config = analytics::Config {
        context,
        k,
        features: vec![cring::Feature::SignedLength],
        policy,
        cache,
        probe: Vec::new(),
        word: 0,
        priority: 0,
        after: analytics::After::default(),
    };
    let task = Task::new(config, vec![inlet], accelerators)
        .map_err(|error| Failure::software(error.to_string()))?;
    Ok(Manager::new(vec![task]))
}

#[cfg(test)]
mod tests {
    use cring::{FlowRef, Label, Series};
    use fenxi_benches::series::{Feed, WORDS_PER_SLOT};

    #[test]
    fn a_full_ring_sheds_and_words_come_round() {
        let (mut feed, mut inlet) = Feed::new(vec![Series::default()], 2);
        assert_eq!((feed.fill(0), feed.fill(0)), (2, 0));
        feed.push(0);
        assert_eq!((feed.shed, inlet.series.waiting()), (1, 2));
        for _ in 0..2 * WORDS_PER_SLOT {
            let waiting = inlet.series.waiting();
            for i in 0..waiting {
                let FlowRef { index, generation } = inlet.series.get(i).flow;
                let word = inlet.labels.word(0, index);
                assert_eq!(word.decide(generation, Label::Unlabelled), Ok(()));
            }
            inlet.series.release(waiting);
            assert_eq!(feed.fill(0), 2);
        }
        assert_eq!(feed.shed, 1);
    }
}
