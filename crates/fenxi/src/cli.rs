//! The command line.
//!
//! [`Cli::parse_args`] gives arguments that are checked as far as they can be by themselves; what
//! they name (files, a model) is the commands' matter. Wrong usage exits 64, not with clap's own 2.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};

use crate::exit::Failure;
use crate::generate::{COPIES_MAX, Payload, Until};

/// The arguments of the program.
#[derive(Debug, Parser)]
#[command(
    name = "fenxi",
    version,
    about = "Labels flows with a neural network while their packets pass",
    max_term_width = 100
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Label live traffic on interfaces, until SIGTERM or SIGINT
    Run(RunArgs),
    /// Replay captures through the whole path
    Replay(Box<ReplayArgs>),
    /// Check a configuration and draw its pipeline
    Check(ConfigArgs),
    /// Look at the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Look at a model bundle
    #[command(subcommand)]
    Model(ModelCommand),
    /// Try every device and list those that this machine can run
    Devices(DevicesArgs),
    /// Measure a device at several batch sizes and recommend how to batch
    Profile(ProfileArgs),
    /// Make traffic from captures: a synthetic mix of their flows, or the captures at another rate
    Generate(Box<GenerateArgs>),
    /// Measure both walks on this machine
    Bench(Box<BenchArgs>),
    /// Ask a running fenxi, or tell it what to do
    Ctl(CtlArgs),
}

/// Look at the configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print the configuration in effect, each value with its origin
    Show(ShowArgs),
}

/// Look at a model bundle.
#[derive(Debug, Subcommand)]
pub enum ModelCommand {
    /// Print what a bundle says of itself
    Info(BundleArgs),
    /// Run a bundle on its golden inputs and compare; with --against, compare it with another bundle
    Check(CheckArgs),
}

/// Arguments of `ctl`.
#[derive(Debug, Args)]
pub struct CtlArgs {
    /// What to ask or tell.
    #[command(subcommand)]
    pub command: CtlCommand,
    /// Control socket of the running fenxi; without it, control.socket of the defaults and the environment
    #[arg(long, value_name = "PATH", global = true)]
    pub socket: Option<PathBuf>,
    /// Print the reply as it comes, as one JSON object
    #[arg(long, global = true)]
    pub json: bool,
}

/// What to ask a running fenxi, or to tell it.
#[derive(Debug, Subcommand)]
pub enum CtlCommand {
    /// How it is, with all figures that are not 0
    Status,
    /// The threads of the data path
    Threads,
    /// The devices, and what went wrong with them
    Devices,
    /// Some of the flows seen last, the largest first
    Flows {
        /// Only flows with this label
        #[arg(long)]
        label: Option<String>,
        /// At most so many
        #[arg(long, value_name = "N", default_value_t = 20)]
        top: usize,
    },
    /// From now on log at this level
    Log {
        /// error, warn, info, debug or trace; or levels by target
        level: String,
    },
    /// Read the configuration, and all that it points to, anew
    Reload,
    /// Exchange the model
    #[command(subcommand)]
    Model(CtlModelCommand),
    /// Come to an end in good order
    Drain,
}

/// What to do with the model.
#[derive(Debug, Subcommand)]
pub enum CtlModelCommand {
    /// Take this bundle instead
    Load {
        /// Folder of the bundle
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
}

/// Where the configuration comes from.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Set one key, over file and environment, as in flow.k=10
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
}

/// Arguments of `config show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Where the configuration comes from.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Print one JSON object, with units and meanings
    #[arg(long)]
    pub json: bool,
}

