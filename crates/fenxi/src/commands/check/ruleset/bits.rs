//! What becomes of the bits of a mark.

/// A value that is written to a mark. A bit that is in none of these is written as 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Bits copied from the connection's mark, in their places.
    pub connection: u32,
    /// Bits copied from the packet's mark, in their places.
    pub packet: u32,
    /// Bits that may be 1 for another reason.
    pub ones: u32,
}

impl Written {
    /// Nothing is known of the value.
    pub const ANYTHING: Written = Written::constant(u32::MAX);
    /// The connection's mark as it is.
    pub const CONNECTION: Written = Written { connection: u32::MAX, packet: 0, ones: 0 };
    /// The packet's mark as it is.
    pub const PACKET: Written = Written { connection: 0, packet: u32::MAX, ones: 0 };

    pub const fn constant(ones: u32) -> Written {
        Written { connection: 0, packet: 0, ones }
    }

    pub fn and(self, mask: u32) -> Written {
        Written {
            connection: self.connection & mask,
            packet: self.packet & mask,
            ones: self.ones & mask,
        }
    }

    /// Sets or flips bits, which are then nobody else's.
    pub fn or(self, bits: u32) -> Written {
        Written { ones: self.ones | bits, ..self.and(!bits) }
    }
}

/// Bits of a mark that are compared with a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compared {
    pub mask: u32,
    pub value: u32,
}

impl Compared {
    /// Whether the comparison looks at bits of `ours` and expects all of them to be 0. A
    /// comparison with 0 as a whole asks whether there is any mark, and is meant so.
    pub fn is_missed(&self, ours: u32) -> bool {
        self.mask & ours != 0 && self.value != 0 && self.value & ours == 0
    }

    /// Whether it holds only while all bits of `ours` are 0.
    pub fn is_unset(&self, ours: u32) -> bool {
        self.mask & ours == ours && self.value == 0
    }
}
