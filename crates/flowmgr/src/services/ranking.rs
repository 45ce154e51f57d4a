//! Which egresses have slots of their own: the busiest, by packets that they send.
//!
//! Egresses take free slots as they come. Once a second, one without a slot that has sent more than
//! twice as much as the idlest one with a slot takes its place. Only packets from the server count,
//! so a flood of addresses that nobody answers for replaces nothing.

use observe::Egress;

use crate::hash::fold;

/// Egresses without slots that are watched, by a hash. Where several share a place, the busier one
/// keeps it.
const CANDIDATES: usize = 64;

/// How much busier an egress must be to take another's slot.
const TIMES: u64 = 2;

/// Slots that change hands at a time, at most.
pub(super) const CHANGES_MAX: usize = 4;

/// How busy egresses are.
pub(super) struct Ranking {
    /// By slot: packets sent, fading by half each second, and all at the last look.
    slots: Vec<(u64, u64)>,
    candidates: [Option<(Egress, u64)>; CANDIDATES],
}

impl Ranking {
    pub fn new(slots: usize) -> Ranking {
        Ranking { slots: vec![(0, 0); slots], candidates: [None; CANDIDATES] }
    }

    /// An egress without a slot has sent `packets`.
    pub fn note(&mut self, egress: Egress, packets: u64) {
        let place = &mut self.candidates[place(&egress)];
        match place {
            Some((other, sent)) if *other == egress => *sent += packets,
            Some((_, sent)) if *sent >= packets => *sent -= packets,
            _ => *place = Some((egress, packets)),
        }
    }

    /// A second has passed, and this slot has sent `sent` packets by now.
    pub fn look(&mut self, slot: usize, sent: u64) {
        let (busy, before) = &mut self.slots[slot];
        *busy = *busy / 2 + sent.saturating_sub(*before);
        *before = sent;
    }

    /// A slot was given to an egress that has sent as much as this one without it.
    pub fn give(&mut self, slot: usize, busy: u64) {
        self.slots[slot] = (busy, 0);
    }

    /// The busiest egress without a slot, if it should have the idlest of the slots from 1 on: the
    /// slot, the egress, and how busy that is.
    pub fn next(&mut self) -> Option<(usize, Egress, u64)> {
        let all = self.candidates.iter_mut();
        let busiest = all.max_by_key(|it| it.map_or(0, |(_, sent)| sent))?;
        let (egress, sent) = (*busiest)?;
        let slots = self.slots.iter().enumerate().skip(1);
        let (slot, (busy, _)) = slots.min_by_key(|(_, (busy, _))| *busy)?;
        if sent <= TIMES * busy {
            return None;
        }
        *busiest = None;
        Some((slot, egress, sent))
    }

    /// Candidates fade.
    pub fn fade(&mut self) {
        self.candidates.iter_mut().flatten().for_each(|(_, sent)| *sent /= 2);
    }
}

fn place(egress: &Egress) -> usize {
    let word = u128::from_le_bytes(egress.address);
    let mixed =
        fold(word as u64 ^ 0x9e37_79b9_7f4a_7c15, (word >> 64) as u64 ^ u64::from(egress.port));
    (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % CANDIDATES
}
