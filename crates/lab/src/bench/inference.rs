//! Latency of one inference by where the network runs (LiteFlow, Fig. 15): in this process, in the
//! kernel, and in another process that is asked over a Unix socket.
//!
//! All places take the same golden rows, one at a time, in turns of a few milliseconds. The other
//! process is this program with `--answers`; both sides either sleep until the socket has bytes or
//! ask it again and again. The kernel tells the mean time of repeated test runs, so neither the
//! system call that begins them nor a cold cache counts there.

use std::hint;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use accel::{Bundle, kernel_net};
use clap::ValueEnum;
use config::Config;
use dataplane::bundle::{find_shipped, open_bundle};
use engine::{Answer, Network, Scratch};
use fenxi::exit::Failure;
use fenxi::machine::Machine;
use hdrhistogram::Histogram;
use packetio::first::{KernelNet, Question};

use super::report::{Figure, Report};
use super::rounds::{Rates, try_interleave};
use super::threads::{joined, pin};
use crate::cli::{BenchArgs, Waits};

/// Models that the kernel takes: networks with a small and a large hidden layer, and trees.
const MODELS: [&str; 3] = ["models/protocol-small", "models/protocol", "models/iot-family"];
/// Rows of a turn.
const TURN: usize = 256;
/// Test runs of a row in the kernel.
const REPEATED: u32 = 16;

pub fn run(args: &BenchArgs) -> Result<Report, Failure> {
    let shipped = || MODELS.iter().filter_map(|name| find_shipped(name).ok()).collect();
    let dirs = if args.models.is_empty() { shipped() } else { args.models.clone() };
    let (mut figures, mut skipped) = (vec![], vec![]);
    for dir in &dirs {
        let bundle = open_bundle(&Config::load(None, &[])?, dir)?;
        let mut places = vec![Place::engine(&bundle)?];
        match Place::kernel(&bundle) {
            Ok(kernel) => places.push(kernel),
            Err(why) => skipped.push(format!("{}, kernel: {why}", bundle.name())),
        }
        for waits in [Waits::Asleep, Waits::Polling] {
            places.push(Place::other(&bundle, dir, waits)?);
        }
        let seconds = args.seconds / dirs.len() as f64;
        // Processes get the cores of the thread that starts them: this one stays on all.
        let raced = thread::scope(|scope| {
            joined(scope.spawn(|| {
                pin(0);
                race(&bundle, &mut places, seconds)
            }))
        });
        figures.extend(raced?);
    }
    Ok(Report {
        bench: "inference",
        title: "Latency of one inference by where the network runs",
        x: "",
        machine: Machine::here(flowmgr::Pages::Plain),
        figures,
        skipped,
    })
}

/// Answers the questions that come on standard input, a socket, until it is closed.
pub fn answer(args: &BenchArgs, waits: Waits) -> Result<(), Failure> {
    let dir = args.models.first().ok_or_else(|| Failure::usage("--model DIR is missing"))?;
    let mut engine = Engine::new(&open_bundle(&Config::load(None, &[])?, dir)?)?;
    pin(1);
    let socket = io::stdin().as_fd().try_clone_to_owned().map_err(broken)?;
    let mut link = Link::new(socket.into(), waits).map_err(broken)?;
    let shape = engine.network.shape();
    let mut numbers = vec![0.0; shape.channels * shape.places + shape.context];
    while link.receive(&mut numbers).map_err(broken)? {
        let (series, context) = numbers.split_at(shape.channels * shape.places);
        let Answer { class, confidence } = engine.run(series, context);
        link.send(&[class.into(), confidence]).map_err(broken)?;
    }
    Ok(())
}

fn broken(error: io::Error) -> Failure {
    Failure::software(format!("the socket between two processes: {error}"))
}

/// Where a network runs.
struct Place {
    name: &'static str,
    network: Runs,
    /// ns, of those that are timed one by one.
    times: Histogram<u64>,
}

enum Runs {
    Engine(Engine),
    /// With the elements of a series.
    Kernel(Box<KernelNet>, usize),
    Other(Other),
}

/// Longest latency that is told from longer ones, ns.
const LONGEST_NS: u64 = 1_000_000_000;

impl Place {
    fn new(name: &'static str, network: Runs) -> Result<Place, Failure> {
        let times = Histogram::new_with_max(LONGEST_NS, 3);
        let times = times.map_err(|error| Failure::software(error.to_string()))?;
        Ok(Place { name, network, times })
    }

    fn engine(bundle: &Bundle) -> Result<Place, Failure> {
        Place::new("engine", Runs::Engine(Engine::new(bundle)?))
    }

    fn kernel(bundle: &Bundle) -> Result<Place, String> {
        let net = KernelNet::load(&kernel_net(bundle)?).map_err(|error| error.to_string())?;
        Place::new("kernel", Runs::Kernel(Box::new(net), bundle.k()))
            .map_err(|error| error.to_string())
    }

    fn other(bundle: &Bundle, dir: &Path, waits: Waits) -> Result<Place, Failure> {
        let name = match waits {
            Waits::Asleep => "other process",
            Waits::Polling => "other process that polls",
        };
        Place::new(name, Runs::Other(Other::start(bundle, dir, waits)?))
    }