/// A model bundle.
#[derive(Debug, Args)]
pub struct BundleArgs {
    /// Folder of the bundle
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

/// Arguments of `model check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Folder of the bundle
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Bundle that this one is a form of, such as the fp32 model of an int8 one: says what is lost
    #[arg(long, value_name = "DIR")]
    pub against: Option<PathBuf>,
    /// Table of labelled flows (CSV, also gzipped) to compare on, beside the golden inputs
    #[arg(long, value_name = "FILE", requires = "against")]
    pub series: Vec<PathBuf>,
    /// Capture whose flows to compare on, beside the golden inputs
    #[arg(long, value_name = "FILE", requires = "against")]
    pub capture: Vec<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Where the configuration comes from.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Model bundle to use instead of the shipped one
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Write flow and label records as JSON Lines; - is stdout
    #[arg(long, value_name = "OUT.jsonl")]
    pub flows: Option<PathBuf>,
    /// Put the series into flow records
    #[arg(long, requires = "flows")]
    pub series: bool,
    /// Print the summary as one JSON object on stdout
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// Captures (pcap, pcapng, also gzipped), one after the other; - is stdin
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Where the configuration comes from.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Model bundle to use instead of the shipped one
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Write flow and label records as JSON Lines; - is stdout
    #[arg(long, value_name = "OUT.jsonl")]
    pub flows: Option<PathBuf>,
    /// Put the series into flow records
    #[arg(long, requires = "flows")]
    pub series: bool,
    /// Write the packets as they would leave, with DSCP set
    #[arg(long, value_name = "TAGGED.pcap")]
    pub write: Option<PathBuf>,
    /// At --speed max: ms of packet time from the k-th packet until its label counts
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub label_delay_ms: u32,
    /// max, real (by the timestamps) or a multiple such as 10x
    #[arg(long, value_name = "PACE", default_value = "max", value_parser = Speed::parse)]
    pub speed: Speed,
    /// Replay the captures this many times
    #[arg(long = "loop", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub loops: u32,
    /// Print the summary as one JSON object on stdout
    #[arg(long)]
    pub json: bool,
    /// Exchange the model for this bundle while the replay goes on
    #[arg(long, value_name = "DIR")]
    pub swap_model: Option<PathBuf>,
    /// Time between two exchanges, in ms of wall time
    #[arg(long, value_name = "MS", default_value_t = 1000, requires = "swap_model", value_parser = clap::value_parser!(u32).range(1..))]
    pub swap_every: u32,
    /// Serve metrics, health and `fenxi ctl` meanwhile; the keys of the configuration under control say where
    #[arg(long)]
    pub control: bool,
    /// Stay when all is done, and go on serving, until a signal or `fenxi ctl drain`
    #[arg(long, requires = "control")]
    pub hold: bool,
    /// Damage packets, as in loss=0.01,truncate=0.01,corrupt=0.01,seed=1
    #[arg(long, value_name = "LIST", value_parser = FaultRates::parse)]
    pub faults: Option<FaultRates>,
}

/// Arguments of `devices`.
#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// Where the configuration comes from.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Model bundle to try instead of the shipped one
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// ONNX Runtime library to use, over accel.library
    #[arg(long, value_name = "PATH")]
    pub library: Option<PathBuf>,
    /// Library of a plug-in provider, tried as the device "plugin"
    #[arg(long, value_name = "PATH")]
    pub plugin: Option<PathBuf>,
    /// Devices to try, providers or names of [device.NAME] tables, instead of all
    #[arg(long = "device", value_name = "NAME,...", value_delimiter = ',')]
    pub devices: Vec<String>,
    /// Give a device up after so long; some compile a model for minutes
    #[arg(long, value_name = "S", default_value_t = 60.0, value_parser = seconds)]
    pub deadline_s: f64,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
    /// Try this device in this process and print the outcome: what the command starts for each device
    #[arg(long = "try", value_name = "NAME", hide = true)]
    pub trial: Option<String>,
}

/// Arguments of `profile`.
#[derive(Debug, Args)]
pub struct ProfileArgs {
    /// Where the configuration comes from.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Model bundle to measure instead of the shipped one
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Device to measure: a provider, or the name of a [device.NAME] table
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    pub device: String,
    /// Batch sizes to measure
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2,4,8,16,32,64,128,256,512,1024",
        value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub sizes: Vec<u32>,
    /// Recommend for this goal from series to label
    #[arg(long, value_name = "D", value_parser = latency_goal)]
    pub latency_goal_ms: Option<Duration>,
    /// Write the profile to this file
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
    /// About how long to measure, without the preparations
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = seconds)]
    pub seconds: f64,
}

