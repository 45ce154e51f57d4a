//! Spreads new connections over servers by weight, through a map of an operator's ruleset:
//!
//! ```text
//! table ip balance {
//!     map servers { typeof numgen inc mod 256 : ip daddr; }
//!     chain to { type nat hook prerouting priority dstnat;
//!         ip daddr 192.0.2.1 tcp dport 80 dnat to jhash ip saddr . tcp sport mod 256 map @servers
//!     }
//! }
//! ```
//!
//! The map has a server for each slot, and a server has slots by weight. `typeof numgen` declares
//! the integer that `jhash` gives, too: with `typeof jhash`, listing the ruleset crashes nft 1.0.6.
//! Values may have a port (`ip daddr . tcp dport`, in the rule `dnat ip to`). A rule that divides
//! by more than the map has slots leaves connections without a server.
//!
//! New weights change as few slots as they can, in one transaction: the kernel answers once it
//! applies, and a packet meets the map before or after it. (A kernel without commit b2f742c846ca,
//! which Linux 6.17 has, may miss a slot at that moment.) Conntrack translates a connection as its
//! first packet was, so existing connections stay with their servers.

use std::io;
use std::net::SocketAddr;

use crate::elements::find;
use crate::nft_set::{SetName, SlotChange, change_slots, slots_of};
use crate::socket::{Reply, Socket};
use crate::writer::StartError;

mod apportion;

/// Maximum slots of a map, whose transaction fits a send ([`crate::socket::BATCH`]).
pub const SLOTS_MAX: usize = 1024;

/// A map of slots with its servers.
pub struct Slots {
    socket: Socket,
    name: SetName,
    /// The map's value of each server.
    servers: Vec<Vec<u8>>,
    /// The server of each slot; someone else's server has the number after the last.
    present: Vec<Option<usize>>,
}

impl Slots {
    /// Opens a socket in the calling thread's network namespace, and reads the map. Ports are
    /// ignored if its values have none.
    ///
    /// # Errors
    /// The capability or the map is missing, or it does not fit.
    pub fn open(name: &SetName, slots: usize, servers: &[SocketAddr]) -> Result<Slots, StartError> {
        let unfit = |why| StartError::Unfit(format!("the map {name} {why}"));
        if !(1..=SLOTS_MAX).contains(&slots) {
            return Err(unfit(format!("cannot have {slots} slots, but 1 to {SLOTS_MAX}")));
        }
        let is_v6 = servers.iter().any(SocketAddr::is_ipv6);
        let (socket, map) = find("map", name, || name.how_to_add_slots(slots, is_v6))?;
        let servers = map.servers(servers).map_err(unfit)?;
        let mut opened = Slots { socket, name: name.clone(), servers, present: vec![None; slots] };
        opened.read()?;
        Ok(opened)
    }

    /// Reads the map again: others may have changed it, as by loading its ruleset. [`Self::write`]
    /// does so only if such a change is in its way, because reading takes longer than writing.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn read(&mut self) -> Result<(), StartError> {
        let read = slots_of(&mut self.socket, &self.name, self.present.len());
        let server_of = |outcome| match outcome {
            Reply::Found(value) => {
                let known = self.servers.iter().position(|server| *server == value);
                Ok(Some(known.unwrap_or(self.servers.len())))
            }
            // The map may be gone, too: then adding to it fails.
            Reply::NotFound => Ok(None),
            outcome => Err(self.refused(outcome)),
        };
        self.present = read.into_iter().map(server_of).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Spreads the slots by these weights, one for each server: finite, at least 0, with a finite
    /// sum above 0. Returns how many slots changed.
    ///
    /// # Errors
    /// The map is gone, or the kernel refuses; then no slot has changed.
    pub fn write(&mut self, weights: &[f64]) -> Result<usize, StartError> {
        let outcome = match self.transact(weights) {
            // Others may have changed the map since it was read.
            Err(Reply::NotFound | Reply::Refused(_)) => {
                self.read()?;
                self.transact(weights)
            }
            outcome => outcome,
        };
        outcome.map_err(|failed| self.refused(failed))
    }

    fn transact(&mut self, weights: &[f64]) -> Result<usize, Reply> {
        debug_assert_eq!(weights.len(), self.servers.len());
        let changes = apportion::changes(&self.present, weights);
        let added: Vec<SlotChange<'_>> = changes
            .iter()
            .map(|(slot, server)| (*slot as u32, Some(&self.servers[*server][..])))
            .collect();
        let is_there = |(slot, _): &&(usize, usize)| self.present[*slot].is_some();
        let deleted = changes.iter().filter(is_there).map(|(slot, _)| (*slot as u32, None));
        let deleted: Vec<SlotChange<'_>> = deleted.collect();
        let outcomes = change_slots(&mut self.socket, &self.name, &deleted, &added);
        if let Some(failed) = outcomes.into_iter().find(|outcome| *outcome != Reply::Done) {
            return Err(failed);
        }
        for (slot, server) in &changes {
            self.present[*slot] = Some(*server);
        }
        Ok(changes.len())
    }

    fn refused<Found>(&self, outcome: Reply<Found>) -> StartError {
        let name = &self.name;
        if matches!(outcome, Reply::NotFound) {
            return StartError::Unfit(format!("the map {name} is gone; load its ruleset again"));
        }
        let kernel = |error: io::Error| {
            StartError::Unfit(format!("the kernel refuses the slots of the map {name} ({error})"))
        };
        StartError::from_outcome(outcome, "writing slots of nftables maps", kernel)
    }
}
