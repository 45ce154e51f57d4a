//! `fenxi-lab`: what an engineer needs to measure fenxi and to make traffic, and a router does not: the experiments
//! (`fenxi-lab bench NAME`) and the generator (`fenxi-lab generate`).
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
