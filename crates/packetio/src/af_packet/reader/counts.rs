//! What is counted of a ring.

/// Counts of a ring since it was opened. Reopening does not reset them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames handed out.
    pub received: u64,
    /// Their bytes on the wire.
    pub received_bytes: u64,
    /// Frames that the kernel has seen for this ring: those handed out, skipped, dropped,
    /// abandoned, and those still in the ring.
    pub seen: u64,
    /// Of these, frames that found the ring full.
    pub dropped: u64,
    /// Of these, frames skipped because this machine sends them, if the kernel does not skip them
    /// by itself.
    pub outgoing: u64,
    /// Of these, frames that were in a ring when another one replaced it.
    pub abandoned: u64,
    /// Frames whose VLAN tag was put back.
    pub tags_restored: u64,
    /// Frames with a checksum that the sender left to its network card.
    pub partial_checksums: u64,
    /// Super-packets: several packets merged into one, or one not yet split.
    pub merged: u64,
    /// Of these, frames of which the kernel did not say of what they were merged, or that are longer than the MTU allows.
    pub unknown: u64,
    /// Bytes of the longest of those.
    pub longest_unknown: u32,
    /// Blocks abandoned because their headers contradict themselves.
    pub damaged_blocks: u64,
}

impl Counts {
    /// Frames that were in the ring when the kernel was asked.
    pub fn waiting(&self) -> u64 {
        let gone = self.received + self.outgoing + self.dropped + self.abandoned;
        self.seen.saturating_sub(gone)
    }
}
