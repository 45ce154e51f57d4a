//! The backend `dpdk`.

use std::time::Duration;

use packetio::DpdkSettings;

use crate::kind::{Kind, integer};
use crate::section;
use crate::setting::Setting;

section! {
    impl DpdkSettings = One "dpdk";

    /// io.backend dpdk: what DPDK is started with (EAL arguments), such as "-a", "0000:03:00.0"
    /// for a card, "--vdev=net_pcap0,iface=eth0" for a device in software, "--no-huge", "-m",
    /// "512" to try it out without huge pages; interfaces are then named as DPDK names them
    args: Vec<String> = restart "args", Kind::TextList { least: 0 }, "[]", "arguments";
    /// io.backend dpdk: packet buffers of a receive queue; each flow manager has one queue per
    /// interface
    mbufs: u32 = restart "mbufs", integer(1024, 4_194_304), "8192", "buffers";
    /// io.backend dpdk: once no frame has come for a while, a flow manager sleeps for so long
    /// between its looks; 0 has the least delay and takes a core for itself
    sleep: Duration = restart "sleep_us", integer(0, 10_000), "50",
        "microseconds, 0 = never sleeps" => Setting::microseconds;
}
