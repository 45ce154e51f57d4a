//! Counts of a ring.

use crate::burst::Gso;

/// Counts of a ring since it was opened. Reopening does not reset them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingCounts {
    /// Frames handed out.
    pub received: u64,
    /// Their bytes on the wire.
    pub received_bytes: u64,
    /// Frames that the kernel had for this ring: handed out, skipped, dropped, abandoned, and
    /// waiting.
    pub seen: u64,
    /// Frames that found the ring full.
    pub dropped: u64,
    /// Frames skipped because this machine sent them, where the kernel does not skip them.
    pub outgoing: u64,
    /// Frames that were in a ring when another one replaced it.
    pub abandoned: u64,
    /// Frames whose VLAN tag was put back.
    pub tags_restored: u64,
    /// Frames with a checksum left to the sender's card.
    pub partial_checksums: u64,
    /// Super-packets: several packets merged into one, or one not yet split.
    pub merged: u64,
    /// Merged frames that the kernel did not describe, or longer than the MTU allows.
    pub unknown: u64,
    /// Bytes of the longest unknown frame.
    pub longest_unknown: u32,
    /// Blocks abandoned because their headers were inconsistent.
    pub damaged_blocks: u64,
}

impl RingCounts {
    /// Counts a merged frame.
    pub(super) fn add_merged(&mut self, wire: u32, gso: Gso) {
        self.merged += 1;
        if gso == Gso::UNKNOWN {
            self.unknown += 1;
            self.longest_unknown = self.longest_unknown.max(wire);
        }
    }

    /// Frames in the ring when the kernel was last asked.
    pub fn waiting(&self) -> u64 {
        let gone = self.received + self.outgoing + self.dropped + self.abandoned;
        self.seen.saturating_sub(gone)
    }
}
