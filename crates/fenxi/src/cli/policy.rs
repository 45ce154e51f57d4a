//! `fenxi policy`: files of rules, before they are used.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use flowmgr::Behaviour;
use policy::Dscp;
use policy::hours::LocalTime;

use super::{ConfigArgs, seconds};

/// Files of policy rules.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Check a file of rules: what is wrong, which rules never win, which overlap
    Check(PolicyCheckArgs),
    /// Explain which rule a flow gets, and which rules it beat
    Explain(PolicyExplainArgs),
    /// Count the rules of a file by kind
    Stats(PolicyStatsArgs),
}

/// A file of rules.
#[derive(Debug, Args)]
pub struct RuleFile {
    /// File of rules, with those that it includes
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// How the file is written [default: by its name, .toml or .csv]
    #[arg(short, long, value_name = "FORMAT")]
    pub format: Option<RuleFormat>,
}

/// How a file of rules is written.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum RuleFormat {
    /// For people
    Toml,
    /// For machines
    Csv,
    /// Format of the generator ClassBench
    #[value(name = "classbench")]
    ClassBench,
}

#[derive(Debug, Args)]
pub struct PolicyCheckArgs {
    #[command(flatten)]
    pub rules: RuleFile,
    /// Model bundle whose labels and taxonomies the rules must name
    #[arg(short, long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Configuration file: refuse what `fenxi run` would refuse with it [default: the file of rules
    /// alone is checked]
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Set one key, for example io.mode=mark; overrides file and environment
    #[arg(short, long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Name at most this many rules of each finding
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    pub top: usize,
    /// Print one JSON object
    #[arg(short, long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct PolicyExplainArgs {
    #[command(flatten)]
    pub rules: RuleFile,
    /// The flow by its ends and protocol, the side that began it first, for example
    /// `10.0.0.5:4000 > 192.0.2.4:443 tcp`
    #[arg(required = true, value_name = "FLOW", num_args = 1..)]
    pub flow: Vec<String>,
    /// Interface that the flow came in by
    #[arg(short, long, value_name = "NAME")]
    pub in_port: Option<String>,
    /// Label of the flow [default: none yet]
    #[arg(short, long, value_name = "LABEL")]
    pub label: Option<String>,
    /// What the flow does: bulk, interactive, realtime, idle or none
    #[arg(long, value_name = "NAME", default_value = "none", value_parser = behaviour)]
    pub behaviour: Behaviour,
    /// Bytes of the flow so far, in both directions
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub bytes: u64,
    /// Packets of the flow so far, in both directions
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub packets: u64,
    /// Age of the flow
    #[arg(long, value_name = "S", default_value_t = 0.0, value_parser = seconds)]
    pub age_s: f64,
    /// VLAN of the flow's first packet; 0: without a tag
    #[arg(long, value_name = "ID", default_value_t = 0)]
    pub vlan: u16,
    /// DSCP of the flow's first packet, as it came
    #[arg(long, value_name = "DSCP", default_value = "0")]
    pub dscp_seen: Dscp,
    /// Day and time, for example `fri 22:30` [default: now]
    #[arg(long, value_name = "TIME")]
    pub at: Option<LocalTime>,
    /// Profiles that are on
    #[arg(long, value_name = "NAME")]
    pub profile: Vec<String>,
    /// Model bundle, which says the taxonomy of the label [default: the one that `fenxi run` would
    /// use]
    #[arg(short, long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Show at most this many rules
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    pub top: usize,
    /// Print one JSON object
    #[arg(short, long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct PolicyStatsArgs {
    #[command(flatten)]
    pub rules: RuleFile,
    /// Print one JSON object
    #[arg(short, long)]
    pub json: bool,
}

fn behaviour(text: &str) -> Result<Behaviour, String> {
    let found = Behaviour::ALL.into_iter().find(|it| it.name() == text);
    found.ok_or_else(|| {
        let names = Behaviour::ALL.map(Behaviour::name);
        format!("expected one of {}", names.join(", "))
    })
}
