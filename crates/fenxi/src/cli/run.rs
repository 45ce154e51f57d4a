//! `fenxi run`, `fenxi replay`: packets through the whole path.

use std::path::PathBuf;

use clap::Args;
use clap::builder::PossibleValuesParser;
use config::checked::IoMode;
use config::{Config, Sources};
use flowmgr::SeriesShare;
use toml::Value;

use super::{ConfigArgs, is_dash};
use crate::exit::Failure;
use crate::protocol::FlowQuery;
use crate::sinks;

/// What `fenxi run` runs on, and `fenxi check` checks: the configuration, and options for the keys
/// that a first run needs.
#[derive(Debug, Args)]
pub struct LiveArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Interface to run on, or several; overrides io.interfaces
    #[arg(short, long = "interface", value_name = "NAME,...", value_delimiter = ',')]
    pub interfaces: Vec<String>,
    /// What to do with packets; overrides io.mode
    #[arg(long, value_name = "MODE", value_parser = PossibleValuesParser::new(IoMode::NAMES))]
    pub mode: Option<String>,
    /// Model bundle to use; overrides model.path
    #[arg(short, long, value_name = "DIR")]
    pub model: Option<PathBuf>,
}

impl LiveArgs {
    /// The `--set` arguments, with the other options among them, so that a reload keeps them.
    pub fn sets(&self) -> Result<Vec<String>, Failure> {
        let mut sets = self.config.sets.clone();
        if !self.interfaces.is_empty() {
            let names = self.interfaces.iter().cloned().map(Value::String);
            sets.push(format!("io.interfaces={}", Value::Array(names.collect())));
        }
        if let Some(mode) = &self.mode {
            sets.push(format!("io.mode={}", Value::String(mode.clone())));
        }
        if let Some(dir) = &self.model {
            let text = dir.to_str().map(str::to_owned);
            let text = text.ok_or_else(|| {
                Failure::usage(format!("--model {}: the path is not UTF-8 text", dir.display()))
            })?;
            sets.push(format!("model.path={}", Value::String(text)));
        }
        Ok(sets)
    }

    /// The files, the environment, these options and what `more` sets; the service's file where
    /// none is named.
    pub fn sources(&self, more: impl IntoIterator<Item = String>) -> Result<Sources, Failure> {
        let mut sets = self.sets()?;
        sets.extend(more);
        let file = self.config.config.as_deref();
        Ok(sinks::known(Sources::of_service(file, &sets)))
    }
}

#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub live: LiveArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Record the run (headers, device answers, requests) into a new or empty folder, for
    /// `fenxi replay --recorded`. For diagnosis only: it slows the run down, and the recording
    /// contains addresses and ports
    #[arg(short, long, value_name = "DIR")]
    pub record: Option<PathBuf>,
    /// Maximum size of the recording in MiB; when it is reached, the recording ends and the run
    /// continues
    #[arg(long, value_name = "N", default_value_t = 256, requires = "record",
          value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub record_max_mib: u32,
}

/// Options that conflict with `--recorded`: a recording has its own configuration and answers.
const NOT_RECORDED: [&str; 14] = [
    "ipfix",
    "files",
    "config",
    "sets",
    "model",
    "write",
    "label_delay_ms",
    "speed",
    "loops",
    "swap_model",
    "swap_every",
    "control",
    "hold",
    "faults",
];

#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// Captures (pcap or pcapng, optionally gzipped), replayed one after the other; - is stdin
    #[arg(required_unless_present = "recorded", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Replay a recording of `fenxi run --record DIR` and report whether it gives the same counters
    #[arg(long, value_name = "DIR", conflicts_with_all = NOT_RECORDED)]
    pub recorded: Option<PathBuf>,
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Model bundle to use instead of the shipped one
    #[arg(short, long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Write the packets as they would be sent, with DSCP set
    #[arg(short, long, value_name = "TAGGED.pcap")]
    pub write: Option<PathBuf>,
    /// With --speed max: ms of packet time from the packet that decides until its label takes
    /// effect
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub label_delay_ms: u32,
    /// max, real (by timestamps) or a multiple such as 10x
    #[arg(long, value_name = "PACE", default_value = "max", value_parser = Speed::parse)]
    pub speed: Speed,
    /// Replay the captures this many times
    #[arg(long = "loop", value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub loops: u32,
    /// Swap to the model of this bundle during the replay
    #[arg(long, value_name = "DIR")]
    pub swap_model: Option<PathBuf>,
    /// Time between two swaps, in ms of wall time
    #[arg(long, value_name = "MS", default_value_t = 1000, requires = "swap_model",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub swap_every: u32,
    /// Serve metrics, health and `fenxi ctl` during the replay, as the keys of `[control]`
    /// configure it
    #[arg(long)]
    pub control: bool,
    /// Keep serving after the replay until a signal or `fenxi ctl drain`
    #[arg(long, requires = "control")]
    pub hold: bool,
    /// Explain this flow instead of printing the summary: its number, or its ends, for example
    /// `10.0.0.5:4000 > 192.0.2.4:443 tcp`
    #[arg(long, value_name = "FLOW", conflicts_with_all = ["control", "recorded"])]
    pub explain: Option<FlowQuery>,
    /// Damage packets, for example loss=0.01,truncate=0.01,corrupt=0.01,seed=1
    #[arg(long, value_name = "LIST", value_parser = FaultRates::parse)]
    pub faults: Option<FaultRates>,
}

