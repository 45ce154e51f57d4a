//! `fenxi ctl`: queries and commands for a running instance.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use policy::Dscp;

use crate::protocol::Column;

#[derive(Debug, Args)]
pub struct CtlArgs {
    /// The query or command.
    #[command(subcommand)]
    pub command: CtlCommand,
    /// Control socket of the running instance [default: control.socket in the service's
    /// configuration]
    #[arg(short = 'S', long, value_name = "PATH", global = true)]
    pub socket: Option<PathBuf>,
    /// Print the raw reply, one JSON object
    #[arg(short, long, global = true)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TopArgs {
    /// Control socket of the running instance [default: control.socket in the service's
    /// configuration]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Seconds between two updates
    #[arg(long, short = 'n', value_name = "SECONDS", default_value_t = 2,
          value_parser = clap::value_parser!(u16).range(1..=60))]
    pub interval: u16,
    /// Print one screen as text, of $COLUMNS and $LINES, or 80 by 24
    #[arg(long)]
    pub once: bool,
}

/// Queries and commands for a running instance.
#[derive(Debug, Subcommand)]
pub enum CtlCommand {
    /// Show the status on one screen
    Status,
    /// List the threads of the data path
    Threads,
    /// List the devices and their last errors
    Devices,
    /// Print all metrics in Prometheus' text format
    Metrics,
    /// List the flows of the flow tables, highest rate first, then some that have ended
    Flows {
        /// Show only flows with this label, in upper or lower case
        #[arg(short, long)]
        label: Option<String>,
        /// Show only flows of this host, by address, name or MAC address
        #[arg(long, value_name = "HOST")]
        host: Option<String>,
        /// Show only flows with this port at either end
        #[arg(long)]
        port: Option<u16>,
        /// Show only flows whose first packet came with this DSCP, for example EF or 46
        #[arg(long, visible_alias = "dscp", value_name = "DSCP")]
        dscp_seen: Option<Dscp>,
        /// Show only flows whose packets get this DSCP
        #[arg(long, value_name = "DSCP")]
        dscp_set: Option<Dscp>,
        /// Sort by this column: numbers from the highest, all else from A
        #[arg(short, long, value_name = "COLUMN", default_value = "rate", value_parser = column())]
        sort: Column,
        /// Sort from the lowest number, or from Z
        #[arg(short, long)]
        reverse: bool,
        /// Show at most this many flows
        #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
        top: usize,
    },
    /// Explain why a flow has its label, or none: its series, the model's answers, what was written
    Explain {
        /// The flow: its number in `fenxi ctl flows`, or its ends, for example
        /// `10.0.0.5:4000 > 192.0.2.4:443 tcp`
        #[arg(required = true, value_name = "FLOW", num_args = 1..)]
        flow: Vec<String>,
    },
    /// List hosts: those that the model labels, latest first, or all that are known
    Hosts {
        /// Show only hosts with this label
        #[arg(short, long)]
        label: Option<String>,
        /// Show at most this many hosts
        #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
        top: usize,
    },
    /// Show what is known of the servers of services, the busiest first
    Services {
        /// Show only this service
        service: Option<String>,
    },
    /// Set the log level
    Log {
        /// off, error, warn, info, debug or trace, or levels by target
        level: String,
    },
    /// Reload the configuration and the model
    Reload {
        /// Undo the reload after this time (for example 300s or 5m) unless `fenxi ctl confirm`
        /// comes first
        #[arg(long, value_name = "TIME", value_parser = confirm_within)]
        confirm_within: Option<u32>,
    },
    /// Confirm the last reload
    Confirm,
    /// Reopen the record file after it was moved away
    Reopen,
    /// Swap the model, or show how its labels have held
    #[command(subcommand)]
    Model(CtlModelCommand),
    /// Change and show the rules of the policy
    #[command(subcommand)]
    Policy(CtlPolicyCommand),
    /// Shut down gracefully
    Drain,
}