/// Arguments of `generate`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("output").required(true).args(["to", "interface"])))]
pub struct GenerateArgs {
    /// Captures to make it from, instead of the shipped one; - is stdin
    #[arg(value_name = "FILE")]
    pub captures: Vec<PathBuf>,
    /// Write the packets to this capture file (pcap, ns); - is stdout, memory only measures
    #[arg(long, value_name = "OUT.pcap")]
    pub to: Option<PathBuf>,
    /// Send the packets out of this interface, when they are due
    #[arg(long, value_name = "IF")]
    pub interface: Option<String>,
    /// Mean rate at which flows begin
    #[arg(long, value_name = "RATE", default_value_t = 1000.0, value_parser = flows_per_s)]
    pub flows_per_s: f64,
    /// Flows begin for so long; those that have begun go on to their end [default: 10]
    #[arg(long, value_name = "S", value_parser = seconds, conflicts_with = "flows")]
    pub seconds: Option<f64>,
    /// Begin so many flows
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=COPIES_MAX))]
    pub flows: Option<u64>,
    /// Seed of all choices; the same seed and captures give the same packets
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// What becomes of payload
    #[arg(long, value_enum, value_name = "WHAT", default_value = "zero")]
    pub payload: Payload,
    /// Replay the captures as they are, at --pps
    #[arg(long, requires = "pps", conflicts_with_all = ["flows_per_s", "seconds", "flows", "seed", "payload"])]
    pub replay: bool,
    /// Packets per second, evenly, instead of the packets' own times
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    pub pps: Option<u32>,
    /// Print the summary as one JSON object on stdout
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The experiment
    #[arg(value_enum, value_name = "NAME")]
    pub name: BenchName,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
    /// Write NAME.csv and draw NAME.svg in this folder
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// About how long to measure, without the preparations
    #[arg(long, value_name = "S", default_value_t = 30.0, value_parser = seconds)]
    pub seconds: f64,
    /// scale: numbers of flows; flood: how many flows collide
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub flows: Vec<u32>,
    /// Entries of the table, a power of two; the experiments have defaults of their own
    #[arg(long, value_name = "N", value_parser = entries)]
    pub entries: Option<usize>,
    /// walk: capture to draw the real mix from
    #[arg(long, value_name = "FILE")]
    pub capture: Option<PathBuf>,
    /// Model bundle, instead of the shipped ones; analytics takes several
    #[arg(long = "model", value_name = "DIR")]
    pub models: Vec<PathBuf>,
    /// latency, swap, idle: series per second; padding: several such rates
    #[arg(long = "rate", value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub rates: Vec<u32>,
    /// idle: length of a pause
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = pause)]
    pub pause: f64,
}

/// An experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchName {
    /// Speed by burst size and table load (FENXI Fig. 6)
    Table,
    /// Speed by number of flows and of workers (FENXI Fig. 7)
    Scale,
    /// The whole walk on one core
    Walk,
    /// Look-up and update in the table alone
    Lookup,
    /// Traffic that means ill
    Flood,
    /// What expiry costs a poll
    Sweep,
    /// Series to label through the analytics manager, beside a bare loop over the device
    Analytics,
    /// Time to label under Poisson arrivals
    Latency,
    /// Device time that padding takes, by policy
    Padding,
    /// Two devices against one
    Devices,
    /// Time to label while the model is exchanged
    Swap,
    /// An analytics thread without traffic, and its first label after a pause
    Idle,
}

impl GenerateArgs {
    /// When no further flow begins.
    pub fn until(&self) -> Until {
        match self.flows {
            Some(flows) => Until::Flows(flows),
            None => Until::Seconds(self.seconds.unwrap_or(10.0)),
        }
    }

    /// What clap cannot say: stdin can be read once, and stdout takes one output.
    fn check(&self) -> Result<(), Failure> {
        if self.captures.iter().filter(|file| is_dash(file)).count() > 1 {
            Err(Failure::usage("stdin (-) can be read once only"))
        } else if self.json && self.to.as_deref().is_some_and(is_dash) {
            Err(Failure::usage(
                "--to - and --json both want stdout; give --to a file",
            ))
        } else {
            Ok(())
        }
    }
}

impl BenchArgs {
    /// Entries of the table, `default` unless told otherwise.
    pub fn entries_or(&self, default: usize) -> usize {
        self.entries.unwrap_or(default)
    }

