//! Settings of DPDK itself.

use std::time::Duration;

/// What DPDK needs to be told, whatever the interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DpdkSettings {
    /// Arguments of DPDK's environment (EAL).
    pub args: Vec<String>,
    /// Packet buffers of each receive queue.
    pub mbufs: u32,
    /// How long a thread sleeps between two looks once no frame has come for a while; zero: it polls without end.
    pub sleep: Duration,
}

impl Default for DpdkSettings {
    fn default() -> Self {
        Self {
            args: Vec::new(),
            mbufs: 8192,
            sleep: Duration::from_micros(50),
        }
    }
}
