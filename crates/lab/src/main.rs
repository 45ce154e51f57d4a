//! `fenxi-lab`: experiments on the parts of fenxi (`fenxi-lab bench NAME`) and the traffic
//! generator (`fenxi-lab generate`). An engineer needs them; a router does not, so packages for
//! routers leave this program out.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use cli::{Cli, Command, report};

mod bench;
mod cli;
mod generate;
mod rng;

fn main() -> ExitCode {
    let cli = match Cli::parse_args(std::env::args_os()) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let done = match cli.command {
        Command::Generate(args) => generate::command::generate(&args),
        Command::Bench(args) => bench::bench(&args),
    };
    match done {
        Ok(()) => fenxi::exit::end(0),
        Err(failure) => {
            report(&failure);
            fenxi::exit::end(failure.code())
        }
    }
}
