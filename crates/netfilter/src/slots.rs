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
//! applies, and a packet meets the map before or after it. Conntrack translates a connection as its
//! first packet was, so existing connections stay with their servers.

use std::io;
use std::net::SocketAddr;

use crate::elements::find;
use crate::nft_set::{SetName, SlotChange, change_slots, slots_of};
use crate::socket::{Reply, Socket};
use crate::writer::StartError;

mod apportion;

/// The most slots of a map; those of a transaction fit the messages of a send.
pub const SLOTS_MAX: usize = 1024;

/// A map of slots with its servers.
pub struct Slots {
    socket: Socket,
    name: SetName,
    /// The map's value of each server.
    servers: Vec<Vec<u8>>,
    present: Vec<Slot>,
}

/// What the map has for a slot.
type Slot = Option<Vec<u8>>;

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

    /// Reads the map again, which others may have changed.
    ///
    /// # Errors
    /// The map is gone, or the kernel refuses.
    pub fn read(&mut self) -> Result<(), StartError> {
        let read = slots_of(&mut self.socket, &self.name, self.present.len());
        for (slot, outcome) in self.present.iter_mut().zip(read) {
            *slot = match outcome {
                Reply::Found(value) => value,
                // The map was there; if it is gone, adding to it fails.
                Reply::NotFound => None,
                outcome => return Err(refused(&self.name, outcome)),
            };
        }
        Ok(())
    }

    /// Spreads the slots by these weights, one for each server: finite, at least 0, with a finite
    /// sum above 0. Returns how many slots changed.
    ///
    /// # Errors
    /// The map is gone, or the kernel refuses; then no slot has changed.
    pub fn write(&mut self, weights: &[f64]) -> Result<usize, StartError> {
        match self.transact(weights) {
            // Others have changed the map since it was read.
            Err(Reply::NotFound | Reply::Refused(EXISTS | BUSY)) => {
                self.read()?;
                self.transact(weights).map_err(|outcome| refused(&self.name, outcome))
            }
            done => done.map_err(|outcome| refused(&self.name, outcome)),
        }
    }

    fn transact(&mut self, weights: &[f64]) -> Result<usize, Reply> {
        let known = |slot: &Slot| {
            let value = slot.as_ref()?;
            let found = self.servers.iter().position(|server| server == value);
            // Someone else's server counts as one that gets no slots.
            Some(found.unwrap_or(self.servers.len()))
        };
        let present: Vec<Option<usize>> = self.present.iter().map(known).collect();
        let changes = apportion::changes(&present, weights);
        let added: Vec<SlotChange<'_>> = changes
            .iter()
            .map(|(slot, server)| (*slot as u32, Some(&self.servers[*server][..])))
            .collect();
        let is_there = |(slot, _): &&SlotChange<'_>| self.present[*slot as usize].is_some();
        let deleted: Vec<_> =
            added.iter().filter(is_there).map(|(slot, _)| (*slot, None)).collect();
        let outcomes = change_slots(&mut self.socket, &self.name, &deleted, &added);
        if let Some(failed) = outcomes.into_iter().find(|outcome| *outcome != Reply::Done) {
            return Err(failed);
        }
        for (slot, server) in &changes {
            self.present[*slot] = Some(self.servers[*server].clone());
        }
        Ok(changes.len())
    }
}

/// `EEXIST` and `EBUSY`: the slot has another value.
const EXISTS: i32 = 17;
const BUSY: i32 = 16;

fn refused<Found>(name: &SetName, outcome: Reply<Found>) -> StartError {
    if matches!(outcome, Reply::NotFound) {
        return StartError::Unfit(format!("the map {name} is gone; load its ruleset again"));
    }
    let kernel = |error: io::Error| {
        StartError::Unfit(format!("the kernel refuses the slots of the map {name} ({error})"))
    };
    StartError::from_outcome(outcome, "writing slots of nftables maps", kernel)
}
