//! The interfaces of a live run: opened as the configuration asks, or refused by name.
//!
//! Each interface has one receive ring for each flow worker, over which the kernel spreads its frames. The n-th rings of
//! all interfaces belong to the n-th flow worker, so both directions of a flow meet there.

use std::sync::Arc;
use std::time::Duration;

use config::checked::{Io, IoMode};
use config::{Config, nearest};
use dataplane::clock::Clock;
use dataplane::egress::{Egress, Forward};
use dataplane::flow_worker::Limits;
use dataplane::run::Run;
use packetio::{Direction, DpdkSettings, OpenError, Opened, PortSettings, Tx};

use crate::exit::Failure;
use crate::sinks::Sinks;
use crate::workers::WorkerIo;

/// Kernels check blocks that are not full once per timeout; older kernels do so in ticks of up to 10 ms.
const BLOCK_SLACK: Duration = Duration::from_millis(10);

/// Opens all interfaces for `workers` flow workers; gives each worker its ports, in the order of the configuration.
///
/// # Errors
/// 69 where an interface is not to be had, 77 where a capability is missing, 78 where there is no interface to open or a
/// setting does not suit one.
pub fn open(io: &Io, workers: usize) -> Result<Vec<Vec<Opened>>, Failure> {
    check_named(io)?;
    let mut by_worker: Vec<Vec<Opened>> = (0..workers).map(|_| Vec::new()).collect();
    let interfaces: Vec<PortSettings> = io.interfaces.iter().map(|it| settings(io, it)).collect();
    let opened = packetio::open(io.backend, &interfaces, workers as u16).map_err(failure)?;
    for rings in opened {
        for (ports, ring) in by_worker.iter_mut().zip(rings) {
            ports.push(ring);
        }
    }
    Ok(by_worker)
}

/// Checks what [`open`] would refuse, without binding to an interface.
///
/// # Errors
/// As [`open`].
pub fn look(io: &Io) -> Result<(), Failure> {
    check_named(io)?;
    for interface in &io.interfaces {
        packetio::probe(io.backend, &settings(io, interface)).map_err(failure)?;
    }
    Ok(())
}

fn check_named(io: &Io) -> Result<(), Failure> {
    match io.interfaces.is_empty() {
        true => Err(Failure::config(
            "io.interfaces = []: name the interfaces to run on, as in `-i eth0`",
        )),
        false => Ok(()),
    }
}

fn settings(io: &Io, interface: &str) -> PortSettings {
    let is_inline = io.mode == IoMode::Inline;
    let defaults = PortSettings::new(interface);
    PortSettings {
        direction: match is_inline {
            true => Direction::Incoming,
            false => Direction::Both,
        },
        is_promiscuous: io.promiscuous || is_inline,
        // Forwarded packets must be complete.
        snap_length: match is_inline {
            true => defaults.snap_length,
            false => io.snap_length,
        },
        block_bytes: io.block_bytes,
        blocks: io.blocks,
        block_timeout_ms: io.block_timeout_ms,
        // A worker waits for all its rings at once.
        wait: Duration::ZERO,
        completes_checksums: is_inline,
        sends: is_inline,
        dpdk: DpdkSettings {
            args: io.dpdk_args.clone(),
            mbufs: io.dpdk_mbufs,
            sleep: io.dpdk_sleep,
        },
        ..defaults
    }
}

/// The parts of each flow worker.
pub fn worker_io(
    ports: Vec<Vec<Opened>>,
    config: &Config,
    run: &Arc<Run>,
    sinks: &Sinks,
) -> Vec<WorkerIo> {
    // A router's packet comes in by one interface and leaves by another. In mode tap each interface has a part of the traffic.
    let is_seen_twice = config.io.mode == IoMode::Mark && config.io.interfaces.len() > 1;
    let parts = ports.into_iter().enumerate().map(|(number, ports)| {
        let (rx, tx): (Vec<_>, Vec<_>) = ports.into_iter().map(|port| (port.rx, port.tx)).unzip();
        let tx: Vec<Box<dyn Tx>> = tx.into_iter().flatten().collect();
        // Only mode inline sends, and it has exactly two interfaces.
        let egress = <[Box<dyn Tx>; 2]>::try_from(tx).ok();
        let egress = egress.filter(|_| config.io.mode == IoMode::Inline);
        let forward = |ports| Box::new(Forward::new(ports, run.clone(), number)) as Box<dyn Egress>;
        WorkerIo {
            ports: rx,
            egress: egress.map(forward),
            flows_belong_to_ports: is_seen_twice,
            clock: Clock::live(),
            sinks: sinks.worker_halves(),
        }
    });
    parts.collect()
}

/// The limits of each flow worker.
pub fn limits(config: &Config) -> Limits {
    Limits {
        burst: config.io.burst.min(config.ring.slots / 4),
        handover: BLOCK_SLACK + 2 * Duration::from_millis(config.io.block_timeout_ms.into()),
        give_up_after: config.io.give_up_after,
    }
}

fn failure(error: OpenError) -> Failure {
    match &error {
        OpenError::NoSuchInterface { interface, known } => {
            let near = nearest(interface, known.iter().map(String::as_str));
            let near = near.map(|near| format!("; did you mean {near}?"));
            Failure::unavailable(format!("{error}{}", near.unwrap_or_default()))
        }
        OpenError::MissingCapability { .. } | OpenError::NotAllowed { .. } => {
            Failure::not_allowed(error.to_string())
        }
        OpenError::BadSetting { .. } => Failure::config(error.to_string()),
        _ => Failure::unavailable(error.to_string()),
    }
}
