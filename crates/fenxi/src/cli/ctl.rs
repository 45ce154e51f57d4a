//! `fenxi ctl`: queries and commands for a running instance.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Arguments of `ctl`.
#[derive(Debug, Args)]
pub struct CtlArgs {
    /// The query or command.
    #[command(subcommand)]
    pub command: CtlCommand,
    /// Control socket of the running instance [default: control.socket in the service's configuration]
    #[arg(short = 'S', long, value_name = "PATH", global = true)]
    pub socket: Option<PathBuf>,
    /// Print the raw reply, one JSON object
    #[arg(short, long, global = true)]
    pub json: bool,
}

/// Queries and commands for a running instance.
#[derive(Debug, Subcommand)]
pub enum CtlCommand {
    /// Show status and non-zero counters
    Status,
    /// List the threads of the data path
    Threads,
    /// List the devices and their last errors
    Devices,
    /// List a sample of recent flows, largest first
    Flows {
        /// Show only flows with this label
        #[arg(short, long)]
        label: Option<String>,
        /// Show at most this many flows
        #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
        top: usize,
    },
    /// List hosts with their labels, latest first
    Hosts {
        /// Show only hosts with this label
        #[arg(short, long)]
        label: Option<String>,
        /// Show at most this many hosts
        #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
        top: usize,
    },
    /// Set the log level
    Log {
        /// off, error, warn, info, debug or trace, or levels by target
        level: String,
    },
    /// Reload the configuration and the model
    Reload {
        /// Undo the reload after this time (for example 300s or 5m) unless `fenxi ctl confirm` comes first
        #[arg(long, value_name = "TIME", value_parser = confirm_within)]
        confirm_within: Option<u32>,
    },
    /// Confirm the last reload
    Confirm,
    /// Reopen the record file after it was moved away
    Reopen,
    /// Swap the model
    #[command(subcommand)]
    Model(CtlModelCommand),
    /// Shut down gracefully
    Drain,
}

/// Commands that concern the model.
#[derive(Debug, Subcommand)]
pub enum CtlModelCommand {
    /// Swap to the model of this bundle
    Load {
        /// Folder of the bundle
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
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
        assert_eq!(
            times,
            [Some(300), Some(300), Some(300), Some(3600), Some(86_400)]
        );
        for wrong in ["", "s", "0", "25h", "-1", "1d", "99999999999", "1.5m"] {
            assert!(confirm_within(wrong).is_err(), "{wrong}");
        }
    }
}