/// Commands that concern the rules of the policy.
#[derive(Debug, Subcommand)]
pub enum CtlPolicyCommand {
    /// Replace all rules by the rules of a file, which fenxi itself reads
    Load {
        /// File of rules
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Add rules behind other rules of the same priority, all or none
    Add {
        /// A rule, for example `source = "10.0.0.0/8", drop = true`
        #[arg(required = true, value_name = "RULE", num_args = 1..)]
        rules: Vec<String>,
    },
    /// Delete rules, all or none
    Delete {
        /// Number or name of a rule
        #[arg(required = true, value_name = "NUMBER|NAME", num_args = 1..)]
        rules: Vec<String>,
    },
    /// Make many changes at once, all or none
    Change {
        /// File of lines `add RULE` and `delete NUMBER|NAME`; - reads standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Show rules with their numbers
    Show {
        /// Number or name of a rule [default: the first ones]
        #[arg(value_name = "RULE")]
        rule: Option<String>,
        /// Show what rules with a name have counted
        #[arg(short, long)]
        counters: bool,
        /// Show at most this many rules
        #[arg(short = 'n', long, value_name = "N", default_value_t = 100)]
        limit: usize,
    },
    /// Undo the last batch of changes, or the last load
    Undo,
    /// Switch a profile, so that its rules count or not
    Profile {
        /// As rules name it
        #[arg(value_name = "NAME")]
        name: String,
        /// On or off
        #[arg(value_name = "on|off")]
        switch: Switch,
    },
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// The profile's rules count.
    On,
    /// They do not.
    Off,
}

/// Commands that concern the model.
#[derive(Debug, Subcommand)]
pub enum CtlModelCommand {
    /// Swap to the model of this bundle
    Load {
        /// Folder of the bundle
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        /// The task whose model it is; needed where there are several
        #[arg(long, value_name = "NAME")]
        task: Option<String>,
    },
    /// Show how labels that are bands of what flows will do have held, as ended flows tell
    Scores,
    /// Judge a candidate by what flows proved to be, and swap to it once it is shown to be better
    Offer {
        /// Folder of the bundle
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        /// The task whose model it is to be; needed where there are several
        #[arg(long, value_name = "NAME")]
        task: Option<String>,
    },
    /// Give flows their labels, by which candidates are judged whose labels are no bands
    Truth {
        /// File of labels, a line of JSON each (docs/learn.md); - reads standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The task whose labels they are; needed where there are several
        #[arg(long, value_name = "NAME")]
        task: Option<String>,
    },
    /// Show where offered candidates stand, and what became of others
    Offers,
    /// Withdraw the canary, or swap back to the model before the last candidate that was promoted
    Back {
        /// The task whose model it is; needed where there are several
        #[arg(long, value_name = "NAME")]
        task: Option<String>,
    },
}

/// A column of flows by its name.
fn column() -> impl TypedValueParser<Value = Column> {
    let names = Column::OF_FLOWS.map(|(name, _)| name);
    PossibleValuesParser::new(names).map(|text| {
        let mut columns = Column::OF_FLOWS.into_iter();
        columns.find(|(name, _)| *name == text).map_or(Column::Rate, |(_, column)| column)
    })
}

/// Seconds, from 1 to a day: `300`, `300s`, `5m` or `1h`.
fn confirm_within(text: &str) -> Result<u32, String> {
    let (number, unit) = match text.strip_suffix(['s', 'm', 'h']) {
        Some(number) => (number, &text[number.len()..]),
        None => (text, "s"),
    };
    let seconds = number.parse::<u32>().ok().and_then(|number| {
        number.checked_mul(match unit {
            "h" => 3600,
            "m" => 60,
            _ => 1,
        })
    });
    seconds
        .filter(|seconds| (1..=86_400).contains(seconds))
        .ok_or_else(|| "expected a time from 1 second to 1 day, such as 300s, 5m or 1h".to_owned())
}

#[cfg(test)]
mod tests {
    use super::confirm_within;

    #[test]
    fn times_have_units() {
        let times = ["300", "300s", "5m", "1h", "24h"].map(|text| confirm_within(text).ok());
        assert_eq!(times, [Some(300), Some(300), Some(300), Some(3600), Some(86_400)]);
        for wrong in ["", "s", "0", "25h", "-1", "1d", "99999999999", "1.5m"] {
            assert!(confirm_within(wrong).is_err(), "{wrong}");
        }
    }
}
