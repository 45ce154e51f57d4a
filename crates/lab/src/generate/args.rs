//! `fenxi-lab generate`: traffic from captures.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};

use super::rules::command::RulesArgs;
use super::{COPIES_MAX, Payload, Until};
use fenxi::exit::Failure;
use fenxi::{is_dash, seconds};

/// Arguments of `generate`.
#[derive(Debug, Args)]
#[command(
    group(ArgGroup::new("output").required(true).args(["to", "interface"])),
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub struct GenerateArgs {
    /// What else is generated.
    #[command(subcommand)]
    pub what: Option<GenerateWhat>,
    /// Captures to use instead of the shipped one; - is stdin
    #[arg(value_name = "FILE")]
    pub captures: Vec<PathBuf>,
    /// Make flows of the volumes in this table (CSV with flows, packets and octets) instead of
    /// copies; 10000, unless --flows says otherwise
    #[arg(long, value_name = "FILE",
        conflicts_with_all = ["captures", "replay", "payload", "seconds"])]
    pub volumes: Option<PathBuf>,
    /// Write the packets to this capture file (pcap, ns); - is stdout, memory discards them
    #[arg(long, value_name = "OUT.pcap")]
    pub to: Option<PathBuf>,
    /// Send the packets from this interface, each at its time
    #[arg(long, value_name = "IF")]
    pub interface: Option<String>,
    /// Mean number of flows that begin per second
    #[arg(long, value_name = "RATE", default_value_t = 1000.0, value_parser = flows_per_s)]
    pub flows_per_s: f64,
    /// Begin flows for this long, then let them run to their end [default: 10]
    #[arg(long, value_name = "S", value_parser = seconds, conflicts_with = "flows")]
    pub seconds: Option<f64>,
    /// Begin this many flows, then let them run to their end
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=COPIES_MAX))]
    pub flows: Option<u64>,
    /// Random seed; the same seed and captures give the same packets
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// What to put into payloads
    #[arg(long, value_enum, value_name = "WHAT", default_value = "zero")]
    pub payload: Payload,
    /// Replay the captures unchanged, at --pps
    #[arg(long, requires = "pps",
        conflicts_with_all = ["flows_per_s", "seconds", "flows", "seed", "payload"])]
    pub replay: bool,
    /// Packets per second, evenly spaced, instead of the packets' own times
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    pub pps: Option<u32>,
    /// Print the summary as one JSON object on stdout
    #[arg(long)]
    pub json: bool,
}

/// What is generated instead of traffic.
#[derive(Debug, Subcommand)]
pub enum GenerateWhat {
    /// Rules by tuple, in the manner of ClassBench, for experiments with classifiers
    Rules(RulesArgs),
}

impl GenerateArgs {
    /// The limit on new flows.
    pub fn until(&self) -> Until {
        match self.flows {
            Some(flows) => Until::Flows(flows),
            None => Until::Seconds(self.seconds.unwrap_or(10.0)),
        }
    }

    /// Checks what clap cannot express: stdin can be read once, and stdout takes one output.
    pub fn check(&self) -> Result<(), Failure> {
        if self.captures.iter().filter(|file| is_dash(file)).count() > 1 {
            Err(Failure::usage("stdin (-) can be read once only"))
        } else if self.json && self.to.as_deref().is_some_and(is_dash) {
            Err(Failure::usage("--to - and --json both want stdout; give --to a file"))
        } else {
            Ok(())
        }
    }
}

fn flows_per_s(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().ok();
    rate.filter(|rate| (0.001..=1e7).contains(rate))
        .ok_or_else(|| "expected flows per second, 0.001 to 10000000".to_owned())
}
