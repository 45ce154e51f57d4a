//! The command line. Wrong usage exits with 64, not with clap's own 2.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use fenxi::exit::{Failure, of_clap};

mod bench;

pub use crate::generate::GenerateArgs;
pub use bench::{BenchArgs, BenchName, Waits};
pub use fenxi::seconds;

/// The arguments of the program.
#[derive(Debug, Parser)]
#[command(
    name = "fenxi-lab",
    version,
    about = "Experiments on the parts of fenxi, and a traffic generator",
    max_term_width = 100
)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Generate traffic from captures: a synthetic mix of their flows, or the captures at another
    /// rate
    Generate(Box<GenerateArgs>),
    /// Run an experiment on this machine
    Bench(Box<BenchArgs>),
}

impl Cli {
    /// Parses `args`, which begin with the program's name.
    ///
    /// # Errors
    /// The exit code, once help, version or the error is printed.
    pub fn parse_args(args: impl IntoIterator<Item = OsString>) -> Result<Cli, ExitCode> {
        let cli = Cli::try_parse_from(args).map_err(|error| report(&of_clap(&error)))?;
        if let Command::Generate(generate) = &cli.command {
            generate.check().map_err(|failure| report(&failure))?;
        }
        Ok(cli)
    }
}

/// Prints why the program ends early, and returns the exit code.
pub fn report(failure: &Failure) -> ExitCode {
    failure.print_as("fenxi-lab");
    ExitCode::from(failure.code())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_finds_no_fault_in_the_declaration() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
