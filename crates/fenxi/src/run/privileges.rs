//! What a live run still has to be allowed, once everything that needs more is open.

use std::path::PathBuf;

use config::checked::{Device, HttpPlace};
use dataplane::tasks::OpenTask;
use tracing::info;

use super::{RunPlan, ports, sandbox};
use crate::exit::Failure;
use crate::names::NamesKeys;
use crate::sinks;
use crate::weights;

/// Drops the privileges that are no longer needed, or says that all are kept.
///
/// # Errors
/// As [`sandbox::enter`]; 73 where the folder of the recording cannot be made.
pub fn drop_unneeded(plan: &RunPlan<'_>, tasks: &[OpenTask]) -> Result<(), Failure> {
    let config = plan.config;
    if !config.sandbox {
        info!("sandbox: off, all privileges are kept (process.sandbox = false)");
        return Ok(());
    }
    let is_accelerator = |device: &Device| device.provider.computes && !device.provider.is_cpu;
    let http = match &config.control.http {
        Some(HttpPlace::Unix(path)) => Some(path.as_path()),
        _ => None,
    };
    let sockets = http.into_iter().chain(config.control.socket.as_deref());
    let sockets = sockets.chain(config.records.socket.as_deref());
    let sockets = sockets.chain(config.learn.socket.as_deref());
    let of_weights = weights::sockets(config);
    let sockets = sockets.chain(of_weights.iter().map(PathBuf::as_path));
    let read = plan.sources.file().into_iter();
    let recording = plan.args.record.as_deref();
    if let Some(dir) = recording {
        recording::make(dir)?;
    }
    let recording = recording.map(|dir| dir.join(recording::HEADER_FILE));
    let profiles = dataplane::profiles::make_folder(tasks).map(|folder| folder.join("profile"));
    // Only configured lease files justify a capability, not the usual places.
    let NamesKeys { leases, .. } = config.section();
    let sinks = sinks::rights(config, plan.records());
    let written = sinks.written.iter().map(PathBuf::as_path);
    sandbox::enter(&sandbox::Needs {
        capabilities: sinks.capabilities | ports::capabilities(&config.io),
        has_accelerator: tasks
            .iter()
            .flat_map(|task| &task.config.accel.devices)
            .any(is_accelerator),
        written: written.chain(recording.as_deref()).chain(profiles.as_deref()).collect(),
        sockets: sockets.collect(),
        connects: sinks.connects,
        read: read
            .chain(tasks.iter().map(|task| task.bundle.dir()))
            .chain(config.accel.library.as_deref())
            .chain(leases.iter().map(PathBuf::as_path))
            .collect(),
    })
}
