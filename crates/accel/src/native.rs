//! The device `native`: fenxi's own engine, on the thread that submits the batch.
//!
//! It needs no library. Networks with ranges run in integers: their answers are the same to the bit
//! on every processor, and differ a little from the golden outputs, which floats gave. Trees, and
//! networks without ranges, run in floats. What the engine does not know is refused by the name of
//! the node.
//!
//! Devices for the same model share one compiled network.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use engine::{Answer, Isa, Network, Ranges, Scratch};

use crate::bundle::Bundle;
use crate::device::{Classification, Device, DeviceError, Shape, Sizes, is_probability};
use crate::provider::{DeviceSpec, OpenError, Provider, check};

/// fenxi's own engine.
pub(crate) const NATIVE: Provider = Provider {
    name: "native",
    computes: true,
    is_cpu: true,
    needs_fixed_sizes: false,
    needs_library: false,
    answers_at_once: true,
    needs_plugin: false,
    open,
    probe: None,
};

/// How long a trial looks for the fastest instruction set, and what a row takes.
const TRIAL: Duration = Duration::from_millis(1);

/// The channels that a network in the kernel may read, in this order.
const KERNEL_FEATURES: [&str; 2] = ["signed_length", "inter_arrival_us"];
/// The context that it may read, in this order.
const KERNEL_CONTEXT: [&str; 2] = ["protocol", "server_port"];

/// Models whose instruction set is remembered; the oldest is forgotten first.
const KNOWN_MAX: usize = 16;

/// A model that was compiled, or refused.
struct Known {
    sha256: String,
    ranges: Option<Ranges>,
    /// What [`native_takes`] compiled, until a device takes it.
    compiled: Option<Network>,
    /// None until a trial has found it.
    isa: Option<Isa>,
    /// What a row takes by itself, as the trial found.
    row_ns: f64,
    /// Gone when no device has it any more.
    network: Weak<Network>,
}

static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());

fn open(spec: &DeviceSpec, bundle: &Bundle) -> Result<Box<dyn Device>, OpenError> {
    Ok(Box::new(NativeDevice::new(spec.clone(), bundle)?))
}

/// A bundle on the engine.
struct NativeDevice {
    spec: DeviceSpec,
    effective: String,
    is_integer: bool,
    network: Arc<Network>,
    scratch: Scratch,
    shape: Shape,
    input: Vec<f32>,
    context: Vec<f32>,
    answers: Vec<Answer>,
    results: Vec<Classification>,
    /// Rows of the last batch. [`Device::probabilities`] runs them again, so that batches whose
    /// probabilities nobody reads do not pay for them.
    rows: usize,
    probabilities: Vec<f32>,
    /// What the next poll returns: whether `results` are valid, if a batch was submitted.
    outcome: Option<Result<(), DeviceError>>,
}

impl NativeDevice {
    /// Compiles the bundle's model and runs it once on the golden inputs, so that all memory is
    /// there.
    fn new(spec: DeviceSpec, bundle: &Bundle) -> Result<Self, OpenError> {
        check(&spec, bundle)?;
        let network = network(&spec, bundle)?;
        let (shape, room) = (bundle.shape(), spec.sizes.largest());
        let mut device = Self {
            effective: format!("{} ({})", NATIVE.name, network.isa().name()),
            is_integer: bundle.ranges().is_some(),
            scratch: network.scratch(),
            network,
            shape,
            input: vec![0.0; room * shape.row_len()],
            context: vec![0.0; room * shape.context],
            answers: vec![Answer::default(); room],
            results: Vec::with_capacity(room),
            rows: 0,
            probabilities: Vec::new(),
            outcome: None,
            spec,
        };
        bundle.golden().fill(&mut device.input, &mut device.context);
        device.run(room).map_err(|cause| {
            let model = bundle.model_path();
            OpenError::Model(format!("{}: a first run failed: {cause}", model.display()))
        })?;
        Ok(device)
    }

    /// Runs the first rows of `input` into `results`.
    fn run(&mut self, rows: usize) -> Result<(), DeviceError> {
        let answers = &mut self.answers[..rows];
        self.network.run(&mut self.scratch, &self.input, &self.context, answers);
        self.results.clear();
        for (row, answer) in answers.iter().enumerate() {
            let (class, value) = (usize::from(answer.class), answer.confidence);
            // Only floats can go wrong, as in a model with NaN among its weights.
            if !is_probability(value) {
                return Err(DeviceError::NotAProbability { row, class, value });
            }
            self.results.push(self.spec.thresholds.result(class, value.min(1.0)));
        }
        Ok(())
    }
}

/// Whether `native` runs the bundle's model. The first device takes what this compiles.
///
/// # Errors
/// The engine refuses the model; the error names the node.
pub fn native_takes(bundle: &Bundle) -> Result<(), OpenError> {
    let mut all = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known(&mut all, bundle);
    if known.compiled.is_none() && known.network.strong_count() == 0 {
        known.compiled = Some(compile(bundle)?);
    }
    Ok(())
}

