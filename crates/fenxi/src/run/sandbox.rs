//! Restricts the running process, so that an attacker who takes it over with a malformed frame
//! gains little.
//!
//! ```text
//! capabilities   only those that reopen an interface, and the sinks'; none can be regained
//! programs       only this program can be started, to try new models; none gains privileges
//!                (no_new_privs)
//! files          readable as before; written only in the folders of records and sockets (Landlock)
//! TCP            no new listener; new connections only to the port of a collector, or to any port
//!                with Kafka, whose brokers name one another (Landlock); open ones stay
//! ```
//!
//! All of this belongs to a thread and is inherited by the threads that it starts, so it must be in
//! place before the first of them. Ports below 1024, folders of other users and the like are opened
//! earlier.

use std::collections::BTreeSet;
use std::error::Error as _;
use std::fmt;
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use landlock::{
    AccessFs, AccessNet, BitFlags, LandlockStatus, NetPort, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};
use tracing::{info, warn};

use crate::exit::Failure;
use crate::sinks::Connects;

/// Privileges that a run needs after its start.
pub struct Needs<'a> {
    /// Capabilities of the sinks, and capabilities that reopen an interface that comes back.
    pub capabilities: CapabilitySet,
    /// Whether a device is neither `cpu` nor `simulated`: its runtime writes caches, opens devices
    /// and locks memory.
    pub has_accelerator: bool,
    /// Files that are written and reopened.
    pub written: Vec<&'a Path>,
    /// Sockets, whose files are removed at the end.
    pub sockets: Vec<&'a Path>,
    /// TCP ports that sinks connect to.
    pub connects: Connects,
    /// Files and folders that a reload reads.
    pub read: Vec<&'a Path>,
}

/// Drops all other privileges, for this thread and the threads that it starts later; logs the
/// result.
///
/// # Errors
/// 70: the kernel does not allow dropping privileges. A kernel without Landlock is not an error.
pub fn enter(needs: &Needs<'_>) -> Result<(), Failure> {
    let refused = |error: Errno| {
        Failure::software(format!(
            "cannot drop privileges: {error}; set process.sandbox = false to keep them"
        ))
    };
    set_no_new_privs(true).map_err(refused)?;
    let kept = keep_only(needs.capabilities()).map_err(refused)?;
    let kept = Names(kept);
    match needs.has_accelerator {
        true => info!(
            "sandbox: capabilities {kept}, no new privileges; files and TCP are not restricted, \
            because the runtime of an accelerator needs them"
        ),
        false => match restrict_files(needs) {
            Ok(folders) => {
                info!(
                    "sandbox: capabilities {kept}, no new privileges, no other programs, {}; \
                    writes only to {folders}",
                    needs.connects
                );
            }
            Err(why @ Unrestricted::Forbidden) => warn!(
                "sandbox: capabilities {kept}, no new privileges; files and TCP are not \
                restricted: {why}"
            ),
            Err(why) => info!(
                "sandbox: capabilities {kept}, no new privileges; files and TCP are not \
                restricted: {why}"
            ),
        },
    }
    let threads = fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads > 1 {
        warn!("sandbox: not in effect for {} threads that were started earlier", threads - 1);
    }
    Ok(())
}

impl Needs<'_> {
    fn capabilities(&self) -> CapabilitySet {
        let mut needed = self.capabilities;
        if self.has_accelerator {
            needed |= CapabilitySet::IPC_LOCK;
        }
        let mut folders = self.written.iter().chain(&self.sockets);
        let mut files = self.written.iter();
        if !folders.all(|file| is_open(&folder(file), 3)) || !files.all(|file| is_open(file, 6)) {
            needed |= CapabilitySet::DAC_OVERRIDE;
        }
        if !self.read.iter().all(|path| is_readable(path, FOLDERS)) {
            needed |= CapabilitySet::DAC_READ_SEARCH;
        }
        needed
    }
}

/// Drops all capabilities except `needed`; returns the remaining ones.
fn keep_only(needed: CapabilitySet) -> Result<CapabilitySet, Errno> {
    let kept = capabilities(None)?.permitted & needed;
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if kept.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // Either the kernel has no more capabilities, or dropping is not allowed; then
            // no_new_privs must suffice.
            Err(Errno::INVAL | Errno::PERM) => break,
            Err(error) => return Err(error),
        }
    }
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets)?;
    Ok(kept)
}

/// Names of capabilities, for the log.
struct Names(CapabilitySet);

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.iter_names().map(|(name, _)| format!("CAP_{name}"));
        let names: Vec<String> = names.collect();
        match names.as_slice() {
            [] => f.write_str("none"),
            names => f.write_str(&names.join(", ")),
        }
    }
}

/// The only program that may be started: this one, to try a new model before it is opened here, and
/// its loaders (x86-64, aarch64).
const OWN_PROGRAM: [&str; 3] =
    ["/proc/self/exe", "/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];

/// Why files and TCP are not restricted.
#[derive(Debug, thiserror::Error)]
enum Unrestricted {
    /// The unit or the container sets the filter.
    #[error(
        "a filter of system calls forbids Landlock; add landlock_create_ruleset, \
        landlock_add_rule and landlock_restrict_self to SystemCallFilter= of the unit"
    )]
    Forbidden,
    #[error("Landlock is off; add landlock to lsm= on the command line of the kernel")]
    Off,
    #[error("this kernel has no Landlock")]
    Missing,
    #[error(transparent)]
    Refused(RulesetError),
}

