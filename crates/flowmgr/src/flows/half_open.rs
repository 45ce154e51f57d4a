//! Half-open flows: when a flow counts as answered, when one is over, and which flow makes
//! room for another one in a full table.
//!
//! Anyone who forges source addresses can begin any number of flows, but none gets further than
//! half-open: a forged SYN is answered at most by the host that was addressed, and nothing answers
//! that. So half-open flows have a timeout of their own and are evicted first, and a flow that is
//! in use both ways is never evicted.

use cring::{Label, Source};

use crate::entry::STATE_EMITTED;
use crate::flows::Flows;
use crate::record::EndReason;
use crate::table::{Occupant, Place};
use crate::wire::{Headers, TCP, TCP_ACK, TCP_RST, TCP_SYN};

/// Half-open flows go first while they hold more than one in this many entries of the table. Below
/// that, flows that were silent for too long go first: otherwise the few half-open flows of a full
/// table would evict each other before an answer can come.
const HALF_OPEN_SHARE: usize = 4;

/// A table is nearly full once it has room for only one in this many of its flows. From then on the
/// hand passes [`CHAINS_PASSED`] chains per new flow, enough for all chains of a table of the usual
/// shape: so it has passed the older half-open flows before it must take one.
const NEARLY_FULL_SHARE: usize = 8;
const CHAINS_PASSED: usize = 2;

impl Flows {
    /// Notes a packet of a half-open flow that has had a packet in reverse, perhaps this one: the
    /// flow may be established with it.
    ///
    /// UDP is established by a packet in reverse, ICMP by none. TCP takes an answer and a later
    /// forward packet that does not open or reset, so a SYN to an open port that is answered by
    /// SYN+ACK does not suffice. A blind guess of the right acknowledgement is not recognised; the
    /// addressed host resets such a connection, and it is closed.
    #[inline(never)]
    pub(crate) fn look_at_answer(
        &mut self,
        hash: u64,
        index: u32,
        direction: usize,
        headers: &Headers,
    ) {
        // Any host answers a ping, so answers to a flood of them would fill the table.
        if headers.key.is_icmp() {
            return;
        }
        let is_tcp = headers.key.protocol() == TCP;
        let goes_on = direction == 0 && headers.tcp_flags & (TCP_SYN | TCP_RST) == 0;
        if (!is_tcp || goes_on)
            && let Some(place) = self.place_of(hash, index)
        {
            self.establish(place, is_tcp);
        }
    }

    /// A half-open flow was answered and is reported: the counts, which show the answer, restart.
    /// It has lasted for the active timeout, longer than a flood can keep many flows, so it counts
    /// as established.
    #[cold]
    pub(crate) fn establish_answered(&mut self, hash: u64, index: u32) {
        if let Some(place) = self.place_of(hash, index) {
            self.establish(place, false);
        }
    }

    /// A connection that will end by FIN or RST may be silent for long before that.
    pub(crate) fn establish(&mut self, place: Place, is_tcp: bool) {
        let is_closing = self.entries.hot(self.table.occupant(place).index).is_closing();
        self.table.establish(place, is_tcp && self.settings.end_on_fin_rst && !is_closing);
    }

    /// Whether a flow was silent for too long.
    #[inline]
    pub(crate) fn is_over(&self, occupant: Occupant) -> bool {
        let (lifetimes, now) = (self.lifetimes, self.clock.second());
        // Only between the two timeouts does it matter whether a half-open flow has K packets, for
        // which its entry is read.
        lifetimes.is_over(occupant, now)
            && (!occupant.is_half_open
                || lifetimes.is_idle(occupant, now)
                || lifetimes.is_over(self.as_timed(occupant), now))
    }

    /// The same after a jump in time.
    pub(crate) fn is_over_after_jump(&self, occupant: Occupant) -> bool {
        self.lifetimes.is_over_after_jump(self.as_timed(occupant))
    }

    /// Ends the flow of a packet if it was over before the packet came. One that opens a
    /// connection ends one that is closed or idle: the port is used again, though perhaps
    /// the end of the old connection was not seen.
    #[inline(never)]
    pub(crate) fn end_if_over(&mut self, place: Place, headers: &Headers) -> bool {
        let occupant = self.table.occupant(place);
        let opens = headers.tcp_flags & (TCP_SYN | TCP_ACK) == TCP_SYN;
        let is_idle = self.lifetimes.is_idle(occupant, self.clock.second());
        let is_over = self.is_over(occupant) || (opens && (occupant.is_closed || is_idle));
        if is_over {
            self.end(place, EndReason::Idle);
        }
        is_over
    }

    /// A flow that is seen in one direction only, and has enough packets for a label, has
    /// the idle timeout: on a link that carries one direction all flows are such.
    #[inline]
    pub(crate) fn as_timed(&self, occupant: Occupant) -> Occupant {
        let is_half_open = occupant.is_half_open && !self.has_series(occupant.index);
        Occupant { is_half_open, ..occupant }
    }

    /// Whether a flow has given a series for the first task, or has its label from a rule. The
    /// label of a port takes no packets.
    #[inline]
    fn has_series(&self, index: u32) -> bool {
        let is_by_port = || {
            let (_, label) = self.entries.label(index).read();
            matches!(label, Label::Class { source: Source::Port, .. })
        };
        self.entries.hot(index).has(STATE_EMITTED)
            && (!is_by_port() || self.entries.word(self.first_asked, index).read().1 != Label::None)
    }

    /// Makes room for a flow with this hash, where there is none, at the expense of another
    /// one; false where all others are in use.
    #[inline]
    pub(crate) fn make_room(&mut self, hash: u64) -> bool {
        let left = self.max_flows - self.alive;
        let chain_is_full = self.table.chain_is_full(hash);
        if left == 0 || chain_is_full {
            return self.evict(hash, chain_is_full);
        }
        if left <= self.max_flows / NEARLY_FULL_SHARE {
            self.table.pass_half_open(CHAINS_PASSED);
        }
        true
    }

    #[inline(never)]
    fn evict(&mut self, hash: u64, from_chain: bool) -> bool {
        // Without a free entry the new flow could not begin all the same.
        if self.table.entries_free() == 0 {
            return false;
        }
        let victim = match from_chain {
            true => self.victim_in_chain(hash),
            false => self.victim(),
        };
        let Some(place) = victim else {
            return false;
        };
        let evictions = &mut self.counters.evictions;
        match self.table.occupant(place) {
            it if it.is_half_open => evictions.half_open += 1,
            it if it.is_closed => evictions.closed += 1,
            _ => evictions.idle += 1,
        }
        self.end(place, EndReason::Evicted);
        true
    }

    fn victim(&mut self) -> Option<Place> {
        let (lifetimes, now) = (self.lifetimes, self.clock.second());
        let may_go = |occupant| lifetimes.may_be_evicted(occupant, now);
        let table = &mut self.table;
        match table.half_open() > self.max_flows / HALF_OPEN_SHARE {
            true => table.half_open_victim().or_else(|| table.settled_victim(now, may_go)),
            false => table.settled_victim(now, may_go).or_else(|| table.half_open_victim()),
        }
    }

    fn victim_in_chain(&mut self, hash: u64) -> Option<Place> {
        let (lifetimes, now) = (self.lifetimes, self.clock.second());
        self.table.victim_in_chain(hash, now, |occupant| lifetimes.may_be_evicted(occupant, now))
    }
}
