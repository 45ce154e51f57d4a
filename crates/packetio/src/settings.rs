//! How a port over an interface is opened.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::error::OpenError;
use crate::first::{KernelEditions, WrittenMarks};
use crate::{BackendSettings, CAPTURED_MAX};

/// Which frames of an interface a port receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Incoming frames, not those sent by this machine: for inline.
    Incoming,
    /// All frames, each once: for mark and tap. On the loopback interface, where each frame goes
    /// out and comes in, only incoming ones.
    Both,
}

/// Which packets the kernel hands out; it counts the others.
#[derive(Clone, Debug)]
pub struct FirstPackets {
    /// First packets of a flow, with or without payload.
    pub packets: u32,
    /// First packets of a flow with payload.
    pub data_packets: u32,
    /// Also hands out the packet that takes a flow's bytes at the IP layer above this; 0: off.
    pub bulk_bytes: u32,
    /// A flow silent for this long starts anew; zero: never.
    pub forget: Duration,
    /// Flows in the kernel's table per worker; when full it evicts the least recently used.
    pub flows: u32,
    /// Secret seed of the flow hash.
    pub seed: u64,
    /// Labels flows in the kernel, which then reports their packets instead of handing them out;
    /// `None`: user space labels them.
    pub labels: Option<Arc<KernelEditions>>,
    /// Notes the marks that the kernel writes.
    pub written: Option<Arc<WrittenMarks>>,
}

/// How the kernel labels flows. Confidences are in Q15: 32,768 is 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelLabels {
    /// The network: `struct net` of `bpf/net.h`.
    pub net: Vec<u8>,
    /// When the network is asked, in rising order: 1 to 6 depths, of 1 to 12 packets with payload.
    pub depths: Vec<KernelDepth>,
    /// By class: an answer with less confidence is `unknown`.
    pub least: Vec<u16>,
    /// Classes from this one on are never sure; it is `unknown` itself.
    pub sure_classes: u16,
    /// The labels that ports give; ones that name flows with their first packet, if
    /// `is_ports_first`.
    pub ports: Vec<KernelPort>,
    /// Whether ports name flows until an answer contradicts them.
    pub is_ports_first: bool,
    /// Elements collected of a flow, at most.
    pub elements: u8,
    /// Whether elements are collected up to there although the label is decided: records or other
    /// tasks want the series.
    pub keeps_collecting: bool,
    /// Whether each element is reported when it comes: rules or other tasks wait for it.
    pub reports_at_once: bool,
    /// Writes labels into the marks of connections and packets; `None`: user space does.
    pub marks: Option<KernelMarks>,
    /// By class: the DSCP that packets of its flows leave with. Empty: none.
    pub dscp: Vec<Option<u8>>,
}

/// A number of elements after which the network is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelDepth {
    /// Packets with payload.
    pub k: u8,
    /// The confidence from which an answer is sure.
    pub sure: u16,
    /// The confidence from which another class contradicts the port; `None`: none does.
    pub contradicts: Option<u16>,
}

/// The class of flows to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelPort {
    /// IP protocol number.
    pub protocol: u8,
    /// Port of the server.
    pub port: u16,
    /// Number of the class.
    pub class: u8,
}

/// Marks by class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelMarks {
    /// By class; 0: none.
    pub bits: Vec<u32>,
    /// The bits that are written; all others stay.
    pub mask: u32,
    /// Whether a mark that is there is replaced.
    pub overwrites: bool,
}

/// Keeps ring sockets beyond the end of the process. Calls return quickly.
pub trait Keeper: fmt::Debug + Send + Sync {
    /// Keeps a ring's socket. The name has all that the next process must know: at most 255
    /// printable ASCII characters, no colon.
    fn keep(&self, name: &str, socket: BorrowedFd<'_>);
    /// Drops the socket kept under this name.
    fn forget(&self, name: &str);
}

/// How a port is opened.
#[derive(Clone, Debug)]
pub struct PortSettings {
    /// Name of the interface.
    pub interface: String,
    /// Which frames are received.
    pub direction: Direction,
    /// Hand out only the first packets of each flow; `None`: all. For ports that do not send.
    pub first: Option<FirstPackets>,
    /// Whether frames for other machines are received. Ends with the port, even if the process is
    /// killed.
    pub is_promiscuous: bool,
    /// Maximum bytes kept per frame; 1 to [`CAPTURED_MAX`].
    pub snap_length: u32,
    /// Bytes per block; a multiple of the page size. Bounds the frame length.
    pub block_bytes: u32,
    /// Blocks per ring; at least 2.
    pub blocks: u32,
    /// Milliseconds after a block's first frame until it is handed over though not full; at least
    /// 1. Kernels before 6.18 round up to their tick.
    pub block_timeout_ms: u32,
    /// Maximum sleep of a receive call. Zero: never sleeps; the thread polls.
    pub wait: Duration,
    /// Whether to complete checksums that a local sender left to its card; required to send the
    /// frames on.
    pub completes_checksums: bool,
    /// Whether the port also sends. If it also completes checksums, it sends merged packets on, for
    /// the kernel or the card to split.
    pub sends: bool,
    /// Keeps the receive ring beyond the end of the process, where the backend supports it.
    pub keeper: Option<Arc<dyn Keeper>>,
    /// What only one backend wants to know.
    pub own: BackendSettings,
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
            own: BackendSettings::default(),
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
