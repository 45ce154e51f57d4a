//! Results of the latest updates by flow, for queries.

use std::collections::VecDeque;
use std::time::SystemTime;

use crate::conntrack::Tuple;
use crate::counts::Fate;

/// Updates remembered.
const REMEMBERED: usize = 8192;

/// An update with its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// The flow, in the direction in which its connection was found.
    pub tuple: Tuple,
    /// The word to be written.
    pub word: u64,
    /// The result.
    pub fate: Fate,
    /// Time of the result.
    pub at: SystemTime,
}

/// The latest updates, the newest last.
#[derive(Debug, Default)]
pub(crate) struct Latest(VecDeque<Settled>);

impl Latest {
    /// Adds an update and drops the oldest if there is no room.
    pub fn note(&mut self, settled: Settled) {
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(settled);
    }

    /// The latest update of a flow, in either direction, whose word `is_meant`.
    pub fn find(&self, tuple: Tuple, is_meant: impl Fn(u64) -> bool) -> Option<Settled> {
        let mut all = self.0.iter().rev();
        all.find(|it| (it.tuple == tuple || it.tuple == tuple.reversed()) && is_meant(it.word))
            .copied()
    }

    /// The latest word that was written for a flow, in either direction, and `is_meant`.
    pub fn written(&self, tuple: Tuple, is_meant: impl Fn(u64) -> bool) -> Option<u64> {
        let mut all = self.0.iter().rev().filter(|it| it.fate == Fate::Written);
        let found =
            all.find(|it| [it.tuple, it.tuple.reversed()].contains(&tuple) && is_meant(it.word));
        found.map(|it| it.word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(port: u16, fate: Fate) -> Settled {
        let tuple = Tuple {
            zone: 0,
            protocol: 6,
            source: ([10, 0, 0, 1].into(), port),
            destination: ([10, 0, 0, 2].into(), 443),
        };
        Settled { tuple, word: 1, fate, at: SystemTime::UNIX_EPOCH }
    }

    #[test]
    fn the_latest_fate_of_a_flow_is_found_either_way_round() {
        let mut latest = Latest::default();
        let first = settled(1, Fate::NotFound);
        latest.note(first);
        let reversed = Settled { tuple: first.tuple.reversed(), ..settled(1, Fate::Written) };
        latest.note(reversed);
        let all = |_| true;
        assert_eq!(latest.find(first.tuple, all), Some(reversed));
        assert_eq!(latest.find(first.tuple, |word| word == 2), None);
        assert_eq!(latest.find(settled(2, Fate::Written).tuple, all), None);
        (0..=REMEMBERED).for_each(|_| latest.note(settled(3, Fate::Written)));
        assert_eq!(latest.find(first.tuple, all), None, "memory is bounded");
        assert_eq!(latest.0.len(), REMEMBERED);
    }
}