impl From<RulesetError> for Unrestricted {
    fn from(error: RulesetError) -> Unrestricted {
        let cause = error.source().and_then(|it| it.downcast_ref::<io::Error>());
        // With no_new_privs the kernel itself permits each of the three calls.
        match cause.is_some_and(|it| it.kind() == ErrorKind::PermissionDenied) {
            true => Unrestricted::Forbidden,
            false => Unrestricted::Refused(error),
        }
    }
}

/// Restricts writing, programs and TCP. Returns the writable folders.
fn restrict_files(needs: &Needs<'_>) -> Result<String, Unrestricted> {
    let rules = Ruleset::default();
    // `default` asked the kernel for its version of Landlock; the crate treats all errors as
    // ENOSYS.
    let refused = io::Error::last_os_error();
    let (rules, folders) = build(rules, needs)?;
    let status = rules.restrict_self()?;
    match (status.ruleset, status.landlock) {
        (RulesetStatus::NotEnforced, LandlockStatus::NotEnabled) => Err(Unrestricted::Off),
        (RulesetStatus::NotEnforced, _) if refused.kind() == ErrorKind::PermissionDenied => {
            Err(Unrestricted::Forbidden)
        }
        (RulesetStatus::NotEnforced, _) => Err(Unrestricted::Missing),
        _ if folders.is_empty() => Ok("/dev/null".to_owned()),
        _ => Ok(folders.into_iter().collect::<Vec<_>>().join(", ")),
    }
}

fn build(
    rules: Ruleset,
    needs: &Needs<'_>,
) -> Result<(landlock::RulesetCreated, BTreeSet<String>), RulesetError> {
    let changes = AccessFs::from_write(landlock::ABI::V5) & !BitFlags::from(AccessFs::IoctlDev);
    let handled = match needs.connects {
        Connects::Any => AccessNet::BindTcp.into(),
        Connects::Ports(_) => AccessNet::BindTcp | AccessNet::ConnectTcp,
    };
    let mut rules = rules
        .handle_access(changes | AccessFs::Execute)?
        .handle_access(handled)?
        .scope(Scope::Signal)?
        .create()?;
    let file = AccessFs::WriteFile | AccessFs::Truncate;
    let files = file | AccessFs::MakeReg | AccessFs::RemoveFile;
    let mut allowed = vec![(PathBuf::from("/dev/null"), file)];
    let program = OWN_PROGRAM.iter().map(PathBuf::from);
    allowed.extend(program.map(|path| (path, AccessFs::Execute.into())));
    let mut folders = BTreeSet::new();
    for path in &needs.written {
        // A link may lead into another folder.
        let target = fs::canonicalize(path).unwrap_or_default();
        for path in [path.to_path_buf(), target] {
            let is_special = fs::metadata(&path).is_ok_and(|found| is_special(&found));
            let (place, access) = match is_special {
                true => (path, file),
                false if path.as_os_str().is_empty() => continue,
                false => (folder(&path), files),
            };
            folders.insert(place.display().to_string());
            allowed.push((place, access));
        }
    }
    if let Connects::Ports(ports) = &needs.connects {
        for port in ports {
            rules = rules.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
        }
    }
    let sockets = needs.sockets.iter();
    allowed.extend(sockets.map(|path| (folder(path), AccessFs::RemoveFile.into())));
    for (place, access) in allowed {
        // A folder that does not exist cannot be written to.
        if let Ok(place) = PathFd::new(&place) {
            rules = rules.add_rule(PathBeneath::new(place, access))?;
        }
    }
    Ok((rules, folders))
}

/// A pipe or a device, which is written in place: its folder need not be writable.
fn is_special(found: &Metadata) -> bool {
    let kind = found.file_type();
    kind.is_fifo() || kind.is_char_device() || kind.is_block_device()
}

fn folder(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Maximum depth of folders in a bundle.
const FOLDERS: u32 = 3;

/// Whether owner and mode alone let this user read a path, with its content down to this depth of
/// folders.
fn is_readable(path: &Path, folders: u32) -> bool {
    let is_folder = fs::metadata(path).is_ok_and(|found| found.is_dir());
    if !is_folder || folders == 0 {
        return is_open(path, 4);
    }
    let mut inside = fs::read_dir(path).into_iter().flatten().flatten();
    is_open(path, 5) && inside.all(|entry| is_readable(&entry.path(), folders - 1))
}

/// Whether owner, group and mode of a path, and of the folders above it, give this user the rights
/// `bits` (4 read, 2 write, 1 enter or start). A path that does not resolve does not exist, and
/// needs no rights.
fn is_open(path: &Path, bits: u32) -> bool {
    let Ok(path) = fs::canonicalize(path) else { return true };
    let user = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    let lets = |path: &Path, bits: u32| {
        fs::metadata(path).is_ok_and(|found| {
            let shift = match (found.uid() == user, found.gid() == group) {
                (true, _) => 6,
                (false, true) => 3,
                (false, false) => 0,
            };
            (found.mode() >> shift) & bits == bits
        })
    };
    lets(&path, bits) && path.ancestors().skip(1).all(|above| lets(above, 1))
}

#[cfg(test)]
mod tests;
