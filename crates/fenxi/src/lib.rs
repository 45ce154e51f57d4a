//! fenxi: labels flows with a neural network while their packets pass. The program that an operator
//! runs.
//!
//! This crate depends on all others; only it knows command lines, terminals, sockets and output
//! formats. `replay` and `run` choose the parts of the workers, `supervise` is the control thread,
//! `control` serves metrics, health and `fenxi ctl`, `sinks` holds the sinks of labels and records,
//! `summary` formats the result of a run.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::Write;
use std::process::ExitCode;

use cli::{Cli, Command, ConfigCommand, ModelCommand, PolicyCommand};
use exit::Failure;

mod access;
mod cli;
mod commands;
mod control;
mod escape;
pub mod exit;
mod history;
mod holder;
mod label_names;
mod learning;
mod log;
pub mod machine;
mod measured;
mod memory;
mod metric;
mod names;
mod outcome;
mod proc;
mod replay;
mod rules;
mod run;
mod scores;
mod servers;
mod service_unit;
mod services;
mod signals;
mod sinks;
mod summary;
mod supervise;
mod unix_socket;
mod version;
mod weights;
mod workers;

pub use cli::{is_dash, seconds};

use console::{figures, protocol, report};

/// The program: reads the command line, does what it says, and gives the exit code.
pub fn main() -> ExitCode {
    let cli = match Cli::parse_args(std::env::args_os()) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let code = match run(cli.command) {
        Ok(()) => 0,
        Err(failure) => {
            failure.print();
            failure.code()
        }
    };
    close_stdout();
    exit::end(code)
}

/// Output is complete. Discards what libraries print while the process ends (QNN's does), which
/// would follow a JSON object.
fn close_stdout() {
    let flushed = std::io::stdout().flush();
    if let (Ok(()), Ok(null)) = (flushed, File::options().write(true).open("/dev/null")) {
        // If it fails, a line too many is all.
        let _ = rustix::stdio::dup2_stdout(null);
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Run(args) => commands::run::run(&args),
        Command::Replay(args) => commands::replay::replay(&args),
        Command::Check(args) => commands::check::check(&args),
        Command::Init(args) => commands::init::init(&args),
        Command::Config(ConfigCommand::Show(args)) => commands::show_config(&args),
        Command::Model(ModelCommand::Info(args)) => commands::model::info(&args),
        Command::Model(ModelCommand::Check(args)) => commands::model::check(&args),
        Command::Model(ModelCommand::Bench(args)) => commands::model::bench(&args),
        Command::Model(ModelCommand::Compile(args)) => commands::model::compile(&args),
        Command::Model(ModelCommand::Try(args)) => commands::model::trial(&args),
        Command::Policy(PolicyCommand::Check(args)) => commands::policy::check(&args),
        Command::Policy(PolicyCommand::Explain(args)) => commands::policy::explain(&args),
        Command::Policy(PolicyCommand::Stats(args)) => commands::policy::stats(&args),
        Command::Devices(args) => commands::devices::devices(&args),
        Command::Profile(args) => commands::profile::profile(&args),
        Command::Ctl(args) => commands::ctl::ctl(&args),
        Command::Top(args) => commands::ctl::top(&args),
        Command::Report(args) => commands::report::report(&args),
        Command::Manual(args) => commands::manual::manual(&args),
    }
}
