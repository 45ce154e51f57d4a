//! Asks two models about the same samples, off the data path.

use std::time::{Duration, Instant};

use accel::{Bundle, Device, DeviceError, run_batch};
use analytics::write_series;
use dataplane::bundle::{context, features};
use flowmgr::record::Sample;

use super::judge::{Outputs, TIMES_MAX};

/// How often all samples are asked about. The fastest time counts; the others were disturbed.
const PASSES: usize = 3;

/// How often where the first model looks too slow: on a busy machine all passes may be disturbed.
const PASSES_MAX: usize = 20;

/// How long they are repeated, within what opening a model may take (`model.open_timeout_s`).
const REPEATED_FOR: Duration = Duration::from_secs(5);

/// A model with the session that runs it.
pub struct Session<'a> {
    /// The model.
    pub bundle: &'a Bundle,
    /// What runs it.
    pub device: &'a mut dyn Device,
}

/// Asks both in turns, so that what disturbs one disturbs the other.
///
/// # Errors
/// The number of the session that failed, and why.
pub fn ask(
    sessions: &mut [Session<'_>; 2],
    samples: &[Sample],
) -> Result<[Outputs; 2], (usize, DeviceError)> {
    let inputs = [0, 1].map(|at| Inputs::new(sessions[at].bundle, samples));
    let (mut asked, mut least) = ([Outputs::default(), Outputs::default()], [Duration::MAX; 2]);
    let began = Instant::now();
    for pass in 0..PASSES_MAX {
        let is_fast = least[0].as_secs_f64() <= TIMES_MAX * least[1].as_secs_f64();
        if pass >= PASSES && (is_fast || began.elapsed() >= REPEATED_FOR) {
            break;
        }
        for (at, session) in sessions.iter_mut().enumerate() {
            let (answered, time) = inputs[at].run(session).map_err(|error| (at, error))?;
            asked[at] = answered;
            least[at] = least[at].min(time);
        }
    }
    for (asked, least) in asked.iter_mut().zip(least) {
        asked.ns_per_row = least.as_nanos() as f64 / samples.len().max(1) as f64;
    }
    Ok(asked)
}

/// The rows of a model's inputs.
struct Inputs {
    series: Vec<Vec<f32>>,
    contexts: Vec<Vec<f32>>,
}

impl Inputs {
    fn new(bundle: &Bundle, samples: &[Sample]) -> Inputs {
        let (k, features, context) = (bundle.k(), features(bundle), context(bundle));
        let series = samples.iter().map(|sample| {
            let mut row = vec![0.0; k * features.len()];
            write_series(&mut row, k, &features, &sample.series);
            row
        });
        let numbers = |sample: &Sample| context.iter().map(|it| it.value(&sample.series)).collect();
        Inputs { series: series.collect(), contexts: samples.iter().map(numbers).collect() }
    }

    /// Runs all rows; also says how long that took.
    fn run(&self, session: &mut Session<'_>) -> Result<(Outputs, Duration), DeviceError> {
        let (device, columns) = (&mut *session.device, session.bundle.shape().classes);
        let step = device.sizes().largest().max(1);
        let (mut asked, mut time) = (Outputs::default(), Duration::ZERO);
        for (series, contexts) in self.series.chunks(step).zip(self.contexts.chunks(step)) {
            let began = Instant::now();
            let answers = run_batch(device, series, contexts)?;
            time += began.elapsed();
            asked.classes.extend(answers.iter().take(series.len()).map(|it| it.class));
            // None at all where a device computes none; the judge sees that.
            let given = device.probabilities().iter().take(series.len() * columns);
            asked.probabilities.extend(given);
        }
        Ok((asked, time))
    }
}

#[cfg(test)]
mod tests {
    use super::super::held::tests::sample;
    use super::*;
    use config::Config;
    use cring::NOTHING_KNOWN;
    use dataplane::session::plain_device;
    use std::path::Path;

    #[test]
    fn a_model_gets_what_the_data_path_gives_it() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let bundle = Bundle::open(&root.join("tests/bundles/server-volume")).unwrap();
        let config = Config::load(None, &[]).unwrap();
        let native = accel::Provider::parse("native").unwrap();
        // Batches of two: the last one is half full.
        let open = || plain_device(&config, native, &bundle, accel::Sizes::Fixed(vec![2])).unwrap();
        let (mut first, mut second) = (open(), open());
        let mut samples = [sample(1, 0), sample(2, 0), sample(3, 0)];
        let known = |volume| [volume, NOTHING_KNOWN[1], NOTHING_KNOWN[2], 9.0, NOTHING_KNOWN[4]];
        samples[0].series.set_local(&known(6.0));
        samples[1].series.set_local(&known(24.0));
        let mut sessions = [&mut first, &mut second]
            .map(|device| Session { bundle: &bundle, device: device.as_mut() });
        let [asked, again] = ask(&mut sessions, &samples).unwrap();
        assert_eq!(asked.probabilities, again.probabilities);
        assert_eq!(asked.probabilities.len(), 3 * 2);
        assert!(asked.ns_per_row > 0.0);
        // A server whose flows are large, and nothing known of any.
        assert_eq!(asked.classes[..2], [0, 1]);
        let [_, _, [small, _]] = asked.probabilities.as_chunks::<2>().0 else { panic!() };
        assert_eq!(asked.classes[2], u16::from(*small < 0.5));
    }
}
