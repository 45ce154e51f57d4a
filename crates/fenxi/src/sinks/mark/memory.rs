//! What became of the latest marks, flow by flow, for whoever asks about one.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use netfilter::conntrack::{Change, Connection, Tuple};
use netfilter::socket::Outcome;

/// Marks that are remembered.
const REMEMBERED: usize = 8192;

/// The latest marks. Written by the marks thread, read by the control thread.
#[derive(Default)]
pub struct Memory(Mutex<VecDeque<Fate>>);

/// What became of a mark.
#[derive(Debug, Clone, Copy)]
pub struct Fate {
    tuple: Tuple,
    /// What was to be written.
    pub change: Change,
    /// The kernel's answer.
    pub outcome: Outcome,
    /// When it came.
    pub at: SystemTime,
}

impl Fate {
    /// In a sentence.
    pub fn sentence(&self) -> String {
        match self.outcome {
            Outcome::Written => "the connection has the mark".to_owned(),
            Outcome::Found(Connection { mark, .. }) => format!(
                "the connection had the mark {mark:#x} already and keeps it; mark.overwrite = true would replace it"
            ),
            Outcome::NotFound => {
                "no connection has these addresses and ports: it was over, or conntrack does not track it".to_owned()
            }
            Outcome::Refused(errno) => {
                let error = std::io::Error::from_raw_os_error(errno);
                format!("the kernel refused the mark: {error}")
            }
            Outcome::Unanswered => "the kernel's answer was lost; the mark may be there".to_owned(),
        }
    }
}

impl Memory {
    /// Remembers what became of the mark of a flow.
    pub fn note(&self, tuple: Tuple, change: Change, outcome: Outcome) {
        let mut latest = self.lock();
        if latest.len() == REMEMBERED {
            latest.pop_front();
        }
        latest.push_back(Fate {
            tuple,
            change,
            outcome,
            at: SystemTime::now(),
        });
    }

    /// The latest mark of a flow, in whichever direction its connection was found.
    pub fn of(&self, tuple: Tuple) -> Option<Fate> {
        let latest = self.lock();
        let mut fates = latest.iter().rev();
        fates
            .find(|fate| fate.tuple == tuple || fate.tuple == tuple.reversed())
            .copied()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Fate>> {
        // Whole between any two statements.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(port: u16) -> Tuple {
        Tuple {
            protocol: 6,
            source: ([10, 0, 0, 1].into(), port),
            destination: ([10, 0, 0, 2].into(), 443),
        }
    }

    #[test]
    fn the_latest_fate_of_a_flow_is_found_either_way_round() {
        let memory = Memory::default();
        let mark = Change::Mark {
            bits: 0x100,
            mask: 0xff00,
        };
        memory.note(tuple(1), mark, Outcome::NotFound);
        memory.note(tuple(1).reversed(), mark, Outcome::Written);
        let fate = memory.of(tuple(1)).unwrap();
        assert_eq!((fate.outcome, fate.change), (Outcome::Written, mark));
        assert!(memory.of(tuple(2)).is_none());
        for _ in 0..=REMEMBERED {
            memory.note(tuple(3), mark, Outcome::Written);
        }
        assert!(memory.of(tuple(1)).is_none(), "memory is bounded");
        assert_eq!(memory.lock().len(), REMEMBERED);
    }
}
