//! The port that reads each interface, and what keeps it from being opened.

use config::Config;
use dataplane::tasks::OpenTask;
use packetio::{Backend, OpenError};

use super::finding::Finding;
use super::interfaces;
use super::machine::Machine;
use crate::run::ports;
use crate::service_unit::{DropIn, FIRST};

const CHECK: &str = "port";
/// Capabilities that the program for first packets needs.
const FIRST_NEEDS: &str = "CAP_BPF and CAP_NET_ADMIN";

/// Tries the port of each interface. Programs are loaded, and a program for first packets is
/// attached and detached again; no packet takes another way meanwhile.
pub fn findings(machine: &Machine, config: &Config, tasks: &[OpenTask]) -> Vec<Finding> {
    let io = &config.io;
    let names = match io.backend.devices {
        Some(_) => io.interfaces.iter().map(String::as_str).collect(),
        None => interfaces::present(config),
    };
    let first = ports::first_packets(config, tasks);
    let of = |name| {
        let tried = ports::try_port(io, first.clone(), name);
        match first {
            Some(_) => Some(of_first(machine, name, tried, io.capture_origin.is_default())),
            None => of_all(machine, io.backend, name, tried),
        }
    };
    names.into_iter().filter_map(of).collect()
}

/// A port that receives all packets. `None`: `capabilities` reports what is missing.
fn of_all(
    machine: &Machine,
    backend: &Backend,
    name: &str,
    tried: Result<(), OpenError>,
) -> Option<Finding> {
    let Err(error) = tried else {
        return Some(Finding::ok(CHECK, name, backend.about));
    };
    let lacks_rights =
        matches!(error, OpenError::MissingCapability { .. } | OpenError::LockedMemory { .. });
    let finding = refused(name, &error);
    match DropIn::of_backend(backend) {
        Some(drop_in) if lacks_rights => {
            Some(finding.cure(drop_in.install(&machine.service)).for_permission())
        }
        None if backend.uses_packet_sockets && lacks_rights => None,
        _ => Some(finding),
    }
}

/// A refusal is no problem, because all packets can come up instead; it is no warning either if
/// `io.capture` has its default.
fn of_first(
    machine: &Machine,
    name: &str,
    tried: Result<(), OpenError>,
    is_default: bool,
) -> Finding {
    let Err(error) = tried else {
        let cause = "the first packets of each flow come up, and the kernel counts the others";
        return Finding::ok(CHECK, name, cause);
    };
    let why = error.to_string();
    let lacks_rights = why.contains(FIRST_NEEDS);
    let cause = format!("{why}; all packets will come up by packet sockets, which costs more");
    let finding = match is_default {
        true => Finding::ok(CHECK, name, cause),
        false => Finding::warning(CHECK, name, cause),
    };
    finding.cure_if(lacks_rights.then(|| FIRST.install(&machine.service)))
}

fn refused(name: &str, error: &OpenError) -> Finding {
    let line = error.to_string();
    // The finding names the interface itself.
    let cause = line.strip_prefix(&format!("{name}: ")).unwrap_or(&line);
    let finding = Finding::problem(CHECK, name, cause);
    match error {
        OpenError::NotAllowed { .. } | OpenError::MissingCapability { .. } => {
            finding.for_permission()
        }
        _ => finding,
    }
}
