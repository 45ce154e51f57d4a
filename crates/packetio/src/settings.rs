//! How a port over an interface is opened, whatever the backend.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::CAPTURED_MAX;
use crate::dpdk::DpdkSettings;
use crate::error::OpenError;
use crate::kept::Keeper;

/// Which frames of an interface a port receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Those that come in, so not those that this machine sends: for inline.
    Incoming,
    /// All, each once: for mark and tap. On the loopback interface, where each frame goes out and
    /// comes in, those that come in.
    Both,
}

/// Of which packets an interface hands out the frames; the kernel counts the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstPackets {
    /// First packets of a flow, whatever they hold.
    pub packets: u32,
    /// First packets of a flow with payload.
    pub data_packets: u32,
    /// The packet by which a flow gets more bytes than this, at the IP layer, is sent up as well; 0: none.
    pub bulk_bytes: u32,
    /// A flow that was silent for so long begins anew; zero: never.
    pub forget: Duration,
    /// Flows that the kernel keeps apart, for each worker; beyond them it forgets the one used least recently.
    pub flows: u32,
    /// Seed of the hash by which flows are told apart; a secret.
    pub seed: u64,
}

/// At which point of the kernel an XDP program sees frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver where that can do it, else in the kernel.
    #[default]
    Auto,
    /// In the driver.
    Native,
    /// In the kernel, which has made packets of the frames by then: any driver, but slower.
    Generic,
}

/// Whether a card writes frames to, and reads them from, memory that it shares with this program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZeroCopy {
    /// Where driver and mode can do it.
    #[default]
    Auto,
    /// It does, or the port is not opened.
    On,
    /// The kernel copies each frame.
    Off,
}

/// What only ports that receive by XDP want to know.
#[derive(Clone, Debug, PartialEq)]
pub struct XdpSettings {
    /// Where the program sees frames.
    pub mode: XdpMode,
    /// Whether the card shares the memory of the frames.
    pub zero_copy: ZeroCopy,
    /// Whether the kernel says when it waits for a system call; else there is one for each burst.
    pub need_wakeup: bool,
    /// Microseconds for which a receive call that finds no frame has the kernel ask the driver, instead of waiting for
    /// an interrupt; 0: never. More than 0 keeps `CAP_NET_ADMIN`.
    pub busy_poll_us: u32,
    /// Frames that wait in a queue, at most; a power of two.
    pub frames: u32,
    /// Bytes of memory of each; 2048 or 4096. Headers and 256 bytes for the kernel go off that.
    pub frame_bytes: u32,
    /// Addresses of this machine. Frames to them, and those that look for their link addresses, go to the kernel and not
    /// to the port, unless they have a VLAN tag.
    pub to_host: Vec<IpAddr>,
}

impl Default for XdpSettings {
    fn default() -> Self {
        XdpSettings {
            mode: XdpMode::Auto,
            zero_copy: ZeroCopy::Auto,
            need_wakeup: true,
            busy_poll_us: 0,
            frames: 4096,
            frame_bytes: 2048,
            to_host: Vec::new(),
        }
    }
}

/// How a port is opened.
#[derive(Clone, Debug)]
pub struct PortSettings {
    /// Name of the interface.
    pub interface: String,
    /// Which frames are received.
    pub direction: Direction,
    /// The first packets of each flow only; `None`: all. For ports that do not send.
    pub first: Option<FirstPackets>,
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
    /// Who keeps the receive ring beyond the end of the process, where the backend can do that.
    pub keeper: Option<Arc<dyn Keeper>>,
    /// What backends other than XDP do not need.
    pub xdp: XdpSettings,
    /// What DPDK needs. It starts once, with those of the first interface.
    pub dpdk: DpdkSettings,
}

impl PortSettings {
    /// Rings of 16 MiB, whole frames of both directions, not promiscuous, waits of 1 ms.
    pub fn new(interface: &str) -> Self {
        Self {
            interface: interface.to_owned(),
            direction: Direction::Both,
            first: None,
            is_promiscuous: false,
            snap_length: CAPTURED_MAX,
            block_bytes: 256 * 1024,
            blocks: 64,
            block_timeout_ms: 1,
            wait: Duration::from_millis(1),
            completes_checksums: false,
            sends: false,
            keeper: None,
            xdp: XdpSettings::default(),
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