/// The network that the kernel asks for the bundle's model: `struct net` of packetio's programs.
///
/// # Errors
/// Why it is none for the kernel.
pub fn kernel_net(bundle: &Bundle) -> Result<Vec<u8>, String> {
    let refused = |what: &str| Err(format!("the kernel does not take {what}"));
    if !KERNEL_FEATURES.starts_with(&bundle.features().iter().map(|it| &**it).collect::<Vec<_>>()) {
        return refused(&format!("the features {}", bundle.features().join(", ")));
    }
    if !bundle.context().is_empty() && bundle.context() != KERNEL_CONTEXT {
        return refused(&format!("the context {}", bundle.context().join(", ")));
    }
    let model = bundle.read_model().map_err(|error| error.to_string())?;
    let net = engine::kernel(&model, bundle.ranges()).map_err(|error| error.to_string())?;
    match bundle.unit() {
        "data" => Ok(net),
        _ => refused("packets without payload"),
    }
}

/// What a row of the bundle's model takes by itself, in ns, with warm tables.
///
/// # Errors
/// As [`native_takes`].
pub fn native_row_ns(bundle: &Bundle) -> Result<f64, OpenError> {
    let mut all = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known(&mut all, bundle);
    if known.isa.is_none() {
        known.compiled = Some(known.network(bundle)?);
    }
    Ok(known.row_ns)
}

/// The bundle's model, compiled for the fastest instruction set. A process tries the sets once for
/// each model.
fn network(spec: &DeviceSpec, bundle: &Bundle) -> Result<Arc<Network>, OpenError> {
    let mut all = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known(&mut all, bundle);
    if let Some(network) = known.network.upgrade() {
        return Ok(network);
    }
    let network = known.network(bundle).map_err(|error| match error {
        OpenError::Unavailable(cause) => OpenError::Unavailable(format!(
            "device {}: provider {} does not run {}: {cause}; use the device cpu",
            spec.name,
            NATIVE.name,
            bundle.model_path().display()
        )),
        error => error,
    })?;
    let network = Arc::new(network);
    known.network = Arc::downgrade(&network);
    Ok(network)
}

impl Known {
    /// The network on its fastest instruction set.
    fn network(&mut self, bundle: &Bundle) -> Result<Network, OpenError> {
        let mut network = self.compiled.take().map_or_else(|| compile(bundle), Ok)?;
        if let Some(isa) = self.isa {
            network.set_isa(isa);
            return Ok(network);
        }
        let isas = match bundle.ranges() {
            Some(_) => Isa::available(),
            // Floats are rounded otherwise by other instructions, so a trial could change answers
            // from one run to the next. Trees have no use for vectors.
            None => vec![network.isa()],
        };
        network.measure(&isas, TRIAL);
        self.isa = Some(network.isa());
        self.row_ns = network.row_ns().map_or(f64::INFINITY, |row| row.alone);
        Ok(network)
    }
}

/// What is known of the bundle's model.
fn known<'a>(all: &'a mut Vec<Known>, bundle: &Bundle) -> &'a mut Known {
    let is_this =
        |it: &Known| it.sha256 == bundle.sha256() && it.ranges.as_ref() == bundle.ranges();
    let at = all.iter().position(is_this).unwrap_or_else(|| {
        if all.len() == KNOWN_MAX {
            all.remove(0);
        }
        all.push(Known {
            sha256: bundle.sha256().to_owned(),
            ranges: bundle.ranges().cloned(),
            compiled: None,
            isa: None,
            row_ns: f64::INFINITY,
            network: Weak::new(),
        });
        all.len() - 1
    });
    &mut all[at]
}

fn compile(bundle: &Bundle) -> Result<Network, OpenError> {
    let network = Network::compile(&bundle.read_model()?, bundle.ranges())
        .map_err(|cause| OpenError::Unavailable(cause.to_string()))?;
    let found = network.shape();
    let found = Shape {
        channels: found.channels,
        k: found.places,
        context: found.context,
        classes: found.classes,
    };
    if found != bundle.shape() {
        return Err(OpenError::Model(format!(
            "{}: it has {found:?}, but model.toml asks for {:?}; the two do not belong together",
            bundle.model_path().display(),
            bundle.shape()
        )));
    }
    Ok(network)
}

impl Device for NativeDevice {
    fn requested(&self) -> &str {
        &self.spec.name
    }

    fn effective(&self) -> &str {
        &self.effective
    }

    fn sizes(&self) -> &Sizes {
        &self.spec.sizes
    }

    fn is_idle(&self) -> bool {
        self.outcome.is_none()
    }

    fn input(&mut self, rows: usize) -> &mut [f32] {
        &mut self.input[..rows * self.shape.row_len()]
    }

    fn context(&mut self, rows: usize) -> &mut [f32] {
        &mut self.context[..rows * self.shape.context]
    }

    fn submit(&mut self, rows: usize) -> Result<(), DeviceError> {
        self.accepts(rows)?;
        self.rows = rows;
        self.outcome = Some(self.run(rows));
        Ok(())
    }

    fn poll(&mut self) -> Option<Result<&[Classification], DeviceError>> {
        let outcome = self.outcome.take()?;
        Some(outcome.map(|()| self.results.as_slice()))
    }

    fn probabilities(&mut self) -> &[f32] {
        self.probabilities.resize(self.rows * self.shape.classes, 0.0);
        let answers = &mut self.answers[..self.rows];
        let out = &mut self.probabilities;
        self.network.probabilities(&mut self.scratch, &self.input, &self.context, answers, out);
        out
    }

    fn is_integer(&self) -> bool {
        self.is_integer
    }
}

#[cfg(test)]
mod tests;