/// Outputs of a run or a replay.
#[derive(Debug, Args)]
pub struct OutputArgs {
    /// Write flow and label records as JSON Lines; - is stdout
    #[arg(short, long, value_name = "OUT.jsonl")]
    pub flows: Option<PathBuf>,
    /// Send flow records as IPFIX to udp://HOST:PORT, tcp://HOST:PORT or file:PATH
    #[arg(long, value_name = "TO")]
    pub ipfix: Option<String>,
    /// Include the series in all flow records; records.series does so for a share of the flows
    #[arg(long)]
    pub series: bool,
    /// Print the summary as one JSON object on stdout
    #[arg(short, long)]
    pub json: bool,
}

impl OutputArgs {
    /// Share of the flows whose records include the series.
    pub fn recorded_series(&self, config: &Config) -> SeriesShare {
        match self.series {
            true => SeriesShare::ALL,
            false => SeriesShare::new(config.records.series),
        }
    }

    /// The options as settings.
    pub fn sets(&self) -> impl Iterator<Item = String> {
        let to = self.ipfix.clone().map(toml::Value::String);
        to.into_iter().map(|to| format!("ipfix.to={to}"))
    }

    /// Checks what clap cannot: stdout takes one output.
    pub(super) fn check(&self) -> Result<(), Failure> {
        match self.json && self.flows.as_deref().is_some_and(is_dash) {
            true => Err(Failure::usage(
                "--flows - and --json both write to stdout; give --flows a file",
            )),
            false => Ok(()),
        }
    }
}

impl ReplayArgs {
    /// Checks what clap cannot: stdin can be read once, and stdout takes one output.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let stdins = self.files.iter().filter(|file| is_dash(file)).count();
        if stdins > 1 {
            Err(Failure::usage("stdin (-) can be replayed only once"))
        } else if stdins > 0 && self.loops > 1 {
            Err(Failure::usage("--loop cannot repeat stdin (-); use a file"))
        } else if self.write.as_deref().is_some_and(is_dash) {
            Err(Failure::usage("--write needs a file; stdout is not supported"))
        } else if self.output.series && self.output.flows.is_none() {
            Err(Failure::usage(
                "--series includes the series in records, but no records are written; add --flows \
                FILE",
            ))
        } else {
            self.output.check()
        }
    }
}

/// How fast a replay goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Speed {
    /// As fast as the program can.
    Max,
    /// Multiple of the pace of the timestamps; finite and above 0.
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

/// Value of `--faults`: each rate is a probability per packet.
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
        let mut rates = FaultRates { loss: 0.0, truncate: 0.0, corrupt: 0.0, seed: 1 };
        for part in text.split(',') {
            let (name, value) =
                part.split_once('=').ok_or_else(|| format!("{part}: expected name=value"))?;
            let rate = match name {
                "loss" => &mut rates.loss,
                "truncate" => &mut rates.truncate,
                "corrupt" => &mut rates.corrupt,
                "seed" => {
                    rates.seed =
                        value.parse().map_err(|_| format!("{part}: expected a whole number"))?;
                    continue;
                }
                _ => return Err(format!("{part}: expected loss, truncate, corrupt or seed")),
            };
            let share = value.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
            *rate = share.ok_or_else(|| format!("{part}: expected a number from 0 to 1"))?;
        }
        Ok(rates)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

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

    use crate::cli::{Cli, Command};

    #[test]
    fn options_become_keys_and_come_after_set() {
        let line = "fenxi run -i eth0,eth1 -i wan0 --mode mark -m dir -s io.mode=tap";
        let cli = Cli::try_parse_from(line.split(' ')).unwrap();
        let Command::Run(run) = cli.command else {
            panic!("not a run");
        };
        assert_eq!(
            run.live.sets().unwrap(),
            [
                "io.mode=tap",
                "io.interfaces=[\"eth0\", \"eth1\", \"wan0\"]",
                "io.mode=\"mark\"",
                "model.path=\"dir\""
            ]
        );
        let config = run.live.sources([]).unwrap().load().unwrap().config;
        assert_eq!(config.io.interfaces, ["eth0", "eth1", "wan0"]);
        assert_eq!(config.io.mode, IoMode::Mark);
        assert!(Cli::try_parse_from(["fenxi", "run", "--mode", "bridge"]).is_err());
    }
}
