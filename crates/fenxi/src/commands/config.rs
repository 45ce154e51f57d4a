//! `fenxi config show`: the configuration in effect, and where each value was set.

use crate::cli::ShowArgs;
use crate::exit::{Failure, print};

/// Prints TOML that can be used as a configuration file, or with `--json` one object of all keys
/// with unit and meaning.
pub fn show(args: &ShowArgs) -> Result<(), Failure> {
    let effective = args.config.of_service().load()?.effective();
    if !args.json {
        return print(&effective.to_toml(args.origin));
    }
    let json = serde_json::to_string_pretty(&effective)
        .map_err(|error| Failure::software(error.to_string()))?;
    print(&format!("{json}\n"))
}