    /// Series per second, `default` unless told otherwise.
    pub fn rate_or(&self, default: u32) -> f64 {
        f64::from(self.rates.first().copied().unwrap_or(default))
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok();
    seconds
        .filter(|seconds| (0.0..=86_400.0).contains(seconds))
        .ok_or_else(|| "expected seconds, 0 to 86400".to_owned())
}

fn flows_per_s(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().ok();
    rate.filter(|rate| (0.001..=1e7).contains(rate))
        .ok_or_else(|| "expected flows per second, 0.001 to 10000000".to_owned())
}

fn pause(text: &str) -> Result<f64, String> {
    seconds(text)
        .ok()
        .filter(|pause| *pause >= 0.01)
        .ok_or_else(|| "expected seconds, 0.01 to 86400".to_owned())
}

fn latency_goal(text: &str) -> Result<Duration, String> {
    let ms = text.parse::<f64>().ok();
    ms.filter(|ms| (0.001..=60_000.0).contains(ms))
        .map(|ms| Duration::from_secs_f64(ms / 1e3))
        .ok_or_else(|| "expected milliseconds, 0.001 to 60000".to_owned())
}

fn entries(text: &str) -> Result<usize, String> {
    let entries = text.parse::<usize>().ok();
    entries
        .filter(|entries| entries.is_power_of_two() && (1 << 10..=1 << 24).contains(entries))
        .ok_or_else(|| "expected a power of two, 2^10 to 2^24".to_owned())
}

/// How fast a replay goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Speed {
    /// As fast as the program can.
    Max,
    /// This many times as fast as the timestamps say; finite and above 0.
    Times(f64),
}

impl Speed {
    fn parse(text: &str) -> Result<Speed, String> {
        match text {
            "max" => Ok(Speed::Max),
            "real" => Ok(Speed::Times(1.0)),
            _ => text
                .strip_suffix('x')
                .and_then(|factor| factor.parse::<f64>().ok())
                .filter(|factor| factor.is_finite() && *factor > 0.0)
                .map(Speed::Times)
                .ok_or_else(|| "expected max, real or a multiple such as 10x".to_owned()),
        }
    }
}

/// What `--faults` asks for: each rate is a probability per packet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FaultRates {
    /// Packets lost.
    pub loss: f64,
    /// Packets cut short.
    pub truncate: f64,
    /// Packets with a byte changed.
    pub corrupt: f64,
    /// Seed of the choices; the same seed damages the same packets.
    pub seed: u64,
}

impl FaultRates {
    fn parse(text: &str) -> Result<FaultRates, String> {
        let mut rates = FaultRates {
            loss: 0.0,
            truncate: 0.0,
            corrupt: 0.0,
            seed: 1,
        };
        for part in text.split(',') {
            let (name, value) = part
                .split_once('=')
                .ok_or_else(|| format!("{part}: expected name=value"))?;
            let rate = match name {
                "loss" => &mut rates.loss,
                "truncate" => &mut rates.truncate,
                "corrupt" => &mut rates.corrupt,
                "seed" => {
                    rates.seed = value
                        .parse()
                        .map_err(|_| format!("{part}: expected a whole number"))?;
                    continue;
                }
                _ => return Err(format!("{part}: expected loss, truncate, corrupt or seed")),
            };
            let share = value
                .parse::<f64>()
                .ok()
                .filter(|share| (0.0..=1.0).contains(share));
            *rate = share.ok_or_else(|| format!("{part}: expected a number from 0 to 1"))?;
        }
        Ok(rates)
    }
}

impl Cli {
    /// The arguments in `args`, the program's name first. Err: the exit code, once help, version or
    /// the error is printed.
    pub fn parse_args(args: impl IntoIterator<Item = OsString>) -> Result<Cli, ExitCode> {
        let cli = Cli::try_parse_from(args).map_err(|error| {
            // Help and version go to stdout, complaints to stderr.
            match error.print() {
                _ if error.use_stderr() => ExitCode::from(64),
                Ok(()) => ExitCode::SUCCESS,
                Err(cause) => Failure::writing("stdout", &cause).report(),
            }
        })?;
        let checked = match &cli.command {
            Command::Replay(replay) => replay.check(),
            Command::Generate(generate) => generate.check(),
            _ => Ok(()),
        };
        checked.map_err(|failure| failure.report())?;
        Ok(cli)
    }
}

