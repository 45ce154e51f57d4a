//! What a live run still has to be allowed, once everything that needs more is open.

use std::path::PathBuf;

use config::checked::{Device, HttpPlace, Provider};
use packetio::Backend;
use rustix::thread::CapabilitySet;
use tracing::info;

use super::{Plan, sandbox};
use crate::exit::Failure;
use crate::sinks;

/// Drops the privileges that are no longer needed, or says that all are kept.
///
/// # Errors
/// As [`sandbox::enter`]; 73 where the folder of the recording cannot be made.
pub fn drop_unneeded(plan: &Plan<'_>) -> Result<(), Failure> {
    let config = plan.config;
    if !config.sandbox {
        info!("sandbox: off, all privileges are kept (process.sandbox = false)");
        return Ok(());
    }
    let is_accelerator = |device: &Device| {
        !matches!(
            device.provider,
            Provider::Simulated | Provider::Onnx(accel::onnx::Provider::Cpu)
        )
    };
    let http = match &config.control.http {
        Some(HttpPlace::Unix(path)) => Some(path.as_path()),
        _ => None,
    };
    let sockets = http.into_iter().chain(config.control.socket.as_deref());
    let sockets = sockets.chain(config.records.socket.as_deref());
    let read = plan.sources.file().into_iter();
    let recording = plan.args.record.as_deref();
    if let Some(dir) = recording {
        recording::make(dir)?;
    }
    let recording = recording.map(|dir| dir.join(recording::HEADER_FILE));
    let sinks = sinks::rights(config, plan.records());
    let written = sinks.written.iter().map(PathBuf::as_path);
    sandbox::enter(&sandbox::Needs {
        capabilities: sinks.capabilities | of_ports(config.io.backend),
        has_accelerator: config.accel.devices.iter().any(is_accelerator),
        written: written.chain(recording.as_deref()).collect(),
        sockets: sockets.collect(),
        connects: sinks.connects,
        read: read
            .chain([plan.bundle.as_path()])
            .chain(config.accel.library.as_deref())
            .collect(),
    })
}

/// What closing ports needs.
fn of_ports(backend: Backend) -> CapabilitySet {
    match backend {
        Backend::AfPacket => CapabilitySet::empty(),
        // Drivers over interfaces of the kernel make them promiscuous, and back.
        Backend::Dpdk => CapabilitySet::NET_ADMIN,
    }
}
