//! `fenxi report`: what the history says of past traffic.

use crate::cli::ReportArgs;
use crate::exit::Failure;

/// Prints a report of the file that `history.path` names, whether a run writes it or not.
#[cfg(feature = "history")]
pub fn report(args: &ReportArgs) -> Result<(), Failure> {
    let config = args.config.of_service().load()?.config;
    let path = config.section::<crate::history::Keys>().path.ok_or_else(|| {
        Failure::config(
            "history.path is empty: no history is kept; set it, for example in \
             /etc/fenxi/fenxi.toml to \"/var/lib/fenxi/history\", and restart fenxi",
        )
    })?;
    let report = crate::history::report(&path, &args.query()?, None)?;
    crate::exit::print(&match args.json {
        true => super::devices::to_json(&report)?,
        false => crate::report::text(&report),
    })
}

/// Says that there is none.
#[cfg(not(feature = "history"))]
pub fn report(_: &ReportArgs) -> Result<(), Failure> {
    Err(Failure::unavailable(crate::history::ABSENT))
}