    /// Asks about a row; the time that the answer took.
    fn ask(&mut self, series: &[f32], context: &[f32]) -> Result<Duration, Failure> {
        let begun = Instant::now();
        match &mut self.network {
            Runs::Engine(engine) => {
                hint::black_box(engine.run(series, context));
            }
            Runs::Kernel(net, k) => {
                let question = Question::of_row(series, context, *k);
                let time = net.time(&question, REPEATED);
                return time.map_err(|error| Failure::software(error.to_string()));
            }
            Runs::Other(other) => other.ask(series, context).map_err(broken)?,
        }
        let took = begun.elapsed();
        self.times.saturating_record(took.as_nanos() as u64);
        Ok(took)
    }
}

/// A network in this process.
struct Engine {
    network: Network,
    scratch: Scratch,
}

impl Engine {
    fn new(bundle: &Bundle) -> Result<Engine, Failure> {
        let model = bundle.read_model().map_err(|error| Failure::data(error.to_string()))?;
        let network = Network::compile(&model, bundle.ranges());
        let network = network.map_err(|error| Failure::data(error.to_string()))?;
        Ok(Engine { scratch: network.scratch(), network })
    }

    fn run(&mut self, series: &[f32], context: &[f32]) -> Answer {
        let mut answers = [Answer::default()];
        self.network.run(&mut self.scratch, series, context, &mut answers);
        answers[0]
    }
}

/// A network in a process of its own.
struct Other {
    process: Child,
    link: Link,
    question: Vec<f32>,
}

impl Other {
    fn start(bundle: &Bundle, dir: &Path, waits: Waits) -> Result<Other, Failure> {
        let start = || -> io::Result<Other> {
            let (ours, theirs) = UnixStream::pair()?;
            let how = waits.to_possible_value().map(|it| it.get_name().to_owned());
            let process = Command::new(std::env::current_exe()?)
                .args(["bench", "inference", "--answers", &how.unwrap_or_default(), "--model"])
                .arg(dir)
                .stdin(Stdio::from(OwnedFd::from(theirs)))
                .stdout(Stdio::null())
                .spawn()?;
            Ok(Other { process, link: Link::new(ours, waits)?, question: Vec::new() })
        };
        let mut other = start().map_err(broken)?;
        // It answers once it has compiled the network.
        let golden = bundle.golden();
        other.ask(&golden.inputs[0], &golden.contexts[0]).map_err(broken)?;
        Ok(other)
    }

    fn ask(&mut self, series: &[f32], context: &[f32]) -> io::Result<()> {
        self.question.clear();
        self.question.extend(series.iter().chain(context));
        self.link.send(&self.question)?;
        match self.link.receive(&mut [0.0; 2])? {
            true => Ok(()),
            false => Err(ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl Drop for Other {
    /// The process ends when its socket does.
    fn drop(&mut self) {
        let _ = self.link.stream.shutdown(Shutdown::Both);
        let _ = self.process.wait();
    }
}

/// A side of the socket.
struct Link {
    stream: UnixStream,
    bytes: Vec<u8>,
}

impl Link {
    fn new(stream: UnixStream, waits: Waits) -> io::Result<Link> {
        stream.set_nonblocking(waits == Waits::Polling)?;
        Ok(Link { stream, bytes: Vec::new() })
    }

    fn send(&mut self, numbers: &[f32]) -> io::Result<()> {
        self.bytes.clear();
        self.bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        // The socket's buffer has room: nobody sends before the other one has answered.
        self.stream.write_all(&self.bytes)
    }

    /// Fills the numbers; whether the other side was still there.
    fn receive(&mut self, numbers: &mut [f32]) -> io::Result<bool> {
        self.bytes.resize(size_of_val(numbers), 0);
        let mut at = 0;
        while at < self.bytes.len() {
            match self.stream.read(&mut self.bytes[at..]) {
                Ok(0) => return Ok(false),
                Ok(read) => at += read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => hint::spin_loop(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let read = self.bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
        numbers.iter_mut().zip(read).for_each(|(to, number)| *to = number);
        Ok(true)
    }
}

fn race(bundle: &Bundle, places: &mut [Place], seconds: f64) -> Result<Vec<Figure>, Failure> {
    let golden = bundle.golden();
    let rates = try_interleave(seconds, places.len(), |point| {
        let rows = golden.inputs.iter().zip(&golden.contexts).cycle().take(TURN);
        let mut took = Duration::ZERO;
        for (series, context) in rows {
            took += places[point].ask(series, context)?;
        }
        Ok::<f64, Failure>(TURN as f64 / took.as_secs_f64())
    })?;
    let figures = places.iter().zip(&rates);
    Ok(figures.flat_map(|(place, own)| told(bundle.name(), place, own, &rates[0])).collect())
}

/// Mean latency of the median turn, against the engine's too, and the 99th percentile.
fn told(model: &str, place: &Place, rates: &Rates, engine: &Rates) -> Vec<Figure> {
    let named = |what: &str| format!("{model}, {}{what}", place.name);
    let ns = |rate: f64| 1e9 / rate;
    let mut figures = vec![
        Figure { best: ns(rates.best()), ..Figure::one(named(""), "ns", ns(rates.median())) },
        Figure::one(named(", times the engine"), "times", engine.median() / rates.median()),
    ];
    if !place.times.is_empty() {
        let p99 = place.times.value_at_quantile(0.99) as f64;
        figures.push(Figure::one(named(", p99"), "ns", p99));
    }
    figures
}
