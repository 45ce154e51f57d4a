//! Which queues of an interface a port serves.

/// Which queues of an interface are a port's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Number of the port among those of its interface.
    pub number: u32,
    /// Ports of the interface.
    pub rings: u32,
    /// Queues that the port has memory for.
    pub queues: u32,
}

impl Place {
    /// Of one of `rings` ports of an interface with so many queues: every `rings`-th is its own.
    pub fn new(number: u32, rings: u32, queues: u32) -> Place {
        let own = (queues + rings - 1 - number) / rings;
        Place {
            number,
            rings,
            queues: own,
        }
    }

    /// Its queues, out of those that there are.
    pub fn own(&self, queues: u32) -> impl Iterator<Item = u32> + use<> {
        (self.number..queues).step_by(self.rings as usize)
    }

    /// Whether it is the port that reports for its interface.
    pub fn reports(&self) -> bool {
        self.number == 0
    }
}
