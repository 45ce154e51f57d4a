//! What becomes of a flow's packets, apart from what the flow is.
//!
//! A label says what a flow is; an action says what to do about it. The caller, who knows what labels mean, maps classes to
//! actions. An entry keeps the number of its flow's action and the generation of the map by which it was looked up, so the
//! walk looks it up only when the label has come or the map is another one.

/// What is done to the packets of a flow. By default: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Action {
    /// Packets get this DSCP, 0 to 63; `None` leaves them as they are.
    pub dscp: Option<u8>,
}

/// Distinct actions in a map, at most: an entry keeps the number of one in a byte.
pub const ACTIONS_MAX: usize = 1 << u8::BITS;

/// Distinct actions, and which of them each class of the first task has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actions {
    /// By number; those beyond the distinct ones do nothing. Of full size, so that no number is out of bounds.
    table: Box<[Action; ACTIONS_MAX]>,
    by_class: Vec<u8>,
}

impl Actions {
    /// The actions of all classes, in their order, the last for `unknown`; `None` where more than [`ACTIONS_MAX`] are
    /// distinct, doing nothing among them.
    pub fn new(by_class: impl IntoIterator<Item = Action>) -> Option<Actions> {
        // Number 0 does nothing, so that an entry of zeros is right.
        let mut distinct = vec![Action::default()];
        let mut numbers = Vec::new();
        for action in by_class {
            let number = distinct.iter().position(|it| *it == action);
            numbers.push(number.unwrap_or_else(|| {
                distinct.push(action);
                distinct.len() - 1
            }) as u8);
        }
        let mut table = Box::new([Action::default(); ACTIONS_MAX]);
        table.get_mut(..distinct.len())?.copy_from_slice(&distinct);
        Some(Actions {
            table,
            by_class: numbers,
        })
    }

    /// The actions that set a DSCP by class. Of each only the lower six bits count.
    pub fn of_dscp(by_class: &[Option<u8>]) -> Actions {
        let mut table = Box::new([Action::default(); ACTIONS_MAX]);
        // Each DSCP has a number of its own, behind that of doing nothing.
        for (dscp, action) in (0..64).zip(&mut table[1..]) {
            action.dscp = Some(dscp);
        }
        let number = |dscp: &Option<u8>| dscp.map_or(0, |dscp| (dscp & 63) + 1);
        Actions {
            table,
            by_class: by_class.iter().map(number).collect(),
        }
    }

    /// Classes that have an action.
    pub fn classes(&self) -> usize {
        self.by_class.len()
    }

    /// The action of a class; doing nothing where the class is none of them.
    #[inline]
    #[must_use]
    pub fn of_class(&self, class: u16) -> Action {
        self.get(self.number_of(class))
    }

    /// The DSCP by class, as [`Actions::of_dscp`] takes it.
    pub fn dscp_by_class(&self) -> Vec<Option<u8>> {
        let numbers = self.by_class.iter();
        numbers.map(|&number| self.get(number).dscp).collect()
    }

    #[inline]
    pub(crate) fn number_of(&self, class: u16) -> u8 {
        self.by_class
            .get(usize::from(class))
            .copied()
            .unwrap_or_default()
    }

    #[inline]
    pub(crate) fn get(&self, number: u8) -> Action {
        self.table[usize::from(number)]
    }
}

/// By which map an entry's action was looked up, and with which knowledge of its flow. 0: not at all.
///
/// A generation has seven bits. A flow would keep an action of an older map if it sent no packet for exactly 127 changes of
/// the map; changes are made by people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct PolicyStamp(u8);

impl PolicyStamp {
    /// The bit that says that the label was considered.
    const LABELLED: u8 = 1;

    /// The first map, with the label considered.
    pub const FIRST: PolicyStamp = PolicyStamp(1 << 1 | PolicyStamp::LABELLED);

    /// The same of the next map.
    #[must_use]
    pub fn next(self) -> PolicyStamp {
        match self.0.wrapping_add(1 << 1) {
            // Generation 0 is that of an entry whose action was not looked up.
            PolicyStamp::LABELLED => PolicyStamp::FIRST,
            next => PolicyStamp(next),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_share_equal_actions_and_keep_their_own() {
        let dscp = [Some(46), None, Some(10), Some(46)];
        let actions = Actions::of_dscp(&dscp);
        assert_eq!(actions.dscp_by_class(), dscp);
        assert_eq!(actions.number_of(0), actions.number_of(3));
        assert_eq!(actions.number_of(1), 0);
        assert_eq!(actions.of_class(2).dscp, Some(10));
        assert_eq!(
            (actions.classes(), actions.of_class(4)),
            (4, Action::default())
        );
    }

    #[test]
    fn more_actions_than_a_byte_can_tell_are_refused() {
        let action = |dscp: u8| Action { dscp: Some(dscp) };
        assert!(Actions::new((0..255).map(action)).is_some());
        assert!(Actions::new((0..=255).map(action)).is_none());
    }

    #[test]
    fn a_stamp_is_never_that_of_a_new_entry() {
        let mut stamp = PolicyStamp::FIRST;
        for _ in 0..126 {
            stamp = stamp.next();
            assert_ne!(stamp, PolicyStamp::FIRST);
            assert!(stamp.0 & PolicyStamp::LABELLED != 0 && stamp.0 >> 1 != 0);
        }
        assert_eq!(stamp.next(), PolicyStamp::FIRST);
    }
}
