//! Settings of DPDK.

use std::time::Duration;

/// Settings of DPDK, the same for all interfaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DpdkSettings {
    /// Arguments of DPDK's environment (EAL).
    pub args: Vec<String>,
    /// Packet buffers per receive queue.
    pub mbufs: u32,
    /// Sleep between two polls once no frame has come for a while; zero: never sleep.
    pub sleep: Duration,
}

impl Default for DpdkSettings {
    fn default() -> Self {
        Self { args: Vec::new(), mbufs: 8192, sleep: Duration::from_micros(50) }
    }
}
