//! Tells the kernel about flows.

use std::net::IpAddr;
use std::sync::Arc;

use super::layout::Key;
use super::table::Table;

/// Tells the kernel which flows need no more packets.
#[derive(Clone, Debug)]
pub struct Enough(pub(super) Arc<Table>);

impl Enough {
    /// The flow between these ends, in either order, needs no more packets. The kernel only counts
    /// its packets from now on, except those with SYN, FIN or RST, until the flow is silent for
    /// long or starts anew.
    #[inline]
    pub fn of(&self, protocol: u8, ends: [(IpAddr, u16); 2]) {
        self.0.set_enough(&Key::new(protocol, ends));
    }
}
