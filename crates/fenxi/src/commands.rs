//! The commands of the program.

pub mod check;
pub mod ctl;
pub mod devices;
pub mod init;
pub mod manual;
pub mod model;
pub mod policy;
pub mod profile;
pub mod replay;
pub mod report;
pub mod run;

use crate::cli::ShowArgs;
use crate::exit::{Failure, print};
use crate::memory;
use crate::proc::Machine;
use config::effective::EffectiveKey;
use config::origin::Origin;

/// The keys that `fenxi config show` prints even where nobody set them: what a first configuration
/// decides.
const FIRST_KEYS: [&str; 10] = [
    "io.interfaces",
    "io.mode",
    "model.path",
    "policy.rules",
    "mark.mask",
    "records.path",
    "ipfix.to",
    "control.http",
    "control.socket",
    "log.level",
];

/// `fenxi config show`: prints TOML that can be used as a configuration file, or with `--json` one
/// object of all keys with unit and meaning.
pub fn show_config(args: &ShowArgs) -> Result<(), Failure> {
    let memory = memory::total(&Machine::here());
    let mut effective = args.config.of_service().within(memory).load()?.effective();
    if args.json {
        let json = serde_json::to_string_pretty(&effective)
            .map_err(|error| Failure::software(error.to_string()))?;
        return print(&format!("{json}\n"));
    }
    if args.all {
        return print(&effective.to_toml(args.origin));
    }
    let all = effective.config.len();
    // A task begins with its name.
    let is_shown = |row: &EffectiveKey| {
        let key = row.key.as_str();
        let is_unusual = !row.origin.is_default() || matches!(row.origin, Origin::Memory(_));
        is_unusual || FIRST_KEYS.contains(&key) || key.ends_with(".name")
    };
    effective.config.retain(is_shown);
    let others = all - effective.config.len();
    let shown = effective.to_toml(args.origin);
    print(&format!("{shown}\n# {others} other keys have their defaults: fenxi config show --all\n"))
}
