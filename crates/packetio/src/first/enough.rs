//! What the program tells the kernel about a flow.

use std::net::IpAddr;
use std::sync::Arc;

use super::layout::Key;
use super::table::Table;

/// Tells the kernel which flows need no more packets.
#[derive(Clone, Debug)]
pub struct Enough(pub(super) Arc<Table>);

impl Enough {
    /// The flow between these ends, whichever of them began it, has what it needs. The kernel only counts its packets from now
    /// on, but for those with SYN, FIN or RST, until the flow is silent for long or begins anew.
    #[inline]
    pub fn of(&self, protocol: u8, ends: [(IpAddr, u16); 2]) {
        self.0.say_enough(&Key::of(protocol, ends));
    }
}
