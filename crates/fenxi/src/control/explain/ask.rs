//! Asks the model about a series again, off the data path, for the probabilities of all classes:
//! the data path keeps the probability of one class only.

use std::path::Path;

use accel::{Bundle, Device};
use config::Config;
use cring::{Feature, Series};
use dataplane::bundle::{context, features, local_context, open_bundle};
use dataplane::devices::for_model;
use dataplane::session::session;

/// The bundle, and the probabilities at each depth that the series reaches; or why there are none.
pub struct Asked {
    pub bundle: Bundle,
    /// By depth; as many as the series is long enough for.
    pub probabilities: Result<Vec<Vec<f32>>, String>,
    /// What ran the model.
    pub device: String,
}

/// Opens the bundle in `dir` on the first device of the configuration and asks it. May take as long
/// as opening a model does, so it must not run on the control thread while that serves.
pub fn ask(config: &Config, dir: &Path, series: Option<&Series>) -> Result<Asked, String> {
    let bundle = open_bundle(config, dir).map_err(|error| error.to_string())?;
    let mut asked = Asked { bundle, probabilities: Ok(Vec::new()), device: String::new() };
    if let Some(series) = series {
        match open(config, &asked.bundle) {
            Ok(mut device) => {
                asked.device = device.effective().to_owned();
                asked.probabilities = run(&asked.bundle, device.as_mut(), series);
            }
            Err(why) => asked.probabilities = Err(why),
        }
    }
    Ok(asked)
}

fn open(config: &Config, bundle: &Bundle) -> Result<Box<dyn Device>, String> {
    let config = &for_model(config.clone(), bundle);
    let Some(device) = config.accel.devices.first() else {
        return Err("no device is configured".to_owned());
    };
    let mut device = device.clone();
    device.batch_sizes = vec![1];
    session(config, bundle, &device).map_err(|error| error.to_string())
}

fn run(bundle: &Bundle, device: &mut dyn Device, series: &Series) -> Result<Vec<Vec<f32>>, String> {
    let features = features(bundle);
    if local_context(bundle).is_some() && series.local().is_none() {
        return Err("what the memory of servers said of the flow is not known any more".to_owned());
    }
    let numbers: Vec<f32> = context(bundle).iter().map(|it| it.value(series)).collect();
    let mut all = Vec::new();
    for depth in bundle.depths() {
        if depth.elements > series.k() {
            break;
        }
        let rows = device.sizes().fitting(1).unwrap_or(1);
        let input = device.input(rows);
        input.fill(0.0);
        for (channel, &feature) in input.chunks_exact_mut(bundle.k()).zip(&features) {
            for (to, from) in channel.iter_mut().zip(values(series, feature)).take(depth.elements) {
                *to = from;
            }
        }
        let context = device.context(rows);
        context.fill(0.0);
        for (to, from) in context.iter_mut().zip(&numbers) {
            *to = *from;
        }
        let failed = |error: accel::DeviceError| error.to_string();
        device.submit(rows).map_err(failed)?;
        while match device.poll() {
            Some(results) => results.map(drop).map_err(failed).map(|()| false)?,
            None => true,
        } {
            std::thread::yield_now();
        }
        let classes = bundle.shape().classes;
        match device.probabilities().get(..classes) {
            Some(row) => all.push(row.to_vec()),
            None => {
                return Err(format!("device {} computes no probabilities", device.requested()));
            }
        }
    }
    Ok(all)
}

/// The numbers of a feature, as the model gets them.
fn values(series: &Series, feature: Feature) -> Vec<f32> {
    match feature {
        Feature::SignedLength => series.signed_lengths().map(|bytes| bytes as f32).collect(),
        Feature::InterArrival => series.inter_arrivals_us().map(|us| us as f32).collect(),
        Feature::PayloadLength | Feature::TcpFlags => {
            let words = series.channel(feature).iter();
            words.map(|&word| f32::from(word)).collect()
        }
    }
}
