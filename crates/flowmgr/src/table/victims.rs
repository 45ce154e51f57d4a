//! Which flow makes room where the table or a chain is full.
//!
//! Two hands go round the buckets, as in the clock algorithm for pages. The first looks for
//! half-open flows and takes those that it has passed once before with no packet since. So
//! what is evicted is nearly the oldest, and no flow goes before the hand has made a whole
//! round: where N half-open flows are held and r begin per second, each is kept for at least
//! 2/3 · N/r (lifetimes are spread evenly over one to two rounds, and their mean is N/r). A
//! stamp in seconds could not tell the flows of one second apart, and a choice by chance would
//! lose many that wait for their answer.
//!
//! The second hand looks for flows that only linger or were silent for long. Which flows it may
//! take changes only with the seconds, so one round per second is enough; after that it reports
//! none. So asking costs little in a table full of flows in use.

use super::{Bucket, CHAIN_SLOTS, Occupant, Place, SLOTS, Table};

/// Chains that a hand looks at for one flow, at most.
const CHAINS_PER_CALL: usize = 32;

/// Where the hands stand.
pub(super) struct Hands {
    half_open: u32,
    settled: u32,
    /// The second of the other hand's round, and the buckets left in it.
    second: u16,
    left: u32,
    /// Changes which of a chain's equally old flows goes.
    turn: u32,
}

impl Hands {
    pub fn new(buckets: u32) -> Hands {
        Hands { half_open: 0, settled: 0, second: 0, left: buckets, turn: 0 }
    }
}

impl Bucket {
    /// Rank of the half-open flow that is silent for longest; 0 if there is none. A rank is the
    /// seconds of silence + 1, times [`CHAIN_SLOTS`], plus the slot's number counted from `first`,
    /// which decides between equals.
    // Without a branch on the stamps, since nobody can predict it.
    #[inline]
    fn oldest_half_open(&self, now: u16, first: u32) -> u32 {
        let half_open = self.half_open & self.occupied;
        (0..SLOTS).fold(0, |oldest, slot| {
            let silent_s = u32::from(now.wrapping_sub(self.stamps[slot])) + 1;
            let order = (first + slot as u32) % CHAIN_SLOTS as u32;
            let counts = u32::from(half_open >> slot & 1).wrapping_neg();
            oldest.max((silent_s * CHAIN_SLOTS as u32 + order) & counts)
        })
    }
}

impl Table {
    /// A half-open flow; `None` if there is none. One that the hand has not passed before
    /// is taken only where a bounded search finds no other.
    pub fn half_open_victim(&mut self) -> Option<Place> {
        if self.half_open == 0 {
            return None;
        }
        let mut young = None;
        let mut chains = 0;
        // Chains without a half-open flow are removed as they are met, which happens once per flow
        // begun, so these do not count.
        while chains < CHAINS_PER_CALL {
            let head = self.may_be_half_open.next_from(self.hands.half_open)?;
            self.hands.half_open = head;
            match self.half_open_in(head) {
                Some((place, true)) => return Some(place),
                Some((place, false)) => {
                    young.get_or_insert(place);
                    chains += 1;
                }
                None => self.may_be_half_open.remove(head),
            }
            self.hands.half_open = (head + 1) & self.mask;
        }
        young
    }

    /// Moves the hand past `chains` chains, and takes no flow.
    pub fn pass_half_open(&mut self, chains: usize) {
        for _ in 0..chains {
            let from = self.hands.half_open;
            let Some(head) = self.may_be_half_open.next_from(from) else {
                return;
            };
            self.half_open_in(head);
            self.hands.half_open = (head + 1) & self.mask;
        }
    }

    /// A half-open flow of a chain, and whether it may go because the hand has passed it before or
    /// it only lingers. If none may, the hand passes the whole chain.
    fn half_open_in(&mut self, head: u32) -> Option<(Place, bool)> {
        let mut young = None;
        let mut at = head;
        loop {
            let bucket = &self.buckets[at as usize];
            let half_open = bucket.half_open & bucket.occupied;
            let old = half_open & (bucket.kept | bucket.closed);
            let place = |bits: u8| Place { head, bucket: at, slot: bits.trailing_zeros() as u8 };
            if old != 0 {
                return Some((place(old), true));
            }
            if half_open != 0 {
                young.get_or_insert(place(half_open));
            }
            if bucket.next == 0 {
                break;
            }
            at = bucket.next;
        }
        let young = young?;
        at = head;
        loop {
            let bucket = &mut self.buckets[at as usize];
            bucket.kept |= bucket.half_open;
            if bucket.next == 0 {
                return Some((young, false));
            }
            at = bucket.next;
        }
    }

    /// A flow that is not half-open and that `may_go`, by second `now`.
    pub fn settled_victim(&mut self, now: u16, may_go: impl Fn(Occupant) -> bool) -> Option<Place> {
        if now != self.hands.second {
            (self.hands.second, self.hands.left) = (now, self.buckets());
        }
        for _ in 0..CHAINS_PER_CALL {
            if self.hands.left == 0 {
                return None;
            }
            let from = self.hands.settled;
            let end = self.buckets().min(from + self.hands.left);
            let Some(head) = self.in_use_from(from, end) else {
                self.pass_settled(end - from);
                continue;
            };
            let found =
                self.find_in_chain(head, |occupant| !occupant.is_half_open && may_go(occupant));
            if found.is_some() {
                self.pass_settled(head - from);
                return found;
            }
            self.pass_settled(head + 1 - from);
        }
        None
    }

    fn pass_settled(&mut self, buckets: u32) {
        self.hands.left -= buckets;
        self.hands.settled = (self.hands.settled + buckets) & self.mask;
    }

    /// A flow of the full chain of `hash`: one of the half-open flows silent for longest, else one
    /// that `may_go`. An attacker who fills a chain knows the hash key, so the best choice is one
    /// that is hard to predict.
    pub fn victim_in_chain(
        &mut self,
        hash: u64,
        now: u16,
        may_go: impl Fn(Occupant) -> bool,
    ) -> Option<Place> {
        let head = hash as u32 & self.mask;
        self.hands.turn = self.hands.turn.wrapping_add(1);
        let turn = self.hands.turn.wrapping_mul(0x9e37_79b1) >> 16;
        let (mut oldest, mut before, mut at) = (0, 0, head);
        loop {
            let bucket = &self.buckets[at as usize];
            oldest = oldest.max(bucket.oldest_half_open(now, turn + before));
            before += SLOTS as u32;
            if bucket.next == 0 {
                break;
            }
            at = bucket.next;
        }
        if oldest == 0 {
            return self.find_in_chain(head, may_go);
        }
        let number = oldest.wrapping_sub(turn) % CHAIN_SLOTS as u32;
        let (buckets, slot) = (number / SLOTS as u32, (number % SLOTS as u32) as u8);
        let bucket = (0..buckets).fold(head, |at, _| self.buckets[at as usize].next);
        Some(Place { head, bucket, slot })
    }

    fn find_in_chain(&self, head: u32, wanted: impl Fn(Occupant) -> bool) -> Option<Place> {
        let mut next = self.first_in(head);
        while let Some(place) = next {
            if wanted(self.occupant(place)) {
                return Some(place);
            }
            next = self.next_after(place);
        }
        None
    }
}
