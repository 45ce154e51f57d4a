//! `fenxi config show`: the configuration in effect, each value with its origin.

use crate::cli::ShowArgs;
use crate::config::Config;
use crate::exit::{Failure, print};

/// Prints TOML that can be used as a configuration file, or with `--json` one object of all keys with unit and meaning.
pub fn show(args: &ShowArgs) -> Result<(), Failure> {
    let (_, effective) = Config::load(args.config.config.as_deref(), &args.config.sets)?;
    if !args.json {
        return print(&effective.to_toml());
    }
    let json = serde_json::to_string_pretty(&effective)
        .map_err(|error| Failure::software(error.to_string()))?;
    print(&format!("{json}\n"))
}
