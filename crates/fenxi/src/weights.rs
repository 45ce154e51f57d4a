//! Weights of servers: a program decides how new connections are spread, and fenxi writes that into
//! a map of nftables ([`netfilter::slots`]), one for each table `[weights.NAME]`.
//!
//! ```text
//! program ── weights ──► memory ([`observe::Actions`]) ──┐
//!        └── a byte ───► socket ── wakes ──► thread ─────┴── a transaction ──► map of slots
//! ```
//!
//! One program of one user has the memory, as long as it keeps the connection by which it got it.
//! What it writes is not trusted: without valid weights of a living program, static ones apply.
//! Where `actions` lets it, the program also says what becomes of flows that begin
//! ([`dataplane::server_actions`]); without valid ones, nothing does.
//!
//! Source: Yao et al., *Aquarius*, MASCOTS 2022, §III, where a program writes actions into memory
//! that the forwarder shares.

mod balance;
mod control;
mod counts;
mod keys;
mod thread;

pub use control::{WeightedServers, bind, sockets};
pub use keys::{actions, acts, check_change};
