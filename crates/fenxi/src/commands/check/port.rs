//! The port that reads each interface, and what keeps it from being opened.

use config::Config;
use dataplane::tasks::OpenTask;
use packetio::{Backend, OpenError};

use super::finding::Finding;
use super::interfaces;
use super::machine::Machine;
use crate::run::ports;
use crate::service_unit::{FIRST, XDP};

const CHECK: &str = "port";
/// Capabilities that the program for first packets needs.
const FIRST_NEEDS: &str = "CAP_BPF and CAP_NET_ADMIN";

/// Tries the port of each interface. Programs are loaded, and a program for first packets is
/// attached and detached again; no packet takes another way meanwhile.
pub fn findings(machine: &Machine, config: &Config, tasks: &[OpenTask]) -> Vec<Finding> {
    let io = &config.io;
    let names = match io.backend {
        // Devices of DPDK are not interfaces of the kernel.
        Backend::Dpdk => io.interfaces.iter().map(String::as_str).collect(),
        _ => interfaces::present(config),
    };
    let first = ports::first_packets(config, tasks);
    let of = |name| {
        let tried = ports::try_port(io, first, name);
        match (io.backend, first) {
            (Backend::AfPacket, None) => match tried {
                // `capabilities` reports it.
                Err(OpenError::MissingCapability { .. }) => None,
                _ => Some(plain(name, tried, "packet sockets, which copy every packet")),
            },
            (Backend::AfPacket, Some(_)) => {
                let is_default = io.capture_origin.is_default();
                Some(of_first(machine, name, tried, is_default))
            }
            (Backend::AfXdp, _) => Some(of_xdp(machine, name, tried)),
            (Backend::Dpdk, _) => {
                let what = "DPDK, by `fenxi run` only: to look at a device is to take it";
                Some(plain(name, tried, what))
            }
        }
    };
    names.into_iter().filter_map(of).collect()
}

fn plain(name: &str, tried: Result<(), OpenError>, what: &str) -> Finding {
    match tried {
        Ok(()) => Finding::ok(CHECK, name, what),
        Err(error) => refused(name, &error),
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

fn of_xdp(machine: &Machine, name: &str, tried: Result<(), OpenError>) -> Finding {
    match tried {
        Ok(()) => Finding::ok(
            CHECK,
            name,
            "AF_XDP; the log of `fenxi run` says whether in native mode and with zero copy",
        ),
        Err(error @ (OpenError::MissingCapability { .. } | OpenError::LockedMemory { .. })) => {
            refused(name, &error).cure(XDP.install(&machine.service)).for_permission()
        }
        Err(error) => refused(name, &error),
    }
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
