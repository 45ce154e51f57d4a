//! The engine against ONNX Runtime, one thread each, on the shipped models: CPU time for each row
//! in batches of 1 to 256; and against itself in floats, as it would run without ranges.
//!
//! Both take the bundle's golden rows with their lengths a little changed, so that more of the
//! engine's tables is read. They take turns of a few milliseconds, and the engine finds its tables
//! in the cache as a turn of ONNX Runtime has left it.

use accel::{Bundle, Device, Sizes};
use dataplane::bundle::{find_shipped, open_bundle};
use dataplane::session::cpu_device;
use engine::{Answer, Isa, Network, Scratch};
use fenxi::exit::Failure;
use fenxi::machine::Machine;

use super::report::{Figure, Report};
use super::rounds::{Rates, try_interleave};
use super::threads::thread_s;
use crate::cli::BenchArgs;
use crate::rng::Rng;
use config::Config;

const MODELS: [&str; 4] =
    ["models/protocol", "models/app-id-k10", "models/fenxi-cnn-k10", "models/iot-family"];
const BATCHES: [usize; 4] = [1, 8, 32, 256];
/// Rows of a turn.
const TURN: usize = 2048;

pub fn run(args: &BenchArgs) -> Result<Report, Failure> {
    let config = Config::load(None, &[])?;
    let shipped = || MODELS.iter().filter_map(|name| find_shipped(name).ok()).collect();
    let dirs = if args.models.is_empty() { shipped() } else { args.models.clone() };
    let (mut figures, mut skipped) = (vec![], vec![]);
    for dir in &dirs {
        let bundle = open_bundle(&config, dir)?;
        let name = bundle.name();
        let model = bundle.read_model().map_err(|error| Failure::data(error.to_string()))?;
        match Network::compile(&model, bundle.ranges()) {
            Err(error) => skipped.push(format!("{name}: {error}")),
            Ok(network) => {
                let device = cpu_device(&config, &bundle, Sizes::Any { cap: 256 })?;
                let seconds = args.seconds / dirs.len() as f64;
                // A bundle without ranges runs in floats anyway.
                let floats = bundle.ranges().and_then(|_| Network::compile(&model, None).ok());
                let networks = std::iter::once(network).chain(floats).collect();
                figures.extend(race(&bundle, device, networks, seconds)?);
            }
        }
    }
    Ok(Report {
        bench: "engine",
        title: "The engine against ONNX Runtime, one core: CPU time of a row",
        x: "batch",
        machine: Machine::here(flowmgr::Pages::Plain),
        figures,
        skipped,
    })
}

/// What takes part: ONNX Runtime, then the engine with each instruction set, then the same in
/// floats.
struct Race {
    device: Box<dyn Device>,
    networks: Vec<(Network, Scratch)>,
    isas: Vec<Isa>,
    answers: Vec<Answer>,
    series: Vec<f32>,
    context: Vec<f32>,
}

fn race(
    bundle: &Bundle,
    device: Box<dyn Device>,
    networks: Vec<Network>,
    seconds: f64,
) -> Result<Vec<Figure>, Failure> {
    let (mut series, mut context, mut rng) = (vec![], vec![], Rng::new(1));
    let golden = bundle.golden();
    for (row, numbers) in golden.inputs.iter().zip(&golden.contexts).cycle().take(TURN) {
        series.extend(row.iter().map(|&x| if x == 0.0 { x } else { x + rng.below(8) as f32 }));
        context.extend(numbers);
    }
    let isas = Isa::available();
    let with_scratch = |network: Network| {
        let scratch = network.scratch();
        (network, scratch)
    };
    let networks: Vec<_> = networks.into_iter().map(with_scratch).collect();
    let answers = vec![Answer::default(); TURN];
    let takers = 1 + isas.len() * networks.len();
    let mut race = Race { device, networks, isas, answers, series, context };
    let rates = try_interleave(seconds, BATCHES.len() * takers, |point| {
        race.turn(point % takers, BATCHES[point / takers])
    })?;
    let name = bundle.name();
    Ok(rates.chunks_exact(takers).zip(BATCHES).flat_map(|it| race.figures(name, it)).collect())
}

impl Race {
    /// One turn, in rows a second of CPU time.
    fn turn(&mut self, taker: usize, batch: usize) -> Result<f64, Failure> {
        let shape = self.networks[0].0.shape();
        let row_len = shape.channels * shape.places;
        let mut ours = taker.checked_sub(1).map(|taker| {
            let (network, scratch) = &mut self.networks[taker / self.isas.len()];
            network.set_isa(self.isas[taker % self.isas.len()]);
            (network, scratch)
        });
        let start_s = thread_s();
        for at in (0..TURN).step_by(batch) {
            let series = &self.series[at * row_len..][..batch * row_len];
            let context = &self.context[at * shape.context..][..batch * shape.context];
            if let Some((network, scratch)) = &mut ours {
                network.run(scratch, series, context, &mut self.answers[at..at + batch]);
                continue;
            }
            self.device.input(batch).copy_from_slice(series);
            self.device.context(batch).copy_from_slice(context);
            let failed = |error: accel::DeviceError| Failure::software(error.to_string());
            self.device.submit(batch).map_err(failed)?;
            while self.device.poll().transpose().map_err(failed)?.is_none() {}
        }
        Ok(TURN as f64 / (thread_s() - start_s))
    }

    /// The time of a row, and how many times faster than ONNX Runtime each is.
    fn figures(&self, model: &str, (rates, batch): (&[Rates], usize)) -> Vec<Figure> {
        let ours = ["", ", floats"]
            .iter()
            .flat_map(|kind| self.isas.iter().map(move |isa| format!("{}{kind}", isa.name())));
        let mut figures = vec![];
        for (rates_of, name) in rates.iter().zip(["onnxruntime".into()].into_iter().chain(ours)) {
            let at = |line: String, unit, median, best| Figure {
                x: Some(batch as f64),
                best,
                ..Figure::one(line, unit, median)
            };
            let (median, best) = (1e9 / rates_of.median(), 1e9 / rates_of.best());
            figures.push(at(format!("{model}, {name}"), "ns", median, best));
            let (median, best) =
                (rates_of.median() / rates[0].median(), rates_of.best() / rates[0].best());
            figures.push(at(format!("{model}, {name}, times faster"), "times", median, best));
        }
        figures
    }
}
