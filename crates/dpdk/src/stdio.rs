//! Captures standard output and error while DPDK starts: it prints its usage and complaints there.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::dup;
use rustix::stdio::{dup2_stderr, dup2_stdout, stderr, stdout};

/// Both streams go to memory until [`Held::release`].
pub(crate) struct Held {
    memory: File,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

impl Held {
    /// Captures them; `None`, without any effect, if the system refuses.
    pub fn new() -> Option<Held> {
        let memory = File::from(memfd_create("dpdk", MemfdFlags::CLOEXEC).ok()?);
        // Output from before must not end up in the memory.
        let _ = std::io::stdout().flush();
        let held = Held { stdout: dup(stdout()).ok()?, stderr: dup(stderr()).ok()?, memory };
        dup2_stdout(&held.memory).ok()?;
        dup2_stderr(&held.memory).ok()?;
        Some(held)
    }

    /// Restores them; returns the first captured complaint.
    pub fn release(mut self) -> Option<String> {
        // SAFETY: flushes a buffer of the C library.
        unsafe { crate::sys::fenxi_flush() };
        let _ = dup2_stdout(&self.stdout);
        let _ = dup2_stderr(&self.stderr);
        let mut bytes = Vec::new();
        self.memory.rewind().ok()?;
        self.memory.read_to_end(&mut bytes).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let complaint = |line: &&str| line.starts_with("fenxi: ");
        let line = text.lines().find(complaint)?;
        Some(line.trim_start_matches("fenxi: ").to_owned())
    }
}
