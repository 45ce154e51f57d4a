//! The command line.
//!
//! [`Cli::parse_args`] gives arguments that are checked as far as they can be by themselves; what
//! they name (files, a model) is the commands' matter. Wrong usage exits 64, not with clap's own 2.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

pub use crate::access::is_dash;
use crate::exit::of_clap;
use crate::sinks;
use config::Sources;

mod ctl;
mod init;
mod model;
mod policy;
mod report;
mod run;

pub use ctl::{CtlArgs, CtlCommand, CtlModelCommand, CtlPolicyCommand, Switch, TopArgs};
pub use init::{InitArgs, Link, Want};
pub use model::{
    BenchArgs, CheckArgs, CompileArgs, DevicesArgs, InfoArgs, ModelCommand, ProfileArgs, TryArgs,
};
pub use policy::{
    PolicyCheckArgs, PolicyCommand, PolicyExplainArgs, PolicyStatsArgs, RuleFile, RuleFormat,
};
pub use report::ReportArgs;
#[cfg(feature = "history")]
pub use report::top as report_rows;
#[cfg(test)]
pub use run::FaultRates;
pub use run::{LiveArgs, OutputArgs, ReplayArgs, RunArgs, Speed};

/// The arguments of the program.
#[derive(Debug, Parser)]
#[command(
    name = "fenxi",
    version = crate::version::VERSION,
    about = "Tells what each connection is and does, while its packets pass",
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
    // In the order in which people need them; experts find theirs at the end.
    /// Write a first configuration from the answers to three questions
    Init(InitArgs),
    /// Show a running instance live: labels, hosts, flows, devices and losses
    Top(TopArgs),
    /// Sum up past traffic, in local time, by label, host, service or hour (history.path)
    Report(ReportArgs),
    /// Label live traffic on network interfaces until SIGTERM or SIGINT
    Run(RunArgs),
    /// Check that `fenxi run` can start with a configuration; with --deep, diagnose the machine
    Check(CheckConfigArgs),
    /// Query or control a running instance
    Ctl(CtlArgs),
    /// Inspect the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Check files of policy rules, explain which rule a flow gets, count rules
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Replay captures through the whole pipeline
    Replay(Box<ReplayArgs>),
    /// Inspect, check or score a model bundle
    #[command(subcommand)]
    Model(ModelCommand),
    /// Try every device and list those that work on this machine
    Devices(DevicesArgs),
    /// Measure a device at several batch sizes and recommend batching settings
    Profile(ProfileArgs),
    /// Write the man pages and shell completions into a folder: for packages
    #[command(hide = true)]
    Manual(ManualArgs),
}

/// Inspect the configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print the keys that are set, and ten more
    Show(ShowArgs),
}

/// Where the configuration comes from.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// Configuration file (TOML); files in the conf.d folder next to it override it [default:
    /// $FENXI_CONFIG; if that is not set, /etc/fenxi/fenxi.toml if it exists, except for replay]
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Set one key, for example io.mode=mark; overrides file and environment
    #[arg(short, long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
}

impl ConfigArgs {
    /// The same, with the service's file where none is named.
    pub fn of_service(&self) -> Sources {
        sinks::known(Sources::of_service(self.config.as_deref(), &self.sets))
    }
}

#[derive(Debug, Args)]
pub struct CheckConfigArgs {
    #[command(flatten)]
    pub live: LiveArgs,
    /// Draw the pipeline, diagnose interfaces, cores, memory, permissions, devices and everything a
    /// run needs, and print the fixes
    #[arg(short, long)]
    pub deep: bool,
    /// Check only the configuration and the model, not this machine: for replays, or the
    /// configuration of another machine
    #[arg(long)]
    pub config_only: bool,
    /// Print the findings as one JSON object
    #[arg(short, long, requires = "deep")]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ManualArgs {
    /// The folder
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Print all keys
    #[arg(short, long)]
    pub all: bool,
    /// Show where each value was set
    #[arg(short, long)]
    pub origin: bool,
    /// Print one JSON object of all keys with origins, units and descriptions
    #[arg(short, long)]
    pub json: bool,
}

impl Cli {
    /// The arguments in `args`, the program's name first. Err: the exit code, once help, version or
    /// the error is printed.
    pub fn parse_args(args: impl IntoIterator<Item = OsString>) -> Result<Cli, ExitCode> {
        let cli = Cli::try_parse_from(args).map_err(|error| of_clap(&error).report())?;
        let checked = match &cli.command {
            Command::Run(run) => run.output.check(),
            Command::Replay(replay) => replay.check(),
            _ => Ok(()),
        };
        checked.map_err(|failure| failure.report())?;
        Ok(cli)
    }
}

/// A number of seconds on a command line, 0 to 86400.
pub fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok();
    seconds
        .filter(|seconds| (0.0..=86_400.0).contains(seconds))
        .ok_or_else(|| "expected seconds from 0 to 86400".to_owned())
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
            "fenxi replay a.pcap - --config f.toml --set flow.k=8 --set tag.mode=off --model m \
             --flows - --series \
             --write t.pcap --label-delay-ms 5 --speed 2.5x --faults loss=0.5,seed=9",
        );
        assert_eq!(args.files, [PathBuf::from("a.pcap"), PathBuf::from("-")]);
        assert_eq!(args.config.sets, ["flow.k=8", "tag.mode=off"]);
        assert_eq!((args.speed, args.loops, args.label_delay_ms), (Speed::Times(2.5), 1, 5));
        assert_eq!(
            args.faults,
            Some(FaultRates { loss: 0.5, truncate: 0.0, corrupt: 0.0, seed: 9 })
        );
        assert!(args.output.series && !args.output.json && args.check().is_ok());
    }

    #[test]
    fn wrong_usage_is_refused() {
        for line in [
            "fenxi",
            "fenxi frobnicate",
            "fenxi replay",
            "fenxi replay a.pcap --loop 0",
            "fenxi replay a.pcap --speed fast",
            "fenxi config",
            "fenxi model check",
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.use_stderr(), "{line}");
        }
        for line in [
            "fenxi replay - -",
            "fenxi replay - --loop 2",
            "fenxi replay a.pcap --series",
            "fenxi replay a.pcap --flows - --json",
            "fenxi replay a.pcap --write -",
        ] {
            assert_eq!(replay(line).check().unwrap_err().code(), 64, "{line}");
        }
        let Command::Run(run) = parse("fenxi run --flows - --json").unwrap().command else {
            panic!("not a run");
        };
        assert_eq!(run.output.check().unwrap_err().code(), 64);
        for line in ["fenxi --help", "fenxi --version", "fenxi help replay"] {
            assert!(!parse(line).unwrap_err().use_stderr(), "{line}");
        }
    }
}
