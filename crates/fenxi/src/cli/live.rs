//! What `fenxi run` runs on, and `fenxi check` checks: the configuration, and options for the keys
//! that a first run needs.

use std::path::PathBuf;

use clap::Args;
use clap::builder::PossibleValuesParser;
use config::Sources;
use config::checked::IoMode;
use toml::Value;

use super::ConfigArgs;
use crate::exit::Failure;
use crate::sinks;

/// The configuration of live traffic.
#[derive(Debug, Args)]
pub struct LiveArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Interface to run on, or several; overrides io.interfaces
    #[arg(short, long = "interface", value_name = "NAME,...", value_delimiter = ',')]
    pub interfaces: Vec<String>,
    /// What to do with packets; overrides io.mode
    #[arg(long, value_name = "MODE", value_parser = PossibleValuesParser::new(IoMode::NAMES))]
    pub mode: Option<String>,
    /// Model bundle to use; overrides model.path
    #[arg(short, long, value_name = "DIR")]
    pub model: Option<PathBuf>,
}

impl LiveArgs {
    /// The `--set` arguments, with the other options among them, so that a reload keeps them.
    pub fn sets(&self) -> Result<Vec<String>, Failure> {
        let mut sets = self.config.sets.clone();
        if !self.interfaces.is_empty() {
            let names = self.interfaces.iter().cloned().map(Value::String);
            sets.push(format!("io.interfaces={}", Value::Array(names.collect())));
        }
        if let Some(mode) = &self.mode {
            sets.push(format!("io.mode={}", Value::String(mode.clone())));
        }
        if let Some(dir) = &self.model {
            let text = dir.to_str().map(str::to_owned);
            let text = text.ok_or_else(|| {
                Failure::usage(format!("--model {}: the path is not UTF-8 text", dir.display()))
            })?;
            sets.push(format!("model.path={}", Value::String(text)));
        }
        Ok(sets)
    }

    /// The files, the environment, these options and what `more` sets; the service's file where
    /// none is named.
    pub fn sources(&self, more: impl IntoIterator<Item = String>) -> Result<Sources, Failure> {
        let mut sets = self.sets()?;
        sets.extend(more);
        let file = self.config.config.as_deref();
        Ok(sinks::known(Sources::of_service(file, &sets)))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn options_become_keys_and_come_after_set() {
        let line = "fenxi run -i eth0,eth1 -i wan0 --mode mark -m dir -s io.mode=tap";
        let cli = Cli::try_parse_from(line.split(' ')).unwrap();
        let Command::Run(run) = cli.command else {
            panic!("not a run");
        };
        assert_eq!(
            run.live.sets().unwrap(),
            [
                "io.mode=tap",
                "io.interfaces=[\"eth0\", \"eth1\", \"wan0\"]",
                "io.mode=\"mark\"",
                "model.path=\"dir\""
            ]
        );
        let config = run.live.sources([]).unwrap().load().unwrap().config;
        assert_eq!(config.io.interfaces, ["eth0", "eth1", "wan0"]);
        assert_eq!(config.io.mode, IoMode::Mark);
        assert!(Cli::try_parse_from(["fenxi", "run", "--mode", "bridge"]).is_err());
    }
}
