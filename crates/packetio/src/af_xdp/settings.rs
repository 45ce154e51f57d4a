//! Settings of XDP.

use std::net::IpAddr;

/// Where in the kernel an XDP program sees frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver if it can, otherwise in the kernel.
    #[default]
    Auto,
    /// In the driver.
    Native,
    /// In the kernel, after frames have become packets: works with any driver, but slower.
    Generic,
}

/// Whether the card reads and writes frames in memory shared with this program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZeroCopy {
    /// Where driver and mode support it.
    #[default]
    Auto,
    /// Required; otherwise the port is not opened.
    On,
    /// The kernel copies each frame.
    Off,
}

/// Settings for XDP only.
#[derive(Clone, Debug, PartialEq)]
pub struct XdpSettings {
    /// Where the program sees frames.
    pub mode: XdpMode,
    /// Whether the card shares the frames' memory.
    pub zero_copy: ZeroCopy,
    /// Whether the kernel flags when it needs a wake-up call; otherwise one is made per burst.
    pub need_wakeup: bool,
    /// Microseconds that a receive call without frames busy-polls the driver instead of waiting for
    /// an interrupt; 0: off. Above 0 keeps `CAP_NET_ADMIN`.
    pub busy_poll_us: u32,
    /// Frames in a queue; a power of two.
    pub frames: u32,
    /// Memory per frame, 2048 or 4096 bytes. 256 bytes for the kernel and the link header go off
    /// that.
    pub frame_bytes: u32,
    /// Addresses of this machine. Untagged frames to them, and ARP or neighbour solicitations for
    /// them, go to the kernel instead of the port.
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
