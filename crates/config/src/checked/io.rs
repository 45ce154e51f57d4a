//! Packet input and output.

use std::time::Duration;

use flowmgr::{BURST_MAX, MAX_FLOWS_MAX};
use packetio::{Backend, BackendSettings, CAPTURED_MAX};

use crate::kind::{Kind, integer, power_of_two};
use crate::origin::Origin;
use crate::section;
use crate::setting::Setting;
use crate::words::words;

section! {
    /// Packet input and output.
    pub struct Io = One "io";

    /// how many frames are received and processed at a time
    burst: usize = restart "burst", integer(1, BURST_MAX as i64), "128", "frames";
    /// how frames are received and sent: af_packet uses packet sockets of the kernel; af_xdp takes
    /// frames from the driver, with less delay; dpdk takes cards from the kernel and polls them,
    /// in a build with the feature dpdk. af_xdp and dpdk take frames away from the kernel, so they
    /// are not for mode mark (docs/ports.md)
    backend: &'static Backend =
        restart "backend", Kind::OneOf(&Backend::NAMES), "\"af_packet\"", "";
    /// tap: the traffic is a copy and nothing is sent; mark: the kernel forwards and gets labels
    /// as connection marks; inline: what comes in on one of two interfaces leaves by the other
    mode: IoMode = restart "mode", Kind::OneOf(IoMode::NAMES), "\"tap\"", "";
    /// the interfaces of `fenxi run`; exactly two where mode is inline
    interfaces: Vec<String> = restart "interfaces", Kind::TextList { least: 0 }, "[]", "names";
    /// mode tap and mark: all packets come up from the kernel, or the first ones of each flow
    /// (Linux 6.1 or later), and it counts the others; or the kernel labels flows, too. Where it
    /// cannot label, first ones come up; where it refuses those, all do. The default of mode mark
    /// is "first"
    capture: Capture = restart "capture", Kind::OneOf(Capture::NAMES), "\"all\"", "";
    /// capture first and kernel: flows that the kernel counts, for each interface and flow
    /// manager; it takes 88 bytes for each at once, and beyond them gives up the counts of flows
    /// that were silent for longest. With less than 512 MB of memory, `fenxi run` has one for
    /// each 4 kB by default
    counted_flows: u32 = restart "counted_flows", integer(1024, MAX_FLOWS_MAX as i64), "131072",
        "flows";
    /// whether frames for other machines are received; inline always does
    promiscuous: bool = restart "promiscuous", Kind::Bool, "false", "";
    /// mode tap and mark: the most bytes that are captured of a frame
    snap_length: u32 = restart "snap_length", integer(64, CAPTURED_MAX as i64), "262144", "bytes";
    /// size of a block of the receive ring; no frame may be larger
    block_bytes: u32 = restart "block_bytes", power_of_two(1 << 16, 1 << 24), "131072", "bytes";
    /// blocks of a receive ring; each flow manager has one ring per interface, which holds at
    /// least the frames of blocks x block_timeout_ms. With less than 2 GB of memory, `fenxi run`
    /// has one for each 8 MB by default, 32 with 256 MB
    blocks: u32 = restart "blocks", integer(2, 65_536), "256", "blocks";
    /// a block that is not full is handed over this long after its first frame
    block_timeout_ms: u32 = restart "block_timeout_ms", integer(1, 1000), "1", "milliseconds";
    /// how long a run waits while all its interfaces are gone; then it exits with code 69
    give_up_after: Duration = restart "give_up_s", integer(1, 86_400), "30",
        "seconds" => Setting::seconds;
    with {
        /// Where `capture` was set.
        pub capture_origin: Origin,
        /// What only one backend wants to know.
        pub own: BackendSettings,
    }
}

words! {
    /// What is done with live traffic.
    pub enum IoMode {
        /// The traffic is a copy, and nothing is sent.
        #[default]
        Tap = "tap",
        /// The kernel forwards the traffic and gets the labels as connection marks.
        Mark = "mark",
        /// What comes in on one interface leaves by the other.
        Inline = "inline",
    }
}

words! {
    /// Which packets come up from the kernel.
    pub enum Capture {
        /// All of them.
        #[default]
        All = "all",
        /// The first ones of each flow; the kernel counts the others.
        First = "first",
        /// What the kernel does not label; it counts the others.
        Kernel = "kernel",
    }
}
