//! How a port over an interface is opened, whatever the backend.

use std::time::Duration;

use crate::CAPTURED_MAX;
use crate::dpdk::DpdkSettings;
use crate::error::OpenError;

/// Which frames of an interface a port receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Those that come in, so not those that this machine sends: for inline.
    Incoming,
    /// All, each once: for mark and tap. On the loopback interface, where each frame goes out and
    /// comes in, those that come in.
    Both,
}

/// How a port is opened.
#[derive(Clone, Debug)]
pub struct PortSettings {
    /// Name of the interface.
    pub interface: String,
    /// Which frames are received.
    pub direction: Direction,
    /// Whether frames for other machines are received. The kernel ends it with the port, however
    /// the process ends.
    pub is_promiscuous: bool,
    /// The most bytes kept of a frame; 1 to [`CAPTURED_MAX`].
    pub snap_length: u32,
    /// Bytes of a block; a multiple of the page size. Bounds the frames that can be received.
    pub block_bytes: u32,
    /// Blocks of a ring; at least 2.
    pub blocks: u32,
    /// Milliseconds from a block's first frame after which it is handed over though not full; at
    /// least 1. Kernels before 6.18 round it up to their tick.
    pub block_timeout_ms: u32,
    /// The longest that a receive call waits for frames. Zero: it never sleeps, and the thread
    /// polls.
    pub wait: Duration,
    /// Whether checksums that a local sender left to its network card are completed, as is needed
    /// to send the frames on.
    pub completes_checksums: bool,
    /// Whether the port sends, too. If it also completes checksums, it sends packets that the
    /// kernel merged on, for the kernel or the card to split again.
    pub sends: bool,
    /// What DPDK needs. It starts once, with those of the first interface.
    pub dpdk: DpdkSettings,
}

impl PortSettings {
    /// Rings of 16 MiB, whole frames of both directions, not promiscuous, waits of 1 ms.
    pub fn new(interface: &str) -> Self {
        Self {
            interface: interface.to_owned(),
            direction: Direction::Both,
            is_promiscuous: false,
            snap_length: CAPTURED_MAX,
            block_bytes: 256 * 1024,
            blocks: 64,
            block_timeout_ms: 1,
            wait: Duration::from_millis(1),
            completes_checksums: false,
            sends: false,
            dpdk: DpdkSettings::default(),
        }
    }

    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let refused = |setting: String| {
            let interface = self.interface.clone();
            Err(OpenError::BadSetting { interface, setting })
        };
        let page = rustix::param::page_size() as u32;
        if self.block_bytes == 0 || !self.block_bytes.is_multiple_of(page) {
            return refused(format!(
                "blocks of {} bytes; a multiple of {page} is needed",
                self.block_bytes
            ));
        }
        if self.blocks < 2 {
            return refused(format!("{} blocks; at least 2 are needed", self.blocks));
        }
        if self.block_timeout_ms == 0 {
            return refused("a block timeout of 0 ms; at least 1 is needed".to_owned());
        }
        if self.snap_length == 0 || self.snap_length > CAPTURED_MAX {
            return refused(format!(
                "a snap length of {}; 1 to {CAPTURED_MAX} is possible",
                self.snap_length
            ));
        }
        Ok(())
    }
}
