//! The port that reads each interface, and what keeps it from being opened.

use config::Config;
use packetio::{Backend, OpenError};

use super::finding::Finding;
use super::interfaces;
use super::machine::Machine;
use crate::run::ports::{self, Wanted};
use crate::service_unit::{DropIn, FIRST};

const CHECK: &str = "port";
/// What a refusal for missing capabilities of the drop-in names.
const FIRST_NEEDS: &str = "CAP_BPF";

/// Tries the port of each interface. Programs are loaded, and a program for first packets is
/// attached and detached again; no packet takes another way meanwhile.
pub fn findings(machine: &Machine, config: &Config, wanted: &Wanted) -> Vec<Finding> {
    let io = &config.io;
    let names = match io.backend.devices {
        Some(_) => io.interfaces.iter().map(String::as_str).collect(),
        None => interfaces::present(config),
    };
    let of = |name| {
        let tried = ports::in_some_way(wanted, |first| ports::try_port(io, first, name));
        match (tried, &wanted.first) {
            (Ok((_, refused)), Some(first)) => {
                let is_default = io.capture_origin.is_default();
                Some(of_first(machine, name, first.labels.is_some(), refused, is_default))
            }
            (tried, _) => of_all(machine, io.backend, name, tried.map(drop)),
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

/// A refusal is no problem, because more packets can come up instead; it is no warning either if
/// `io.capture` has its default.
fn of_first(
    machine: &Machine,
    name: &str,
    labels: bool,
    refused: Option<String>,
    is_default: bool,
) -> Finding {
    let Some(cause) = refused else {
        let cause = match labels {
            true => "the kernel labels flows, and counts their packets",
            false => "the first packets of each flow come up, and the kernel counts the others",
        };
        return Finding::ok(CHECK, name, cause);
    };
    let lacks_rights = cause.contains(FIRST_NEEDS);
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
