//! What becomes of a flow's packets, apart from what the flow is.
//!
//! A label says what a flow is; an action says what to do about it. The caller, who knows what
//! labels and rules mean, maps classes to actions and answers which rule is a flow's
//! ([`crate::RuleAnswer`]). An entry keeps the number of its flow's action and the generation of
//! the policy, so the walk looks the action up only when the label comes or the policy changes.

use crate::ids::TaskId;

/// What is done to the packets of a flow. By default: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Action {
    /// Packets get this DSCP, 0 to 63; `None` leaves them as they are.
    pub dscp: Option<u8>,
    /// Packets do not leave.
    pub drop: bool,
    /// Packets are copied.
    pub mirror: bool,
}

/// Numbers of actions: 0 for nothing, then each DSCP, dropped, dropped and copied, copied, copied
/// with each DSCP.
const DSCPS: usize = 64;
const DROP: usize = 1 + DSCPS;
const MIRROR: usize = DROP + 2;
/// Distinct actions: an entry keeps the number of one in a byte.
const ACTIONS: usize = MIRROR + 1 + DSCPS;
const _: () = assert!(ACTIONS <= 1 << u8::BITS);

/// The actions by number; other numbers do nothing. Of full size, so that no number is out of
/// bounds.
static BY_NUMBER: [Action; 1 << u8::BITS] = by_number();

const fn by_number() -> [Action; 1 << u8::BITS] {
    let mut all = [Action { dscp: None, drop: false, mirror: false }; 1 << u8::BITS];
    let mut dscp = 0;
    while dscp < DSCPS {
        all[1 + dscp].dscp = Some(dscp as u8);
        all[MIRROR + 1 + dscp].dscp = Some(dscp as u8);
        all[MIRROR + 1 + dscp].mirror = true;
        dscp += 1;
    }
    (all[DROP].drop, all[DROP + 1].drop) = (true, true);
    (all[DROP + 1].mirror, all[MIRROR].mirror) = (true, true);
    all
}

impl Action {
    /// The action that sets a DSCP, if there is one. Only the DSCP's lower six bits count.
    pub const fn of_dscp(dscp: Option<u8>) -> Action {
        Action { dscp, drop: false, mirror: false }
    }

    /// The number that an entry keeps. A dropped packet needs no DSCP.
    pub(crate) fn number(self) -> u8 {
        let dscp = self.dscp.map_or(0, |dscp| usize::from(dscp & 63) + 1);
        debug_assert!(dscp <= DSCPS);
        let number = match (self.drop, self.mirror) {
            (true, mirror) => DROP + usize::from(mirror),
            (false, true) => MIRROR + dscp,
            (false, false) => dscp,
        };
        number as u8
    }

    /// The action of a number.
    #[inline]
    pub(crate) fn of_number(number: u8) -> Action {
        BY_NUMBER[usize::from(number)]
    }

    /// This action, with the DSCP of `other` where it has none.
    pub(crate) fn or_dscp_of(self, other: Action) -> Action {
        Action { dscp: self.dscp.or(other.dscp), ..self }
    }
}

/// The action of each class. Where labels of several tasks have an action, the last task's counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actions {
    /// By task and class; up to the last task whose labels have actions, and at least the first.
    by_task: Vec<Vec<u8>>,
}

impl Actions {
    /// The actions that set a DSCP by class of the only task, the last for `unknown`. Only a DSCP's
    /// lower six bits count.
    pub fn of_dscp(by_class: &[Option<u8>]) -> Actions {
        Actions::of_tasks([by_class])
    }

    /// The same by task and class.
    pub fn of_tasks(by_task: impl IntoIterator<Item = impl AsRef<[Option<u8>]>>) -> Actions {
        let number = |dscp: &Option<u8>| Action::of_dscp(*dscp).number();
        let numbers = by_task.into_iter().map(|it| it.as_ref().iter().map(number).collect());
        let mut by_task: Vec<Vec<u8>> = numbers.collect();
        let last = by_task.iter().rposition(|it| it.iter().any(|&number| number != 0));
        by_task.resize(last.unwrap_or(0) + 1, Vec::new());
        Actions { by_task }
    }

    /// Tasks after the first whose labels have actions: bit n for task n.
    pub fn other_tasks(&self) -> u8 {
        let tasks = self.by_task.iter().enumerate().skip(1);
        let acting = tasks.filter(|(_, by_class)| by_class.iter().any(|&number| number != 0));
        acting.fold(0, |bits, (task, _)| bits | 1 << task)
    }

