//! Actions by server, which another program gives: what becomes of flows that begin from then on.
//!
//! Any thread sets them, flow workers read them. A flow keeps the action that its server had when
//! the flow began ([`flowmgr::RuleQuestion::kept`]). What its rule says comes first.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use flowmgr::RuleAnswer;
use observe::Action;
use policy::{Decision, Dscp, Mark};

/// The actions of all servers that may have some.
#[derive(Debug)]
pub struct ServerActions {
    /// By address and port; words as [`Action`] has them.
    servers: Vec<((IpAddr, u16), AtomicU64)>,
    /// The bits of marks that may be written; `None`: connections are not marked.
    mark_mask: Option<u32>,
}

impl ServerActions {
    /// No actions yet. `mark_mask`: the bits of marks that may be written, where connections are
    /// marked.
    pub fn new(
        servers: impl Iterator<Item = (IpAddr, u16)>,
        mark_mask: Option<u32>,
    ) -> ServerActions {
        let mut servers: Vec<_> = servers.collect();
        servers.sort_unstable();
        servers.dedup();
        let servers = servers.into_iter().map(|server| (server, AtomicU64::new(0)));
        ServerActions { servers: servers.collect(), mark_mask }
    }

    /// Sets the action of a server.
    pub fn set(&self, server: (IpAddr, u16), action: Action) {
        if let Some(word) = self.find(server) {
            // Relaxed: it is all in one word.
            word.store(action.to_word(), Ordering::Relaxed);
        }
    }

    /// The word of a server's action; 0 for none.
    pub(crate) fn word_of(&self, server: (IpAddr, u16)) -> u64 {
        self.find(server).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    fn find(&self, server: (IpAddr, u16)) -> Option<&AtomicU64> {
        let place = self.servers.binary_search_by_key(&server, |(server, _)| *server);
        place.ok().map(|place| &self.servers[place].1)
    }

    /// Adds an action to the answer about a flow, where its rule leaves that open. Returns the
    /// connection's mark.
    pub(crate) fn add(
        &self,
        word: u64,
        outcome: &Decision,
        answer: &mut RuleAnswer,
    ) -> Option<Mark> {
        answer.kept = word;
        let action = Action::from_word(word).unwrap_or_default();
        if let (Some(task), None, false) = (action.task, outcome.task, outcome.asks_nothing) {
            answer.unasked |= !(1_u8.checked_shl(task.into()).unwrap_or(0));
        }
        let Some(mask) = self.mark_mask else {
            answer.action.dscp = answer.action.dscp.or(action.dscp);
            return outcome.mark;
        };
        let own = action.mark.map(|bits| Mark { bits, mask });
        let dscp = action.dscp.and_then(Dscp::new).map(Mark::of_dscp);
        outcome.mark.or(own).or(dscp.map(|mark| Mark { mask: mark.mask & mask, ..mark }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: (IpAddr, u16) = (IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)), 80);

    #[test]
    fn what_the_rule_says_comes_first() {
        let all = Action { mark: Some(0x100), dscp: Some(46), task: Some(1) };
        let actions = ServerActions::new([SERVER].into_iter(), None);
        assert_eq!(actions.word_of(SERVER), 0);
        actions.set(SERVER, all);
        actions.set((SERVER.0, 81), all);
        let word = actions.word_of(SERVER);
        assert_eq!((word, actions.word_of((SERVER.0, 81))), (all.to_word(), 0));
        let mut answer = RuleAnswer::default();
        assert_eq!(actions.add(word, &Decision::default(), &mut answer), None);
        assert_eq!((answer.action.dscp, answer.unasked, answer.kept), (Some(46), !2, word));
        let outcome = Decision { task: Some(0), ..Decision::default() };
        let mut answer = RuleAnswer::default();
        answer.action.dscp = Some(8);
        actions.add(word, &outcome, &mut answer);
        assert_eq!((answer.action.dscp, answer.unasked), (Some(8), 0));

        let marking = ServerActions::new([SERVER].into_iter(), Some(0xff00));
        let mut answer = RuleAnswer::default();
        let mark = Some(Mark { bits: 0x100, mask: 0xff00 });
        assert_eq!(marking.add(word, &Decision::default(), &mut answer), mark);
        assert_eq!(answer.action.dscp, None, "no packet of the kernel's is written");
        let own = Some(Mark { bits: 2, mask: 2 });
        let outcome = Decision { mark: own, ..Decision::default() };
        assert_eq!(marking.add(word, &outcome, &mut answer), own);
    }
}