impl ReplayArgs {
    /// What clap cannot say: stdin can be read once, and stdout takes one output.
    fn check(&self) -> Result<(), Failure> {
        let stdins = self.files.iter().filter(|file| is_dash(file)).count();
        let flows_on_stdout = self.flows.as_deref().is_some_and(is_dash);
        if stdins > 1 {
            Err(Failure::usage("stdin (-) can be replayed once only"))
        } else if stdins > 0 && self.loops > 1 {
            Err(Failure::usage(
                "--loop cannot repeat stdin (-); give it a file",
            ))
        } else if flows_on_stdout && self.json {
            Err(Failure::usage(
                "--flows - and --json both want stdout; give --flows a file",
            ))
        } else if self.write.as_deref().is_some_and(is_dash) {
            Err(Failure::usage(
                "--write needs a file; stdout is not supported",
            ))
        } else {
            Ok(())
        }
    }
}

/// Whether a path means stdin or stdout.
pub fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    fn replay(line: &str) -> ReplayArgs {
        match parse(line).unwrap().command {
            Command::Replay(args) => *args,
            other => panic!("not a replay: {other:?}"),
        }
    }

    #[test]
    fn clap_finds_no_fault_in_the_declaration() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn replay_takes_all_its_arguments() {
        let args = replay(
            "fenxi replay a.pcap - --config f.toml --set flow.k=8 --set tag.mode=off --model m --flows - --series \
             --write t.pcap --label-delay-ms 5 --speed 2.5x --faults loss=0.5,seed=9",
        );
        assert_eq!(args.files, [PathBuf::from("a.pcap"), PathBuf::from("-")]);
        assert_eq!(args.config.sets, ["flow.k=8", "tag.mode=off"]);
        assert_eq!(
            (args.speed, args.loops, args.label_delay_ms),
            (Speed::Times(2.5), 1, 5)
        );
        assert_eq!(
            args.faults,
            Some(FaultRates {
                loss: 0.5,
                truncate: 0.0,
                corrupt: 0.0,
                seed: 9
            })
        );
        assert!(args.series && !args.json && args.check().is_ok());
    }

    #[test]
    fn speeds() {
        let speed = |text| Speed::parse(text).ok();
        assert_eq!(speed("max"), Some(Speed::Max));
        assert_eq!(speed("real"), Some(Speed::Times(1.0)));
        assert_eq!(speed("10x"), Some(Speed::Times(10.0)));
        for wrong in ["", "x", "0x", "-1x", "infx", "nanx", "10", "fast"] {
            assert_eq!(speed(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn wrong_fault_lists_are_named() {
        for (list, part) in [
            ("loss", "name=value"),
            ("loss=2", "0 to 1"),
            ("corrupt=NaN", "0 to 1"),
            ("seed=x", "whole number"),
            ("delay=1", "expected loss"),
        ] {
            let message = FaultRates::parse(list).unwrap_err();
            assert!(message.contains(part), "{list}: {message}");
        }
    }

    #[test]
    fn wrong_usage_is_refused() {
        for line in [
            "fenxi",
            "fenxi frobnicate",
            "fenxi replay",
            "fenxi replay a.pcap --loop 0",
            "fenxi replay a.pcap --speed fast",
            "fenxi replay a.pcap --series",
            "fenxi config",
            "fenxi model check",
            "fenxi model check m --series s.csv",
            "fenxi model check m --capture c.pcap",
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.use_stderr(), "{line}");
        }
        for line in [
            "fenxi replay - -",
            "fenxi replay - --loop 2",
            "fenxi replay a.pcap --flows - --json",
            "fenxi replay a.pcap --write -",
        ] {
            assert_eq!(replay(line).check().unwrap_err().code(), 64, "{line}");
        }
        for line in ["fenxi --help", "fenxi --version", "fenxi help replay"] {
            assert!(!parse(line).unwrap_err().use_stderr(), "{line}");
        }
    }
}
