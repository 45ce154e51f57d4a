//! The marks of connections that the program wrote, which user space need not write again.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Flows remembered, by their hash; a power of two. A flow is asked for within the burst that notes
/// it, and later by explanations.
const FLOWS: usize = 1 << 14;

/// The lowest bits of a word: whether there is one, and how it went.
const IS_THERE: u64 = 1;
const IS_KEPT: u64 = 2;

/// What became of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelMark {
    /// The connection has the label's bits.
    Written,
    /// It had others, and keeps them.
    Kept,
}

/// The latest marks that the program wrote, and how many there were. Receivers note them; sinks and
/// explanations ask.
#[derive(Debug)]
pub struct WrittenMarks {
    /// A hash of flow and class for each, the last of those with the same place. If one is
    /// replaced too early, user space asks for the mark once more, which changes nothing.
    words: Box<[AtomicU64]>,
    /// Keyed, so no traffic can make one flow pass for another.
    hash: RandomState,
    marks_ports: AtomicBool,
    written: AtomicU64,
    kept: AtomicU64,
}

impl Default for WrittenMarks {
    fn default() -> Self {
        Self {
            words: (0..FLOWS).map(|_| AtomicU64::new(0)).collect(),
            hash: RandomState::new(),
            marks_ports: AtomicBool::new(false),
            written: AtomicU64::new(0),
            kept: AtomicU64::new(0),
        }
    }
}

impl WrittenMarks {
    /// From now on the program writes the labels that ports give with a flow's first packet.
    pub fn begin_with_ports(&self) {
        self.marks_ports.store(true, Ordering::Relaxed);
    }

    /// Whether it writes them.
    pub fn has_ports(&self) -> bool {
        self.marks_ports.load(Ordering::Relaxed)
    }

    /// Notes the mark of a flow's class. The ends are in any order.
    pub fn note(&self, protocol: u8, ends: [(IpAddr, u16); 2], class: u16, mark: KernelMark) {
        let (counter, bits) = match mark {
            KernelMark::Written => (&self.written, IS_THERE),
            KernelMark::Kept => (&self.kept, IS_THERE | IS_KEPT),
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let (word, hash) = self.place(protocol, ends, class);
        word.store(hash | bits, Ordering::Relaxed);
    }

    /// What became of the mark of a flow's class; `None`: the program wrote none, or that is
    /// forgotten.
    pub fn find(&self, protocol: u8, ends: [(IpAddr, u16); 2], class: u16) -> Option<KernelMark> {
        let (word, hash) = self.place(protocol, ends, class);
        let word = word.load(Ordering::Relaxed);
        (word & !IS_KEPT == hash | IS_THERE).then_some(match word & IS_KEPT {
            0 => KernelMark::Written,
            _ => KernelMark::Kept,
        })
    }

    /// Marks written, and marks kept.
    pub fn counts(&self) -> [u64; 2] {
        [&self.written, &self.kept].map(|count| count.load(Ordering::Relaxed))
    }

    fn place(&self, protocol: u8, mut ends: [(IpAddr, u16); 2], class: u16) -> (&AtomicU64, u64) {
        ends.sort_unstable();
        let hash = self.hash.hash_one((protocol, ends, class));
        // The upper bits choose the place, as the lowest ones are not the hash's.
        let at = (hash >> 32) as usize % self.words.len();
        (&self.words[at], hash & !(IS_THERE | IS_KEPT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_found_from_both_ends_and_by_its_class() {
        let marks = WrittenMarks::default();
        let [a, b] = [([10, 0, 0, 1].into(), 5), ([10, 0, 0, 2].into(), 443)];
        assert_eq!(marks.find(6, [a, b], 3), None);
        marks.note(6, [a, b], 3, KernelMark::Written);
        marks.note(17, [b, a], 3, KernelMark::Kept);
        assert_eq!(marks.find(6, [b, a], 3), Some(KernelMark::Written));
        assert_eq!(marks.find(17, [a, b], 3), Some(KernelMark::Kept));
        assert_eq!(marks.find(6, [a, b], 4), None);
        assert_eq!(marks.find(6, [(a.0, 6), b], 3), None);
        assert_eq!(marks.counts(), [1, 1]);
    }
}
