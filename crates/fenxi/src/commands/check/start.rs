//! Checks whether `fenxi run` can start on this machine, without starting it.
//!
//! The steps are those of [`crate::run::run`], in its order. Each is a function next to the one that `run` calls, shares
//! its checks and its messages, and has no lasting effect: no interface is watched, no socket listens, no file is created.
//! So `fenxi check` and `fenxi run` refuse the same configurations with the same messages; a test compares them.

use std::path::Path;

use accel::Bundle;
use flowmgr::Effect;

use super::machine::Machine;
use crate::control::Sockets;
use crate::exit::Failure;
use crate::run::{pair, ports};
use crate::sinks;
use config::Config;
use config::checked::{Control, HttpPlace};
use dataplane::pipelines::{FlowOptions, PacketSide};

/// Checks everything except the devices. `is_running`: an instance runs with this configuration; its sockets and record
/// file will be free when it is restarted.
///
/// # Errors
/// As [`crate::run::run`].
pub fn look(
    machine: &Machine,
    config: &Config,
    bundle: &Bundle,
    is_running: bool,
) -> Result<(), Failure> {
    let options = FlowOptions {
        effect: Effect::Arrival,
        record_series: flowmgr::SeriesShare::of(config.records.series),
    };
    PacketSide::build(config, bundle, options)?;
    ports::look(&config.io)?;
    let is_made = |path: &Path| is_made_by_unit(machine, path);
    if !is_running {
        // Released at once.
        drop(pair::hold(&config.io)?);
        look_at_sockets(config, is_made)?;
    }
    sinks::probe(config, &|path| is_running || is_made(path))
}

fn look_at_sockets(config: &Config, is_made: impl Fn(&Path) -> bool) -> Result<(), Failure> {
    let Control { http, socket, .. } = &config.control;
    Sockets::look(&Control {
        http: http.clone().filter(|place| match place {
            HttpPlace::Unix(path) => !is_made(path),
            HttpPlace::Tcp(_) => true,
        }),
        socket: socket.clone().filter(|path| !is_made(path)),
        ..config.control.clone()
    })
}

/// Whether the file's folder does not exist yet, but the service's unit will create it: `/run/fenxi`, `/run/fenxi-INSTANCE`
/// or `/var/lib/fenxi`.
fn is_made_by_unit(machine: &Machine, path: &Path) -> bool {
    let Some(folder) = path.parent() else {
        return false;
    };
    let is_units = folder.to_str().is_some_and(|folder| {
        matches!(folder, "/run/fenxi" | "/var/lib/fenxi")
            || folder
                .strip_prefix("/run/fenxi-")
                .is_some_and(|name| !name.contains('/'))
    });
    is_units && !machine.path(folder).is_dir() && machine.unit().is_some()
}

#[cfg(test)]
mod tests {
    use super::super::machine::tests::machine;
    use super::*;

    #[test]
    fn folders_that_the_unit_makes() {
        let unit = ("etc/systemd/system/fenxi.service", "[Service]");
        let is_made = |files: &[(&str, &str)], path: &str| {
            is_made_by_unit(&machine(files).1, Path::new(path))
        };
        for path in [
            "/run/fenxi/s",
            "/run/fenxi-eth0/s",
            "/var/lib/fenxi/f.jsonl",
        ] {
            assert!(is_made(&[unit], path), "{path}");
            assert!(!is_made(&[], path), "{path}");
        }
        assert!(!is_made(&[unit, ("run/fenxi/other", "")], "/run/fenxi/s"));
        assert!(!is_made(&[unit], "/run/other/s"));
    }
}
