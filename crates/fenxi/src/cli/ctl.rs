//! `fenxi ctl`: what to ask a running fenxi.

use std::path::PathBuf;

use clap::{Args, Subcommand};

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
    /// Open the file of records anew, once the old one was moved away
    Reopen,
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