    /// The DSCP by task and class, as [`Actions::of_tasks`] takes it.
    pub fn dscp(&self) -> Vec<Vec<Option<u8>>> {
        let dscp = |&number: &u8| Action::of_number(number).dscp;
        self.by_task.iter().map(|by_class| by_class.iter().map(dscp).collect()).collect()
    }

    /// The action of a class; none if there is no such class.
    #[inline]
    #[must_use]
    pub fn of_class(&self, task: TaskId, class: u16) -> Action {
        Action::of_number(self.number_of(task, class))
    }

    #[inline]
    pub(crate) fn number_of(&self, task: TaskId, class: u16) -> u8 {
        let by_class = self.by_task.get(task.index());
        by_class.and_then(|it| it.get(usize::from(class))).copied().unwrap_or_default()
    }
}

/// The policy by which an entry's action was looked up, and whether the label was known. 0: not
/// looked up.
///
/// A generation has seven bits, whose first value has other uses. A flow that sent no packet for
/// exactly [`GENERATIONS`] changes would keep an action of an older policy. Programs may change
/// rules often, so with rules a flow that was silent for that many is looked up again whatever its
/// stamp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct PolicyStamp(u8);

/// Distinct generations of a policy.
pub(crate) const GENERATIONS: usize = 126;

impl PolicyStamp {
    /// The bit that says that the label was considered.
    const LABELLED: u8 = 1;

    /// Stamp of an entry whose action was not looked up.
    pub const NONE: PolicyStamp = PolicyStamp(0);
    /// Stamp of a flow that began with this burst and has an open question.
    pub const ASKED_FIRST: PolicyStamp = PolicyStamp(1);
    /// Stamp of another flow with an open question.
    pub const ASKED: PolicyStamp = PolicyStamp(2);
    /// The first policy, with the label considered.
    pub const FIRST: PolicyStamp = PolicyStamp(2 << 1 | PolicyStamp::LABELLED);

    /// The same for the next policy.
    #[must_use]
    pub fn next(self) -> PolicyStamp {
        match self.0.wrapping_add(1 << 1) {
            // Generation 0 means that the action was not looked up.
            PolicyStamp::LABELLED => PolicyStamp::FIRST,
            next => PolicyStamp(next),
        }
    }

    /// The same policy, with the label considered or not.
    #[must_use]
    #[inline]
    pub fn knowing(self, label: bool) -> PolicyStamp {
        PolicyStamp(self.0 & !PolicyStamp::LABELLED | u8::from(label))
    }

    /// Whether a question about the flow is open.
    #[inline]
    pub fn is_asked(self) -> bool {
        self == PolicyStamp::ASKED_FIRST || self == PolicyStamp::ASKED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_share_equal_actions_and_keep_their_own() {
        let dscp = [Some(46), None, Some(10), Some(46)];
        let actions = Actions::of_dscp(&dscp);
        assert_eq!(actions.dscp(), [dscp]);
        let number = |class| actions.number_of(TaskId::FIRST, class);
        assert_eq!((number(0), number(1), number(4)), (number(3), 0, 0));
        assert_eq!(actions.of_class(TaskId::FIRST, 2).dscp, Some(10));
        let none = [None];
        let actions = Actions::of_tasks([&none[..], &none, &dscp, &none]);
        assert_eq!((actions.other_tasks(), actions.dscp().len()), (0b100, 3));
        assert_eq!(actions.of_class(TaskId(2), 0).dscp, Some(46));
    }

    #[test]
    fn every_action_has_its_number() {
        for dscp in [None].into_iter().chain((0..64).map(Some)) {
            for mirror in [false, true] {
                let action = Action { mirror, ..Action::of_dscp(dscp) };
                assert_eq!(Action::of_number(action.number()), action);
                let dropped = Action { drop: true, ..action };
                let kept = Action::of_number(dropped.number());
                assert_eq!((kept.drop, kept.mirror, kept.dscp), (true, mirror, None));
            }
        }
        assert_eq!(Action::default().number(), 0, "the number in a new entry");
    }

    #[test]
    fn a_stamp_is_never_that_of_a_new_entry_or_of_a_question() {
        let mut stamp = PolicyStamp::FIRST;
        for _ in 1..GENERATIONS {
            stamp = stamp.next();
            assert_ne!(stamp, PolicyStamp::FIRST);
            for known in [stamp.knowing(true), stamp.knowing(false)] {
                assert!(known != PolicyStamp::NONE && !known.is_asked());
            }
            assert_eq!(stamp.knowing(true), stamp);
        }
        assert_eq!(stamp.next(), PolicyStamp::FIRST);
    }
}
