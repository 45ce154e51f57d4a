//! Which queues of an interface a port serves.

/// The queues of a port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Number of the port on its interface.
    pub number: u32,
    /// Ports of the interface.
    pub rings: u32,
    /// Queues that the port has memory for.
    pub queues: u32,
}

impl Place {
    /// Port `number` of `rings` on an interface with `queues` queues: it owns every `rings`-th.
    pub fn new(number: u32, rings: u32, queues: u32) -> Place {
        let own = (queues + rings - 1 - number) / rings;
        Place { number, rings, queues: own }
    }

    /// Its queues, of `queues` in total.
    pub fn own(&self, queues: u32) -> impl Iterator<Item = u32> + use<> {
        (self.number..queues).step_by(self.rings as usize)
    }

    /// Whether this port reports for its interface.
    pub fn reports(&self) -> bool {
        self.number == 0
    }
}
