//! What becomes of flows to an egress, besides its weight: one word.

/// What becomes of flows to an egress that begin from now on. By default: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Action {
    /// Bits of the connection's mark.
    pub mark: Option<u32>,
    /// DSCP of the flow's packets.
    pub dscp: Option<u8>,
    /// The only task that is asked about the flow, by its number from 0.
    pub task: Option<u8>,
}

const MARK: u64 = 1;
const DSCP: u64 = 2;
const TASK: u64 = 4;

impl Action {
    /// The names of the kinds, by their bits in [`Action::kinds`].
    pub const KINDS: [&str; 3] = ["mark", "dscp", "task"];

    /// The kinds that it has, of which memory says in its word 6 which may be given: bit 0 a mark,
    /// bit 1 a DSCP, bit 2 a task.
    pub fn kinds(self) -> u8 {
        (self.to_word() & (MARK | DSCP | TASK)) as u8
    }

    /// The kinds in bits 0 to 2, the DSCP from bit 8 on, the task from bit 16 on, the mark in the
    /// high half; 0 for nothing.
    pub fn to_word(self) -> u64 {
        let of = |kind, value: Option<u64>, shift| value.map_or(0, |it| kind | it << shift);
        of(MARK, self.mark.map(u64::from), 32)
            | of(DSCP, self.dscp.map(u64::from), 8)
            | of(TASK, self.task.map(u64::from), 16)
    }

    /// The action of a word; `None` for a word of none.
    pub fn from_word(word: u64) -> Option<Self> {
        let of = |kind, shift| (word & kind != 0).then_some(word >> shift);
        let action = Self {
            mark: of(MARK, 32).map(|it| it as u32),
            dscp: of(DSCP, 8).map(|it| it as u8),
            task: of(TASK, 16).map(|it| it as u8),
        };
        (action.to_word() == word).then_some(action)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_holds_an_action_or_is_none() {
        let all = Action { mark: Some(u32::MAX), dscp: Some(46), task: Some(255) };
        for action in [
            Action::default(),
            Action { mark: Some(0), ..Action::default() },
            Action { dscp: Some(0), ..Action::default() },
            Action { task: Some(7), ..Action::default() },
            all,
        ] {
            assert_eq!(Action::from_word(action.to_word()), Some(action));
        }
        assert_eq!((Action::default().to_word(), all.kinds()), (0, 7));
        for none in [8, 1 << 24, MARK | 1 << 8, 1 << 32, u64::MAX] {
            assert_eq!(Action::from_word(none), None, "{none:#x}");
        }
    }
}
