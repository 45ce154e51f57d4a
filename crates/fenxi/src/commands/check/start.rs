//! Checks whether `fenxi run` can start on this machine, without starting it.
//!
//! It takes the steps of [`crate::run::run`], in its order. Each is a function next to the one
//! that `run` calls and shares its checks and messages, without lasting effect: no interface is
//! watched, no socket listens, no file is created. So `fenxi check` and `fenxi run` refuse the same
//! configurations with the same messages; a test compares them.

use flowmgr::Effect;

use crate::control::Sockets;
use crate::exit::Failure;
use crate::run::{pair, ports};
use crate::sinks;
use config::Config;
use dataplane::pipelines::{FlowOptions, PacketSide};
use dataplane::tasks::OpenTask;

/// Checks everything except the devices. `is_running`: an instance runs with this configuration, so
/// its sockets and record file are taken until it is restarted.
pub fn probe(config: &Config, tasks: &[OpenTask], is_running: bool) -> Result<(), Failure> {
    let options = FlowOptions {
        effect: Effect::Arrival,
        record_series: flowmgr::SeriesShare::of(config.records.series),
    };
    PacketSide::build(config, tasks, options)?;
    ports::probe(config)?;
    if !is_running {
        // Released at once.
        drop(pair::hold(&config.io)?);
        Sockets::probe(&config.control)?;
    }
    sinks::probe(config, &|_| is_running)
}
